"""The shortest time in which all jobs could be done, the GPU types' prices, and the critical jobs.

The makespan program over the jobs in view (Gavel, OSDI'20, section 4.2; bounds in the same form):

    min T   s.t.   sum_r rate_jr x_jr >= steps_j          every job does its work
                   sum_j W_j x_jr     <= capacity_r T     every GPU type has its time
                   sum_r x_jr         <= T                no job runs twice at the same time
                   x >= 0                                 seconds of job j's gang on type r

Its duals are the prices: the value of a GPU-second of each type in seconds of T. Where a few long
jobs alone determine T, GPUs cost nothing and every job may take the fastest. Many x reach the same
T; a second program takes, on that optimal face, the one with the least time relative to each job's
own work, so that short jobs get fast GPUs.

Our addition: jobs of one group (same throughputs, same gang) that could not fill the horizon even
on their slowest type need no row of their own, since sum_r x_jr <= T cannot bind for them; those of
similar length share one column per type. The first program is the same, the second nearly so. Of
more than a thousand long jobs, those of a group whose steps differ by less than 5 % share a column
and a row, as if each had the mean: T is short by as much at most.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hadar_slurm.core.cluster import GpuType, JobId, TypeIndex
from hadar_slurm.policies.policy import SolverLimits
from hadar_slurm.policies.solver import Floats, LinearProgram, solve_lp

# A planned time below this share of the horizon is rounding.
_NOTHING = 1e-6
# A job that could take this share of the horizon is long: it may have to go first.
_LONG = 0.8
# More long jobs share columns where their steps differ by less than this share.
_MANY_LONG, _SAME_STEPS = 1000, 0.05
# The second program's T may exceed the first's by this share: the solver's rounding.
_SLACK = 1e-6


@dataclass(frozen=True, slots=True)
class Demand:
    """A job in the program."""

    job_id: JobId
    # Equal for jobs that differ only in their steps.
    group: object
    num_gpus: int
    steps_left: float
    # Steps/s on each type, 0 where it cannot run.
    throughputs: tuple[float, ...]

    @property
    def service(self) -> float:
        """Return the GPU-seconds left on the fastest type."""
        return self.num_gpus * self.steps_left / max(self.throughputs)


@dataclass(frozen=True, slots=True)
class Planned:
    """A long job's part of the optimum: seconds on each type for the steps left at that time."""

    seconds: tuple[float, ...]
    steps_left: float

    def left_s(self, steps_left: float) -> float:
        """Return the seconds still planned on all types when `steps_left` are left."""
        return sum(self.seconds) * steps_left / self.steps_left

    def speeds(self, types: Sequence[TypeIndex], speeds: Sequence[float]) -> tuple[float, float]:
        """Return the speed on the first of the planned `types`, and on the others as planned.

        `speeds`: by type. 0 for the others if there are none.
        """
        first, *others = types
        others_s = sum(self.seconds[index] for index in others)
        other = sum(self.seconds[index] * speeds[index] for index in others)
        return speeds[first], other / others_s if others_s else 0.0

    def types(self, usable: Sequence[TypeIndex]) -> tuple[TypeIndex, ...]:
        """Return those of the `usable` types on which time is planned, in their order."""
        return tuple(index for index in usable if self.seconds[index])


@dataclass(frozen=True, slots=True)
class Horizon:
    """An optimum of the program."""

    made_s: float
    # When all jobs end.
    ends_s: float
    jobs: frozenset[JobId]
    # By type, in seconds of the horizon per GPU-second.
    prices: tuple[float, ...]
    # Only long jobs can exceed the horizon, so only they have an entry.
    planned: Mapping[JobId, Planned]
    # The cluster's types then, in the order of `prices`, and the GPUs of each that jobs could have.
    gpu_types: tuple[GpuType, ...] = ()
    gpus: tuple[int, ...] = ()


