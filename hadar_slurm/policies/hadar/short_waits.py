"""Lets a preemptible job wait within a round for GPUs of a faster type that are soon free.

A preemptible job that starts on a slow type stays there until the next round, when it can migrate
at the cost of a restart. One that ends sooner with GPUs of a faster type that running jobs free
before then, by their steps left, waits for these. Jobs ahead of it take theirs first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hadar_slurm.core.cluster import GpuType, JobId
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.policies.hadar.insertion import FreeTimes


class _Start(NamedTuple):
    """When a job could start on a type, in seconds, and for how long it would run."""

    in_s: float
    lasts_s: float
    gpu_type: GpuType


def take_back_slow_starts(allocator: Allocator, queue: Sequence[Job]) -> frozenset[JobId]:
    """Take back the GPUs of queued jobs that end sooner on a faster type; return these jobs.

    `queue`: the preemptible jobs, the first served first.
    """
    queued = [job for job in queue if job.phase is Phase.QUEUED]
    slow = {job.job_id for job in queued if _is_slow(allocator, job)}
    while queued and queued[-1].job_id not in slow:
        queued.pop()
    table, late, hopeless = FreeTimes(allocator, queued, without=slow), [], set[object]()
    for job in queued:
        alike, is_slow = allocator.like(job), job.job_id in slow
        if alike in hopeless or (not is_slow and job.job_id in allocator.placed):
            continue
        starts = list(_starts(allocator, table, job))
        if not starts:
            hopeless.add(alike)
            continue
        first = min(starts, key=lambda start: start.in_s + is_slow * start.lasts_s)
        if not is_slow or _is_sooner(allocator, job, first):
            late += [job] if is_slow else []
            table.take(job, first.gpu_type, first.in_s, first.lasts_s)
    for job in late:
        allocator.take_back(job)
    return frozenset(job.job_id for job in late)


def _starts(allocator: Allocator, table: FreeTimes, job: Job) -> Iterator[_Start]:
    """Yield the first start of a job on each type within the round, the fastest type first."""
    for gpu_type in allocator.by_speed(job):
        lasts_s = job.steps_left / allocator.throughput(job, gpu_type)
        in_s = table.first_s(job, gpu_type, lasts_s)
        if in_s < allocator.round.left_s:
            in_s = table.first_s(job, gpu_type, lasts_s, table.on_nodes_s(job, gpu_type))
        if in_s < allocator.round.left_s:
            yield _Start(in_s, lasts_s, gpu_type)


def _is_sooner(allocator: Allocator, job: Job, start: _Start) -> bool:
    """Return whether a job that has slow GPUs ends sooner after waiting for a start."""
    own, round_left_s = allocator.placed_throughput(job), allocator.round.left_s
    end_s = job.steps_left / own
    if end_s > round_left_s:
        # It may migrate then, at best to the fastest type.
        rest_s = (job.steps_left - round_left_s * own) / _fastest(allocator, job)
        end_s = min(end_s, round_left_s + job.spec.restart_cost_s + rest_s)
    return start.in_s + start.lasts_s < end_s


def _is_slow(allocator: Allocator, job: Job) -> bool:
    """Return whether a job was given GPUs on which it is slower than on its fastest type."""
    placed = allocator.placed
    return job.job_id in placed and allocator.placed_throughput(job) < _fastest(allocator, job)


def _fastest(allocator: Allocator, job: Job) -> float:
    return allocator.throughput(job, allocator.by_speed(job)[0])
