"""Make benchmarks/results/full.md: run the comparisons it shows, and write the tables.

    python benchmarks/results.py                 # everything: hours on a small machine
    python benchmarks/results.py peers mixes     # these parts; the others keep what they have
    python benchmarks/results.py --write-only    # no runs: write the page from what is there

Traces and tables of others are read from `--data`, by default ../shared/data beside the checkout;
below it, in artifacts/sia and artifacts/sia8, what benchmarks/sia/as_trace.py makes of Sia's
artifact (benchmarks/sia/README.md), and in artifacts/shockwave traces and throughputs of
Shockwave's, named by their numbers of jobs and seeds.
Every part is one or more `hadar compare` commands, shown with its tables. They are resumable, so an
interrupted part goes on where it stopped, and a part whose code has not changed costs nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from beside_plain import compared, section

from hadar_slurm.lab.study.gains.pairs import PLAIN_SLURMS
from hadar_slurm.lab.study.summary import ComparableRuns, PolicyRecords, groups

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "benchmarks" / "results" / "full.md"

# What Gavel's own simulator calls the policies, and the greedy references measured beside it.
PEERS = {
    "gavel-max-min": "gavel/max_min_fairness_perf",
    "gavel-makespan": "gavel/min_total_duration_perf",
    "gavel-max-sum": "gavel/max_sum_throughput_perf",
    "gavel-fifo": "gavel/fifo_perf",
    "srsf": "greedy/srsf",
    "las": "greedy/las",
}
SHORT = ("ttd_h", "ttd_over_bound", "mean_jct_h", "mean_jct_over_bound", "p95_jct_h", "moves")
FULL = (
    "ttd_h", "ttd_over_bound", "mean_jct_h", "mean_jct_over_bound", "p50_jct_h", "p95_jct_h",
    "p99_jct_h", "queueing_h", "max_wait_h", "mean_ftf", "max_ftf", "utilization", "cru", "moves",
    "decision_ms_p50", "decision_ms_p99", "cpu_s",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """A section of the page."""

    name: str
    heading: str
    # The text before the tables.
    words: str
    # Every `hadar compare`: the folder of its results, and its arguments.
    runs: Mapping[str, str]
    # The columns of the tables.
    columns: tuple[str, ...] = SHORT
    has_peers: bool = False
    # Notes, such as a scenario's, instead of a table for each setting.
    has_notes: bool = False
    # Whether hadar's gains and losses beside plain Slurm come first.
    is_beside_plain: bool = False


_CLUSTER = "--cluster 20xV100,20xP100,20xK80 --gpus-per-node 4"
_TABLE = "--throughputs {data}/gavel_simulation_throughputs.json"
# hadar-paper solves an integer program a round, and hadare needs the settings of its own parts.
_MOST = (
    "--policy hadar,gavel-max-min,gavel-makespan,gavel-max-sum,gavel-ftf,gavel-fifo,tiresias,"
    "yarn-cs,srsf,las"
)

_STATIC = f"{{data}}/hadar480_static.trace {_TABLE} {_CLUSTER}"
_PRODUCTION = "{data}/elasticflow_cluster03.csv --cluster 80xV100,80xP100,80xK80 --gpus-per-node 8"
_LARGE = f"generate:hadar15000 {_CLUSTER} --load 90 --policy"

# hadar where nothing can move and where all can, and plain Slurm by how users choose types.
_PLAINLY = f"--policy {','.join(('hadar', *PLAIN_SLURMS))}"
_BESIDE = f"{_PLAINLY} --movable 0,100"

# A site's first day, with three samples of nine tenths of the jobs of a window.
_DAY_ONE = (
    f"--gpus-per-node 8 --load 85 {_PLAINLY} "
    "--sizes learned,limit --movable 0 --leave-out 10 --seed 0,1,2"
)
_OLDER = "--cluster 64xA100,64xV100,96xRTX2080Ti --throughputs {data}/dayone/older_throughputs.json"
_MODERN = (
    "--cluster 32xH100,64xA100,64xL40S,96xT4 "
    "--throughputs {data}/generality/modern_throughputs.json"
)

_SIA, _SHOCKWAVE = "{data}/artifacts/sia", "{data}/artifacts/shockwave"
_ON_SIA = (
    f"--cluster {_SIA}/cluster.yaml --throughputs {_SIA}/throughputs.json --restart-seconds sia"
)
_LEARNED = f"{_BESIDE} --sizes learned --limits 5x,40% --seed 0"

PARTS: tuple[Part, ...] = (
    Part(
        "day-one",
        "On a site's first day",
        "What a site has on the day on which it begins: no job can be moved, and of sizes time "
        "limits are known, without a history to learn from; throughputs are known. Windows of "
        "public production traces: arrivals, gangs and durations are real, users, classes and "
        "limits are drawn (cluster03 has no users, so that plain Slurm goes by age there, which "
        "is weaker than by users; its limits are 5 times too long, 40 % of them the longest). "
        "Plain Slurm is what a real slurmctld does, with users who choose types in four ways "
        "([policies.md](../../docs/policies.md#slurm)). Each is played three times, each time "
        "without another tenth of the jobs. *History* are sizes learned from the jobs that end. "
        "The plan by insertion was chosen on ef01, ef06 and philly1, the beliefs of sizes and what "
        "a wait counts on openb too, the latter on cluster03 as well, which judges all else. Jobs "
        "that limits end count as done there.",
        {
            f"day-one-{name}": f"{words} {_DAY_ONE}"
            for name, words in (
                ("ef01", f"{{data}}/dayone/ef01.sacct {_MODERN}"),
                ("ef06", f"{{data}}/dayone/ef06.sacct {_OLDER}"),
                ("philly1", f"{{data}}/dayone/philly1.sacct {_OLDER}"),
                ("openb", f"{{data}}/dayone/openb.sacct {_MODERN}"),
                (
                    "cluster03",
                    "{data}/elasticflow_cluster03.csv --cluster 80xV100,80xP100,80xK80 "
                    "--first 600 --limits 5x,40%",
                ),
            )
        },
        columns=(
            "ttd_h",
            "mean_jct_h",
            "p99_jct_h",
            "p99_slowdown",
            "max_user_slowdown",
            "max_wait_h",
            "killed",
            "killed_share",
        ),
        is_beside_plain=True,
    ),
    Part(
        "plain",
        "Beside plain Slurm",
        "Plain Slurm is what a real slurmctld does, with users who choose types in four ways "
        "([policies.md](../../docs/policies.md#slurm)); the strongest counts, figure by figure. "
        "Throughputs are known to both, to the users too; a move costs 30 s. The jobs have no "
        "users, so that age decides on the priority. They have no time limits "
        "either: those of plain Slurm are exact, the time on the slowest type that the job may "
        "have, and hadar knows all sizes, so that a site without them gains less. The tables "
        "further down had rows of the former policy `slurm` (FIFO with one reservation, no "
        "priorities, no choice of types), which are gone.",
        {"plain": f"{{data}}/hadar480_load90.trace {_TABLE} {_CLUSTER} {_BESIDE}"},
        columns=(*SHORT[:-1], "p99_jct_h", "max_wait_h", "moves"),
        is_beside_plain=True,
    ),
    Part(
        "artifacts",
        "Workloads of Sia's and Shockwave's artifacts",
        "Sia's newtrace, ten of 960 jobs in two days, "
        "and its saturn workload 1 with each job eight times on eight times the nodes, on its own "
        "cluster with its measured throughputs (SOSP'23, siasosp23/artifacts, by "
        "benchmarks/sia/as_trace.py); and Shockwave's of 460 and 900 jobs (NSDI'23, "
        "uw-mad-dash/shockwave), on as many GPUs as there, but of three types. Batch sizes are "
        "fixed, there are no users, so that age decides on plain Slurm's priority, and time limits "
        "are drawn: 5 times too long, 40 % of them the longest. Sizes are learned from the jobs "
        "that end. newtrace offers more work than its cluster can do while jobs come, so that "
        "waits decide there. No policy was chosen on any of them.",
        {
            "artifacts-newtrace": " ".join(
                (*(f"{_SIA}/newtrace{n}.trace" for n in range(1, 11)), _ON_SIA, _LEARNED)
            ),
            "artifacts-scale": f"{_SIA}8/scale_8x1.trace {_ON_SIA.replace(_SIA, _SIA + '8')} "
            f"{_LEARNED}",
            **{
                f"artifacts-shockwave-{name}": f"{_SHOCKWAVE}/{name}.trace --cluster {cluster} "
                f"--gpus-per-node 4 --throughputs {_SHOCKWAVE}/tacc_throughputs.json --load 85 "
                f"{_LEARNED}"
                for name, cluster in (
                    ("460_100", "44xV100,44xP100,40xK80"),
                    ("900_100", "88xV100,88xP100,80xK80"),
                    ("900_1000", "88xV100,88xP100,80xK80"),
                )
            },
        },
        columns=(*SHORT[:-1], "p99_slowdown", "max_wait_h", "killed", "killed_share", "moves"),
        is_beside_plain=True,
    ),
    Part(
        "peers",
        "Under Gavel's rules, beside Gavel's own simulator",
        "Moves are free, a round ends with its last job, a gang has one GPU type and is as fast "
        "over several nodes as on one. The last columns have what Gavel's unmodified simulator "
        "gives for the same policy on the same trace (`peer_results.csv`), and by how much ours "
        "differs: that is how faithful the simulator is.",
        {
            f"peers-{trace}-{first}": f"{{data}}/{trace}.trace {_TABLE} {_CLUSTER} {_MOST} "
            f"--rules gavel --first {first} --restart-seconds 0"
            for trace, first in (
                *(("hadar480_static", first) for first in (480, 240, 120)),
                *((name, 480) for name in ("hadar480_burst", "hadar480_load90", "gavel480_static")),
            )
        },
        has_peers=True,
    ),
    Part(
        "restart",
        "What moving costs",
        "Under our rules: exact ends, GPUs used again at once, gangs over several nodes at their "
        "own speed, and a restart for every move. A policy that moves jobs freely pays here.",
        {
            "restart": "{data}/hadar480_static.trace {data}/hadar480_load90.trace "
            f"{_TABLE} {_CLUSTER} {_MOST} --restart-seconds 0,10,30,60",
            "restart-hadar": "{data}/hadar480_burst.trace {data}/gavel480_static.trace "
            f"{_TABLE} {_CLUSTER} --policy hadar --restart-seconds 0,30",
            **{
                f"restart-hadar-{first}": f"{_STATIC} --first {first} --policy hadar "
                "--restart-seconds 0,30"
                for first in (240, 120)
            },
        },
    ),
    Part(
        "speeds",
        "When the speeds are not known",
        "The policy sees no rate: it begins with what data sheets say of the GPU types and, where "
        "it is `learned`, measures what jobs do, with 5 % of noise; `prior` never measures, `none` "
        "takes all types to be alike; without a word it is the oracle that knows all "
        "([speeds.md](../../docs/speeds.md)). Steps are known, and on which types a job trains "
        "at all. A move costs 30 s.",
        {
            f"speeds-{trace}": f"{{data}}/{trace}.trace {_TABLE} {_CLUSTER} --policy hadar "
            "--speeds oracle,learned,prior,none"
            for trace in ("hadar480_load90", "hadar480_static")
        },
    ),
    Part(
        "paper",
        "The paper's form beside ours",
        "`hadar-paper` solves an integer program in each round, with prices that rise with use; "
        "`hadar` takes its prices from a linear program over all jobs. A move costs 30 s.",
        {"paper": f"{_STATIC} --first 120 --policy hadar,hadar-paper,gavel-max-min,srsf"},
        columns=FULL,
    ),
    Part(
        "load",
        "From an idle cluster to an overfull one",
        "The jobs of hadar480_load90 with their arrivals scaled; at 100 % work comes as fast as "
        "the cluster could do it at best. A move costs 30 s.",
        {
            "load": f"{{data}}/hadar480_load90.trace {_TABLE} {_CLUSTER} {_MOST} "
            "--load 50,70,90,110,130"
        },
    ),
    Part(
        "seeds",
        "Other seeds of the same generator",
        "Figures that hold on one file may be luck. Means over five other workloads.",
        {"seeds": f"generate:hadar480 {_CLUSTER} {_MOST} --seed 0,1,2,3,4"},
    ),
    Part(
        "forking",
        "Jobs in copies on several nodes",
        "120 jobs leave many of the 60 GPUs without work unless jobs are forked; `hadare` forks, "
        "and its TTD stands beside the bound that allows it. A restart costs 10 s, making copies "
        "one 10 s a round.",
        {
            "forking": f"{_STATIC} --first 120 "
            "--policy hadare,hadar,gavel-max-min,gavel-makespan,srsf --restart-seconds 10"
        },
        columns=FULL,
    ),
    Part(
        "mixes",
        "After HadarE's mixes",
        "",
        {"mixes": "--scenario hadare-mixes", "even-mixes": "--scenario hadare-even-mixes"},
        has_notes=True,
    ),
    Part(
        "hadar480",
        "After Hadar's simulation",
        "With the first 240 of its 480 jobs: `hadar-paper` alone takes an hour over all of them at "
        "once.",
        {"hadar480": "--scenario hadar480 --first 240"},
        has_notes=True,
    ),
    Part(
        "production",
        "Two months of a production cluster",
        "ElasticFlow's cluster03: 3,011 training jobs with gangs of up to 64 GPUs, on 240 GPUs. "
        "`hadar-paper` lists hundreds of ways to place a gang of 64 and solves a program over all "
        "of them every round, so it is shown with rounds of an hour, beside `hadar` at the same.",
        {
            "production": f"{_PRODUCTION} {_MOST},hadare",
            "production-paper": f"{_PRODUCTION} --policy hadar,hadar-paper --round-seconds 3600",
        },
        columns=FULL,
    ),
    Part(
        "large",
        "Fifteen thousand jobs",
        "Thirty times the workload on the same cluster at 90 % load: what a simulation of this "
        "size takes.",
        {
            "large": f"{_LARGE} hadar,srsf,tiresias",
            "large-gavel": f"{_LARGE} gavel-max-min",
        },
        columns=FULL,
    ),
)


def command(words: str, data: str) -> list[str]:
    """Return the words of a run's command."""
    return ["hadar", "compare", *shlex.split(words.format(data=data))]


