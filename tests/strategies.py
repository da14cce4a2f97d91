"""Random clusters, jobs, snapshots, plans and traces: small, with all kinds of edge cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from builders import a_spec, gangs_that_fit
from hypothesis import strategies as st

from hadar_slurm.core.cluster import Cluster, GpuType, JobId, Node, Slot
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress, uniform_shapes
from hadar_slurm.core.plan import Plan, WaitReason
from hadar_slurm.core.snapshot import GangRules, Snapshot
from hadar_slurm.core.throughput import GangThroughput, Throughputs
from hadar_slurm.sim.backend import GAVEL_RULES, Failure

KINDS = ("V100", "P100", "K80")
# With n2 and n10, the natural order of names differs from their order as text.
_NODE_NUMBERS = (1, 2, 3, 10, 11)
_GANG_SIZES = (1, 1, 2, 2, 3, 4, 6)
_NOW_S = 10_000.0

rules = st.sampled_from(
    (
        GangRules(),
        GangRules(),
        GangRules(may_mix_types=False),
        GangRules(naming_binds=True),
        GAVEL_RULES,
    )
)
speeds = st.sampled_from((0.25, 1.0, 2.5, 4.0, 10.0, 37.5))


@st.composite
def throughputs(draw: st.DrawFn, *, may_lack: bool = True) -> Throughputs:
    """Throughputs on the three types: some unknown, some 0, some with rows for larger gangs."""
    rows: dict[tuple[str, int], GangThroughput] = {}
    for gpu_type in KINDS:
        form = draw(st.sampled_from(("linear", "rows", "linear", "zero", "unknown")))
        if form == "zero" and may_lack:
            rows[gpu_type, 1] = GangThroughput(0.0)
        elif form == "unknown" and may_lack:
            continue
        else:
            speed = draw(speeds)
            rows[gpu_type, 1] = GangThroughput(speed)
            if form == "rows":
                rows[gpu_type, 2] = GangThroughput(
                    1.5 * speed, draw(st.sampled_from((None, 0.75 * speed)))
                )
                rows[gpu_type, 4] = GangThroughput(2.5 * speed)
    return Throughputs.of(rows)


@st.composite
def clusters(draw: st.DrawFn, *, max_nodes: int = 4, may_close: bool = True) -> Cluster:
    """Up to five nodes with one or two GPU types, some of them closed."""
    numbers = draw(
        st.lists(
            st.sampled_from(_NODE_NUMBERS), min_size=1, max_size=min(max_nodes, 5), unique=True
        )
    )
    nodes = []
    for number in numbers:
        gpu_types = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=2, unique=True))
        gpus = {gpu_type: draw(st.sampled_from((1, 2, 4, 3))) for gpu_type in gpu_types}
        is_open = not (may_close and draw(st.integers(0, 5)) == 5)
        nodes.append(Node.of(f"n{number}", gpus, is_schedulable=is_open))
    return Cluster.of(nodes)


@st.composite
def specs(
    draw: st.DrawFn,
    job_id: str,
    *,
    now_s: float = _NOW_S,
    restart_costs: Sequence[float] = (0.0, 30.0, 120.0),
    may_lack: bool = True,
    sizes: Sequence[int] = _GANG_SIZES,
    min_steps: int = 1,
    max_steps: int = 1_000_000,
    is_any_shape: bool = False,
    may_fork: bool = False,
) -> JobSpec:
    """Jobs of 1 to 6 GPUs, with all uniform shapes or some only, and with one to three copies."""
    size = draw(st.sampled_from(sizes))
    every = uniform_shapes(size)
    shapes = every
    if not is_any_shape:
        some = st.lists(st.sampled_from(every), min_size=1, unique=True).map(tuple)
        shapes = draw(st.just(every) | some)
    return a_spec(
        job_id,
        size,
        steps=draw(st.integers(min_steps, max_steps)),
        throughputs=draw(throughputs(may_lack=may_lack)),
        shapes=shapes,
        submitted_s=draw(st.floats(0, now_s)) if now_s else 0.0,
        restart_cost_s=draw(st.sampled_from(restart_costs)),
        can_checkpoint=draw(st.integers(0, 3)) > 0,
        max_copies=draw(st.sampled_from((1, 2, 3))) if may_fork else 1,
        aggregation_cost_s=draw(st.sampled_from((0.0, 10.0))) if may_fork else 0.0,
    )


@st.composite
def snapshots(
    draw: st.DrawFn,
    *,
    max_jobs: int = 6,
    max_nodes: int = 4,
    is_fresh: bool = False,
    may_fork: bool = False,
    restart_costs: Sequence[float] = (0.0, 30.0, 120.0),
) -> Snapshot:
    """Snapshots with occupied GPUs and with queued, starting, running and stopping jobs.

    Running jobs were started by a policy, or by plain Slurm on GPUs that no policy would choose.
    With `is_fresh` every job has just been submitted and takes half a minute at least; with
    `may_fork` some jobs may have several copies, or have them.
    """
    cluster = draw(clusters(max_nodes=max_nodes))
    gang_rules = draw(rules)
    now_s = 0.0 if is_fresh else _NOW_S
    free = Counter(cluster.capacity)
    occupied: Counter[Slot] = Counter()
    for slot, count in cluster.capacity.items():
        if draw(st.integers(0, 4)) == 4:
            occupied[slot] = draw(st.integers(1, count))
    free.subtract(occupied)
    jobs = []
    for number in range(draw(st.integers(0, max_jobs))):
        spec = draw(
            specs(
                str(number + 7),
                now_s=now_s,
                restart_costs=restart_costs,
                min_steps=10_000 if is_fresh else 1,
                is_any_shape=not gang_rules.is_uniform,
                may_fork=may_fork,
            )
        )
        spec = replace(spec, user=draw(st.sampled_from(("", "ada", "ben"))))
        phase = draw(
            st.sampled_from((Phase.QUEUED, Phase.RUNNING, Phase.STARTING, Phase.STOPPING))
            | st.just(Phase.QUEUED)
        )
        held = Allocation() if phase is Phase.QUEUED else draw(held_allocations(spec, free))
        allowed = None
        if not draw(st.integers(0, 4)):
            names = [node.name for node in cluster.nodes]
            allowed = frozenset(draw(st.sets(st.sampled_from(names))))
        bound = GpuType(draw(st.sampled_from(KINDS))) if not draw(st.integers(0, 5)) else None
        share = draw(st.sampled_from((None, 0.0, 0.5, 1.0)))
        partition = draw(st.sampled_from(("", "main", "main,long")))
        limit_left_s = draw(st.sampled_from((None, 0, 1000, 10**9)))
        if not held:
            jobs.append(
                Job(
                    spec,
                    allowed_nodes=allowed,
                    bound_type=bound,
                    fair_share=share,
                    partition=partition,
                    limit_left_s=limit_left_s,
                )
            )
            continue
        for gang in held.gangs:
            free.subtract(dict(gang.slots))
        most = spec.total_steps // 2 if is_fresh else spec.total_steps
        service_s = draw(st.sampled_from((0.0, 3000.0, 5000.0, 20_000.0)))
        service = ((GpuType("V100"), service_s / 2), (GpuType("K80"), service_s / 2))
        progress = Progress(float(draw(st.integers(0, most))), 1, service)
        job = Job(spec, phase, progress, held, allowed, bound, share, partition)
        jobs.append(replace(job, limit_left_s=limit_left_s))
    return Snapshot.of(now_s=now_s, cluster=cluster, jobs=jobs, occupied=occupied, rules=gang_rules)


@st.composite
def spread_gangs(draw: st.DrawFn) -> Snapshot:
    """Snapshots with gangs of two, at half speed across nodes, single-GPU jobs and queued jobs.

    A gang's remaining steps decide whether consolidation on one node is worth a restart.
    """
    cluster = Cluster.of(Node.of(f"n{number}", {"V100": 2}) for number in (1, 2, 3, 4))
    rows = {("V100", 1): GangThroughput(1.0), ("V100", 2): GangThroughput(2.0, 1.0)}
    units = draw(st.permutations([slot for slot, n in cluster.capacity.items() for _ in range(n)]))
    jobs = []
    for number in range(draw(st.integers(1, 6))):
        size = draw(st.sampled_from((2, 2, 1)))
        spec = a_spec(
            str(number + 7),
            size,
            steps=draw(st.integers(1, 1_000_000)),
            throughputs=Throughputs.of(rows),
            shapes=uniform_shapes(size),
            submitted_s=float(number),
            restart_cost_s=draw(st.sampled_from((30.0, 120.0))),
        )
        if len(units) < size or not draw(st.integers(0, 3)):
            jobs.append(Job(spec))
            continue
        held, units = units[:size], units[size:]
        service = ((GpuType("V100"), draw(st.sampled_from((0.0, 3000.0, 20_000.0)))),)
        gang = Gang.of(Counter((slot.node, slot.gpu_type) for slot in held))
        progress = Progress(float(draw(st.integers(0, spec.total_steps))), 1, service)
        jobs.append(Job(spec, Phase.RUNNING, progress, Allocation.rigid(gang)))
    return Snapshot.of(now_s=_NOW_S, cluster=cluster, jobs=jobs)


@st.composite
def held_allocations(draw: st.DrawFn, spec: JobSpec, free: Mapping[Slot, int]) -> Allocation:
    """What a job may hold: nothing, a gang, or copies on separate nodes if it may fork."""
    roomy = {slot.node: slot for slot, count in sorted(free.items()) if count >= spec.num_gpus}
    if spec.max_copies > 1 and len(roomy) > 1 and draw(st.booleans()):
        most = min(spec.max_copies, len(roomy))
        slots = draw(st.permutations(sorted(roomy.values())))[: draw(st.integers(2, most))]
        numbers = draw(st.permutations(range(spec.max_copies)))
        gangs = [Gang.of({slot: spec.num_gpus}) for slot in slots]
        return Allocation.of(dict(zip(numbers, gangs, strict=False)))
    gang = draw(held_gangs(spec, free))
    return Allocation() if gang is None else Allocation.rigid(gang)


@st.composite
def held_gangs(draw: st.DrawFn, spec: JobSpec, free: Mapping[Slot, int]) -> Gang | None:
    """A gang that a job may hold: its number of GPUs, sometimes another, packed or scattered."""
    units = [slot for slot, count in sorted(free.items()) for _ in range(max(0, count))]
    size = spec.num_gpus if draw(st.integers(0, 9)) else draw(st.integers(1, 4))
    if len(units) < size:
        return None
    by_node = draw(st.booleans())
    chosen = units[:size] if by_node else draw(st.permutations(units))[:size]
    return Gang.of(Counter((slot.node, slot.gpu_type) for slot in chosen))


@st.composite
def valid_plans(draw: st.DrawFn, snapshot: Snapshot) -> Plan:
    """Any valid plan, also an unreasonable one."""
    free = snapshot.plannable_capacity
    allocations: dict[JobId, Allocation] = {}
    pinned = [job for job in snapshot.plannable if job.is_pinned_in_place]
    others = draw(st.permutations([j for j in snapshot.plannable if not j.is_pinned_in_place]))
    for job in pinned:
        allocations[job.job_id] = job.allocation
        for gang in job.allocation.gangs:
            for slot, count in gang.slots:
                free[slot] -= count
    for job in others:
        fitting: list[Gang] = list(gangs_that_fit(snapshot, job, free))
        fitting += [
            gang
            for gang in job.allocation.gangs
            if all(free.get(slot, 0) >= count for slot, count in gang.slots)
        ]
        if fitting and draw(st.integers(0, 4)) > 0:
            chosen: Gang = draw(st.sampled_from(fitting))
            allocations[job.job_id] = Allocation.rigid(chosen)
            for slot, count in chosen.slots:
                free[slot] -= count
    waiting = {
        job.job_id: WaitReason.OUTBID if job.phase.is_plannable else WaitReason.STOPPING
        for job in snapshot.jobs
        if job.job_id not in allocations
    }
    return Plan.of(allocations, waiting)


@st.composite
def traces(
    draw: st.DrawFn,
    *,
    max_jobs: int = 5,
    restart_costs: Sequence[float] = (0.0, 30.0),
    gang_rules: GangRules | None = None,
    may_fork: bool = False,
) -> tuple[Cluster, tuple[JobSpec, ...]]:
    """A cluster and jobs submitted over time, each of which fits the empty cluster."""
    gang_rules = gang_rules or GangRules()
    cluster = draw(clusters(max_nodes=3, may_close=False))
    empty = Snapshot.of(now_s=0.0, cluster=cluster, jobs=(), rules=gang_rules)
    jobs: list[JobSpec] = []
    for number in range(draw(st.integers(1, max_jobs))):
        spec = draw(
            specs(
                str(number),
                now_s=draw(st.sampled_from((0.0, 2000.0))),
                restart_costs=restart_costs,
                may_lack=False,
                sizes=(1, 1, 2, 3, 4),
                max_steps=3000,
                is_any_shape=not gang_rules.is_uniform,
                may_fork=may_fork,
            )
        )
        gangs = gangs_that_fit(empty, Job(spec), cluster.capacity, only_uniform=True)
        if next(gangs, None) is not None:
            jobs.append(spec)
    return cluster, tuple(sorted(jobs, key=lambda spec: spec.submitted_s))


def failures_of(cluster: Cluster) -> st.SearchStrategy[tuple[Failure, ...]]:
    """Up to two failures of nodes, most often none."""
    failure = st.builds(
        lambda node, down_s, lasts_s: Failure(down_s, down_s + lasts_s, node.name),
        st.sampled_from(cluster.nodes),
        st.floats(0, 3000),
        st.floats(1, 2000),
    )
    return st.just(()) | st.lists(failure, max_size=2).map(tuple)
