"""The jobs of a period simulated again, also under plain Slurm, for hadar report."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.job import JobSpec
from hadar_slurm.errors import HadarError
from hadar_slurm.lab.study.experiment import run_experiment, telling_ended
from hadar_slurm.lab.study.figures import Result
from hadar_slurm.lab.study.summary import KILLED_WORDS
from hadar_slurm.policies.registry import make_policy

_HOUR_S = 3600.0


def replayed(
    specs: Sequence[JobSpec], cluster: Cluster, policy: str, *, is_quiet: bool
) -> list[Result]:
    """Return the results of a policy and of plain Slurm; show the progress."""
    results = []
    with Progress(console=Console(stderr=True), disable=is_quiet) as progress:
        for name in dict.fromkeys((policy, "slurm")):
            task = progress.add_task(f"replay: {name}", total=len(specs))

            def show(done: int, task: TaskID = task) -> None:
                progress.update(task, completed=done)

            try:
                tell = telling_ended(show)
                results.append(run_experiment(specs, cluster, make_policy(name), on_round=tell))
            except HadarError as error:
                text = f"replay with {name}: {error}; --no-replay leaves it out"
                raise HadarError(text) from error
    return results


def figures(result: Result) -> dict[str, float]:
    """Return a result as JSON."""
    names = "mean_jct_s p95_jct_s ttd_s moves killed killed_gpu_s killed_share".split()
    return {key: getattr(result, key) for key in names}


def print_replay(console: Console, results: Sequence[Result]) -> None:
    """Print a table of the results, and the gain over plain Slurm."""
    table = Table("the same jobs, simulated", box=None, pad_edge=False)
    has_killed = any(result.killed for result in results)
    for heading in ("mean JCT h", "p95 h", "TTD h", "moves", *["ended by limit"] * has_killed):
        table.add_column(heading, justify="right")
    for result in results:
        times_s = (result.mean_jct_s, result.p95_jct_s, result.ttd_s)
        cells = [f"{time_s / _HOUR_S:,.2f}" for time_s in times_s]
        killed = [f"{result.killed:,} ({result.killed_share:.0%} lost)"] * has_killed
        table.add_row(result.policy, *cells, f"{result.moves:,}", *killed)
    console.print(table)
    if has_killed:
        console.print(KILLED_WORDS)
    if len(results) > 1 and results[-1].mean_jct_s > 0:
        saved = 1.0 - results[0].mean_jct_s / results[-1].mean_jct_s
        word = "less" if saved >= 0 else "more"
        console.print(f"mean JCT {abs(saved):.0%} {word} than under plain Slurm")