def make(arguments: str, output: Path, data: str, processes: int | None) -> None:
    """Run a comparison; what fails in it is in its files."""
    words = [sys.executable, "-m", "hadar_slurm.cli.main", *command(arguments, data)[1:]]
    words += ["--output", str(output)]
    words += ["--jobs-at-once", str(processes)] if processes else []
    print(shlex.join(words), file=sys.stderr)
    subprocess.run(words, check=False, stdout=subprocess.DEVNULL)


def page(work: Path, data: str) -> str:
    """Return the text of benchmarks/results/full.md from the files in `work`.

    A part of which there is no file keeps what the page says of it.
    """
    before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    old = {text.partition("\n")[0]: f"## {text}" for text in before.split("\n## ")[1:]}
    parts = [
        old[part.heading].rstrip("\n") + "\n"
        if part.heading in old
        and not any((work / folder / "compare.json").exists() for folder in part.runs)
        else _part(part, work, data)
        for part in PARTS
    ]
    return "\n".join([_OPENING, *parts])


_OPENING = """\
# Results

What each policy does with the same jobs, beside what no schedule could beat. Made by `python
benchmarks/results.py` from the commands shown; [compare.md](../../docs/compare.md) says what the
columns and the bounds are. Times are in hours, **bold** is the best of a column. TTD is the time
from the first submission to the last end, JCT a job's time from submission to end.

Figures are simulations with published speeds of single workloads. They say how policies compare on
these jobs, not how long a job takes on your cluster.

Each table says when it was made. In those of 2026-11-21 `hadar` does not yet share GPU types out by
comparative advantage where nearly all jobs can run ([policies.md](../../docs/policies.md)). Under
our rules that took the mean JCT on hadar480_load90 from 31.2 to 28.3 h and moves from 4,083 to
1,153, with the same TTD, and changed the others of these traces by less than 0.4 %.
"""


