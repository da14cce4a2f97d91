"""The invariants, checked on Slurm's own records and on the files of jobs. Pure.

Violations that hadard does not cause, or that are documented limits, are counted apart
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

# The invariants, by their names in the report.
LOST = "no job is lost"
TRAINED = "every step is trained once"
APART = "a GPU has one job"
WHOLE = "a running job has all of its GPUs"
FREE = "no job waits for a hadard that is gone"
SAME = "a restart does not change the plan"
WELL = "everything recovers"
SOUND = "no round fails by an error of hadard's"
MOVING = "rounds and jobs go on"
EDITS = "an owner's edit stays"
STILL = "nothing that runs is changed"
INVARIANTS = (LOST, TRAINED, APART, WHOLE, FREE, SAME, WELL, SOUND, MOVING, EDITS, STILL)

# Slurm's reason for holding a job that its node did not launch, until an operator releases it.
LAUNCH_FAILED = "launch_failed_requeued_held"
# A longer time from a reading to its plan means that hadard was stopped in between.
_STOOD_S = 3.0
# A job may end this long after its user cancelled it.
_LATE_S = 6.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken invariant; `apart` is the reason if it is counted apart."""

    invariant: str
    job: str
    time_s: float
    what: str
    apart: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """All jobs, read between two times in seconds since the epoch."""

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
    """Yield every running job that does not hold as many GPUs as it requested."""
    for job in sample.jobs:
        task = tasks.get(job.key)
        if task is None or job.state != "RUNNING" or len(job.gpus) == task.gpus:
            continue
        what = f"it runs with {len(job.gpus)} of {task.gpus} GPUs"
        yield Finding(WHOLE, job.key, sample.after_s, what, _started_by_slurm(job))


def _started_by_slurm(job: Sighting) -> str:
    """Return the reason for counting apart a job that plain Slurm started: hadard pins its jobs."""
    return "" if job.requested_nodes else "plain Slurm started it"


def is_waiting_for_hadard(job: Sighting, task: Task) -> bool:
    """Return whether a job is pending under hadard's hold or pin, not its user's or Slurm's."""
    if job.state not in WAITING or not task.is_described or job.dependency:
        return False
    if job.is_held and job.reason not in ("JobHeldAdmin", LAUNCH_FAILED):
        return task.held_s is None
    return bool(job.requested_nodes) and not task.named


@dataclass
class Waits:
    """The start times of jobs' waits for hadard, and the longest wait while it was gone."""

    since_s: dict[str, float] = field(default_factory=dict)
    longest_s: float = 0.0

    def add(
        self, sample: Sample, tasks: Mapping[str, Task], gone_s: float | None, limit_s: float
    ) -> Iterator[Finding]:
        """Add a sample; yield every job that has waited `limit_s` for a hadard gone at `gone_s`.

        `gone_s` is None while hadard works and jobs may wait for it.
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
    """One job in all samples: its last sighting, its time, and each change of the record."""

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
        """Whether the job was seen as CANCELLED and later pending, running or completed."""
        states = [job.state for _, job in self.changes]
        after = states[states.index("CANCELLED") :] if "CANCELLED" in states else []
        return not {"PENDING", "RUNNING", "COMPLETED"}.isdisjoint(after)


def fate(task: Task, past: Past | None, requeues: Sequence[float]) -> Finding | None:
    """Return a finding if a job did not end as required, otherwise None.

    `requeues` are the times at which hadard requeued it.
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
        run = [job for _, job in past.changes if job.restarts == last.restarts]
        had_all = any(len(job.gpus) == task.gpus for job in run)
        apart = "" if had_all else _started_by_slurm(last)
        return Finding(LOST, task.key, last.ended_s, f"it ended as {last.state}", apart)
    return _after_cancel(task, past, requeues)


def _after_cancel(task: Task, past: Past, requeues: Sequence[float]) -> Finding | None:
    """Return a finding if a completed job had been cancelled by its user."""
    cancelled_s, ended_s = task.cancelled_s, past.last.ended_s
    if cancelled_s is None or not (past.came_back or ended_s > cancelled_s + _LATE_S):
        return None
    is_near = any(abs(time_s - cancelled_s) <= 1.0 for time_s in requeues)
    # The node had not launched the run that its user cancelled: Slurm requeues that.
    has_failed = any(
        job.reason == LAUNCH_FAILED and time_s >= cancelled_s for time_s, job in past.changes
    )
    apart = "cancelled while it was requeued" if is_near else ""
    apart = "cancelled while its node failed to launch it" if has_failed else apart
    what = f"cancelled, and alive for {ended_s - cancelled_s:.1f} s more"
    return Finding(LOST, task.key, ended_s, what, apart)


def kept_by_begin_time(
    task: Task, past: Past, requeues: Sequence[float], limit_s: float
) -> tuple[float, float]:
    """Return for how long its begin time kept a job that hadard had requeued, and since when.

    Slurm delays a requeued job by two minutes; hadard has to remove that delay. Returns 0 for
    delays within the limit, and after requeues by others. The time is that of the requeue.
    """
    ends = [time_s for time_s, _ in past.changes[1:]] + [past.seen_s]
    for (begun_s, job), end_s in zip(past.changes, ends, strict=True):
        is_kept = job.state in WAITING and job.priority > 0 and job.reason == "BeginTime"
        if not task.is_described or not is_kept or end_s - begun_s <= limit_s:
            continue
        restarts = [t for t in requeues if t <= begun_s]
        others = [t for t, other in past.changes if t <= begun_s and other.state == "RUNNING"]
        if restarts and (not others or restarts[-1] >= others[-1]):
            return end_s - begun_s, restarts[-1]
    return 0.0, 0.0


def segments_in(history: str) -> list[dict[str, Any]]:
    """Return the segments of a training, without lines that a kill has cut off."""
    found = []
    for line in history.splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def untrue_training(history: str, result: str, expected: Mapping[str, Any]) -> str:
    """Return the fault of a training that has ended; empty if each step was trained once."""
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


def failures(notes: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield every exception that hadard has logged: Slurm's faults and full disks raise none."""
    for note in notes:
        yield Finding(SOUND, "", note["time_s"], note["text"])


def plan_differences(notes: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield every plan that a newly started daemon would not make from the same reading.

    Counted apart are plans that differ only by nodes that hadard excludes after pin timeouts
    (`control.pins`), which a new daemon learns again; plans of a hadard that was stopped between
    its reading and its plan, or whose heartbeat could not be written, when the reaper released its
    jobs; and plans that a time limit may have cut off on a busy machine.
    """
    for note in notes:
        if not note["is_same_plan"]:
            what = f"{note['policy']}: {'; '.join(note['differing'])}"
            apart = (
                "it had learned on which nodes jobs do not start"
                if note["is_same_but_for_pins"]
                else ""
            )
            if note["stood_s"] > _STOOD_S:
                apart = "it was stopped between its look and its plan"
            elif not note["is_same_ledger"]:
                apart = "the reaper released jobs between its look and its plan"
            elif not note["is_timely"]:
                apart = "its time limits cut plans off"
            yield Finding(SAME, "", note["time_s"], what, apart)
