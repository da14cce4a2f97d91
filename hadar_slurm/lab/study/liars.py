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

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from statistics import geometric_mean

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.throughput import GangThroughput, Throughputs, ThroughputTable
from hadar_slurm.lab.study.compare import Cell, Record, StudyWorkload, scale_to_load
from hadar_slurm.lab.study.summary import ComparableRuns, Note
from hadar_slurm.lab.traces.cluster import parse_cluster
from hadar_slurm.sim.claims import UserClaim

CLUSTER, _GPUS_PER_NODE = "8xV100,8xP100,8xK80", 4
LOAD, SEEDS = 160.0, (0, 1, 2)
USERS, JOBS_EACH = 10, 12
# Users differ: the median length of their jobs on the fastest type, uniform in the logarithm.
_MEDIANS_S, _SIGMA = (600.0, 7200.0), 0.8
_GANGS = ((0.7, 1), (0.2, 2), (0.1, 4))
_MODELS_EACH = 2
# `--time` must hold on the slowest type, and users add to it.
_LIMIT_OVER_SLOWEST = 2.0
HONEST, CONTROL = "honest", "slightly"
# A flood: tasks of one GPU, their true seconds on the fastest type, and those claimed.
_FLOOD_TASKS, _FLOOD_S, _FLOOD_CLAIMED_S = 60, 300.0, 1.0


def population(seed: int, table: ThroughputTable, *, jobs_each: int = JOBS_EACH) -> list[JobSpec]:
    """Return the jobs of `USERS` users in order of arrival; user 0 has the shortest jobs."""
    draw = Random(f"population {seed}")
    cluster = parse_cluster(CLUSTER, gpus_per_node=_GPUS_PER_NODE)
    types = cluster.gpus_by_type
    able = [name for name, rows in table.workloads.items() if rows.run_on_all(types, 1)]
    drawn = []
    for number in range(USERS):
        low, high = _MEDIANS_S
        median_s = low * (high / low) ** ((number + draw.random()) / USERS)
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


def liar(seed: int) -> str:
    """Return the user of a population who may lie: in turn one with short and with long jobs."""
    return f"user{seed % USERS}"


def _limit_s(spec: JobSpec) -> float:
    speeds = [spec.throughputs.on(name, spec.num_gpus) for name in ("v100", "p100", "k80")]
    return _LIMIT_OVER_SLOWEST * spec.total_steps / min(speeds)


def _true(spec: JobSpec) -> UserClaim:
    return UserClaim(spec.total_steps, spec.throughputs, limit_s=_limit_s(spec))


def _scaled(throughputs: Throughputs, factors: Mapping[str, float], other: float) -> Throughputs:
    """Return throughputs times a factor by type."""
    rows = {}
    for (gpu_type, size), (together, spread) in throughputs.rows:
        by = factors.get(gpu_type, other)
        rows[gpu_type, size] = GangThroughput(by * together, spread and by * spread)
    return Throughputs.of(rows)


def _steps_times(factor: float) -> Callable[[JobSpec], UserClaim]:
    return lambda spec: replace(_true(spec), total_steps=max(1, round(factor * spec.total_steps)))


def _speeds_times(v100: float, other: float) -> Callable[[JobSpec], UserClaim]:
    def claim(spec: JobSpec) -> UserClaim:
        found = _scaled(spec.throughputs, {"v100": v100}, other)
        return replace(_true(spec), throughputs=found)

    return claim


def _fastest_only(spec: JobSpec) -> UserClaim:
    types = spec.throughputs.gpu_types
    fastest = max(types, key=lambda name: spec.throughputs.on(name, spec.num_gpus))
    others = {name.lower() for name in types if name != fastest}
    return replace(_true(spec), throughputs=spec.throughputs.without(others))


# What a liar claims of a job. `slightly` is the control: how far figures move by mere chance when
# hardly anything is changed.
LIES: Mapping[str, Callable[[JobSpec], UserClaim]] = {
    CONTROL: _steps_times(0.99),
    "half": _steps_times(0.5),
    "down": _steps_times(0.01),
    "up": _steps_times(1000.0),
    "fast": _speeds_times(1e6, 1e6),
    "one type": _speeds_times(100.0, 0.01),
    "unmovable": lambda spec: replace(_true(spec), can_checkpoint=False),
    "fastest type only": _fastest_only,
    "fastest, unmovable": lambda spec: replace(_fastest_only(spec), can_checkpoint=False),
    "flood": _true,
}


def workload(lie: str, seed: int, table: ThroughputTable) -> StudyWorkload:
    """Return a population with one kind of lie, or `HONEST`."""
    specs = population(seed, table)
    claims: list[tuple[JobId, UserClaim]] = []
    if lie != HONEST:
        claims = [(spec.job_id, LIES[lie](spec)) for spec in specs if spec.user == liar(seed)]
    if lie == "flood":
        first = next(spec for spec in specs if spec.user == liar(seed))
        fastest = first.throughputs.on("v100", 1)
        for _ in range(_FLOOD_TASKS):
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


POLICIES = ("hadar", "srsf", "las", "gavel-max-min")
# The policy that is judged, and what it is without shares.
JUDGED, _UNSHARED = "hadar", 0.0


def cells(
    table: ThroughputTable,
    *,
    seeds: Sequence[int] | None,
    policies: Sequence[str] | None,
) -> list[Cell]:
    """Return the runs of every policy on every population, honest and with every lie."""
    cluster = parse_cluster(CLUSTER, gpus_per_node=_GPUS_PER_NODE)
    cell = partial(Cell, cluster=cluster, cluster_name=CLUSTER)
    chosen, found = policies or POLICIES, []
    for seed in seeds or SEEDS:
        for lie in (HONEST, *LIES):
            played = workload(lie, seed, table)
            found += [cell(workload=played, policy=policy) for policy in chosen]
            if lie == HONEST and JUDGED in chosen:
                found.append(cell(workload=played, policy=JUDGED, user_shares=_UNSHARED))
    return found


