"""What the journal and Slurm know of one job, for hadar explain."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hadar_slurm.config import Config
from hadar_slurm.core.cluster import natural_key
from hadar_slurm.errors import JobSpecError, SlurmError, UsageError
from hadar_slurm.jobspec.description import decode_or_none
from hadar_slurm.jobspec.opting_out import is_opted_out
from hadar_slurm.journal import Line
from hadar_slurm.slurm.client.parse import HOLDING_STATES, QueueRow, asked_nodes
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.scontrol import parse_version
from hadar_slurm.slurm.client.submission import Submission, read_submissions
from hadar_slurm.slurm.jobs.enrolment import Lists, describe, is_listed, may_enrol
from hadar_slurm.status.ended import JobEnd, ended_by_journal, ended_by_slurm
from hadar_slurm.status.explain import NAMED
from hadar_slurm.status.job_record import JobRecord, record_of
from hadar_slurm.status.journal_search import newest_with
from hadar_slurm.status.status import current
from hadar_slurm.status.status_text import last_lines


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
    # Why hadard leaves an enrolled job to Slurm, "" where nothing speaks against it; None for any
    # other job.
    why_left: str | None = None

    @classmethod
    def of(cls, config: Config, job: str) -> SlurmRecord:
        """Query Slurm."""
        runner = Runner(config.slurm_conf, config.command_timeout_seconds)
        try:
            record = record_of(runner, job)
            row = record.row if record is not None and record.is_live else None
            why = _why_left(runner, row, config.enrol_lists) if row is not None else None
            return cls(record, why_left=why)
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
    def state(self) -> str:
        """Return the job's state by Slurm."""
        return self.record.state if self.record else ""

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


@dataclass(frozen=True, slots=True)
class JobSearch:
    """What the journal and Slurm know of one job."""

    # The job as the user wrote it.
    job: str
    # Its name in the journal: that of its array if it is a copy of a forked job.
    name: str
    # The last line of each mode.
    lines: Sequence[Line]
    # The newest line with the job, if any.
    line: Line | None
    # How it has ended, if it has.
    ended: JobEnd | None
    slurm: SlurmRecord

    @property
    def differs(self) -> bool:
        """Return whether the journal and Slurm disagree on whether the job waits."""
        return self.line is not None and self.slurm.differs(self.line["jobs"].get(self.name, {}))

    def answer(self) -> tuple[Answer, str]:
        """Return what is known of a job that cannot be explained, and why it cannot."""
        # The tasks of an array are separate jobs.
        job, names = self.job, {name for line in self.lines for name in line.get("jobs", {})}
        if self.ended:
            return Answer.ENDED, ""
        if tasks := [name for name in names if name.startswith(f"{job}_")]:
            named = f"{', '.join(sorted(tasks, key=natural_key)[:NAMED])} ..."
            return Answer.ARRAY, f"job {job} is an array of {len(tasks)} jobs: give one of {named}"
        record = self.slurm.record
        if record is None or record.by_accounting:
            slurm = (
                " and to Slurm" if self.slurm.knows_no_such_job else ", and Slurm did not answer"
            )
            return Answer.UNKNOWN, f"job {job} is unknown to the journal{slurm}"
        if why := self.slurm.why_left:
            return Answer.LEFT, f"job {job} is enrolled, but left to Slurm: {why}"
        if why == "":
            return Answer.NOT_TAKEN, (
                f"job {job} is enrolled, but hadard does not manage it: it was submitted after the "
                "last round, is held, names its nodes, waits for a dependency or its begin time, "
                "stands behind the first jobs of its array or account, or hadard does not manage "
                "its partition"
            )
        if record.why_never:
            return Answer.LEFT, _left_for_good(self.job, record)
        if decode_or_none(record.comment) is None:
            return Answer.LEFT, f"job {job} is left to Slurm: it was not submitted by hadar-sbatch"
        return Answer.NOT_TAKEN, (
            f"job {job} was submitted by hadar-sbatch, but hadard does not manage it: it was "
            "submitted after the last round, waits for a dependency or its begin time, hadard does "
            "not manage its partition, no valid plan could be made with it, it uses options that "
            "hadard does not support (docs/hadar-sbatch.md), or `hadar leave` removed it"
        )


def _left_for_good(job: str, record: JobRecord) -> str:
    """Return what hadard does with a job that Slurm cannot start."""
    is_held = record.row is not None and record.row.is_held
    does = "hadard ends its hold and leaves it to Slurm" if is_held else "it is left to Slurm"
    return f"job {job}: {does}"


def search(config: Config, path: Path, job: str, *, asks_slurm: bool) -> JobSearch:
    """Look a job up in Slurm, unless the journal is a simulation's, and in a journal.

    Raises UsageError if the journal cannot be read and Slurm does not know that the job has ended.
    """
    lines, fault = last_lines(path)
    names = tuple(dict.fromkeys((job, job.partition("_")[0])))
    places = ((name, line) for name in names for line in current(lines))
    named = ((name, line) for name, line in places if name in line.get("jobs", {}))
    name, line = next(named, (job, None))
    # A copy of a forked job may have ended while the job goes on.
    slurm = SlurmRecord.of(config, name) if asks_slurm else SlurmRecord(was_asked=False)
    if fault and not slurm.knows_it_ended:
        raise UsageError(f"the journal {fault}; operators can read it, or give --journal")
    ended = None
    if slurm.knows_it_ended and slurm.record is not None:
        ended = ended_by_slurm(name, slurm.record)
    elif line is None or slurm.knows_no_such_job:
        name, line, ended = _search_older(path, lines, names, slurm)
    return JobSearch(job, name=name, lines=lines, line=line, ended=ended, slurm=slurm)


def _search_older(
    path: Path, lines: Sequence[Line], names: tuple[str, ...], slurm: SlurmRecord
) -> tuple[str, Line | None, JobEnd | None]:
    """Return the newest line that names a job, and how the job ended if it has.

    A job that the newest round lacks has ended, unless Slurm still has it or that round observed
    nothing.
    """
    job = names[0]
    is_live = slurm.record is not None and slurm.record.is_live
    saw_nothing = not any("jobs" in last for last in current(lines))
    found = None
    with suppress(OSError):
        found = newest_with(path, names) if saw_nothing or not is_live else None
    if found is None:
        return job, None, None
    name, line = found
    if name in line.get("jobs", {}) and saw_nothing and not slurm.knows_no_such_job:
        return name, line, None
    return (job, None, None) if is_live else (name, line, ended_by_journal(name, line))


def _why_left(runner: Runner, row: QueueRow, lists: Lists) -> str | None:
    """Return why hadard leaves a listed job to Slurm, "" if it need not; None if it is not listed.

    Asks Slurm what the job asked for; raises SlurmError.
    """
    if not is_listed(row, lists):
        return None
    if is_opted_out(row.comment):
        return "its owner has opted out (no-hadar)"
    if not may_enrol(row, lists):
        return "no GPUs are requested" if decode_or_none(row.comment) is None else None
    version = parse_version(runner.run(["scontrol", "--version"]))
    asked = read_submissions(runner, version, row.key).get(row.key)
    detail = runner.run(["scontrol", "-a", "show", "job", "-d", "-o", row.key])
    num_nodes = row.request.num_nodes
    if row.state == "PENDING":
        num_nodes = asked_nodes(detail, num_nodes)
    try:
        describe(row, asked or Submission(), num_nodes)
    except JobSpecError as error:
        return str(error)
    return ""
