"""Validates a journal line and extracts the fields and held GPUs that the page needs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId
from hadar_slurm.journal import Line, gang_from_tree
from hadar_slurm.metrics import Segments
from hadar_slurm.status.jobs import Forked, forked_of
from hadar_slurm.web.words import clean

# The exceptions that a damaged line raises.
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
# Clocks are set back by seconds; a larger step back means another run.
_ANOTHER_RUN_S = 3600.0
# The year 9000, which a calendar still knows.
_LAST_S = 2.2e11
# More than any cluster has GPUs, or hadard has rounds.
_MOST = 10**9

SEVERAL = "several"

Tree = Mapping[str, Mapping[str, int]]
Slots = dict[tuple[str, str], int]
Holds = dict[tuple[JobId, int], Tree]


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One round in short; `did` counts its actions by (what, status), times are seconds.

    `held` counts jobs that hadard holds, `expired` all jobs released by the reaper, `commands`
    Slurm's commands by (program, answer), `averages` parameter averagings since the line before;
    simulations and older journals lack them.
    """

    number: int
    time_s: float
    mode: str
    wake: str
    jobs: int
    waiting: int
    did: Mapping[tuple[str, str], int]
    work_s: float
    plan_s: float
    errors: tuple[str, ...]
    held: int | None
    expired: int | None
    averages: int | None
    commands: Mapping[tuple[str, str], int]

    def count(self, status: str, do: str = "") -> int:
        """Return the number of actions, of all kinds or of one, with a status."""
        return sum(n for (what, how), n in self.did.items() if how == status and do in ("", what))


_JOB_KEYS = frozenset(
    ("phase", "user", "workload", "gpus", "submitted_s", "steps", "steps_done", "restarts")
)
_REACH = ("enforce", "advise", "observe", "")


def by_reach(modes: Mapping[str, object]) -> list[str]:
    """Return modes in order, the furthest first."""
    return sorted(modes, key=lambda mode: _REACH.index(mode) if mode in _REACH else len(_REACH))


def limit_s(line: Line) -> float:
    """Return how far time may step back from the round before to this one, in seconds."""
    return _ANOTHER_RUN_S if line.get("mode") else 0.0


def slots_of(tree: Tree) -> Slots:
    """Return a gang's GPUs by (node, type)."""
    return {
        (node, gpu_type): _whole(count)
        for node, gpus in tree.items()
        for gpu_type, count in gpus.items()
    }


def _whole(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= _MOST:
        raise ValueError(f"{value!r} is no count")
    return value


def time_of(value: float) -> float:
    """Return a time of a journal; raises ValueError if it is invalid."""
    if not 0 <= value <= _LAST_S:
        raise ValueError(f"{value!r} is no time")
    return float(value)


def row_of(line: Line) -> RoundRow:
    """Return a round in short."""
    parts = {name: float(value) for name, value in line["durations_s"].items()}
    return RoundRow(
        number=_whole(line["round"]),
        time_s=time_of(line["time_s"]),
        mode=str(line.get("mode", "")),
        wake=str(line["wake"]),
        jobs=len(line.get("jobs", {})),
        waiting=len(line["waiting"]),
        did=Counter((str(a["do"]), str(a["status"])) for a in line["actions"]),
        work_s=sum(parts.values()),
        plan_s=parts.get("plan", 0.0),
        errors=tuple(str(error) for error in line["errors"]),
        held=_whole(line["held"]) if "held" in line else None,
        expired=_whole(line["expired"]) if "expired" in line else None,
        averages=_whole(line["averages"]) if "averages" in line else None,
        commands={
            (program, answer): _whole(number)
            for program, answers in line.get("commands", {}).items()
            for answer, number in answers.items()
        },
    )


def holds_of(line: Line) -> Holds:
    """Return the gangs held by (job, copy); raises one of DAMAGE for a damaged line."""
    for action in line["actions"]:
        _whole(action["copy"])
        slots_of(action["gang"])
        if not isinstance(action["job"], str):
            raise ValueError(f"{action['job']!r} is no job")
    if "nodes" not in line:
        return {}
    slots_of({name: node["gpus"] for name, node in line["nodes"].items()})
    slots_of(line["occupied"])
    holds: Holds = {}
    forked_jobs(line)
    for job_id, job in line["jobs"].items():
        if not job.keys() >= _JOB_KEYS:
            raise ValueError(f"job {job_id} is incomplete")
        _check_unusual(job)
        for copy, tree in job["holds"].items():
            slots_of(tree)
            holds[JobId(job_id), int(copy)] = tree
    return holds


def partition_of(job: Line | None) -> str:
    """Return a job's partition, `several` before Slurm has chosen one, "" if unknown.

    Lists of partitions share one label, so that users cannot create unlimited labels.
    """
    name = clean(job.get("partition", "")) if job is not None else ""
    return SEVERAL if "," in name else name


def forked_jobs(line: Line) -> dict[str, Forked]:
    """Return the copies of every forked job; raises one of DAMAGE for a damaged line."""
    found = {job_id: forked_of(line, job_id) for job_id in line["jobs"]}
    return {job_id: forked for job_id, forked in found.items() if forked is not None}


def _check_unusual(job: Line) -> None:
    """Raise ValueError if an optional field of a job is invalid."""
    _whole(job["gpus"])
    for throughput in job.get("rates", {}).values():
        if not 0 <= float(throughput) < math.inf:
            raise ValueError(f"{throughput!r} is no speed")
    if not isinstance(job.get("partition", ""), str):
        raise ValueError(f"{job['partition']!r} is no partition")
    if not all(isinstance(remark, str) for remark in job.get("remarks", ())):
        raise ValueError(f"{job['remarks']!r} are no remarks")
    if not all(isinstance(name, str) for name in job.get("nodes", ())):
        raise ValueError(f"{job['nodes']!r} are no nodes")


@dataclass
class Book:
    """The segments of one mode's jobs, with the gangs in the journal's form."""

    segments: Segments
    trees: dict[tuple[JobId, int], Tree] = field(default_factory=dict)

    def start(self, job_id: JobId, copy: int, tree: Tree, now_s: float) -> None:
        """Start a copy's segment, unless it already holds this gang."""
        key = (job_id, copy)
        if self.trees.get(key) == tree:
            return
        self.stop(job_id, copy, now_s)
        self.trees[key] = tree
        gang = gang_from_tree({node: dict(gpus) for node, gpus in tree.items()})
        self.segments.start(job_id, copy, gang, now_s)

    def stop(self, job_id: JobId, copy: int, now_s: float) -> None:
        """End a copy's segment."""
        if self.trees.pop((job_id, copy), None) is not None:
            self.segments.stop(job_id, copy, now_s)

    def hold(self, holds: Mapping[tuple[JobId, int], Tree], now_s: float) -> None:
        """Set the gangs that all jobs hold now."""
        for job_id, copy in [key for key in self.trees if key not in holds]:
            self.stop(job_id, copy, now_s)
        for (job_id, copy), tree in holds.items():
            self.start(job_id, copy, tree, now_s)

    def end(self, job_id: JobId, end_s: float) -> None:
        """End a job's segments, not before their start."""
        for copy, (_, start_s) in list(self.segments.open.get(job_id, {}).items()):
            self.stop(job_id, copy, max(start_s, end_s))

    def slots(self) -> Counter[tuple[str, str]]:
        """Return the number of GPUs held by (node, type)."""
        held: Counter[tuple[str, str]] = Counter()
        for tree in self.trees.values():
            held.update(slots_of(tree))
        return held
