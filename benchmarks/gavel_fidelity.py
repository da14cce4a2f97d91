"""How close our Gavel policies come to Gavel's own simulator, row by row.

    python benchmarks/gavel_fidelity.py [--data ../shared/data] [--processes 2] [--json FILE]

Takes every row of peer_results.csv (what Gavel's unmodified simulator gave) whose policy we have,
replays it with `--rules gavel` and prints a table in Markdown. The last column says whether TTD is
within 1 % and mean JCT within 2 %; for the makespan policy mean JCT within 5 % where few jobs are
present (120 of them, or load90), since there nearly any shares reach its goal. The status is 1 if a
row is not within. All of it takes minutes; the smallest trace is in the test suite.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from hadar_slurm.lab.inputs import read_table
from hadar_slurm.lab.policies.gavel_rounds import Gavel
from hadar_slurm.lab.study.experiment import ExperimentSettings, run_experiment
from hadar_slurm.lab.traces.cluster import parse_cluster
from hadar_slurm.lab.traces.load import parse_gavel_trace

CLUSTER = "20xV100,20xP100,20xK80"
GPUS_PER_NODE = 4

# What Gavel's simulator calls our objectives.
OBJECTIVES = {
    "gavel/max_min_fairness_perf": "max-min",
    "gavel/min_total_duration_perf": "makespan",
    "gavel/max_sum_throughput_perf": "max-sum",
    "gavel/fifo_perf": "fifo",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A run of Gavel's simulator; times in hours."""

    trace: str
    jobs: int
    objective: str
    ttd_h: float
    mean_jct_h: float

    @property
    def most_off(self) -> tuple[float, float]:
        """Return by which share TTD and mean JCT may differ."""
        is_loose = self.objective == "makespan" and (self.jobs == 120 or "load90" in self.trace)
        return 0.01, 0.05 if is_loose else 0.02


@dataclass(frozen=True, slots=True)
class Match:
    """A row and what we get for it; differences as shares of Gavel's figure."""

    row: Row
    ttd_h: float
    mean_jct_h: float
    cpu_s: float

    @property
    def off(self) -> tuple[float, float]:
        """Return by which share TTD and mean JCT differ."""
        return self.ttd_h / self.row.ttd_h - 1.0, self.mean_jct_h / self.row.mean_jct_h - 1.0

    @property
    def is_within(self) -> bool:
        """Whether both are close enough."""
        return all(abs(off) <= most for off, most in zip(self.off, self.row.most_off, strict=True))


def rows(data: Path) -> Iterator[Row]:
    """Yield the rows of peer_results.csv whose policy we have."""
    with (data / "peer_results.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if objective := OBJECTIVES.get(row["scheduler"]):
                ttd_h, mean_jct_h = float(row["ttd_h"]), float(row["mean_jct_h"])
                yield Row(row["trace"], int(row["jobs"]), objective, ttd_h, mean_jct_h)


def replay(row: Row, data: Path) -> Match:
    """Return what our policy gives for a row, moves being free as in Gavel's simulator."""
    table = read_table(data / "gavel_simulation_throughputs.json")
    lines = (data / f"{row.trace}.trace").read_text(encoding="utf-8").splitlines()
    jobs = parse_gavel_trace(lines, table, row.trace, restart_cost_s=0.0)[: row.jobs]
    cluster = parse_cluster(CLUSTER, gpus_per_node=GPUS_PER_NODE)
    result = run_experiment(jobs, cluster, Gavel(row.objective), ExperimentSettings(rules="gavel"))
    return Match(row, result.ttd_s / 3600.0, result.mean_jct_s / 3600.0, result.cpu_s)


def as_markdown(match: Match) -> str:
    """Return a line of the table."""
    row, (ttd, jct) = match.row, match.off
    return (
        f"| {row.trace} | {row.jobs} | gavel-{row.objective} "
        f"| {match.ttd_h:.4f} | {row.ttd_h:.4f} | {100 * ttd:+.3f} % "
        f"| {match.mean_jct_h:.4f} | {row.mean_jct_h:.4f} | {100 * jct:+.3f} % "
        f"| {match.cpu_s:.1f} | {'yes' if match.is_within else 'NO'} |"
    )


def as_record(match: Match) -> Mapping[str, object]:
    """Return a match for the JSON file."""
    ttd, jct = match.off
    return {**asdict(match), "ttd_off": ttd, "mean_jct_off": jct, "is_within": match.is_within}


def main() -> int:
    """Replay all rows and print the table; return the process's status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there as well")
    arguments = parser.parse_args()
    head = "trace|jobs|policy|TTD h|Gavel's|off|mean JCT h|Gavel's|off|CPU s|ok".split("|")
    print(f"| {' | '.join(head)} |")
    print("|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---|")
    matches: list[Match] = []
    with ProcessPoolExecutor(arguments.processes) as pool:
        for match in pool.map(partial(replay, data=arguments.data), rows(arguments.data)):
            print(as_markdown(match), flush=True)
            matches.append(match)
    if arguments.json:
        text = json.dumps([as_record(match) for match in matches], indent=1)
        arguments.json.write_text(text + "\n", encoding="utf-8")
    return 0 if all(match.is_within for match in matches) else 1


if __name__ == "__main__":
    sys.exit(main())
