"""Policy `slurm`: an unmodified Slurm that is set up well, and users who choose as they do.

What a site has without hadard: priority/multifactor (`priority`), sched/backfill (here), and
select/cons_tres (`selection`), for requests as users write them (`requests`). Backfill plans the
waiting jobs in the order of priority. One that can run now to its time limit, on what those before
it leave, starts; for each other one whole nodes are held, from the earliest time at which the time
limits of running jobs let it start. Nothing is held beyond bf_window, so that longer jobs may start
before a gang that waits for more than that. The main scheduler, which starts jobs in the same order
until the first that has to wait, adds nothing to this. Jobs are never stopped.

Source: Slurm's documentation (sched_config.html, slurm.conf), and a real slurmctld
(docs/slurm-fidelity.md).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np

from hadar_slurm.core.cluster import GpuType, JobId, Slot, natural_key
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, Shape
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.lab.policies.slurm.priority import Holding, Priorities
from hadar_slurm.lab.policies.slurm.profile import FreeOverTime
from hadar_slurm.lab.policies.slurm.requests import UserRequest, written
from hadar_slurm.lab.policies.slurm.selection import Counts, Nodes, Taken, take_any, take_nodes
from hadar_slurm.lab.policies.slurm.settings import Form, SlurmSettings, parse_settings
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.eligibility import Eligibility
from hadar_slurm.policies.policy import PolicyOptions


@dataclass(frozen=True, slots=True)
class SlurmMemory:
    """What plain Slurm knows from one plan to the next."""

    priorities: Priorities = field(default_factory=Priorities)
    requests: Mapping[JobId, UserRequest] = field(default_factory=dict)
    # When each running job started, in seconds.
    started_s: Mapping[JobId, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlainSlurm:
    """The policy; its memory is a `SlurmMemory`."""

    settings: SlurmSettings = field(default_factory=SlurmSettings)
    name: str = "slurm"
    # hadard is not there to adjust time limits to GPU types.
    keeps_limits: ClassVar[bool] = True

    @property
    def splits_unevenly(self) -> bool:
        """Whether its jobs may have different numbers of GPUs on their nodes."""
        return self.settings.form is Form.GPUS

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return which jobs run in `round_`, and on which GPUs."""
        memory = round_.memory if isinstance(round_.memory, SlurmMemory) else SlurmMemory()
        allocator = Allocator(snapshot, round_)
        waiting = {job.job_id: job for job in allocator.jobs if not allocator.stay(job)}
        requests = written(snapshot, memory.requests, self.settings)
        priorities = memory.priorities.at(snapshot, waiting.values(), self.settings)
        started_s = {
            job_id: memory.started_s[job_id]
            if job_id in memory.started_s
            else snapshot.now_s - _ran_s(snapshot, job_id)
            for job_id in allocator.placed
        }
        if any(allocator.free.values()):
            _Backfill(allocator, requests, started_s, self.settings).run(
                sorted(waiting.values(), key=partial(_rank, priorities.by_job))
            )
        new = allocator.placed.keys() - started_s.keys()
        held = {
            job_id: priorities.held.get(job_id) or _holding(waiting, snapshot, job_id)
            for job_id in allocator.placed
        }
        kept = SlurmMemory(
            replace(priorities, held=held),
            requests,
            started_s | dict.fromkeys(new, snapshot.now_s),
        )
        return allocator.plan(memory=kept)


def make(options: PolicyOptions) -> PlainSlurm:
    """Return the policy with the settings in `options.words`; raises PolicyError."""
    return PlainSlurm(parse_settings(options.words), ":".join(("slurm", *options.words)))


def _rank(by_job: Mapping[JobId, float], job: Job) -> tuple[float, float, tuple[int, str]]:
    return (-by_job[job.job_id], job.spec.submitted_s, natural_key(job.job_id))


def _ran_s(snapshot: Snapshot, job_id: JobId) -> float:
    """Return for how long a job has run that another than this policy has started."""
    job = snapshot.by_id[job_id]
    held = sum(gang.num_gpus for gang in job.allocation.gangs)
    return job.progress.service_gpu_s / held if held else 0.0


def _holding(waiting: Mapping[JobId, Job], snapshot: Snapshot, job_id: JobId) -> Holding:
    spec = (waiting.get(job_id) or snapshot.by_id[job_id]).spec
    return Holding(spec.user, spec.num_gpus)


class _Kind(NamedTuple):
    """What decides where a job may start, but its time limit; by group of types, its slots."""

    masks: tuple[tuple[int, ...], ...]
    size: int
    nodes: int


