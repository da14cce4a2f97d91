"""Make benchmarks/results/tuning.md: what 30 % more or less of each constant of `hadar` costs.

    python benchmarks/tuning.py                # every constant, about a quarter of an hour
    python benchmarks/tuning.py CRITICAL_SHARE # these; the page then has no others
    python benchmarks/tuning.py --work DIR     # keeps all runs, and goes on where it stopped

The constants are those of hadar_slurm/policies/hadar/tuning.py and the strictness of shares; the
workloads are such as chose none of them, but for those that the page names. Their data lie in
`--data`, by default ../shared/data beside the checkout. A ratio is the mean JCT (TTD, p99 of the
slow-down) with the changed constant over that with the constant as it is, in simulations of the
same jobs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from results import ROOT, table, wrapped
from rich.console import Console
from rich.progress import track

from hadar_slurm.lab.comparison import CompareOptions, cells_of, choices_by
from hadar_slurm.lab.study.compare import Cell, run_cell
from hadar_slurm.policies.hadar import tuning
from hadar_slurm.policies.policy import DEFAULT_USER_SHARES

PAGE = ROOT / "benchmarks" / "results" / "tuning.md"
CHANGES = (0.7, 1.3)
# Factors near 1: their distance from it is changed.
NEAR_ONE = ("STAYS",)
FIGURES = {"mean_jct_s": "mean JCT", "ttd_s": "TTD", "p99_slowdown": "p99 slow-down"}
# Not a ratio: the number of jobs that time limits end, over all workloads.
ENDED = "killed"
Figures = dict[str, float]
# The strictness of shares is an option, and no constant of the module.
SHARES = "DEFAULT_USER_SHARES"
_SIA = {
    "cluster": "{data}/generality/sia_cluster.yaml",
    "throughputs": "{data}/generality/sia_throughputs.json",
    "restart_seconds": "sia",
}
_NONE_MOVES = {"movable": "0", "sizes": "learned", "limits": "5x,40%"}
_MODERN = {
    "cluster": "16xH100,32xA100,32xL40S,48xT4",
    "gpus_per_node": 8,
    "throughputs": "{data}/generality/modern_throughputs.json",
    "leave_out_unfit": True,
    "sizes": "learned",
}
_OPTIONS = CompareOptions(
    cluster="20xV100,20xP100,20xK80",
    gpus_per_node=4,
    throughputs=None,
    reference="V100",
    gpu_speeds="",
    leave_out_unfit=False,
    rules="hadar",
    speeds="oracle",
    sizes=None,
    limits="",
    time_on=False,
    history="",
    adoption=None,
    movable=None,
    leave_out=0.0,
    round_seconds=360.0,
    restart_seconds=None,
    copies=None,
    aggregation_seconds=10.0,
)


@dataclass(frozen=True, slots=True)
class Judge:
    """A workload that chose no constant, and how it is played."""

    name: str
    trace: str
    options: Mapping[str, Any] = field(default_factory=dict)
    load: str | None = None
    seed: str | None = None

    def cell(self, data: Path) -> Cell:
        """Return its run under `hadar`."""
        put = {
            name: value.format(data=data) if isinstance(value, str) else value
            for name, value in self.options.items()
        }
        if "throughputs" in put:
            put["throughputs"] = Path(put["throughputs"])
        seed = self.seed or ("0" if "limits" in put else None)
        choices = choices_by("hadar", seed, self.load, None)
        trace = self.trace.format(data=data)
        (cell,) = cells_of(None, [trace], choices, Console(quiet=True), replace(_OPTIONS, **put))
        return cell


JUDGES = (
    *(
        Judge(f"sia_{name}, all movable", f"{{data}}/generality/sia_{name}.trace", _SIA)
        for name in ("saturn3", "saturn4", "philly2")
    ),
    *(
        Judge(
            f"sia_{name}, none movable",
            f"{{data}}/generality/sia_{name}.trace",
            _SIA | _NONE_MOVES,
        )
        for name in ("saturn4", "philly4")
    ),
    Judge("generate:sweeps480, all movable", "generate:sweeps480", seed="5", load="70"),
    *(
        Judge(
            f"openb, {share} % movable, sizes learned",
            "{data}/dayone/openb.sacct",
            _MODERN | {"movable": share},
            load="85",
        )
        for share in ("0", "30")
    ),
)


def constants() -> dict[str, float]:
    """Return the constants with their values."""
    found = {name: value for name, value in vars(tuning).items() if name.isupper()}
    return found | {SHARES: DEFAULT_USER_SHARES}


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a judge with one constant changed; "" for none."""

    judge: Judge
    data: Path
    constant: str = ""
    factor: float = 1.0

    @property
    def value(self) -> float:
        """Return the constant's value in this run, 0 where none is changed."""
        was = constants().get(self.constant, 0.0)
        near = float(self.constant in NEAR_ONE)
        return near + (was - near) * self.factor

    @property
    def key(self) -> str:
        """Return a name that no other run has."""
        return f"{self.judge.name}, {self.constant} {self.value:g}"

    def figures(self) -> Figures:
        """Return what it gives; a process makes one run at a time."""
        cell, known = self.judge.cell(self.data), constants()
        if self.constant == SHARES:
            cell = replace(cell, user_shares=self.value)
        elif self.constant:
            setattr(tuning, self.constant, self.value)
        try:
            record = run_cell(cell)
        finally:
            if self.constant in vars(tuning):
                setattr(tuning, self.constant, known[self.constant])
        if record["status"] != "done":
            raise RuntimeError(f"{self.key}: {record['error']}")
        return {name: float(record.get(name) or 0.0) for name in (*FIGURES, ENDED)}


