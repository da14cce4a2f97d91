"""Experiments by name: the papers', with their claims, `generality` and `liars`.

Only titles and abstracts of the papers were available, and only their figures are quoted: arXiv
2503.10918 (Hadar and HadarE) and IPDPS 2024, doi 10.1109/ipdps57955.2024.00066 (Hadar). Workloads,
clusters, restart costs and the objectives of the baselines are not known first hand. Jobs and nodes
here are a reconstruction that allows the same comparison, at several loads. Each result explains
its differences from the paper.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.throughput import GangThroughput, Throughputs, ThroughputTable
from hadar_slurm.lab.study import generality, liars
from hadar_slurm.lab.study.compare import (
    Cell,
    ClusterWorkload,
    StudyWorkload,
    scale_to_load,
    with_limits,
)
from hadar_slurm.lab.study.experiment import ORACLE, ExperimentSettings
from hadar_slurm.lab.study.summary import HOUR_S, ComparableRuns, Note, Series, load_series
from hadar_slurm.lab.traces.cluster import parse_cluster
from hadar_slurm.lab.traces.limits import LimitHabits
from hadar_slurm.lab.traces.workload import hadar_jobs

# Figures in the abstracts.
PAPER_TTD = 1.20
PAPER_CRU = 1.45
PAPER_TTD_CUTS = (50, 80)
PAPER_JCT_GAVEL, PAPER_JCT_YARN = 2.5, 3.0

# Relative speeds of the five one-GPU nodes, and the steps/s of the fastest.
NODE_SPEEDS = {"fast": 1.0, "half": 0.5, "fifth": 0.2}
MIX_CLUSTER = "2xfast,2xhalf,1xfifth"
_STEPS_PER_S = 10.0
# Minutes on the fastest node: 10 to a power drawn from this range.
MIX_LOG_MINUTES = (1.5, 3.0)
EVEN_HOURS = (1.0, 4.0)
_MIX_RESTART_S = _MIX_AGGREGATION_S = 10.0


@dataclass(frozen=True, slots=True)
class Overrides:
    """Options that override those of a scenario; None keeps the scenario's."""

    policies: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    loads: tuple[float, ...] | None = None
    first: int | None = None
    # The sources of sizes, for a scenario that takes them.
    sizes: tuple[str, ...] | None = None
    limits: LimitHabits | None = None
    # Whether limits are longer on slower types than those for which they were written.
    adjusts_limits: bool = False
    # A workload of jobs that have ended before; "" for none.
    history: str = ""
    # Shares of the users, in per cent, whose jobs are the policies'; none: all jobs are.
    adoption: tuple[float, ...] = ()
    # Shares of the jobs, in per cent, that can move; none: all that the trace lets move.
    movable: tuple[float, ...] = ()
    # Per cent of the jobs, drawn from each seed, that are not played; 0: all are.
    leave_out: float = 0.0
    # Further workloads, for a scenario that takes lists of them.
    workloads: tuple[ClusterWorkload, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named experiment."""

    name: str
    title: str
    # Its runs.
    cells: Callable[[Overrides, ThroughputTable], list[Cell]]
    # Discussion of the results.
    notes: Callable[[Sequence[ComparableRuns]], list[Note]]
    series: Callable[[Sequence[ComparableRuns]], list[Series]]
    # Number of groups with plots, and index of the group with Gantt charts.
    num_plotted: int = 6
    charted: int = 0
    # Whether workloads of the user can be added, and jobs have other sizes than the true ones.
    takes_lists: bool = False
    # Further keys of the JSON.
    tree: Callable[[Sequence[ComparableRuns]], Mapping[str, object]] = lambda _: {}


def mix(k: int, rng: Random) -> list[JobSpec]:
    """Return the HadarE mix M-k: k single-GPU jobs that arrive together, for the five nodes.

    Sizes are those of 80 % of the jobs of Gavel's generator (OSDI'20, its utils.py): 10 to the
    power of 1.5 to 3 minutes on the fastest node. The paper's own jobs are not known.
    """
    return _mix_of([10.0 ** rng.uniform(*MIX_LOG_MINUTES) / 60.0 for _ in range(k)])


def even_mix(k: int, rng: Random) -> list[JobSpec]:
    """Return a mix of more equal jobs: hours uniform in `EVEN_HOURS`."""
    return _mix_of([rng.uniform(*EVEN_HOURS) for _ in range(k)])


def _mix_of(hours: Sequence[float]) -> list[JobSpec]:
    """Return jobs of these hours on the fastest node; restarts and averaging cost 10 s each."""
    throughputs = Throughputs.of(
        {(gpu_type, 1): GangThroughput(_STEPS_PER_S * v) for gpu_type, v in NODE_SPEEDS.items()}
    )
    job = partial(
        JobSpec,
        num_gpus=1,
        throughputs=throughputs,
        restart_cost_s=_MIX_RESTART_S,
        workload="mix",
        max_copies=5,
        aggregation_cost_s=_MIX_AGGREGATION_S,
    )
    return [
        job(job_id=JobId(str(number)), total_steps=round(size * HOUR_S * _STEPS_PER_S))
        for number, size in enumerate(hours)
    ]


_MIX_POLICIES = ("hadare", "hadar", "hadar-paper", "gavel-max-min")


def _mix_cells(
    draw: Callable[[int, Random], list[JobSpec]], choices: Overrides, _table: ThroughputTable
) -> list[Cell]:
    workload = partial(StudyWorkload, restart="10")
    workloads = [
        workload(name=f"M-{k}", specs=tuple(draw(k, Random(f"M-{k} {seed}"))), seed=seed)
        for k in range(1, (choices.first or 12) + 1)
        for seed in choices.seeds or range(10)
    ]
    nodes, settings = parse_cluster(MIX_CLUSTER, gpus_per_node=1), ExperimentSettings(round_s=180.0)
    cell = partial(Cell, cluster=nodes, cluster_name=MIX_CLUSTER, settings=settings)
    policies = choices.policies or _MIX_POLICIES
    return [cell(workload=each, policy=policy) for each in workloads for policy in policies]


def _mix_table(groups: Sequence[ComparableRuns]) -> Iterator[tuple[str, ...]]:
    yield (
        "mix", "CRU Gavel", "CRU HadarE", "CRU ratio", "TTD Gavel h", "TTD HadarE h", "speed-up",
        "TTD cut", "TTD / bound",
    )  # fmt: skip
    for group in groups:
        shares = [_mean(group, policy, "cru") / 100.0 for policy in ("gavel-max-min", "hadare")]
        before, after = (_mean(group, policy, "ttd_h") for policy in ("gavel-max-min", "hadare"))
        yield (
            str(group.labels["trace"]), *(f"{share:.3f}" for share in shares),
            f"{shares[1] / shares[0]:.2f}x", f"{before:.2f}", f"{after:.2f}",
            f"{before / after:.2f}x", f"{100 * (1 - after / before):.0f} %",
            f"{_mean(group, 'hadare', 'ttd_over_bound'):.3f}",
        )  # fmt: skip


def _mix_notes(groups: Sequence[ComparableRuns]) -> list[Note]:
    crus: defaultdict[str, list[float]] = defaultdict(list)
    idle, gains, least = list[float](), dict[str, float](), list[float]()
    for group in groups:
        for entry in group.done:
            crus[entry.policy].append(_mean(group, entry.policy, "cru") / 100.0)
    compared = _with_policies(groups, "hadare", "gavel-max-min")
    if not compared:
        return [Note("HadarE", ("Run hadare and gavel-max-min to compare them.",))]
    for group in compared:
        at = partial(_mean, group)
        before, after = at("gavel-max-min", "ttd_h"), at("hadare", "ttd_h")
        gains[str(group.labels["trace"])] = before / after
        least.append(after / at("hadare", "ttd_over_bound") / before)
        idle.append(at("hadare", "cru") / 100.0 - at("hadare", "utilization") / 100.0)
    means = {policy: sum(values) / len(values) for policy, values in crus.items()}
    ratio = means["hadare"] / means["gavel-max-min"]
    mean_cut = 100.0 * (1.0 - sum(1.0 / gain for gain in gains.values()) / len(gains))
    possible = 100.0 * (1.0 - sum(least) / len(least))
    best, worst = (pick(gains, key=lambda name: gains[name]) for pick in (max, min))
    others = ", ".join(f"{policy} {cru:.2f}" for policy, cru in means.items())
    claim = (
        f"Paper (arXiv 2503.10918, abstract): cluster resource utilisation x{PAPER_CRU}, TTD down "
        f"by {PAPER_TTD_CUTS[0]} % on an AWS cluster and by {PAPER_TTD_CUTS[1]} % on a "
        f"laboratory's. Here, against Gavel's max-min: CRU x{ratio:.2f} (ratio of the means over "
        f"the mixes), TTD down by {mean_cut:.0f} % on average, from {gains[best]:.2f}x faster on "
        f"{best} to {gains[worst]:.2f}x on {worst}."
    )
    held = (
        f"Mean CRU: {others}. It counts GPUs during restarts and averaging as busy; without that "
        f"time HadarE's is {sum(idle) / len(idle):.3f} lower."
    )
    why = (
        "Why it differs: forking uses idle nodes, so it gains most with fewer jobs than nodes and "
        "hardly anything beyond; the mean depends on which mixes are averaged. One job alone is at "
        "most 3.2 times as fast on five nodes of speeds 1, 1, .5, .5 and .2 as on the fastest, "
        "which is a cut of 69 %, and no schedule can cut Gavel's TTD on these mixes by more than "
        f"{possible:.0f} % on average (forking bound). The abstract names neither the jobs nor the "
        "Gavel objective of its cuts. Sizes matter as well: the more they differ, the longer the "
        "largest job runs alone at the end, with four nodes idle unless it is forked."
    )
    words = (claim, held, why)
    return [Note("HadarE against the paper", words, tuple(_mix_table(compared)))]


def _mix_series(groups: Sequence[ComparableRuns]) -> list[Series]:
    done = [group for group in groups if group.done]
    points = tuple((float(str(g.labels["trace"]).removeprefix("M-")), g) for g in done)
    if len(points) < 2:
        return []
    return [
        Series(
            heading="From M-1 to M-12",
            words="Mix M-k has k jobs of one GPU on five nodes. Gains should fade as k grows.",
            axis="jobs in the mix",
            points=points,
            columns=("cru", "ttd_h", "mean_jct_h", "ttd_over_bound"),
        )
    ]


def _mean(group: ComparableRuns, policy: str, name: str) -> float:
    """Return a policy's mean figure, a column by name."""
    entry = next(entry for entry in group.done if entry.policy == policy)
    value = entry.mean(group.column(name))
    assert value is not None
    return value


