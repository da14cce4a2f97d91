"""Assigns nodes to jobs whose GPU type is decided.

A gang over several nodes trains at 0.3 to 1.0 of its throughput within one (Gavel's tables,
OSDI'20) for as long as it keeps its type. With best fit alone, four-GPU gangs on nodes of four
spent four fifths of their time spread, in a simulation of 480 jobs. Hence these rules:

1. A job that keeps its type keeps its place, unless spreading slows it.
2. The other jobs follow, the largest first, each at the tightest fit.
3. A job that would be slowed, or finds no nodes, displaces smaller jobs of the list if the time
   that it saves on its remaining steps is worth more GPU-seconds than their restarts. They are
   placed after it.
4. A slowed job stays if no other place makes up for its own restart.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from hadar_slurm.core.cluster import GpuType, JobId, Slot
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, Phase, Shape
from hadar_slurm.placement.allocator import Allocator


def assign_nodes(allocator: Allocator) -> list[Job]:
    """Assign nodes to all reservations; return the jobs that found none."""
    return _Assignment(allocator).place(allocator.take_reservations())


class _Seat(NamedTuple):
    """A gang for a job, its cost in GPU-seconds until the job ends, and the jobs it displaces."""

    cost: float
    gang: Gang
    makes_room: tuple[Job, ...] = ()


@dataclass(eq=False)
class _Assignment:
    """Places jobs, each on the type chosen for it."""

    allocator: Allocator
    # Jobs that may be displaced, by the one slot that holds all of their GPUs.
    _movable: defaultdict[Slot, dict[JobId, Job]] = field(default_factory=lambda: defaultdict(dict))
    # Jobs placed that are not yet in `_movable`, which is seldom needed.
    _placed: list[Job] = field(default_factory=list)

    def place(self, chosen: Iterable[tuple[Job, GpuType]]) -> list[Job]:
        """Place the jobs; return those without a place."""
        failed, moving = [], []
        for job, gpu_type in chosen:
            if self._stays(job, gpu_type):
                self._placed.append(job)
            else:
                moving.append((job, gpu_type))
        moving.sort(key=_largest_first)
        while moving:
            job, gpu_type = moving.pop(0)
            seat = self._best_seat(job, gpu_type)
            if seat is None:
                failed.append(job)
                continue
            for other in seat.makes_room:
                for slot in self._slots(other):
                    self._movable_on(slot).pop(other.job_id, None)
                self.allocator.take_back(other)
                insort(moving, (other, gpu_type), key=_largest_first)
            stays = job.phase is not Phase.QUEUED and job.allocation.gangs == (seat.gang,)
            self.allocator.put(job, job.allocation if stays else Allocation.rigid(seat.gang))
            self._placed.append(job)
        return failed

    def _stays(self, job: Job, gpu_type: GpuType) -> bool:
        """Leave a job that keeps its type in its place unless it is slowed there; say whether."""
        allocator, slots = self.allocator, job.allocation.slots
        if len(slots) == 1 and slots[0][1] == job.spec.gpus_on(slots[0][0].gpu_type):
            # A whole gang on one node is not slowed.
            return slots[0][0].gpu_type == gpu_type and allocator.stay(job)
        stays, held = allocator.runs_on(job) == gpu_type, job.allocation.gangs
        if stays and allocator.rules.counts_spread and len(held) == 1:
            stays = self._throughput(job, held[0]) >= allocator.throughput(job, gpu_type)
        return stays and allocator.stay(job)

    def _best_seat(self, job: Job, gpu_type: GpuType) -> _Seat | None:
        """Return the cheapest of the present gang, free GPUs, and GPUs of displaced jobs."""
        allocator, seats = self.allocator, []
        if allocator.runs_on(job) == gpu_type and len(job.allocation.copies) == 1:
            (held,) = job.allocation.gangs
            if allocator.fits(job.allocation) and self._throughput(job, held) > 0:
                cost = _cost(job, gpu_type, self._throughput(job, held), moves=False)
                seats.append(_Seat(cost, held))
        free = allocator.gang_on(job, gpu_type)
        if free is not None:
            seats.append(_Seat(_cost(job, gpu_type, self._throughput(job, free)), free))
        best = min(seats, key=lambda seat: seat.cost, default=None)
        if best is None or self._throughput(job, best.gang) < allocator.throughput(job, gpu_type):
            return self._cleared(job, gpu_type, best) or best
        return best

    def _cleared(self, job: Job, gpu_type: GpuType, best: _Seat | None) -> _Seat | None:
        """Return a seat from which smaller jobs are displaced, if it costs less than `best`."""
        rules, spec = self.allocator.rules, job.spec
        most = best.cost if best else math.inf
        for shape in spec.shapes_on(gpu_type) if rules.is_uniform else ():
            is_spread = rules.counts_spread and shape.nodes > 1
            throughput = spec.throughputs.on(gpu_type, shape.num_gpus, is_spread=is_spread)
            if throughput > 0 and _cost(job, gpu_type, throughput) < most:
                seat = self._clear(job, gpu_type, shape, throughput)
                if seat and seat.cost < most:
                    return seat
        return None

    def _clear(self, job: Job, gpu_type: GpuType, shape: Shape, throughput: float) -> _Seat | None:
        """Return the seat of one shape that displaces jobs at the least cost."""
        offers = []
        for index, slot in enumerate(self.allocator.slots_for(job, gpu_type)):
            leaving = self._leaving(slot, shape.gpus_per_node, shape.num_gpus)
            if leaving is not None:
                offers.append((sum(map(self._loss, leaving)), index, slot, leaving))
        if len(offers) < shape.nodes:
            return None
        taken = sorted(offers)[: shape.nodes]
        return _Seat(
            _cost(job, gpu_type, throughput) + sum(loss for loss, *_ in taken),
            Gang.of({(slot.node, gpu_type): shape.gpus_per_node for _, _, slot, _ in taken}),
            tuple(other for *_, leaving in taken for other in leaving),
        )

    def _leaving(self, slot: Slot, gpus: int, below: int) -> list[Job] | None:
        """Return jobs of less than `below` GPUs without which a slot has `gpus` free, or None."""
        missing = gpus - self.allocator.free[slot]
        if missing <= 0:
            return []
        # All GPUs of these jobs are in the slot.
        sizes = {k: job.spec.gpus_on(slot.gpu_type) for k, job in self._movable_on(slot).items()}
        smaller = [job for k, job in self._movable_on(slot).items() if sizes[k] < below]
        if sum(sizes[job.job_id] for job in smaller) < missing:
            return None
        leaving, passed_over = [], []
        for job in sorted(smaller, key=lambda job: -sizes[job.job_id]):
            if sizes[job.job_id] <= missing:
                leaving.append(job)
                missing -= sizes[job.job_id]
            else:
                passed_over.append(job)
        # Each job passed over has more GPUs than are still missing: take the smallest.
        return leaving + passed_over[-1:] if missing > 0 else leaving

    def _loss(self, job: Job) -> float:
        """Return the GPU-seconds that a job loses if it is displaced."""
        is_running = job.phase is not Phase.QUEUED
        placed = self.allocator.placed[job.job_id]
        stays = is_running and placed == job.allocation
        size = sum(count for _, count in placed.slots)
        return size * job.spec.restart_cost_s if stays else 0.0

    def _throughput(self, job: Job, gang: Gang) -> float:
        return self.allocator.rules.throughput(gang, job.spec.throughputs)

    def _movable_on(self, slot: Slot) -> dict[JobId, Job]:
        for job in self._placed:
            slots = self.allocator.placed[job.spec.job_id].slots
            if len(slots) == 1:
                self._movable[slots[0][0]][job.spec.job_id] = job
        self._placed.clear()
        return self._movable[slot]

    def _slots(self, job: Job) -> list[Slot]:
        return [slot for slot, _ in self.allocator.placed[job.job_id].slots]


def _largest_first(choice: tuple[Job, GpuType]) -> tuple[int, bool]:
    """Return the sort key of a choice: large gangs first, of equals those that run."""
    job, gpu_type = choice
    return (-job.spec.gpus_on(gpu_type), job.phase is Phase.QUEUED)


def _cost(job: Job, gpu_type: GpuType, throughput: float, *, moves: bool = True) -> float:
    """Return the GPU-seconds that a job takes from now on at `throughput`, a restart included."""
    restart_s = job.spec.restart_cost_s if moves else 0.0
    return job.spec.gpus_on(gpu_type) * (job.steps_left / throughput + restart_s)
