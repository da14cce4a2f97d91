"""Simulates hadard in mode `steer`: Slurm starts the jobs, within the limits that hadard sets.

At each look at its queue Slurm decides as policy `slurm` does, on the nodes that hadard has left to
each job, and in the order of priority, in which the jobs of an account have exchanged their places.
Then hadard sees what Slurm has started, plans, foresees the next starts, and sets limits and places
again; these count from Slurm's next look on. Some jobs hadard sees too late for the first look.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.job import Job, JobSpec, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import GangRules, Round, Snapshot
from hadar_slurm.lab.policies.slurm.policy import PlainSlurm, SlurmMemory
from hadar_slurm.placement.limits import limits
from hadar_slurm.policies.policy import Policy
from hadar_slurm.sim.onward import begins

# As hadard's pin_timeout_seconds in the plays: a job that Slurm has not started within this time on
# free GPUs is limited no more, for ten times as long.
PIN_S = 10.0
_AVOIDED = 10.0
# The next starts that are foreseen (hadard takes half a second for it and foresees some more), and
# the rounds of that simulation, in which nothing moves between the ends of jobs.
_FORESEEN, _AHEAD_S = 3, 60.0
# Far above any submission, in seconds; so that a place is a priority with the submission behind it.
_LATEST_S, _PLACE = 1e6, 1e-7


@dataclass(frozen=True, slots=True)
class _Memory:
    """What is known from one look to the next."""

    slurm: object = None
    hadard: object = None
    # The jobs that hadard has seen, and the nodes that they may have.
    allowed: Mapping[JobId, frozenset[NodeName]] = field(default_factory=dict)
    # Since when a job is to start on free GPUs, and until when one is limited no more.
    pinned_s: Mapping[JobId, float] = field(default_factory=dict)
    free_until_s: Mapping[JobId, float] = field(default_factory=dict)
    # The jobs at which Slurm has looked.
    looked: frozenset[JobId] = frozenset()
    # What hadard saw last: without a change it plans as before.
    seen: tuple[frozenset[JobId], frozenset[JobId]] = (frozenset(), frozenset())


@dataclass(frozen=True)
class UnderSteer:
    """Slurm under hadard; both see one snapshot, each in its own way."""

    hadard: Policy
    slurm: PlainSlurm
    # The time limits that users wrote, in seconds.
    limits_s: Mapping[JobId, float]
    # The jobs that hadard sees only once Slurm has looked at them.
    late: frozenset[JobId] = frozenset()
    keeps_limits: ClassVar[bool] = False
    name: str = "hadar-steered"
    _specs: dict[JobId, tuple[JobSpec, JobSpec]] = field(default_factory=dict, compare=False)

    @property
    def splits_unevenly(self) -> bool:
        """Whether Slurm may give a job different numbers of GPUs on its nodes."""
        return self.slurm.splits_unevenly

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return what Slurm starts, and remember what hadard makes of it."""
        memory = round_.memory if isinstance(round_.memory, _Memory) else _Memory()
        started = self.slurm.plan(
            _with_jobs(snapshot, (self._as_slurm_sees(job, memory) for job in snapshot.jobs)),
            replace(round_, memory=memory.slurm),
        )
        memory = replace(memory, slurm=started.memory)
        if isinstance(started.memory, SlurmMemory) and started.memory.looked_s == snapshot.now_s:
            memory = replace(memory, looked=frozenset(job.job_id for job in snapshot.jobs))
        known = memory.looked | (snapshot.by_id.keys() - self.late)
        snapshot = _with_jobs(snapshot, (j for j in snapshot.jobs if j.job_id in known))
        waiting = [job for job in snapshot.jobs if job.job_id not in started.by_id]
        seen = frozenset(job.job_id for job in waiting), frozenset(started.by_id)
        is_pinned_long = any(
            snapshot.now_s > since_s + PIN_S for since_s in memory.pinned_s.values()
        )
        if seen != memory.seen or is_pinned_long:
            memory = replace(self._steered(snapshot, started, waiting, round_, memory), seen=seen)
        return replace(started, memory=memory)

    def _as_slurm_sees(self, job: Job, memory: _Memory) -> Job:
        # A limit that was written for a type is taken as it is.
        spec, limit_s = job.spec, self.limits_s[job.job_id]
        fastest = spec.fastest_of(spec.throughputs.gpu_types)
        spec = replace(spec, limit_s=limit_s, limit_type=fastest)
        return replace(job, spec=spec, allowed_nodes=memory.allowed.get(job.job_id))

    def _steered(
        self,
        snapshot: Snapshot,
        started: Plan,
        waiting: Sequence[Job],
        round_: Round,
        memory: _Memory,
    ) -> _Memory:
        """Return the limits and places that hadard sets once it has seen what Slurm started."""
        shown = [self._as_hadard_sees(job, started) for job in snapshot.jobs]
        view = replace(_with_jobs(snapshot, shown), rules=GangRules(naming_binds=True))
        plan = self.hadard.plan(view, replace(round_, memory=memory.hadard))
        now_s, ids = snapshot.now_s, [job.job_id for job in waiting]
        starts = {
            job_id: gang
            for job_id in ids
            if job_id in plan.by_id
            for gang in plan.by_id[job_id].gangs
        }
        named: dict[JobId, Gang] = dict(starts)
        if len(starts) < len(ids):
            named |= {
                job_id: begin.gang
                for job_id, begin in begins(
                    view,
                    self.hadard,
                    is_enough=lambda begun: len(begun) >= _FORESEEN,
                    round_s=_AHEAD_S,
                    is_late=lambda: False,
                    memory=plan.memory,
                ).items()
                if job_id not in named
            }
        pinned_s = {job_id: memory.pinned_s.get(job_id, now_s) for job_id in starts}
        free_until_s = {
            **{k: until_s for k, until_s in memory.free_until_s.items() if until_s > now_s},
            **{
                k: now_s + _AVOIDED * PIN_S
                for k, since_s in pinned_s.items()
                if now_s > since_s + PIN_S
            },
        }
        found = limits(
            [job for job in shown if job.phase is Phase.QUEUED], named, free_until_s, view.cluster
        )
        names = frozenset(node.name for node in view.cluster.nodes)
        return replace(
            memory,
            slurm=_exchanged(memory.slurm, waiting, list(named)),
            hadard=plan.memory,
            allowed={job_id: names - {*limit.excluded} for job_id, limit in found.items()},
            pinned_s={k: since_s for k, since_s in pinned_s.items() if k not in free_until_s},
            free_until_s=free_until_s,
        )

    def _as_hadard_sees(self, job: Job, started: Plan) -> Job:
        """Return a job as hadard sees it: all of one Unix user; the specs stay the same objects."""
        known = self._specs.get(job.job_id)
        if known is None or known[0] is not job.spec:
            known = self._specs[job.job_id] = (job.spec, replace(job.spec, user=""))
        job = replace(job, spec=known[1])
        if job.phase is Phase.QUEUED and job.job_id in started.by_id:
            return replace(job, phase=Phase.RUNNING, allocation=started.by_id[job.job_id])
        return job


