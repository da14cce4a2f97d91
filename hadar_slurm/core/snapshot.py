"""The cluster at one instant: all that a policy may know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain

from hadar_slurm.core.cluster import Cluster, GpuType, JobId, NodeName, Slot, natural_key, summed
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, Phase, Shape
from hadar_slurm.core.throughput import Throughputs


@dataclass(frozen=True, slots=True)
class Round:
    """A stretch of time that one plan covers; times in seconds.

    Jobs migrate at the beginning of a round only. Within it, when a job arrives or ends, a plan may
    give out free GPUs (`may_move` is false). `memory` comes from the policy's previous plan; None
    at the start and after a restart of hadard.
    """

    index: int
    start_s: float
    # As configured, for a plan within a round too.
    length_s: float
    may_move: bool = True
    memory: object = field(default=None, compare=False)
    # When jobs may migrate again; None: `length_s` after the start.
    ends_s: float | None = None

    @property
    def left_s(self) -> float:
        """Return how long it is from the start until jobs may migrate again."""
        return self.length_s if self.ends_s is None else max(0.0, self.ends_s - self.start_s)


@dataclass(frozen=True, slots=True)
class GangRules:
    """Which gangs a backend can express.

    One Slurm job expresses a uniform gang, k nodes with c GPUs each. Its GPU type is named, or
    left open; left open, each node must hold a single type, or Slurm would choose. Where
    `naming_binds`, a type once named can never be left open or changed again. Without
    `counts_spread` a gang over several nodes is as fast as on one, as in Gavel's simulator. With
    `may_requeue` a job may be stopped that cannot be checkpointed: it loses its steps.
    """

    is_uniform: bool = True
    may_mix_types: bool = True
    naming_binds: bool = False
    counts_spread: bool = True
    may_requeue: bool = False

    def throughput(self, gang: Gang, throughputs: Throughputs) -> float:
        """Return a gang's steps/s where these rules hold."""
        return gang.throughput(throughputs, counts_spread=self.counts_spread)

    def why_not(self, gang: Gang, cluster: Cluster) -> str | None:
        """Return why the backend cannot express `gang`, or None if it can."""
        if self.is_uniform and len(set(gang.gpus_by_node.values())) > 1:
            return "its nodes do not hold equally many GPUs"
        if len(gang.gpus_by_type) == 1:
            return None
        if not self.may_mix_types:
            return "it mixes GPU types"
        nodes = cluster.by_name
        mixed = [str(name) for name in gang.gpus_by_node if not nodes[name].has_one_type]
        if self.is_uniform and mixed:
            return f"it mixes GPU types and {', '.join(mixed)} holds several"
        return None


@dataclass(frozen=True, slots=True)
class Ended:
    """A job that has ended: how, and when in seconds."""

    job_id: JobId
    phase: Phase
    end_s: float


@dataclass(frozen=True, slots=True)
class PlainJob:
    """A job that hadard does not manage and that waits for GPUs alone; equal for like requests.

    `gpus` are those on each of `num_nodes` of these nodes, by type; None: of any, and last.
    """

    job_id: JobId = field(compare=False)
    user: str
    nodes: frozenset[NodeName]
    num_nodes: int
    gpus: tuple[tuple[GpuType | None, int], ...]


def _of_smallest(job: Job) -> Job:
    """Return a job with the smallest of its gangs alone."""
    spec = job.spec
    if not spec.gangs:
        return job
    larger = {gpu_type for gpu_type, size in spec.gangs if size > spec.num_gpus}
    only = replace(spec, gangs=(), throughputs=spec.throughputs.without(larger))
    return replace(job, spec=only)


def shape_of(gang: Gang) -> Shape | None:
    """Return a gang's uniform shape, or None if its nodes hold different numbers of GPUs."""
    counts = gang.gpus_by_node.values()
    return Shape(len(counts), next(iter(counts))) if len(set(counts)) == 1 else None


