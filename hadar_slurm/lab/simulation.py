"""One run of `hadar simulate`: failures of nodes, progress, and its result as table and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.job import JobSpec
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.errors import ConfigError
from hadar_slurm.journal import Journal
from hadar_slurm.lab.assumed_speeds import speeds_note
from hadar_slurm.lab.checks import number_of
from hadar_slurm.lab.failures import draw_failures
from hadar_slurm.lab.garbage import rare_collections
from hadar_slurm.lab.study.bounds import Bounds
from hadar_slurm.lab.study.experiment import ExperimentSettings, Told, run_experiment, telling_ended
from hadar_slurm.lab.study.figures import Result
from hadar_slurm.lab.study.summary import KILLED_WORDS
from hadar_slurm.lab.study.tables import show_notes
from hadar_slurm.lab.traces.speeds import TypeSpeed
from hadar_slurm.policies.policy import Policy
from hadar_slurm.sim.backend import Failure
from hadar_slurm.status.words import output_console

_HOUR_S = 3600.0
_BOUND_WORDS = "least: lower bound for any policy; ratio: value / least."
# Failures are drawn for this multiple of the lower bound on the makespan.
_FAILURES_FOR_BOUNDS = 10.0


def failures_of(
    mtbf_hours: float | None,
    repair_hours: float,
    seed: int,
    specs: list[JobSpec],
    nodes: Cluster,
    least: Bounds,
) -> tuple[Failure, ...]:
    """Return the failures of nodes; none without a mean time between failures."""
    if mtbf_hours is None:
        return ()
    mtbf_s = number_of("--node-mtbf-hours", mtbf_hours, above=True) * _HOUR_S
    repair_s = number_of("--node-repair-hours", repair_hours, above=True) * _HOUR_S
    begins_s = min(spec.submitted_s for spec in specs)
    until_s = begins_s + _FAILURES_FOR_BOUNDS * least.ttd_gang_s
    return draw_failures(nodes, mtbf_s=mtbf_s, repair_s=repair_s, until_s=until_s, seed=seed)


def _opened(path: Path) -> Journal:
    journal = Journal(path)
    try:
        journal.open()
    except OSError as error:
        raise ConfigError(f"--journal {path}: {error.strerror}") from error
    return journal


def run_with_bar(
    specs: list[JobSpec],
    nodes: Cluster,
    policy: Policy,
    settings: ExperimentSettings,
    journal: Path | None,
    history: Sequence[JobSpec] = (),
) -> Result:
    """Return the result of one run; show its progress, and write its rounds to a journal.

    `history`: jobs that have ended before.
    """
    file = _opened(journal) if journal else None
    with (
        rare_collections(),
        closing(file) if file else nullcontext(),
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} jobs"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        ) as progress,
    ):
        task = progress.add_task(policy.name, total=len(specs))
        tell = telling_ended(lambda done: progress.update(task, completed=done))

        def read(record: RoundRecord) -> None:
            tell(record)
            if file:
                file.write(record)

        return run_experiment(
            specs,
            nodes,
            policy,
            settings,
            told=Told(history=history),
            on_round=read,
        )


def as_tree(result: Result, least: Bounds, speeds: Sequence[TypeSpeed] = ()) -> dict[str, object]:
    """Return the result, the bounds and the speeds assumed of GPU types as JSON."""
    tree = result.figures
    timings = {name: tree.pop(name) for name in ("decision_ms_p50", "decision_ms_p99", "cpu_s")}
    bounds = {f"bound_{name}": bound for name, bound in asdict(least).items()}
    return tree | bounds | {"gpu_speeds": [each.tree for each in speeds]} | timings


def show(result: Result, least: Bounds, is_forked: bool, speeds: Sequence[TypeSpeed] = ()) -> None:
    """Print the result beside the lower bounds for any policy, and the speeds assumed of types."""
    table = Table(
        title=f"{result.policy}: {result.completed} of {result.jobs} jobs completed",
        caption=KILLED_WORDS if result.killed else _BOUND_WORDS,
    )
    for heading in ("figure", "value", "least", "ratio"):
        table.add_column(heading, justify="left" if heading == "figure" else "right")

    def hours(name: str, value_s: float, least_s: float | None = None) -> None:
        bound = []
        if least_s and not result.killed:  # bounds are for all steps of all jobs
            bound = [f"{least_s / _HOUR_S:.2f} h", f"{value_s / least_s:.3f}"]
        table.add_row(name, f"{value_s / _HOUR_S:.2f} h", *bound)

    hours("TTD", result.ttd_s, least.ttd_forking_s if is_forked else least.ttd_gang_s)
    hours("mean JCT", result.mean_jct_s, least.mean_jct_s)
    for percent in ("p50", "p95", "p99"):
        hours(f"JCT {percent}", getattr(result, f"{percent}_jct_s"))
    hours("mean queueing", result.mean_queueing_s)
    hours("longest wait", result.max_wait_s)
    for name, text in (
        ("finish-time fairness, mean / worst", f"{result.mean_ftf:.2f} / {result.max_ftf:.2f}"),
        ("slow-down, mean / p99", f"{result.mean_slowdown:.2f} / {result.p99_slowdown:.1f}"),
        *_of_users(result),
        *_of_killed(result),
        ("GPU time held", f"{result.cru:.1%}"),
        ("GPU time training", f"{result.utilization:.1%}"),
        *((f"{name} held", f"{share:.1%}") for name, share in result.utilization_by_type.items()),
        ("moves", str(result.moves)),
        ("rounds", str(result.rounds)),
        ("decision p50 / p99", f"{result.decision_ms_p50:.1f} / {result.decision_ms_p99:.1f} ms"),
        ("CPU time", f"{result.cpu_s:.1f} s"),
    ):
        table.add_row(name, text)
    console = output_console()
    console.print(table)
    if note := speeds_note(speeds):
        show_notes([note], console)


def _of_killed(result: Result) -> list[tuple[str, str]]:
    """Return the row of the jobs that were ended with steps left; none if there is none."""
    if not result.killed:
        return []
    lost = f"{result.killed}, {result.killed_share:.1%} of GPU time"
    return [("jobs ended with steps left", lost)]


def _of_users(result: Result) -> list[tuple[str, str]]:
    """Return the row of the users' slow-downs; none if no job has a user."""
    mean, worst = result.mean_user_slowdown, result.max_user_slowdown
    if mean is None or worst is None:
        return []
    return [("slow-down of users, mean / worst", f"{mean:.2f} / {worst:.2f}")]
