"""Estimates a workload's throughput where it has not been measured, with its uncertainty.

Most users know neither steps nor throughput. What a job does in a *place*, a GPU type with a gang
of a size within a node or across nodes, comes from, in this order:

1. what this workload of this user did in that very place before, measured;
2. what it did in another place, times the ratio between the two: that of similar workloads, shrunk
   towards that of all workloads, which is shrunk towards the published ratio of the GPU types;
3. what is published, alone.

A throughput that the user gives bypasses this model.

**What others report** is not trusted. Each user has one vote: the median over that user's own
workloads. Of the votes the median counts, each within a factor of the prior: `MOST_OFF` for a
ratio, `Prior.most_off` for a speed. So, whatever one user reports, and however often,

* no estimate that rests on others leaves that range around the prior;
* where two or more others have reported, it stays between the least and the greatest of their votes
  and what it was shrunk towards.

The uncertainty grows as votes disagree.

The order, and that the first measurement replaces the prior estimate, are those of HadarE's
throughput estimator as far as they are known (arXiv 2503.10918; reconstructed). There each further
one counts half; here their weight decreases, so that noise does not migrate jobs. Ratios of similar
workloads, partially pooled, replace its unknown analytic guess (our rule).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import permutations
from statistics import median
from typing import NamedTuple

from hadar_slurm.core.gang import Gang
from hadar_slurm.core.throughput import GangThroughput, Throughputs

# Assumed training time in seconds of an unmeasured job on its slowest type.
EXPECTED_S = 3600.0
# The weight of a prior ratio, in measurements.
_PRIOR_WEIGHT = 1.0
# What others report of a ratio counts up to this factor from the prior's.
MOST_OFF = 4.0
# What others report of a speed counts up to this factor from a prior that is a guess, as any is of
# a workload that the throughput table lacks.
GUESSED_OFF = 100.0
# The standard deviation of normal votes, per median absolute deviation.
_PER_DEVIATION = 1.4826
# A measurement this near to the estimate does not change it: otherwise noise would make equal jobs
# differ and migrate them every round.
_NEAR = 0.05
# Each measurement counts as much as any before it, but never less than this.
_LEAST_WEIGHT = 0.1


class Origin(StrEnum):
    """Where an estimate comes from, the surest first."""

    MEASURED = "measured"
    GIVEN = "given"
    SIMILAR = "similar"
    PUBLISHED = "published"


# By how much estimates are off, as the standard deviation of the logarithm. Measured with
# benchmarks/learning.py on Gavel's table (26 workloads on K80, P100, V100).
UNCERTAINTIES: Mapping[Origin, float] = {
    Origin.MEASURED: 0.05,
    Origin.GIVEN: 0.1,
    Origin.SIMILAR: 0.3,
    Origin.PUBLISHED: 0.4,
}


class Place(NamedTuple):
    """Where a gang trains, as far as its speed depends on it; `gpu_type` in lower case."""

    gpu_type: str
    num_gpus: int
    is_spread: bool = False

    @classmethod
    def of(cls, gang: Gang) -> Place | None:
        """Return where a gang trains; None if it has several types."""
        if len(gang.gpus_by_type) != 1:
            return None
        (gpu_type,) = gang.gpus_by_type
        return cls(str(gpu_type).lower(), gang.num_gpus, gang.is_spread)


class Estimate(NamedTuple):
    """A throughput; two thirds of the true ones are within a factor exp(`uncertainty`) of it."""

    steps_per_s: float
    origin: Origin
    uncertainty: float


@dataclass(frozen=True, slots=True)
class Workload:
    """What counts as the same work: `name`, such as `ResNet-50 (batch size 64)`, of one `user`.

    Other users' measurements under that name count as similar only: they are not trusted.
    """

    user: str
    name: str

    @property
    def family(self) -> str:
        """Return the name of the model, which all its batch sizes and all users share."""
        return self.name.partition(" (")[0].lower()


@dataclass(slots=True)
class Measured:
    """A workload's speed in one place: the one believed, and the mean of all measurements."""

    steps_per_s: float
    mean: float
    count: int = 1


