"""The forked jobs of one hadard: kept from round to round, journalled, and given their quotas.

Loaded with the first job in copies, or where a former hadard has left quotas.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hadar_slurm.assignment_file import Assignment
from hadar_slurm.core.cluster import GpuType, JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.snapshot import PlainJob, Snapshot
from hadar_slurm.engine.actions import Action, Outcome, Status, Stop
from hadar_slurm.engine.averages import Averages
from hadar_slurm.engine.plain_jobs import PlainWaits
from hadar_slurm.errors import JobSpecError
from hadar_slurm.slurm.client.parse import UNTYPED, QueueRow
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.disposition import waits_for_gpus
from hadar_slurm.slurm.jobs.array_jobs import Fork, Task
from hadar_slurm.slurm.jobs.observation import Forks
from hadar_slurm.slurm.jobs.seen import Course, Treated
from hadar_slurm.state.assignments import Assignments

# What Slurm says of a job that waits for others' GPUs alone.
_FOR_GPUS = ("Resources", "Priority")


@dataclass
class ForkedJobs:
    """What is remembered of them is a cache: a restart may lose it."""

    averages: Averages
    # None: copies get no quotas.
    assignments: Assignments | None
    waits: PlainWaits
    # As at the last observation.
    _known: Mapping[JobId, Fork] = field(default_factory=dict)

    def observe(self, copies: Iterable[Treated], now_s: float) -> Forks:
        """Return the jobs of these copies; how copies forgotten by Slurm have ended is kept."""
        tasks: dict[JobId, list[Task]] = {}
        for each in copies:
            if (parent := each.seen.parent) is not None and each.course is not Course.REQUEUED:
                tasks.setdefault(parent, []).append(Task(each.seen, each.job))
        self._known = {k: Fork.of(k, found, self._known.get(k)) for k, found in tasks.items()}
        averages = {parent: fork.averages for parent, fork in self._known.items()}
        self.averages.observe(averages, now_s)
        return Forks(self._known)

    def beside_plain(
        self, snapshot: Snapshot, state: SlurmState, ours: Collection[JobId]
    ) -> Snapshot:
        """Return the snapshot with the jobs, all but `ours`, for which copies leave."""
        plain = (row for key, row in state.queue.items() if key not in ours)
        waiting = [row for row in plain if row.reason in _FOR_GPUS and waits_for_gpus(row)]
        waiting.sort(key=lambda row: -row.priority)
        found = filter(None, (_plain_job(row, state) for row in waiting))
        return replace(snapshot, plain_jobs=self.waits.heeded(snapshot, found))

    def assign(
        self, actions: Sequence[Action], outcomes: Sequence[Outcome], *, slot_s: float, now_s: float
    ) -> None:
        """Write the steps of each copy in `slot_s` seconds, by what came of a round's actions."""
        if self.assignments is None:
            return
        gangs: dict[JobId, dict[int, Gang]] = {}
        for action, outcome in zip(actions, outcomes, strict=True):
            # A copy that could not be stopped goes on.
            is_there = isinstance(action, Stop) != (outcome.status is Status.DONE)
            if is_there and action.job_id in self._known:
                gangs.setdefault(action.job_id, {})[action.copy] = action.gang
        for parent, held in gangs.items():
            fork = self._known[parent]
            assignment = Assignment(int(now_s * 1000), fork.quotas(held, slot_s), slot_s)
            self.assignments.put(parent, fork.owner_uid, assignment)
        self.assignments.keep([parent for parent, fork in self._known.items() if fork.is_alive])

    def facts(self) -> dict[str, object]:
        """Return the averages, whether copies share every step, and the copies' tasks, by job.

        The fields are those of `forked` in docs/journal.md; copies are numbered as in `holds`, and
        are those that hold GPUs or are starting.
        """
        last_s = self.averages.last_s
        return {
            parent: {
                "averages": self.averages.of(parent),
                **({"averaged_s": last_s[parent]} if parent in last_s else {}),
                **({"synchronous": True} if fork.is_synchronous else {}),
                "copies": {
                    str(number): {
                        "task": task.seen.row.key,
                        **({"steps_per_s": float(f"{task.speed:.5g}")} if task.speed > 0 else {}),
                        **({"pinned": True} if task.job and task.job.is_pinned else {}),
                    }
                    for number, task in enumerate(fork.copies)
                    if task.gang is not None
                },
            }
            for parent, fork in self._known.items()
            if fork.job is not None
        }


def of(place: Path | None, observed_s: float | None, timeout_s: float) -> ForkedJobs:
    """Return none yet, with quotas in `place`; `observed_s`: the last observation, without any."""
    assignments = Assignments(place) if place else None
    return ForkedJobs(Averages(observed_s), assignments, PlainWaits(timeout_s))


def _plain_job(row: QueueRow, state: SlurmState) -> PlainJob | None:
    """Return what a plain job asks for, at least; None where only Slurm can read its request."""
    least = row.request.num_nodes.partition("-")[0]
    if row.is_set_apart or not least.isdecimal():
        return None
    try:
        allowed = state.nodes_of(row, int(least), state.excluded.get(row.key, ()))
    except JobSpecError:
        return None
    # Thousands of jobs share a few sets of nodes.
    nodes = state.cluster.open_names if allowed is None else allowed
    nodes = nodes.intersection(row.requested_nodes) if row.requested_nodes else nodes
    num_nodes, own = max(1, int(least)), row.gpus_per_node
    own = own or tuple((k, max(1, count // num_nodes)) for k, count in row.gpus_otherwise)
    typed = tuple((GpuType(k), count) for k, count in own if k != UNTYPED)
    gpus = (*typed, *((None, count) for k, count in own if k == UNTYPED))
    return PlainJob(row.key, row.user, nodes=nodes, num_nodes=num_nodes, gpus=gpus)
