"""Bounds what a user says of a job, before any policy sees it.

Whatever is claimed,

* the remaining time on the fastest type is at most the time limit left: Slurm ends the job then;
* a job that has trained all the steps claimed and still runs is assumed to train as long again as
  it has. So it loses rank the longer it outlives its claim;
* a given throughput is within a factor `MOST_OFF` of what is known of the workload on the type;
  one measured in a place replaces what is given for it;
* a user whose former jobs outlived their claims is believed less (`Credit`): steps claimed are
  multiplied by as much, and after wrong throughputs what is known counts alone;
* a user's claims are proven once a job has taken as long as claimed, until the next that has not.
  Until then policy `hadar` ranks the user's jobs, beside those of others, by what Slurm enforces:
  the time limit left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.throughput import GangThroughput, Throughputs

# A given throughput may differ by this factor from what is known.
MOST_OFF = 2.0
# A user's claims are multiplied by at most this, and by nothing while they are off by less.
MOST_CORRECTED, AS_GOOD_AS_TRUE = 1e4, 1.25
# Each job counts as much as any before it, but never less than this.
_LEAST_WEIGHT = 0.2
# After this time what is known of a user's claims counts half.
_DAY_S, HALF_LIFE_DAYS = 86400.0, 30.0
# A job that has done this many times the steps claimed outlives its claim; others may be saving.
_OUTLIVED_BY_STEPS = 1.01
# A run of this many times the time claimed outlives its claim, without a report that says so.
# Starting takes time, and throughputs differ a little from those that were given.
OUTLIVED_BY_TIME = 1.5
# Runs of less than this say nothing of a claim: most of the time they start.
LEAST_RUN_S = 300.0
# What is left of a time limit is at most this, also without one.
_LONGEST_LIMIT_S = 1e9
# More steps than this are never planned with.
_MOST_STEPS = 10**18
_NONE = Throughputs()


def believed_steps(
    claimed: float, steps_done: float, limit_left_s: float, fastest: float, *, times: float = 1.0
) -> tuple[int, str]:
    """Return the total steps to plan with, and why these are not what is claimed ("" if they are).

    `limit_left_s`: what is left of the time limit, inf without one, which counts as 30 years;
    `fastest`: the steps/s on the job's fastest type, 0 if unknown; `times`: what its user's claims
    are multiplied by. The reason does not change as the job trains: the journal has it in every
    round.
    """
    total, why = max(claimed * times, steps_done), ""
    if times > 1:
        why = f"its owner's jobs took {times:.1f} times as long as claimed: planned so"
    if steps_done > _OUTLIVED_BY_STEPS * claimed * times:
        total = 2.0 * steps_done
        why = f"it outlives the {claimed:g} steps claimed: planned as if half done"
    left_s = min(limit_left_s, _LONGEST_LIMIT_S)
    if fastest > 0 and total > (most := steps_done + left_s * fastest):
        total = most
        if claimed > most:
            why = f"the {claimed:g} steps claimed do not fit its time limit: planned to end with it"
    return max(1, math.ceil(min(total, _MOST_STEPS))), why


def bounded_throughputs(
    given: Throughputs,
    known: Throughputs,
    measured: Throughputs = _NONE,
    *,
    most_off: float = MOST_OFF,
) -> tuple[Throughputs, tuple[str, ...]]:
    """Return given throughputs near the known ones, measured ones in their place; and what changed.

    What is not known is not clipped. 0, which says that the job does not run there, stays.
    """
    rows: dict[tuple[str, int], GangThroughput] = {}
    reasons = []
    own = dict(measured.rows)
    for (gpu_type, size), row in given.rows:
        together, spread = (
            _near(row.when(is_spread=spans), known.on(gpu_type, size, is_spread=spans), most_off)
            for spans in (False, True)
        )
        if together != row.together:
            reasons.append(
                f"{row.together:g} steps/s given on {gpu_type} are far from what is known: "
                f"planned with {together:g}"
            )
        rows[gpu_type, size] = GangThroughput(together, spread if size > 1 else row.spread)
        if seen := own.get((gpu_type, size)):
            rows[gpu_type, size] = GangThroughput(seen.together or together, seen.spread or spread)
    return Throughputs.of(rows), tuple(reasons)


def _near(given: float, known: float, most_off: float) -> float:
    if given <= 0 or known <= 0:
        return given
    return min(max(given, known / most_off), known * most_off)


@dataclass(frozen=True, slots=True)
class Credit:
    """How far a user's claims were off, as means of logarithms over the jobs that have ended."""

    # Of the time that jobs took over the time claimed.
    log_off: float = 0.0
    # Of given throughputs and measured ones, the larger over the smaller.
    speeds_off: float = 0.0
    jobs: int = 0
    at_s: float = 0.0

    def after(
        self,
        claimed_s: float,
        lasted_s: float,
        now_s: float,
        *,
        speeds_off: float = 1.0,
        is_whole: bool = True,
    ) -> Credit:
        """Return the credit after a job: its time alone as claimed, and as it was found to be.

        `speeds_off`: the largest factor, either way, by which a given throughput was off. A run
        that is not whole shows only that a claim was too small, and lowers no factor.
        """
        off, speed_off = _log(lasted_s / max(claimed_s, 1e-300)), _log(speeds_off)
        weight = max(_LEAST_WEIGHT, 1.0 / (self.jobs + 1))
        kept = _kept(max(0.0, now_s - self.at_s) / _DAY_S)
        times, speeds = self.log_off * kept, self.speeds_off * kept
        if not is_whole:
            off, speed_off = max(off, times), max(speed_off, speeds)
        return Credit(
            times + weight * (off - times),
            speeds + weight * (speed_off - speeds),
            self.jobs + 1,
            max(now_s, self.at_s),
        )

    def factor(self, now_s: float) -> float:
        """Return what a claim is multiplied by, 1 or more.

        Never less: who claims too much for small jobs would buy a rank for a large one.
        """
        return self._beyond(self.log_off, now_s)

    def speeds_factor(self, now_s: float) -> float:
        """Return the factor by which given throughputs were off, 1 if they are believed."""
        return self._beyond(self.speeds_off, now_s)

    def most_off(self, now_s: float) -> float:
        """Return by which factor given throughputs may differ from what is known; 1: not at all."""
        return 1.0 if self.speeds_factor(now_s) > 1 else MOST_OFF

    def limit_left_s(self, left_s: float, now_s: float) -> float | None:
        """Return what is left of a job's time limit, inf without one, where claims are unproven.

        It is rounded up by a sixteenth or less, so that the journal does not change every round.
        """
        is_proven = self.jobs and self.factor(now_s) == 1.0 == self.speeds_factor(now_s)
        return None if is_proven else _rounded_up(min(left_s, _LONGEST_LIMIT_S))

    def _beyond(self, log_off: float, now_s: float) -> float:
        """Return the factor that is left of `log_off` after whole days; 1 where it was nearly true.

        By whole days, so that plans and the journal change once a day.
        """
        if log_off <= 0.0:
            return 1.0
        found = math.exp(log_off * _kept(math.floor(max(0.0, now_s - self.at_s) / _DAY_S)))
        return found if found > AS_GOOD_AS_TRUE else 1.0


