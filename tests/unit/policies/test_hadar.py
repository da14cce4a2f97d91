"""Policy hadar on snapshots small enough to work out by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from builders import ROUND, a_cluster, a_job, a_snapshot, placed_by, some_rates

from hadar_slurm.core.cluster import GpuType, JobId
from hadar_slurm.core.job import Job, Progress
from hadar_slurm.policies.hadar.arrivals import Arrivals
from hadar_slurm.policies.hadar.makespan_lp import Horizon, Planned
from hadar_slurm.policies.hadar.policy import Hadar, Memory
from hadar_slurm.policies.policy import SolverLimits
from hadar_slurm.sim.backend import GAVEL_RULES

V100 = some_rates(V100=10.0)
DAY_S = 86400.0


def plan(cluster: str, *jobs: Job, now_s: float = 0.0, is_open: bool = False) -> dict[str, str]:
    """Return the placed jobs and their GPUs; `is_open`: more jobs are expected."""
    arrivals = Arrivals(now_s, longest_gap_s=60.0 * is_open)
    round_ = replace(ROUND, memory=Memory(arrivals=arrivals))
    return placed_by(Hadar().plan(a_snapshot(cluster, *jobs, now_s=now_s), round_))


def test_the_shortest_goes_first_where_nobody_is_critical() -> None:
    """If no order changes the makespan, the shortest job runs, for the mean JCT."""
    jobs = [
        a_job(str(i), steps=steps, throughputs=V100) for i, steps in enumerate((5000, 2000, 3000))
    ]
    assert plan("1xV100", *jobs) == {"1": "n1:V100:1"}


def test_a_critical_job_goes_before_shorter_ones() -> None:
    """Job 9 alone takes as long as the makespan, so it starts at once."""
    short = [a_job(str(i), steps=2000, throughputs=V100) for i in range(4)]
    jobs = (*short, a_job("9", steps=10_000, throughputs=V100))
    placed = plan("1xV100,1xV100", *jobs)
    assert set(placed) == {"0", "9"}


def test_while_more_jobs_are_expected_few_critical_jobs_go_first() -> None:
    """Of 20 GPUs one goes to a long job before shorter ones; at the end all three long jobs do."""
    short = [a_job(str(i), steps=9000, throughputs=V100) for i in range(20)]
    long = [a_job(name, steps=20_000, throughputs=V100) for name in ("97", "98", "99")]
    cluster, many = "20xV100", {"97", "98", "99"}
    assert set(plan(cluster, *short, *long)) >= many
    assert len(set(plan(cluster, *short, *long, is_open=True)) & many) == 1


def test_service_counts_the_gang() -> None:
    """Two GPUs for 300 s are more service than one GPU for 500 s."""
    throughputs = some_rates(V100=1.0)
    two = a_job("2", 2, steps=600, throughputs=throughputs)
    ones = [a_job(name, 1, steps=500, throughputs=throughputs) for name in ("3", "4")]
    other = a_job("5", 2, steps=5000, throughputs=throughputs)
    assert set(plan("2xV100", two, *ones, other)) == {"3", "4"}


def test_a_fast_gpu_is_for_the_job_that_gains_from_it() -> None:
    """Job 2 is shorter, but only job 1 is much faster on the V100."""
    gains = a_job("1", steps=2000, throughputs=some_rates(V100=10.0, K80=1.0))
    hardly = a_job("2", steps=1500, throughputs=some_rates(V100=10.0, K80=9.0))
    assert plan("1xV100,1xK80", gains, hardly) == {"1": "n1:V100:1", "2": "n2:K80:1"}


def test_where_gpus_cost_nothing_everybody_takes_the_fastest() -> None:
    """One long job sets the horizon, so GPUs are free for the other job."""
    long = a_job("1", steps=1_000_000, throughputs=some_rates(V100=10.0, K80=1.0))
    quick = a_job("2", steps=100, throughputs=some_rates(V100=10.0, K80=9.0))
    assert plan("1xV100,1xV100,1xK80", long, quick)["2"] in ("n1:V100:1", "n2:V100:1")


def test_who_runs_stays_where_it_is() -> None:
    """A job does not move to another node of the same type."""
    running = a_job("1", steps=5000, on="n2:V100:1", throughputs=V100, restart_cost_s=30.0)
    waiting = a_job("2", steps=9000, throughputs=V100)
    assert plan("1xV100,1xV100", running, waiting) == {"1": "n2:V100:1", "2": "n1:V100:1"}


def test_a_critical_job_is_not_stopped_for_one_that_is_hardly_later() -> None:
    """Two jobs of nearly equal length on one GPU do not preempt each other in every round."""
    running = a_job("1", steps=9990, on="n1:V100:1", throughputs=V100, restart_cost_s=30.0)
    later = a_job("2", steps=10_000, throughputs=V100)
    other = a_job("3", steps=10_000, on="n2:V100:1", throughputs=V100, restart_cost_s=30.0)
    placed = plan("1xV100,1xV100", running, later, other)
    assert placed["1"] == "n1:V100:1"


def test_a_critical_job_that_runs_stays_critical_a_little_longer() -> None:
    """Waiting it goes before a shorter one from 95 % of the horizon on, running until 93 %."""
    both, types = frozenset(map(JobId, "19")), a_cluster("1xV100").gpus_by_type
    for share, expected in ((0.96, "99"), (0.94, "19"), (0.92, "11")):
        steps, found = round(share * 1e5), ""
        planned = {JobId("9"): Planned((steps / 10,), steps)}
        horizon = Horizon(0.0, 1e4, both, (1.0,), planned, gpu_types=tuple(types))
        round_ = replace(ROUND, memory=Memory(horizon, Arrivals(0.0)))
        for on in ("", "n1:V100:1"):
            long = a_job("9", steps=steps, on=on, throughputs=V100)
            short = a_job("1", steps=2000, throughputs=V100)
            found += "".join(placed_by(Hadar().plan(a_snapshot("1xV100", short, long), round_)))
        assert found == expected


def test_critical_jobs_that_share_a_type_swap_it_once() -> None:
    """Job 1 keeps the V100 until job 2 needs it for all but 2 % of the horizon of 10,000 s."""
    types, rates = a_cluster("1xV100,1xK80").gpus_by_type, some_rates(V100=10.0, K80=1.0)

    def planned(fast_s: float) -> Planned:
        """Return a plan with a time on the V100, and the rest of the horizon on the K80."""
        return Planned(tuple(fast_s if t == "V100" else 1e4 - fast_s for t in types), steps(fast_s))

    def steps(fast_s: float) -> int:
        return round(10.0 * fast_s + 1e4 - fast_s)

    for other_s, swaps in ((5200.0, False), (9700.0, False), (9900.0, True)):
        here = a_job("1", steps=steps(5000.0), on="n1:V100:1", throughputs=rates)
        other = a_job("2", steps=steps(other_s), on="n2:K80:1", throughputs=rates)
        plans = {JobId("1"): planned(5000.0), JobId("2"): planned(other_s)}
        horizon = Horizon(0.0, 1e4, frozenset(plans), (1.0, 1.0), plans, gpu_types=tuple(types))
        round_ = replace(ROUND, memory=Memory(horizon, Arrivals(0.0)))
        placed = placed_by(Hadar().plan(a_snapshot("1xV100,1xK80", here, other), round_))
        assert (placed["2"] == "n1:V100:1") is swaps


def test_nobody_waits_for_ever() -> None:
    """A job of 500 s goes first after two days and 20 times 500 s without GPUs, not before."""
    old = a_job("1", steps=5000, throughputs=V100)
    for now_s, first in ((2 * DAY_S + 9900.0, "2"), (2 * DAY_S + 10_100.0, "1")):
        fresh = a_job("2", steps=2000, throughputs=V100, submitted_s=now_s)
        critical = a_job("3", steps=500_000, throughputs=V100, submitted_s=now_s)
        for jobs in ((old, fresh), (old, critical)):
            placed = plan("1xV100", *jobs, now_s=now_s)
            assert set(placed) == {first if critical not in jobs or first == "1" else "3"}


def test_a_user_far_above_the_share_waits_a_little() -> None:
    """Remaining service is divided by Slurm's fair-share factor, if there is one."""
    greedy = a_job("1", steps=2000, throughputs=V100)
    modest = a_job("2", steps=3000, throughputs=V100)
    other = a_job("3", steps=4000, throughputs=V100)
    assert "1" in plan("1xV100", greedy, modest, other)
    shares = (replace(greedy, fair_share=0.1), replace(modest, fair_share=0.5), other)
    assert "2" in plan("1xV100", *shares)