def _with_policies(groups: Sequence[ComparableRuns], *policies: str) -> list[ComparableRuns]:
    """Return the groups that have results of all of `policies`."""
    return [g for g in groups if {*policies} <= {entry.policy for entry in g.done}]


# Hadar's simulation: 480 jobs on 60 GPUs.
PAPER_CLUSTER = "20xV100,20xP100,20xK80"
_PAPER_GPUS_PER_NODE = 4
_PAPER_LOADS = (50.0, 70.0, 90.0, 110.0)
_PAPER_POLICIES = (
    "hadar", "hadar-paper", "gavel-max-min", "gavel-makespan", "gavel-max-sum", "tiresias",
    "yarn-cs", "srsf", "slurm",
)  # fmt: skip
_PAPER_JOBS = 480
# Fewer jobs at once leave GPUs idle at the end, as a lower load does.
_PAPER_AT_ONCE = (120, 240)
_PAPER_RESTART_S = 10.0
# Arrivals are scaled to the load; only the proportions of their gaps matter.
_ANY_GAP_S = 600.0


def _paper_cells(choices: Overrides, table: ThroughputTable) -> list[Cell]:
    cluster = parse_cluster(PAPER_CLUSTER, gpus_per_node=_PAPER_GPUS_PER_NODE)
    workloads: list[StudyWorkload] = []
    for seed in choices.seeds or (0,):
        drawn = hadar_jobs(_PAPER_JOBS, Random(seed).random, table, mean_gap_s=_ANY_GAP_S)
        specs = [replace(spec, restart_cost_s=_PAPER_RESTART_S) for spec in drawn[: choices.first]]
        sizes = [size for size in _PAPER_AT_ONCE if size < len(specs)]
        workload = partial(StudyWorkload, seed=seed, restart="10")
        for size in (*sizes, len(specs)):
            at_once = tuple(replace(spec, submitted_s=0.0) for spec in specs[:size])
            workloads.append(workload(name=f"hadar{size} at once", specs=at_once))
        for load in choices.loads or _PAPER_LOADS:
            scaled = tuple(scale_to_load(specs, cluster, load))
            workloads.append(workload(name=f"hadar{len(specs)}", specs=scaled, load=load))
    policies = choices.policies or _PAPER_POLICIES
    settings = ExperimentSettings(round_s=360.0)
    cell = partial(Cell, cluster=cluster, cluster_name=PAPER_CLUSTER, settings=settings)
    return [cell(workload=each, policy=policy) for each in workloads for policy in policies]


