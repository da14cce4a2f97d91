"""The partition opens when the nodes have reported to the slurmctld that runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from chaos.opening import Opening
from chaos.world import Ran

AWAY = Ran(1)
SILENT = Ran(0, "NodeName=n1 State=IDLE SlurmdStartTime=None\n")
REPORTED = Ran(0, "NodeName=n1 State=IDLE SlurmdStartTime=1795831678\n")
DOWN, OPEN = "NodeName=n1", "PartitionName=main"


def opened(answers: Iterator[Ran | None]) -> list[str]:
    """Return what an opening changes; None: slurmctld is replaced, and its successor answers."""
    changed: list[str] = []

    def run(argv: Sequence[str], limit_s: float) -> Ran:
        if argv[1] == "update":
            changed.append(argv[2])
            return Ran(0)
        answer = next(answers, SILENT)
        if answer is None:
            opening.end()
            answer = next(answers)
        return answer

    opening = Opening(run, report_within_s=0.05, ask_every_s=0.01)
    opening.wait_and_open()
    return changed


@pytest.mark.parametrize(
    ("answers", "changes"),
    [
        ((REPORTED,), [OPEN]),
        ((SILENT,), [DOWN, OPEN]),
        ((AWAY, AWAY, REPORTED), [OPEN]),
        # No node has reported to the successor yet, which has an opening of its own.
        ((None, SILENT), []),
        ((SILENT, None, SILENT), []),
        ((None, REPORTED), []),
    ],
)
def test_only_the_slurmctld_that_runs_is_opened(
    answers: Sequence[Ran | None], changes: list[str]
) -> None:
    """A node that is late is set DOWN, which requeues its jobs, but only by its own slurmctld."""
    assert opened(iter(answers)) == changes
