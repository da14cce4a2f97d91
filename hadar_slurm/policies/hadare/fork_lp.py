"""The linear program of `hadare`: the shortest time in which all jobs end if they may be forked.

Notation: on GPU type r a copy of job j has g_jr GPUs and takes d_jr seconds alone; type r has c_r
GPUs; m_jr copies of the job could run on type r at once, each on its own node, and m_j copies in
all. A schedule trains job j for x_jr copy-seconds on type r.

    min T  such that  sum_r x_jr / d_jr >= 1    every job is done
                      sum_j g_jr x_jr <= c_r T  every type has the time
                      x_jr <= m_jr T            every copy has a node
                      sum_r x_jr <= m_j T       no job exceeds its number of copies

This is the forking bound of `lab.study.bounds` with rows for the copies. Its duals are prices: u_j
for doing job j, p_r for a GPU-second of type r. A GPU-second that job j spends on type r does
1 / (g_jr d_jr) of it, which is *worth* u_j / (g_jr d_jr p_r) of its price: 1 where the optimum runs
the job or could run it, less elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.policies.policy import SolverLimits
from hadar_slurm.policies.solver import Floats, LinearProgram, solve_lp

# A type is free of charge if all of it is worth less than this share of all GPUs.
_FREE = 1e-9
# A smaller part of a job than this is rounding.
_DONE = 1e-6

_Ints = NDArray[np.intp]


class ForkDemand(NamedTuple):
    """One job: d_jr in seconds, m_jr and g_jr, by the types on which it could run; and m_j."""

    alone_s: Mapping[GpuType, float]
    copies: Mapping[GpuType, int]
    num_gpus: Mapping[GpuType, int]
    max_copies: int


class Forking(NamedTuple):
    """The optimum: T in seconds, and each demand's worth by type, at most 1 (1 on free GPUs)."""

    horizon_s: float
    worth: Sequence[Mapping[GpuType, float]]


def solve_forking(
    demands: Sequence[ForkDemand], gpus: Mapping[GpuType, int], limits: SolverLimits | None = None
) -> Forking:
    """Return the optimum on `gpus` of each type, all above 0; raises SolverError.

    A job that runs on none of the types is left out and has no worth.
    """
    worth: list[Mapping[GpuType, float]] = [{} for _ in demands]
    able = [number for number, demand in enumerate(demands) if demand.alone_s]
    if not able:
        return Forking(0.0, worth)
    horizon_s, rows = _solve([demands[number] for number in able], gpus, limits)
    for number, row in zip(able, rows.tolist(), strict=True):
        found = zip(gpus, row, strict=True)
        worth[number] = {k: value for k, value in found if k in demands[number].alone_s}
    return Forking(horizon_s, worth)


def _solve(
    demands: Sequence[ForkDemand], gpus: Mapping[GpuType, int], limits: SolverLimits | None
) -> tuple[float, Floats]:
    """Return T and the worth of each job (row) on each type (column)."""
    alone_s = np.array([[job.alone_s.get(k, np.inf) for k in gpus] for job in demands])
    copies = np.array([[job.copies.get(k, 1) for k in gpus] for job in demands], dtype=float)
    gangs = np.array([[job.num_gpus.get(k, 1) for k in gpus] for job in demands], dtype=float)
    most = np.array([job.max_copies for job in demands], dtype=float)
    room = np.array(list(gpus.values()), dtype=float)
    runs = np.isfinite(alone_s)
    jobs, gpu_types = np.nonzero(runs)
    num_jobs, num_types, num_parts = len(gangs), len(room), len(jobs)
    # Seconds on one copy, and on all GPUs of the type, in a unit that makes them near 1.
    unit_s = float(alone_s[runs].mean())
    time = alone_s[runs] / unit_s
    share = gangs[runs] * time / room[gpu_types]
    # No schedule is shorter than the cheapest ways to do all jobs if all GPUs were alike. A limit
    # that no schedule of that length exceeds needs no row, and few jobs ever come near theirs.
    shortest = (gangs * alone_s).min(axis=1).sum() / room.sum() / unit_s
    crowded = np.flatnonzero((time > copies[runs] * shortest) & (copies[runs] < most[jobs]))
    limited = np.unique(jobs[time > most[jobs] * shortest])
    of_limited = np.flatnonzero(np.isin(jobs, limited))
    limited_row = np.searchsorted(limited, jobs[of_limited])
    limits_of_t = (
        (gpu_types, np.arange(num_parts), share, num_types),
        (np.arange(len(crowded)), crowded, (time / copies[runs])[crowded], len(crowded)),
        (limited_row, of_limited, (time / most[jobs])[of_limited], len(limited)),
    )
    found = solve_lp(_program(jobs, num_jobs, limits_of_t), limits=limits)
    gain = np.maximum(found.duals[:num_jobs], 0.0)[jobs]
    price = np.maximum(-found.duals[num_jobs : num_jobs + num_types], 0.0)[gpu_types]
    is_worth_it = (found.x[:-1] > _DONE) | (price <= _FREE)
    worth = np.zeros_like(alone_s)
    cost = np.where(is_worth_it, 1.0, share * price)
    worth[runs] = np.where(is_worth_it, 1.0, np.minimum(1.0, gain / cost))
    return float(found.x[-1]) * unit_s, worth


def _program(
    jobs: _Ints, num_jobs: int, limits_of_t: Iterable[tuple[_Ints, _Ints, Floats, int]]
) -> LinearProgram:
    """Return the program: its columns are the part of each job done on each type, then T.

    Its rows are the jobs (`jobs` has that of each part), then what T limits: rows, columns, values,
    and the number of rows.
    """
    num_parts = len(jobs)
    blocks: list[tuple[_Ints, _Ints, Floats]] = [(jobs, np.arange(num_parts), np.ones(num_parts))]
    num_rows = num_jobs
    for row, column, value, count in limits_of_t:
        blocks.append((num_rows + row, column, value))
        limit_rows = num_rows + np.arange(count)
        blocks.append((limit_rows, np.full(count, num_parts), np.full(count, -1.0)))
        num_rows += count
    counts = [num_jobs, num_rows - num_jobs]
    bounds = (np.repeat([1.0, -np.inf], counts), np.repeat([np.inf, 0.0], counts))
    return LinearProgram.of(np.append(np.zeros(num_parts), 1.0), blocks, *bounds)