def _paper_table(groups: Sequence[ComparableRuns]) -> Iterator[tuple[str, ...]]:
    yield (
        "setting", "TTD Gavel / hadar-paper", "TTD Gavel / hadar", "most possible",
        "JCT Gavel / hadar-paper", "JCT Gavel / hadar", "JCT YARN / hadar", "queueing", "FTF",
    )  # fmt: skip
    gavel, paper = "gavel-max-min", "hadar-paper"
    for group in groups:
        at, load = partial(_mean, group), group.labels["load"]
        ttds = [at(gavel, "ttd_h") / at(policy, "ttd_h") for policy in (paper, "hadar")]
        jct_h = {entry.policy: at(entry.policy, "mean_jct_h") for entry in group.done}
        over = [(gavel, paper), (gavel, "hadar"), ("yarn-cs", "hadar")]
        yield (
            str(group.labels["trace"]) if load is None else f"{load:g} % load",
            *(f"{gain:.2f}x" for gain in (*ttds, at(gavel, "ttd_over_bound"))),
            *(f"{jct_h[p] / jct_h[q]:.2f}x" if p in jct_h else "-" for p, q in over),
            *(_change(at(gavel, of), at("hadar", of)) for of in ("queueing_h", "mean_ftf")),
        )


def _paper_notes(groups: Sequence[ComparableRuns]) -> list[Note]:
    compared = _with_policies(groups, "hadar", "hadar-paper", "gavel-max-min")
    if not compared:
        return [Note("Hadar", ("Run hadar, hadar-paper and gavel-max-min to compare them.",))]
    most = [_mean(group, "gavel-max-min", "ttd_over_bound") for group in compared]
    gains = [_mean(g, "gavel-max-min", "ttd_h") / _mean(g, "hadar", "ttd_h") for g in compared]
    reach = (
        f"here {PAPER_TTD:.2f}x is more than any schedule can reach in "
        f"{sum(m < PAPER_TTD for m in most)} of {len(most)} settings"
    )
    claim = (
        f"Paper: TTD {PAPER_TTD:.2f}x better than Gavel (arXiv 2503.10918, abstract); mean JCT "
        f"{PAPER_JCT_GAVEL:g}x better than Gavel and {PAPER_JCT_YARN:g}x than a YARN-based "
        "manager, queueing delay 13 % lower, finish-time fairness 1.5 % better (IPDPS 2024, "
        "abstract). Here, against Gavel's max-min in the same simulator, each move costing "
        f"{_PAPER_RESTART_S:g} s: TTD {min(gains):.2f}x to {max(gains):.2f}x better with hadar, "
        "the default policy. hadar-paper is our reconstruction of the paper's form. The last two "
        "columns are changes from Gavel to hadar; negative is better."
    )
    why = (
        "Why it differs: a TTD cannot be better than the linear program's bound, and the column "
        f"'most possible' is Gavel's TTD over that bound: {reach}. On a full cluster Gavel also "
        "keeps all GPUs busy; on a nearly empty one the longest job decides, and no scheduler can "
        "shorten it. A gain is possible between, or against a weaker objective of Gavel's; the "
        "abstracts name neither the load nor the objective. Jobs, cluster and restart cost here "
        "are a reconstruction: the paper's own were not available."
    )
    return [Note("Hadar against the paper", (claim, why), tuple(_paper_table(compared)))]