def _part(part: Part, work: Path, data: str) -> str:
    lines = [f"## {part.heading}", ""]
    lines += [wrapped(part.words), ""] if part.words else []
    trees: dict[str, Any] = {
        folder: json.loads(path.read_text(encoding="utf-8"))
        for folder in part.runs
        if (path := work / folder / "compare.json").exists()
    }
    if part.is_beside_plain:
        rows = [row for tree in trees.values() for row in compared(tree["runs"], tree["gains"])]
        lines += [*section(rows), ""] if rows else []
    if 0 < (missing := len(part.runs) - len(trees)) < len(part.runs):
        lines += [f"Of {len(part.runs)} comparisons {missing} are not run yet.", ""]
    for folder, words in part.runs.items():
        lines += ["```", shlex.join(command(words, data)), "```", ""]
        if folder in trees:
            lines += _run(trees[folder], part, data)
        else:
            lines += ["Not run yet.", ""]
    return "\n".join(lines)


def _run(tree: Mapping[str, Any], part: Part, data: str) -> list[str]:
    """Return the tables of one comparison, or its notes, and when it was made."""
    lines: list[str] = []
    if part.has_notes:
        for note in tree["notes"]:
            lines += note_lines(note)
    else:
        for group in groups(tree["runs"]):
            lines += _group(group, part, data)
    return [*lines, origin(tree["runs"]), ""]


