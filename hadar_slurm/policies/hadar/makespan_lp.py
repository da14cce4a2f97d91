"""How soon all jobs could be done, at what price of each GPU type, and who must not wait.

The makespan program over the jobs in view (Gavel, OSDI'20, section 4.2; bounds in the same form):

    min T   s.t.   sum_r rate_jr x_jr >= steps_j          every job does its work
                   sum_j W_j x_jr     <= capacity_r T     every GPU type has its time
                   sum_r x_jr         <= T                no job is in two places
                   x >= 0                                 seconds of job j's gang on type r

Its duals are the prices: what a GPU-second of each type is worth in seconds of T. Where T is set by
a few long jobs alone, GPUs cost nothing and everybody may take the fastest. Many x reach the same
T; a second program takes, on that optimal face, the one that spends the least time relative to each
job's own work, so that short jobs get fast GPUs.

Ours: jobs of one kind (same rates, same gang) that could not fill the horizon even on their
slowest type need no row of their own, since sum_r x_jr <= T cannot bind for them; those of like
size are one column a type together. The first program is the same, the second nearly so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hadar_slurm.core.cluster import JobId
from hadar_slurm.policies.policy import SolverLimits
from hadar_slurm.policies.solver import Floats, LinearProgram, solve_lp

# A share of the horizon below which a planned time is rounding.
_NOTHING = 1e-6
# A job that could last for this share of the horizon is long: it may have to go first.
_LONG = 0.8
# The second program may be so much longer than the first, for the rounding of the solver.
_SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class Demand:
    """One job as the program sees it: `throughputs` in steps/s on each type, 0 where it cannot run.

    `gpu_type` is the same for jobs that differ in nothing but their steps.
    """

    job_id: JobId
    gpu_type: object
    num_gpus: int
    steps_left: float
    throughputs: tuple[float, ...]

    @property
    def service(self) -> float:
        """Return the GPU-seconds left on the fastest type."""
        return self.num_gpus * self.steps_left / max(self.throughputs)


@dataclass(frozen=True, slots=True)
class Planned:
    """A long job's part of the program: seconds on each type, and its steps left at the time."""

    seconds: tuple[float, ...]
    steps_left: float

    def left_s(self, steps_left: float) -> float:
        """Return the seconds still planned, all types together, when so many steps are left."""
        return sum(self.seconds) * steps_left / self.steps_left


@dataclass(frozen=True, slots=True)
class Horizon:
    """An optimum of the program, made at `made_s` for `jobs`; all to be done by `ends_s`.

    `prices` by type, in seconds of the horizon per GPU-second. `planned` has the long jobs only:
    no other could be late.
    """

    made_s: float
    ends_s: float
    jobs: frozenset[JobId]
    prices: tuple[float, ...]
    planned: Mapping[JobId, Planned]


def find_horizon(
    demands: Sequence[Demand], capacity: Sequence[int], now_s: float, limits: SolverLimits
) -> Horizon:
    """Solve the two programs for `demands` on so many GPUs of each type.

    Every demand must be able to run somewhere. Raises SolverError.
    """
    least_s = _least_horizon_s(demands, capacity)
    columns = _columns(demands, least_s)
    first = _program(columns, capacity)
    # In units of the least horizon all numbers are near 1, whatever the jobs are.
    solved = solve_lp(first.program(least_s), limits=limits)
    length = float(solved.x[-1])
    fixed = first.program(least_s, at_most=length * (1 + _SLACK))
    plan = solve_lp(fixed, limits=limits).x[:-1].reshape(len(columns), len(capacity)) * least_s
    num_columns = len(columns)
    duals = -solved.duals[num_columns : num_columns + len(capacity)]
    planned = {
        column.members[0].job_id: Planned(
            tuple(float(s) if s > _NOTHING * length * least_s else 0.0 for s in seconds),
            column.members[0].steps_left,
        )
        for column, seconds in zip(columns, plan, strict=True)
        if column.is_long
    }
    return Horizon(
        now_s,
        now_s + length * least_s,
        frozenset(demand.job_id for demand in demands),
        tuple(float(price) for price in np.maximum(duals, 0.0)),
        planned,
    )


