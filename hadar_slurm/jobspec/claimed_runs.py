"""Judges what users claim of their jobs by the runs of these, each once, when it has ended. Pure.

A run counts by Slurm's clock and whatever its end, since it held GPUs for that time. Only a job
that completed in its first run was trained wholly: any other run shows that a claim was too small,
if it outlives that, and no more. Of what was claimed since the run before, the least time counts,
by the throughputs that are known at the end: an owner may change a claim, or take it away.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hadar_slurm.core.claims import LEAST_RUN_S, Judged
from hadar_slurm.core.cluster import JobId
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.estimator import Estimator

# The first claims of a run are kept, up to this number.
_MOST_CLAIMS = 8


class RunOnType(NamedTuple):
    """A run on GPUs of a type ("": several, or not known): its start, and its time in seconds."""

    began_s: float
    lasted_s: float
    gpu_type: str


class ShownRun(NamedTuple):
    """What Slurm shows of a job: its run's start, and its end in seconds, inf before it."""

    began_s: float
    ended_s: float = math.inf
    # Whether it completed in its first run.
    is_whole: bool = False


@dataclass(slots=True)
class _Watched:
    """A job of which steps are claimed: the claims since its last run, and its run as last seen."""

    user: str
    claims: tuple[Description, ...]
    run: RunOnType | None = None
    # It was suspended, which its run time does not leave out.
    was_stopped: bool = False


@dataclass
class ClaimedRuns:
    """The jobs that are watched, and the runs that were counted, by job and start."""

    estimator: Estimator
    judged: list[Judged] = field(default_factory=list)
    _watched: dict[JobId, _Watched] = field(default_factory=dict)
    _counted: set[tuple[JobId, float]] = field(default_factory=set)

    def claim(self, job: JobId, user: str, asks: Description) -> None:
        """Note what is claimed of a job."""
        known = self._watched.get(job)
        if known is None:
            self._watched[job] = _Watched(user, (asks,))
        elif asks not in known.claims:
            known.claims = (*known.claims, asks)[:_MOST_CLAIMS]

    def runs(self, job: JobId, run: RunOnType, *, is_stopped: bool = False) -> None:
        """Note the run of a watched job."""
        known = self._watched[job]
        if known.run is None or known.run.began_s == run.began_s:
            known.run = run if run.gpu_type else known.run
            known.was_stopped |= is_stopped

    def is_counted(self, job: JobId, began_s: float) -> bool:
        """Return whether a run was counted, by this hadard."""
        return (job, began_s) in self._counted

    def settle(self, shown: Callable[[JobId], ShownRun | None], now_s: float) -> None:
        """Judge the runs that have ended, and forget jobs that Slurm does not show (None)."""
        until_s = self.estimator.credits.known_until_s()  # before anything is learned now
        for job, known in list(self._watched.items()):
            now = shown(job)
            run, ended_s, is_whole = known.run, now_s, False
            if now and now.ended_s <= now_s:
                _, ended_s, is_whole = now
                run = run and RunOnType(now.began_s, ended_s - now.began_s, run.gpu_type)
            elif now and (run is None or now.began_s == run.began_s):
                continue
            if run and ended_s > until_s.get(known.user, 0.0):
                self._judge(job, known, run, ended_s, is_whole=is_whole)
            del self._watched[job]
        self._counted = {run for run in self._counted if shown(run[0])}

    def _judge(
        self, job: JobId, known: _Watched, run: RunOnType, ended_s: float, *, is_whole: bool
    ) -> None:
        if self.is_counted(job, run.began_s) or run.lasted_s < LEAST_RUN_S or known.was_stopped:
            return
        self._counted.add((job, run.began_s))
        judged = self.estimator.judged
        found = (judged(asks, known.user, job, run.gpu_type) for asks in known.claims)
        least = min(filter(None, found), key=lambda each: each.claimed_s, default=None)
        least = least and replace(least, lasted_s=run.lasted_s)
        if least and (is_whole or least.outlives):
            self.estimator.credits.judge(least, ended_s, is_whole=is_whole)
            self.judged.append(least)
