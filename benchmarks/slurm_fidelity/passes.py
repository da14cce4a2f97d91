"""When a real Slurm looked at its queue, from the starts of a play; all in real seconds.

Each of its two schedulers sleeps for a second and then looks: main starts jobs in their order,
backfill others as well. The phases of both are accidents, and drift. Of the starts only these
phases are taken: between two that are known there are looks in each second, and none is left out.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from slurm_fidelity.jobs import JobList, ListedJob, Play

# From a decision until the job's script runs.
_LAUNCH_S = 0.03
# The weight of a start that either may have made, beside one of an overtaking job.
_PERHAPS = 0.2
# A main scheduler's look that soon after the end of a job is because of that end.
_AFTER_END_S = 0.5
# Looks of both schedulers so near to each other are not told apart.
_NEAR_S = 0.12
# How much longer than a second a cycle lasts: always at most, and once between two known looks.
_DRIFT_S, _JUMP_S = 0.012, 0.25
# How much earlier a look may seem, by the noise of launches.
_NOISE_S = 0.03
# Looks from which a phase is taken, and how much longer than a second cycles are without them.
_LEAST, _USUAL_DRIFT_S = 3, 0.002
# Real seconds from the last start to the last look; how long sbatch takes where it is not known.
_ON_S, _SBATCH_S = 600.0, 0.05


class Passes(NamedTuple):
    """The looks of both schedulers, and how long sbatch takes."""

    main_s: Sequence[float]
    backfill_s: Sequence[float]
    sbatch_s: float


def drawn(jobs: JobList, play: Play, seed: int) -> Passes:
    """Return looks of which nothing is known, but for how long the play lasted."""
    draw = random.Random(f"passes {seed}")
    last_s = max(run.end_s for run in play.runs.values()) / jobs.compression + _ON_S
    return Passes(_every_second({}, last_s, draw), _every_second({}, last_s, draw), _SBATCH_S)


def passes(jobs: JobList, play: Play, seed: int) -> Passes:
    """Return the looks in a play; a phase that starts do not show is drawn from the seed."""
    draw = random.Random(f"passes {seed}")
    times, listed = float(jobs.compression), {job.number: job for job in jobs.jobs}
    starts = {n: run.start_s / times - _LAUNCH_S for n, run in play.runs.items()}
    ends = [run.end_s / times for run in play.runs.values()]
    last_s = max(starts.values()) + _ON_S
    backfill = _every_second(
        {
            at_s: 1.0 if _overtakes(listed[n], jobs, play) else _PERHAPS
            for n, at_s in starts.items()
        },
        last_s,
        draw,
    )
    others = {
        at_s: 1.0
        for at_s in starts.values()
        if not any(0 <= at_s - end_s < _AFTER_END_S for end_s in ends)
        and min(abs(at_s - look_s) for look_s in backfill) > _NEAR_S
    }
    soonest_s = min(
        starts[n] - listed[n].submit_s / times for n, run in play.runs.items() if not run.requeued
    )
    return Passes(_every_second(others, last_s, draw), backfill, max(0.0, soonest_s - _NOISE_S))


def _overtakes(job: ListedJob, jobs: JobList, play: Play) -> bool:
    """Return whether a job starts before one of its user that goes before it: only by backfill."""
    run = play.runs[job.number]
    return not run.requeued and any(
        other.number < job.number
        and other.tier == job.tier
        and (jobs.fairshare == "no" or other.user == job.user)
        and not play.runs[other.number].requeued
        and play.runs[other.number].start_s > run.start_s + _NEAR_S * jobs.compression
        for other in jobs.jobs
    )


def _every_second(known: Mapping[float, float], last_s: float, draw: random.Random) -> list[float]:
    """Return looks in each second until `last_s`, among them most of those that are known.

    `known` has their weights.
    """
    phase_s = draw.random()
    found = _chain(sorted(known.items()))
    if len(found) < _LEAST:
        found = [phase_s]
    numbers = [_cycles(next_s - at_s) for at_s, next_s in pairwise(found)]
    cycle_s = (found[-1] - found[0]) / sum(numbers) if numbers else 1.0 + _USUAL_DRIFT_S
    looks = [found[0] - n * cycle_s for n in range(int(found[0] / cycle_s), 0, -1)]
    for number, (at_s, next_s) in zip(numbers, pairwise(found), strict=True):
        looks += [at_s + n * (next_s - at_s) / number for n in range(number)]
    looks += [found[-1] + n * cycle_s for n in range(int((last_s - found[-1]) / cycle_s) + 1)]
    return looks


def _cycles(gap_s: float) -> int:
    """Return how many cycles of at least a second there may be between two looks."""
    return int(gap_s + _NOISE_S)


def _chain(known: Sequence[tuple[float, float]]) -> list[float]:
    """Return the series of most weight in which whole cycles may lie between each two times."""
    best: list[tuple[float, int]] = []
    for at, (time_s, weight) in enumerate(known):
        total, before = 0.0, -1
        for earlier, (earlier_s, _) in enumerate(known[:at]):
            number = _cycles(time_s - earlier_s)
            most_s = number + _DRIFT_S * number + _JUMP_S * (number > 1)
            if number >= 1 and time_s - earlier_s <= most_s and best[earlier][0] >= total:
                total, before = best[earlier][0], earlier
        best.append((total + weight, before))
    chain: list[float] = []
    at = max(range(len(best)), key=lambda each: best[each][0], default=-1)
    while at >= 0:
        chain.insert(0, known[at][0])
        at = best[at][1]
    return chain
