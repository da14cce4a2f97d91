"""hadar compare: policies beside each other on the same workloads, as table, CSV, JSON and page."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.quantity import parse_number
from hadar_slurm.core.throughput import ThroughputTable, parse_table
from hadar_slurm.errors import ConfigError, HadarError, TraceError, UsageError
from hadar_slurm.policies.table import POLICY_NAMES
from hadar_slurm.resources import data_file
from hadar_slurm.sim.cluster import parse_cluster
from hadar_slurm.sim.restart import parse_restart_costs
from hadar_slurm.sim.trace import parse_gavel_trace
from hadar_slurm.study.compare import (
    FORKING,
    Cell,
    Record,
    Watcher,
    Workload,
    run_cells,
    scale_to_load,
)
from hadar_slurm.study.experiment import RULES, Settings, forked
from hadar_slurm.study.scenarios import SCENARIOS, Choices
from hadar_slurm.study.summary import Group, Note, groups, load_series

_GENERATE = "generate:"
# What the whole table needs. A file or a pipe has that; a narrower terminal gets fewer columns.
_WIDE = 180
_FEW = (
    "ttd_h", "ttd_over_bound", "mean_jct_h", "mean_jct_over_bound", "p95_jct_h", "queueing_h",
    "mean_ftf", "utilization", "moves", "decision_ms_p50",
)  # fmt: skip
_STOPPED = 130
_READABLE = 100


def compare(
    traces: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRACE...", help="Workloads: files, or generate:NAME for a built-in generator."
        ),
    ] = None,
    scenario: Annotated[
        str | None,
        typer.Option(help=f"A paper's experiment instead of traces: {', '.join(SCENARIOS)}."),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help=f"all, or some of {', '.join(POLICY_NAMES)}.")
    ] = None,
    cluster: Annotated[
        str, typer.Option(help="GPUs by type, COUNTxTYPE,...")
    ] = "20xV100,20xP100,20xK80",
    gpus_per_node: Annotated[int, typer.Option(help="GPUs on each node.")] = 4,
    throughputs: Annotated[
        Path | None, typer.Option(help="Throughput table (default: the shipped one).")
    ] = None,
    rules: Annotated[str, typer.Option(help=f"One or both of {', '.join(RULES)}.")] = "hadar",
    round_seconds: Annotated[float, typer.Option(help="Length of a round.")] = 360.0,
    restart_seconds: Annotated[
        str, typer.Option(help="Costs of moving a job, one or several: 0,10,30.")
    ] = "30",
    load: Annotated[
        str | None,
        typer.Option(
            help="Offered loads in per cent, 70,90,110: arrivals are scaled so that work comes at "
            "that share of the fastest the cluster could do it."
        ),
    ] = None,
    seed: Annotated[
        str | None, typer.Option(help="Seeds of generated workloads, 0,1,2; tables show means.")
    ] = None,
    first: Annotated[int | None, typer.Option(help="Take only the first so many jobs.")] = None,
    copies: Annotated[
        int | None,
        typer.Option(help="Most copies of a job under hadare.", show_default="as many as nodes"),
    ] = None,
    aggregation_seconds: Annotated[
        float, typer.Option(help="Cost of making copies one, each round.")
    ] = 10.0,
    jobs_at_once: Annotated[
        int | None, typer.Option(help="Runs at a time.", show_default="one a processor")
    ] = None,
    output: Annotated[Path, typer.Option(help="Where the results go.")] = Path("compare-output"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Run every policy on every workload, in parallel, and show what each is worth.

    Interrupted, it goes on where it stopped when the same command is given again.
    """
    table_path = throughputs or data_file("throughputs.json")
    table = parse_table(_read(table_path, ConfigError), str(table_path))
    if bool(traces) == bool(scenario):
        raise UsageError("give traces, or a scenario with --scenario, and not both")
    policies = _policies(policy)
    loads = _numbers("--load", load, least=1.0)
    seeds = _seeds(seed)
    if first is not None and first < 1:
        raise UsageError(f"--first {first}: expected a whole number, 1 or more")
    processes = (os.cpu_count() or 1) if jobs_at_once is None else jobs_at_once
    if processes < 1:
        raise UsageError(f"--jobs-at-once {jobs_at_once}: expected a whole number, 1 or more")
    if seeds and not scenario and not any(_is_generated(text) for text in traces or ()):
        raise UsageError("--seed: only generated workloads have one; a trace is what it is")
    if not 0 <= aggregation_seconds < float("inf"):
        raise UsageError(
            f"--aggregation-seconds {aggregation_seconds:g}: expected a number, 0 or more"
        )
    if scenario:
        if scenario not in SCENARIOS:
            raise UsageError(f"--scenario {scenario!r}: expected one of {', '.join(SCENARIOS)}")
        chosen = SCENARIOS[scenario]
        title = chosen.title
        cells = chosen.cells(Choices(policies, seeds, loads, first), table)
    else:
        title = "Policies compared"
        nodes = parse_cluster(cluster, gpus_per_node=gpus_per_node)
        workloads = [
            workload
            for text in traces or ()
            for workload in _workloads(
                text, table, nodes, first=first, loads=loads, seeds=seeds, restarts=restart_seconds
            )
        ]
        settings = [
            Settings(round_s=_above_zero("--round-seconds", round_seconds), rules=name)
            for name in _choices("--rules", rules, RULES)
        ]
        max_copies = len(nodes.nodes) if copies is None else copies
        if max_copies < 1:
            raise UsageError(f"--copies {max_copies}: expected a whole number, 1 or more")
        cells = [
            Cell(
                workload=_forked(workload, name, max_copies, aggregation_seconds),
                cluster=nodes,
                cluster_name=cluster,
                policy=name,
                settings=setting,
            )
            for workload in workloads
            for setting in settings
            for name in policies or POLICY_NAMES
        ]
    console = Console(stderr=True)
    records = _run(cells, output, processes, console)
    # Drawing takes a second to load, and nothing before it needs it.
    from hadar_slurm.study.report import Comparison, json_text, write_all

    found = groups(records)
    series = SCENARIOS[scenario].series(found) if scenario else load_series(found)
    notes = SCENARIOS[scenario].notes(found) if scenario else []
    comparison = Comparison(title, _command(), records, found, notes, series)
    paths = write_all(output, comparison)
    if as_json:
        sys.stdout.write(json_text(comparison))
    else:
        _show(found, notes)
    for path in paths:
        console.print(f"{path.name}: {path}", soft_wrap=True, highlight=False)
    failed = [record for record in records if record["status"] != "done"]
    if failed:
        raise HadarError(
            f"{len(failed)} of {len(records)} runs failed: "
            + "; ".join(f"{r['policy']} on {r['trace']}: {r['error']}" for r in failed[:5])
        )


