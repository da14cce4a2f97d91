"""What hadar gains over plain Slurm and loses to it: a section of the pages of results.

From the runs and gains that `hadar compare --json` writes. The opponent is the strongest of the
plain Slurms of the same jobs, figure by figure. Every row has what was known, what could move, and
the number of runs with their range, or the interval of one run (docs/compare.md).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Run = Mapping[str, object]

FIGURES = {
    "mean_jct_s": "mean JCT",
    "ttd_s": "TTD",
    "p99_slowdown": "p99 slow-down",
    "max_wait_s": "longest wait",
}
# Where jobs have users.
OF_USERS = {"max_user_slowdown": "worst user's slow-down"}
# What was known of sizes; learned: from jobs that have ended.
KNOWN = {"oracle": "true ones", "limit": "time limits", "learned": "history", "prior": "nothing"}
JUDGED, PLAIN = "hadar", "slurm"
HOUR_S = 3600.0
# A difference of less is none: the figures are shown with as many digits.
EVEN = 0.005


@dataclass(frozen=True, slots=True)
class Beside:
    """The runs of hadar on one workload, with what it knew and could move, beside plain Slurm."""

    workload: str
    known: str
    movable: str
    # By figure, means over the runs; times in seconds.
    ours: Mapping[str, float]
    # By name of the plain Slurm.
    plain: Mapping[str, Mapping[str, float]]
    num_runs: int
    # The least and the largest gain of the mean JCT, 0.12 for 12 % less; None where not known.
    between: tuple[float, float] | None = None

    def strongest(self, figure: str) -> str:
        """Return the plain Slurm with the least value."""
        return min(self.plain, key=lambda name: self.plain[name][figure])

    def ratio(self, figure: str) -> float:
        """Return hadar's value over that of the strongest plain Slurm; 1 where both are 0."""
        ours, theirs = self.ours[figure], self.plain[self.strongest(figure)][figure]
        return ours / theirs if theirs else math.inf if ours else 1.0


def compared(runs: Sequence[Run], gains: Sequence[Run]) -> list[Beside]:
    """Return the kinds of hadar on each workload, in the order of the runs."""
    done = [run for run in runs if run["status"] == "done"]
    kinds: dict[tuple[object, ...], list[Run]] = {}
    for run in done:
        if _name(run) == JUDGED:
            kind = workload_of(run), run["bare_policy"], run["sizes"], run.get("movable")
            kinds.setdefault(kind, []).append(run)
    return [
        Beside(
            workload=str(workload),
            known=KNOWN[str(sizes)],
            movable="all" if share in (None, 100.0) else f"{share:g} %",
            ours=means(ours),
            plain=plain,
            num_runs=len(ours),
            between=_between(ours, gains),
        )
        for (workload, _, sizes, share), ours in kinds.items()
        if (plain := plain_of(done, str(workload), str(sizes)))
    ]