def test_a_gang_mixes_types_where_no_type_has_room() -> None:
    """A gang starts on two types if neither has enough free GPUs."""
    job = a_job("1", 2, steps=5000)
    assert plan("1xV100,1xP100", job) == {"1": "n1:V100:1 n2:P100:1"}


def test_under_gavels_rules_types_are_not_mixed() -> None:
    """Under Gavel's rules a gang waits if no single type has room."""
    snapshot = a_snapshot("1xV100,1xP100", a_job("1", 2, steps=5000), rules=GAVEL_RULES)
    assert not Hadar().plan(snapshot, ROUND).allocations


def test_a_job_that_can_no_longer_use_what_was_planned_goes_elsewhere() -> None:
    """If a job's planned type becomes unusable between two solutions, it gets another type."""
    policy = Hadar()
    before = a_job("1", steps=1_000_000, throughputs=some_rates(V100=10.0))
    first = policy.plan(a_snapshot("1xV100,1xK80", before), ROUND)
    assert dict(first.figures)["solved"] == 1.0
    throughputs = some_rates(V100=0.0, K80=1.0)
    now = a_job("1", steps=1_000_000, throughputs=throughputs, on="n1:V100:1")
    later = replace(ROUND, index=1, start_s=360.0, memory=first.memory)
    second = policy.plan(a_snapshot("1xV100,1xK80", now, now_s=360.0), later)
    assert dict(second.figures)["solved"] == 0.0
    assert placed_by(second) == {"1": "n2:K80:1"}


