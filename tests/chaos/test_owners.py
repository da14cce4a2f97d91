"""Owners destroy no comment that alone marks a hold of hadard's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from chaos.case import Case
from chaos.faults import Kind, draw_faults
from chaos.owners import Owners
from chaos.test_invariants import FREE_JOB, a_task
from chaos.world import Ran

SHOWN = "JobId=7 JobName=a Priority={} JobState=PENDING Reason={} Dependency=(null)\n"


@pytest.mark.parametrize(
    ("shown", "is_known", "is_destroyed"),
    [
        (SHOWN.format(0, "JobHeldUser"), False, False),
        (SHOWN.format(0, "JobHeldUser"), True, True),
        (SHOWN.format(1000, "Resources"), False, True),
        ("", False, False),
    ],
)
def test_a_hold_that_no_sample_shows_yet_keeps_its_mark(
    shown: str, *, is_known: bool, is_destroyed: bool
) -> None:
    """hadar-sbatch holds a job after its submission; hadard's ledger has it only later."""
    case = Case(1, draw_faults(1, 1, (Kind.COMMENT,))[0], 0.0)
    changed: list[Any] = []
    injector: Any = SimpleNamespace(
        workload=SimpleNamespace(tasks={"7": a_task()}),
        observer=SimpleNamespace(live=lambda: [FREE_JOB]),
        world=SimpleNamespace(
            ledger=lambda: {"7"} if is_known else set(), run=lambda argv, limit_s: Ran(0, shown)
        ),
        say=lambda case, argv, user: changed.append(argv) or Ran(0),
        skip=lambda case, why: setattr(case, "is_skipped", True),
    )
    Owners(injector)._comment(case)
    assert bool(changed) is is_destroyed
    assert case.is_skipped is not is_destroyed