def plain_of(
    runs: Iterable[Run], workload: str, sizes: str = "oracle"
) -> dict[str, dict[str, float]]:
    """Return the figures of the plain Slurms of a workload, by name, means over the seeds."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        # Where all jobs have limits, plain Slurm's runs are the same whatever hadar knows.
        sees = run["sizes"] in ("oracle", sizes)
        is_mine = workload_of(run) == workload and run["status"] == "done"
        if _name(run) == PLAIN and sees and is_mine:
            found.setdefault(str(run["bare_policy"]), []).append(run)
    return {name: means(each) for name, each in found.items()}


def means(runs: Sequence[Run]) -> dict[str, float]:
    """Return the means of the figures."""
    known = [*FIGURES, *(name for name in OF_USERS if all(run.get(name) for run in runs))]
    return {name: statistics.fmean(float(str(run[name])) for run in runs) for name in known}


def section(rows: Sequence[Beside]) -> list[str]:
    """Return the lines: how many lose, where hadar loses, then the mean JCT of all rows."""
    ordered = sorted(rows, key=lambda row: -row.ratio("mean_jct_s"))
    summary = [*_summary(ordered), ""] if len({row.workload for row in rows}) > 1 else []
    return [*summary, *_losses(ordered), "", *_gains(ordered)]


def _summary(rows: Sequence[Beside]) -> list[str]:
    lines = []
    for kind in dict.fromkeys((row.known, row.movable) for row in rows):
        ratios = [r.ratio("mean_jct_s") for r in rows if (r.known, r.movable) == kind]
        longer = sum(ratio > 1 + EVEN for ratio in ratios)
        mean = statistics.geometric_mean(ratios)
        lines.append(
            f"* Known of sizes: {kind[0]}; movable: {kind[1]}. The mean JCT of hadar is longer "
            f"than under the strongest plain Slurm on {longer} of {len(ratios)} workloads; "
            f"geometric mean {change(mean)}, worst {change(max(ratios))}, best "
            f"{change(min(ratios))}."
        )
    return lines


def _losses(rows: Sequence[Beside]) -> list[str]:
    """Return where hadar's figure is larger, the largest ratio first."""
    words = FIGURES | OF_USERS
    lost = [
        (row.ratio(figure), figure, row) for row in rows for figure in words if figure in row.ours
    ]
    lost = [each for each in lost if each[0] > 1 + EVEN]
    if not lost:
        return [f"Nowhere is a figure of hadar larger ({', '.join(FIGURES.values())})."]
    lines = [
        "| where hadar loses | known of sizes | movable | figure | hadar | plain Slurm | ratio |",
        "|---|---|---|---|--:|--:|--:|",
    ]
    for ratio, figure, row in sorted(lost, key=lambda each: -each[0]):
        name = row.strongest(figure)
        cells = (
            row.workload, row.known, row.movable, words[figure],
            shown(row.ours[figure], figure), f"{shown(row.plain[name][figure], figure)} `{name}`",
            f"{ratio:.2f}" if ratio < math.inf else "-",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _gains(rows: Sequence[Beside]) -> list[str]:
    lines = [
        "| workload | known of sizes | movable | mean JCT h, hadar | strongest plain Slurm | "
        "hadar is | between |",
        "|---|---|---|--:|--:|--:|---|",
    ]
    for row in rows:
        name = row.strongest("mean_jct_s")
        cells = (
            row.workload, row.known, row.movable, shown(row.ours["mean_jct_s"], "mean_jct_s"),
            f"{shown(row.plain[name]['mean_jct_s'], 'mean_jct_s')} `{name}`",
            change(row.ratio("mean_jct_s")), between(row),
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def between(row: Beside) -> str:
    """Return the range of the gain, and of how many runs it is."""
    runs = f"{row.num_runs} run{'s' if row.num_runs > 1 else ''}"
    if row.between is None:
        return runs
    least, most = row.between
    return f"{change(1 - least)} to {change(1 - most)}, {runs}"


def change(ratio: float) -> str:
    """Return a ratio as a change of a time."""
    per_cent = round(100 * abs(1 - ratio))
    return f"{per_cent} % {'shorter' if ratio <= 1 else 'longer'}" if per_cent else "the same"


def shown(value: float, figure: str) -> str:
    """Return a figure, times in hours."""
    return f"{value / HOUR_S:,.2f}" if figure.endswith("_s") else f"{value:,.1f}"


def _name(run: Run) -> str:
    """Return the name of a run's policy, whatever its words."""
    return str(run["bare_policy"]).partition(":")[0]


def workload_of(run: Run) -> str:
    """Return the name of a workload in tables: family, trace and load."""
    trace, family, load = str(run["trace"]), str(run.get("family") or ""), run.get("load")
    name = trace if family in trace else f"{family}: {trace}"
    return name if load is None else f"{name} at {load:g} %"


def _between(ours: Sequence[Run], gains: Sequence[Run]) -> tuple[float, float] | None:
    """Return the range of the gains of several runs, or the interval of one."""
    labels = ("trace", "load", "seed", "policy", "movable")
    mine = [
        gain
        for gain in gains
        if any(all(gain.get(name) == run.get(name) for name in labels) for run in ours)
    ]
    if len(mine) > 1:
        values = [float(str(gain["gain"])) for gain in mine]
        return min(values), max(values)
    interval = mine[0].get("interval") if mine else None
    if not isinstance(interval, Sequence):
        return None
    return float(interval[0]), float(interval[1])
