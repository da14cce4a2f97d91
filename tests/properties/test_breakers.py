"""Whatever jobs break the plan, and however: they are left out, and the others are planned."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builders import a_job, a_plan, a_snapshot
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.broken_plan import check_plan
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job
from hadar_slurm.core.plan import Plan, WaitReason
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.engine.breaker_search import LEAST_PLANS, MOST_PLANS, ROUNDS
from hadar_slurm.engine.breakers import Breakers
from hadar_slurm.errors import InvalidPlan


class Fragile:
    """A policy that fails with some jobs: it raises, or its plan is invalid."""

    def __init__(self, *bad: str, raises: bool) -> None:
        self.bad, self.raises = set(bad), raises
        self.plans = 0

    def __call__(self, snapshot: Snapshot) -> Plan:
        """Return a plan in which all jobs wait, checked."""
        self.plans += 1
        bad = [job for job in snapshot.jobs if job.job_id in self.bad]
        if bad and self.raises:
            raise KeyError("gtx1080")
        placed = {job.job_id: "n9:V100:1" for job in bad}
        waits = {job.job_id for job in snapshot.jobs if not job.allocation} - placed.keys()
        plan = a_plan(placed, dict.fromkeys(waits, WaitReason.INSUFFICIENT))
        held = [job for job in snapshot.jobs if job.allocation and job.job_id not in placed]
        allocations = {**plan.by_id, **{job.job_id: job.allocation for job in held}}
        plan = Plan.of(allocations, dict(plan.waiting))
        check_plan(snapshot, plan)
        return plan


def queue(number: int) -> list[Job]:
    return [a_job(str(n), gpus=1) for n in range(1, number + 1)]


def never() -> bool:
    return False


def snapshot_of(jobs: Sequence[Job]) -> Snapshot:
    return a_snapshot("2xV100,2xV100", *jobs)


@given(
    number=st.integers(2, 40),
    bad=st.sets(st.integers(1, 40), min_size=1, max_size=3),
    raises=st.booleans(),
    new=st.integers(0, 5),
)
def test_breakers_alone_are_left_out(number: int, bad: set[int], raises: bool, new: int) -> None:
    """In each of some rounds all jobs but those left out are planned; soon only breakers are out.

    No round attempts more plans than allowed.
    """
    names = {str(n) for n in bad if n <= number}
    attempt, breakers = Fragile(*names, raises=raises), Breakers()
    jobs = queue(number)
    if new and new < number:
        old = Fragile(raises=raises)
        breakers.plan(snapshot_of(jobs[:-new]), old, never)
    if len(names) >= number:
        with pytest.raises((KeyError, InvalidPlan)):
            breakers.plan(snapshot_of(jobs), attempt, never)
        return
    for _ in range(ROUNDS - 2):
        attempt.plans = 0
        plan = breakers.plan(snapshot_of(jobs), attempt, never)
        assert attempt.plans <= MOST_PLANS
        assert names <= breakers.left_out.keys()
        there = {str(job.job_id) for job in jobs}
        assert {job for job, _ in plan.waiting} == there - breakers.left_out.keys()
    assert breakers.left_out.keys() == names
    assert attempt.plans == 1


def test_what_a_breaker_holds_stays_occupied() -> None:
    """A running job that is left out keeps its GPUs: they are not given to others."""
    running, waiting = a_job("1", on="n1:V100:2"), a_job("2", gpus=1)
    snapshot = snapshot_of([running, waiting])
    rest = snapshot.without({JobId("1")})
    assert [job.job_id for job in rest.jobs] == ["2"]
    assert sum(rest.plannable_capacity.values()) == 2
    breakers = Breakers()
    plan = breakers.plan(snapshot, Fragile("1", raises=True), never)
    assert [job for job, _ in plan.waiting] == ["2"]
    assert breakers.left_out == {"1": "KeyError: 'gtx1080'"}


@pytest.mark.parametrize("jobs", [0, 1, 5])
def test_a_policy_that_always_fails_is_no_jobs_fault(jobs: int) -> None:
    """The fault is raised, with one more plan in the first round and none in the next ones."""
    plans = 0

    def fail(snapshot: Snapshot) -> Plan:
        nonlocal plans
        plans += 1
        raise ZeroDivisionError("of the policy")

    breakers = Breakers()
    for most in (2, 1, 1):
        plans = 0
        with pytest.raises(ZeroDivisionError, match="of the policy"):
            breakers.plan(snapshot_of(queue(jobs)), fail, never)
        assert plans <= most
        assert not breakers.left_out


def test_a_policy_that_fails_with_any_job_is_no_jobs_fault() -> None:
    """To leave out all jobs is no plan."""
    names = [str(n) for n in range(1, 31)]
    with pytest.raises(KeyError):
        Breakers().plan(snapshot_of(queue(30)), Fragile(*names, raises=True), never)


def test_a_breaker_is_planned_again_later() -> None:
    """After some rounds it is tried again; it is not left out without end."""
    attempt, breakers = Fragile("3", raises=True), Breakers()
    snapshot = snapshot_of(queue(4))
    breakers.plan(snapshot, attempt, never)
    attempt.bad.clear()
    rounds = 0
    while breakers.left_out:
        breakers.plan(snapshot, attempt, never)
        rounds += 1
        assert rounds <= ROUNDS
    assert rounds > 1


def test_a_waiting_job_that_breaks_three_plans_in_a_row_is_given_up() -> None:
    """Each ten rounds after the last; not one that is whole again between, nor one that runs."""
    jobs = [*queue(3), a_job("9", on="n1:V100:2")]
    attempt, breakers = Fragile("2", "3", "9", raises=True), Breakers()
    for number in range(2 * ROUNDS + 1):
        assert not breakers.given_up
        attempt.bad = {"2", "9"} if number == ROUNDS else {"2", "3", "9"}
        breakers.plan(snapshot_of(jobs), attempt, never)
    assert breakers.given_up == {"2"}
    assert breakers.left_out["2"] == "KeyError: 'gtx1080'; left to Slurm after 3 such plans"


@pytest.mark.parametrize("bad", [("3",), ("1", "77"), ("150",)])
def test_a_search_that_is_always_late_still_gets_on(bad: tuple[str, ...]) -> None:
    """Few plans are attempted in a round, and rounds later only breakers are left out."""
    attempt, breakers = Fragile(*bad, raises=True), Breakers()
    snapshot, left_out = snapshot_of(queue(150)), 150
    for _ in range(2 * ROUNDS):
        attempt.plans = 0
        plan = breakers.plan(snapshot, attempt, lambda: True)
        assert attempt.plans <= LEAST_PLANS
        assert len(plan.waiting) == 150 - len(breakers.left_out)
        assert len(breakers.left_out) <= left_out
        left_out = len(breakers.left_out)
    assert set(breakers.left_out) == set(bad)


def test_a_search_ends_when_it_is_late() -> None:
    """What is not told apart is left out, and the next round goes on with it."""
    attempt, breakers = Fragile("50", raises=True), Breakers()
    breakers.plan(snapshot_of(queue(100)), Fragile(raises=True), never)
    plan = breakers.plan(snapshot_of(queue(200)), attempt, lambda: True)
    assert attempt.plans == LEAST_PLANS
    assert 1 < 200 - len(plan.waiting) < 100
    breakers.plan(snapshot_of(queue(200)), attempt, never)
    assert list(breakers.left_out) == ["50"]
