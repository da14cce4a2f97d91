"""Make benchmarks/results/field.md: the systems of the field on the same jobs and GPUs.

    python benchmarks/field.py                 # everything: half an hour on a small machine
    python benchmarks/field.py --only hlas     # runs of this policy alone, then the page
    python benchmarks/field.py --write-only    # no runs: write the page from what is there

Traces are read from `--data`, by default ../shared/data beside the checkout. What came of a run
lies in `--work` and is not made again; delete it after a change of the policy. A section of which a
run is missing there stays as the page has it, and so do those with what `benchmarks/hare.py` and
`benchmarks/sampling.py` printed, unless that is in hare.md and sampling.md there. Each section says
when it was made.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from results import days, wrapped

from hadar_slurm.lab.inputs import TraceOptions, read_cluster, read_table, read_workload
from hadar_slurm.lab.policies.predicting import Predicting
from hadar_slurm.lab.study.bounds import bounds
from hadar_slurm.lab.study.compare import FORKING
from hadar_slurm.lab.study.experiment import forked, run_experiment
from hadar_slurm.lab.study.gains.pairs import PLAIN_SLURMS
from hadar_slurm.lab.traces.restart import parse_restart_costs
from hadar_slurm.policies.registry import make_policy

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "benchmarks" / "results" / "field.md"
TRACES = ("hadar480_load90", "hadar480_static")
CLUSTER, GPUS_PER_NODE = "20xV100,20xP100,20xK80", 4
RESTART_S, AGGREGATION_S = 30.0, 10.0
ERRORS = (0.0, 0.2, 0.5, 1.0)
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Class:
    """Policies that know the same of the jobs."""

    title: str
    words: str
    policies: tuple[str, ...]


CLASSES = (
    Class(
        "Sizes known",
        "Each knows every job's steps and its speed on every GPU type. `gavel-makespan` looks at "
        "the last end only.",
        ("hadar", "srsf", "hare-offline", "gavel-makespan", "a-srpt"),
    ),
    Class(
        "Sizes known, jobs in copies",
        "Here a job may have a copy on each of the 15 nodes, and making copies one costs 10 s a "
        "round. That is another problem, with a lower bound of its own, not a better answer to the "
        "one above. `sampling` does what its model asks: the least mean JCT if every job that was "
        "let in kept its share to its end. But shares are computed again when a job ends, and then "
        "it is better to end the shortest first with all that there is, as `hadare` does.",
        ("sampling", "hadare"),
    ),
    Class(
        "Plain Slurm",
        "What a real slurmctld does, with users who choose types in four ways "
        "([policies.md](../../docs/policies.md#slurm)). It has time limits, which are exact here: "
        "the time on the slowest type that the job may have. Jobs of these traces have no users, "
        "so that age decides on the priority. What `hadar` gains and loses beside it, with and "
        "without moves, is in [full.md](full.md#beside-plain-slurm).",
        PLAIN_SLURMS,
    ),
    Class("Epochs known", "`e-las` knows what share of its epochs a job has done.", ("e-las",)),
    Class(
        "Sizes not known",
        "`hlas` and `gavel-max-min` know speeds, `las` and `gavel-fifo` which type is the faster, "
        "`tiresias` and `yarn-cs` nothing. Where it matters how long a gang will go on, as when it "
        "could move to fewer nodes, they take it to be as long again as it has trained.",
        ("hlas", "gavel-max-min", "las", "tiresias", "gavel-fifo", "yarn-cs"),
    ),
)
PREDICTED = ("hadar", "srsf", "hare-offline", "a-srpt", "sampling")
SLOW = ("hadare", "sampling")


def cells() -> Iterator[tuple[str, str, float]]:
    """Yield every run: trace, policy, error of predictions; the quick ones first."""
    wanted = [
        (policy, error)
        for group in CLASSES
        for policy in group.policies
        for error in (ERRORS if policy in PREDICTED else ERRORS[:1])
    ]
    for policy, error in sorted(wanted, key=lambda run: (run[0] in SLOW, run[1])):
        for trace in TRACES:
            yield trace, policy, error


def path_of(work: Path, trace: str, policy: str, error: float) -> Path:
    """Return where a run's figures lie."""
    return work / f"{trace}-{policy}-{round(100 * error)}.json"


