"""Hare's offline planner: beside the optimum, within its bound, and against gang scheduling.

    python benchmarks/hare.py [--instances 1000] [--tiny 200]

1. On random instances, sum w JCT over the program's lower bound: never above alpha (2 + alpha).
2. On the same, weighted JCT against gang scheduling: a job holds as many GPUs as a round has tasks,
   of one type where one has enough, and its round takes as long as the slowest of them. By Gavel's
   FIFO (in order of arrival, stopping at the first that does not fit), by shortest remaining time
   first (preempting between rounds), and by the same order blind to types.
3. With switches that take 5 s, and 5 ms.
4. On instances of at most 8 tasks, over the optimum, found by branch and bound.

All of it takes four minutes.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from hadar_slurm.lab.policies.hare import (
    RoundJob,
    list_schedule,
    order_without_program,
    plan_offline,
    relax,
)

# Of a job: rounds done, tasks of this one not begun, since when they may, the last end so far.
_Stand = tuple[int, int, float, float]
Key = Callable[[RoundJob, int], float]

# Gang scheduling: the order by job and rounds left, whether it stops at the first job that does not
# fit, whether it is blind to types.
RIVALS: tuple[tuple[str, Key, bool, bool], ...] = (
    ("Gavel's FIFO", lambda job, _: job.arrival_s, True, False),
    ("shortest remaining time first", lambda job, left: left * job.least_round_s, False, False),
    ("the same, blind to types", lambda job, left: left * sum(job.train_s), False, True),
)
SWITCHES_S = (5.0, 0.005)


def an_instance(
    draw: np.random.Generator, *, jobs: int, gpus: int, most_tasks: int
) -> tuple[list[RoundJob], list[int]]:
    """Return jobs, and the type of each GPU: speeds follow the type, each model in its own way."""
    num_types = int(draw.integers(2, 5)) if gpus >= 4 else 2
    types = sorted([*range(num_types), *draw.integers(0, num_types, gpus - num_types)])
    speed = np.sort(draw.uniform(1.0, 8.0, num_types))[::-1]
    largest = max(types.count(gpu_type) for gpu_type in types)
    found = []
    for _ in range(jobs):
        of_type = np.maximum(0.5, speed * draw.lognormal(0.0, 0.3, num_types))
        train_s = draw.uniform(20.0, 200.0) / of_type
        sync_s = train_s.min() * draw.uniform(0.0, 0.3)
        tasks = int(draw.integers(1, min(most_tasks, largest) + 1))
        found.append(
            RoundJob(
                tuple(float(train_s[gpu_type]) for gpu_type in types),
                (float(sync_s),) * gpus,
                rounds=int(draw.integers(1, 9)),
                tasks=tasks,
                arrival_s=float(draw.choice([0.0, draw.uniform(0.0, 300.0)])),
                weight=float(draw.integers(1, 6)),
            )
        )
    return found, types


def alpha(jobs: Sequence[RoundJob]) -> float:
    """Return the largest ratio of a job's slowest to its fastest GPU."""
    return max(max(job.train_s) / min(job.train_s) for job in jobs)


