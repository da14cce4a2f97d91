"""Validates a journal line and extracts the fields and held GPUs that the page needs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.engine.modes import Mode
from hadar_slurm.journal import Line
from hadar_slurm.journal.values import changed_rows, throughputs_of
from hadar_slurm.status.jobs import Forked, forked_of
from hadar_slurm.web.words import clean

# The exceptions that a damaged line raises.
DAMAGE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
# The year 9000, which a calendar still knows.
_LAST_S = 2.2e11
# More than any cluster has GPUs, or hadard has rounds.
_MOST = 10**9

SEVERAL = "several"

Slots = dict[tuple[str, str], int]
Holds = dict[tuple[JobId, int], Gang]


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


_JOB_KEYS = {"phase", "user", "workload", "gpus", "submitted_s", "steps", "steps_done", "restarts"}
# Those that `_check` looks at, beside that all are there.
_CHECKED = ("gpus", "throughputs", "rates", "partition", "remarks", "nodes", "holds")
_REACH = (*map(str, reversed(Mode)), "")


def by_reach(modes: Mapping[str, object]) -> list[str]:
    """Return modes in order, the furthest first."""
    return sorted(modes, key=lambda mode: _REACH.index(mode) if mode in _REACH else len(_REACH))


def slots_of(tree: Mapping[str, Mapping[str, int]]) -> Slots:
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


@dataclass(frozen=True, slots=True)
class Observed:
    """The jobs of a line, checked, with their gangs and the copies of forked ones."""

    jobs: Mapping[str, Line] = field(default_factory=dict)
    gangs: Mapping[str, Mapping[int, Gang]] = field(default_factory=dict)
    forked: Mapping[str, Forked] = field(default_factory=dict)
    # Those of all jobs so far.
    partitions: frozenset[str] = frozenset()
    # The jobs that may have several copies.
    may_fork: frozenset[str] = frozenset()

    @property
    def holds(self) -> Holds:
        """Return the gangs held by (job, copy)."""
        return {
            (JobId(job_id), copy): gang
            for job_id, gangs in self.gangs.items()
            for copy, gang in gangs.items()
        }

    @classmethod
    def of(cls, line: Line, before: Observed) -> Observed:
        """Return the jobs of a line; raises one of DAMAGE for a damaged line.

        `before` is what the line of the mode before had: jobs that have not changed, which are the
        same objects, are not checked again.
        """
        for action in line["actions"]:
            _whole(action["copy"])
            slots_of(action["gang"])
            if not isinstance(action["job"], str):
                raise ValueError(f"{action['job']!r} is no job")
        if "nodes" not in line:
            return cls()
        slots_of({name: node["gpus"] for name, node in line["nodes"].items()})
        slots_of(line["occupied"])
        known, jobs, facts = before.jobs, line["jobs"], line.get("forked", {})
        gangs = {name: held for name, held in before.gangs.items() if name in jobs}
        changed = changed_rows(known, jobs)
        for job_id in changed:
            job, old = jobs[job_id], known.get(job_id)
            _check(job_id, job, old)
            if old is None or old["holds"] is not job["holds"]:
                gangs.pop(job_id, None)
                if trees := job["holds"]:
                    gangs[job_id] = {int(n): Gang.of(slots_of(tree)) for n, tree in trees.items()}
        several = [n for n in changed if "copies" in jobs[n] or len(jobs[n]["holds"]) > 1]
        may_fork = before.may_fork.union(several)
        forked = {
            name: copies
            for name in jobs.keys() & (may_fork | facts.keys())
            if (copies := forked_of(line, name)) is not None
        }
        names = {jobs[name].get("partition", "") for name in changed}
        found = before.partitions.union(partition_of({"partition": name}) for name in names)
        return cls(jobs, gangs, forked, found, may_fork & jobs.keys())


def _check(job_id: str, job: Line, old: Line | None) -> None:
    """Raise one of DAMAGE for a job whose fields are not valid; `old` is one that is valid."""
    if not job.keys() >= _JOB_KEYS:
        raise ValueError(f"job {job_id} is incomplete")
    if old is not None and all([job.get(key) is old.get(key) for key in _CHECKED]):
        return
    _whole(job["gpus"])
    throughputs = throughputs_of(job)
    if not all(0 <= float(steps_per_s) < math.inf for steps_per_s in throughputs.values()):
        raise ValueError(f"{throughputs!r} are no throughputs")
    texts = [job.get("partition", ""), *job.get("remarks", ()), *job.get("nodes", ())]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError(f"job {job_id}: partition, remarks or nodes are no text")
    for copy, tree in job["holds"].items():
        int(copy), slots_of(tree)


def partition_of(job: Line | None) -> str:
    """Return a job's partition, `several` before Slurm has chosen one, "" if unknown.

    Lists of partitions share one label, so that users cannot create unlimited labels.
    """
    name = clean(job.get("partition", "")) if job is not None else ""
    return SEVERAL if "," in name else name
