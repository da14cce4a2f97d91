"""Hare's offline planner: rounds of tasks on several GPU types, minimising weighted JCT.

Source: Hare (HPDC'22; IEEE Transactions on Cloud Computing 12(4), 2024): *relaxed fixed-scale
synchronisation*. All tasks of a round of a job train and synchronise before the next round, but
need neither run at the same time nor on distinct GPUs, so convergence is that of synchronous SGD.
Only the abstracts are openly available; program and bound below are reconstructed.

Arrivals, weights and sizes are known. On GPU m a task of job n trains T_nm seconds, then
synchronises S_nm seconds, during which the GPU may run the next task. Switching a GPU between jobs
costs `switch_s`: seconds by default, milliseconds with Hare's fast switching.

* *Order from a linear program.* Variables are the mean midpoint M_nr of the tasks of each round and
  the end C_n of each job; the objective is sum w_n C_n. Rounds follow each other; and for prices
  p_m of GPUs with sum 1, b_n = min_m p_m T_nm, every set A of tasks that arrive at a or later has

      sum_A b M >= a b(A) + b(A)^2 / 2,

  since at most 1 of priced GPU is in use. With equal prices these are Queyranne's inequalities for
  parallel machines; we add the prices of the makespan program. The most violated inequality is
  added until none is violated. Tasks are served by midpoint.
* *Order without a program* (our own). Jobs by work on the mean GPU, all rounds, over weight.
* *List scheduling.* Tasks in that order, each on the GPU that ends it first, with backfill while a
  task waits for that GPU. The better of both orders is used.

Hare proves sum w C <= alpha (2 + alpha) optimum, alpha being the largest ratio of a job's slowest
to its fastest GPU. `benchmarks/hare.py` checks it here on random instances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hadar_slurm.policies.policy import SolverLimits
from hadar_slurm.policies.solver import Floats, LinearProgram, solve_lp

# An inequality may be violated by this fraction of its right side.
_TOLERANCE = 1e-6
_MAX_TURNS = 60


@dataclass(frozen=True, slots=True)
class RoundJob:
    """A job in rounds of tasks; times in seconds by GPU, each GPU a column."""

    train_s: tuple[float, ...]
    sync_s: tuple[float, ...]
    rounds: int
    tasks: int
    arrival_s: float = 0.0
    weight: float = 1.0

    @property
    def work_s(self) -> float:
        """Return the seconds that one GPU of harmonic-mean speed needs for all tasks."""
        return self.rounds * self.tasks * float(np.mean(self.train_s))

    @property
    def least_round_s(self) -> float:
        """Return the least time from the start of a task to its synchronisation."""
        return min(map(sum, zip(self.train_s, self.sync_s, strict=True)))


class HareTask(NamedTuple):
    """A placed task: job and round by number, GPU, start and end of its training."""

    job: int
    round: int
    gpu: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Timetable:
    """All tasks, in the order in which they start, and the end of each job."""

    tasks: tuple[HareTask, ...]
    ends_s: tuple[float, ...]

    def weighted_s(self, jobs: Sequence[RoundJob]) -> float:
        """Return the sum of weight times completion time (JCT, from arrival)."""
        ends = zip(jobs, self.ends_s, strict=True)
        return sum(job.weight * (end_s - job.arrival_s) for job, end_s in ends)


# Rank of a round of a job: the lower is served first.
Rank = Callable[[int, int], float]


def plan_offline(
    jobs: Sequence[RoundJob], *, switch_s: float = 0.0, limits: SolverLimits | None = None
) -> Timetable:
    """Return the better of the timetables by the program's order and by the order without it."""
    relaxed = relax(jobs, limits=limits)
    ranks = (relaxed.rank, lambda job, _: order_without_program(jobs[job]))
    found = [list_schedule(jobs, rank, switch_s=switch_s) for rank in ranks]
    return min(found, key=lambda timetable: timetable.weighted_s(jobs))


