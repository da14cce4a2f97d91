"""Leaves GPUs to plain jobs that wait, instead of further copies of forked jobs. Pure.

A forked job trains with one copy; all others are optional. Loaded with the first forked job. A
plain job that does not start though GPUs are free for it lacks something else on their nodes: there
copies do not leave for it, so that they do not leave and return again and again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from hadar_slurm.core.cluster import GpuType, JobId, Node, NodeName, Slot
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import PlainJob, Snapshot
from hadar_slurm.placement.copies import held_by

# GPUs left free for a job that has not started are used by copies for this many times as long.
_USED_TIMES = 10
# Nodes are looked at this often in a round, at about 10 us: a bound where many requests differ.
_MOST_LOOKS = 50_000


@dataclass(frozen=True, slots=True)
class _Copy:
    """A copy that is in the plan beside another one of its job."""

    job: JobId
    number: int
    gang: Gang
    # It is there already.
    runs: bool
    steps_per_s: float


def without_further_copies(snapshot: Snapshot, plan: Plan, *, may_stop: bool) -> Plan:
    """Return a plan without the copies beyond a job's first on GPUs that plain jobs wait for.

    As few as let these jobs start, those with the highest priority first; those that do not run yet
    first, of others the slowest. No copy leaves for a job that could not start even so, and one
    that runs stays. Without `may_stop` all running copies stay, as within a round.
    """
    copies = {job: dict(held.copies) for job, held in plan.allocations if len(held.copies) > 1}
    room = _Room(snapshot, _left(snapshot, plan.by_id.values()), copies, may_stop)
    for job in snapshot.plain_jobs:
        room.take(job)
    fewer = {job: Allocation.of(own) for job, own in copies.items()}
    num_left_out = sum(len(plan.by_id[job].copies) - len(own) for job, own in copies.items())
    if not num_left_out:
        return plan
    return replace(
        plan,
        allocations=tuple([(job, fewer.get(job, held)) for job, held in plan.allocations]),
        figures=tuple(sorted([*plan.figures, ("copies_left_out", float(num_left_out))])),
    )


@dataclass
class PlainWaits:
    """Where plain jobs have not started on free GPUs; in memory only. Times in seconds."""

    timeout_s: float
    _since: dict[JobId, float] = field(default_factory=dict)
    _avoided_until: dict[PlainJob, dict[NodeName, float]] = field(default_factory=dict)

    def heeded(self, snapshot: Snapshot, jobs: Iterable[PlainJob]) -> tuple[PlainJob, ...]:
        """Return the jobs, in order of priority, with the nodes where copies are to leave for them.

        A job that has not started on free GPUs for more than the timeout lacks something else on
        their nodes: it and all like it are without these for ten times as long as they were free.
        """
        now_s, avoided = snapshot.now_s, self._avoided_until.items()
        self._avoided_until = {job: u for job, u in avoided if now_s < max(u.values())}
        held = [job.allocation for job in snapshot.jobs if job.phase is not Phase.QUEUED]
        room, since = _Room(snapshot, _left(snapshot, held), {}, may_stop=False), self._since
        self._since, heeded = {}, list[PlainJob]()
        for each in jobs:
            job = self._without_avoided(each, now_s)
            if nodes := room.take(job):
                free_s = now_s - since.get(job.job_id, now_s)
                if free_s > self.timeout_s:
                    until_s = dict.fromkeys(nodes, now_s + _USED_TIMES * free_s)
                    self._avoided_until.setdefault(each, {}).update(until_s)
                    job = self._without_avoided(each, now_s)
                else:
                    self._since[job.job_id] = now_s - free_s
            if job.nodes:
                heeded.append(job)
        return tuple(heeded)

    def _without_avoided(self, job: PlainJob, now_s: float) -> PlainJob:
        until_s = self._avoided_until.get(job, {})
        avoided = {node for node, end_s in until_s.items() if now_s < end_s}
        return replace(job, nodes=job.nodes - avoided) if avoided else job


def _left(snapshot: Snapshot, held: Iterable[Allocation]) -> Counter[Slot]:
    """Return the GPUs of all slots that neither unmanaged jobs have nor those of `held`."""
    left = Counter(snapshot.cluster.capacity)
    left.subtract(dict(snapshot.occupied))
    for allocation in held:
        for slot, count in allocation.slots:
            left[slot] -= count
    return left


@dataclass(frozen=True, slots=True)
class _Fit:
    """How a plain job fits on one node: the GPUs that it gets, and the copies that leave for it."""

    node: NodeName
    used: Counter[Slot]
    leaving: tuple[_Copy, ...]
    # Running copies that leave, steps/s lost, GPUs that were left there.
    cost: tuple[int, float, int]


@dataclass
class _Room:
    """The GPUs that are left, and the copies of jobs with several, which change as jobs take."""

    snapshot: Snapshot
    left: Counter[Slot]
    copies: dict[JobId, dict[int, Gang]]
    may_stop: bool
    # By request and node; None: it does not fit there. Nodes that have changed are missing.
    _fits: dict[tuple[object, ...], dict[NodeName, _Fit | None]] = field(default_factory=dict)
    # Requests that have not fitted fit no more: room only shrinks.
    _hopeless: set[tuple[object, ...]] = field(default_factory=set)
    _looks: int = 0

    def take(self, job: PlainJob) -> list[NodeName]:
        """Give a plain job its GPUs, some of them those of further copies; return their nodes.

        Where it does not fit nothing changes, and there are none.
        """
        request = job.nodes, job.num_nodes, job.gpus
        if request in self._hopeless or self._looks > _MOST_LOOKS:
            return []
        known = self._fits.setdefault(request, {})
        for node in self.snapshot.cluster.nodes:
            if node.name not in known and node.is_schedulable and node.name in job.nodes:
                known[node.name] = self._fit(node, job.gpus)
        chosen: list[_Fit] = []
        more = self._may_leave.copy()
        for fit in sorted(filter(None, known.values()), key=lambda fit: fit.cost):
            if len(chosen) == job.num_nodes:
                break
            if all(more[copy.job, copy.runs] > 0 for copy in fit.leaving):
                more.subtract((copy.job, copy.runs) for copy in fit.leaving)
                chosen.append(fit)
        if len(chosen) < job.num_nodes:
            self._hopeless.add(request)
            return []
        self._carry_out(chosen)
        return [fit.node for fit in chosen]

    def _carry_out(self, chosen: Sequence[_Fit]) -> None:
        changed = {slot.node for fit in chosen for slot in fit.used}
        for copy in (copy for fit in chosen for copy in fit.leaving):
            own = self.copies[copy.job]
            del own[copy.number]
            self._may_leave[copy.job, copy.runs] -= 1
            self.left.update(dict(copy.gang.slots))
            # Those that are left may be the last ones.
            changed.update(node for gang in own.values() for node in gang.gpus_by_node)
        for fit in chosen:
            self.left.subtract(fit.used)
        for known in self._fits.values():
            for node in changed:
                known.pop(node, None)

    def _fit(self, node: Node, gpus: Sequence[tuple[GpuType | None, int]]) -> _Fit | None:
        """Return how a job fits on a node beside as many copies as possible; None: it does not."""
        self._looks += 1
        left = {slot: self.left[slot] for slot, _ in node.slots}
        unused, leaving = sum(left.values()), list[_Copy]()
        found = sorted(self._optional(node.name), key=lambda copy: (copy.runs, copy.steps_per_s))
        if unused + sum(c.gang.num_gpus for c in found) < sum(count for _, count in gpus):
            return None
        names = {gpu_type for gpu_type, _ in gpus}
        useful = (c for c in found if None in names or not names.isdisjoint(c.gang.gpus_by_type))
        while (used := _taken(left, gpus)) is None:
            if (copy := next(useful, None)) is None:
                return None
            leaving.append(copy)
            for slot, count in copy.gang.slots:
                left[slot] += count
        running, lost = sum(c.runs for c in leaving), sum(c.steps_per_s for c in leaving)
        return _Fit(node.name, used, tuple(leaving), cost=(running, lost, unused))

    def _optional(self, node: NodeName) -> Iterator[_Copy]:
        """Yield the copies on a node that may leave."""
        for copy in self._by_node.get(node, ()):
            if copy.number in self.copies[copy.job] and self._may_leave[copy.job, copy.runs] > 0:
                yield copy

    @cached_property
    def _may_leave(self) -> Counter[tuple[JobId, bool]]:
        """Return how many copies of a job that run, and that do not, may leave.

        One that runs stays, or one that does not where none runs.
        """
        copies = {copy for found in self._by_node.values() for copy in found}
        number = Counter((copy.job, copy.runs) for copy in copies)
        number.subtract((job, number[job, True] > 0) for job in self.copies)
        if not self.may_stop:
            number.update({key: -count for key, count in number.items() if key[1]})
        return number

    @cached_property
    def _by_node(self) -> Mapping[NodeName, Sequence[_Copy]]:
        """Return the copies, as first planned, on each node; none of jobs that cannot be moved."""
        found: defaultdict[NodeName, list[_Copy]] = defaultdict(list)
        for key, own in self.copies.items():
            if (job := self.snapshot.by_id[key]).is_pinned_in_place:
                continue
            for number, gang in own.items():
                rate = self.snapshot.rules.throughput(gang, job.spec.throughputs)
                runs = gang in held_by(job).gangs
                copy = _Copy(key, number, gang, runs=runs, steps_per_s=rate)
                for name in gang.gpus_by_node:
                    found[name].append(copy)
        return found


def _taken(
    left: Mapping[Slot, int], gpus: Sequence[tuple[GpuType | None, int]]
) -> Counter[Slot] | None:
    """Return the GPUs that a job gets of those left on a node; None: they do not suffice."""
    used: Counter[Slot] = Counter()
    for gpu_type, count in gpus:
        for slot, number in left.items():
            if gpu_type in (None, slot.gpu_type):
                part = max(0, min(count, number - used[slot]))
                used[slot] += part
                count -= part
        if count:
            return None
    return used
