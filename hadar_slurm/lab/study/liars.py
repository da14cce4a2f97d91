"""What a user gains by lying, and what honest users lose by it.

A *population* is a seed's users with their jobs; one user in ten is a liar. It is played once with
all users honest, and once for each kind of lie. A job always trains its true steps at its true
throughputs; policies see what is claimed.

* The *gain* of a liar is the mean completion time of that user's jobs when honest over the one when
  lying.
* The *loss* of an honest user is the mean completion time when the liar lies over the one when the
  liar is honest.

Both are 1 where the lie changes nothing. Jobs that exist for the lie alone do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import geometric_mean

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.throughput import GangThroughput, Throughputs, ThroughputTable
from hadar_slurm.lab.study.compare import Cell, StudyWorkload, scale_to_load
from hadar_slurm.lab.study.experiment import ExperimentSettings
from hadar_slurm.lab.traces.cluster import parse_cluster
from hadar_slurm.sim.claims import Claim

CLUSTER, _GPUS_PER_NODE = "8xV100,8xP100,8xK80", 4
LOAD, SEEDS = 160.0, (0, 1, 2)
USERS, JOBS_EACH, _ONE_IN = 10, 12, 10
# Users differ: the median length of their jobs on the fastest type, uniform in the logarithm.
_MEDIANS_S, _SIGMA = (600.0, 7200.0), 0.8
_GANGS = ((0.7, 1), (0.2, 2), (0.1, 4))
_MODELS_EACH = 2
# `--time` must hold on the slowest type, and users add to it.
_LIMIT_OVER_SLOWEST = 2.0
HONEST = "honest"
# A flood: tasks of one GPU, their true seconds on the fastest type, and those claimed.
_FLOOD_TASKS, _FLOOD_S, _FLOOD_CLAIMED_S = 60, 300.0, 1.0


def population(seed: int, table: ThroughputTable, *, jobs_each: int = JOBS_EACH) -> list[JobSpec]:
    """Return the jobs of `USERS` users in order of arrival."""
    draw = Random(f"population {seed}")
    cluster = parse_cluster(CLUSTER, gpus_per_node=_GPUS_PER_NODE)
    types = cluster.gpus_by_type
    able = [name for name, rows in table.workloads.items() if rows.run_on_all(types, 1)]
    drawn = []
    for number in range(USERS):
        low, high = _MEDIANS_S
        median_s = low * (high / low) ** draw.random()
        models = draw.sample(sorted(able), _MODELS_EACH)
        for _ in range(jobs_each):
            model = draw.choice(models)
            throughputs = table.workloads[model]
            gang = draw.choices([g for _, g in _GANGS], [share for share, _ in _GANGS])[0]
            gang = gang if throughputs.run_on_all(types, gang) else 1
            run_s = median_s * draw.lognormvariate(0.0, _SIGMA)
            steps = max(1, round(run_s * throughputs.best(types, gang)))
            drawn.append((draw.random(), number, model, gang, steps))
    specs = [
        JobSpec(
            job_id=JobId(str(index)),
            num_gpus=gang,
            total_steps=steps,
            throughputs=table.workloads[model],
            submitted_s=1e6 * at,
            workload=model,
            user=f"user{number}",
        )
        for index, (at, number, model, gang, steps) in enumerate(sorted(drawn))
    ]
    return scale_to_load(specs, cluster, LOAD)


def lies(user: str) -> bool:
    """Return whether a user of a population is a liar."""
    return int(user.removeprefix("user")) % _ONE_IN == 0


def _limit_s(spec: JobSpec) -> float:
    speeds = [spec.throughputs.on(name, spec.num_gpus) for name in ("v100", "p100", "k80")]
    return _LIMIT_OVER_SLOWEST * spec.total_steps / min(speeds)


def _true(spec: JobSpec) -> Claim:
    return Claim(spec.total_steps, spec.throughputs, limit_s=_limit_s(spec))


def _scaled(throughputs: Throughputs, factors: Mapping[str, float], other: float) -> Throughputs:
    """Return throughputs times a factor by type."""
    rows = {}
    for (gpu_type, size), (together, spread) in throughputs.rows:
        by = factors.get(gpu_type, other)
        rows[gpu_type, size] = GangThroughput(by * together, spread and by * spread)
    return Throughputs.of(rows)


def _steps_times(factor: float) -> Callable[[JobSpec], Claim]:
    return lambda spec: replace(_true(spec), total_steps=max(1, round(factor * spec.total_steps)))


def _speeds_times(v100: float, other: float) -> Callable[[JobSpec], Claim]:
    def claim(spec: JobSpec) -> Claim:
        found = _scaled(spec.throughputs, {"v100": v100}, other)
        return replace(_true(spec), throughputs=found)

    return claim


# What a liar claims of a job. `slightly` is the control: how far figures move by mere chance when
# hardly anything is changed.
LIES: Mapping[str, Callable[[JobSpec], Claim]] = {
    "slightly": _steps_times(0.99),
    "half": _steps_times(0.5),
    "down": _steps_times(0.01),
    "up": _steps_times(1000.0),
    "fast": _speeds_times(1e6, 1e6),
    "one type": _speeds_times(100.0, 0.01),
    "unmovable": lambda spec: replace(_true(spec), can_checkpoint=False),
    "flood": _true,
}


def workload(lie: str, seed: int, table: ThroughputTable) -> StudyWorkload:
    """Return a population with one kind of lie, or `HONEST`."""
    specs = population(seed, table)
    claims: list[tuple[JobId, Claim]] = []
    if lie != HONEST:
        claims = [(spec.job_id, LIES[lie](spec)) for spec in specs if lies(spec.user)]
    if lie == "flood":
        first = next(spec for spec in specs if lies(spec.user))
        fastest = first.throughputs.on("v100", 1)
        for number in range(_FLOOD_TASKS):
            task = replace(
                first,
                job_id=JobId(str(len(specs))),
                num_gpus=1,
                shapes=(),
                total_steps=max(1, round(_FLOOD_S * fastest)),
            )
            specs.append(task)
            seconds = max(1, round(_FLOOD_CLAIMED_S * fastest))
            claims.append((task.job_id, replace(_true(task), total_steps=seconds)))
    return StudyWorkload(
        name=lie, specs=tuple(specs), load=LOAD, seed=seed, family="liars", claims=tuple(claims)
    )
