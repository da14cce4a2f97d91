"""Make benchmarks/results/generality.md: every policy on workloads of many families.

    python benchmarks/generality.py               # runs `hadar compare --scenario generality`
    python benchmarks/generality.py --write-only  # only writes the page from finished runs

The workloads are the generated ones and those of `generality.yaml`, whose data lie in
`../shared/data` beside the checkout.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from results import ROOT, make, note_lines, origin

PAGE = ROOT / "benchmarks" / "results" / "generality.md"
COMMAND = "--scenario generality benchmarks/generality.yaml"
_HEADER = """\
# How hadar generalises

Every policy on workloads of many families: four generators at two loads, means over two seeds,
and the traces of `benchmarks/generality.yaml`. A ratio is a figure over that of the best of `srsf`,
`hlas`, `las` and `gavel-max-min` in the same run. Made by `python benchmarks/generality.py`.
"""


def page(folder: Path) -> str:
    """Return the page, from the results in a folder."""
    tree = json.loads((folder / "compare.json").read_text(encoding="utf-8"))
    lines = [_HEADER]
    for note in tree["notes"]:
        lines += [f"## {note['heading']}", "", *note_lines(note)]
    lines += [origin(tree["runs"]), "", "```", f"hadar compare {COMMAND}", "```", ""]
    return "\n".join(lines)


def main() -> None:
    """Run the scenario, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = ROOT / "results-output" / "generality"
    parser.add_argument("--work", type=Path, default=folder, help="keeps all runs")
    parser.add_argument("--jobs-at-once", type=int, help="runs at a time, one a processor if unset")
    parser.add_argument("--write-only", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    if not arguments.write_only:
        make(COMMAND, arguments.work, "", arguments.jobs_at_once)
    PAGE.write_text(page(arguments.work), encoding="utf-8")
    print(f"wrote {PAGE}", file=sys.stderr)


if __name__ == "__main__":
    main()
