"""How a job has ended, according to Slurm or to the journal. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hadar_slurm.core.cluster import JobId
from hadar_slurm.journal import Line
from hadar_slurm.slurm.jobs.seen import final_phase
from hadar_slurm.status.job_record import JobRecord


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How and when a job has ended; times in seconds."""

    job: JobId
    # `done`, `failed` or `cancelled`; "" if the end was not observed.
    phase: str
    # `slurm`, `accounting` or `journal`.
    known_from: str
    # Slurm's state and exit code, "" if unknown.
    state: str = ""
    exit_code: str = ""
    # 0 if unknown.
    ended_s: float = 0.0
    # The last round that names the job; None if none does.
    seen_s: float | None = None
    seen_round: int | None = None


def ended_by_slurm(job: str, record: JobRecord) -> JobEnd:
    """Return how a job has ended according to Slurm's record."""
    phase = str(final_phase(record.state))
    source = "accounting" if record.by_accounting else "slurm"
    return JobEnd(
        JobId(job),
        phase=phase,
        known_from=source,
        state=record.state,
        exit_code=record.exit_code,
        ended_s=record.ended_s,
    )


def ended_by_journal(job: str, line: Line) -> JobEnd:
    """Return how a job has ended according to the newest line that names it."""
    end = line.get("ended", {}).get(job)
    seen_s, number = float(line["time_s"]), int(line["round"])
    phase, ended_s = (str(end["phase"]), float(end["end_s"])) if end else ("", 0.0)
    return JobEnd(JobId(job), phase, "journal", ended_s=ended_s, seen_s=seen_s, seen_round=number)