def optimum_s(jobs: Sequence[RoundJob], at_most_s: float) -> float:
    """Return the least sum of weight times JCT, `at_most_s` if there is none below: exact, slow.

    Every timetable in which no task could start sooner comes from adding tasks in the order of
    their starts, so it is enough to try every next task on every GPU.
    """
    num_gpus = len(jobs[0].train_s)
    like = [tuple(job.train_s[m] for job in jobs) for m in range(num_gpus)]
    best_s = at_most_s

    def least_s(states: Sequence[_Stand]) -> float:
        total = 0.0
        for job, (done, left, ready_s, end_s) in zip(jobs, states, strict=True):
            rounds = job.rounds - done - (left < job.tasks)
            begin_s = max(ready_s, end_s) if left < job.tasks else ready_s
            if 0 < left < job.tasks:
                begin_s = max(begin_s, ready_s + job.least_round_s)
            total += job.weight * (begin_s + max(0, rounds) * job.least_round_s - job.arrival_s)
        return total

    def go(states: list[_Stand], free_s: list[float], since_s: float) -> None:
        nonlocal best_s
        bound_s = least_s(states)
        if bound_s >= best_s * (1 - 1e-12):
            return
        steps = []
        for n, (job, (done, _, ready_s, _)) in enumerate(zip(jobs, states, strict=True)):
            if done == job.rounds:
                continue
            tried = set()
            for m in range(num_gpus):
                start_s = max(free_s[m], ready_s)
                if start_s < since_s or (free_s[m], like[m]) in tried:
                    continue
                tried.add((free_s[m], like[m]))
                end = start_s + job.train_s[m]
                steps.append((end + job.sync_s[m], n, m, start_s, end))
        if not steps and all(done == j.rounds for j, (done, *_) in zip(jobs, states, strict=True)):
            best_s = bound_s
            return
        for synced_s, n, m, start_s, end in sorted(steps):
            done, left, ready_s, end_s = states[n]
            last_s = max(end_s, synced_s)
            one_less, whole = (done, left - 1, ready_s), (done + 1, jobs[n].tasks, last_s)
            before, states[n] = states[n], (*(whole if left == 1 else one_less), last_s)
            freed, free_s[m] = free_s[m], end
            go(states, free_s, start_s)
            states[n], free_s[m] = before, freed

    go([(0, job.tasks, job.arrival_s, 0.0) for job in jobs], [0.0] * num_gpus, 0.0)
    return best_s


def gang_s(
    jobs: Sequence[RoundJob], types: Sequence[int], key: Key, *, stops: bool, is_blind: bool
) -> float:
    """Return the sum of weight times JCT of gang scheduling, round by round."""
    left, ready_s = [job.rounds for job in jobs], [job.arrival_s for job in jobs]
    free_s, total, now_s = [0.0] * len(types), 0.0, min(ready_s)
    while any(left):
        free = [m for m in range(len(types)) if free_s[m] <= now_s]
        waiting = [n for n in range(len(jobs)) if left[n] and ready_s[n] <= now_s]
        for n in sorted(waiting, key=lambda n: (key(jobs[n], left[n]), n)):
            job = jobs[n]
            gang = _gang(job, free, types, is_blind=is_blind)
            if gang is None and stops:
                break
            if gang is None:
                continue
            end_s = now_s + max(job.train_s[m] + job.sync_s[m] for m in gang)
            for m in gang:
                free_s[m] = end_s
                free.remove(m)
            left[n], ready_s[n] = left[n] - 1, end_s
            if not left[n]:
                total += job.weight * (end_s - job.arrival_s)
        later = [t for t in free_s if t > now_s]
        later += [t for t, rounds in zip(ready_s, left, strict=True) if rounds and t > now_s]
        now_s = min(later, default=math.inf)
    return total


def _gang(
    job: RoundJob, free: Sequence[int], types: Sequence[int], *, is_blind: bool
) -> list[int] | None:
    if len(free) < job.tasks:
        return None
    of_type = [[m for m in free if types[m] == k] for k in dict.fromkeys(types[m] for m in free)]
    whole = [gpus for gpus in of_type if len(gpus) >= job.tasks]
    if whole:
        # Blind to types: the one with most room, as nothing else is known of it.
        best = min(whole, key=lambda gpus: -len(gpus) if is_blind else job.train_s[gpus[0]])
        return best[: job.tasks]
    if max(types.count(gpu_type) for gpu_type in set(types)) >= job.tasks:
        return None
    return sorted(free, key=lambda m: job.train_s[m])[: job.tasks]