def order_without_program(job: RoundJob) -> float:
    """Return the rank of a job when nothing is solved: its work over its weight."""
    return job.work_s / max(job.weight, 1e-300)


@dataclass(slots=True)
class _State:
    """A job's tasks left to start in its round, their earliest start, the round, its end."""

    job: RoundJob
    left: int
    ready_s: float
    round: int = 0
    end_s: float = 0.0


def list_schedule(jobs: Sequence[RoundJob], rank: Rank, *, switch_s: float = 0.0) -> Timetable:
    """Return the timetable of tasks served by rank, each on the GPU that ends it first."""
    num_gpus = len(jobs[0].train_s)
    states = [_State(job, job.tasks, job.arrival_s) for job in jobs]
    free_s, last = [0.0] * num_gpus, [-1] * num_gpus
    tasks: list[HareTask] = []
    now_s = min(job.arrival_s for job in jobs)
    while unfinished := [n for n, state in enumerate(states) if state.round < state.job.rounds]:
        ready = [n for n in unfinished if states[n].left > 0 and states[n].ready_s <= now_s]
        ready.sort(key=lambda n: (rank(n, states[n].round), n))
        # When each GPU is free after its running task and the tasks that wait for it.
        promised_s, promised_to = list(free_s), list(last)
        for n in ready:
            job, state = jobs[n], states[n]
            for _ in range(state.left):
                starts_s = [
                    max(promised_s[m], now_s) + (switch_s if promised_to[m] not in (-1, n) else 0.0)
                    for m in range(num_gpus)
                ]
                ends_s = [start_s + job.train_s[m] for m, start_s in enumerate(starts_s)]
                best = min(range(num_gpus), key=lambda m: (ends_s[m] + job.sync_s[m], m))
                if promised_s[best] <= now_s:
                    tasks.append(
                        HareTask(
                            n,
                            round=state.round,
                            gpu=best,
                            start_s=starts_s[best],
                            end_s=ends_s[best],
                        )
                    )
                    free_s[best], last[best] = ends_s[best], n
                    state.left -= 1
                    state.end_s = max(state.end_s, ends_s[best] + job.sync_s[best])
                promised_s[best], promised_to[best] = ends_s[best], n
            if state.left == 0:
                state.round += 1
                state.ready_s, state.left = state.end_s, job.tasks
        events = [*free_s, *(s.ready_s for s in states if s.round < s.job.rounds)]
        now_s = min((time_s for time_s in events if time_s > now_s), default=now_s)
    return Timetable(tuple(tasks), tuple(state.end_s for state in states))


@dataclass(frozen=True)
class Relaxation:
    """An optimum of the program: the mean midpoint of each round's tasks, and a lower bound.

    `bound_s` bounds the sum of weight times JCT of every timetable from below, with free switches.
    """

    midpoints_s: tuple[tuple[float, ...], ...]
    bound_s: float

    def rank(self, job: int, round_: int) -> float:
        """Return the midpoint of a round."""
        return self.midpoints_s[job][round_]


# A row of the program: columns, their factors, and the least value.
_Row = tuple[ArrayLike, ArrayLike, float]