@dataclass
class ThroughputModel:
    """All measurements. `version` changes with the estimates; `news` are not yet saved."""

    measured: dict[Workload, dict[Place, Measured]] = field(default_factory=dict)
    version: int = 0
    news: set[tuple[Workload, Place]] = field(default_factory=set)
    _ratios: _Ratios | None = None

    def measure(self, workload: Workload, place: Place, steps_per_s: float) -> bool:
        """Record a measured speed; return whether that changes the estimate."""
        known = self.measured.setdefault(workload, {})
        self.news.add((workload, place))
        before = known.get(place)
        if before is None:
            known[place] = Measured(steps_per_s, steps_per_s)
        else:
            before.count += 1
            weight = max(1.0 / before.count, _LEAST_WEIGHT)
            before.mean += weight * (steps_per_s - before.mean)
            if abs(before.mean - before.steps_per_s) <= _NEAR * before.steps_per_s:
                return False
            before.steps_per_s = before.mean
        self.has_changed()
        return True

    def has_changed(self) -> None:
        """Invalidate former estimates."""
        self.version += 1
        self._ratios = None

    def estimate(self, workload: Workload, place: Place, prior: Prior) -> Estimate:
        """Return the estimated throughput of a workload in a place."""
        own = self.measured.get(workload)
        known, spread = (_beliefs(own), 0.0) if own else self._of_others(workload, prior)
        if place in known:
            origin = Origin.MEASURED if own else Origin.SIMILAR
            return Estimate(known[place], origin, math.hypot(UNCERTAINTIES[origin], spread))
        here = prior.on(place)
        nearest = _nearest((other for other in known if known[other] > 0), place)
        if here <= 0 or not nearest:
            return Estimate(here, Origin.PUBLISHED, UNCERTAINTIES[Origin.PUBLISHED])
        if self._ratios is None:
            self._ratios = _Ratios(self.measured)
        ratios = [self._ratios.of(workload.family, other, place, prior) for other in nearest]
        logs = [
            math.log(known[other]) + ratio.log for other, ratio in zip(nearest, ratios, strict=True)
        ]
        steps_per_s = math.exp(sum(logs) / len(logs))
        spread = math.hypot(spread, max(ratio.spread for ratio in ratios))
        uncertainty = math.hypot(UNCERTAINTIES[Origin.SIMILAR], spread)
        return Estimate(steps_per_s, Origin.SIMILAR, uncertainty)

    def _of_others(self, workload: Workload, prior: Prior) -> tuple[dict[Place, float], float]:
        """Return what other users have measured under the same name, and how far they disagree."""
        logs: defaultdict[Place, _Votes] = defaultdict(_Votes)
        for other, places in self.measured.items():
            if other.name.lower() == workload.name.lower():
                for place, speed in _beliefs(places).items():
                    if speed > 0:
                        logs[place].add(other.user, math.log(speed))
        found, spread = {}, 0.0
        for place, votes in logs.items():
            here = prior.on(place)
            around = (math.log(here), math.log(prior.most_off)) if here > 0 else (0.0, math.inf)
            opinion = votes.opinion(*around)
            found[place] = math.exp(opinion.log)
            spread = max(spread, opinion.spread)
        return found, spread


@dataclass(frozen=True, slots=True)
class Prior:
    """What is believed of a workload's speeds before any is measured: `throughputs` in steps/s.

    Other users' measurements count up to a factor `most_off` from them.
    """

    throughputs: Throughputs
    most_off: float = GUESSED_OFF

    def on(self, place: Place) -> float:
        """Return the steps/s in a place; 0 where that is unknown or the workload does not fit."""
        return self.throughputs.on(place.gpu_type, place.num_gpus, is_spread=place.is_spread)

    def log_ratio(self, source: Place, target: Place) -> float:
        """Return the logarithm of what a workload does in `target` per what it does in `source`.

        Without throughputs for both, the types count as alike, and speed is proportional to the
        number of GPUs.
        """
        before, after = self.on(source), self.on(target)
        if before > 0 and after > 0:
            return math.log(after / before)
        return math.log(target.num_gpus / source.num_gpus)


class _Opinion(NamedTuple):
    """The logarithm of a ratio or a speed, and how far users disagree, as a standard deviation."""

    log: float
    spread: float = 0.0


@dataclass(slots=True)
class _Votes:
    """What each user has measured, as logarithms."""

    by_user: dict[str, list[float]] = field(default_factory=dict)
    count: int = 0

    def add(self, user: str, value: float) -> None:
        """Add what a workload of a user does."""
        self.by_user.setdefault(user, []).append(value)
        self.count += 1

    def opinion(self, around: float, within: float) -> _Opinion:
        """Return the median over the users of their medians, each at most `within` off `around`."""
        least, most = around - within, around + within
        votes = [min(max(median(values), least), most) for values in self.by_user.values()]
        middle = median(votes)
        return _Opinion(middle, _PER_DEVIATION * median(abs(vote - middle) for vote in votes))


