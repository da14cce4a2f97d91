"""hadar simulate: what a policy does with a workload, in virtual time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hadar_slurm.core.throughput import parse_table
from hadar_slurm.engine.rounds import RoundRecord, run_rounds
from hadar_slurm.errors import ConfigError, HadarError, TraceError, UsageError
from hadar_slurm.journal import Journal, Line, as_line
from hadar_slurm.metrics import Summary, summarize
from hadar_slurm.policies.lp import SolverLimits
from hadar_slurm.policies.table import POLICY_NAMES, make_policy
from hadar_slurm.policies.utility import UTILITIES
from hadar_slurm.resources import data_file
from hadar_slurm.sim.backend import SimBackend
from hadar_slurm.sim.cluster import parse_cluster
from hadar_slurm.sim.trace import parse_gavel_trace


def simulate(
    trace: Annotated[Path, typer.Argument(help="Workload in Gavel's form: ten columns, tabs.")],
    cluster: Annotated[
        str, typer.Option(help="GPUs by type, COUNTxTYPE,...")
    ] = "20xV100,20xP100,20xK80",
    gpus_per_node: Annotated[int, typer.Option(help="GPUs on each node.")] = 4,
    policy: Annotated[str, typer.Option(help=f"One of: {', '.join(POLICY_NAMES)}.")] = (
        "hadar-paper"
    ),
    utility: Annotated[str, typer.Option(help=f"One of: {', '.join(UTILITIES)}.")] = "throughput",
    round_seconds: Annotated[float, typer.Option(help="Length of a round.")] = 360.0,
    restart_seconds: Annotated[float, typer.Option(help="Cost of moving a job.")] = 30.0,
    jobs: Annotated[int | None, typer.Option(help="Take only the first so many jobs.")] = None,
    throughputs: Annotated[
        Path | None, typer.Option(help="Throughput table (default: the shipped one).")
    ] = None,
    journal: Annotated[Path | None, typer.Option(help="Write every round to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Run TRACE through a policy and the very loop that hadard runs, in virtual time."""
    _check_choice("--policy", policy, POLICY_NAMES)
    _check_choice("--utility", utility, tuple(UTILITIES))
    if not 0 < round_seconds < float("inf"):
        raise UsageError(f"--round-seconds {round_seconds:g}: expected a number above 0")
    if not 0 <= restart_seconds < float("inf"):
        raise UsageError(f"--restart-seconds {restart_seconds:g}: expected a number, 0 or more")
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs {jobs}: expected a whole number, 1 or more")
    table_path = throughputs or data_file("throughputs.json")
    table = parse_table(_read(table_path, ConfigError), str(table_path))
    specs = parse_gavel_trace(
        _read(trace, TraceError).splitlines(), table, str(trace), restart_cost_s=restart_seconds
    )[:jobs]
    world = SimBackend(parse_cluster(cluster, gpus_per_node=gpus_per_node), specs)
    lines: list[Line] = []

    with (
        _journal(journal) as file,
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} jobs"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        ) as progress,
    ):
        task = progress.add_task(policy, total=len(specs))

        def record(line: RoundRecord) -> None:
            if line.errors:
                raise HadarError(f"round {line.round.index}: {'; '.join(line.errors)}")
            lines.append(as_line(line))
            if file:
                file.write(line)
            progress.update(task, completed=len(specs) - world.num_unfinished)

        started_s = time.perf_counter()
        rounds = run_rounds(
            world,
            make_policy(policy, utility=utility, limits=SolverLimits()),
            record,
            length_s=round_seconds,
            now_s=lambda: world.now_s,
            clock=time.perf_counter,
        )
    summary = summarize(lines)
    _show(summary, policy, rounds, time.perf_counter() - started_s, as_json=as_json)


@contextmanager
def _journal(path: Path | None) -> Iterator[Journal | None]:
    if path is None:
        yield None
        return
    try:
        file = Journal(path)
    except OSError as error:
        raise ConfigError(f"--journal {path}: {error.strerror}") from error
    try:
        yield file
    finally:
        file.close()


def _show(summary: Summary, policy: str, rounds: int, took_s: float, *, as_json: bool) -> None:
    if as_json:
        tree = {"policy": policy, "rounds": rounds, "took_s": took_s, **asdict(summary)}
        print(json.dumps(tree, indent=2))
        return
    table = Table(title=f"{policy}: {summary.finished} of {summary.jobs} jobs finished")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_row("TTD", f"{summary.ttd_s / 3600:.2f} h")
    table.add_row("mean JCT", f"{summary.mean_jct_s / 3600:.2f} h")
    table.add_row("moves", str(summary.moves))
    for kind, share in summary.utilization.items():
        table.add_row(f"{kind} held", f"{share:.1%}")
    table.add_row("rounds", str(rounds))
    table.add_row("took", f"{took_s:.1f} s")
    Console().print(table)


def _check_choice(option: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UsageError(f"{option} {value!r}: expected one of {', '.join(known)}")


def _read(path: Path, fault: type[UsageError]) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise fault(f"{path}: cannot be read: {error}") from error