def _change(before: float, after: float) -> str:
    """Return the change of a figure in per cent."""
    return f"{100.0 * (after / before - 1.0):+.0f} %" if before > 0 else "-"


def _mixes(name: str, title: str, draw: Callable[[int, Random], list[JobSpec]]) -> Scenario:
    cells = partial(_mix_cells, draw)
    return Scenario(
        name,
        title=title,
        cells=cells,
        notes=_mix_notes,
        series=_mix_series,
        num_plotted=0,
        charted=3,
    )


def _generality_cells(choices: Overrides, table: ThroughputTable) -> list[Cell]:
    seeds, loads, first = choices.seeds, choices.loads, choices.first
    ours = generality.generated(table, seeds=seeds, loads=loads, first=first)
    workloads = [
        replace(each, workload=jobs)
        for each in [*ours, *choices.workloads]
        for jobs in with_limits(each.workload, each.cluster, choices.limits, seeds)
    ]
    adjusts = choices.adjusts_limits
    return generality.cells(
        workloads, choices.policies, choices.sizes or (ORACLE,), adjusts_limits=adjusts
    )


def _liars_cells(choices: Overrides, table: ThroughputTable) -> list[Cell]:
    return liars.cells(table, seeds=choices.seeds, policies=choices.policies)


_SCENARIOS = (
    Scenario(
        name="hadar480",
        title="After Hadar's simulation: 480 jobs on 60 GPUs",
        cells=_paper_cells,
        notes=_paper_notes,
        series=load_series,
    ),
    _mixes("hadare-mixes", "After HadarE's mixes: M-1 to M-12 on five unequal nodes", mix),
    _mixes("hadare-even-mixes", "Mixes M-1 to M-12 of more equal jobs", even_mix),
    Scenario(
        name="generality",
        title="Generality: families of workloads, and ratios to the best peer",
        cells=_generality_cells,
        notes=generality.notes,
        series=load_series,
        num_plotted=0,
        takes_lists=True,
        tree=generality.tree,
    ),
    Scenario(
        name="liars",
        title="Liars: what false claims gain, and what honest users lose by them",
        cells=_liars_cells,
        notes=liars.notes,
        series=lambda _: [],
        num_plotted=0,
        tree=liars.tree,
    ),
)
SCENARIOS: Mapping[str, Scenario] = {scenario.name: scenario for scenario in _SCENARIOS}