def runs(names: Sequence[str], data: Path) -> Iterator[Run]:
    """Yield the runs with the constants as they are, then those with each one changed."""
    for judge in JUDGES:
        yield Run(judge, data)
    for name in names:
        for factor in CHANGES:
            for judge in JUDGES:
                yield Run(judge, data, name, factor)


def measured(wanted: Sequence[Run], work: Path | None, processes: int) -> dict[str, Figures]:
    """Return the figures of each run, of those kept in `work` without a run."""
    kept = work / "tuning.json" if work else None
    found: dict[str, Figures] = {}
    if kept and kept.exists():
        found = json.loads(kept.read_text(encoding="utf-8"))
    due = [run for run in wanted if run.key not in found]
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        results = pool.map(Run.figures, due)
        for run, figures in zip(
            due,
            track(results, "runs", total=len(due), console=Console(stderr=True)),
            strict=True,
        ):
            found[run.key] = figures
            if kept:
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return found


def ratios(found: Mapping[str, Figures], name: str, factor: float) -> dict[str, list[float]]:
    """Return by figure the ratio on each judge."""
    pairs = [
        (found[Run(judge, Path(), name, factor).key], found[Run(judge, Path()).key])
        for judge in JUDGES
    ]
    return {figure: [changed[figure] / was[figure] for changed, was in pairs] for figure in FIGURES}


def page(names: Sequence[str], found: Mapping[str, Figures]) -> str:
    """Return the page."""
    head = ["constant", "value", "changed to", *FIGURES.values(), "mean JCT, by workload"]
    rows = [[*head, "ended by limits"]]
    base = sum(found[Run(judge, Path()).key][ENDED] for judge in JUDGES)
    for name in names:
        for factor in CHANGES:
            each = ratios(found, name, factor)
            jct = each["mean_jct_s"]
            means = [f"{geometric_mean(values):.3f}" for values in each.values()]
            span = f"{min(jct):.3f} to {max(jct):.3f}"
            value = Run(JUDGES[0], Path(), name, factor).value
            ended = sum(found[Run(judge, Path(), name, factor).key][ENDED] for judge in JUDGES)
            row = [f"`{name}`", f"{constants()[name]:g}", f"{value:g}", *means, span, f"{ended:g}"]
            rows.append(row)
    changes = {
        name: max(
            (geometric_mean(ratios(found, name, by)["mean_jct_s"]) for by in CHANGES),
            key=lambda ratio: abs(math.log(ratio)),
        )
        for name in names
    }
    most = max(changes, key=lambda name: abs(math.log(changes[name])))
    words = wrapped(
        "What 30 % less or more of each constant costs (of STAYS: of its distance from "
        "1): ratios to the constant as it is, below 1 is better, geometric means over "
        "workloads that chose none of them, but for LAST_SHARE (saturn 3 and 4) and SPREAD_POWER "
        "(openb), one run of each; single ones scatter by 1 to 2 %. Time "
        f"limits end {base:g} jobs with the constants as they are; they count as done. Where a row "
        "has 1.000 only, nothing on these workloads depends on the constant. What each "
        "is, since when, and what chose it: hadar_slurm/policies/hadar/tuning.py. The mean JCT "
        f"changes most by {most}: to {changes[most]:.3f}. Made by `python benchmarks/tuning.py` on "
        f"{date.today().isoformat()}."
    )
    judges = wrapped("Workloads: " + "; ".join(judge.name for judge in JUDGES) + ".")
    return "\n".join(["# The constants of hadar", "", words, "", judges, "", *table(rows), ""])


def main() -> None:
    """Run all, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("constants", nargs="*", metavar="CONSTANT", help="default: all")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--work", type=Path, help="keeps all runs")
    parser.add_argument("--jobs-at-once", type=int, default=1, help="runs at a time")
    arguments = parser.parse_args()
    names = arguments.constants or [*constants()]
    if unknown := [name for name in names if name not in constants()]:
        sys.exit(f"{unknown[0]}: no constant; there are {', '.join(constants())}")
    wanted = [*runs(names, arguments.data)]
    found = measured(wanted, arguments.work, arguments.jobs_at_once)
    PAGE.write_text(page(names, found), encoding="utf-8")
    print(f"wrote {PAGE}", file=sys.stderr)


if __name__ == "__main__":
    main()