def _with_jobs(snapshot: Snapshot, jobs: Iterable[Job]) -> Snapshot:
    return Snapshot.of(
        now_s=snapshot.now_s, cluster=snapshot.cluster, jobs=jobs,
        occupied=dict(snapshot.occupied), rules=snapshot.rules, ended=snapshot.ended,
    )  # fmt: skip


def _exchanged(slurm: object, waiting: Iterable[Job], first: Sequence[JobId]) -> object:
    """Return Slurm's memory with the places of each account's jobs exchanged."""
    if not isinstance(slurm, SlurmMemory):
        return slurm
    order = {job_id: at for at, job_id in enumerate(first)}
    by_job = dict(slurm.priorities.by_job)
    accounts: defaultdict[str, list[Job]] = defaultdict(list)
    for job in waiting:
        accounts[job.spec.user].append(job)
        if by_job[job.job_id] == int(by_job[job.job_id]):
            by_job[job.job_id] += _PLACE * (_LATEST_S - job.spec.submitted_s)
    for jobs in accounts.values():
        ids = [job.job_id for job in jobs]
        best = sorted((by_job[job_id] for job_id in ids), reverse=True)
        ids.sort(key=lambda job_id: (order.get(job_id, len(order)), -by_job[job_id]))
        by_job |= dict(zip(ids, best, strict=True))
    return replace(slurm, priorities=replace(slurm.priorities, by_job=by_job))
