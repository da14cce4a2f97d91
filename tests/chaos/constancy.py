"""What hadard must not change: an owner's edits of a waiting job, and jobs that run. Pure."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence

from chaos.invariants import EDITS, STILL, Finding, Past, Sample
from chaos.records import WAITING, Sighting
from chaos.workload import HOLD, Task
from ClusterShell.NodeSet import NodeSet

# Where Slurm shows the fields of `scontrol update` that owners edit.
_SHOWN = {
    "ReqNodeList": "requested_nodes",
    "ExcNodeList": "excluded_nodes",
    "Nice": "nice",
    "TimeLimit": "limit",
    "Features": "features",
    "QOS": "qos",
}
# Fields that hadard borrows, and gives back with the owner's value, with that of a new job; None
# where it depends on the partition.
LENT: Mapping[str, str | None] = {"Nice": "0", "TimeLimit": None, "Features": ""}


def shown_value(job: Sighting, name: str) -> str:
    """Return the value of a field of `scontrol update`."""
    return str(getattr(job, _SHOWN[name]))


def lost_edits(
    sample: Sample, tasks: Mapping[str, Task], *, is_gone: bool = True
) -> Iterator[Finding]:
    """Yield every edit of a waiting job that Slurm no longer shows.

    Further excluded nodes are no loss: they narrow the owner's wish. Nor is what hadard has
    borrowed, until it is gone (`is_gone`) and all has been given back.
    """
    for job in sample.jobs:
        task = tasks.get(job.key)
        if task is None or job.state not in WAITING:
            continue
        for name, edit in dict(task.edits).items():
            is_due = sample.before_s > edit.done_s and (is_gone or not edit.may_be_lent)
            if is_due and not _is_shown(job, name, edit.value):
                shown = "released" if name == HOLD else shown_value(job, name)
                what = f"{name} is {shown!r} after its owner's {edit.value!r}"
                yield Finding(EDITS, job.key, sample.after_s, what)


def _is_shown(job: Sighting, name: str, value: str) -> bool:
    if name == HOLD:
        return job.is_held
    shown = shown_value(job, name)
    if name == "ExcNodeList":
        return NodeSet(value) <= NodeSet(shown)
    if name == "ReqNodeList":
        return NodeSet(value) == NodeSet(shown)
    return shown == value


def changed_while_running(key: str, past: Past, task: Task) -> Iterator[Finding]:
    """Yield every change of a run's nodes, GPUs, number of nodes or time limit."""
    known: Sighting | None = None
    for time_s, job in past.changes:
        if job.state != "RUNNING":
            known = None
            continue
        is_same_run = known is not None and (known.restarts, known.started_s) == (
            job.restarts,
            job.started_s,
        )
        if known is not None and is_same_run:
            before, after = _held(known, task), _held(job, task)
            if before != after:
                yield Finding(STILL, key, time_s, f"its run had {before}, then {after}")
        known = job


def _held(job: Sighting, task: Task) -> tuple[object, ...]:
    """Return what a run has. A GPU keeps its number if its type is renamed below the job."""
    gpus = " ".join(sorted(f"{gpu.node}:{gpu.index}" for gpu in job.gpus))
    # An owner may change the limit just as the job starts.
    limit = "" if any(name == "TimeLimit" for name, _ in task.all_edits) else job.limit
    return job.num_nodes, gpus, limit


_ISO = "%Y-%m-%dT%H:%M:%S"
_RESIZED = re.compile(r"resiz", re.IGNORECASE)
_FIELD = re.compile(r"(?:^| )(\w+)=(\S*)")


def resizes(
    log: str, completions: str, named: Mapping[str, Sequence[tuple[float, float]]]
) -> Iterator[Finding]:
    """Yield every resize of a job in slurmctld's log and its records of ended runs.

    A resize ends one record of a run in state RESIZING and begins another. `named` says when owners
    were naming nodes, by SLURM_JOB_ID: where the job has just started, Slurm 22.05.8 resizes it.
    """
    for line in log.splitlines():
        if _RESIZED.search(line):
            yield Finding(STILL, "", 0.0, f"slurmctld's log: {line}")
    for line in completions.splitlines():
        facts = dict(_FIELD.findall(line))
        if facts.get("JobState") == "RESIZING":
            job, ended_s = facts["JobId"], time.mktime(time.strptime(facts["EndTime"], _ISO))
            by_owner = (
                begun <= ended_s + 1 and ended_s <= done for begun, done in named.get(job, ())
            )
            apart = "its owner named nodes as it started" if any(by_owner) else ""
            yield Finding(STILL, job, ended_s, f"it was resized: {line}", apart)