@dataclass(frozen=True, slots=True)
class Effect:
    """What one kind of lie does under a policy, over the populations."""

    lie: str
    # By population, of its liar.
    gains: tuple[float, ...]
    # By honest user, in the populations where this one is honest.
    losses: Mapping[str, tuple[float, ...]]

    @property
    def gain(self) -> float:
        """Return the geometric mean of the liars' gains."""
        return geometric_mean(self.gains)

    @property
    def loss(self) -> float:
        """Return the geometric mean of the losses of the honest user who loses most."""
        return max(map(geometric_mean, self.losses.values()))

    @property
    def largest(self) -> tuple[float, float]:
        """Return the largest gain and the largest loss in any single population."""
        return max(self.gains), max(max(losses) for losses in self.losses.values())


def effects(groups: Sequence[ComparableRuns], policy: str) -> list[Effect]:
    """Return the effects of the lies that were played, of the seeds that were played honestly."""
    runs = {str(group.labels["trace"]): _by_seed(group, policy) for group in groups}
    honest = runs.get(HONEST, {})
    found = []
    for lie in LIES:
        gains, losses = list[float](), defaultdict[str, list[float]](list)
        for seed, record in runs.get(lie, {}).items():
            if seed not in honest:
                continue
            before, after = _user_jcts(honest[seed]), _user_jcts(record)
            for user, jct_s in before.items():
                if user == liar(seed):
                    gains.append(jct_s / after[user])
                else:
                    losses[user].append(after[user] / jct_s)
        if gains and losses:
            found.append(Effect(lie, tuple(gains), {u: tuple(v) for u, v in losses.items()}))
    return found


def _by_seed(group: ComparableRuns, policy: str) -> dict[int, Record]:
    records = (r for entry in group.done if entry.policy == policy for r in entry.records)
    return {int(record["seed"] or 0): record for record in records}


def _user_jcts(record: Record) -> dict[str, float]:
    """Return each user's mean completion time, without the jobs added by a lie, which come last."""
    times = defaultdict[str, list[float]](list)
    for user, jct_s in zip(record["users"], record["jcts_s"][: USERS * JOBS_EACH], strict=False):
        times[user].append(jct_s)
    return {user: sum(found) / len(found) for user, found in times.items()}


def cost_of_fairness(groups: Sequence[ComparableRuns]) -> dict[str, float]:
    """Return by how much shares change the mean JCT and the TTD of honest users, 0.01 being 1 %."""
    honest = next((group for group in groups if group.labels["trace"] == HONEST), None)
    if honest is None:
        return {}
    shared = _by_seed(honest, JUDGED)
    without = _by_seed(honest, f"{JUDGED} (user_shares {_UNSHARED:g})")
    seeds = shared.keys() & without.keys()
    return {
        name: geometric_mean([shared[seed][name] / without[seed][name] for seed in seeds]) - 1.0
        for name in ("mean_jct_s", "ttd_s")
        if seeds
    }


def notes(groups: Sequence[ComparableRuns]) -> list[Note]:
    """Return a table of gains and losses for each policy, and the cost of shares."""
    policies = dict.fromkeys(entry.policy for group in groups for entry in group.done)
    played = {policy: found for policy in policies if (found := effects(groups, policy))}
    words = (
        "Gain: the liar's mean completion time when honest over the one when lying. Loss: an "
        "honest user's mean completion time when the liar lies over the one when the liar is "
        "honest; of the user who loses most. Both are geometric means over the populations. The "
        f"last columns are the largest in any population. '{CONTROL}' is the control: a claim that "
        "is off by 1 % shows how far figures move by chance."
    )
    head = ("lie", "gain of the liar", "loss of the worst", "largest gain", "largest loss")
    told = [
        Note(
            f"What lies do under {policy}",
            (words,) if number == 0 else (),
            (head, *((each.lie, *_texts(each)) for each in found)),
        )
        for number, (policy, found) in enumerate(played.items())
    ]
    if cost := cost_of_fairness(groups):
        jct, ttd = (f"{100 * cost[name]:+.1f} %" for name in ("mean_jct_s", "ttd_s"))
        text = f"With all users honest, shares change the mean JCT by {jct} and the TTD by {ttd}."
        told.append(Note("What fairness costs", (text,)))
    return told or [Note("Liars", ("Play populations honestly and with lies to compare them.",))]


def _texts(effect: Effect) -> tuple[str, ...]:
    return tuple(f"{value:.2f}" for value in (effect.gain, effect.loss, *effect.largest))


def tree(groups: Sequence[ComparableRuns]) -> dict[str, object]:
    """Return the figures as JSON: of the judged policy, and of all by lie (docs/compare.md)."""
    policies = dict.fromkeys(entry.policy for group in groups for entry in group.done)
    found = {policy: effects(groups, policy) for policy in policies}
    judged = [each for each in found.get(JUDGED, ()) if each.lie != CONTROL]
    return {
        "best_liar_gain": max((each.gain for each in judged), default=None),
        "worst_honest_loss": max((each.loss for each in judged), default=None),
        "cost_of_fairness": cost_of_fairness(groups) or None,
        "liars": {
            policy: {each.lie: _effect_tree(each) for each in told}
            for policy, told in found.items()
            if told
        },
    }


def _effect_tree(effect: Effect) -> dict[str, object]:
    largest_gain, largest_loss = effect.largest
    return {
        "gain": effect.gain,
        "loss": effect.loss,
        "largest_gain": largest_gain,
        "largest_loss": largest_loss,
        "populations": len(effect.gains),
    }
