"""Make benchmarks/results/generality.md: every policy on workloads of many families.

    python benchmarks/generality.py               # runs `hadar compare --scenario generality`
    python benchmarks/generality.py --write-only  # only writes the page from finished runs
    python benchmarks/generality.py --only-plain  # runs plain Slurm alone, and keeps the others
    python benchmarks/generality.py --sizes learned,prior --limits 5x,40%  # limits, not sizes

With `--sizes` the page is `benchmarks/results/generality-sizes.md`. The workloads are the generated
ones and those of `generality.yaml`, whose data lie in `../shared/data` beside the checkout.

With `--only-plain` the page's section on plain Slurm is written again, with the figures of hadar
that the page has, and says the days of both; all else on the page stays.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from beside_plain import FIGURES, HOUR_S, KNOWN, Beside, compared, plain_of, section, workload_of
from results import ROOT, make, note_lines, origin, table, wrapped

from hadar_slurm.lab.study.gains.pairs import PLAIN_SLURMS

PAGES = ROOT / "benchmarks" / "results"
COMMAND = "--scenario generality benchmarks/generality.yaml"
_HEADER = """\
# How hadar generalises

Every policy on workloads of many families: four generators at two loads, means over two seeds,
and the traces of `benchmarks/generality.yaml`. A ratio is a figure over that of the best of `srsf`,
`hlas`, `las` and `gavel-max-min` in the same run. Made by `python benchmarks/generality.py{how}`.
"""
_BESIDE = "Beside plain Slurm"
_WORDS = (
    "Plain Slurm is what a real slurmctld does, with users who choose types in four ways "
    "([policies.md](../../docs/policies.md#slurm)); the strongest counts, figure by figure. "
    "Throughputs are known to all policies, and to the users who choose types. Jobs of these "
    "workloads have no users, so that age decides on plain Slurm's priority"
)
_EXACT = (
    ", and no time limits: those of plain Slurm are exact, the time on the slowest type that the "
    "job may have, and hadar knows all sizes. Every job can move, for a restart. So this is the "
    "best case of hadar: what a site gains without moves and without sizes is on "
    "[site_gains.md](site_gains.md)."
)
# The tables with the page's figures, in hours where times.
_TABLES = {
    "mean_jct_s": "mean JCT h",
    "ttd_s": "TTD h",
    "p99_slowdown": "p99 slow-down",
    "max_wait_s": "max wait h",
}


def page(folder: Path, how: str = "") -> str:
    """Return the page, from the results in a folder; `how`: the options of the runs."""
    tree = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    lines = [_HEADER.format(how=how), *_beside(compared(tree["runs"], tree["gains"]), tree)]
    for note in tree["notes"]:
        lines += [f"## {note['heading']}", "", *note_lines(note)]
    lines += [origin(tree["runs"]), "", "```", f"hadar compare {COMMAND}{how}", "```", ""]
    return "\n".join(lines)


def with_plain(kept: str, folder: Path) -> str:
    """Return the page `kept` with its section on plain Slurm made from the runs in `folder`."""
    tree = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    rows = []
    for workload, figures in kept_figures(kept).items():
        mine = [run for run in tree["runs"] if workload_of(run) == workload]
        if not (plain := plain_of(mine, workload)):
            sys.exit(f"{workload}: no run of plain Slurm")
        runs = len({run.get("seed") for run in mine})
        rows.append(Beside(workload, KNOWN["oracle"], "all", figures, plain, num_runs=runs))
    made = re.findall(r"\*Made ([\d-]+)", kept)[-1]
    words = (
        f"The figures of hadar are those of {made} in the tables below; those of plain Slurm are "
        "of the day at the end of this section."
    )
    head, _, rest = kept.partition("\n## ")
    sections = [each for each in rest.split("\n## ") if not each.startswith(_BESIDE)]
    beside = "\n".join(_beside(rows, tree, words)).removeprefix("## ")
    return "\n## ".join([head, beside, *sections])


def kept_figures(text: str) -> dict[str, dict[str, float]]:
    """Return hadar's figures of each workload on a page, times in seconds."""
    found: dict[str, dict[str, float]] = {}
    for figure, heading in _TABLES.items():
        part = text.partition(f"## {heading}: beside the best peer\n")[2].partition("\n## ")[0]
        for line in part.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if "(" in line and len(cells) > 2:
                value = float(cells[1].partition(" ")[0].replace(",", ""))
                unit = HOUR_S if heading.endswith(" h") else 1.0
                found.setdefault(cells[0], {})[figure] = value * unit
    return {name: figures for name, figures in found.items() if len(figures) == len(FIGURES)}


def _beside(rows: Sequence[Beside], tree: Mapping[str, Any], words: str = "") -> list[str]:
    """Return the section on plain Slurm: how it was made, losses, gains, and each plain Slurm."""
    exact = all(row.known == KNOWN["oracle"] for row in rows)
    told = [_WORDS + (_EXACT if exact else ", and have limits that are drawn."), words]
    lines = [f"## {_BESIDE}", ""]
    lines += [line for text in told if text for line in (wrapped(text), "")]
    lines += [*section(rows), ""]
    for figure, heading in _TABLES.items():
        cells = [["workload", *PLAIN_SLURMS]]
        for row in rows:
            over = HOUR_S if heading.endswith(" h") else 1.0
            found = (row.plain.get(name) for name in PLAIN_SLURMS)
            cells.append([row.workload, *(f"{v[figure] / over:,.2f}" if v else "-" for v in found)])
        lines += [f"Plain Slurm, {heading}:", "", *table(cells), ""]
    if words:
        policies = ",".join(dict.fromkeys(str(run["bare_policy"]) for run in tree["runs"]))
        lines += [origin(tree["runs"]), "", "```"]
        lines += [f"hadar compare {COMMAND} --policy {policies}", "```", ""]
    return lines


def main() -> None:
    """Run the scenario, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, help="keeps all runs")
    parser.add_argument("--sizes", help="as of hadar compare")
    parser.add_argument("--limits", help="as of hadar compare")
    parser.add_argument("--policy", help="as of hadar compare")
    parser.add_argument("--jobs-at-once", type=int, help="runs at a time, one a processor if unset")
    parser.add_argument("--write-only", action="store_true", help="run nothing")
    parser.add_argument("--only-plain", action="store_true", help="plain Slurm alone")
    arguments = parser.parse_args()
    policy = ",".join(PLAIN_SLURMS) if arguments.only_plain else arguments.policy
    given = {"sizes": arguments.sizes, "limits": arguments.limits, "policy": policy}
    how = "".join(f" --{name} {value}" for name, value in given.items() if value)
    name = "generality-sizes" if arguments.sizes else "generality"
    folder = arguments.work or ROOT / "results-output" / name
    if not arguments.write_only:
        make(COMMAND + how, folder, "", arguments.jobs_at_once)
    path = PAGES / f"{name}.md"
    kept = path.read_text(encoding="utf-8") if arguments.only_plain else ""
    path.write_text(with_plain(kept, folder) if kept else page(folder, how), encoding="utf-8")
    print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
