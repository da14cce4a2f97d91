"""hadar site: the waits of jobs on a shared site, plain and with hadard, on a real local Slurm."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hadar_slurm.cli.completing import one_of, some_of
from hadar_slurm.errors import UsageError
from hadar_slurm.lab.checks import at_least_one, check_choice, choices_of
from hadar_slurm.lab.demo.both_runs import WAYS
from hadar_slurm.lab.site.results import (
    AdoptionRow,
    ScenarioRow,
    adoption_table,
    note_lines,
    scenario_table,
    summary_tree,
)
from hadar_slurm.lab.site.run import SiteRun, run_tasks, tasks
from hadar_slurm.lab.site.scenarios import SCENARIOS, SiteScenario

_ALL, _NONE = "all", "none"


def site(
    output: Annotated[Path, typer.Option(help="Directory for the results.")] = Path("site-output"),
    *,
    scenario: Annotated[
        str, some_of((*SCENARIOS, _ALL, _NONE), "Scenarios by name, all or none, see docs/site.md.")
    ] = _ALL,
    way: Annotated[str, one_of(WAYS, "How hadard treats waiting jobs.")] = "steer",
    runs: Annotated[int, typer.Option(help="Plays of each; waits are the median.")] = 1,
    adoption: Annotated[
        str,
        typer.Option(
            help="Also play a stream of jobs with these percentages submitted through "
            "hadar-sbatch, such as 10,30,50,100, and with 0."
        ),
    ] = "",
    seed: Annotated[int, typer.Option(help="Draws the stream of --adoption.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Measure on a real shared Slurm how long jobs wait with hadard and, as twins, without."""
    console = Console(stderr=as_json)
    chosen = _chosen(scenario)
    check_choice("--way", way, WAYS)
    at_least_one("--runs", runs)
    percents = percents_of(adoption)
    logs = output / "hadard"
    logs.mkdir(parents=True, exist_ok=True)
    begun_s = time.monotonic()
    run = SiteRun(way, console, logs)
    path = output / "summary.json"
    try:
        # Short, since paths of unix sockets in it are limited.
        with tempfile.TemporaryDirectory(
            prefix="hadar-site-", ignore_cleanup_errors=True
        ) as scratch:
            Path(scratch).chmod(0o755)
            run_tasks(run, Path(scratch), tasks(run, chosen, percents, runs, seed))
    finally:
        # A run of many minutes that fails at last leaves what it has measured.
        rows, streams = run.scenario_rows(chosen), run.adoption_rows()
        tree = summary_tree(rows, streams)
        path.write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(tree, indent=2))
    _print(console, rows, streams)
    console.print(f"{time.monotonic() - begun_s:.0f} s in all; {path}", soft_wrap=True)


def _chosen(names: str) -> list[SiteScenario]:
    """Return the scenarios of a list of names."""
    given = choices_of("--scenario", names, (*SCENARIOS, _ALL, _NONE))
    return [each for name, each in SCENARIOS.items() if name in given or _ALL in given]


def _print(console: Console, rows: Sequence[ScenarioRow], streams: Sequence[AdoptionRow]) -> None:
    """Print the results of scenarios and of streams, and what is to be said of them."""
    if rows:
        console.print(scenario_table(rows))
    if streams:
        console.print(adoption_table(streams))
    for line in note_lines(rows, streams):
        console.print(line, highlight=False, soft_wrap=True)


def percents_of(text: str) -> list[int]:
    """Return the percentages of `--adoption` with 0 before them; nothing for an empty text."""
    percents = set()
    for part in filter(None, map(str.strip, text.split(","))):
        if not part.isdecimal() or int(part) > 100:
            raise UsageError(f"--adoption {part!r}: expected whole numbers from 0 to 100")
        percents.add(int(part))
    return sorted({0, *percents}) if percents else []
