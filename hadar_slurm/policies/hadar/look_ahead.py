"""Chooses the way to rank and type jobs by playing each candidate forward.

From the jobs in view and the arrivals to be expected, every candidate is played to the end
(`forward_play.py`). Taken is the one with the least

    (mean completion time) * (makespan) ** w * (mean slow-down) ** `_SLOWDOWN`

where w is `_LAST_MAKESPAN` if no further jobs are expected, since what is idle at the end is lost
then. Otherwise it is `_MAKESPAN` times the probability that arrivals end within the play: a shorter
makespan is of use only if no later job comes. Arrivals that have gone on for the time t go on for M
more with probability t / (t + M), where nothing but t is known (Gott, Nature 363, 1993). So with
the makespan M of the first way played, w = `_MAKESPAN` * M / (t + M).

That is of the whole workload, of which a play shows the rest. With the mean number L of jobs
(Little's law), N jobs in the play and the mean m of the first way played, its logarithm is

    log(mean) + w * L / (N * m) * makespan + `_SLOWDOWN` * log(mean slow-down).

The slow-down of a job is its completion time over its time alone on its fastest type. A change of
the way pays for the restarts that it causes, since plays count them; the way in use is kept where
another is no better, and while no job comes, where another is not better by `_KEEPS`.

Candidates (docs/policies.md) are the orders of the peers with types by regret or the fastest
first, the makespan program's critical jobs first, the way in use, and variants of the best.

Where sizes are believed only (`Job.belief`), plays draw them: played as they are believed, they
would flatter the orders that go by them. Which jobs end last, or are critical, is not known then.

Our own. The choice among rules by simulating each from the present state is that of rollout
algorithms (Bertsekas, Rollout, Policy Iteration, and Distributed Reinforcement Learning, 2020).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import truediv

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.policies.hadar.forward_play import Play, PlayedJob, Pools, Resolution
from hadar_slurm.policies.hadar.history import History
from hadar_slurm.policies.hadar.kinds import Kinds
from hadar_slurm.policies.hadar.makespan_lp import Horizon, Planned
from hadar_slurm.policies.hadar.ways import AsPlanned, Typing, Way

# The weights of the makespan and of the slow-down beside the mean completion time.
_MAKESPAN, _LAST_MAKESPAN, _SLOWDOWN = 0.35, 0.5, 0.15
# The orders with types by regret, and with the fastest type first.
_ORDERS, _FASTEST_ORDERS = (0.5, 1.0, 0.0), (0.5, 1.0)
# The urgency that is a candidate as well while no jobs are expected.
_LITTLE_URGENCY = 0.25
# Jobs of less than this many seconds count as that long in the slow-down.
_SHORTEST_S = 1.0
# How many of the jobs that end last go first, in variants of this many of the best candidates.
_PROMOTED, _LEADING = (1, 2, 4, 8), 3
# Where no job has come since the way in use was chosen, another must be better by this share: all
# that has happened since was foreseen then.
_KEEPS = 0.03
# Not at the end, when no job is expected and this many times the GPUs would serve all: then little
# of what a play foresees is still to be decided.
_FEW_WAIT = 1.2
# The way is chosen again after arrivals or ends, and anyway after a time: in rounds or, if that is
# longer, in this share of the time that the last choice foresaw until the last end. It is chosen
# again in rounds as soon as no further jobs are expected, or any again.
_LEAST_ROUNDS, _MOST_ROUNDS, _FORESEEN = 2.0, 5.0, 0.005
# Rounds of a play grow by a share of the time played: the larger, the more jobs are played.
_GROWTH, _GROWTH_PER_JOB = 0.03, 1e-4
# At most this many jobs are played: of more, every second, third ... on as much less of each type.
_MOST_JOBS = 600
# Below this, times are equal.
_LEAST = 1e-9
# Jobs considered in all plays of one choice: about a third of a second.
_MOST_STEPS = 170_000
# If these do not suffice for this number of ways, fewer jobs are played.
_LEAST_WAYS = 6


@dataclass(frozen=True, slots=True)
class WayInUse:
    """The way in use, and when and for what it was chosen."""

    way: Way
    made_s: float
    # The jobs in view then, and the seconds foreseen until the last of them ends.
    jobs: frozenset[JobId]
    span_s: float
    # Whether further jobs were expected.
    expects: bool = False


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a way comes to."""

    mean_jct_s: float
    # The last end, in seconds from now.
    makespan_s: float
    # The mean over all jobs.
    slowdown: float
    num_jobs: int
    # The sum over all jobs of the time from now, or from arrival, to the end.
    job_seconds: float

    @classmethod
    def of(cls, ended: Sequence[PlayedJob]) -> Outlook:
        """Return what a play has come to whose jobs have all ended."""
        times_s = [job.end_s - job.submitted_s for job in ended]
        slowdowns = map(truediv, times_s, (job.alone_s for job in ended))
        return cls(
            mean_jct_s=sum(times_s) / len(ended),
            makespan_s=max(job.end_s for job in ended),
            slowdown=sum(slowdowns) / len(ended),
            num_jobs=len(ended),
            job_seconds=sum(job.end_s - max(0.0, job.submitted_s) for job in ended),
        )


