"""What a site gains under hadar, by what it knows, what can move, and who adopts it, on one page.

    python benchmarks/site_gains.py [--history FILE --before FILE --cluster TEXT --gpus-per-node N]
                                    [--load 90] [--jobs 300] [--work DIRECTORY] [--write-only]

Runs `hadar compare` twice on a history as sacct prints it, and writes the page and its picture into
benchmarks/results. Without --history it draws one (site_history.py). --write-only writes the page
from runs that are there.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from beside_plain import FIGURES as ALL_FIGURES
from beside_plain import HOUR_S, KNOWN
from site_history import write

Run = Mapping[str, Any]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SIZES = ("prior", "limit", "learned")
MOVABLE, ADOPTION = (0, 30, 100), (10, 30, 50, 100)
JUDGED, PEERS = "hadar", ("srsf", "las")
# Plain Slurm, by how users write their jobs (docs/policies.md); the strongest of them counts.
PLAIN = ("slurm", "slurm:list", "slurm:list:open", "slurm:list:look")
# What the users have who do not adopt a policy: the strongest of these on the drawn history.
OTHERS = "slurm"
FIGURES = {name: ALL_FIGURES[name] for name in ("mean_jct_s", "ttd_s", "p99_slowdown")}
BOUNDS = {"mean_jct_s": "bound_mean_jct_gang_s", "ttd_s": "bound_ttd_gang_s"}
# A difference of less is chance: any change moves single jobs.
EVEN = 0.01


def commands(given: argparse.Namespace, history: Path, before: Path) -> list[list[str]]:
    """Return the two comparisons, of what is known and can move, and of who adopts."""
    common = ["compare", str(history), "--cluster", given.cluster, "--load", f"{given.load:g}"]
    common += ["--gpus-per-node", str(given.gpus_per_node), "--history", str(before), "--json"]
    common += ["--jobs-at-once", str(given.jobs_at_once)]
    return [
        [*common, "--sizes", ",".join(SIZES), "--movable", ",".join(map(str, MOVABLE)),
         "--policy", ",".join((JUDGED, *PEERS, *PLAIN))],
        [*common, "--sizes", "learned", "--movable", "100",
         "--adoption", ",".join(map(str, ADOPTION)),
         "--policy", ",".join((JUDGED, *PEERS, OTHERS)), "--seed", given.seed],
    ]  # fmt: skip


def make(words: Sequence[str], work: Path, name: str) -> None:
    """Run one comparison; its JSON is WORK/NAME/compare.json."""
    command = [sys.executable, "-m", "hadar_slurm.cli.main", *words, "--output", str(work / name)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def read(work: Path, name: str) -> dict[str, Any]:
    """Return a comparison's JSON."""
    tree: dict[str, Any] = json.loads((work / name / "compare.json").read_text(encoding="utf-8"))
    failed = [run for run in tree["runs"] if run["status"] != "done"]
    if failed:
        sys.exit(f"{len(failed)} runs failed, such as {failed[0]['policy']}: {failed[0]['error']}")
    return tree


def grid(runs: Iterable[Run]) -> dict[tuple[str, int], dict[str, Run]]:
    """Return the runs by what is known, what can move, and policy."""
    found: dict[tuple[str, int], dict[str, Run]] = {}
    plain: list[tuple[str, str, Run]] = []
    for run in runs:
        name, sizes = str(run["bare_policy"]), str(run["sizes"])
        if "movable" in run:
            found.setdefault((sizes, int(run["movable"])), {})[name] = run
        else:
            # Plain Slurm's, whatever moves, and where jobs have limits whatever is known.
            plain.append((sizes, name, run))
    for (sizes, _), by_policy in found.items():
        by_policy |= {name: run for what, name, run in plain if what in ("oracle", sizes)}
    return found


def best(runs: Mapping[str, Run], figure: str, names: Sequence[str] = (*PEERS, *PLAIN)) -> str:
    """Return the policy with the least value."""
    return min(names, key=lambda name: float(runs[name][figure]))


