"""The linear program behind `hadare`: how soon can all jobs be done if they may be forked?

Notation: job j has gangs of g_j GPUs and takes d_jr seconds with one copy on GPU type r; type r has
c_r GPUs; m_jr copies of the job could run on type r at once, each on a node of its own, and m_j
copies in all. A schedule trains job j for x_jr copy-seconds on type r.

    min T  such that  sum_r x_jr / d_jr >= 1    every job is done
                      sum_j g_j x_jr <= c_r T   every type has the time
                      x_jr <= m_jr T            every copy has a node
                      sum_r x_jr <= m_j T       no job has more copies than it may

This is the forking bound of `study/bounds.py` with rows for the copies. Its duals are prices: u_j
for doing job j, p_r for a GPU-second of type r. What job j does in a GPU-second of type r is *worth*
u_j / (g_j d_jr) / p_r of its price: 1 on types where an optimum may have it, less elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.policies.lp import Floats, LinearProgram, SolverLimits, solve_lp

# A type is free of charge if all of it is worth less than this share of everything.
_FREE = 1e-9
# A smaller part of a job than this is rounding.
_DONE = 1e-6


class Demand(NamedTuple):
    """One job: d_jr in seconds and m_jr by the types on which it could run, g_j and m_j."""

    alone_s: Mapping[GpuType, float]
    copies: Mapping[GpuType, int]
    num_gpus: int
    max_copies: int


class Prospect(NamedTuple):
    """What the optimum says of a job.

    `worth` is at most 1, and 1 where GPUs cost nothing. `tightness` is the largest share of the
    horizon for which the job needs all the copies it may have, on one type or in all: at 1 it can
    spare none at any time.
    """

    worth: Mapping[GpuType, float]
    tightness: float


@dataclass(frozen=True, slots=True)
class Forking:
    """The optimum: the horizon T in seconds, and a prospect for each demand, in order."""

    horizon_s: float
    prospects: Sequence[Prospect]


def solve_forking(
    demands: Sequence[Demand], gpus: Mapping[GpuType, int], limits: SolverLimits | None = None
) -> Forking:
    """Return the optimum on so many GPUs of each type, above 0; raises SolverError.

    A job that runs on none of the types is left out, and worth nothing anywhere.
    """
    kinds = list(gpus)
    able = [number for number, demand in enumerate(demands) if demand.alone_s]
    prospects = [Prospect({}, 0.0)] * len(demands)
    if not able:
        return Forking(0.0, prospects)
    jobs = [demands[number] for number in able]
    horizon_s, worth, tightness = _solve(
        np.array([[job.alone_s.get(kind, np.inf) for kind in kinds] for job in jobs]),
        np.array(
            [[min(job.copies.get(kind, 1), job.max_copies) for kind in kinds] for job in jobs]
        ),
        np.array([job.num_gpus for job in jobs], dtype=float),
        np.array([job.max_copies for job in jobs], dtype=float),
        np.array([gpus[kind] for kind in kinds], dtype=float),
        limits,
    )
    for number, job, row, tight in zip(able, jobs, worth, tightness, strict=True):
        values = {k: float(value) for k, value in zip(kinds, row, strict=True) if k in job.alone_s}
        prospects[number] = Prospect(values, float(tight))
    return Forking(horizon_s, prospects)


def _solve(
    alone_s: Floats,
    copies: Floats,
    gangs: Floats,
    most: Floats,
    gpus: Floats,
    limits: SolverLimits | None,
) -> tuple[float, Floats, Floats]:
    """Return T, worth (a row per job, a column per type) and tightness (a row per job)."""
    runs = np.isfinite(alone_s)
    jobs, kinds = np.nonzero(runs)
    num_jobs, num_kinds, num_parts = len(gangs), len(gpus), len(jobs)
    unit_s = float(alone_s[runs].mean())
    time = alone_s[runs] / unit_s
    share = gangs[jobs] * time / gpus[kinds]
    # No schedule is shorter than the cheapest ways to do all jobs, on GPUs that are all alike. What
    # no schedule of that length could exceed needs no row: few jobs ever press their limits.
    shortest = (gangs[:, None] * alone_s).min(axis=1).sum() / gpus.sum() / unit_s
    by_kind = np.flatnonzero((time > copies[runs] * shortest) & (copies[runs] < most[jobs]))
    pressed = np.unique(jobs[time > most[jobs] * shortest])
    in_all = np.flatnonzero(np.isin(jobs, pressed))
    # Columns: the part of each job done on each type, then T. Rows: jobs, then what T limits.
    rows, columns, values = [jobs], [np.arange(num_parts)], [np.ones(num_parts)]
    num_rows = num_jobs
    for row, column, value, count in (
        (kinds, np.arange(num_parts), share, num_kinds),
        (np.arange(len(by_kind)), by_kind, (time / copies[runs])[by_kind], len(by_kind)),
        (np.searchsorted(pressed, jobs[in_all]), in_all, (time / most[jobs])[in_all], len(pressed)),
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
    done, horizon = np.maximum(found.x[:-1], 0.0), float(found.x[-1])
    paid = np.maximum(-found.duals[num_jobs : num_jobs + num_kinds], 0.0)[kinds]
    is_good = (done > _DONE) | (paid <= _FREE)
    worth, used = np.zeros_like(alone_s), np.zeros_like(alone_s)
    gain = np.maximum(found.duals[:num_jobs], 0.0)[jobs]
    worth[runs] = np.where(
        is_good, 1.0, np.minimum(1.0, gain / np.where(is_good, 1.0, share * paid))
    )
    used[runs] = done * time / horizon
    tightness = np.maximum((used / copies).max(axis=1), used.sum(axis=1) / most)
    return horizon * unit_s, worth, tightness
