"""What must hold whatever happens, checked on Slurm's own records and on what jobs wrote. Pure.

What is not hadard's doing, or is told as a limit in the documentation, is counted apart
(`Finding.apart`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos.records import HOLDING, WAITING, Sighting
from chaos.workload import Task
from integration.site import Gpu

# The invariants by name, as the report tells them.
LOST = "no job is lost"
TRAINED = "every step is trained once"
APART = "a GPU has one job"
WHOLE = "a running job has all of its GPUs"
FREE = "no job waits for a hadard that is gone"
SAME = "a restart does not change the plan"
WELL = "everything recovers"
INVARIANTS = (LOST, TRAINED, APART, WHOLE, FREE, SAME, WELL)

# Why Slurm itself holds a job whose node did not launch it, until an operator releases it.
LAUNCH_FAILED = "launch_failed_requeued_held"
# From a look to the plan it takes less.
_STOOD_S = 3.0
# Slurm's word for an end may come so long after what a user did.
_LATE_S = 6.0


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that should not be; `apart` says why it is not hadard's doing, if it is not."""

    invariant: str
    job: str
    time_s: float
    what: str
    apart: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """All jobs at one instant, between two moments in seconds since the epoch."""

    before_s: float
    after_s: float
    jobs: tuple[Sighting, ...]


def shared_gpus(sample: Sample) -> Iterator[Finding]:
    """Yield every GPU that two jobs hold at once."""
    owners: dict[Gpu, str] = {}
    for job in sample.jobs:
        for gpu in sorted(job.gpus, key=str) if job.state in HOLDING else ():
            owner = owners.setdefault(gpu, job.key)
            if owner != job.key:
                yield Finding(APART, job.key, sample.after_s, f"{gpu} is held by {owner} as well")


def incomplete_gangs(sample: Sample, tasks: Mapping[str, Task]) -> Iterator[Finding]:
    """Yield every running job that does not hold as many GPUs as it asked for."""
    for job in sample.jobs:
        task = tasks.get(job.key)
        if task is None or job.state != "RUNNING" or len(job.gpus) == task.gpus:
            continue
        what = f"it runs with {len(job.gpus)} of {task.gpus} GPUs"
        yield Finding(WHOLE, job.key, sample.after_s, what, _started_by_slurm(job))


def _started_by_slurm(job: Sighting) -> str:
    """Return why it is not hadard's doing how a job was started: hadard pins what it starts."""
    return "" if job.requested_nodes else "plain Slurm started it"


def is_waiting_for_hadard(job: Sighting, task: Task) -> bool:
    """Return whether a job waits under a hold or a pin that can only be hadard's."""
    if job.state not in WAITING or not task.is_described or job.dependency:
        return False
    if job.is_held and job.reason not in ("JobHeldAdmin", LAUNCH_FAILED):
        return task.held_s is None
    return bool(job.requested_nodes) and not task.was_touched


@dataclass
class Waits:
    """Since when jobs wait for hadard, and for how long they did while it was gone."""

    since_s: dict[str, float] = field(default_factory=dict)
    longest_s: float = 0.0

    def add(
        self, sample: Sample, tasks: Mapping[str, Task], gone_s: float | None, limit_s: float
    ) -> Iterator[Finding]:
        """Take a sample; yield every job that has waited `limit_s` for a hadard gone at `gone_s`.

        Without a time, hadard is there, and jobs may wait.
        """
        waiting = {
            job.key: job
            for job in sample.jobs
            if job.key in tasks and is_waiting_for_hadard(job, tasks[job.key])
        }
        known = self.since_s
        self.since_s = {key: known.get(key, sample.after_s) for key in waiting}
        for key, job in waiting.items() if gone_s is not None else ():
            waited_s = sample.before_s - max(gone_s or 0.0, self.since_s[key])
            self.longest_s = max(self.longest_s, waited_s)
            if waited_s > limit_s:
                what = f"{waited_s:.1f} s without hadard: {job}"
                yield Finding(FREE, key, sample.after_s, what)


@dataclass
class Past:
    """What samples have told of one job: when it was last seen, and each change in its record."""

    last: Sighting
    seen_s: float
    changes: list[tuple[float, Sighting]] = field(default_factory=list)

    def add(self, job: Sighting, time_s: float) -> None:
        """Add a sighting."""
        if not self.changes or self.changes[-1][1] != job:
            self.changes.append((time_s, job))
        self.last, self.seen_s = job, time_s

    @property
    def came_back(self) -> bool:
        """Whether it was seen cancelled and then alive again."""
        states = [job.state for _, job in self.changes]
        after = states[states.index("CANCELLED") :] if "CANCELLED" in states else []
        return not {"PENDING", "RUNNING", "COMPLETED"}.isdisjoint(after)