class _Backfill:
    """One pass over the queue."""

    def __init__(
        self,
        allocator: Allocator,
        requests: Mapping[JobId, UserRequest],
        started_s: Mapping[JobId, float],
        settings: SlurmSettings,
    ) -> None:
        self._allocator, self._requests, self._settings = allocator, requests, settings
        snapshot = allocator.snapshot
        self._reach = Eligibility(snapshot)
        self._nodes = nodes = Nodes.of(snapshot.cluster)
        self._index = {slot: at for at, slot in enumerate(nodes.slots)}
        self._jobs_on = np.zeros(len(nodes.slots), dtype=np.int64)
        free = np.array([allocator.free.get(slot, 0) for slot in nodes.slots], dtype=np.int64)
        ends: list[tuple[float, Taken]] = []
        for job_id, allocation in allocator.placed.items():
            taken = {self._index[slot]: count for slot, count in allocation.slots}
            self._count(taken)
            end_s = started_s[job_id] + requests[job_id].limit_s
            ends.append((max(0.0, end_s - snapshot.now_s), taken))
        self._profile = FreeOverTime(free.clip(0), ends, settings.bf_resolution)
        self._kinds: dict[object, _Kind] = {}
        # By kind: limits, and the earliest time at which a job with that limit or more may start.
        self._known: defaultdict[_Kind, list[tuple[float, float]]] = defaultdict(list)

    def run(self, order: Sequence[Job]) -> None:
        """Start the jobs that may start now, in this order."""
        jobs = [job for job in order if self._requests[job.job_id].groups]
        kinds = [self._kind(job) for job in jobs[: int(self._settings.bf_max_job_test)]]
        left = Counter(kinds)
        # What is held for a later start matters to those only that could start now.
        may_start = {kind for kind in left if self._fits_now(kind)}
        for job, kind in zip(jobs, kinds, strict=False):
            if not any(left[each] for each in may_start):
                return
            left[kind] -= 1
            if self._plan(job, kind):
                may_start = {each for each in may_start if self._fits_now(each)}

    def _plan(self, job: Job, kind: _Kind) -> bool:
        """Start a job, or hold nodes for it; say whether it starts."""
        lasts = self._lasts(job)
        found = self._soonest(kind, lasts)
        if found is None:
            return False
        at, taken = found
        profile = self._profile
        if at == 0:
            slots = self._nodes.slots
            gang = Gang.of({slots[each]: count for each, count in taken.items()})
            self._allocator.put(job, Allocation.rigid(gang))
            self._count(taken)
            profile.start(taken, lasts)
            return True
        if profile.times[at] < self._settings.bf_window:
            profile.hold(at, lasts, self._whole(taken))
        return False

    def _soonest(self, kind: _Kind, lasts: float) -> tuple[int, Taken] | None:
        """Return the step from which a job could run to its limit, and the GPUs; None: at none."""
        profile, known = self._profile, self._known[kind]
        past_s = max((time for limit, time in known if limit <= lasts), default=0.0)
        since = int(np.searchsorted(profile.times, past_s, side="left"))
        wanted = Shape(kind.nodes, kind.size)
        masks = [np.array(mask, dtype=np.int64) for mask in kind.masks]
        steps = [profile.soonest(lasts, wanted, mask, since) for mask in masks]
        found = [(step, at) for at, step in enumerate(steps) if step is not None]
        step, group = min(found, default=(None, 0))
        known.append((lasts, math.inf if step is None else profile.times[step]))
        if step is None:
            return None
        room = profile.least(step, lasts)
        taken = self._pick(kind.masks[group], kind, room)
        return (step, taken) if taken else None

    def _pick(self, mask: tuple[int, ...], kind: _Kind, room: Counts) -> Taken | None:
        if not kind.nodes:
            return take_any([at for at in mask if room[at] > 0], kind.size, room, self._nodes)
        candidates = [at for at in mask if room[at] >= kind.size]
        wanted = Shape(kind.nodes, kind.size)
        return take_nodes(candidates, wanted, self._nodes, self._jobs_on)

    def _fits_now(self, kind: _Kind) -> bool:
        room = self._profile.room[0]
        for mask in kind.masks:
            here = room[list(mask)]
            number = int((here >= kind.size).sum()) if kind.nodes else int(here.clip(0).sum())
            if number >= (kind.nodes or kind.size):
                return True
        return False

    def _lasts(self, job: Job) -> float:
        """Return the time limit, in whole steps of bf_resolution."""
        limit_s, step = self._requests[job.job_id].limit_s, self._settings.bf_resolution
        return math.ceil(limit_s / step) * step if limit_s < math.inf else limit_s

    def _count(self, taken: Taken) -> None:
        node_of = self._nodes.node_of
        for at in taken:
            self._jobs_on[node_of == node_of[at]] += 1

    def _whole(self, taken: Taken) -> Counts:
        """Return all slots of the nodes of these."""
        node_of = self._nodes.node_of
        return np.flatnonzero(np.isin(node_of, node_of[list(taken)]))

    def _kind(self, job: Job) -> _Kind:
        request = self._requests[job.job_id]
        key = (
            request.groups, request.shape, request.num_gpus, job.allowed_nodes, job.bound_type
        )  # fmt: skip
        if key not in self._kinds:
            shape, mixes = request.shape, self._allocator.rules.may_mix_types
            groups = request.groups if mixes else [(k,) for group in request.groups for k in group]
            self._kinds[key] = _Kind(
                tuple(self._mask(job, group, request) for group in groups),
                shape.gpus_per_node if shape else request.num_gpus,
                shape.nodes if shape else 0,
            )
        return self._kinds[key]

    def _mask(self, job: Job, group: Sequence[GpuType], request: UserRequest) -> tuple[int, ...]:
        """Return the slots where a job may run on these types, in Slurm's order."""
        is_spread = request.nodes > 1
        on = partial(job.spec.throughputs.on, num_gpus=job.spec.num_gpus, is_spread=is_spread)
        usable = [k for k in group if on(k) > 0]
        # A uniform gang of several types cannot say which of a node's types it gets.
        is_mixed = len(usable) > 1 and is_spread
        found = {
            self._index[Slot(node.name, gpu_type)]
            for gpu_type in usable
            for node in self._reach.nodes(job, gpu_type, is_mixed=is_mixed)
        }
        return tuple(sorted(found))