def _group(group: ComparableRuns, part: Part, data: str) -> list[str]:
    columns = [c for name in part.columns for c in group.columns if c.name == name]
    columns += [c for c in group.columns if c.name.startswith("held_") and part.columns is FULL]
    best = {column.name: group.best(column) for column in columns}
    peers = _peers(group, data) if part.has_peers else {}
    head = ["policy", *(column.heading for column in columns)]
    head += ["Gavel's TTD", "ours differs", "Gavel's JCT", "ours differs"] if peers else []
    rows = [head]
    for entry in group.entries:
        if not entry.records:
            rows.append([entry.policy, f"failed: {entry.failed[0]['error']}"])
            continue
        row = [entry.policy + (f" ({entry.status})" if entry.status else "")]
        for column in columns:
            text = column.text(entry.mean(column))
            row.append(f"**{text}**" if entry.policy in best[column.name] else text)
        rows.append([*row, *(_peer_cells(entry, peers.get(entry.policy)) if peers else [])])
    # Of a cluster's file the name.
    title = re.sub(r"\S*/(?=\S+\.yaml)", "", group.title)
    return [f"{title}.", "", *table(rows), ""]


def _peers(group: ComparableRuns, data: str) -> dict[str, tuple[float, float]]:
    path = Path(data) / "peer_results.csv"
    names = {theirs: ours for ours, theirs in PEERS.items()}
    with path.open(encoding="utf-8") as file:
        return {
            names[row["scheduler"]]: (float(row["ttd_h"]), float(row["mean_jct_h"]))
            for row in csv.DictReader(file)
            if row["trace"] == group.labels["trace"]
            and int(row["jobs"]) == group.labels["jobs"]
            and row["scheduler"] in names
        }


