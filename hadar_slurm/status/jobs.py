"""One job in a line of the journal: its state, its copies. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hadar_slurm.journal import Line

PINNED = "pinned"


def state_of(job: Line) -> str:
    """Return a job's phase, or `pinned` while a starting job still waits in Slurm."""
    phase = str(job["phase"])
    return PINNED if phase == "starting" and job.get("pinned") is True else phase


@dataclass(frozen=True, slots=True)
class CopyState:
    """One copy of a forked job."""

    number: int
    # Slurm's id of the array task, "" if the journal lacks it.
    task: str
    gang: Mapping[str, Mapping[str, int]]
    # Measured throughput; None before the first measurement.
    steps_per_s: float | None = None
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class Forked:
    """The copies of one forked job (HadarE) that hold GPUs."""

    copies: tuple[CopyState, ...]
    # The parameter averagings; None if the journal lacks them.
    averages: int | None = None
    # The round that first showed the last one.
    averaged_s: float | None = None
    # Whether the copies share every step.
    is_synchronous: bool = False


def forked_of(line: Line, job_id: str) -> Forked | None:
    """Return the copies of a job in a round; None for a job that is not forked.

    Raises ValueError, TypeError, AttributeError or KeyError if the line is damaged.
    """
    job, facts = line["jobs"][job_id], line.get("forked", {}).get(job_id)
    if facts is None and job.get("copies", 1) < 2 and len(job["holds"]) < 2:
        return None
    facts = facts or {}
    measured = facts.get("copies", {})
    copies = []
    for number, gang in sorted(job["holds"].items(), key=lambda item: int(item[0])):
        copy = measured.get(number, {})
        task, is_pinned = str(copy.get("task", "")), copy.get("pinned") is True
        throughput = _number(copy.get("steps_per_s"))
        copies.append(
            CopyState(
                int(number), task=task, gang=gang, steps_per_s=throughput, is_pinned=is_pinned
            )
        )
    averages, averaged_s = _number(facts.get("averages")), _number(facts.get("averaged_s"))
    return Forked(
        tuple(copies),
        None if averages is None else int(averages),
        averaged_s,
        facts.get("synchronous") is True,
    )


def _number(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is not a number of 0 or more")
    return float(value)