def relax(jobs: Sequence[RoundJob], *, limits: SolverLimits | None = None) -> Relaxation:
    """Solve the program, adding inequalities until none is violated. Raises SolverError."""
    offsets = np.cumsum([0, *(job.rounds for job in jobs)])
    # In units of the mean task, numbers are near 1.
    unit_s = float(np.mean([job.train_s for job in jobs]))
    rows, lower = _precedences(jobs, offsets, unit_s)
    num_rounds, num_gpus = int(offsets[-1]), len(jobs[0].train_s)
    cost = np.concatenate((np.zeros(num_rounds), [job.weight for job in jobs]))
    of_job = np.repeat(np.arange(len(jobs)), np.diff(offsets))
    arrivals = np.array([job.arrival_s for job in jobs])[of_job] / unit_s
    sizes = []
    for prices in (np.full(num_gpus, 1.0 / num_gpus), _makespan_prices(jobs)):
        worth = np.array([(prices * np.array(job.train_s)).min() for job in jobs]) / unit_s
        sizes.append((worth * np.array([float(job.tasks) for job in jobs]))[of_job])
    for _ in range(_MAX_TURNS):
        program = LinearProgram.of(
            cost,
            [(i, columns, values) for i, (columns, values, _) in enumerate(rows)],
            row_lower=np.array([least for _, _, least in rows]),
            row_upper=np.full(len(rows), math.inf),
            bounds=(lower, None),
        )
        found = solve_lp(program, limits=limits)
        middle = found.x[:num_rounds]
        if not sum(_add_violated(rows, middle, size, arrivals) for size in sizes):
            break
    late_s = sum(job.weight * job.arrival_s for job in jobs)
    midpoints_s = tuple(tuple(p.tolist()) for p in np.split(middle * unit_s, offsets[1:-1]))
    return Relaxation(midpoints_s, found.objective * unit_s - late_s)


def _precedences(
    jobs: Sequence[RoundJob], offsets: NDArray[np.int64], unit_s: float
) -> tuple[list[_Row], Floats]:
    """Return the rows by which rounds follow each other, and the least value of each column."""
    rows: list[_Row] = []
    lower = np.zeros(offsets[-1] + len(jobs))
    for n, (job, (first, end)) in enumerate(zip(jobs, pairwise(offsets), strict=True)):
        # From a task's midpoint on: half of its training, then synchronisation.
        rest = min(t / 2 + s for t, s in zip(job.train_s, job.sync_s, strict=True)) / unit_s
        half = min(job.train_s) / unit_s / 2
        lower[first] = job.arrival_s / unit_s + half
        rows += [
            ((column, column + 1), (-1.0, 1.0), rest + half) for column in range(first, end - 1)
        ]
        rows.append(((offsets[-1] + n, end - 1), (1.0, -1.0), rest))
    return rows, lower


def _add_violated(rows: list[_Row], middle: Floats, size: Floats, arrivals: Floats) -> bool:
    """Add the most violated inequality over prefixes by midpoint of tasks that arrive late."""
    worst, chosen = _TOLERANCE, list[_Row]()
    order = np.argsort(middle, kind="stable")
    for from_ in np.unique(arrivals):
        members = order[arrivals[order] >= from_]
        total = np.cumsum(size[members])
        least = from_ * total + total**2 / 2
        lack = (least - np.cumsum(size[members] * middle[members])) / np.maximum(least, 1e-12)
        place = int(np.argmax(lack))
        if lack[place] > worst:
            worst, first = float(lack[place]), members[: place + 1]
            chosen = [(first, size[first] / float(least[place]), 1.0)]
    rows += chosen
    return bool(chosen)


def _makespan_prices(jobs: Sequence[RoundJob]) -> Floats:
    """Return prices of GPUs, of sum 1, that maximise the priced work of all jobs.

    max sum_n K_n b_n over b_n <= p_m T_nm, K_n being the number of tasks: dual of the makespan.
    """
    num_jobs, num_gpus = len(jobs), len(jobs[0].train_s)
    train_s = np.array([job.train_s for job in jobs])
    unit_s = float(train_s.mean())
    count = np.array([float(job.rounds * job.tasks) for job in jobs])
    last = num_jobs * num_gpus
    row = np.arange(last)
    n, m = np.divmod(row, num_gpus)
    worth = (row, n, -1.0)
    priced = (row, num_jobs + m, train_s[n, m] / unit_s)
    total = (last, num_jobs + np.arange(num_gpus), 1.0)
    cost = np.append(-count / count.sum(), np.zeros(num_gpus))
    lower, upper = np.append(np.zeros(last), 1.0), np.append(np.full(last, math.inf), 1.0)
    program = LinearProgram.of(cost, [worth, priced, total], row_lower=lower, row_upper=upper)
    prices = np.maximum(solve_lp(program).x[num_jobs:], 0.0)
    return np.asarray(prices / prices.sum())