def _peer_cells(entry: PolicyRecords, peer: tuple[float, float] | None) -> list[str]:
    cells = []
    for name, theirs in zip(("ttd_s", "mean_jct_s"), peer or (), strict=False):
        ours = float(entry.records[0][name]) / 3600.0
        cells += [f"{theirs:.2f}", f"{100 * (ours / theirs - 1):+.2f} %"]
    return cells or [""] * 4


def note_lines(note: Mapping[str, Any]) -> list[str]:
    """Return the paragraphs and the table of a scenario's note."""
    paragraphs = [line for paragraph in note["paragraphs"] for line in (wrapped(paragraph), "")]
    return [*paragraphs, *table(note["table"]), ""]


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table; the first row is its head."""
    if not rows:
        return []
    width = len(rows[0])
    head, *body = (f"| {' | '.join([*row, *[''] * (width - len(row))])} |" for row in rows)
    return [head, "|---|" + "---:|" * (width - 1), *body]


def origin(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return when, on which machines and with which versions runs were made."""
    made = sorted(str(run["made"])[:10] for run in runs if "made" in run)
    machines = sorted({str(run["machine"]) for run in runs if "machine" in run})
    versions = sorted({f"{k} {v}" for run in runs for k, v in run.get("versions", {}).items()})
    return wrapped(f"*Made {days(made)} on {'; '.join(machines)}, with {', '.join(versions)}.*")


def days(made: Sequence[str]) -> str:
    """Return the first and the last of sorted dates."""
    return " to ".join(dict.fromkeys([made[0], made[-1]])) if made else "never"


def wrapped(words: str) -> str:
    """Return a paragraph in lines of 100 characters."""
    return textwrap.fill(words, 100, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    """Run what was asked for, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [part.name for part in PARTS]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(names)}")
    parser.add_argument("--data", default="../shared/data", help="where others' traces lie")
    parser.add_argument("--work", type=Path, default=ROOT / "results-output", help="keeps all runs")
    parser.add_argument("--jobs-at-once", type=int, help="runs at a time, one a processor if unset")
    parser.add_argument("--write-only", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.parts if name not in names]:
        parser.error(f"{', '.join(unknown)}: expected some of {', '.join(names)}")
    for part in PARTS:
        if not arguments.write_only and part.name in (arguments.parts or names):
            for folder, words in part.runs.items():
                make(words, arguments.work / folder, arguments.data, arguments.jobs_at_once)
    PAGE.write_text(page(arguments.work, arguments.data), encoding="utf-8")
    print(f"wrote {PAGE}", file=sys.stderr)


if __name__ == "__main__":
    main()