def shown(value: float, figure: str) -> str:
    """Return a figure in hours, or a slow-down."""
    return f"{value / HOUR_S:.2f} h" if figure.endswith("_s") else f"{value:.1f}"


def losses(
    found: Mapping[tuple[str, int], Mapping[str, Run]], shares: Mapping[str, Any]
) -> list[str]:
    """Return where hadar is not the best, the largest difference first."""
    rows = adoption_losses(shares)
    for (sizes, share), runs in found.items():
        for figure, name in FIGURES.items():
            peer = best(runs, figure)
            mine, theirs = float(runs[JUDGED][figure]), float(runs[peer][figure])
            if mine > theirs * (1 + EVEN):
                text = (
                    f"* {name}, {KNOWN[sizes]} known, {share} % of the jobs movable: "
                    f"{shown(mine, figure)}, `{peer}` {shown(theirs, figure)} "
                    f"({100 * (mine / theirs - 1):.0f} % more)"
                )
                rows.append((mine / theirs, text))
    return [text for _, text in sorted(rows, key=lambda row: -row[0])]


def adoption_losses(shares: Mapping[str, Any]) -> list[tuple[float, str]]:
    """Return where users wait longer once some adopt hadar, or a peer serves all users better."""
    rows = []
    for percent in ADOPTION:
        of_share = {name: _rows(shares, percent, name) for name in (JUDGED, *PEERS)}
        where = f"* mean JCT with {percent} % of the users under hadar, history known"
        for part, words in (("all", "all users"), ("adopters", "adopters"), ("others", "others")):
            both = _means_s(of_share[JUDGED], part)
            if both and both[1] > both[0] * (1 + EVEN):
                was_s, is_s = both
                more = f"{100 * (is_s / was_s - 1):.0f} % more"
                text = f"{where}: {words} {is_s / HOUR_S:.2f} h, before {was_s / HOUR_S:.2f} h"
                rows.append((is_s / was_s, f"{text} ({more})"))
        peers = {name: both[1] for name in PEERS if (both := _means_s(of_share[name], "all"))}
        mine = _means_s(of_share[JUDGED], "all")
        if mine and peers and mine[1] > min(peers.values()) * (1 + EVEN):
            peer = min(peers, key=lambda name: peers[name])
            more = f"{100 * (mine[1] / peers[peer] - 1):.0f} % more"
            text = f"{where}: all users {mine[1] / HOUR_S:.2f} h, under `{peer}`"
            rows.append((mine[1] / peers[peer], f"{text} {peers[peer] / HOUR_S:.2f} h ({more})"))
    return rows


