"""How policies generalise: workloads of many families, and every figure beside the best peer's.

A *ratio* is a policy's figure over that of the best peer on the same workload, means over the seeds
before the division; 1 equals the best peer, less is better. A *peer* is a simple or a published
policy that a new one should not lose to. A policy with a failed run on a workload has no figure
there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import geometric_mean

from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.lab.study.compare import Cell, ClusterWorkload, StudyWorkload, scale_to_load
from hadar_slurm.lab.study.experiment import ORACLE, ExperimentSettings
from hadar_slurm.lab.study.gains.pairs import PLAIN_SLURMS
from hadar_slurm.lab.study.summary import Column, ComparableRuns, Matrix, Note
from hadar_slurm.lab.traces.cluster import parse_cluster
from hadar_slurm.lab.traces.workload import GENERATORS, generate

PEERS = ("srsf", "hlas", "las", "gavel-max-min")
JUDGED = ("hadar",)
POLICIES = (*JUDGED, *PEERS, *PLAIN_SLURMS)
LOADS, SEEDS, NUM_JOBS = (70.0, 90.0), (0, 1), 480
CLUSTER, _GPUS_PER_NODE = "20xV100,20xP100,20xK80", 4
# Arrivals are scaled to the load; only the proportions of their gaps matter.
_ANY_GAP_S = 60.0

FIGURES = (
    "mean_jct_h", "p95_jct_h", "p99_jct_h", "ttd_h", "mean_slowdown", "p99_slowdown", "max_wait_h",
    "mean_user_slowdown", "max_user_slowdown",
)  # fmt: skip
# Those with a picture, and by which losses are listed.
MAIN = ("mean_jct_h", "ttd_h", "p99_slowdown")
_MOST_LOSSES = 8
# Ratios that look like 1 are no losses.
_EQUAL = 1.005


def generated(
    table: ThroughputTable,
    *,
    seeds: Sequence[int] | None,
    loads: Sequence[float] | None,
    first: int | None,
) -> Iterator[ClusterWorkload]:
    """Yield the jobs of every generator at every load (per cent), from every seed.

    Each has `NUM_JOBS` jobs or the `first` of them. Raises UsageError if the table lacks a model.
    """
    cluster = parse_cluster(CLUSTER, gpus_per_node=_GPUS_PER_NODE)
    for family in GENERATORS:
        for load in loads or LOADS:
            for seed in seeds or SEEDS:
                draw = Random(seed).random
                drawn = generate(family, NUM_JOBS, draw, table, mean_gap_s=_ANY_GAP_S)[:first]
                workload = StudyWorkload(
                    name=f"{family}{len(drawn)}",
                    specs=tuple(scale_to_load(drawn, cluster, load)),
                    load=load,
                    seed=seed,
                    family=family,
                )
                yield ClusterWorkload(workload=workload, cluster=cluster, cluster_name=CLUSTER)


def cells(
    workloads: Sequence[ClusterWorkload],
    policies: Sequence[str] | None,
    sizes: Sequence[str] = (ORACLE,),
    *,
    adjusts_limits: bool = False,
) -> list[Cell]:
    """Return the runs of every policy (None: `POLICIES`) on every workload, with such sizes."""
    return [
        Cell(
            workload=each.workload,
            cluster=each.cluster,
            cluster_name=each.cluster_name,
            policy=policy,
            settings=ExperimentSettings(sizes=known, adjusts_limits=adjusts_limits),
        )
        for each in workloads
        for known in sizes
        for policy in policies or POLICIES
    ]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure on one workload."""

    group: ComparableRuns
    column: Column
    # By policy, the mean over the seeds, in the column's unit.
    values: Mapping[str, float]
    # None where no peer has the figure, or where the best value is 0.
    best_peer: str | None

    def ratio(self, policy: str) -> float | None:
        """Return a policy's figure over the best peer's; None where one of them is unknown."""
        if self.best_peer is None or policy not in self.values:
            return None
        return self.values[policy] / self.values[self.best_peer]


@dataclass(frozen=True, slots=True)
class Ratios:
    """One figure of all policies on all workloads that have it."""

    column: Column
    policies: tuple[str, ...]
    rows: tuple[Row, ...]

    def mean(self, policy: str) -> float | None:
        """Return the geometric mean of a policy's ratios; None unless all are known and above 0."""
        ratios = [ratio for ratio, _ in self.ratios(policy)]
        return geometric_mean(ratios) if ratios and min(ratios) > 0 else None

    def worst(self, policy: str) -> tuple[float, Row] | None:
        """Return a policy's largest ratio and its row; None unless it has all ratios."""
        return max(self.ratios(policy), key=_ratio_of, default=None)

    def ratios(self, policy: str) -> list[tuple[float, Row]]:
        """Return a policy's ratios with their rows; none unless it has all of them."""
        compared = [row for row in self.rows if row.best_peer is not None]
        found = [(ratio, r) for r in compared if (ratio := r.ratio(policy)) is not None]
        return found if len(found) == len(compared) else []


