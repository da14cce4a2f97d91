"""The file with the steps of the copies of a forked job. Standard library, Python 3.9.

hadard writes it; the runtime of the copies reads it with `handoff.py`.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, Mapping

from hadar_slurm.job_files import VERSION


class AssignmentError(ValueError):
    """An assignment exists and cannot be read; gives the reason."""


@dataclass(frozen=True)
class Assignment:
    """The steps that hadard assigns to a forked job's copies, until the next assignment.

    `number` grows with each; `quotas` are the steps that each copy can train in `slot_s` seconds,
    so that in any time all end together. An averaging interval has another length, which the copies
    choose; a `slot_s` of 0 says that an interval has these quotas.
    """

    number: int
    quotas: Mapping[int, int]
    slot_s: float
    version: int = VERSION


def assignment_path(directory: Path, parent_id: str) -> Path:
    """Return where the assignment of a forked job lies."""
    return directory / parent_id / "assignment.json"


def assignment_text(assignment: Assignment) -> str:
    """Return what the file of an assignment says."""
    return json.dumps({**asdict(assignment), "quotas": dict(assignment.quotas)}) + "\n"


def shares(budget: int, speeds: Mapping[int, float]) -> Dict[int, int]:
    """Split `budget` steps among copies in proportion to their speeds, by largest remainder.

    All copies then end at the same time, to within a step of each. Speeds are in steps/s; a copy
    without speed gets nothing, and of equal remainders the lower copy's comes first. HadarE
    (arXiv 2503.10918), job tracker, as reconstructed; how it rounds is not known.
    """
    known = {copy: speed for copy, speed in speeds.items() if speed > 0}
    total = sum(known.values())
    exact = {copy: budget * speed / total for copy, speed in known.items()}
    quotas = {copy: int(share) for copy, share in exact.items()}
    order = sorted(known, key=lambda copy: (quotas[copy] - exact[copy], copy))
    for copy in order[: budget - sum(quotas.values())]:
        quotas[copy] += 1
    return {copy: quotas.get(copy, 0) for copy in speeds}