def table(found: Mapping[tuple[str, int], Mapping[str, Run]], figure: str) -> list[str]:
    """Return a figure by what is known and can move, with bound and best peer."""
    lines = [
        "| known of sizes | movable | hadar | best peer | hadar / peer | plain Slurm | bound |\n"
        "|---|--:|--:|--:|--:|--:|--:|"
    ]
    for (sizes, share), runs in sorted(found.items(), key=lambda item: _order(item[0])):
        peer = best(runs, figure)
        mine, theirs = float(runs[JUDGED][figure]), float(runs[peer][figure])
        bound = runs[JUDGED].get(BOUNDS.get(figure, ""))
        plain = best(runs, figure, PLAIN)
        cells = (
            KNOWN[sizes], f"{share} %", shown(mine, figure), f"{shown(theirs, figure)} `{peer}`",
            f"{mine / theirs:.2f}", f"{shown(float(runs[plain][figure]), figure)} `{plain}`",
            shown(float(bound), figure) if bound else "-",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def killed(found: Mapping[tuple[str, int], Mapping[str, Run]]) -> list[str]:
    """Return the jobs that their time limits ended, by what is known and can move; [] if none."""
    if not any(run.get("killed") for runs in found.values() for run in runs.values()):
        return []
    names = (JUDGED, *PEERS, *PLAIN)
    lines = [
        f"| known of sizes | movable | {' | '.join(f'`{name}`' for name in names)} |",
        "|---|--:|" + "--:|" * len(names),
    ]
    for (sizes, share), runs in sorted(found.items(), key=lambda item: _order(item[0])):
        cells = [
            f"{run.get('killed', 0)} ({100 * run.get('killed_share', 0):.0f} %)"
            for run in (runs[name] for name in names)
        ]
        lines.append(f"| {' | '.join((KNOWN[sizes], f'{share} %', *cells))} |")
    return [
        "## Jobs ended by their time limits",
        "",
        "In brackets the share of the GPU time held that was lost with them. They count as done at "
        "their limits, so mean JCT and TTD look shorter than they are where many are ended.",
        "",
        *lines,
        "",
    ]


def _order(key: tuple[str, int]) -> tuple[int, int]:
    return SIZES.index(key[0]), key[1]


def adopted(tree: Mapping[str, Any]) -> list[str]:
    """Return the table over the shares of users; means over the seeds."""
    bounds: dict[tuple[float, object], float] = {
        (run["adoption"], run["seed"]): run[BOUNDS["mean_jct_s"]] for run in tree["runs"]
    }
    lines = [
        "| users under the policy | policy | all users | adopters | others | bound |",
        "|--:|---|--:|--:|--:|--:|",
    ]
    for percent in ADOPTION:
        for policy in (JUDGED, *PEERS):
            rows = _rows(tree, percent, policy)
            if not rows:
                continue
            cells = [_change(rows, part) for part in ("all", "adopters", "others")]
            bound_s = sum(bounds[row["percent"], row["seed"]] for row in rows) / len(rows)
            words = (f"{percent} %", f"`{policy}`", *cells, f"{bound_s / HOUR_S:.2f} h")
            lines.append(f"| {' | '.join(words)} |")
    return lines


def _rows(tree: Mapping[str, Any], percent: int, policy: str) -> list[Mapping[str, Any]]:
    """Return what an adoption study says of a share of the users under a policy, by seed."""
    return [row for row in tree["adoption"] if (row["percent"], row["policy"]) == (percent, policy)]


def _means_s(rows: Sequence[Mapping[str, Any]], part: str) -> tuple[float, float] | None:
    """Return the mean completion times of one part of the users before and now; None: no jobs."""
    parts = [row[part] for row in rows if row[part]["jobs"]]
    if not parts:
        return None
    was_s, is_s = (
        sum(float(each[key]) for each in parts) / len(parts)
        for key in ("mean_jct_before_s", "mean_jct_s")
    )
    return was_s, is_s


def _change(rows: Sequence[Mapping[str, Any]], part: str) -> str:
    both = _means_s(rows, part)
    if not both:
        return "-"
    was_s, is_s = both
    return (
        f"{is_s / HOUR_S:.2f} h, before {was_s / HOUR_S:.2f} h ({100 * (is_s / was_s - 1):+.0f} %)"
    )


def gains(tree: Mapping[str, Any]) -> list[str]:
    """Return the table of what hadar gains over the strongest plain Slurm, with intervals."""
    lines = ["| known of sizes | movable | gain | interval | beside |", "|---|--:|--:|---|---|"]
    for each in sorted(tree["gains"], key=lambda gain: _order((gain["sizes"], gain["movable"]))):
        near = "not known"
        if each["interval"]:
            near = f"{100 * each['interval'][0]:.0f} to {100 * each['interval'][1]:.0f} %"
        cells = (
            KNOWN[each["sizes"]], f"{each['movable']:g} %", f"{100 * each['gain']:.0f} %",
            near, f"`{each['opponent'].partition(' (')[0]}`",
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def front(
    found: Mapping[tuple[str, int], Mapping[str, Run]],
    tree: Mapping[str, Any],
    shares: Mapping[str, Any],
) -> list[str]:
    """Return what comes first: losses, gains over plain Slurm, the decision times."""
    lines = losses(found, shares) or ["* nowhere in these runs, beyond 1 %."]
    runs = found["learned", 0]
    peer, plain = best(runs, "mean_jct_s"), best(runs, "mean_jct_s", PLAIN)
    mine, theirs, plainly = (float(runs[name]["mean_jct_s"]) for name in (JUDGED, peer, plain))
    bound = float(runs[JUDGED][BOUNDS["mean_jct_s"]])
    times = [float(run[JUDGED]["decision_ms_p50"]) for run in found.values()]
    slowest = max(float(run[JUDGED]["decision_ms_p99"]) for run in found.values())
    return [
        "## Where hadar is not the best",
        "",
        *lines,
        "",
        "## Beside the strongest plain Slurm",
        "",
        "By how much the mean JCT is shorter than under the plain Slurm whose users choose best, "
        "and where that would lie in 90 % of cases with other users and days like these "
        "([compare.md](../../docs/compare.md)). A negative gain is a loss.",
        "",
        *gains(tree),
        "",
        "## Without any job that can move",
        "",
        f"With a history, mean JCT is {mine / HOUR_S:.2f} h under `hadar`, "
        f"{theirs / HOUR_S:.2f} h under `{peer}`, the best other policy"
        + (f", and {plainly / HOUR_S:.2f} h under plain Slurm (`{plain}`)" if plain != peer else "")
        + "; no schedule can beat "
        f"{bound / HOUR_S:.2f} h.",
        "",
        "## Decision times",
        "",
        f"Half of hadar's decisions take at most {min(times):.1f} to {max(times):.1f} ms, by run; "
        f"99 of 100 at most {slowest:.0f} ms in the slowest run. They were measured on the machine "
        "below, with much other work on it.",
    ]


def page(
    tree: Mapping[str, Any],
    shares: Mapping[str, Any],
    words: Sequence[Sequence[str]],
    about: str,
) -> str:
    """Return the page."""
    found = grid(tree["runs"])
    run, other = next(iter(found.values()))[JUDGED], shares["runs"][0]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    texts = [
        "# What a site gains",
        "",
        "Written by `python benchmarks/site_gains.py`. " + about,
        f"{run['jobs']} jobs on {run['cluster']}, at {run['load']:g} % load. One workload: its "
        "figures are single runs, but for those by adoption, and differences of a few per cent are "
        "chance. JCT is the time "
        "from submission to end, TTD that from the first submission to the last end.",
        "",
        *front(found, tree, shares),
        "",
        *killed(found),
        "## By what is known, and what can move",
        "",
        "*Nothing*: sizes as if no job had ended before; *time limits*: all of the limit; "
        "*history*: learned from the jobs before, and as jobs end. In all three no size goes "
        "beyond the time limit. The best peer is the best of "
        + ", ".join(f"`{p}`" for p in (*PEERS, *PLAIN))
        + "; the last four are plain Slurm, by how users write their jobs "
        "([policies.md](../../docs/policies.md#slurm)).",
        "",
        "![mean completion times by what is known, what can move, and adoption](site_gains.png)",
    ]
    for figure, name in FIGURES.items():
        texts += ["", f"### {name[0].upper()}{name[1:]}", "", *table(found, figure)]
    texts += [
        "",
        "## By adoption",
        "",
        "Mean JCT where a share of the users is under the policy, with a history and all of their "
        f"jobs movable, over all draws of these users; all others are those of `{OTHERS}`, the "
        "strongest plain Slurm above on the "
        "drawn history, whose users choose their GPU types as above. Beside it the time of the "
        "same jobs with no user under a policy.",
        "",
        *adopted(shares),
        "",
        "## Made",
        "",
        f"{run['made']} on {run['machine']}; by adoption {other['made']} on {other['machine']}; "
        f"{versions}.",
        "",
        "```",
        *(f"hadar {shlex.join(each)}" for each in words),
        "```",
    ]
    return "\n".join(texts) + "\n"


def draw(
    found: Mapping[tuple[str, int], Mapping[str, Run]], tree: Mapping[str, Any], path: Path
) -> None:
    """Draw the picture: one panel for each share that can move, one for adoption."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(MOVABLE) + 1, figsize=(12, 3.6))
    for axis in axes[1:-1]:
        axis.sharey(axes[0])
    colours = {JUDGED: "#1b6ca8", "peer": "#d98324", "plain": "#8c8c8c"}
    for axis, share in zip(axes, MOVABLE, strict=False):
        for place, sizes in enumerate(SIZES):
            runs = found[sizes, share]
            peer, plain = (best(runs, "mean_jct_s", names) for names in (PEERS, PLAIN))
            bound = float(runs[JUDGED][BOUNDS["mean_jct_s"]]) / HOUR_S
            for step, (name, label) in enumerate(
                ((JUDGED, JUDGED), (peer, "peer"), (plain, "plain"))
            ):
                height = float(runs[name]["mean_jct_s"]) / HOUR_S
                axis.bar(place + 0.27 * (step - 1), height, 0.25, color=colours[label])
                if label != JUDGED:
                    axis.text(place + 0.27 * (step - 1), height, name.removeprefix("slurm:"),
                              ha="center", va="bottom", fontsize=6)  # fmt: skip
            axis.hlines(bound, place - 0.42, place + 0.42, colors="black", linestyles="dotted")
        axis.set_xticks(range(len(SIZES)), [KNOWN[sizes] for sizes in SIZES], fontsize=8)
        axis.set_title(f"{share} % of the jobs can move", fontsize=9)
    axes[0].set_ylabel("mean completion time, h")
    last = axes[-1]
    for part, colour in (
        ("all", "black"),
        ("adopters", colours[JUDGED]),
        ("others", colours["plain"]),
    ):
        points = []
        for percent in ADOPTION:
            if both := _means_s(_rows(tree, percent, JUDGED), part):
                was_s, is_s = both
                points.append((percent, is_s / was_s))
        last.plot(*zip(*points, strict=True), marker="o", markersize=3, color=colour, label=part)
    last.axhline(1.0, color=colours["plain"], linewidth=0.8)
    # After the lines: from then on the axis does not fit them.
    last.set_ylim(bottom=0)
    last.set_xticks(ADOPTION, [f"{share} %" for share in ADOPTION], fontsize=8)
    last.set_title("by users under hadar: time over before", fontsize=9)
    last.legend(fontsize=7, loc="lower left")
    handles = [
        pyplot.Rectangle((0, 0), 1, 1, color=colours[key]) for key in (JUDGED, "peer", "plain")
    ]
    names = ["hadar", "best of srsf and las", "strongest plain Slurm"]
    figure.legend(handles, names, loc="lower center", ncol=3, fontsize=8, frameon=False)
    figure.text(0.99, 0.02, "dotted: bound for any schedule", ha="right", fontsize=8)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--history", type=Path)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--cluster", default="4xV100,4xP100,4xK80")
    parser.add_argument("--gpus-per-node", type=int, default=4)
    parser.add_argument("--load", type=float, default=90.0)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--seed", default="0,1,2,3", help="seeds that draw the adopters")
    parser.add_argument("--jobs-at-once", type=int, default=1)
    parser.add_argument("--work", type=Path, default=ROOT / "results-output" / "site-gains")
    parser.add_argument("--write-only", action="store_true")
    given = parser.parse_args()
    if bool(given.history) != bool(given.before):
        parser.error("give --history and --before, or neither")
    about = "The history is the site's own."
    history, before = given.history, given.before
    if history is None:
        about = "The history is drawn (benchmarks/site_history.py), not a real site's."
        before, history = write(given.work, jobs=given.jobs, before=300, seed=0)
    words = commands(given, history, before)
    names = ("grid", "adoption")
    for each, name in zip(words, names, strict=True) if not given.write_only else ():
        make(each, given.work, name)
    runs, shares = (read(given.work, name) for name in names)
    draw(grid(runs["runs"]), shares, RESULTS / "site_gains.png")
    shown_words = [[*each, "--output", name] for each, name in zip(words, names, strict=True)]
    text = page(runs, shares, shown_words, about).replace(f"{given.work}/", "")
    (RESULTS / "site_gains.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