def play(data: Path, trace: str, policy: str, error: float) -> dict[str, Any]:
    """Return the figures of a run, times in hours."""
    nodes = read_cluster(CLUSTER, gpus_per_node=GPUS_PER_NODE)
    table = read_table(data / "gavel_simulation_throughputs.json")
    reading = TraceOptions(table, nodes, costs=parse_restart_costs(f"{RESTART_S:g}"))
    specs = read_workload(str(data / f"{trace}.trace"), reading).specs
    is_forked = policy in FORKING
    if is_forked:
        specs = forked(specs, max_copies=len(nodes.nodes), aggregation_s=AGGREGATION_S)
    made = make_policy(policy)
    found = run_experiment(specs, nodes, Predicting(made, error) if error else made)
    least = bounds(specs, nodes, counts_spread=True)
    times_s = {
        "ttd_h": found.ttd_s,
        "mean_jct_h": found.mean_jct_s,
        "p50_jct_h": found.p50_jct_s,
        "p95_jct_h": found.p95_jct_s,
        "ttd_bound_h": least.ttd_forking_s if is_forked else least.ttd_gang_s,
        "jct_bound_h": least.mean_jct_s if is_forked else least.mean_jct_gang_s,
    }
    return {name: time_s / HOUR_S for name, time_s in times_s.items()} | {
        "utilization": found.utilization,
        "mean_ftf": found.mean_ftf,
        "moves": found.moves,
        "decision_ms": found.decision_ms_p50,
        "made": _day(time.time()),
    }


Found = Mapping[tuple[str, str, float], Mapping[str, Any]]


def page(found: Found, work: Path, kept: str = "") -> str:
    """Return the text of benchmarks/results/field.md.

    A section of which a run is missing is that of the page `kept`, where it has one.
    """
    old = {text.partition("\n")[0]: text for text in kept.split("\n## ")[1:]}
    sections = [
        f"## {title}\n\n{body}\n\n{_made(found, runs)}\n"
        if title not in old or all(run in found for run in runs)
        else f"## {old[title].rstrip()}\n"
        for title, body, runs in _sections(found)
    ]
    return "\n".join([_OPENING, *sections, *_printed(work, old)])


_OPENING = f"""\
# The systems of the field, side by side

{
    wrapped(
        "Each is a policy in the same simulator, on the same jobs and GPUs: 480 jobs on 20 "
        "V100s, 20 P100s and 20 K80s, four to a node, in rounds of 360 s; every job can move, for "
        "30 s. hadar480_load90 has arrivals at 90 % of what the cluster could do, in "
        "hadar480_static all jobs are there at once. One run each, without intervals: differences "
        "of a few per cent are chance. Made by `python benchmarks/field.py`. "
        "[policies.md](../../docs/policies.md) has every rule; most are reconstructions from "
        "abstracts, so a figure here says what the idea does in our hands, not what its "
        "authors' code would. Times are in hours, **bold** is the best of a column and group. "
        "A bound is what no schedule could beat."
    )
}
"""


def _sections(found: Found) -> Iterator[tuple[str, str, list[tuple[str, str, float]]]]:
    """Yield heading, text and runs of each section."""
    exact = [(trace, policy, 0.0) for trace, policy, error in cells() if not error]
    for group in CLASSES:
        tables = [_table(found, trace, group.policies) for trace in TRACES]
        runs = [run for run in exact if run[1] in group.policies]
        yield group.title, "\n\n".join([wrapped(group.words), *tables]), runs
    words = wrapped(
        "Mean JCT in hours when each job's steps are off by up to this error, evenly spread on "
        "both sides and the same for all policies (`lab/policies/predicting.py`). A job that "
        "has passed its prediction is predicted to need twice as much."
    )
    tables = [_predicted(found, trace) for trace in TRACES]
    text = "\n\n".join([words, *tables, wrapped(_of_predictions(found))])
    predicted = [run for run in cells() if run[1] in (*PREDICTED, "hlas")]
    yield "When sizes are predicted", text, predicted
    words = wrapped(
        "Figures from public abstracts and project pages, with ours of the same kind beside "
        "them: on load90, then on static. They are of other clusters and jobs."
    )
    yield "What their papers say", f"{words}\n\n{_headlines(found)}", exact


