"""Draws the sizes of jobs of which only a distribution is known, for forward plays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import count

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job
from hadar_slurm.policies.hadar.kinds import Kinds

# Multiples of this, modulo 1, are as even as can be, however many are taken (golden ratio).
_STEP = (math.sqrt(5.0) - 1.0) / 2.0


def drawn_left_s(jobs: Sequence[Job], kinds: Kinds) -> dict[JobId, float]:
    """Return for each job with a belief the seconds left on its fastest type, drawn from that.

    The same jobs in the same order get the same values. Every job has to run on some type.
    """
    return {
        job.job_id: job.belief.rest_s(trained_s(job, kinds), chance)
        for job, chance in zip(jobs, chances(), strict=False)
        if job.belief
    }


def trained_s(job: Job, kinds: Kinds) -> float:
    """Return what a job has trained, in seconds on its fastest type."""
    return job.progress.steps_done / kinds.of(job).best


def chances() -> Iterator[float]:
    """Yield numbers from 0 to 1, without end."""
    return ((0.5 + number * _STEP) % 1.0 for number in count())