def all_ratios(groups: Sequence[ComparableRuns]) -> list[Ratios]:
    """Return the figures in `FIGURES` that any workload has; families stay together."""
    families = list(dict.fromkeys(group.labels["family"] for group in groups))
    ordered = sorted(groups, key=lambda group: families.index(group.labels["family"]))
    policies = tuple(dict.fromkeys(entry.policy for g in groups for entry in g.entries))
    found = []
    for name in FIGURES:
        having = [(group, column) for group in ordered if (column := _column(group, name))]
        rows = tuple(row for group, column in having if (row := _row(group, column)).values)
        if rows:
            found.append(Ratios(rows[0].column, policies, rows))
    return found


def _row(group: ComparableRuns, column: Column) -> Row:
    whole = [entry for entry in group.done if not entry.failed]
    means = ((entry.policy, entry.mean(column)) for entry in whole)
    values = {policy: mean for policy, mean in means if mean is not None}
    peers = peers_of(values)
    best = min(peers, key=lambda policy: values[policy], default=None)
    return Row(group, column, values, best if best is not None and values[best] > 0 else None)


def _column(group: ComparableRuns, name: str) -> Column | None:
    """Return a column, with enough digits for ratios of short times; None if the group lacks it."""
    found = next((column for column in group.columns if column.name == name), None)
    return found and replace(found, digits=max(2, found.digits))


def judged_policies(groups: Sequence[ComparableRuns]) -> tuple[str, ...]:
    """Return the policies to be judged: those of `JUDGED` that ran, else all that are no peers."""
    ran = dict.fromkeys(entry.policy for group in groups for entry in group.entries)
    judged = tuple(policy for policy in ran if _base(policy) in JUDGED)
    return judged or tuple(policy for policy in ran if _base(policy) not in PEERS)


def peers_of(policies: Iterable[str]) -> list[str]:
    """Return the peers among policies, in the order of `PEERS`."""
    found = [policy for policy in policies if _base(policy) in PEERS]
    return sorted(found, key=lambda policy: PEERS.index(_base(policy)))


def _base(policy: str) -> str:
    """Return the name of a policy without the notes in brackets."""
    return policy.partition(" (")[0]


def notes(groups: Sequence[ComparableRuns]) -> list[Note]:
    """Return where each judged policy loses, worst first, and a table for each figure."""
    found, judged = all_ratios(groups), judged_policies(groups)
    if not judged or not any(row.best_peer for each in found for row in each.rows):
        words = f"Run a policy such as hadar, and one of {', '.join(PEERS)}, to compare them."
        return [Note("Generality", (words,))]
    told = [note for policy in judged for note in (_losses(policy, found), _whole(policy, found))]
    return [*told, *map(_table, found)]


def _losses(policy: str, found: Sequence[Ratios]) -> Note:
    """Return the worst ratios of a policy, of the figures in `MAIN`."""
    lost: list[tuple[float, Row]] = []
    for each in found:
        if each.column.name in MAIN:
            ratios = [(ratio, row) for row in each.rows if (ratio := row.ratio(policy)) is not None]
            worse = [pair for pair in ratios if pair[0] >= _EQUAL]
            lost += sorted(worse, key=_ratio_of, reverse=True)[:_MOST_LOSSES]
    headings = ", ".join(each.column.heading for each in found if each.column.name in MAIN)
    words = (
        "A ratio is the figure over that of the best peer on the same workload; below 1 is better. "
        + (
            f"The worst ratios, at most {_MOST_LOSSES} of each of {headings}:"
            if lost
            else f"No ratio of {headings} is above 1."
        )
    )
    head = ("workload", "figure", policy, "best peer", "its value", "ratio")
    rows = [_loss(policy, *pair) for pair in sorted(lost, key=_ratio_of, reverse=True)]
    return Note(f"Where {policy} loses", (words,), (head, *rows) if rows else ())


def _ratio_of(pair: tuple[float, Row]) -> float:
    return pair[0]


def _loss(policy: str, ratio: float, row: Row) -> tuple[str, ...]:
    assert row.best_peer is not None
    mine, best = (row.column.text(row.values[name]) for name in (policy, row.best_peer))
    workload, heading = _name(row.group), row.column.heading
    return workload, heading, mine, row.best_peer, best, f"{ratio:.2f}"


