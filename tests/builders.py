"""Builds test values from short text, so that a test names only what matters to it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

from hadar_slurm.core.cluster import Cluster, GpuType, JobId, Node, NodeName, Slot
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress, Shape
from hadar_slurm.core.plan import Plan, WaitReason
from hadar_slurm.core.snapshot import GangRules, Round, Snapshot
from hadar_slurm.core.throughput import GangThroughput, Throughputs
from hadar_slurm.jobspec.request import Request
from hadar_slurm.journal import Line
from hadar_slurm.journal.reader import files_of, read_journal
from hadar_slurm.journal.values import gang_from_tree
from hadar_slurm.slurm.client.parse import QueueRow

ROUND = Round(0, 0.0, 360.0)
GOLDEN = Path(__file__).parent / "golden"


def a_cluster(text: str, *, closed: Iterable[str] = ()) -> Cluster:
    """Return nodes n1, n2, ... from `2xV100,4xK80,2xV100+2xK80`; those in `closed` take no work."""
    nodes = []
    for number, part in enumerate(text.split(","), start=1):
        pairs = (piece.split("x", 1) for piece in part.split("+"))
        gpus = {gpu_type: int(count) for count, gpu_type in pairs}
        name = f"n{number}"
        nodes.append(Node.of(name, gpus, is_schedulable=name not in closed))
    return Cluster.of(nodes)


def a_gang(text: str) -> Gang:
    """Return the gang in `n1:V100:2 n2:K80:1`, the form that `str` gives."""
    parts = (part.split(":") for part in text.split())
    return Gang.of({(node, gpu_type): int(count) for node, gpu_type, count in parts})


def some_rates(**steps_per_s: float) -> Throughputs:
    """Return throughputs from those of one GPU per type; gangs scale linearly, 0.8 across nodes."""
    return Throughputs.of(
        {(gpu_type, 1): GangThroughput(speed) for gpu_type, speed in steps_per_s.items()}
    )


def a_spec(
    job_id: str = "1",
    gpus: int = 1,
    *,
    steps: int = 1000,
    throughputs: Throughputs | None = None,
    shapes: Iterable[Shape] = (),
    submitted_s: float = 0.0,
    restart_cost_s: float = 0.0,
    can_checkpoint: bool = True,
    max_copies: int = 1,
    aggregation_cost_s: float = 0.0,
    workload: str = "",
    user: str = "",
) -> JobSpec:
    """Return a job's spec; by default its restarts cost nothing."""
    return JobSpec(
        job_id=JobId(job_id),
        num_gpus=gpus,
        total_steps=steps,
        throughputs=some_rates(V100=10.0, P100=4.0, K80=1.0)
        if throughputs is None
        else throughputs,
        submitted_s=submitted_s,
        shapes=tuple(shapes),
        can_checkpoint=can_checkpoint,
        restart_cost_s=restart_cost_s,
        max_copies=max_copies,
        aggregation_cost_s=aggregation_cost_s,
        workload=workload,
        user=user,
    )


def a_job(
    job_id: str = "1",
    gpus: int = 1,
    *,
    on: str = "",
    phase: Phase | None = None,
    steps: int = 1000,
    done: float = 0.0,
    service_gpu_s: float = 0.0,
    throughputs: Throughputs | None = None,
    shapes: Iterable[Shape] = (),
    submitted_s: float = 0.0,
    restart_cost_s: float = 0.0,
    can_checkpoint: bool = True,
    allowed: Iterable[str] | None = None,
    bound_type: str | None = None,
) -> Job:
    """Return a job; with `on` it runs on that gang, without it is queued."""
    spec = a_spec(
        job_id,
        gpus,
        steps=steps,
        throughputs=throughputs,
        shapes=shapes,
        submitted_s=submitted_s,
        restart_cost_s=restart_cost_s,
        can_checkpoint=can_checkpoint,
    )
    held = Allocation.rigid(a_gang(on)) if on else Allocation()
    return Job(
        spec,
        phase or (Phase.RUNNING if on else Phase.QUEUED),
        Progress(done, 0, ((GpuType("V100"), service_gpu_s),)),
        held,
        None if allowed is None else frozenset(map(NodeName, allowed)),
        None if bound_type is None else GpuType(bound_type),
    )


def a_snapshot(
    cluster: Cluster | str,
    *jobs: Job,
    now_s: float = 0.0,
    occupied: str = "",
    rules: GangRules | None = None,
) -> Snapshot:
    """Return a snapshot; `occupied` are the GPUs of unmanaged jobs, in the form of `a_gang`."""
    return Snapshot.of(
        now_s=now_s,
        cluster=a_cluster(cluster) if isinstance(cluster, str) else cluster,
        jobs=jobs,
        occupied=dict(a_gang(occupied).slots),
        rules=rules,
    )