class _Ratios:
    """The log ratios between places, by user: over all workloads, and over those of a family."""

    def __init__(self, measured: Mapping[Workload, Mapping[Place, Measured]]) -> None:
        # By family ("": all workloads), source and target.
        self._votes = defaultdict[tuple[str, Place, Place], _Votes](_Votes)
        for workload, places in measured.items():
            logs = [(p, math.log(m.steps_per_s)) for p, m in places.items() if m.steps_per_s > 0]
            for (source, before), (target, after) in permutations(logs, 2):
                for group in ("", workload.family):
                    self._votes[group, source, target].add(workload.user, after - before)

    def of(self, family: str, source: Place, target: Place, prior: Prior) -> _Opinion:
        """Return a family's log ratio, shrunk towards that of all and then the prior's."""
        priors = believed = prior.log_ratio(source, target)
        spread = 0.0
        for group in ("", family):
            if votes := self._votes.get((group, source, target)):
                told = votes.opinion(priors, math.log(MOST_OFF))
                count = votes.count
                believed = (count * told.log + _PRIOR_WEIGHT * believed) / (count + _PRIOR_WEIGHT)
                spread = told.spread
        return _Opinion(believed, spread)


def _beliefs(places: Mapping[Place, Measured]) -> dict[Place, float]:
    return {place: measured.steps_per_s for place, measured in places.items()}


def _nearest(known: Iterable[Place], place: Place) -> list[Place]:
    """Return the places most like `place`: by type, size, spread."""
    by_distance = defaultdict[tuple[bool, float, bool], list[Place]](list)
    for other in known:
        sizes = abs(math.log2(other.num_gpus / place.num_gpus))
        differs = other.is_spread != place.is_spread
        by_distance[other.gpu_type != place.gpu_type, sizes, differs].append(other)
    return by_distance[min(by_distance)] if by_distance else []


def rows_of(measured: Mapping[Place, float]) -> Throughputs:
    """Return steps/s by place as throughputs; 0 within a node where only others are known."""
    rows: dict[tuple[str, int], GangThroughput] = {}
    for place, steps_per_s in measured.items():
        together, spread = rows.get((place.gpu_type, place.num_gpus), GangThroughput(0.0))
        seen = (together, steps_per_s) if place.is_spread else (steps_per_s, spread)
        rows[place.gpu_type, place.num_gpus] = GangThroughput(*seen)
    return Throughputs.of(rows)


def estimated_throughputs(
    speeds: ThroughputModel,
    workload: Workload,
    num_gpus: int,
    gpu_types: Iterable[str],
    prior: Prior,
) -> tuple[Throughputs, dict[str, Estimate]]:
    """Return a gang's throughputs on GPU types, and by type the estimates of it within a node."""
    rows: dict[tuple[str, int], GangThroughput] = {}
    estimates: dict[str, Estimate] = {}
    for gpu_type in map(str.lower, gpu_types):
        together = speeds.estimate(workload, Place(gpu_type, num_gpus), prior)
        across = speeds.estimate(workload, Place(gpu_type, num_gpus, is_spread=True), prior)
        rows[gpu_type, num_gpus] = GangThroughput(together.steps_per_s, across.steps_per_s)
        estimates[gpu_type] = together
    return Throughputs.of(rows), estimates


def relative_prior(speeds: Mapping[str, float | None], num_gpus: int, slowest: float) -> Prior:
    """Return the prior of a job of which nothing is known but what it does on its slowest type.

    `speeds` are relative ones by GPU type. A type without one is taken for the geometric mean of
    the others. `slowest` is in steps/s of the whole gang.
    """
    known = [value for value in speeds.values() if value is not None]
    middle = math.exp(sum(map(math.log, known)) / len(known)) if known else 1.0
    relative = {gpu_type: value or middle for gpu_type, value in speeds.items()}
    unit = slowest / num_gpus / min(relative.values(), default=1.0)
    rows = {(k, 1): GangThroughput(unit * value) for k, value in relative.items()}
    return Prior(Throughputs.of(rows))
