"""The GPUs of one round while a policy gives them out.

An allocator first keeps the jobs that may not move. A policy then either reserves GPU types job by
job (`choose`) and assigns nodes to all of them together (`node_assignment.assign_nodes`), or places
a job directly (`start`). At the end `fill` gives out the remaining GPUs, and `plan` adds a reason
for every job that waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from hadar_slurm.core.cluster import Cluster, GpuType, JobId, Node, NodeName, Slot
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Shape
from hadar_slurm.core.plan import Plan, WaitReason
from hadar_slurm.core.snapshot import GangRules, Round, Snapshot
from hadar_slurm.placement.eligibility import Eligibility
from hadar_slurm.placement.job_facts import JobFacts, SharedFacts
from hadar_slurm.placement.node_index import NodeIndex


class Allocator:
    """The allocations decided so far for the coming round.

    `gpu_types` are the cluster's GPU types in canonical order. `jobs` are to be decided on: none
    that is_pinned_in_place, nor that runs and `stays` or may not move, if its GPUs are free.
    """

    def __init__(
        self, snapshot: Snapshot, round_: Round, stays: Callable[[Job], bool] = lambda _: False
    ) -> None:
        self.snapshot = snapshot
        self.round = round_
        self.rules: GangRules = snapshot.rules
        self.gpu_types: tuple[GpuType, ...] = tuple(snapshot.cluster.gpus_by_type)
        self.placed: dict[JobId, Allocation] = {}
        self.free: dict[Slot, int] = {}
        self._eligibility = Eligibility(snapshot)
        self._open = snapshot.cluster.open_names
        self._reserved = dict.fromkeys(self.gpu_types, 0)
        self._chosen: dict[JobId, tuple[Job, GpuType]] = {}
        self._facts = JobFacts.about(snapshot.cluster, self.rules)
        # Whether a start on the GPUs left at the end would bind a job to their type.
        self._ties: dict[SharedFacts, bool] = {}
        # Made when first needed.
        self._indexes: dict[GpuType, NodeIndex] = {}
        kept = None if round_.may_move else self._keep_running()
        self.jobs: tuple[Job, ...] = tuple(self._keep_in_place(stays)) if kept is None else kept

    def _keep_running(self) -> tuple[Job, ...] | None:
        """Place all running jobs and return the queued ones, or do nothing and return None.

        None if the running jobs do not all fit, or any other job holds GPUs.
        """
        snapshot, queued = self.snapshot, Phase.QUEUED
        jobs = tuple([job for job in snapshot.others if job.phase is queued])
        if len(jobs) < len(snapshot.others) or min(snapshot.spare.values(), default=0) < 0:
            return None
        self.free, self.placed = dict(snapshot.spare), dict(snapshot.running)
        return jobs

    def _keep_in_place(self, stays: Callable[[Job], bool]) -> Iterator[Job]:
        """Place the jobs that must keep their GPUs, if they are free; yield those to decide on."""
        free = self.free = self.snapshot.plannable_capacity
        placed, queued, running = self.placed, Phase.QUEUED, Phase.RUNNING
        may_move = self.round.may_move
        for job in self.snapshot.jobs:
            # First the usual cases.
            may_go = job.phase is running and job.spec.can_checkpoint and may_move
            if job.phase is queued or (may_go and not stays(job)):
                yield job
            elif job.phase.is_plannable:
                is_held = job.phase is running or job.is_pinned_in_place
                if is_held and self.fits(job.allocation):
                    for slot, count in job.allocation.slots:
                        free[slot] -= count
                    placed[job.spec.job_id] = job.allocation
                else:
                    yield job

    def room(self, gpu_type: GpuType) -> int:
        """Return the GPUs of a type on open nodes that are neither given out nor reserved."""
        return self._index(gpu_type).total - self._reserved[gpu_type]

    def _index(self, gpu_type: GpuType) -> NodeIndex:
        index = self._indexes.get(gpu_type)
        if index is None:
            index = NodeIndex.open_nodes(self.snapshot.cluster, gpu_type, self.free)
            self._indexes[gpu_type] = index
        return index

    @property
    def has_room(self) -> bool:
        """Whether any GPU of an open node is neither given out nor reserved."""
        return any([self.room(gpu_type) > 0 for gpu_type in self.gpu_types])

    def throughput(self, job: Job, gpu_type: GpuType) -> float:
        """Return the steps/s of a job's gang on one type, on as few nodes as there could be."""
        size = job.spec.gpus_on(gpu_type)
        is_spread = self.rules.counts_spread and self.snapshot.cluster.largest_node(gpu_type) < size
        return job.spec.throughputs.on(gpu_type, size, is_spread=is_spread)

    def placed_throughput(self, job: Job) -> float:
        """Return the steps/s of a placed job on its GPUs, of all its copies together."""
        gangs, throughputs = self.placed[job.spec.job_id].gangs, job.spec.throughputs
        return sum(self.rules.throughput(gang, throughputs) for gang in gangs)

    def may_use(self, job: Job, gpu_type: GpuType) -> bool:
        """Return whether a job could run on one type if all of it were free on the open nodes."""
        return self._may_use(job, gpu_type, self._facts.of(job))

    def _may_use(self, job: Job, gpu_type: GpuType, facts: SharedFacts) -> bool:
        is_usable = facts.usable.get(gpu_type)
        if is_usable is None:
            is_usable = facts.usable[gpu_type] = (
                job.spec.throughput_on(gpu_type) > 0
                and job.bound_type in (None, gpu_type)
                and self._has_nodes(job, gpu_type)
            )
        return is_usable

    def nodes_for(self, job: Job, gpu_type: GpuType) -> tuple[Node, ...]:
        """Return where a job could be given GPUs of one type: one object for jobs alike in that."""
        return self._eligibility.nodes(job, gpu_type, is_mixed=False)

    def slots_for(self, job: Job, gpu_type: GpuType) -> Iterator[Slot]:
        """Yield where a job could be given GPUs of one type, were they free."""
        return (Slot(node.name, gpu_type) for node in self.nodes_for(job, gpu_type))

    def fits(self, allocation: Allocation) -> bool:
        """Return whether all GPUs of an allocation are free."""
        free, slots = self.free, allocation.slots
        if len(slots) == 1:
            return free.get(slots[0][0], 0) >= slots[0][1]
        return all([free.get(slot, 0) >= count for slot, count in slots])

    def runs_on(self, job: Job) -> GpuType | None:
        """Return the GPU type a job holds; None if it holds none or several."""
        if job.phase is Phase.QUEUED or not job.allocation:
            return None
        slots = job.allocation.slots
        if len(slots) == 1:
            return slots[0][0].gpu_type
        gpu_types = {slot.gpu_type for slot, _ in slots}
        return gpu_types.pop() if len(gpu_types) == 1 else None

    def put(self, job: Job, allocation: Allocation) -> None:
        """Give a job exactly these GPUs, which must be free."""
        free, indexes = self.free, self._indexes
        for slot, count in allocation.slots:
            free[slot] -= count
            index = indexes.get(slot.gpu_type)
            if index is not None:
                index.change(slot.node, -count)
        self.placed[job.spec.job_id] = allocation

    def take_back(self, job: Job) -> None:
        """Free the GPUs given to a job."""
        for slot, count in self.placed.pop(job.job_id).slots:
            self.free[slot] += count
            index = self._indexes.get(slot.gpu_type)
            if index is not None:
                index.change(slot.node, count)

    def choose_first(self, job: Job, gpu_types: Iterable[GpuType] | None = None) -> bool:
        """Reserve GPUs of the first of `gpu_types` with room, else of none; say whether.

        Without `gpu_types`, of those on which the job trains at all, the fastest first.
        """
        facts, size, reserved = self._facts.of(job), job.spec.num_gpus, self._reserved
        has_sizes = bool(job.spec.gangs)
        for gpu_type in facts.by_speed if gpu_types is None else gpu_types:
            index = self._indexes.get(gpu_type) or self._index(gpu_type)
            if has_sizes:
                size = job.spec.gpus_on(gpu_type)
            has_room = index.total - reserved[gpu_type] >= size
            # First what is known, without a call.
            if has_room and (facts.usable.get(gpu_type) or self._may_use(job, gpu_type, facts)):
                reserved[gpu_type] += size
                self._chosen[job.spec.job_id] = (job, gpu_type)
                return True
        return False

    def choose(self, job: Job, gpu_type: GpuType) -> bool:
        """Reserve GPUs of a type for a job if there is room and it runs there; say whether."""
        return self.choose_first(job, (gpu_type,))

    def take_reservations(self) -> list[tuple[Job, GpuType]]:
        """Return the reservations in the order in which they were made, and clear them."""
        chosen, self._chosen = list(self._chosen.values()), {}
        self._reserved = dict.fromkeys(self.gpu_types, 0)
        return chosen

    def keep(self, job: Job) -> bool:
        """Leave a job where it runs unless that takes reserved GPUs; return whether it stays.

        Use it while there are reservations; `stay` ignores them.
        """
        wanted: Counter[GpuType] = Counter()
        for slot, count in job.allocation.slots:
            # GPUs of a closed node are never reserved.
            wanted[slot.gpu_type] += count if slot.node in self._open else 0
        return all(self.room(gpu_type) >= n for gpu_type, n in wanted.items()) and self.stay(job)

    def stay(self, job: Job) -> bool:
        """Leave a job where it runs, in those of its copies whose GPUs are free; say whether."""
        if job.phase is Phase.QUEUED:
            return False
        kept = job.allocation
        if len(kept.slots) == 1:
            slot, count = kept.slots[0]
            if self.free.get(slot, 0) < count:
                return False
        elif not self.fits(kept):
            copies = kept.copies
            kept = Allocation.of({n: g for n, g in copies if self.fits(Allocation.rigid(g))})
        if kept.copies:
            self.put(job, kept)
        return bool(kept.copies)

    def start(self, job: Job, gpu_types: Sequence[GpuType]) -> bool:
        """Place a job on the first of `gpu_types` with nodes for it, or mix them; say whether.

        A mixed gang takes the first types of the list that together have the nodes.
        """
        gangs = (self.gang_on(job, gpu_type) for gpu_type in gpu_types)
        gang = next(filter(None, gangs), None) or self._mixed_gang(job, gpu_types)
        if gang is not None:
            self.put(job, Allocation.rigid(gang))
        return gang is not None

    def fill(
        self, jobs: Iterable[Job], types_for: Callable[[Job], Sequence[GpuType]] | None = None
    ) -> None:
        """Give the remaining GPUs to those of `jobs` without any, the fastest type first.

        A running job stays where it is if its GPUs are free. `types_for` orders a job's types
        otherwise than by throughput.
        """
        if not any(self.free.values()):
            return
        # Starts that failed: with fewer GPUs they fail again.
        hopeless: set[tuple[object, ...]] = set()
        for job in jobs:
            if job.spec.job_id not in self.placed and not self.stay(job):
                gpu_types = (types_for or self.by_speed)(job)
                start = (self.like(job), *gpu_types)
                if start not in hopeless and not self.start(job, gpu_types):
                    hopeless.add(start)

    def by_speed(self, job: Job) -> Sequence[GpuType]:
        """Return the GPU types on which a job trains at all, the fastest first."""
        return self._facts.of(job).by_speed

    def by_room(self, job: Job) -> Sequence[GpuType]:
        """Return the GPU types on which a job trains at all, the one with most room first."""
        return sorted(sorted(self.by_speed(job)), key=lambda gpu_type: -self.room(gpu_type))

    def could_start(self, job: Job) -> bool:
        """Return whether a job could start on the open nodes if nothing else ran."""
        facts = self._facts.of(job)
        if facts.could_start is None:
            facts.could_start = self._fits_alone(job, only_open=True)
        return facts.could_start

    def like(self, job: Job) -> object:
        """Return the same object for jobs of which each could run wherever the other could."""
        return self._facts.of(job)

    def plan(
        self,
        *,
        figures: Mapping[str, float] | None = None,
        memory: object = None,
        patient: Collection[JobId] = (),
    ) -> Plan:
        """Return the plan; `patient` jobs may wait although they could start."""
        placed = self.placed
        snapshot = self.snapshot
        # Of the jobs, only those in a plan's usual case: every running job has its GPUs.
        jobs = snapshot.others if snapshot.running.keys() <= placed.keys() else snapshot.jobs
        waiting = {
            job.spec.job_id: self._reason(job, is_patient=job.spec.job_id in patient)
            for job in jobs
            if job.spec.job_id not in placed and not job.phase.is_final
        }
        return Plan.of(self.placed, waiting, figures, memory)

    def gang_on(self, job: Job, gpu_type: GpuType) -> Gang | None:
        """Return free GPUs of one type for a job's gang, on the fewest nodes, or None."""
        has_too_few = self._index(gpu_type).total < job.spec.gpus_on(gpu_type)
        if has_too_few or job.bound_type not in (None, gpu_type):
            return None
        return self._gang_among(job, gpu_type, self._restriction(job, gpu_type, is_mixed=False))

    def _gang_among(
        self, job: Job, gpu_type: GpuType, among: frozenset[NodeName] | None
    ) -> Gang | None:
        """Return free GPUs of one type for a job's gang on some of these nodes, or None."""
        size, throughputs = job.spec.gpus_on(gpu_type), job.spec.throughputs
        index = self._index(gpu_type)
        if not self.rules.is_uniform:
            counts = index.scatter(size, among) if throughputs.on(gpu_type, size) > 0 else None
            return Gang.of({(node, gpu_type): n for node, n in counts.items()}) if counts else None
        for shape in job.spec.shapes_on(gpu_type):
            if throughputs.on(gpu_type, size, is_spread=shape.nodes > 1) <= 0:
                continue
            names = index.tightest(shape.gpus_per_node, shape.nodes, among)
            if names is not None:
                return Gang.of({(name, gpu_type): shape.gpus_per_node for name in names})
        return None

    def _mixed_gang(self, job: Job, gpu_types: Sequence[GpuType]) -> Gang | None:
        spec = job.spec
        if not self.rules.may_mix_types or job.bound_type is not None or spec.num_gpus < 2:
            return None
        if spec.gangs:
            return None
        usable = [k for k in gpu_types if spec.throughputs.on(k, spec.num_gpus, is_spread=True)]
        shapes = (shape for shape in spec.shapes if shape.nodes > 1 and len(usable) > 1)
        gangs = (self._mixed_shape(job, shape, usable) for shape in shapes)
        return next(filter(None, gangs), None)

    def _mixed_shape(self, job: Job, shape: Shape, gpu_types: Sequence[GpuType]) -> Gang | None:
        size, taken = shape.gpus_per_node, dict[NodeName, GpuType]()
        for gpu_type in gpu_types:
            among = self._restriction(job, gpu_type, is_mixed=True)
            names = self._index(gpu_type).with_room(size, among, shape.nodes + len(taken))
            new = [name for name in names if name not in taken][: shape.nodes - len(taken)]
            taken |= dict.fromkeys(new, gpu_type)
        return Gang.of(dict.fromkeys(taken.items(), size)) if len(taken) == shape.nodes else None

    def _restriction(
        self, job: Job, gpu_type: GpuType, *, is_mixed: bool
    ) -> frozenset[NodeName] | None:
        """Return the nodes on which a job may start on `gpu_type`, None for all that are open."""
        is_free = job.allowed_nodes is None and job.bound_type in (None, gpu_type)
        if is_free and (
            self.snapshot.cluster.is_plain or not (is_mixed or self.rules.naming_binds)
        ):
            return None
        return frozenset(n.name for n in self._eligibility.nodes(job, gpu_type, is_mixed=is_mixed))

    def _has_nodes(self, job: Job, gpu_type: GpuType) -> bool:
        counts = [node.by_type[gpu_type] for node in self.nodes_for(job, gpu_type)]
        size = job.spec.gpus_on(gpu_type)
        if not self.rules.is_uniform:
            return sum(counts) >= size
        return any(
            sum(count >= shape.gpus_per_node for count in counts) >= shape.nodes
            and job.spec.throughputs.on(gpu_type, size, is_spread=shape.nodes > 1) > 0
            for shape in job.spec.shapes_on(gpu_type)
        )

    def _reason(self, job: Job, *, is_patient: bool) -> WaitReason:
        if not (job.phase is Phase.QUEUED or job.phase.is_plannable):
            return WaitReason.STOPPING
        facts = self._facts.of(job)
        if facts.reason is None:
            fits = bool(facts.by_speed) and self._fits_alone(job, only_open=False)
            never = WaitReason.INFEASIBLE if facts.by_speed else WaitReason.NO_THROUGHPUT
            facts.reason = WaitReason.INSUFFICIENT if fits else never
        if is_patient and any(self.gang_on(job, gpu_type) for gpu_type in facts.by_speed):
            return WaitReason.BETTER_LATER
        if facts.reason is WaitReason.INSUFFICIENT and self._would_tie(job, facts):
            return WaitReason.WOULD_TIE
        return facts.reason

    def _would_tie(self, job: Job, facts: SharedFacts) -> bool:
        """Return whether a job waits only because a start would tie it to a GPU type."""
        is_free = job.spec.can_checkpoint and job.bound_type is None
        if not (self.rules.naming_binds and is_free) or self.snapshot.cluster.is_plain:
            return False
        if facts not in self._ties:
            among = job.allowed_nodes and job.allowed_nodes & self._open
            gangs = (self._gang_among(job, gpu_type, among) for gpu_type in facts.by_speed)
            self._ties[facts] = any(gangs)
        return self._ties[facts]

    def _fits_alone(self, job: Job, *, only_open: bool) -> bool:
        if any(self.may_use(job, gpu_type) for gpu_type in self.gpu_types):
            return True
        spec = JobSpec(
            job_id=JobId("0"), num_gpus=job.spec.num_gpus, total_steps=1, shapes=job.spec.shapes,
            throughputs=job.spec.throughputs, can_checkpoint=job.spec.can_checkpoint,
            gangs=job.spec.gangs,
        )  # fmt: skip
        alike = Job(spec, allowed_nodes=job.allowed_nodes, bound_type=job.bound_type)
        return _fits(self.snapshot.cluster, self.rules, alike, only_open=only_open)


@lru_cache(maxsize=4096)
def _fits(cluster: Cluster, rules: GangRules, job: Job, *, only_open: bool) -> bool:
    """Return whether a job could start if nothing else ran, on open nodes only or on all."""
    usable = cluster if only_open else cluster.all_open()
    allocator = Allocator(Snapshot(0.0, usable, (), rules=rules), Round(0, 0.0, 1.0))
    return allocator.start(job, allocator.by_speed(job))
