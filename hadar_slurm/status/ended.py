"""How a job has ended, by what Slurm says and by what the journal says. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hadar_slurm.core.cluster import JobId
from hadar_slurm.journal import Line
from hadar_slurm.slurm.client.job_record import JobRecord
from hadar_slurm.slurm.observe.array_jobs import final_phase


@dataclass(frozen=True, slots=True)
class EndedJob:
    """How and when a job has ended; times in seconds, 0 where they are not known.

    `phase` is `done`, `failed` or `cancelled`, "" where the end was not seen; `state` and
    `exit_code` are Slurm's, "" where unknown. `known_from` is `slurm`, `accounting` or
    `journal`. `seen_s` is the last round that named the job, None where none did.
    """

    job: JobId
    phase: str
    known_from: str
    state: str = ""
    exit_code: str = ""
    ended_s: float = 0.0
    seen_s: float | None = None
    seen_round: int | None = None


def ended_by_slurm(job: str, record: JobRecord) -> EndedJob:
    """Return how a job has ended by Slurm's own record of it."""
    return EndedJob(
        JobId(job),
        str(final_phase(record.state)),
        "accounting" if record.by_accounting else "slurm",
        record.state,
        record.exit_code,
        record.ended_s,
    )


def ended_by_journal(job: str, line: Line) -> EndedJob:
    """Return how a job has ended by the newest line that names it, alive or ended."""
    end = line.get("ended", {}).get(job)
    seen_s, number = float(line["time_s"]), int(line["round"])
    if end is None:
        return EndedJob(JobId(job), "", "journal", seen_s=seen_s, seen_round=number)
    return EndedJob(
        JobId(job),
        str(end["phase"]),
        "journal",
        ended_s=float(end["end_s"]),
        seen_s=seen_s,
        seen_round=number,
    )