def _made(found: Found, runs: Iterable[tuple[str, str, float]]) -> str:
    """Return when the runs were made."""
    made = sorted(str(found[run]["made"]) for run in runs if run in found)
    machine = f"{platform.machine()}, Python {platform.python_version()}"
    return f"*Made {days(made)} on {machine}.*"


def _printed(work: Path, old: Mapping[str, str]) -> Iterator[str]:
    """Yield the sections with what other programs printed."""
    for name, title in (
        ("hare", "Hare's planner for tasks"),
        ("sampling", "Sampled categories against full enumeration"),
    ):
        printed = work / f"{name}.md"
        if printed.exists():
            text = printed.read_text(encoding="utf-8").strip().replace("## ", "### ")
            lines = [line if "|" in line else wrapped(line) for line in text.split("\n")]
            day = _day(printed.stat().st_mtime)
            made = _made({(name, "", 0.0): {"made": day}}, [(name, "", 0.0)])
            yield "\n".join(
                [f"## {title}\n", f"`python benchmarks/{name}.py`:\n", *lines, "", made, ""]
            )
        elif title in old:
            yield f"## {old[title].rstrip()}\n"


def _day(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).date().isoformat()


_COLUMNS = (
    ("mean JCT", "mean_jct_h", "{:.1f}"),
    ("median", "p50_jct_h", "{:.1f}"),
    ("p95", "p95_jct_h", "{:.1f}"),
    ("TTD", "ttd_h", "{:.1f}"),
    ("mean ftf", "mean_ftf", "{:.2f}"),
    ("moves", "moves", "{:,.0f}"),
    ("decision ms", "decision_ms", "{:.1f}"),
)


def _table(found: Found, trace: str, policies: Sequence[str]) -> str:
    rows = {policy: found.get((trace, policy, 0.0)) for policy in policies}
    known = [row for row in rows.values() if row is not None]
    if not known:
        return f"{trace}: not run yet."
    lines = []
    for policy, row in rows.items():
        line = [policy] if row else [policy, "not run yet"]
        for _, name, form in _COLUMNS if row else ():
            text = form.format(row[name])
            is_best = all(float(row[name]) <= float(other[name]) for other in known)
            line.append(f"**{text}**" if is_best and len(known) > 1 else text)
        lines.append(line)
    bound = known[0]
    lines.append(["bound", f"{bound['jct_bound_h']:.1f}", "", "", f"{bound['ttd_bound_h']:.1f}"])
    return _markdown([trace, *(title for title, _, _ in _COLUMNS)], lines)


def _predicted(found: Found, trace: str) -> str:
    head = [trace, *(f"error {100 * error:.0f} %" for error in ERRORS)]
    lines = []
    for policy in PREDICTED:
        rows = [found.get((trace, policy, error)) for error in ERRORS]
        lines.append([policy, *(f"{row['mean_jct_h']:.1f}" if row else "" for row in rows)])
    if blind := found.get((trace, "hlas", 0.0)):
        lines.append(["hlas, no sizes", *([f"{blind['mean_jct_h']:.1f}"] * len(ERRORS))])
    return _markdown(head, lines)


def _of_predictions(found: Found) -> str:
    """Return what errors do, in a sentence a policy."""
    said = []
    for policy in PREDICTED:
        parts = []
        for trace in TRACES:
            rows = [found.get((trace, policy, error)) for error in (ERRORS[0], ERRORS[-1])]
            if all(rows):
                before, after = (float(row["mean_jct_h"]) for row in rows if row)
                parts.append(f"{100 * (after / before - 1):+.0f} %")
        if parts:
            said.append(f"`{policy}` {' and '.join(parts)}")
    return f"From no error to one of 100 %, on load90 and on static: {', '.join(said)}."


