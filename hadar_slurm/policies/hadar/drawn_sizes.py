"""Draws the sizes of jobs of which only a distribution is known, for forward plays."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import count

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job
from hadar_slurm.policies.hadar.forward_play import PlayedJob
from hadar_slurm.policies.hadar.kinds import Kinds

# Multiples of this, modulo 1, are as even as can be, however many are taken (golden ratio).
_STEP = (math.sqrt(5.0) - 1.0) / 2.0


def drawn_left_s(jobs: Sequence[Job], kinds: Kinds) -> dict[JobId, float]:
    """Return for each job with a belief the seconds left on its fastest type, drawn from that.

    The same jobs in the same order get the same values. Every job has to run on some type.
    """
    return {
        job.job_id: job.belief.rest_s(job.progress.steps_done / kinds.of(job).best, chance)
        for job, chance in zip(jobs, _chances(), strict=False)
        if job.belief
    }


def draw_arrivals(coming: Iterable[PlayedJob], jobs: Iterable[Job]) -> None:
    """Draw the sizes of jobs that are to come, each like one of `jobs`, where that has a belief."""
    for played, job, chance in zip(coming, jobs, _chances(), strict=False):
        if job.belief:
            played.left_s = job.belief.rest_s(0.0, chance)
            played.alone_s, played.belief = played.left_s, job.belief


def _chances() -> Iterator[float]:
    """Yield numbers from 0 to 1, without end."""
    return ((0.5 + number * _STEP) % 1.0 for number in count())