def a_plan(
    placed: Mapping[str, str] | None = None, waiting: Mapping[str, WaitReason] | None = None
) -> Plan:
    """Return a plan from gangs as text by job id, and wait reasons of the other jobs."""
    return Plan.of(
        {JobId(key): Allocation.rigid(a_gang(gang)) for key, gang in (placed or {}).items()},
        {JobId(key): why for key, why in (waiting or {}).items()},
    )


def placed_by(plan: Plan) -> dict[str, str]:
    """Return a plan's gangs as text, by job."""
    return {
        job_id: " + ".join(map(str, allocation.gangs)) for job_id, allocation in plan.allocations
    }


def reasons_of(plan: Plan) -> dict[str, WaitReason]:
    """Return why each job without GPUs waits."""
    return {str(job_id): why for job_id, why in plan.waiting}


def free_after(snapshot: Snapshot, plan: Plan) -> dict[Slot, int]:
    """Return how many GPUs a plan leaves free in each plannable slot."""
    free = snapshot.plannable_capacity
    for _, allocation in plan.allocations:
        for gang in allocation.gangs:
            for slot, count in gang.slots:
                free[slot] -= count
    return free


def plan_of(line: Line) -> Plan:
    """Return the plan in a line of a journal: allocations and wait reasons."""
    gangs = {
        JobId(job): Allocation.of({int(copy): gang_from_tree(tree) for copy, tree in held.items()})
        for job, held in (line["plan"] or {}).items()
    }
    waiting = {JobId(job): WaitReason(why) for job, why in line["waiting"].items()}
    return Plan.of(gangs, waiting)


def gangs_that_fit(
    snapshot: Snapshot, job: Job, free: Mapping[Slot, int], *, only_uniform: bool = False
) -> Iterator[Gang]:
    """Yield every gang on which `job` could start within `free`, by trying all node sets.

    An oracle for small clusters: it shares no code with the policies. Where gangs need not be
    uniform, it yields one gang of each type.
    """
    usable = [n for n in snapshot.cluster.nodes if n.is_schedulable and job.may_use(n.name)]
    if not snapshot.rules.is_uniform and not only_uniform:
        yield from _scattered(snapshot, job, usable, free)
        return
    for shape in job.spec.shapes:
        for nodes in combinations(usable, shape.nodes):
            for gpu_types in product(*([gpu_type for gpu_type, _ in node.gpus] for node in nodes)):
                if len(set(gpu_types)) > 1 and not _may_mix(snapshot.rules, nodes):
                    continue
                if job.bound_type is not None and set(gpu_types) != {job.bound_type}:
                    continue
                gang = _gang(nodes, gpu_types, shape)
                has_room = all(free.get(slot, 0) >= count for slot, count in gang.slots)
                if has_room and gang.throughput(job.spec.throughputs) > 0:
                    yield gang


def is_so(why: WaitReason, snapshot: Snapshot, plan: Plan, job: Job) -> bool:
    """Return whether a waiting job's reason is true of the snapshot and the plan.

    Determined by trying all places, in the cluster as the plan leaves it and in an empty one; not
    valid for jobs with copies.
    """
    gpu_types = snapshot.cluster.gpus_by_type
    if why is WaitReason.STOPPING:
        return not (job.phase is Phase.QUEUED or job.phase.is_plannable)
    if why is WaitReason.NO_THROUGHPUT:
        return job.spec.throughputs.best(gpu_types, job.spec.num_gpus) <= 0
    empty = replace(snapshot, jobs=(), occupied=(), cluster=snapshot.cluster.all_open())
    could = next(gangs_that_fit(empty, job, empty.cluster.capacity), None) is not None
    now = list(gangs_that_fit(snapshot, job, free_after(snapshot, plan)))
    match why:
        case WaitReason.INFEASIBLE:
            return not could
        case WaitReason.INSUFFICIENT:
            return could and not now
        case WaitReason.WOULD_TIE:
            return bool(now) and all(would_bind(snapshot, job, gang) for gang in now)
        case WaitReason.BETTER_LATER:
            return bool(now) and not job.spec.can_checkpoint
        case WaitReason.OUTBID:
            return could


def would_bind(snapshot: Snapshot, job: Job, gang: Gang) -> bool:
    """Return whether a start on `gang` would bind a job that can migrate to one GPU type."""
    nodes = snapshot.cluster.by_name
    names_type = any(len(nodes[name].gpus) > 1 for name in gang.gpus_by_node)
    is_free = job.spec.can_checkpoint and job.bound_type is None
    return snapshot.rules.naming_binds and names_type and is_free


