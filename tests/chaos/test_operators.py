"""A node leaves Slurm's configuration only once no job has to start on it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from chaos.operators import Operators
from chaos.records import Sighting
from chaos.test_invariants import FREE_JOB, RUNNING


@pytest.mark.parametrize(
    ("job", "is_drained", "may_leave"),
    [
        (FREE_JOB, True, True),
        (FREE_JOB, False, False),
        (replace(RUNNING, requested_nodes=""), True, False),
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
        observer=SimpleNamespace(live=lambda: [job]),
        order=lambda words: is_drained,
        wait=lambda is_true, limit_s: is_true(),
    )
    assert Operators(injector)._has_emptied("n1") is may_leave