@dataclass(frozen=True)
class Snapshot:
    """The cluster and its jobs at `now_s` seconds.

    `occupied` is held by unmanaged jobs and cannot be planned. Jobs that have ended are absent;
    `ended` names recent ones.
    """

    now_s: float
    cluster: Cluster
    jobs: tuple[Job, ...]
    occupied: tuple[tuple[Slot, int], ...] = ()
    rules: GangRules = GangRules()
    ended: tuple[Ended, ...] = ()
    # By priority; known only where copies of forked jobs may have GPUs that these could start on.
    plain_jobs: tuple[PlainJob, ...] = ()

    @classmethod
    def of(
        cls,
        *,
        now_s: float,
        cluster: Cluster,
        jobs: Iterable[Job],
        occupied: Mapping[Slot, int] | None = None,
        rules: GangRules | None = None,
        ended: Iterable[Ended] = (),
    ) -> Snapshot:
        """Return a snapshot with its parts in canonical order."""
        return cls(
            now_s,
            cluster,
            tuple(sorted(jobs, key=lambda job: natural_key(job.job_id))),
            tuple(sorted((slot, n) for slot, n in (occupied or {}).items() if n)),
            rules or GangRules(),
            tuple(sorted(ended, key=lambda end: natural_key(end.job_id))),
        )

    @cached_property
    def by_id(self) -> Mapping[JobId, Job]:
        """Return the jobs by id."""
        return {job.spec.job_id: job for job in self.jobs}

    @cached_property
    def running(self) -> Mapping[JobId, Allocation]:
        """Return what each running job holds, in the order of `jobs`.

        Of jobs with one gang only, of one size on all types, and none that is left out.
        """
        is_running = Phase.RUNNING
        return {
            job.spec.job_id: job.allocation
            for job in self.jobs
            if job.phase is is_running
            and job.allocation.is_rigid
            and not (job.left_out or job.spec.gangs)
        }

    @cached_property
    def others(self) -> tuple[Job, ...]:
        """Return the jobs that are not in `running`."""
        running = self.running
        return tuple([job for job in self.jobs if job.spec.job_id not in running])

    @cached_property
    def others_by_id(self) -> Mapping[JobId, Job]:
        """Return the jobs that are not in `running`, by id."""
        return {job.spec.job_id: job for job in self.others}

    @cached_property
    def spare(self) -> Mapping[Slot, int]:
        """Return what `running` leaves of `plannable_capacity`; below 0 where they hold more."""
        spare = self.plannable_capacity
        for allocation in self.running.values():
            for slot, count in allocation.slots:
                spare[slot] = spare.get(slot, 0) - count
        return spare

    @cached_property
    def plannable(self) -> tuple[Job, ...]:
        """Return the queued, starting and running jobs, also those that must keep their GPUs."""
        return tuple(job for job in self.jobs if job.phase.is_plannable)

    @cached_property
    def left_out(self) -> tuple[JobId, ...]:
        """Return the jobs that are not to be planned; they hold nothing."""
        return tuple([job.spec.job_id for job in self.others if job.left_out])

    def for_policy(self, *, sizes_by_type: bool) -> Snapshot:
        """Return what a policy is to see: all but the jobs that are left out.

        Unless the policy heeds `JobSpec.gangs` (`sizes_by_type`), a job of which these differ is to
        it one with the smallest, which has no throughput on the types of the others.
        """
        unequal = [] if sizes_by_type else [j.job_id for j in self.others if j.spec.gangs]
        if not (self.left_out or unequal):
            return self
        jobs = (job for job in self.jobs if not job.left_out)
        return replace(self, jobs=tuple([_of_smallest(job) if unequal else job for job in jobs]))

    def without(self, jobs: Set[JobId]) -> Snapshot:
        """Return the snapshot without some jobs; what they hold is occupied."""
        if not jobs:
            return self
        held = (job.allocation.slots for job in self.jobs if job.job_id in jobs)
        occupied = sorted(summed([*self.occupied, *chain(*held)]).items())
        others = tuple([job for job in self.jobs if job.job_id not in jobs])
        return replace(self, jobs=others, occupied=tuple(occupied))

    @property
    def plannable_capacity(self) -> dict[Slot, int]:
        """Return the GPUs in every slot that a plan may use.

        GPUs of unmanaged and of stopping jobs are taken off. Nodes that take no new work are
        included, for the jobs already on them.
        """
        free, is_stopping = dict(self.cluster.capacity), Phase.STOPPING
        stopping = [job.allocation.slots for job in self.others if job.phase is is_stopping]
        taken = summed(chain(self.occupied, *stopping))
        for slot, count in taken.items():
            free[slot] = max(0, free.get(slot, 0) - count)
        return free
