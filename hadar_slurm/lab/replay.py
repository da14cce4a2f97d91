"""The jobs of a period simulated again, also under plain Slurm, for hadar report.

The opponents, the interval and the users who lose are those of `hadar compare`. The simulation of
hadard's own policy is compared with what happened to the same jobs. Where they differ too much, or
too few jobs have ended, nothing is said of a gain.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.errors import HadarError
from hadar_slurm.lab.study.compare import Cell, Record, StudyWorkload, figures_of
from hadar_slurm.lab.study.experiment import ExperimentSettings, run_experiment, telling_ended
from hadar_slurm.lab.study.gains.intervals import PERCENT
from hadar_slurm.lab.study.gains.near import Check
from hadar_slurm.lab.study.gains.pairs import PLAIN_SLURMS, Pair, is_plain, paired
from hadar_slurm.lab.study.gains.verdict import how_many_lose, users_tree
from hadar_slurm.lab.study.gains.words import between, opponents, per_cent
from hadar_slurm.lab.study.summary import HOUR_S, KILLED_WORDS
from hadar_slurm.policies.policy import DEFAULT_USER_SHARES
from hadar_slurm.status.report import Past

_FIGURES = "mean_jct_s p95_jct_s ttd_s moves killed killed_gpu_s killed_share".split()


def why_not(check: Check) -> str | None:
    """Return why the simulation says nothing of the site; None if it does."""
    if not check.has_enough:
        return f"{check.jobs:.0f} of the jobs ended in the period, too few to check the simulation"
    if check.is_near:
        return None
    return (
        f"the {check.jobs:.0f} jobs that ended took {check.measured_s / HOUR_S:.2f} h on the mean, "
        f"and {check.simulated_s / HOUR_S:.2f} h in the simulation of the same policy "
        f"({check.error:+.0%}); other jobs on the same GPUs, or wrong throughputs, can be why"
    )


@dataclass(frozen=True, slots=True)
class Replay:
    """The runs of hadard's policy, the first, and of plain Slurm."""

    runs: tuple[Record, ...]
    check: Check
    # Hadard's policy beside the strongest plain Slurm; None if it is plain Slurm.
    pair: Pair | None

    @property
    def gain(self) -> float | None:
        """Return by which part the mean JCT is shorter than the opponent's; None: not known."""
        return 1.0 - self.pair.ratio if self.pair and self.check.is_near else None

    def as_tree(self) -> dict[str, Any]:
        """Return all of it as JSON."""
        near = self.pair.interval if self.pair and self.gain is not None else None
        check = {
            "jobs": self.check.jobs,
            "measured_jct_s": self.check.measured_s,
            "simulated_jct_s": self.check.simulated_s,
            "why_not": why_not(self.check),
        }
        return {
            "replay": {r["bare_policy"]: {name: r[name] for name in _FIGURES} for r in self.runs},
            "replay_check": check,
            "replay_gain": self.gain,
            "replay_interval": near and [1.0 - near.high, 1.0 - near.low],
            "replay_opponent": self.pair.theirs["bare_policy"] if self.pair else None,
            "replay_users": users_tree(self.pair.losers) if self.pair else None,
        }


def replayed(past: Past, policy: str, user_shares: float, *, is_quiet: bool) -> Replay:
    """Return the simulations of a policy and of plain Slurm; show the progress on a terminal."""
    jobs = StudyWorkload(
        name="journal", specs=tuple(sorted(past.jobs, key=lambda spec: spec.submitted_s))
    )
    settings = ExperimentSettings(round_s=past.round_s)
    cell = Cell(
        workload=jobs,
        cluster=past.cluster,
        cluster_name="",
        policy=policy,
        settings=settings,
        user_shares=None if user_shares == DEFAULT_USER_SHARES else user_shares,
    )
    console = Console(stderr=True)
    with Progress(console=console, disable=is_quiet or not console.is_terminal) as progress:
        runs = [
            _run(replace(cell, policy=name), progress)
            for name in dict.fromkeys((policy, *PLAIN_SLURMS))
        ]
    pair = None if is_plain(runs[0]) else paired(runs[0], runs[1:])
    return Replay(tuple(runs), checked(runs[0], jobs.specs, past.ends_s), pair)


def _run(cell: Cell, progress: Progress) -> Record:
    task = progress.add_task(f"replay: {cell.policy}", total=len(cell.workload.specs))

    def show(done: int, task: TaskID = task) -> None:
        progress.update(task, completed=done)

    try:
        made, tell = cell.make_policy(), telling_ended(show)
        specs = cell.workload.specs
        result = run_experiment(specs, cell.cluster, made, cell.settings, on_round=tell)
        return {**cell.labels, **figures_of(cell, result)}
    except HadarError as error:
        text = f"replay with {cell.policy}: {error}; --no-replay leaves it out"
        raise HadarError(text) from error


def checked(run: Record, specs: Sequence[JobSpec], ends_s: Mapping[JobId, float]) -> Check:
    """Return a run of jobs beside what was measured; `ends_s`: when jobs ended, in seconds."""
    both = [
        (ends_s[spec.job_id] - spec.submitted_s, jct_s)
        for spec, jct_s in zip(specs, run["jcts_s"], strict=True)
        if spec.job_id in ends_s and ends_s[spec.job_id] > spec.submitted_s
    ]
    if not both:
        return Check(0)
    return Check(len(both), *map(statistics.fmean, zip(*both, strict=True)))


def print_replay(console: Console, replay: Replay) -> None:
    """Print a table of the runs, and the gain over plain Slurm where it is known."""
    table = Table("the same jobs, simulated", box=None, pad_edge=False)
    has_killed = any(run["killed"] for run in replay.runs)
    for heading in ("mean JCT h", "p95 h", "TTD h", "moves", *["timed out"] * has_killed):
        table.add_column(heading, justify="right")
    for run in replay.runs:
        cells = [f"{run[name] / HOUR_S:,.2f}" for name in ("mean_jct_s", "p95_jct_s", "ttd_s")]
        killed = [f"{run['killed']:,} ({run['killed_share']:.0%} lost)"] * has_killed
        table.add_row(run["bare_policy"], *cells, f"{run['moves']:,}", *killed)
    console.print(table)
    if has_killed:
        console.print(KILLED_WORDS)
    if is_plain(replay.runs[0]):
        console.print("no gain is stated: this policy is plain Slurm, there is nothing to compare")
    elif (reason := why_not(replay.check)) is not None:
        console.print(f"no gain is stated: {reason}")
    elif replay.pair is not None:
        for text in _gain_words(replay.pair, replay.check):
            console.print(text)


def _gain_words(pair: Pair, check: Check) -> list[str]:
    """Return the gain with its interval and the users who lose, and how near the check is."""
    word, near = "less" if pair.ratio <= 1 else "more", pair.interval
    said = f" ({between(near)}, made to have it in {PERCENT} % of cases)" if near else ""
    beside = opponents([str(pair.theirs["bare_policy"])])
    return [
        f"with all sizes known, mean JCT {per_cent(abs(1 - pair.ratio))} {word}{said} "
        f"{beside}{how_many_lose([pair.losers])}",
        *["few jobs: differences of a tenth may be chance"] * (near is None),
        f"the {check.jobs:.0f} jobs that ended: {check.error:+.0%} beside what happened",
    ]
