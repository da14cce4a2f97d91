"""Simulates what was played, and says how far the simulations are from the real plays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from slurm_fidelity.compare import Difference, Figures, difference, figures, mean_difference
from slurm_fidelity.from_states import Agreement, agreement, begins_s
from slurm_fidelity.jobs import JobList, Play
from slurm_fidelity.passes import drawn, passes
from slurm_fidelity.settings import policy_name
from slurm_fidelity.simulated import simulate

# Simulations of each play, with other lags: a lag decides which of two jobs takes a node. And those
# with looks that are drawn as well.
SEEDS, DRAWN = range(3), range(2)


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
    # were stopped: of a requeued one only the last run is known.
    from_states: float | None
    # As `off`, where it is not known when Slurm looked at its queue.
    off_drawn: Difference | None = None


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
    played = [(play, mine) for play in real for mine in _simulated(jobs, play, policy)]
    ours = [mine for _, mine in played]
    off, off_drawn = (
        mean_difference([difference(jobs, mine, play) for play, mine in each])
        for each in (played, [(p, m) for p in real for m in _simulated(jobs, p, policy, True)])
    )
    pairs = list(combinations(real, 2))
    return Judged(
        jobs,
        slurm,
        tuple(figures(jobs, play) for play in real),
        tuple(figures(jobs, play) for play in ours),
        off,
        mean_difference([difference(jobs, b, a) for a, b in pairs]) if pairs else None,
        max(play.late_s for play in real),
        max(play.load for play in real),
        None if jobs.may_stop else _alike([agreement(jobs, play) for play in real]),
        off_drawn,
    )


def _simulated(jobs: JobList, play: Play, policy: str, is_drawn: bool = False) -> list[Play]:
    """Return simulations with the accidents of a real play: when Slurm looked at its queue."""
    policy = policy or policy_name(jobs, slurm=play.slurm)
    looks = drawn if is_drawn else passes
    return [
        simulate(
            jobs, looks(jobs, play, seed), seed=seed, policy=policy, begin_s=begins_s(jobs, play)
        )
        for seed in (DRAWN if is_drawn else SEEDS)
    ]


def _alike(found: Sequence[Agreement]) -> float:
    return sum(each.alike for each in found) / sum(each.decided for each in found)
