"""Policies `gavel-max-min`, `-makespan`, `-max-sum`, `-ftf` and `-fifo`: Gavel's round mechanism.

Source: Gavel (OSDI'20, section 5) and its published simulator. `gavel` computes the shares; this
module turns them into rounds:

* A job's priority on a type is its share over the time it received there since the shares were
  last computed. That time starts at half a round, so new shares take effect at once.
* Types are served in a fixed order, the jobs of each type by priority, then by deficit (share x
  time passed, less time received, since the beginning), share and order of jobs. A job that already
  has GPUs, does not run on the type or does not fit is skipped.
* Shares are recomputed, and times reset, when jobs or GPUs have changed, but only `least_gap_s`
  after the last computation. Shares from time 0 are recomputed at the first change, since Gavel's
  simulator reads a last computation at time 0 as none.

Two more rules of Gavel's simulator apply only under its gang rules (`GangRules.counts_spread`
false) and if `is_strict`: a job that arrived since the last computation gets no GPUs, though its
GPUs stay reserved; and with `fifo` only jobs with a share run. If that leaves all GPUs idle, the
shares are recomputed at once. Otherwise such jobs, and those without nodes, get the GPUs left.

Shares are rounded to float32 (seven digits), so that identical jobs tie on every machine. Types
other than Gavel's three are served in order of the jobs' mean relative throughput, fastest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hadar_slurm.core.cluster import GpuType, JobId
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.errors import SolverError
from hadar_slurm.lab.policies.gavel import (
    OBJECTIVES,
    GavelDemand,
    equal_shares,
    isolated_throughputs,
)
from hadar_slurm.lab.policies.interior import Floats
from hadar_slurm.lab.policies.lengths import unknown_lengths
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.node_assignment import assign_nodes
from hadar_slurm.policies.entry_point import without_options
from hadar_slurm.policies.policy import open_gpus

_Rows = NDArray[np.intp]

_ORDER_OF_TYPES = ("v100", "p100", "k80")
# The other objectives ignore the steps left.
_KNOW_LENGTHS = ("makespan", "ftf")
_HOLDS_GPUS = (Phase.RUNNING, Phase.STARTING)


@dataclass(frozen=True, slots=True)
class Gavel:
    """The policy; `objective` is a name in `gavel.OBJECTIVES`, `least_gap_s` in seconds."""

    objective: str = "max-min"
    least_gap_s: float = 1920.0
    is_strict: bool = True

    @property
    def name(self) -> str:
        """Return the policy's name on the command line."""
        return f"gavel-{self.objective}"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return the plan for `round_`, with the shares in its memory while they are valid."""
        visible = snapshot if self.objective in _KNOW_LENGTHS else unknown_lengths(snapshot)
        allocator = Allocator(visible, round_)
        ledger = _Ledger.carried_on(round_.memory, snapshot, allocator.gpu_types)
        is_new = ledger.is_due(self.least_gap_s)
        if is_new:
            ledger = ledger.with_new_shares(self.objective, allocator)
        chosen, withheld = self._choose(ledger, allocator, round_.length_s)
        if withheld and not (chosen or allocator.placed or is_new):
            is_new, ledger = True, ledger.with_new_shares(self.objective, allocator)
            chosen, withheld = self._choose(ledger, allocator, round_.length_s)
        for job, gpu_type in chosen:
            allocator.choose(job, gpu_type)
        assign_nodes(allocator)
        if not withheld:
            allocator.fill(sorted(allocator.jobs, key=lambda job: job.spec.submitted_s))
        figures = {"shares_computed": float(is_new), "solver_fallback": float(ledger.is_fallback)}
        return allocator.plan(figures=figures, memory=ledger)

    def _choose(
        self, ledger: _Ledger, allocator: Allocator, length_s: float
    ) -> tuple[list[tuple[Job, GpuType]], bool]:
        """Return the chosen (job, type) pairs, and whether a job that fits was withheld."""
        is_strict = self.is_strict and not allocator.rules.counts_spread
        needs_share = is_strict and self.objective == "fifo"
        books = ledger.books.at([ledger.rows[job.job_id] for job in allocator.jobs])
        priorities = books.shares / (length_s / 2.0 + books.received_s)
        taken: set[int] = set()
        chosen: list[tuple[Job, GpuType]] = []
        withheld = False
        for column in ledger.order:
            gpu_type = allocator.gpu_types[column]
            room = allocator.room(gpu_type)
            keys = (books.shares, books.deficits_s, priorities)
            for row in np.lexsort([-key[:, column] for key in keys]).tolist():
                job, size = allocator.jobs[row], allocator.jobs[row].spec.num_gpus
                if row in taken or size > room or not allocator.may_use(job, gpu_type):
                    continue
                if needs_share and priorities[row, column] <= 0:
                    withheld = True
                    continue
                taken.add(row)
                room -= size
                if is_strict and not books.is_known[row]:
                    withheld = True
                else:
                    chosen.append((job, gpu_type))
        return chosen, withheld


@dataclass(frozen=True, eq=False, slots=True)
class _Books:
    """State kept per job: arrays (jobs,) or (jobs, types)."""

    # (jobs, types) current shares.
    shares: Floats
    # (jobs, types) time received since the shares were computed.
    received_s: Floats
    # (jobs, types) deficit before that.
    deficits_s: Floats
    # Steps done at the last plan.
    steps_done: Floats
    # Whether the job was present when the shares were computed.
    is_known: NDArray[np.bool_]
    # Steps left when the shares were computed (this and the next two: finish-time fairness).
    steps_left: Floats
    # Steps/s at that time on a private 1/n of the cluster.
    isolated_throughputs: Floats
    # Time until then on such a private share.
    isolated_s: Floats

    def at(self, rows: Sequence[int]) -> _Books:
        """Return the books with these rows in this order, a zero row for each -1."""
        wanted = np.array(rows, dtype=int)
        old = [getattr(self, field_.name) for field_ in fields(self)]
        zeros = [np.zeros_like(array, shape=(1, *array.shape[1:])) for array in old]
        return _Books(*(np.append(a, zero, 0)[wanted] for a, zero in zip(old, zeros, strict=True)))


@dataclass(frozen=True, eq=False, slots=True)
class _Ledger:
    """State carried from plan to plan: the books of all present jobs and their context."""

    gpu_types: tuple[GpuType, ...]
    books: _Books
    jobs: tuple[Job, ...] = ()
    # A job's row in the books.
    rows: Mapping[JobId, int] = field(default_factory=dict)
    # GPUs of each type on schedulable nodes.
    capacity: tuple[int, ...] = ()
    now_s: float = 0.0
    # When the shares were computed, and for which jobs and GPUs.
    computed_s: float = 0.0
    computed_for: object = None
    # Order in which the columns are served.
    order: tuple[int, ...] = ()
    # Whether the solver failed and the shares are equal ones.
    is_fallback: bool = False

    @classmethod
    def carried_on(
        cls, memory: object, snapshot: Snapshot, gpu_types: tuple[GpuType, ...]
    ) -> _Ledger:
        """Return the previous plan's ledger, updated to the snapshot."""
        if isinstance(memory, cls) and memory.gpu_types == gpu_types:
            before = memory
        else:
            table, column = np.zeros((0, len(gpu_types))), np.zeros(0)
            books = _Books(
                table,
                received_s=table,
                deficits_s=table,
                steps_done=column,
                is_known=column > 0,
                steps_left=column,
                isolated_throughputs=column,
                isolated_s=column,
            )
            before = cls(gpu_types, books)
        jobs = tuple(job for job in snapshot.jobs if not job.phase.is_final)
        ids = [job.job_id for job in jobs]
        rows, books = before.rows, before.books
        if ids != list(rows):
            books = books.at([rows.get(job_id, -1) for job_id in ids])
            rows = {job_id: row for row, job_id in enumerate(ids)}
        ledger = replace(before, books=books, jobs=jobs, rows=rows, now_s=snapshot.now_s)
        times_s = ledger._times_given_s(snapshot, snapshot.now_s - before.now_s)
        steps_done = np.array([job.progress.steps_done for job in jobs])
        books = replace(books, received_s=books.received_s + times_s, steps_done=steps_done)
        return replace(ledger, books=books, capacity=open_gpus(snapshot, gpu_types))

    def _times_given_s(self, snapshot: Snapshot, passed_s: float) -> Floats:
        """Return the seconds that each job received on each type since the last plan."""
        times_s = np.zeros((len(self.jobs), len(self.gpu_types)))
        for row, job in enumerate(self.jobs):
            # Time received before the first shares that include the job is not counted.
            if not (job.phase in _HOLDS_GPUS and job.allocation and self.books.is_known[row]):
                continue
            given_s = passed_s
            if not snapshot.rules.counts_spread:
                # Under Gavel's rules: the duration of its whole steps.
                throughput = job.allocation.throughput(job.spec.throughputs, counts_spread=False)
                steps = round(job.progress.steps_done - self.books.steps_done[row])
                given_s = steps / throughput if throughput > 0 else 0.0
            held = {slot.gpu_type for gang in job.allocation.gangs for slot, _ in gang.slots}
            times_s[row, [self.gpu_types.index(gpu_type) for gpu_type in held]] = given_s
        return times_s

    def is_due(self, least_gap_s: float) -> bool:
        """Return whether the shares must be recomputed."""
        if not self.jobs or self.computed_for == (tuple(self.rows), self.capacity):
            return False
        is_old = self.computed_s == 0.0 or self.now_s - self.computed_s >= least_gap_s
        return self.computed_for is None or is_old

    def with_new_shares(self, objective: str, allocator: Allocator) -> _Ledger:
        """Return the ledger with new shares and times reset."""
        books, throughputs = self.books, _throughputs(allocator, self.jobs)
        shares, isolated = np.zeros(throughputs.shape), np.zeros(len(throughputs))
        steps_left = np.array([job.steps_left for job in self.jobs])
        # The seconds that each job's steps would have taken on a private 1/n.
        before = np.where(books.isolated_throughputs > 0, books.isolated_throughputs, np.inf)
        isolated_s = books.isolated_s + (books.steps_left - steps_left) / before
        columns = np.flatnonzero(self.capacity)
        rows = np.flatnonzero(throughputs[:, columns].max(axis=1, initial=0.0))
        is_fallback = False
        if rows.size:
            demand = self._demand(rows, columns, throughputs)
            isolated[rows] = isolated_throughputs(demand)
            # A new job's past is assumed to have had the present isolated rate.
            new_s = books.steps_done[rows] / isolated[rows]
            isolated_s[rows] = np.where(books.is_known[rows], isolated_s[rows], new_s)
            try:
                found = OBJECTIVES[objective](replace(demand, isolated_s=isolated_s[rows]))
            except SolverError:
                is_fallback, found = True, equal_shares(demand)
            shares[np.ix_(rows, columns)] = found.astype(np.float32)
        passed_s = self.now_s - self.computed_s
        books = replace(
            books,
            shares=np.where(throughputs > 0, shares, 0.0),
            received_s=np.zeros(throughputs.shape),
            deficits_s=books.deficits_s + books.shares * passed_s - books.received_s,
            is_known=np.ones(len(throughputs), dtype=bool),
            steps_left=steps_left,
            isolated_throughputs=isolated,
            isolated_s=isolated_s,
        )
        return replace(
            self,
            books=books,
            computed_s=self.now_s,
            computed_for=(tuple(self.rows), self.capacity),
            order=_order_of_types(allocator.gpu_types, throughputs),
            is_fallback=is_fallback,
        )

    def _demand(self, rows: _Rows, columns: _Rows, throughputs: Floats) -> GavelDemand:
        """Return the demand of some jobs for some types, without isolated times."""
        jobs = [self.jobs[row] for row in rows]
        age_s = self.now_s - np.array([job.spec.submitted_s for job in jobs])
        return GavelDemand(
            gangs=np.array([job.spec.num_gpus for job in jobs], dtype=float),
            throughputs=throughputs[np.ix_(rows, columns)],
            steps_left=np.maximum(1.0, [job.steps_left for job in jobs]),
            age_s=np.maximum(0.0, age_s),
            isolated_s=np.zeros(len(jobs)),
            capacity=np.array(self.capacity, dtype=float)[columns],
        )


def _throughputs(allocator: Allocator, jobs: Sequence[Job]) -> Floats:
    """Return the steps/s of each job on each type, 0 where it could not run."""
    throughputs = [
        allocator.throughput(job, gpu_type) if allocator.may_use(job, gpu_type) else 0.0
        for job in jobs
        for gpu_type in allocator.gpu_types
    ]
    return np.array(throughputs, dtype=float).reshape(len(jobs), len(allocator.gpu_types))


def _order_of_types(gpu_types: Sequence[GpuType], throughputs: Floats) -> tuple[int, ...]:
    """Return the columns of the types in the order in which they are served."""
    names = [gpu_type.lower() for gpu_type in gpu_types]
    if set(names) <= set(_ORDER_OF_TYPES):
        return tuple(names.index(name) for name in _ORDER_OF_TYPES if name in names)
    best = throughputs.max(axis=1, initial=0.0, keepdims=True)
    speeds = (throughputs / np.where(best > 0, best, 1.0)).sum(axis=0)
    return tuple(sorted(range(len(gpu_types)), key=lambda column: -round(speeds[column], 9)))


# The entry points.
max_min, makespan, max_sum, ftf, fifo = (
    without_options(partial(Gavel, objective)) for objective in OBJECTIVES
)