def _whole(policy: str, found: Sequence[Ratios]) -> Note:
    """Return a policy's ratios over all workloads, a row per figure."""
    head = ("figure", "workloads", "worse than the best peer", "mean ratio", "worst ratio", "on")
    rows = []
    for each in found:
        ratios, worst = each.ratios(policy), each.worst(policy)
        num_lost = sum(ratio >= _EQUAL for ratio, _ in ratios)
        texts = _ratio_text(each.mean(policy)), _ratio_text(worst and worst[0])
        on = _name(worst[1].group) if worst else "-"
        rows.append((each.column.heading, str(len(ratios)), str(num_lost), *texts, on))
    words = (
        "The mean is geometric. A workload counts where the best peer's value is above 0; nothing "
        f"is shown where a run of {policy} failed."
    )
    return Note(f"{policy} over all workloads", (words,), (head, *rows))


def _table(each: Ratios) -> Note:
    """Return a figure's values and ratios, with a picture for the figures in `MAIN`."""
    column, policies = each.column, each.policies
    rows = [(_name(row.group), *(_text(row, policy) for policy in policies)) for row in each.rows]
    means = tuple(_ratio_text(each.mean(p)) for p in policies)
    worsts = tuple(_ratio_text((worst := each.worst(p)) and worst[0]) for p in policies)
    words = f"{column.note} In brackets: the ratio to the best peer; the mean is geometric."
    note = Note(
        f"{column.heading}: beside the best peer",
        (words,),
        (("workload", *policies), *rows, ("mean ratio", *means), ("worst ratio", *worsts)),
    )
    return replace(note, matrix=_matrix(each)) if column.name in MAIN else note


def _matrix(each: Ratios) -> Matrix:
    ratios = tuple(tuple(map(row.ratio, each.policies)) for row in each.rows)
    return Matrix(
        heading=f"{each.column.heading} over that of the best peer",
        words="Blue is better than the best peer, red worse; the colour is full from 0.5 and 2 on.",
        rows=tuple(_name(row.group) for row in each.rows),
        columns=each.policies,
        values=ratios,
    )


def _text(row: Row, policy: str) -> str:
    if policy not in row.values:
        return "-"
    ratio = row.ratio(policy)
    return row.column.text(row.values[policy]) + ("" if ratio is None else f" ({ratio:.2f})")


def _ratio_text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def _name(group: ComparableRuns) -> str:
    """Return a workload's name in tables: family, trace and load."""
    family, trace, load = (group.labels[name] for name in ("family", "trace", "load"))
    name = str(trace) if str(family) in str(trace) else f"{family}: {trace}"
    return name if load is None else f"{name} at {load:g} %"


def tree(groups: Sequence[ComparableRuns]) -> dict[str, object]:
    """Return the figures and ratios as JSON; times in seconds, as in the runs (docs/compare.md)."""
    found = all_ratios(groups)
    ran = dict.fromkeys(entry.policy for group in groups for entry in group.entries)
    return {
        "generality": {
            "peers": peers_of(ran),
            "judged": judged_policies(groups),
            "workloads": [_workload_tree(group, found) for group in groups],
            "overall": {_key(each.column): _overall_tree(each) for each in found},
        }
    }


def _workload_tree(group: ComparableRuns, found: Sequence[Ratios]) -> dict[str, object]:
    names = ("family", "trace", "load", "cluster", "jobs")
    rows = [row for each in found for row in each.rows if row.group is group]
    return {
        "name": _name(group),
        **{name: group.labels[name] for name in names},
        "seeds": group.num_seeds,
        **({"killed": _killed(group)} if group.has_killed else {}),
        "figures": {
            _key(row.column): {
                "best_peer": row.best_peer,
                "values": {policy: _seconds(row.column, v) for policy, v in row.values.items()},
                "ratios": {policy: row.ratio(policy) for policy in row.values},
            }
            for row in rows
        },
    }


def _killed(group: ComparableRuns) -> dict[str, float | None]:
    """Return how many jobs their time limits ended, by policy; means over the seeds."""
    return {entry.policy: entry.mean(group.column("killed")) for entry in group.done}


def _overall_tree(each: Ratios) -> dict[str, object]:
    """Return a figure's ratios over all workloads, by policy."""
    tree: dict[str, object] = {}
    for policy in each.policies:
        worst = each.worst(policy)
        tree[policy] = {
            "mean_ratio": each.mean(policy),
            "worst_ratio": worst[0] if worst else None,
            "worst_workload": _name(worst[1].group) if worst else None,
        }
    return tree


def _key(column: Column) -> str:
    """Return a figure's name in the runs."""
    return column.source or column.name


def _seconds(column: Column, value: float) -> float:
    """Return a value in the unit of the runs."""
    return value * column.over / column.factor
