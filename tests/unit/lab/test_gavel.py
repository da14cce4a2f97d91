"""Gavel's objectives on cases solvable by hand, and how shares become rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from builders import a_cluster, a_job, a_spec, some_rates
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.job import Job, JobSpec
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.lab.policies.gavel import (
    OBJECTIVES,
    GavelDemand,
    fifo,
    finish_time_fairness,
    makespan,
    max_min,
    max_sum,
    search_horizon,
)
from hadar_slurm.lab.policies.gavel_rounds import Gavel
from hadar_slurm.lab.policies.interior import Floats
from hadar_slurm.lab.study.experiment import ExperimentSettings, run_experiment
from hadar_slurm.lab.study.figures import Result
from hadar_slurm.sim.backend import GAVEL_RULES


def a_demand(
    throughputs: list[list[float]],
    *,
    gangs: list[float] | None = None,
    steps_left: list[float] | None = None,
    age_s: list[float] | None = None,
    capacity: list[float] | None = None,
) -> GavelDemand:
    """Return jobs of one GPU and 1000 steps on types of one GPU, by default."""
    jobs, gpu_types = len(throughputs), len(throughputs[0])
    return GavelDemand(
        gangs=np.array(gangs or [1.0] * jobs),
        throughputs=np.array(throughputs),
        steps_left=np.array(steps_left or [1000.0] * jobs),
        age_s=np.array(age_s or [0.0] * jobs),
        isolated_s=np.zeros(jobs),
        capacity=np.array(capacity or [1.0] * gpu_types),
    )


def speeds(demand: GavelDemand, shares: Floats) -> list[float]:
    """Return each job's steps/s with its shares."""
    return [float(speed) for speed in (demand.throughputs * shares).sum(axis=1)]


# Objectives.


def test_max_min_is_fair_by_what_an_equal_share_would_bring() -> None:
    """A is four times as fast on the first type, B equally fast on both: each gets 6/7."""
    demand = a_demand([[4.0, 1.0], [1.0, 1.0]], capacity=[1.0, 0.5])
    reached = np.array(speeds(demand, max_min(demand)))
    equal = demand.throughputs @ (demand.capacity / demand.capacity.sum())
    # B gets the slow half GPU and the rest of the fast one, so 1.5 - a = 4 a / 3.
    assert reached / equal == pytest.approx([6 / 7, 6 / 7], rel=1e-6)


def test_max_min_counts_a_gang_by_its_gpus() -> None:
    """A gang of two counts double, so it gets half the time of a job of one GPU."""
    demand = a_demand([[1.0], [1.0]], gangs=[2.0, 1.0], capacity=[2.0])
    shares = max_min(demand)
    assert shares[:, 0] == pytest.approx([0.5, 1.0], rel=1e-6)


def test_makespan_has_all_jobs_done_by_a_horizon_near_the_shortest() -> None:
    """Three equal jobs on one GPU get a third of it each, within the tolerance of the search."""
    demand = a_demand([[1.0]] * 3, steps_left=[10_000.0] * 3)
    horizon_s = max(10_000.0 / speed for speed in speeds(demand, makespan(demand)))
    assert 30_000.0 <= horizon_s <= 1.05 * 30_000.0


@given(shortest_s=st.floats(1.0, 1e9))
def test_the_horizon_is_the_shortest_within_the_searchs_gap(shortest_s: float) -> None:
    """The horizon is never below the shortest one, and at most 1.05^2 times it (100 s at least)."""
    horizon_s = search_horizon(shortest_s)
    assert shortest_s <= horizon_s <= 1.05**2 * max(shortest_s, 100.0)


def test_max_sum_gives_a_gpu_to_who_makes_most_steps_with_it() -> None:
    """The job with the most steps/s gets the fast type, the other one the slow type."""
    demand = a_demand([[100.0, 50.0], [3.0, 1.0]])
    assert max_sum(demand) == pytest.approx(np.array([[1.0, 0.0], [0.0, 1.0]]), abs=1e-6)