def find_horizon(
    demands: Sequence[Demand], capacity: Sequence[int], now_s: float, limits: SolverLimits
) -> Horizon:
    """Solve the two programs for `demands` on `capacity` GPUs of each type.

    Every demand must be able to run somewhere. Raises SolverError.
    """
    # In units of a lower bound of T all numbers are near 1.
    longest_s = max(demand.service / demand.num_gpus for demand in demands)
    least_s = max(longest_s, sum(d.service for d in demands) / max(1, sum(capacity)))
    columns = _columns(demands, least_s)
    program = partial(_program, columns, np.array(capacity, dtype=np.float64), least_s)
    solved = solve_lp(program(), limits=limits)
    length = float(solved.x[-1])
    second = solve_lp(program(at_most=length * (1 + _SLACK)), limits=limits)
    plan = second.x[:-1].reshape(len(columns), len(capacity)) * least_s
    duals = -solved.duals[len(columns) : len(columns) + len(capacity)]
    plan[plan <= _NOTHING * length * least_s] = 0.0
    planned = {
        demand.job_id: Planned(tuple(seconds), column.steps_left)
        for column, seconds in zip(columns, plan.tolist(), strict=True)
        if column.is_long
        for demand in column.members
    }
    prices = tuple(float(price) for price in np.maximum(duals, 0.0))
    jobs = frozenset(demand.job_id for demand in demands)
    return Horizon(
        now_s, ends_s=now_s + length * least_s, jobs=jobs, prices=prices, planned=planned
    )


@dataclass(frozen=True, slots=True)
class _Column:
    """Jobs that share their columns of the program: similar short ones, or one or more long."""

    members: tuple[Demand, ...]
    is_long: bool

    @property
    def steps_left(self) -> float:
        """Return the steps of all members."""
        return sum(demand.steps_left for demand in self.members)

    @property
    def work_s(self) -> float:
        """Return the seconds all members need on their fastest type, one after the other."""
        return self.steps_left / max(self.members[0].throughputs)


def _columns(demands: Sequence[Demand], least_s: float) -> list[_Column]:
    long: list[Demand] = []
    short: list[Demand] = []
    for demand in demands:
        slowest = min(throughput for throughput in demand.throughputs if throughput > 0)
        is_long = demand.steps_left / slowest >= _LONG * least_s
        (long if is_long else short).append(demand)
    found = [_Column((demand,), is_long=True) for demand in long]
    if len(long) > _MANY_LONG:
        found = [_Column(members, is_long=True) for members in _alike(long, 1 + _SAME_STEPS)]
    # Steps left within a factor of two: the second program weighs jobs by their work.
    return found + [_Column(members, is_long=False) for members in _alike(short, 2.0)]


def _alike(demands: Sequence[Demand], factor: float) -> Iterable[tuple[Demand, ...]]:
    """Return the demands by group and steps left, these within `factor` of each other."""
    classes: defaultdict[tuple[object, int], list[Demand]] = defaultdict(list)
    unit = math.log(factor)
    for demand in demands:
        scale = int(math.log(max(1e-9, demand.steps_left)) / unit)
        classes[demand.group, scale].append(demand)
    return map(tuple, classes.values())


def _program(
    columns: Sequence[_Column], capacity: Floats, unit_s: float, *, at_most: float | None = None
) -> LinearProgram:
    """Return min T, or for T <= `at_most` the least time relative to work; in units of `unit_s`."""
    throughputs = np.array([column.members[0].throughputs for column in columns])
    speed = (throughputs / throughputs.max(axis=1, keepdims=True)).ravel()
    gang = np.array([float(column.members[0].num_gpus) for column in columns])
    work_s = np.array([column.work_s for column in columns])
    is_long = np.array([column.is_long for column in columns])
    members = np.array([float(len(column.members)) for column in columns])
    num, types, num_long = len(columns), len(capacity), int(is_long.sum())
    # Variables: one cell per column of jobs and type, then T. Rows: work, capacity, one place.
    cells, horizon = np.arange(num * types), num * types
    row, gpu_type = np.divmod(cells, types)
    runs, of_long = speed > 0, is_long[row]
    own_row = num + types + np.cumsum(is_long) - 1
    work = (row[runs], cells[runs], speed[runs])
    capacity_used = (num + gpu_type, cells, gang[row])
    capacity_given = (num + np.arange(types), horizon, -capacity)
    time_used = (own_row[row[of_long]], cells[of_long], 1.0)
    time_given = (own_row[is_long], horizon, -members[is_long])
    cost = np.append(np.zeros(num * types), 1.0)
    if at_most is not None:
        # Members share their column's time in proportion to their work: each counts once.
        weight = members / np.maximum(gang * work_s, 1e-9) * work_s.max()
        cost = np.append((weight * gang)[row], 0.0)
    return LinearProgram.of(
        cost,
        (work, capacity_used, capacity_given, time_used, time_given),
        row_lower=np.append(work_s / unit_s, np.full(types + num_long, -np.inf)),
        row_upper=np.repeat([np.inf, 0.0], [num, types + num_long]),
        bounds=(
            None,
            np.append(np.where(runs, np.inf, 0.0), np.inf if at_most is None else at_most),
        ),
    )
