"""Simulates what was played, and says how far the simulations are from the real plays."""

from __future__ import annotations

import cmath
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from slurm_fidelity.compare import Difference, Figures, difference, figures, mean_difference
from slurm_fidelity.from_states import Agreement, agreement, begins_s
from slurm_fidelity.jobs import JobList, Play
from slurm_fidelity.settings import policy_name
from slurm_fidelity.simulated import simulate

# Simulations of each list, with other lags: a lag decides which of two jobs takes a node.
SEEDS = range(5)


@dataclass(frozen=True, slots=True)
class Judged:
    """One list on one version of Slurm: real plays, and simulations of it."""

    jobs: JobList
    slurm: str
    real: tuple[Figures, ...]
    simulated: tuple[Figures, ...]
    # Simulations beside the real plays; None for the second: fewer than two real plays.
    off: Difference
    between_real: Difference | None
    # The most a job was submitted late, in real seconds, and the load of the machine.
    late_s: float
    load: float
    # Of the real starts, those that the policy decides alike from the same states; None where jobs
    # were requeued, of which only the last run is known.
    from_states: float | None


def judge(lists: Mapping[str, JobList], plays: Iterable[Play], policy: str = "") -> list[Judged]:
    """Return the comparison of each list that was played."""
    by_list: defaultdict[tuple[str, str], list[Play]] = defaultdict(list)
    for play in plays:
        by_list[play.list, play.slurm].append(play)
    return [
        _judged(lists[name], slurm, real, policy)
        for (name, slurm), real in sorted(by_list.items())
        if name in lists
    ]


def _judged(jobs: JobList, slurm: str, real: Sequence[Play], policy: str) -> Judged:
    played = [_simulated(jobs, play, policy) for play in real]
    ours = [mine for each in played for mine in each]
    off = [difference(jobs, m, play) for each, play in zip(played, real, strict=True) for m in each]
    pairs = list(combinations(real, 2))
    return Judged(
        jobs,
        slurm,
        tuple(figures(jobs, play) for play in real),
        tuple(figures(jobs, play) for play in ours),
        mean_difference(off),
        mean_difference([difference(jobs, b, a) for a, b in pairs]) if pairs else None,
        max(play.late_s for play in real),
        max(play.load for play in real),
        None if jobs.preempts else _alike([agreement(jobs, play) for play in real]),
    )


def _simulated(jobs: JobList, play: Play, policy: str) -> list[Play]:
    """Return simulations with the accidents of a real play: when Slurm looks at its queue."""
    at, policy = pass_at(jobs, play), policy or policy_name(jobs, slurm=play.slurm)
    return [
        simulate(jobs, seed=seed, policy=policy, begin_s=begins_s(jobs, play), pass_at=at)
        for seed in SEEDS
    ]


def pass_at(jobs: JobList, play: Play) -> float:
    """Return in which part of a real second Slurm looks at its queue, from the first starts."""
    starts = sorted(run.start_s / jobs.compression for run in play.runs.values())
    angles = [2j * math.pi * start for start in starts[: len(starts) // 3]]
    return cmath.phase(sum(map(cmath.exp, angles))) / (2 * math.pi) % 1.0


def _alike(found: Sequence[Agreement]) -> float:
    return sum(each.alike for each in found) / sum(each.decided for each in found)