@dataclass(frozen=True, slots=True)
class Judged:
    """A run that was compared with what was claimed of its job."""

    job_id: JobId
    user: str
    workload: str
    # Its time alone as claimed, and its run time by Slurm's clock.
    claimed_s: float
    lasted_s: float
    # The largest factor, either way, by which a given throughput was off; 1 if none was given.
    speeds_off: float = 1.0

    @property
    def outlives(self) -> bool:
        """Whether more was to be trained than was claimed."""
        return self.lasted_s > OUTLIVED_BY_TIME * self.claimed_s


@dataclass
class Credits:
    """The credit of every user of whom anything is known; `news` are not yet saved."""

    by_user: dict[str, Credit] = field(default_factory=dict)
    news: set[str] = field(default_factory=set)
    # The time of the round.
    now_s: float = 0.0
    # Until when each user's runs were counted before this hadard.
    _until_s: Mapping[str, float] | None = None

    def known_until_s(self) -> Mapping[str, float]:
        """Return until when each user's runs were counted before the first such call."""
        if self._until_s is None:
            self._until_s = {user: credit.at_s for user, credit in self.by_user.items()}
        return self._until_s

    def of(self, user: str) -> Credit:
        """Return a user's credit."""
        return self.by_user.get(user, _NEW)

    def most_off(self, user: str) -> float:
        """Return by which factor a user's given throughputs may differ from what is known now."""
        return self.of(user).most_off(self.now_s)

    def in_force(self) -> dict[str, Credit]:
        """Return the credits of the users who are believed less now."""
        return {
            user: credit
            for user, credit in sorted(self.by_user.items())
            if credit.factor(self.now_s) > 1 or credit.speeds_factor(self.now_s) > 1
        }

    def judge(self, run: Judged, at_s: float, *, is_whole: bool = True) -> None:
        """Count a run that has ended (`Credit.after`)."""
        self.by_user[run.user] = self.of(run.user).after(
            run.claimed_s, run.lasted_s, at_s, speeds_off=run.speeds_off, is_whole=is_whole
        )
        self.news.add(run.user)

    def learn(
        self, user: str, claimed_s: float, lasted_s: float, now_s: float, *, speeds_off: float = 1.0
    ) -> None:
        """Count a job that has ended."""
        run = Judged(JobId(""), user, "", claimed_s, lasted_s=lasted_s, speeds_off=speeds_off)
        self.judge(run, now_s)


_NEW = Credit()


def _kept(days: float) -> float:
    return float(0.5 ** (days / HALF_LIFE_DAYS))


def _rounded_up(number: float) -> float:
    """Return the next whole number of five binary digits and zeros after them."""
    unit = 2.0 ** max(0, math.frexp(number)[1] - 5)
    return math.ceil(number / unit) * unit


def _log(factor: float) -> float:
    most = math.log(MOST_CORRECTED)
    return min(max(math.log(max(factor, 1e-300)), -most), most)