def test_finish_time_fairness_makes_up_for_waiting() -> None:
    """Of two equal jobs, one that has waited gets more; without waiting both get half."""
    even = a_demand([[1.0], [1.0]])
    assert speeds(even, finish_time_fairness(even)) == pytest.approx([0.5, 0.5], rel=2e-3)
    late = replace(even, age_s=np.array([1000.0, 0.0]))
    first, second = speeds(late, finish_time_fairness(late))
    assert first > second
    # rho = (1000 + 1000 / x) / 2000 = (1000 / (1 - x)) / 2000, so x = 1 / golden ratio.
    assert first == pytest.approx((5**0.5 - 1) / 2, rel=2e-3)


def test_fifo_stops_at_the_first_job_without_room() -> None:
    """The gang of four waits, and so does the small job behind it."""
    demand = a_demand([[1.0]] * 3, gangs=[2.0, 4.0, 1.0], age_s=[9.0, 8.0, 7.0], capacity=[4.0])
    assert fifo(demand)[:, 0].tolist() == [1.0, 0.0, 0.0]


def test_fifo_goes_by_age_and_takes_the_fastest_type_with_room() -> None:
    """The second job gets the second-fastest type; a job that trains on no free type is skipped."""
    demand = a_demand(
        [[9.0, 5.0, 1.0], [9.0, 5.0, 1.0], [9.0, 5.0, 0.0], [9.0, 5.0, 1.0]],
        age_s=[1.0, 5.0, 0.5, 0.1],
    )
    assert fifo(demand).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 1]]


# Rounds.


def replayed(
    jobs: list[JobSpec], cluster: str, policy: Gavel, rules: str = "gavel"
) -> tuple[Result, list[RoundRecord]]:
    """Return the result of a simulation, and its rounds."""
    lines: list[RoundRecord] = []
    settings = ExperimentSettings(rules=rules)
    return run_experiment(jobs, a_cluster(cluster), policy, settings, on_round=lines.append), lines


@pytest.mark.parametrize("objective", ["max-min", "makespan", "ftf"])
def test_like_jobs_take_turns(objective: str) -> None:
    """Two equal jobs alternate on one GPU and end within two rounds of each other."""
    jobs = [a_spec(name, steps=36_000) for name in ("1", "2")]
    result, _ = replayed(jobs, "1xV100", Gavel(objective))
    first, second = sorted(done.end_s for done in result.jcts)
    assert second == pytest.approx(7200.0)
    assert first >= 7200.0 - 2 * 360.0


def test_a_job_alternates_between_types_as_its_shares_say() -> None:
    """Two equal jobs swap a fast and a slow GPU, and end within four rounds of each other."""
    jobs = [
        a_spec(name, steps=360_000, throughputs=some_rates(V100=10, K80=2)) for name in ("1", "2")
    ]
    result, _ = replayed(jobs, "1xV100,1xK80", Gavel("max-min"))
    assert result.moves > 20
    ends = [done.end_s for done in result.jcts]
    assert max(ends) - min(ends) <= 4 * 360.0


def computed(lines: list[RoundRecord]) -> list[float]:
    """Return when shares were computed, in seconds."""
    return [
        line.round.start_s
        for line in lines
        if line.plan and dict(line.plan.figures)["shares_computed"]
    ]


def test_shares_are_computed_after_a_change_and_not_too_often() -> None:
    """A job arrives at 360 s, jobs end at 1,080 and 1,440 s: one recomputation covers both ends."""
    jobs = [
        a_spec("1", steps=72_000),
        a_spec("2", steps=7200, submitted_s=300.0),
        a_spec("3", steps=14_400),
    ]
    _, lines = replayed(jobs, "4xV100", Gavel("max-min"))
    # A computation at 0 s is ignored: job 2 gets a share at 360 s. Then 1,920 s must pass.
    assert computed(lines) == [0.0, 360.0, 2520.0]


def late_comer() -> list[JobSpec]:
    """Return a long job, one that arrives at 300 s, and one that arrives soon after it."""
    come_s = {"1": 0.0, "2": 300.0, "3": 700.0}
    return [a_spec(name, steps=72_000, submitted_s=at_s) for name, at_s in come_s.items()]


