"""Make benchmarks/results/generality.md: every policy on workloads of many families.

    python benchmarks/generality.py               # runs `hadar compare --scenario generality`
    python benchmarks/generality.py --write-only  # only writes the page from finished runs
    python benchmarks/generality.py --sizes learned,prior --limits 5x,40%  # limits, not sizes

With `--sizes` the page is `benchmarks/results/generality-sizes.md`. The workloads are the generated
ones and those of `generality.yaml`, whose data lie in `../shared/data` beside the checkout.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from results import ROOT, make, note_lines, origin

PAGES = ROOT / "benchmarks" / "results"
COMMAND = "--scenario generality benchmarks/generality.yaml"
_HEADER = """\
# How hadar generalises

Every policy on workloads of many families: four generators at two loads, means over two seeds,
and the traces of `benchmarks/generality.yaml`. A ratio is a figure over that of the best of `srsf`,
`hlas`, `las` and `gavel-max-min` in the same run. Made by `python benchmarks/generality.py{how}`.
"""


def page(folder: Path, how: str = "") -> str:
    """Return the page, from the results in a folder; `how`: the options of the runs."""
    tree = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    lines = [_HEADER.format(how=how)]
    for note in tree["notes"]:
        lines += [f"## {note['heading']}", "", *note_lines(note)]
    lines += [origin(tree["runs"]), "", "```", f"hadar compare {COMMAND}{how}", "```", ""]
    return "\n".join(lines)


def main() -> None:
    """Run the scenario, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", type=Path, help="keeps all runs")
    parser.add_argument("--sizes", help="as of hadar compare")
    parser.add_argument("--limits", help="as of hadar compare")
    parser.add_argument("--policy", help="as of hadar compare")
    parser.add_argument("--jobs-at-once", type=int, help="runs at a time, one a processor if unset")
    parser.add_argument("--write-only", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    given = ((name, getattr(arguments, name)) for name in ("sizes", "limits", "policy"))
    how = "".join(f" --{name} {value}" for name, value in given if value)
    name = "generality-sizes" if arguments.sizes else "generality"
    folder = arguments.work or ROOT / "results-output" / name
    if not arguments.write_only:
        make(COMMAND + how, folder, "", arguments.jobs_at_once)
    path = PAGES / f"{name}.md"
    path.write_text(page(folder, how), encoding="utf-8")
    print(f"wrote {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