def compare(
    draw: np.random.Generator, number: int, jobs: tuple[int, int], gpus: tuple[int, int], most: int
) -> None:
    """Print the results of random instances with this many jobs, GPUs, and `most` tasks each."""
    rows, switched = [], []
    began = time.perf_counter()
    for _ in range(number):
        num_jobs, num_gpus = (int(draw.integers(*span, endpoint=True)) for span in (jobs, gpus))
        found, types = an_instance(draw, jobs=num_jobs, gpus=num_gpus, most_tasks=most)
        rows.append(_measured(found, types))
        switched.append(
            [plan_offline(found, switch_s=s).weighted_s(found) / rows[-1][0] for s in SWITCHES_S]
        )
    table = np.array(rows)
    ours, bound, allowed, program, without = table[:, :5].T
    over = ours / bound
    print(
        f"## {number} instances, {jobs[0]} to {jobs[1]} jobs, {gpus[0]} to {gpus[1]} GPUs of 2 to 4"
        f" types ({time.perf_counter() - began:.0f} s)\n\n"
        f"Over the lower bound: mean {over.mean():.3f}, worst {over.max():.3f}; allowed by"
        f" alpha (2 + alpha): mean {allowed.mean():.1f}, least {allowed.min():.1f}; broken"
        f" {int((over > allowed).sum())} times. The program's order alone"
        f" {(program / ours).mean():.3f}, the order without it {(without / ours).mean():.3f} times"
        " the better of both.\n\n"
        "| gang scheduling by | weighted JCT over Hare's, mean | least | greatest |\n"
        "|---|---:|---:|---:|"
    )
    for (title, *_), column in zip(RIVALS, (table[:, 5:] / ours[:, None]).T, strict=True):
        print(f"| {title} | {column.mean():.2f} | {column.min():.2f} | {column.max():.2f} |")
    for switch_s, factor in zip(SWITCHES_S, np.mean(switched, axis=0), strict=True):
        print(f"\nSwitches of {switch_s:g} s: {factor:.3f} times that without.")


def _measured(jobs: Sequence[RoundJob], types: Sequence[int]) -> list[float]:
    """Return weighted JCT, its bound, what is allowed; by each order alone; and that of rivals."""
    relaxed, a = relax(jobs), alpha(jobs)
    return [
        plan_offline(jobs).weighted_s(jobs),
        relaxed.bound_s,
        a * (2 + a),
        list_schedule(jobs, relaxed.rank).weighted_s(jobs),
        list_schedule(jobs, lambda n, _: order_without_program(jobs[n])).weighted_s(jobs),
        *(
            gang_s(jobs, types, key, stops=stops, is_blind=is_blind)
            for _, key, stops, is_blind in RIVALS
        ),
    ]


def over_optimum(draw: np.random.Generator, number: int) -> None:
    """Print how far from the optimum instances of at most 8 tasks are."""
    over = []
    while len(over) < number:
        jobs, _ = an_instance(
            draw, jobs=int(draw.integers(2, 5)), gpus=int(draw.integers(2, 4)), most_tasks=3
        )
        if sum(job.rounds * job.tasks for job in jobs) <= 8:
            ours_s = plan_offline(jobs).weighted_s(jobs)
            over.append(100.0 * (ours_s / optimum_s(jobs, ours_s) - 1.0))
    print(
        f"## {number} instances of at most 8 tasks\n\n{np.mean(over):.2f} % above the optimum on"
        f" average, {np.max(over):.1f} % at worst, optimal in {sum(o < 1e-6 for o in over)}."
    )


def main() -> None:
    """Print the figures as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--instances", type=int, default=1000)
    parser.add_argument("--busy", type=int, default=100)
    parser.add_argument("--tiny", type=int, default=200)
    options = parser.parse_args()
    draw = np.random.default_rng(2022)
    compare(draw, options.instances, jobs=(3, 10), gpus=(4, 15), most=4)
    print()
    compare(draw, options.busy, jobs=(20, 40), gpus=(15, 15), most=8)
    print()
    over_optimum(draw, options.tiny)


if __name__ == "__main__":
    main()