# What was asked for.


def _policies(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return POLICY_NAMES if text == "all" else _choices("--policy", text, POLICY_NAMES)


def _choices(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known:
            raise UsageError(f"{option} {name!r}: expected one of {', '.join(known)}")
    return names


def _numbers(option: str, text: str | None, *, least: float) -> tuple[float, ...] | None:
    if text is None:
        return None
    values = tuple(parse_number(part, option, UsageError) for part in text.split(","))
    for value in values:
        if value < least:
            raise UsageError(f"{option} {value:g}: expected {least:g} or more")
    return tuple(dict.fromkeys(values))


def _seeds(text: str | None) -> tuple[int, ...] | None:
    values = _numbers("--seed", text, least=0.0)
    if values and any(value != int(value) for value in values):
        raise UsageError(f"--seed {text}: expected whole numbers")
    return None if values is None else tuple(int(value) for value in values)


def _above_zero(option: str, value: float) -> float:
    if not 0 < value < float("inf"):
        raise UsageError(f"{option} {value:g}: expected a number above 0")
    return value


def _is_generated(text: str) -> bool:
    return text.startswith(_GENERATE)


def _workloads(
    text: str,
    table: ThroughputTable,
    cluster: Cluster,
    *,
    first: int | None,
    loads: tuple[float, ...] | None,
    seeds: tuple[int, ...] | None,
    restarts: str,
) -> Iterator[Workload]:
    """Yield a trace's workloads: one for each seed, load and restart cost."""
    for seed in (seeds or (0,)) if _is_generated(text) else (None,):
        for restart in dict.fromkeys(part.strip() for part in restarts.split(",")):
            specs = _specs(text, table, seed, restart)[:first]
            for load in loads or (None,):
                scaled = specs if load is None else scale_to_load(specs, cluster, load)
                name = text if seed is not None else Path(text).stem
                yield Workload(
                    name=name, specs=tuple(scaled), load=load, seed=seed, restart=restart
                )


def _specs(text: str, table: ThroughputTable, seed: int | None, restart: str) -> list[JobSpec]:
    costs = parse_restart_costs(restart)
    specs = parse_gavel_trace(_read(Path(text), TraceError).splitlines(), table, text)
    return [replace(spec, restart_cost_s=costs.of(spec.workload)) for spec in specs]


def _forked(workload: Workload, policy: str, copies: int, aggregation_s: float) -> Workload:
    if policy not in FORKING or copies == 1:
        return workload
    specs = forked(workload.specs, max_copies=copies, aggregation_s=aggregation_s)
    return replace(workload, specs=tuple(specs))


def _read(path: Path, fault: type[UsageError]) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise fault(f"{path}: cannot be read: {error}") from error


def _command() -> str:
    return shlex.join(["hadar", *sys.argv[1:]])


# Running.


class _Bars(Watcher):
    """Shows how the runs come along: bars on a terminal, a line a run elsewhere."""

    def __init__(self, cells: Sequence[Cell], console: Console, progress: Progress) -> None:
        self._cells = cells
        self._console = console
        self._progress = progress
        self._all = progress.add_task("all runs", total=len(cells), unit="runs")
        self._tasks: dict[int, TaskID] = {}
        self.num_done = self.num_known = 0

    def started(self, index: int) -> None:
        cell = self._cells[index]
        self._tasks[index] = self._progress.add_task(
            f"  {cell}", total=len(cell.workload.specs), unit="jobs"
        )

    def progressed(self, index: int, jobs_done: int) -> None:
        self._progress.update(self._tasks[index], completed=jobs_done)

    def finished(self, index: int, record: Record, *, was_known: bool) -> None:
        self.num_done += 1
        self.num_known += was_known
        if index in self._tasks:
            self._progress.remove_task(self._tasks.pop(index))
        self._progress.advance(self._all)
        if record["status"] != "done":
            self._console.print(f"{self._cells[index]}: {record['error']}", style="red")
        elif not self._console.is_terminal and not was_known:
            self._console.print(
                f"{self.num_done}/{len(self._cells)} {self._cells[index]}: "
                f"{record['took_s']:.0f} s",
                highlight=False,
                soft_wrap=True,
            )


def _run(cells: Sequence[Cell], output: Path, processes: int, console: Console) -> list[Record]:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output {output}: {error.strerror}") from error
    with _bars(cells, console) as bars:
        try:
            return run_cells(cells, output, processes=processes, watcher=bars)
        except KeyboardInterrupt:
            console.print(
                f"stopped: {bars.num_done} of {len(cells)} runs are in {output}; the same command "
                "goes on from there",
                soft_wrap=True,
                highlight=False,
            )
            raise typer.Exit(_STOPPED) from None


@contextmanager
def _bars(cells: Sequence[Cell], console: Console) -> Iterator[_Bars]:
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[unit]}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        bars = _Bars(cells, console, progress)
        yield bars
        if bars.num_known:
            console.print(
                f"{bars.num_known} of {len(cells)} runs were there already", highlight=False
            )


# Showing.


def _show(found: Sequence[Group], notes: Sequence[Note]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    for note in notes:
        console.print(Text(note.heading, style="bold"))
        for words in note.paragraphs:
            console.print(Text(words), width=min(console.width, _READABLE))
        if note.table:
            console.print(_note_table(note))
    if not notes:
        for group in found:
            console.print(_group_table(group, has_room=console.width >= _WIDE))


def _note_table(note: Note) -> Table:
    head, *rows = note.table
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for number, text in enumerate(head):
        table.add_column(text, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table


def _group_table(group: Group, *, has_room: bool) -> Table:
    seeds = f", mean of {group.num_seeds} seeds" if group.num_seeds > 1 else ""
    columns = [column for column in group.columns if has_room or column.name in _FEW]
    table = Table(
        title=Text(group.title + seeds, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption=None if has_room else "more columns in the files, or in a wider terminal",
        caption_justify="left",
    )
    table.add_column("policy", no_wrap=True, vertical="bottom")
    best = {}
    for column in columns:
        first, _, rest = column.heading.rpartition(" ")
        table.add_column(f"{first}\n{rest}".strip(), justify="right", vertical="bottom")
        best[column.name] = group.best(column)
    for entry in group.entries:
        if not entry.records:
            table.add_row(entry.policy, Text("failed", style="red"))
            continue
        cells = [
            Text(
                column.text(entry.mean(column)),
                style="bold green" if entry.policy in best[column.name] else "",
            )
            for column in columns
        ]
        name = f"{entry.policy} ({entry.status})" if entry.status else entry.policy
        table.add_row(name, *cells)
    return table