@dataclass(frozen=True, slots=True)
class View:
    """What is played."""

    kinds: Kinds
    # The jobs in the queue and on GPUs, of which every one can run somewhere.
    jobs: Sequence[Job]
    # Expected arrivals: in how many seconds, and a job like it.
    expected: Sequence[tuple[float, Job]]
    # For each type, the GPUs that may be used on each node.
    nodes: Sequence[Sequence[int]]
    history: History
    horizon: Horizon | None = None
    # The seconds that are left of jobs whose sizes are believed only, drawn from what is believed.
    drawn_s: Mapping[JobId, float] = field(default_factory=dict)
    # Every `step`th job is played.
    step: int = 1

    @property
    def is_end(self) -> bool:
        """Return whether nearly all jobs fit the GPUs, and no others are expected."""
        size = sum(job.spec.num_gpus for job in self.jobs)
        return not self.expected and size <= _FEW_WAIT * sum(map(sum, self.nodes))

    @classmethod
    def of(
        cls,
        kinds: Kinds,
        jobs: Sequence[Job],
        history: History,
        horizon: Horizon | None,
    ) -> View:
        """Return the view of a snapshot, thinned where jobs are many."""
        allocator = kinds.allocator
        capacity = allocator.snapshot.plannable_capacity
        nodes = [
            [
                capacity[slot]
                for node in allocator.snapshot.cluster.nodes
                for slot, _ in node.slots
                if node.is_schedulable and slot.gpu_type == gpu_type
            ]
            for gpu_type in allocator.gpu_types
        ]
        by_length = sorted(jobs, key=lambda job: job.steps_left / kinds.of(job).best)
        expected = history.expected()
        drawn_s: Mapping[JobId, float] = {}
        if any(job.belief for job in jobs):
            from hadar_slurm.policies.hadar.drawn_sizes import drawn_left_s

            drawn_s = drawn_left_s(by_length, kinds)
        view = cls(kinds, by_length, expected, nodes, history, horizon, drawn_s)
        return view.thinned(math.ceil((len(jobs) + len(expected)) / _MOST_JOBS))

    def thinned(self, step: int) -> View:
        """Return the view with every `step`th job on as much less of each type's GPUs."""
        if step <= 1:
            return self
        nodes = [_thinned(gpus, step) for gpus in self.nodes]
        jobs, expected = self.jobs[::step], self.expected[::step]
        return replace(self, jobs=jobs, expected=expected, nodes=nodes, step=self.step * step)

    def play(self, way: Way, pace: Resolution) -> tuple[Outlook | None, list[PlayedJob], int]:
        """Return a way's outlook, None if the steps did not suffice; the jobs; the steps taken."""
        jobs = [self._played(job, way) for job in self.jobs]
        jobs += self._coming(way)
        now_s = self.kinds.allocator.snapshot.now_s
        horizon_s = self.horizon.ends_s - now_s if self.horizon else 0.0

        def rank(job: PlayedJob, played_s: float) -> None:
            stays_s = job.restart_s if job.parts else 0.0
            critical, left_s = None, job.believed_s
            if job.planned:
                critical = way.rank_if_critical(
                    left_s,
                    AsPlanned(job.planned * left_s, *job.planned_speeds),
                    horizon_s - played_s,
                    max(pace.round_s, pace.growth * played_s),
                    is_running=bool(job.parts),
                    is_on_first=job.held == job.planned_types[0],
                )
            job.types = job.planned_types if critical else job.own_types
            job.rank, job.key = critical or way.rank(
                left_s, job.weight, stays_s, is_promoted=job.is_promoted
            )

        play = Play(
            jobs,
            pools=Pools(self.nodes),
            rank=rank,
            pace=pace,
            may_mix_types=self.kinds.allocator.rules.may_mix_types,
            urgency=way.urgency if way.typing is Typing.REGRET else None,
            ranks_change=way.critical_first,
        )
        is_whole = play.run()
        ended = [job for job in jobs if job.end_s < math.inf]
        return Outlook.of(ended) if is_whole and ended else None, jobs, play.steps

    def _coming(self, way: Way) -> list[PlayedJob]:
        """Return the jobs that are expected to arrive."""
        # The nodes of a former job may be closed now.
        expected = [(in_s, job) for in_s, job in self.expected if self.kinds.of(job).best > 0]
        coming = [self._expected(in_s, job, way) for in_s, job in expected]
        if any(job.belief for _, job in expected):
            from hadar_slurm.policies.hadar.drawn_sizes import draw_arrivals

            draw_arrivals(coming, (job for _, job in expected))
        return coming

    def _played(self, job: Job, way: Way) -> PlayedJob:
        """Return a job as it is now."""
        allocator, kind, spec = self.kinds.allocator, self.kinds.of(job), job.spec
        played = self._expected(min(0.0, spec.submitted_s - allocator.snapshot.now_s), job, way)
        believed_s = played.left_s = job.steps_left / kind.best
        if job.belief:
            played.left_s, played.belief = self.drawn_s[job.job_id], job.belief
            played.alone_s = job.progress.steps_done / kind.best + played.left_s
        played.has_run = job.phase is Phase.RUNNING or job.progress.steps_done > 0
        played.is_promoted = job.job_id in way.promoted
        if job.phase is not Phase.QUEUED and job.allocation:
            self._hold(played, job)
        if self.horizon and way.critical_first and believed_s > 0:
            planned = self.horizon.planned.get(job.job_id)
            self._plan(played, planned, job.steps_left, believed_s)
        return played

    def _plan(
        self, played: PlayedJob, planned: Planned | None, steps_left: float, left_s: float
    ) -> None:
        """Give a job its planned time and types; without any, its time on its first type."""
        types, kind = played.own_types, played.kind
        played.planned = 1.0 / kind.speeds[types[0]]
        if planned:
            played.planned = planned.left_s(steps_left) / left_s
            types = planned.types(kind.by_speed) or types
            played.planned_speeds = planned.speeds(types, kind.speeds)
        played.planned_types = types

    def _expected(self, in_s: float, job: Job, way: Way) -> PlayedJob:
        """Return a job like `job` that arrives in `in_s` seconds."""
        kind, spec = self.kinds.of(job), job.spec
        return PlayedJob(
            kind,
            submitted_s=in_s,
            left_s=spec.total_steps / kind.best,
            alone_s=max(_SHORTEST_S, spec.total_steps / kind.best),
            restart_s=spec.restart_cost_s,
            can_move=spec.can_checkpoint,
            weight=way.weight(job),
            own_types=self.kinds.types(kind, way.typing),
        )

    def _hold(self, played: PlayedJob, job: Job) -> None:
        """Give a job the GPUs that it holds; of a forked job, those of its first copy."""
        allocator, gang = self.kinds.allocator, job.allocation.gangs[0]
        index = {gpu_type: at for at, gpu_type in enumerate(allocator.gpu_types)}
        counts = Counter((index[slot.gpu_type], count) for slot, count in gang.slots)
        speed = allocator.rules.throughput(gang, job.spec.throughputs) / played.kind.best
        if speed <= 0:
            return
        played.parts = tuple((at, nodes, gpus) for (at, gpus), nodes in sorted(counts.items()))
        played.speed = speed
        types = {at for at, _, _ in played.parts}
        played.held = types.pop() if len(types) == 1 else None
        played.mixed = played.parts if played.held is None else ()


