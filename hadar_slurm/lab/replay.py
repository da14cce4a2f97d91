"""The jobs of a period simulated again, also under plain Slurm, for hadar report.

The simulation of hadard's own policy is compared with what happened to the same jobs. Where they
differ by more than `FAR`, or too few jobs have ended, nothing is said of a gain.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from hadar_slurm.core.cluster import JobId
from hadar_slurm.errors import HadarError
from hadar_slurm.lab.study.experiment import ExperimentSettings, run_experiment, telling_ended
from hadar_slurm.lab.study.figures import Result
from hadar_slurm.lab.study.gains.verdict import FAR, LEAST_JOBS
from hadar_slurm.lab.study.summary import KILLED_WORDS
from hadar_slurm.policies.registry import make_policy
from hadar_slurm.status.report import Past

# Plain Slurm where users leave every type open, and where they leave out types that are slow for
# them: the stronger counts.
OPPONENTS = ("slurm", "slurm:list:open")

_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Check:
    """The jobs that ended in the period: their mean JCT, measured and simulated, in seconds."""

    jobs: int
    measured_s: float = 0.0
    simulated_s: float = 0.0

    @property
    def why_not(self) -> str | None:
        """Return why the simulation says nothing of the site; None if it does."""
        if self.jobs < LEAST_JOBS:
            return f"{self.jobs} of the jobs ended in the period, too few to check the simulation"
        error = self.simulated_s / self.measured_s - 1.0
        if abs(error) <= FAR:
            return None
        return (
            f"the {self.jobs} jobs that ended took {self.measured_s / _HOUR_S:.2f} h on the mean, "
            f"and {self.simulated_s / _HOUR_S:.2f} h in the simulation of the same policy "
            f"({error:+.0%}); other jobs on the same GPUs, or wrong throughputs, can be why"
        )


@dataclass(frozen=True, slots=True)
class Replay:
    """The results of hadard's policy, the first, and of plain Slurm."""

    results: tuple[Result, ...]
    check: Check

    @property
    def opponent(self) -> Result | None:
        """Return the strongest plain Slurm, by mean JCT; None if hadard's policy is plain Slurm."""
        return min(self.results[1:], key=lambda result: result.mean_jct_s, default=None)

    @property
    def gain(self) -> float | None:
        """Return by which part the mean JCT is shorter than the opponent's; None: not known."""
        other = self.opponent
        if self.check.why_not is not None or other is None or not other.mean_jct_s:
            return None
        return 1.0 - self.results[0].mean_jct_s / other.mean_jct_s

    def as_tree(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        names = "mean_jct_s p95_jct_s ttd_s moves killed killed_gpu_s killed_share".split()
        replays = {r.policy: {name: getattr(r, name) for name in names} for r in self.results}
        check = {
            "jobs": self.check.jobs,
            "measured_jct_s": self.check.measured_s,
            "simulated_jct_s": self.check.simulated_s,
            "why_not": self.check.why_not,
        }
        return {"replay": replays, "replay_check": check, "replay_gain": self.gain}


def replayed(past: Past, policy: str, *, is_quiet: bool) -> Replay:
    """Return the simulations of a policy and of plain Slurm; show the progress."""
    results = []
    settings = ExperimentSettings(round_s=past.round_s)
    with Progress(console=Console(stderr=True), disable=is_quiet) as progress:
        for name in dict.fromkeys((policy, *OPPONENTS)):
            task = progress.add_task(f"replay: {name}", total=len(past.jobs))

            def show(done: int, task: TaskID = task) -> None:
                progress.update(task, completed=done)

            try:
                made, tell = make_policy(name), telling_ended(show)
                found = run_experiment(past.jobs, past.cluster, made, settings, on_round=tell)
            except HadarError as error:
                text = f"replay with {name}: {error}; --no-replay leaves it out"
                raise HadarError(text) from error
            results.append(found)
    return Replay(tuple(results), checked(results[0], past.ends_s))


def checked(result: Result, ends_s: Mapping[JobId, float]) -> Check:
    """Return a result beside what was measured; `ends_s`: when jobs ended, in seconds."""
    both = [
        (ends_s[done.job_id] - done.submitted_s, done.jct_s)
        for done in result.jcts
        if done.job_id in ends_s and ends_s[done.job_id] > done.submitted_s
    ]
    if not both:
        return Check(0)
    measured, simulated = zip(*both, strict=True)
    return Check(len(both), statistics.fmean(measured), statistics.fmean(simulated))


def print_replay(console: Console, replay: Replay) -> None:
    """Print a table of the results, and the gain over plain Slurm where it is known."""
    table = Table("the same jobs, simulated", box=None, pad_edge=False)
    has_killed = any(result.killed for result in replay.results)
    for heading in ("mean JCT h", "p95 h", "TTD h", "moves", *["timed out"] * has_killed):
        table.add_column(heading, justify="right")
    for result in replay.results:
        times_s = (result.mean_jct_s, result.p95_jct_s, result.ttd_s)
        cells = [f"{time_s / _HOUR_S:,.2f}" for time_s in times_s]
        killed = [f"{result.killed:,} ({result.killed_share:.0%} lost)"] * has_killed
        table.add_row(result.policy, *cells, f"{result.moves:,}", *killed)
    console.print(table)
    if has_killed:
        console.print(KILLED_WORDS)
    if replay.check.why_not is not None:
        console.print(f"no gain is stated: {replay.check.why_not}")
    elif replay.gain is not None and replay.opponent is not None:
        word = "less" if replay.gain >= 0 else "more"
        console.print(
            f"mean JCT {abs(replay.gain):.0%} {word} than under plain Slurm "
            f"({replay.opponent.policy}, the strongest here)"
        )
        error = replay.check.simulated_s / replay.check.measured_s - 1.0
        console.print(f"the {replay.check.jobs} jobs that ended: {error:+.0%} beside what happened")
