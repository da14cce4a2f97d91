"""What users ask Slurm for: layout, GPU types and time limit, written once at submission. Pure."""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hadar_slurm.core.cluster import Cluster, GpuType, JobId, natural_key
from hadar_slurm.core.job import Job, JobSpec, Phase, Shape
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.jobspec.estimator import fitting_types
from hadar_slurm.lab.policies.slurm.settings import Form, SlurmSettings, Types

# Of the throughput on the fastest type: users of `open` leave out slower types.
_OPEN = 0.4
_ONE = (Types.HALF, Types.LOOK, Types.RECORDED)


@dataclass(frozen=True, slots=True)
class UserRequest:
    """The options of one sbatch."""

    # GPU types that Slurm may mix in one job; the next group is for where the first has no room.
    groups: tuple[tuple[GpuType, ...], ...]
    # None: --gpus=N, in any split.
    shape: Shape | None
    num_gpus: int
    limit_s: float
    qos: str = ""

    @property
    def nodes(self) -> int:
        """Return the number of nodes, 1 where any split will do."""
        return self.shape.nodes if self.shape else 1


def written(
    snapshot: Snapshot, known: Mapping[JobId, UserRequest], settings: SlurmSettings
) -> dict[JobId, UserRequest]:
    """Return the requests of all jobs; those in `known` stay as they were written."""
    ended = {end.job_id for end in snapshot.ended}
    found = {job_id: request for job_id, request in known.items() if job_id not in ended}
    new = [job for job in snapshot.others if not _is_of(found.get(job.job_id), job, snapshot)]
    if not snapshot.running.keys() <= found.keys():
        new += [snapshot.by_id[job_id] for job_id in snapshot.running.keys() - found.keys()]
    for job in sorted(new, key=lambda job: (job.spec.submitted_s, natural_key(job.job_id))):
        types = _allowed(job, snapshot, found, settings)
        found[job.job_id] = _request(job, types, snapshot, settings.form)
    return found


def _is_of(request: UserRequest | None, job: Job, snapshot: Snapshot) -> bool:
    """Return whether a remembered request is this job's, and of this cluster."""
    if request is None or request.num_gpus != job.spec.num_gpus:
        return False
    known, shape = snapshot.cluster.gpus_by_type, request.shape
    is_possible = shape in job.spec.shapes if shape else not snapshot.rules.is_uniform
    return is_possible and all(k in known for group in request.groups for k in group)


def _request(job: Job, types: tuple[GpuType, ...], snapshot: Snapshot, form: Form) -> UserRequest:
    spec, cluster, rules = job.spec, snapshot.cluster, snapshot.rules
    limit_s = _limit_s(spec, types)
    # Under rules of another simulator, which have no layouts, any split will do.
    is_split = form is Form.GPUS or not rules.is_uniform
    shape = None if is_split else _shape(spec, types, cluster, may_mix=rules.may_mix_types)
    is_list = form is Form.LIST and not _large_enough(spec, cluster, form).isdisjoint(types)
    groups = [(gpu_type,) for gpu_type in types] if is_list else [types] * bool(types)
    return UserRequest(tuple(groups), shape, spec.num_gpus, limit_s, qos=spec.qos)


def _shape(
    spec: JobSpec, types: Iterable[GpuType], cluster: Cluster, *, may_mix: bool = True
) -> Shape:
    """Return the layout on the fewest nodes of which the cluster has enough for it."""

    def fits(shape: Shape) -> bool:
        usable = {k for k in types if _trains(spec, k, shape)}
        if not usable.isdisjoint(fitting_types(cluster.nodes, [shape])):
            return True
        held = ({k for k, n in node.gpus if n >= shape.gpus_per_node} for node in cluster.nodes)
        return may_mix and sum(not usable.isdisjoint(here) for here in held) >= shape.nodes

    return next(filter(fits, spec.shapes), spec.shapes[0])


def _limit_s(spec: JobSpec, types: Iterable[GpuType]) -> float:
    """Return the time limit in seconds; inf if the job runs nowhere.

    A limit that was written for a type (`limit_type`) is kept. Others suffice for the slowest type
    that the user allows; where the workload has no limits, they are the job's time on that type,
    spread over nodes where a layout spreads it: a careful user's.
    """
    if spec.limit_type and spec.limit_s < math.inf:
        return spec.limit_s
    steps, layouts = spec.limit_steps, {False}
    if steps == math.inf:
        steps, layouts = float(spec.total_steps), {False, *(s.nodes > 1 for s in spec.shapes)}
    on = spec.throughputs.on
    speeds = [on(k, spec.num_gpus, is_spread=spread) for k in types for spread in layouts]
    slowest = min((speed for speed in speeds if speed > 0), default=0.0)
    return steps / slowest if slowest > 0 else math.inf