def _headlines(found: Found) -> str:
    def ratio(slow: str, fast: str, name: str = "mean_jct_h") -> str:
        texts = []
        for trace in TRACES:
            rows = [found.get((trace, policy, 0.0)) for policy in (slow, fast)]
            texts.append(f"{rows[0][name] / rows[1][name]:.2f}x" if rows[0] and rows[1] else "-")
        return ", ".join(texts)

    return _markdown(
        ["paper", "it says", "here", "why they differ"],
        [
            [
                "Hadar, IPDPS 2024",
                "mean JCT 3x better than a YARN-based manager",
                f"`yarn-cs` / `hadar` {ratio('yarn-cs', 'hadar')}",
                "How long a blocked queue gets depends on the load and on how many jobs are long.",
            ],
            [
                "",
                "mean JCT 2.5x better than Gavel's",
                f"`gavel-max-min` / `hadar` {ratio('gavel-max-min', 'hadar')}",
                "Max-min shares GPUs out, `hadar` ends short jobs first: that pays more the more "
                "jobs wait. Gavel's own simulator charges nothing for moves; here one costs 30 s.",
            ],
            [
                "Hadar, arXiv 2503.10918",
                "TTD 1.20x shorter than Gavel's",
                f"`gavel-max-min` / `hadar` {ratio('gavel-max-min', 'hadar', 'ttd_h')}",
                "A bound leaves no more where work fills the cluster ([full.md](full.md)).",
            ],
            [
                "Tiresias, NSDI 2019",
                "mean JCT up to 5.5x better than a YARN-based manager's",
                f"`yarn-cs` / `tiresias` {ratio('yarn-cs', 'tiresias')}",
                "It is blind to types, and its own cluster had one: here long jobs stay on K80s.",
            ],
            [
                "E-LAS, ICPP 2020",
                "mean JCT 10x better than YARN's",
                f"`yarn-cs` / `e-las` {ratio('yarn-cs', 'e-las')}",
                "The same; and its formula is not public: this is our reading.",
            ],
            [
                "",
                "about 1.5x better than Tiresias'",
                f"`tiresias` / `e-las` {ratio('tiresias', 'e-las')}",
                "Met where all jobs are there at once; with arrivals few jobs wait in one queue.",
            ],
            [
                "Hare, HPDC 2022; IEEE TCC 2024",
                "about 2x, and about 2.94x, over the state of the art",
                f"`gavel-fifo` / `hlas` {ratio('gavel-fifo', 'hlas')}; `tiresias` / `hlas` "
                f"{ratio('tiresias', 'hlas')}; for the planner see below",
                "Gangs here hold their GPUs together: what Hare gains by letting a round's tasks "
                "take turns shows in its planner only.",
            ],
            [
                "Sampling-based placement, IEEE TPDS 2024",
                "within 2.04 % of the optimal JCT",
                "see below",
                "Exchanges between jobs are our addition, and mend what the draws miss.",
            ],
            ["A-SRPT, arXiv 2501.05563", "no figure in its abstract", "", ""],
        ],
    )


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    width = len(head)
    rows = [f"| {' | '.join([*line, *[''] * (width - len(line))])} |" for line in (head, *lines)]
    is_text = any(len(cell) > 20 for line in lines for cell in line[1:])
    rule = "|---" + ("|---" if is_text else "|---:") * (width - 1) + "|"
    return "\n".join([rows[0], rule, *rows[1:]])


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--work", type=Path, default=ROOT / "results-output" / "field")
    parser.add_argument("--only", help="some policies, by comma")
    parser.add_argument("--write-only", action="store_true", help="run nothing")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    found = {}
    for trace, policy, error in cells():
        path = path_of(options.work, trace, policy, error)
        wanted = options.only is None or policy in options.only.split(",")
        if not path.exists() and wanted and not options.write_only:
            record = play(options.data, trace, policy, error)
            path.write_text(json.dumps(record) + "\n", encoding="utf-8")
            print(f"{trace} {policy} {error:g}: {record['mean_jct_h']:.2f} h", file=sys.stderr)
        if path.exists():
            found[trace, policy, error] = json.loads(path.read_text(encoding="utf-8"))
    kept = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    PAGE.write_text(page(found, options.work, kept), encoding="utf-8")
    print(f"wrote {PAGE}", file=sys.stderr)


if __name__ == "__main__":
    main()
