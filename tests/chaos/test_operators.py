"""A node leaves Slurm's configuration only once no job has to start on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from chaos.case import Case
from chaos.faults import Kind, draw_faults
from chaos.operators import Operators
from chaos.records import Sighting
from chaos.test_invariants import FREE_JOB


def waited(injector: Any, is_true: Callable[[], bool]) -> bool:
    """Wait through ten samples, one a second; return whether it was true at last, not at first."""
    assert not is_true()
    for second in range(1, 11):
        injector.observer.newest_s = float(second)
        is_so = is_true()
    return is_so


@pytest.mark.parametrize(
    ("job", "is_drained", "may_leave"),
    [
        (FREE_JOB, True, True),
        (FREE_JOB, False, False),
        (replace(FREE_JOB, requested_nodes="n1"), True, False),
        # Slurm's list of nodes n1 to n3.
        (replace(FREE_JOB, requested_nodes="n[1-3]"), True, False),
        (replace(FREE_JOB, requested_nodes="n[2-3],n10"), True, True),
    ],
)
def test_a_node_that_a_job_waits_for_is_not_empty(
    job: Sighting, *, is_drained: bool, may_leave: bool
) -> None:
    injector: Any = SimpleNamespace(
        observer=SimpleNamespace(live=lambda: [job], nodes={"n1": "IDLE+DRAIN"}, newest_s=0.0),
        order=lambda words: is_drained,
        wait=lambda is_true, limit_s: waited(injector, is_true),
    )
    assert Operators(injector)._has_emptied("n1") is may_leave


@pytest.mark.parametrize("state", ["MIXED+DRAIN", "IDLE+COMPLETING+DRAIN", "IDLE", ""])
def test_a_node_on_which_a_job_is_or_completes_is_not_empty(state: str) -> None:
    """Slurm shows no GPUs of a job that completes."""
    injector: Any = SimpleNamespace(
        observer=SimpleNamespace(live=lambda: [FREE_JOB], nodes={"n1": state}, newest_s=0.0),
        order=lambda words: True,
        wait=lambda is_true, limit_s: waited(injector, is_true),
    )
    assert not Operators(injector)._has_emptied("n1")


@pytest.mark.parametrize(("pick", "takes_back"), [(0.0, "State=UP"), (0.5, "Nodes=ALL")])
def test_a_partition_gets_back_only_what_was_changed(pick: float, takes_back: str) -> None:
    """A slurmctld may have started meanwhile, whose partition is closed until nodes report."""
    (fault,) = draw_faults(1, 1, (Kind.PARTITION,))
    case, said = Case(1, replace(fault, pick=pick, share=0.9), 0.0), list[list[str]]()
    undo: list[Any] = []
    injector: Any = SimpleNamespace(
        observer=SimpleNamespace(nodes={"n1": "IDLE"}),
        say=lambda case, argv: None,
        later=lambda case, act: undo.append(act),
        order=lambda words: said.append(words) or True,
        wait=lambda is_true, limit_s: is_true(),
    )
    Operators(injector)._partition(case)
    undo[0]()
    assert said == [["update", "PartitionName=main", takes_back]]
