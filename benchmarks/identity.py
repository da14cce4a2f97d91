"""How often a workload's identity groups jobs rightly, by the names that tools give them.

    python benchmarks/identity.py

For each way to name jobs: two works of one user, forty runs of each. A pair of runs of one work is
*joined* if both have the same workload, and a pair of runs of two works is *confused* if so. The
columns are the job's name alone, the identity, and its family, to which estimates fall back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from unit.jobspec.test_identity import NAMING

from hadar_slurm.core.throughput_model import Workload
from hadar_slurm.jobspec.identity import Shown, workload_of_shown

RUNS, WORKS = 40, ("align", "train")
WAYS: dict[str, Callable[[Shown], str]] = {
    "name alone": lambda shown: shown.name,
    "identity": workload_of_shown,
    "family": lambda shown: Workload("", workload_of_shown(shown)).family,
}


def shares(naming: Callable[[str, int], Shown], way: Callable[[Shown], str]) -> tuple[float, float]:
    """Return the shares of pairs that are joined and confused."""
    runs = [(work, way(naming(work, run))) for work in WORKS for run in range(RUNS)]
    pairs = list(combinations(runs, 2))
    same = [a[1] == b[1] for a, b in pairs if a[0] == b[0]]
    other = [a[1] == b[1] for a, b in pairs if a[0] != b[0]]
    return sum(same) / len(same), sum(other) / len(other)


def main() -> None:
    """Print the table of docs/speeds.md."""
    head = "".join(f" {way}: joined | confused |" for way in WAYS)
    print(f"| jobs by |{head}\n|---|{'--:|' * 2 * len(WAYS)}")
    for naming in NAMING:
        cells = [shares(naming, way) for way in WAYS.values()]
        numbers = "".join(f" {100 * a:.0f} % | {100 * b:.0f} % |" for a, b in cells)
        print(f"| {naming.__name__.replace('_', ' ')} |{numbers}")


if __name__ == "__main__":
    main()