def test_the_program_is_kept_until_somebody_comes() -> None:
    """The next round reuses the solution; a job that arrives half an hour later causes a solve.

    So does 2 % of the horizon, here just below 6,000 s, without any.
    """
    jobs = [a_job(str(i), steps=1_000_000, throughputs=V100) for i in range(3)]
    policy = Hadar()
    first = policy.plan(a_snapshot("1xV100", *jobs), ROUND)
    assert dict(first.figures)["solved"] == 1.0
    assert dict(first.figures)["price.V100"] > 0
    later = replace(ROUND, index=1, start_s=360.0, memory=first.memory)
    second = policy.plan(a_snapshot("1xV100", *jobs, now_s=360.0), later)
    assert dict(second.figures)["solved"] == 0.0
    assert second.memory.horizon == first.memory.horizon
    newcomer = a_job("9", steps=1000, throughputs=V100)
    much_later = replace(ROUND, index=6, start_s=2160.0, memory=second.memory)
    third = policy.plan(a_snapshot("1xV100", *jobs, newcomer, now_s=2160.0), much_later)
    assert dict(third.figures)["solved"] == 1.0
    for now_s, solved in ((5800.0, 0.0), (6000.0, 1.0)):
        round_ = replace(ROUND, index=16, start_s=now_s, memory=second.memory)
        plan_then = policy.plan(a_snapshot("1xV100", *jobs, now_s=now_s), round_)
        assert dict(plan_then.figures)["solved"] == solved


def test_a_job_takes_the_better_gpus_that_plain_jobs_leave() -> None:
    """The program counted on one K80 alone; it is solved again once the V100 is free."""
    speeds = some_rates(V100=10.0, K80=1.0)
    job = a_job("1", steps=1_000_000, throughputs=speeds, on="n2:K80:1")
    policy = Hadar()
    first = policy.plan(a_snapshot("1xV100,1xK80", job, occupied="n1:V100:1"), ROUND)
    assert placed_by(first) == {"1": "n2:K80:1"}
    for now_s, occupied, where in (
        (360.0, "n1:V100:1", "n2:K80:1"),
        (720.0, "", "n1:V100:1"),
    ):
        later = replace(ROUND, index=1, start_s=now_s, memory=first.memory)
        trained = replace(job, progress=Progress(0.0, 0, ((GpuType("K80"), now_s),)))
        snapshot = a_snapshot("1xV100,1xK80", trained, now_s=now_s, occupied=occupied)
        plan = policy.plan(snapshot, later)
        assert placed_by(plan) == {"1": where}
        assert dict(plan.figures)["solved"] == float(not occupied)