@dataclass(frozen=True, slots=True)
class _Column:
    """Jobs that share their columns of the program: one long job, or all short ones of a kind."""

    members: tuple[Demand, ...]
    is_long: bool

    @property
    def work_s(self) -> float:
        """Return the seconds all members need on their fastest type, one after the other."""
        first = self.members[0]
        return sum(demand.steps_left for demand in self.members) / max(first.throughputs)


def _least_horizon_s(demands: Sequence[Demand], capacity: Sequence[int]) -> float:
    """Return a time below which no plan is done: that of the longest job, or of all work."""
    longest = max(demand.service / demand.num_gpus for demand in demands)
    total = sum(demand.service for demand in demands) / max(1, sum(capacity))
    return max(longest, total)


def _columns(demands: Sequence[Demand], least_s: float) -> list[_Column]:
    long: list[_Column] = []
    short: dict[tuple[object, int], list[Demand]] = {}
    for demand in demands:
        slowest = min(throughput for throughput in demand.throughputs if throughput > 0)
        if demand.steps_left / slowest >= _LONG * least_s:
            long.append(_Column((demand,), is_long=True))
        else:
            # Within a factor of two of each other, so that the second program can tell them apart.
            size = int(math.log2(max(1e-9, demand.steps_left)))
            short.setdefault((demand.gpu_type, size), []).append(demand)
    return [*long, *(_Column(tuple(members), is_long=False) for members in short.values())]


@dataclass(frozen=True, slots=True)
class _Program:
    """The program's arrays, per column: relative speed on each type, gang, work, weight."""

    speed: Floats
    gang: Floats
    work_s: Floats
    weight: Floats
    is_long: np.ndarray[tuple[int], np.dtype[np.bool_]]
    capacity: Floats

    def program(self, unit_s: float, *, at_most: float | None = None) -> LinearProgram:
        """Return min T, or with T at most so long the least time relative to work; in `unit_s`."""
        num, gpu_types = self.speed.shape
        cells = np.arange(num * gpu_types)
        row, gpu_type = np.divmod(cells, gpu_types)
        runs = self.speed.ravel() > 0
        long = np.flatnonzero(self.is_long)
        of_long = self.is_long[row]
        own_row = np.cumsum(self.is_long) - 1
        last = num * gpu_types
        free = np.inf
        return LinearProgram(
            cost=np.append(np.zeros(last), 1.0)
            if at_most is None
            else np.append((self.weight * self.gang)[row], 0.0),
            rows=np.concatenate(
                (
                    row[runs],
                    num + gpu_type,
                    num + gpu_types + own_row[row[of_long]],
                    num + np.arange(gpu_types),
                    num + gpu_types + np.arange(len(long)),
                )
            ).astype(np.int32),
            columns=np.concatenate(
                (cells[runs], cells, cells[of_long], np.full(gpu_types + len(long), last))
            ).astype(np.int32),
            values=np.concatenate(
                (
                    self.speed.ravel()[runs],
                    self.gang[row],
                    np.ones(int(of_long.sum())),
                    -self.capacity,
                    -np.ones(len(long)),
                )
            ),
            row_lower=np.concatenate((self.work_s / unit_s, np.full(gpu_types + len(long), -free))),
            row_upper=np.concatenate((np.full(num, free), np.zeros(gpu_types + len(long)))),
            lower=np.zeros(last + 1),
            upper=np.append(np.where(runs, free, 0.0), free if at_most is None else at_most),
        )


def _program(columns: Sequence[_Column], capacity: Sequence[int]) -> _Program:
    throughputs = np.array([column.members[0].throughputs for column in columns])
    work_s = np.array([column.work_s for column in columns])
    gang = np.array([float(column.members[0].num_gpus) for column in columns])
    # A kind's time is shared by its members in proportion to their work: each counts once.
    members = np.array([float(len(column.members)) for column in columns])
    return _Program(
        speed=throughputs / throughputs.max(axis=1, keepdims=True),
        gang=gang,
        work_s=work_s,
        weight=members / np.maximum(gang * work_s, 1e-9) * work_s.max(),
        is_long=np.array([column.is_long for column in columns]),
        capacity=np.array(capacity, dtype=np.float64),
    )
