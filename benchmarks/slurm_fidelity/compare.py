"""How far two plays of a list differ."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import mean

from slurm_fidelity.jobs import JobList, Play

# A whole node: gangs of this size or more are large.
LARGE = 8
# A class of gangs whose mean wait is less than this share of the mean JCT does not wait.
_WAITS = 0.1


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one play, in seconds of the list."""

    mean_jct_s: float
    ttd_s: float
    mean_wait_s: float
    # Of gangs that are large; nan where there is none.
    large_wait_s: float
    ended_by_limit: int
    # Jobs on several GPU types.
    mixed: int
    # Jobs stopped for others: ended, or requeued so often.
    preempted: int = 0


@dataclass(frozen=True, slots=True)
class Difference:
    """A play beside another, the measure; ratios are of this play over the other."""

    jct: float
    ttd: float
    # Kendall's tau of the orders of starts.
    tau: float
    # The share of jobs on the same GPU types.
    same_types: float
    # Ratio of the mean waits of large gangs; None where they hardly wait.
    large_wait: float | None


def figures(jobs: JobList, play: Play) -> Figures:
    """Return the figures of a play."""
    runs, listed = play.runs, {job.number: job for job in jobs.jobs}
    waits = {n: run.start_s - listed[n].submit_s for n, run in runs.items()}
    large = [wait for n, wait in waits.items() if listed[n].gpus >= LARGE]
    first_s = min(job.submit_s for job in jobs.jobs)
    return Figures(
        mean(run.end_s - listed[n].submit_s for n, run in runs.items()),
        max(run.end_s for run in runs.values()) - first_s,
        mean(waits.values()),
        mean(large) if large else math.nan,
        sum(run.state == "TIMEOUT" for run in runs.values()),
        sum(len(run.gpu_types) > 1 for run in runs.values()),
        sum(run.requeued + (run.state == "PREEMPTED") for run in runs.values()),
    )


def difference(jobs: JobList, play: Play, measure: Play) -> Difference:
    """Return how far a play is from another."""
    ours, theirs = figures(jobs, play), figures(jobs, measure)
    both = play.runs.keys() & measure.runs.keys()
    waits = theirs.large_wait_s > _WAITS * theirs.mean_jct_s
    return Difference(
        ours.mean_jct_s / theirs.mean_jct_s,
        ours.ttd_s / theirs.ttd_s,
        _tau([(play.runs[n].start_s, measure.runs[n].start_s) for n in sorted(both)]),
        mean(play.runs[n].gpu_types == measure.runs[n].gpu_types for n in both),
        ours.large_wait_s / theirs.large_wait_s if waits else None,
    )


def _tau(pairs: Sequence[tuple[float, float]]) -> float:
    """Return Kendall's tau-a without pairs that are equal in either order."""
    agree = disagree = 0
    for (a, b), (c, d) in combinations(pairs, 2):
        product = (a - c) * (b - d)
        agree += product > 0
        disagree += product < 0
    return (agree - disagree) / max(1, agree + disagree)


@dataclass(frozen=True, slots=True)
class Summary:
    """Means over lists: |ln| of ratios, and shares."""

    lists: int
    jct: float
    ttd: float
    tau: float
    same_types: float
    # Mean and largest of |ln| of the ratio of the waits of large gangs.
    large_wait: float
    worst_jct: float


def summary(differences: Mapping[str, Sequence[Difference]]) -> Summary:
    """Return the means over lists, each of them a mean over its plays."""

    def over(values: Iterable[Iterable[float]]) -> list[float]:
        return [mean(kept) for each in values if (kept := list(each))]

    lists = differences.values()
    jct = over([abs(math.log(d.jct)) for d in each] for each in lists)
    waits = over([abs(math.log(d.large_wait)) for d in each if d.large_wait] for each in lists)
    return Summary(
        len(differences),
        mean(jct),
        mean(over([abs(math.log(d.ttd)) for d in each] for each in lists)),
        mean(over([d.tau for d in each] for each in lists)),
        mean(over([d.same_types for d in each] for each in lists)),
        mean(waits) if waits else math.nan,
        max(jct),
    )


def mean_difference(differences: Sequence[Difference]) -> Difference:
    """Return the mean of several plays' differences; of ratios the geometric mean."""

    def ratio(values: Iterable[float]) -> float:
        return math.exp(mean(map(math.log, values)))

    waits = [d.large_wait for d in differences if d.large_wait]
    return Difference(
        ratio(d.jct for d in differences),
        ratio(d.ttd for d in differences),
        mean(d.tau for d in differences),
        mean(d.same_types for d in differences),
        ratio(waits) if waits else None,
    )