@pytest.mark.parametrize(
    ("restarts", "trained_s", "moves"),
    [(0, 2_640.0, True), (0, 2_639.0, False), (1, 5_280.0, True), (1, 5_279.0, False)],
)
def test_a_job_moves_once_it_has_trained_for_ten_restarts_each(
    restarts: int, trained_s: float, moves: bool
) -> None:
    """Here of 300 s, less a round of 360 s, for each that it has had and the next."""
    job = a_job("1", steps=3_000, throughputs=some_rates(V100=10.0, K80=1.0), on="n2:K80:1")
    job = replace(
        job,
        spec=replace(job.spec, restart_cost_s=300.0),
        progress=Progress(0.0, restarts, ((GpuType("K80"), trained_s),)),
    )
    plan = Hadar().plan(a_snapshot("1xV100,1xK80", job), ROUND)
    assert placed_by(plan) == {"1": "n1:V100:1" if moves else "n2:K80:1"}


def test_the_first_move_may_earn_itself_later() -> None:
    """It saves ten restarts of 300 s or more; a second one has to be earned before."""
    for steps, restarts, where in (
        (3_400, 0, "n1:V100:1"),
        (3_300, 0, "n2:K80:1"),
        (3_400, 1, "n2:K80:1"),
    ):
        job = a_job("1", steps=steps, throughputs=some_rates(V100=10.0, K80=1.0), on="n2:K80:1")
        spec, progress = replace(job.spec, restart_cost_s=300.0), Progress(0.0, restarts)
        plan = Hadar().plan(
            a_snapshot("1xV100,1xK80", replace(job, spec=spec, progress=progress)), ROUND
        )
        assert placed_by(plan) == {"1": where}


def test_without_a_solution_the_shortest_go_first() -> None:
    """Without a solution in time, the shortest job starts."""
    jobs = [a_job(str(i), steps=steps, throughputs=V100) for i, steps in enumerate((5000, 2000))]
    policy = Hadar(limits=SolverLimits(time_limit_s=0.0))
    assert placed_by(policy.plan(a_snapshot(a_cluster("1xV100"), *jobs), ROUND)) == {
        "1": "n1:V100:1"
    }


def test_types_go_by_regret() -> None:
    """The shorter job gains little from the V100, so the other job gets it.

    A third job, far longer, makes GPUs cost nothing; by size alone the shorter would choose first.
    """
    long = a_job("1", steps=10_000_000, on="n3:V100:1", throughputs=V100)
    hardly = a_job("2", steps=1000, throughputs=some_rates(V100=10.0, K80=9.0))
    gains = a_job("3", steps=2000, throughputs=some_rates(V100=10.0, K80=1.0))
    placed = plan("1xV100,1xK80,1xV100", long, hardly, gains, is_open=True)
    assert placed == {"1": "n3:V100:1", "2": "n2:K80:1", "3": "n1:V100:1"}


def test_where_types_cost_the_same_the_shortest_choose_first() -> None:
    """Of four jobs for two GPUs, the shortest chooses first and takes the fastest type."""
    long = a_job("1", steps=10_000_000, on="n3:V100:1", throughputs=V100)
    hardly = a_job("2", steps=1000, throughputs=some_rates(V100=10.0, K80=9.0))
    gains = [
        a_job(name, steps=2000 + int(name), throughputs=some_rates(V100=10.0, K80=1.0))
        for name in ("3", "4", "5")
    ]
    assert plan("1xV100,1xK80,1xV100", long, hardly, *gains)["2"] == "n1:V100:1"


def test_who_runs_is_not_moved_for_a_small_advantage() -> None:
    """A running job does not move for a gain less than three restarts and a twentieth."""
    long = a_job("1", steps=10_000_000, on="n3:V100:1", throughputs=V100)
    here = a_job("2", steps=2000, on="n1:V100:1", throughputs=some_rates(V100=10.0, K80=5.0))
    other = a_job("3", steps=2000, throughputs=some_rates(V100=10.0, K80=4.8))
    assert plan("1xV100,1xK80,1xV100", long, here, other, is_open=True)["2"] == "n1:V100:1"


def test_hadard_loads_no_pulp_with_this_policy() -> None:
    """A decision with jobs that can move solves the makespan program by HiGHS alone."""
    decides = """
import sys
from builders import ROUND, a_job, a_snapshot, some_rates
from hadar_slurm.policies.registry import make_policy
jobs = [a_job(name, throughputs=some_rates(V100=10.0)) for name in "123"]
plan = make_policy("hadar").plan(a_snapshot("2xV100", *jobs), ROUND)
assert dict(plan.figures)["solved"] and "highspy" in sys.modules
assert "pulp" not in sys.modules
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", decides], check=True, env=environment)
