"""Hare's planner, by hand and against its bound; and policy hare-offline."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from builders import ROUND, a_job, a_snapshot, placed_by, some_rates

from hadar_slurm.lab.policies.hare import (
    HareTask,
    RoundJob,
    list_schedule,
    order_without_program,
    plan_offline,
    relax,
)
from hadar_slurm.lab.policies.hare_offline import HareOffline, mean_work


def a_round_job(
    train_s: list[float],
    *,
    rounds: int = 1,
    tasks: int = 1,
    sync_s: float = 0.0,
    arrival_s: float = 0.0,
    weight: float = 1.0,
) -> RoundJob:
    """Return a job with the same synchronisation time on every GPU."""
    sync = (sync_s,) * len(train_s)
    return RoundJob(tuple(train_s), sync, rounds, tasks, arrival_s, weight)


def by_number(job: int, round_: int) -> float:
    return float(job)


def test_a_round_may_share_a_gpu_and_the_next_waits_for_all_of_it() -> None:
    """Three tasks of 10 s, or 25 s on the slow GPU; 5 s to synchronise; two rounds.

    GPU 0 takes two tasks, until 20 s; the third would end at 30 s there and ends at 25 s on
    GPU 1. All have synchronised at 30 s; the second round takes the same, until 60 s.
    """
    jobs = [a_round_job([10.0, 25.0], rounds=2, tasks=3, sync_s=5.0)]
    found = list_schedule(jobs, by_number)
    assert found.ends_s == (60.0,)
    assert sorted(task[2:] for task in found.tasks if task.round == 0) == [
        (0, 0.0, 10.0),
        (0, 10.0, 20.0),
        (1, 0.0, 25.0),
    ]
    assert min(task.start_s for task in found.tasks if task.round == 1) == 30.0


def test_while_one_synchronises_another_trains() -> None:
    """Job 0 trains 10 s and synchronises 10 s, twice; job 1 trains in the gap."""
    jobs = [a_round_job([10.0], rounds=2, sync_s=10.0), a_round_job([10.0])]
    found = list_schedule(jobs, by_number)
    assert found.ends_s == (40.0, 20.0)


def test_a_task_waits_for_a_fast_gpu_and_others_pass() -> None:
    """Job 1 ends at 20 s after job 0 on GPU 0, at 100 s on GPU 1; job 2 takes GPU 1."""
    jobs = [a_round_job([10.0, 100.0]), a_round_job([10.0, 100.0]), a_round_job([12.0, 12.0])]
    found = list_schedule(jobs, by_number)
    assert found.tasks == (
        HareTask(0, 0, 0, 0.0, 10.0),
        HareTask(2, 0, 1, 0.0, 12.0),
        HareTask(1, 0, 0, 10.0, 20.0),
    )


def test_a_switch_between_jobs_takes_time() -> None:
    """Job 1 starts on the GPU 3 s after job 0; tasks of one job follow without a gap."""
    jobs = [a_round_job([10.0], tasks=2), a_round_job([10.0])]
    assert list_schedule(jobs, by_number, switch_s=3.0).ends_s == (20.0, 33.0)


def test_weight_and_arrival_count() -> None:
    """Of two jobs of 10 s, the one of weight 3 goes first, unless it arrives 5 s later."""
    jobs = [a_round_job([10.0]), a_round_job([10.0], weight=3.0)]
    assert plan_offline(jobs).weighted_s(jobs) == 50.0
    late = [a_round_job([10.0]), a_round_job([10.0], weight=3.0, arrival_s=5.0)]
    assert plan_offline(late).weighted_s(late) == 10.0 + 3 * 15.0


def test_the_relaxation_is_exact_for_one_gpu() -> None:
    """Jobs of 10, 20 and 30 s: 10 + 30 + 60 s, shortest first by midpoint."""
    jobs = [a_round_job([30.0]), a_round_job([10.0]), a_round_job([20.0])]
    relaxed = relax(jobs)
    assert relaxed.bound_s == pytest.approx(100.0)
    assert [m for (m,) in relaxed.midpoints_s] == pytest.approx([45.0, 5.0, 20.0])
    assert plan_offline(jobs).weighted_s(jobs) == pytest.approx(100.0)


def test_work_is_counted_on_the_mean_gpu() -> None:
    """Speeds of 1/10 and 1/30 per second have the harmonic mean 1/20: 2 x 3 tasks take 120 s."""
    job = a_round_job([10.0, 30.0], rounds=2, tasks=3, weight=4.0)
    assert job.work_s == 120.0
    assert order_without_program(job) == 30.0


@pytest.mark.parametrize("seed", range(40))
def test_timetables_keep_the_rules_and_the_bound(seed: int) -> None:
    """Tasks do not overlap, rounds are sequential, and the ratio alpha (2 + alpha) holds."""
    draw = np.random.default_rng(seed)
    gpus = int(draw.integers(2, 6))
    jobs = [
        a_round_job(
            draw.uniform(5.0, 40.0, gpus).tolist(),
            rounds=int(draw.integers(1, 5)),
            tasks=int(draw.integers(1, 4)),
            sync_s=float(draw.uniform(0.0, 5.0)),
            arrival_s=float(draw.choice([0.0, 30.0])),
            weight=float(draw.integers(1, 4)),
        )
        for _ in range(int(draw.integers(2, 7)))
    ]
    found = plan_offline(jobs, switch_s=1.0)
    for gpu in range(gpus):
        mine = sorted((t for t in found.tasks if t.gpu == gpu), key=lambda t: t.start_s)
        for before, after in pairwise(mine):
            gap_s = 0.0 if before.job == after.job else 1.0
            assert after.start_s >= before.end_s + gap_s - 1e-9
    for n, job in enumerate(jobs):
        ready_s = job.arrival_s
        for round_ in range(job.rounds):
            mine = [t for t in found.tasks if (t.job, t.round) == (n, round_)]
            assert len(mine) == job.tasks
            assert min(t.start_s for t in mine) >= ready_s - 1e-9
            ready_s = max(t.end_s for t in mine) + job.sync_s[0]
        assert found.ends_s[n] == pytest.approx(ready_s)
    alpha = max(max(job.train_s) / min(job.train_s) for job in jobs)
    bound_s = relax(jobs).bound_s
    without = plan_offline(jobs)
    assert bound_s * (1 - 1e-6) <= without.weighted_s(jobs) <= alpha * (2 + alpha) * bound_s


# The policy.


def test_mean_work_is_at_the_harmonic_mean_of_all_gpus() -> None:
    """1,000 steps take 100 s on each of two V100s, 1,000 s on a K80, 400 s on the mean GPU."""
    assert mean_work(a_job(), a_snapshot("2xV100,1xK80")) == pytest.approx(400.0)


def test_the_least_work_goes_first_to_where_it_ends_first() -> None:
    """Job 2 runs 10 s on the V100; job 1 would end at 110 s there, at 1,000 s on the K80.

    So job 1 waits for the V100. Job 3, equally fast on both types, has more work and gets the K80.
    """
    jobs = [
        a_job("1", steps=1000),
        a_job("2", steps=100),
        a_job("3", steps=20_000, throughputs=some_rates(V100=10.0, K80=10.0)),
    ]
    plan = HareOffline().plan(a_snapshot("1xV100,1xK80", *jobs), ROUND)
    assert placed_by(plan) == {"2": "n1:V100:1", "3": "n2:K80:1"}


def test_who_has_work_to_do_is_not_kept_from_idle_gpus() -> None:
    """A job that waits for the fast GPU uses the idle slow GPU meanwhile."""
    jobs = [a_job("1", steps=1000), a_job("2", steps=100)]
    plan = HareOffline().plan(a_snapshot("1xV100,1xK80", *jobs), ROUND)
    assert placed_by(plan) == {"1": "n2:K80:1", "2": "n1:V100:1"}


def test_a_restart_counts_against_a_move() -> None:
    """100 s left on the P100; on a V100 40 s plus a restart: it moves for 30 s, not for 70 s."""
    for restart_cost_s, place in ((30.0, "n1:V100:1"), (70.0, "n2:P100:1")):
        job = a_job("1", on="n2:P100:1", steps=400, done=0.0, restart_cost_s=restart_cost_s)
        plan = HareOffline().plan(a_snapshot("1xV100,1xP100", job), ROUND)
        assert placed_by(plan) == {"1": place}
