"""The linear program behind `hadare`: how soon can all jobs be done if they may be forked?

Notation: job j has gangs of g_j GPUs and takes d_jr seconds with one copy on GPU type r; type r has
c_r GPUs; m_jr copies of the job could run on type r at once, each on a node of its own, and m_j
copies in all. A schedule trains job j for x_jr copy-seconds on type r.

    min T  such that  sum_r x_jr / d_jr >= 1    every job is done
                      sum_j g_j x_jr <= c_r T   every type has the time
                      x_jr <= m_jr T            every copy has a node
                      sum_r x_jr <= m_j T       no job has more copies than it may

This is the forking bound of `lab.study.bounds` with rows for the copies. Its duals are prices: u_j
for doing job j, p_r for a GPU-second of type r. A GPU-second that job j spends on type r does
1 / (g_j d_jr) of it, which is *worth* u_j / (g_j d_jr p_r) of its price: 1 where the optimum has
the job or could have it as well, less elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.policies.policy import SolverLimits
from hadar_slurm.policies.solver import Floats, LinearProgram, solve_lp

# A type is free of charge if all of it is worth less than this share of everything.
_FREE = 1e-9
# A smaller part of a job than this is rounding.
_DONE = 1e-6


class ForkDemand(NamedTuple):
    """One job: d_jr in seconds and m_jr, by the types on which it could run; g_j and m_j."""

    alone_s: Mapping[GpuType, float]
    copies: Mapping[GpuType, int]
    num_gpus: int
    max_copies: int


class Forking(NamedTuple):
    """The optimum: T in seconds, and for each demand what it is worth by type, at most 1.

    Where GPUs cost nothing it is 1: others have no use for them.
    """

    horizon_s: float
    worth: Sequence[Mapping[GpuType, float]]


def solve_forking(
    demands: Sequence[ForkDemand], gpus: Mapping[GpuType, int], limits: SolverLimits | None = None
) -> Forking:
    """Return the optimum on so many GPUs of each type, all above 0; raises SolverError.

    A job that runs on none of the types is left out, and worth nothing anywhere.
    """
    worth: list[Mapping[GpuType, float]] = [{} for _ in demands]
    able = [number for number, demand in enumerate(demands) if demand.alone_s]
    if not able:
        return Forking(0.0, worth)
    jobs, gpu_types = [demands[number] for number in able], list(gpus)
    horizon_s, rows = _solve(
        np.array([[job.alone_s.get(gpu_type, np.inf) for gpu_type in gpu_types] for job in jobs]),
        np.array(
            [[job.copies.get(gpu_type, 1) for gpu_type in gpu_types] for job in jobs], dtype=float
        ),
        np.array([job.num_gpus for job in jobs], dtype=float),
        np.array([job.max_copies for job in jobs], dtype=float),
        np.array(list(gpus.values()), dtype=float),
        limits,
    )
    for number, job, row in zip(able, jobs, rows.tolist(), strict=True):
        worth[number] = {
            k: value for k, value in zip(gpu_types, row, strict=True) if k in job.alone_s
        }
    return Forking(horizon_s, worth)


def _solve(
    alone_s: Floats,
    copies: Floats,
    gangs: Floats,
    most: Floats,
    gpus: Floats,
    limits: SolverLimits | None,
) -> tuple[float, Floats]:
    """Return T and the worth of each job (row) on each type (column); `most` is m_j."""
    runs = np.isfinite(alone_s)
    jobs, gpu_types = np.nonzero(runs)
    num_jobs, num_kinds, num_parts = len(gangs), len(gpus), len(jobs)
    parts = np.arange(num_parts)
    # Seconds on one copy, and on all GPUs of the type, in a unit that makes them near 1.
    unit_s = float(alone_s[runs].mean())
    time = alone_s[runs] / unit_s
    share = gangs[jobs] * time / gpus[gpu_types]
    # No schedule is shorter than the cheapest ways to do all jobs, were all GPUs alike. A limit
    # that no schedule of that length exceeds needs no row, and few jobs ever come near theirs.
    shortest = (gangs[:, None] * alone_s).min(axis=1).sum() / gpus.sum() / unit_s
    crowded = np.flatnonzero((time > copies[runs] * shortest) & (copies[runs] < most[jobs]))
    limited = np.unique(jobs[time > most[jobs] * shortest])
    theirs = np.flatnonzero(np.isin(jobs, limited))
    # Columns: the part of each job done on each type, then T. Rows: jobs, then what T limits.
    rows, columns, values = [jobs], [parts], [np.ones(num_parts)]
    num_rows = num_jobs
    for row, column, value, count in (
        (gpu_types, parts, share, num_kinds),
        (np.arange(len(crowded)), crowded, (time / copies[runs])[crowded], len(crowded)),
        (np.searchsorted(limited, jobs[theirs]), theirs, (time / most[jobs])[theirs], len(limited)),
    ):
        rows += [num_rows + row, num_rows + np.arange(count)]
        columns += [column, np.full(count, num_parts)]
        values += [value, np.full(count, -1.0)]
        num_rows += count
    num_limits = num_rows - num_jobs
    found = solve_lp(
        LinearProgram(
            cost=np.append(np.zeros(num_parts), 1.0),
            rows=np.concatenate(rows).astype(np.int32),
            columns=np.concatenate(columns).astype(np.int32),
            values=np.concatenate(values),
            row_lower=np.append(np.ones(num_jobs), np.full(num_limits, -np.inf)),
            row_upper=np.append(np.full(num_jobs, np.inf), np.zeros(num_limits)),
            lower=np.zeros(num_parts + 1),
            upper=np.full(num_parts + 1, np.inf),
        ),
        limits=limits,
    )
    gain = np.maximum(found.duals[:num_jobs], 0.0)[jobs]
    price = np.maximum(-found.duals[num_jobs : num_jobs + num_kinds], 0.0)[gpu_types]
    is_worth_it = (found.x[:-1] > _DONE) | (price <= _FREE)
    worth = np.zeros_like(alone_s)
    cost = np.where(is_worth_it, 1.0, share * price)
    worth[runs] = np.where(is_worth_it, 1.0, np.minimum(1.0, gain / cost))
    return float(found.x[-1]) * unit_s, worth
