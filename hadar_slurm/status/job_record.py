"""Looks up one job: in squeue while slurmctld remembers it, then in sacct."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hadar_slurm.errors import SlurmError, SlurmRefused
from hadar_slurm.slurm.client.parse import HOLDING_STATES, QUEUE, QueueRow, parse_queue
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.squeue import squeue

_LIVE = HOLDING_STATES | {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"}
_UNKNOWN = "Invalid job id"
_CHANGE = "Its owner can change it with `scontrol update JobId={job} ...`"
_AGAIN = "Its owner can cancel it, and submit it again"
# What Slurm's reasons mean with which it never starts a job as it was submitted, and what its
# owner can do.
_NEVER = {
    "BadConstraints": (
        "no node has the GPUs, cores, memory and features that it requests together",
        f"{_AGAIN} with less, or for other nodes",
    ),
    "PartitionTimeLimit": (
        "its time limit is above that of its partition",
        f"{_CHANGE} to a shorter TimeLimit, or another Partition",
    ),
    "PartitionConfig": (
        "its partition has not as many nodes, cores or tasks as it requests",
        f"{_AGAIN} with less, or to another partition",
    ),
    "PartitionNodeLimit": (
        "its partition does not allow its number of nodes",
        f"{_CHANGE} to another NumNodes, or another Partition",
    ),
    "AssocMaxWallDurationPerJobLimit": (
        "its time limit is above that of its account",
        f"{_CHANGE} to a shorter TimeLimit",
    ),
    "QOSMaxWallDurationPerJobLimit": (
        "its time limit is above that of its QOS",
        f"{_CHANGE} to a shorter TimeLimit, or another QOS",
    ),
    "AccountNotAllowed": (
        "its partition does not allow its account",
        f"{_CHANGE} to another Account or Partition",
    ),
    "QOSNotAllowed": (
        "its partition does not allow its QOS",
        f"{_CHANGE} to another QOS or Partition",
    ),
    "InvalidAccount": ("its account does not exist any more", f"{_CHANGE} to another Account"),
    "InvalidQOS": ("its QOS does not exist any more", f"{_CHANGE} to another QOS"),
    "DependencyNeverSatisfied": (
        "a job on which it depends has not ended as required",
        f"{_CHANGE} to another Dependency, or cancel it",
    ),
    "ReservationDeleted": (
        "its reservation does not exist any more",
        f"{_CHANGE} to another ReservationName, or none",
    ),
}


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job, or one task for an array as a whole: a live one if there is one."""

    # squeue's long name.
    state: str
    # Only from squeue.
    reason: str = ""
    comment: str = ""
    # Seconds since the epoch; 0: not known.
    ended_s: float = 0.0
    # Status and signal, `1:0`; only from sacct.
    exit_code: str = ""
    by_accounting: bool = False
    # Only from squeue.
    row: QueueRow | None = None

    @property
    def is_live(self) -> bool:
        """Whether it is pending or holds resources."""
        return self.state in _LIVE

    @property
    def why_never(self) -> str:
        """Return why Slurm cannot start a waiting job as it was submitted; "" if it may."""
        return _NEVER.get(self.reason, ("", ""))[0] if self.state == "PENDING" else ""

    def remedy(self, job: str) -> str:
        """Return what the owner of such a job can do; "" for any other."""
        return _NEVER[self.reason][1].format(job=job) if self.why_never else ""

    @property
    def words(self) -> str:
        """Return the state in Slurm's words."""
        if self.by_accounting:
            return f"{self.state}, by sacct"
        return f"{self.state} {self.reason}".strip()


def record_of(runner: Runner, job: str) -> JobRecord | None:
    """Return Slurm's record of a job; None if neither slurmctld nor the accounting has one.

    Raises SlurmError where slurmctld cannot be reached. Accounting that is off has no records.
    """
    try:
        rows = parse_queue(*squeue(runner, QUEUE, "-t", "all", "-j", job))
    except SlurmRefused as error:
        if _UNKNOWN not in str(error):
            raise
        rows = []
    records = [JobRecord(row.state, row.reason, row.comment, row.ended_s, row=row) for row in rows]
    return _representative(records) or _by_accounting(runner, job)


def _by_accounting(runner: Runner, job: str) -> JobRecord | None:
    try:
        text = runner.run(["sacct", "-n", "-P", "-X", "-j", job, "-o", "State,ExitCode,End"])
    except SlurmError:
        return None
    records = []
    for line in text.splitlines():
        state, exit_code, end = (*line.split("|", 2), "", "")[:3]
        # `CANCELLED by 1000`; `Unknown` for the end of a job that runs.
        # Lines without an exit code are those of a wrapper of sacct.
        if (words := state.split()) and ":" in exit_code:
            ended_s = float(end) if end.isdecimal() else 0.0
            records.append(
                JobRecord(
                    words[0],
                    reason="",
                    comment="",
                    ended_s=ended_s,
                    exit_code=exit_code,
                    by_accounting=True,
                )
            )
    return _representative(records)


def _representative(records: Sequence[JobRecord]) -> JobRecord | None:
    """Return the task that represents an array: a live one, else the last one that failed."""

    def rank(record: JobRecord) -> tuple[bool, bool, bool, float]:
        state = record.state
        return record.is_live, state in HOLDING_STATES, state != "COMPLETED", record.ended_s

    return max(records, key=rank, default=None)
