"""Gavel's objectives: the fraction of time that each job spends on each GPU type.

Source: Gavel (OSDI'20, section 4) and its published simulator; the variants that know throughputs
("perf"). An objective turns a `GavelDemand` into shares X, one row a job and one column a GPU type,
with X >= 0, at most all of a job's time in its row and a type's GPUs, sum of gang x X, in its
column. `gavel_rounds` turns the shares into rounds. Jobs have no weights here; Gavel's are 1.

With gang sizes s, rates T and steps left R of job m:

* max-min: max min_m s_m (T X)_m / T'_m, where T' is the rate on an equal share of every type.
* makespan: the shortest horizon H with (T X)_m >= R_m / H for all m. Gavel halves an interval
  to 5 % and takes any shares that the solver returns at the last feasible H. We find the shortest
  horizon with one program and repeat the halving to the same H.
* max-sum: max sum_m (T X)_m, in steps/s, so models with many small steps come first.
* ftf (finish-time fairness, from Themis, NSDI'20): min max_m of the time in the shared cluster,
  age_m + R_m / (T X)_m, over that on a private 1/n of it. Gavel solves one cone program; we
  bisect on the ratio with one linear program per step.
* fifo: in order of arrival each job takes the fastest type with room. A job that trains on no type
  with room is skipped; the first job for which no type has room ends the list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from hadar_slurm.errors import SolverError
from hadar_slurm.lab.policies.interior import Floats, Inside, ShareProgram, solve_inside

# Gavel's search for the horizon of its makespan policy: first interval in seconds, growth factor of
# the upper end while nothing is feasible, ratio of the ends at which it stops.
_HORIZON_S = (100.0, 1e6)
_HORIZON_GROWTH = 10.0
_HORIZON_GAP = 1.05
# A horizon this much above the shortest is surely feasible.
_ROUNDING = 1e-7
# The search for the ratio of finish times: relative precision, and maximum number of steps.
_RATIO_GAP = 1e-3
_RATIO_TRIES = 40


@dataclass(frozen=True, slots=True)
class GavelDemand:
    """The jobs that request GPUs, n rows, and the cluster, one column a GPU type."""

    # (n,) GPUs of each gang.
    gangs: Floats
    # (n, types) steps/s of the whole gang; 0 where it does not run, above 0 on one type at least.
    throughputs: Floats
    # (n,) above 0.
    steps_left: Floats
    # (n,) seconds since submission.
    age_s: Floats
    # (n,) seconds that the steps done so far would have taken on a private 1/n of the cluster.
    isolated_s: Floats
    # (types,) GPUs, above 0.
    capacity: Floats


Objective = Callable[[GavelDemand], Floats]


def max_min(demand: GavelDemand) -> Floats:
    """Return shares that maximise the smallest gain over an equal share of every type."""
    equal = demand.throughputs @ (demand.capacity / demand.capacity.sum())
    return _most_level(demand, demand.throughputs * (demand.gangs / equal)[:, None]).shares


def makespan(demand: GavelDemand) -> Floats:
    """Return shares with which all jobs end within 5 % of the shortest horizon."""
    longest_s = float((demand.steps_left / demand.throughputs.max(axis=1)).max())
    best = _most_level(demand, demand.throughputs * (longest_s / demand.steps_left)[:, None])
    if best.level <= 0:
        raise SolverError("no finite horizon completes the jobs")
    horizon_s = search_horizon(longest_s / best.level * (1.0 + _ROUNDING))
    needs = demand.steps_left / horizon_s
    gangs, capacity = demand.gangs, demand.capacity
    program = ShareProgram(gangs, capacity, throughputs=demand.throughputs, needs=needs)
    try:
        return solve_inside(program).shares
    except SolverError:
        # At the shortest horizon itself the feasible set has almost no interior.
        return best.shares


def max_sum(demand: GavelDemand) -> Floats:
    """Return shares that maximise the total steps/s."""
    program = ShareProgram(demand.gangs, demand.capacity, cost=-demand.throughputs)
    return solve_inside(program).shares


def finish_time_fairness(demand: GavelDemand) -> Floats:
    """Return shares that minimise the largest ratio of finish times, shared to isolated."""
    alone_s = demand.isolated_s + demand.steps_left / isolated_throughputs(demand)

    def ratio(throughputs: Floats) -> float:
        return float(((demand.age_s + demand.steps_left / throughputs) / alone_s).max())

    shares = equal_shares(demand)
    low = ratio(demand.throughputs.max(axis=1))
    high = ratio((demand.throughputs * shares).sum(axis=1))
    for _ in range(_RATIO_TRIES):
        if high <= low * (1.0 + _RATIO_GAP):
            break
        tried = math.sqrt(low * high)
        needs = demand.steps_left / (tried * alone_s - demand.age_s)
        found = _most_level(demand, demand.throughputs / needs[:, None])
        reached = ratio(np.maximum((demand.throughputs * found.shares).sum(axis=1), 1e-300))
        if reached < high:
            shares, high = found.shares, reached
        if found.level < 1.0:
            low = tried
    return shares


def fifo(demand: GavelDemand) -> Floats:
    """Return whole types for the first jobs in order of arrival, until one does not fit."""
    shares, room = np.zeros(demand.throughputs.shape), demand.capacity.copy()
    for row in np.argsort(-demand.age_s, kind="stable"):
        fits = room >= demand.gangs[row]
        if not fits.any():
            break
        fastest = int(np.argmax(np.where(fits, demand.throughputs[row], -1.0)))
        if demand.throughputs[row, fastest] > 0:
            shares[row, fastest] = 1.0
            room[fastest] -= demand.gangs[row]
    return shares


OBJECTIVES: Mapping[str, Objective] = {
    "max-min": max_min,
    "makespan": makespan,
    "max-sum": max_sum,
    "ftf": finish_time_fairness,
    "fifo": fifo,
}


def equal_shares(demand: GavelDemand) -> Floats:
    """Return the shares that give every GPU of every gang an equal fraction of every type."""
    part = demand.capacity / demand.gangs.sum()
    return np.tile(part / max(1.0, float(part.sum())), (len(demand.gangs), 1))


def isolated_throughputs(demand: GavelDemand) -> Floats:
    """Return each job's steps/s on a private 1/n of every type.

    A gang of W GPUs runs there 1/W of the time; rows are scaled so that the largest sum is 1.
    """
    shares = demand.capacity / (len(demand.gangs) * demand.gangs)[:, None]
    throughputs: Floats = (demand.throughputs * (shares / shares.sum(axis=1).max())).sum(axis=1)
    return throughputs


def search_horizon(shortest_s: float) -> float:
    """Return the horizon at which Gavel's halving ends if all >= `shortest_s` are feasible."""
    low, end = _HORIZON_S
    while True:
        high = end
        while _HORIZON_GAP * low < high:
            middle = (low + high) / 2.0
            low, high = (low, middle) if middle >= shortest_s else (middle, high)
        if high < end:
            return high
        low, end = end, end * _HORIZON_GROWTH


def _most_level(demand: GavelDemand, throughputs: Floats) -> Inside:
    """Return the shares that maximise the minimum over the jobs of sum(rates x shares)."""
    program = ShareProgram(demand.gangs, demand.capacity, throughputs=throughputs, has_level=True)
    return solve_inside(program)