def _scattered(
    snapshot: Snapshot, job: Job, usable: Iterable[Node], free: Mapping[Slot, int]
) -> Iterator[Gang]:
    usable = list(usable)
    for gpu_type in snapshot.cluster.gpus_by_type:
        units = [s for n in usable if (s := Slot(n.name, gpu_type)) in free for _ in range(free[s])]
        size = job.spec.num_gpus
        is_allowed = (
            job.bound_type in (None, gpu_type) and job.spec.throughputs.on(gpu_type, size) > 0
        )
        if is_allowed and len(units) >= size:
            yield Gang.of(Counter((slot.node, slot.gpu_type) for slot in units[:size]))


def _may_mix(rules: GangRules, nodes: Iterable[Node]) -> bool:
    are_plain = all(len(node.gpus) == 1 for node in nodes)
    return rules.may_mix_types and (are_plain or not rules.is_uniform)


def _gang(nodes: Iterable[Node], gpu_types: Iterable[GpuType], shape: Shape) -> Gang:
    return Gang.of(
        {
            (node.name, gpu_type): shape.gpus_per_node
            for node, gpu_type in zip(nodes, gpu_types, strict=True)
        }
    )


def a_queue_row(**given: object) -> QueueRow:
    """Return a pending job of 2 GPUs that is neither held nor pinned."""
    row = QueueRow(
        key=JobId("7"),
        raw_id="7",
        state="PENDING",
        reason="None",
        user_id=1000,
        user="alice",
        partition="main",
        priority=100,
        dependency="",
        nodes=(),
        request=Request(per_job="gres/gpu:2"),
        gpus_per_node=(),
        gpus_otherwise=(("gpu", 2),),
        restarts=0,
        submitted_s=1.0,
        started_s=0.0,
        ended_s=0.0,
        is_set_apart=False,
        comment="",
    )
    return replace(row, **given)  # type: ignore[arg-type]


def a_slot(text: str) -> Slot:
    """Return the slot in `n1:V100`."""
    node, gpu_type = text.split(":")
    return Slot(NodeName(node), GpuType(gpu_type))


class FirstFit:
    """A policy without a solver: jobs keep their gangs, others get the first gang that fits."""

    name = "first-fit"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return the plan of a queue served in order of job ids."""
        allocations = {}
        free = snapshot.plannable_capacity
        queue = [job for job in snapshot.plannable if not job.allocation]
        for job in snapshot.plannable:
            if job.allocation:
                allocations[job.job_id] = job.allocation
                _take(free, job.allocation.gangs)
        for job in queue:
            gang = next(gangs_that_fit(snapshot, job, free), None)
            if gang is not None:
                allocations[job.job_id] = Allocation.rigid(gang)
                _take(free, [gang])
        waiting = {
            job.job_id: WaitReason.INSUFFICIENT if job.phase.is_plannable else WaitReason.STOPPING
            for job in snapshot.jobs
            if job.job_id not in allocations
        }
        return Plan.of(allocations, waiting)


def _take(free: dict[Slot, int], gangs: Iterable[Gang]) -> None:
    for gang in gangs:
        for slot, count in gang.slots:
            free[slot] -= count


def golden(name: str, text: str) -> str:
    """Return a golden file's text; with HADAR_WRITE_GOLDEN=1, write `text` there first."""
    path = GOLDEN / name
    if os.environ.get("HADAR_WRITE_GOLDEN") == "1":
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"tests/golden/{name} is not there yet: run make golden"
    return path.read_text(encoding="utf-8")


# 1 step/s on every GPU, so that a job of s steps on one GPU has a limit of s seconds.
EVEN = some_rates(V100=1.0, K80=1.0)


def even(job_id: str, gpus: int = 1, *, on: str = "", seconds: int = 100, ran_s: float = 0) -> Job:
    """Return a job on one node, submitted in the order of its id, that runs for `seconds`."""
    return a_job(
        job_id,
        gpus,
        on=on,
        steps=seconds * gpus,
        service_gpu_s=ran_s * gpus,
        throughputs=EVEN,
        shapes=[Shape(1, gpus)],
        submitted_s=float(job_id),
    )


def whole_journal(path: Path) -> list[Line]:
    """Return the rounds of a journal's rotated files and of the journal, the oldest first."""
    files = [file for file in files_of(path) if file.exists()]
    return [line for file in reversed(files) for line in read_journal(file)]