def fate(task: Task, past: Past | None, requeues: Sequence[float]) -> Finding | None:
    """Return what is wrong with how a job ended, or None if it ended as it should.

    `requeues` are the times at which hadard itself requeued it.
    """
    if past is None:
        return Finding(LOST, task.key, task.submitted_s, "Slurm never showed it")
    last = past.last
    if not last.is_final:
        return Finding(LOST, task.key, past.seen_s, f"it has not ended: {last}")
    if last.state == "CANCELLED":
        if task.cancelled_s is not None or task.may_be_cancelled:
            return None
        return Finding(LOST, task.key, last.ended_s, "cancelled, and by no user")
    if last.state != "COMPLETED":
        had_all = any(len(job.gpus) == task.gpus for _, job in past.changes)
        apart = "" if had_all else _started_by_slurm(last)
        return Finding(LOST, task.key, last.ended_s, f"it ended as {last.state}", apart)
    return _after_cancel(task, past, requeues)


def _after_cancel(task: Task, past: Past, requeues: Sequence[float]) -> Finding | None:
    """Return what is wrong with a job that completed, if its user had cancelled it."""
    cancelled_s, ended_s = task.cancelled_s, past.last.ended_s
    if cancelled_s is None or not (past.came_back or ended_s > cancelled_s + _LATE_S):
        return None
    is_near = any(abs(time_s - cancelled_s) <= 1.0 for time_s in requeues)
    apart = "cancelled while it was requeued" if is_near else ""
    what = f"cancelled, and alive for {ended_s - cancelled_s:.1f} s more"
    return Finding(LOST, task.key, ended_s, what, apart)


def kept_by_begin_time(task: Task, past: Past, requeues: Sequence[float], limit_s: float) -> float:
    """Return for how long a job that hadard requeued was kept from starting by its begin time.

    Slurm lets a requeued job wait for two minutes; hadard has to see to it that it does not.
    Nothing is returned for waits within the limit, or after a requeue that was not hadard's.
    """
    ends = [time_s for time_s, _ in past.changes[1:]] + [past.seen_s]
    for (begun_s, job), end_s in zip(past.changes, ends, strict=True):
        is_kept = job.state in WAITING and job.priority > 0 and job.reason == "BeginTime"
        if not task.is_described or not is_kept or end_s - begun_s <= limit_s:
            continue
        restarts = [t for t in requeues if t <= begun_s]
        others = [t for t, other in past.changes if t <= begun_s and other.state == "RUNNING"]
        if restarts and (not others or restarts[-1] >= others[-1]):
            return end_s - begun_s
    return 0.0


def segments_in(history: str) -> list[dict[str, Any]]:
    """Return the stretches of a training; a line cut short by a kill is written again later."""
    found = []
    for line in history.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def untrue_training(history: str, result: str, expected: Mapping[str, Any]) -> str:
    """Return what is wrong with a training that has ended; nothing if each step was made once."""
    try:
        if json.loads(result) != expected:
            return f"its result differs from that of a training never stopped: {result.strip()}"
    except ValueError:
        return f"it left no result that can be read: {result!r}"
    at = 0
    for segment in segments_in(history):
        if segment["from_step"] != at:
            again = "again" if segment["from_step"] < at else "with a gap"
            return f"it trained {again} from step {segment['from_step']} after {at}"
        at = segment["to_step"]
    return "" if at == expected["steps"] else f"its history ends at step {at}"


def two_at_once(history: str) -> bool:
    """Return whether two runs of a job wrote its history at the same time."""
    spans = [(s["start_s"], s["end_s"]) for s in segments_in(history)]
    return any(
        start < other_end and other_start < end
        for i, (start, end) in enumerate(spans)
        for other_start, other_end in spans[:i]
    )


def plan_differences(notes: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield every plan that a daemon just started would not have made from what was seen.

    Told apart are those that would be the same but for what hadard has learnt about nodes on which
    jobs wait in vain (`control.pins`), it learns that again; and those of a hadard that was
    stopped between its look and its plan, while others may have given its jobs back.
    """
    for note in notes:
        if not note["is_same_plan"]:
            what = f"{note['policy']}: {'; '.join(note['differing'])}"
            apart = "it had learnt where jobs wait in vain" if note["is_same_but_for_pins"] else ""
            if note["stood_s"] > _STOOD_S:
                apart = "it was stopped between its look and its plan"
            yield Finding(SAME, "", note["time_s"], what, apart)