def _allowed(
    job: Job, snapshot: Snapshot, known: Mapping[JobId, UserRequest], settings: SlurmSettings
) -> tuple[GpuType, ...]:
    """Return the GPU types that the job's user allows, the fastest first.

    Where a job gets one type alone, those of which the cluster has too few for it are left out,
    unless all are.
    """
    spec, cluster, types = job.spec, snapshot.cluster, settings.types
    usable = [k for k in cluster.gpus_by_type if _speed(spec, k) > 0]
    is_alone = settings.form is Form.LIST or types in _ONE
    enough = _large_enough(spec, cluster, settings.form) if is_alone else usable
    large = [k for k in usable if k in enough]
    by_speed = sorted(large or usable, key=lambda gpu_type: -_speed(spec, gpu_type))
    if not large:
        return tuple(by_speed)
    if types is Types.OPEN:
        least = _OPEN * _speed(spec, by_speed[0])
        by_speed = [k for k in by_speed if _speed(spec, k) >= least]
    elif types is Types.HALF:
        by_speed = by_speed[:1] if _names_types(spec) else by_speed
    elif types is Types.RECORDED:
        by_speed = [k for k in by_speed if k.lower() == spec.limit_type.lower()] or by_speed
    elif types is Types.LOOK:
        loads = _Loads(snapshot, known)
        by_speed = [min(by_speed, key=lambda gpu_type: loads.end_s(job, gpu_type))]
    return tuple(by_speed)


def _large_enough(spec: JobSpec, cluster: Cluster, form: Form) -> set[GpuType]:
    """Return the types of which the cluster has enough for the job, in a layout that trains."""
    if form is Form.GPUS:
        return {k for k, count in cluster.gpus_by_type.items() if count >= spec.num_gpus}
    return {
        k
        for shape in spec.shapes
        for k in fitting_types(cluster.nodes, [shape])
        if _trains(spec, k, shape)
    }


def _trains(spec: JobSpec, gpu_type: GpuType, shape: Shape) -> bool:
    return spec.throughputs.on(gpu_type, spec.num_gpus, is_spread=shape.nodes > 1) > 0


def _speed(spec: JobSpec, gpu_type: GpuType) -> float:
    return spec.throughputs.on(gpu_type, spec.num_gpus)


def _names_types(spec: JobSpec) -> bool:
    return zlib.crc32((spec.user or spec.job_id).encode()) % 3 == 0


class _Loads:
    """What squeue shows by GPU type: work that runs and waits, by time limits, and free GPUs."""

    def __init__(self, snapshot: Snapshot, known: Mapping[JobId, UserRequest]) -> None:
        self._sizes = snapshot.cluster.gpus_by_type
        self._free = Counter[GpuType](dict(self._sizes))
        self._work: dict[GpuType, float] = dict.fromkeys(self._sizes, 0.0)
        self._queued: set[GpuType] = set()
        for job in snapshot.jobs:
            if job.job_id in known:
                self._add(job, known[job.job_id])

    def _add(self, job: Job, request: UserRequest) -> None:
        size, left_s = job.spec.num_gpus, request.limit_s
        if not request.groups or left_s == math.inf:
            return
        gpu_type = request.groups[0][0]
        if job.phase is Phase.QUEUED:
            self._queued.add(gpu_type)
        else:
            gpu_type = job.allocation.slots[0][0].gpu_type if job.allocation else gpu_type
            left_s = max(0.0, left_s - job.progress.service_gpu_s / size)
            self._free[gpu_type] -= size
        self._work[gpu_type] += left_s * size

    def end_s(self, job: Job, gpu_type: GpuType) -> float:
        """Return in how many seconds the job would end there if all took their limits."""
        limit_s = _limit_s(job.spec, (gpu_type,))
        if self._free[gpu_type] >= job.spec.num_gpus and gpu_type not in self._queued:
            return limit_s
        return self._work[gpu_type] / self._sizes[gpu_type] + limit_s