def is_due(
    known: WayInUse, jobs: Sequence[Job], now_s: float, round_s: float, *, expects: bool
) -> bool:
    """Return whether the way is to be chosen again; `expects`: whether more jobs are expected."""
    age_s = now_s - known.made_s
    if expects != known.expects and age_s >= _LEAST_ROUNDS * round_s:
        return True
    age_rounds = age_s / max(round_s, _FORESEEN * known.span_s)
    if age_rounds >= _MOST_ROUNDS:
        return True
    return age_rounds >= _LEAST_ROUNDS and known.jobs != {job.job_id for job in jobs}


def choose(
    view: View,
    incumbent: Way | None,
    round_s: float,
    *,
    is_news: bool = True,
) -> tuple[Way, float, int]:
    """Return the best way, the seconds until its last end, and the number of ways played.

    `is_news`: whether jobs have come since the incumbent was chosen.
    """
    trial = _Trial(view, round_s)
    if incumbent:
        present = frozenset(job.job_id for job in view.jobs)
        incumbent = replace(incumbent, promoted=incumbent.promoted & present)
        trial.play(incumbent)
    bases = [Way(exponent, Typing.REGRET) for exponent in _ORDERS]
    if not view.expected:
        bases.append(Way(_ORDERS[0], Typing.REGRET, urgency=_LITTLE_URGENCY))
    bases += [Way(exponent, Typing.FASTEST) for exponent in _FASTEST_ORDERS]
    first, *others = bases
    knows = not view.drawn_s
    trial.play(first, *([Way(critical_first=True)] if knows else []), *others)
    if view.is_end and knows:
        trial.play(Way(typing=Typing.REGRET, critical_first=True))
    if knows:
        for way in trial.best(bases):
            trial.play(*(replace(way, promoted=jobs) for jobs in trial.last_jobs(way)))
    scores = trial.scores()
    if not scores:
        return incumbent or first, 0.0, 0
    if incumbent in scores and not (is_news or view.is_end):
        scores[incumbent] -= _KEEPS
    best = min(scores, key=scores.__getitem__)
    return best, trial.outlooks[best].makespan_s, len(scores)