def test_under_gavels_rules_a_job_waits_for_its_shares() -> None:
    """Two GPUs are free, but job 3 starts only when shares may be recomputed."""
    _, lines = replayed(late_comer(), "4xV100", Gavel("max-min"))
    starts = [line.round.start_s for line in lines if line.plan and "3" in line.plan.by_id]
    assert starts[0] == 360.0 + 6 * 360.0


@pytest.mark.parametrize(("rules", "is_strict"), [("hadar", True), ("gavel", False)])
def test_elsewhere_a_job_without_shares_gets_what_is_free(rules: str, *, is_strict: bool) -> None:
    """Under other rules, job 3 starts in the first round after its arrival."""
    policy = Gavel("max-min", is_strict=is_strict)
    _, lines = replayed(late_comer(), "4xV100", policy, rules)
    starts = [line.round.start_s for line in lines if line.plan and "3" in line.plan.by_id]
    assert starts[0] <= 720.0


def test_gavels_fifo_leaves_gpus_idle_behind_the_first_that_waits() -> None:
    """Job 2 needs both GPUs; job 3 gets the free one, except under Gavel's rules."""
    jobs = (a_job("1", on="n1:V100:1"), a_job("2", 2), a_job("3"))
    cluster = a_cluster("2xV100")
    placed = {
        rules.counts_spread: Gavel("fifo")
        .plan(Snapshot.of(now_s=0.0, cluster=cluster, jobs=jobs, rules=rules), ROUND)
        .by_id
        for rules in (GAVEL_RULES, replace(GAVEL_RULES, counts_spread=True))
    }
    assert set(placed[False]) == {"1"}
    assert set(placed[True]) == {"1", "3"}


ROUND = Round(0, 0.0, 360.0)


def planned(policy: Gavel, jobs: list[Job], memory: object, now_s: float = 0.0) -> Plan:
    """Return a plan for jobs on two nodes of two GPUs."""
    cluster = a_cluster("2xV100,2xK80")
    snapshot = Snapshot.of(now_s=now_s, cluster=cluster, jobs=jobs)
    return policy.plan(snapshot, replace(ROUND, start_s=now_s, memory=memory))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_policy_that_lost_its_memory_begins_anew(objective: str) -> None:
    """Memory of another kind, or of another cluster, is ignored."""
    policy = Gavel(objective)
    jobs = [a_job("1"), a_job("2", 2), a_job("3"), a_job("4")]
    fresh = planned(policy, jobs, None)
    elsewhere = policy.plan(
        Snapshot.of(now_s=0.0, cluster=a_cluster("4xA100"), jobs=jobs), ROUND
    ).memory
    assert dict(fresh.figures)["shares_computed"] == 1.0
    assert planned(policy, jobs, "somebody else's") == fresh
    assert planned(policy, jobs, elsewhere) == fresh
    again = planned(policy, jobs, fresh.memory, now_s=360.0)
    assert dict(again.figures)["shares_computed"] == 0.0


def test_types_not_gavels_are_served_by_speed() -> None:
    """A single job, with a share of every type, runs on the fastest type."""
    throughputs = some_rates(A100=30.0, T4=2.0, L4=9.0)
    cluster = a_cluster("1xT4,1xA100,1xL4")
    jobs = [a_job("1", throughputs=throughputs)]
    plan = Gavel("max-sum").plan(Snapshot.of(now_s=0.0, cluster=cluster, jobs=jobs), ROUND)
    assert [str(gang) for gang in plan.by_id[jobs[0].job_id].gangs] == ["n2:A100:1"]


def test_without_an_answer_everybody_gets_an_equal_share() -> None:
    """If rates spanning 24 orders of magnitude defeat the solver, shares are equal."""
    jobs = [
        a_job("1", throughputs=some_rates(V100=1e-12, K80=1e12)),
        a_job("2", 2, throughputs=some_rates(V100=1e12, K80=1e-12)),
        a_job("3", throughputs=some_rates(V100=1.0)),
    ]
    plan = planned(Gavel("max-sum"), jobs, None)
    assert dict(plan.figures)["solver_fallback"] == 1.0
    assert len(plan.allocations) >= 2
