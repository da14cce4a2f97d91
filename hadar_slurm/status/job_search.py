"""What the journal and Slurm know of one job, for hadar explain."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hadar_slurm.config import Config
from hadar_slurm.core.cluster import natural_key
from hadar_slurm.errors import SlurmError
from hadar_slurm.jobspec.description import decode_or_none
from hadar_slurm.journal import Line
from hadar_slurm.slurm.client.job_record import JobRecord, record_of
from hadar_slurm.slurm.client.parse import HOLDING_STATES
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.status.ended import EndedJob, ended_by_journal
from hadar_slurm.status.explain import NAMED
from hadar_slurm.status.journal_search import newest_with
from hadar_slurm.status.status import current


class Answer(StrEnum):
    """What is known of a job; exit status 0 for FOUND and ENDED, else 1."""

    FOUND = "found"
    ENDED = "ended"
    LEFT = "left to Slurm"
    NOT_TAKEN = "not taken by hadard"
    ARRAY = "array"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class SlurmRecord:
    """Slurm's record of the job; `fault` says why the query failed."""

    record: JobRecord | None = None
    fault: str = ""
    was_asked: bool = True

    @classmethod
    def of(cls, config: Config, job: str) -> SlurmRecord:
        """Query Slurm."""
        runner = Runner(config.slurm_conf, config.command_timeout_seconds)
        try:
            return cls(record_of(runner, job))
        except SlurmError as error:
            return cls(fault=str(error))

    @property
    def words(self) -> str | None:
        """Return the job's state in words, None if Slurm was not asked."""
        if self.fault:
            return f"unknown: {self.fault}"
        missing = "no such job" if self.was_asked else None
        return self.record.words if self.record else missing

    @property
    def knows_it_ended(self) -> bool:
        """Return whether the job has ended."""
        return self.record is not None and not self.record.is_live

    def differs(self, job: Line) -> bool:
        """Return whether the journal and Slurm disagree on whether the job waits."""
        if self.record is None or not self.record.is_live or not job:
            return False
        holds = self.record.state in HOLDING_STATES
        return holds if job["phase"] == "queued" else not holds and job["phase"] == "running"

    @property
    def knows_no_such_job(self) -> bool:
        """Return whether Slurm answered that it has no such job."""
        return self.was_asked and not self.fault and self.record is None


def _names(job: str) -> tuple[str, ...]:
    """Return a job's possible names in the journal: its own, and that of its array if forked."""
    return tuple(dict.fromkeys((job, job.partition("_")[0])))


def find_job(lines: Sequence[Line], job: str) -> tuple[str, Line | None]:
    """Return a job's name in the last rounds, and the line that has it."""
    found = ((name, line) for name in _names(job) for line in lines if name in line.get("jobs", {}))
    return next(found, (job, None))


def search_journal(
    path: Path, lines: Sequence[Line], job: str, slurm: SlurmRecord
) -> tuple[str, Line | None, EndedJob | None]:
    """Return the newest line that names a job, and how the job ended if it has.

    A job that the newest round lacks has ended, unless Slurm still has it or that round observed
    nothing.
    """
    is_live = slurm.record is not None and slurm.record.is_live
    saw_nothing = not any("jobs" in last for last in current(lines))
    found = None
    with suppress(OSError):
        found = newest_with(path, _names(job)) if saw_nothing or not is_live else None
    if found is None:
        return job, None, None
    name, line = found
    if name in line.get("jobs", {}) and saw_nothing and not slurm.knows_no_such_job:
        return name, line, None
    return (job, None, None) if is_live else (name, line, ended_by_journal(name, line))


def answer_for(lines: Sequence[Line], job: str, slurm: SlurmRecord) -> tuple[Answer, str]:
    """Return what is known of a job that has not ended, and why it cannot be explained."""
    # The tasks of an array are separate jobs.
    names = {name for line in lines for name in line.get("jobs", {})}
    if tasks := [name for name in names if name.startswith(f"{job}_")]:
        named = ", ".join(sorted(tasks, key=natural_key)[:NAMED])
        return Answer.ARRAY, f"job {job} is an array of {len(tasks)} jobs: give one of {named} ..."
    if slurm.record is not None and not slurm.record.by_accounting:
        if decode_or_none(slurm.record.comment) is None:
            return Answer.LEFT, f"job {job} is left to Slurm: it was not submitted by hadar-sbatch"
        return Answer.NOT_TAKEN, (
            f"job {job} was submitted by hadar-sbatch, but hadard does not manage it: it was "
            "submitted after the last round, hadard does not manage its partition, it uses options "
            "that hadard does not support (docs/hadar-sbatch.md), or `hadar leave` removed it"
        )
    and_slurm = " and to Slurm" if slurm.knows_no_such_job else ", and Slurm did not answer"
    return Answer.UNKNOWN, f"job {job} is unknown to the journal{and_slurm}"