def _thinned(nodes: Sequence[int], step: int) -> list[int]:
    """Return nodes of one type with a `step`th of its GPUs, at least one node; the last is cut."""
    left, kept = max(round(sum(nodes) / step), max(nodes, default=0)), []
    for gpus in (gpus for first in range(step) for gpus in nodes[first::step]):
        if left > 0:
            kept.append(min(gpus, left))
            left -= gpus
    return kept


class _Trial:
    """Plays of ways, as many as the steps suffice for."""

    def __init__(self, view: View, round_s: float) -> None:
        self._view = view
        self._left = _MOST_STEPS
        growth = max(_GROWTH, _GROWTH_PER_JOB * (len(view.jobs) + len(view.expected)))
        self._pace = Resolution(round_s, growth)
        self._played: dict[Way, Sequence[PlayedJob]] = {}
        # The ways played to the end, in the order of their plays.
        self.outlooks: dict[Way, Outlook] = {}

    def play(self, *ways: Way) -> None:
        """Play each way that has not been played; thin the view if the first shows it too long."""
        for way in ways:
            if way in self.outlooks or self._left <= 0:
                continue
            pace = replace(self._pace, most_steps=self._left)
            outlook, jobs, steps = self._view.play(way, pace)
            self._left -= steps
            if not self.outlooks and steps * _LEAST_WAYS > _MOST_STEPS:
                self._view = self._view.thinned(math.ceil(steps * _LEAST_WAYS / _MOST_STEPS))
                outlook, jobs, steps = self._view.play(way, pace)
                self._left -= steps
            if outlook:
                self.outlooks[way], self._played[way] = outlook, jobs

    def scores(self) -> dict[Way, float]:
        """Return the score of each way; the least is the best."""
        per_s = self._makespan_per_s()
        return {
            way: math.log(max(_LEAST, outlook.mean_jct_s))
            + per_s * outlook.makespan_s
            + _SLOWDOWN * math.log(max(_LEAST, outlook.slowdown))
            for way, outlook in self.outlooks.items()
        }

    def _makespan_per_s(self) -> float:
        """Return what one second of makespan adds to a score."""
        first = next(iter(self.outlooks.values()), None)
        if first is None:
            return 0.0
        view, weight = self._view, _LAST_MAKESPAN
        if view.expected:
            ends_s = view.history.observed_s + first.makespan_s
            weight = _MAKESPAN * first.makespan_s / max(_LEAST, ends_s)
        num_jobs = view.history.mean_num_jobs(view.step * first.job_seconds, first.makespan_s)
        return weight * num_jobs / max(_LEAST, view.step * first.num_jobs * first.mean_jct_s)

    def best(self, ways: Iterable[Way]) -> list[Way]:
        """Return the few best of those `ways` that were played, the best first."""
        scores = self.scores()
        return sorted((way for way in ways if way in scores), key=scores.__getitem__)[:_LEADING]

    def last_jobs(self, way: Way) -> Iterator[frozenset[JobId]]:
        """Return several numbers of the jobs that end last in the play of a way."""
        pairs = zip(self._played[way], self._view.jobs, strict=False)
        last = sorted(pairs, key=lambda pair: -pair[0].end_s)
        for number in _PROMOTED:
            if number <= len(last):
                yield frozenset(job.job_id for _, job in last[:number])
