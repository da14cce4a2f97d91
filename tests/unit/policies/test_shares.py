"""Shares between users: what a claim can move, and what it cannot."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from builders import ROUND, a_job, a_snapshot, placed_by, some_rates
from hypothesis import given, settings
from hypothesis import strategies as st

from hadar_slurm.core.job import Job
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.policies.hadar.arrivals import Arrivals
from hadar_slurm.policies.hadar.kinds import Kinds
from hadar_slurm.policies.hadar.policy import Hadar, Memory
from hadar_slurm.policies.hadar.shares import (
    Leads,
    Shares,
    WantedService,
    budget_of,
    dealt,
    most_of,
    share_of,
)

V100 = some_rates(V100=10.0)
DAY_S = 86400.0
# An hour of half of a V100, worth 1, and a K80: worth .1 to one user and nothing to the other.
SHARE_S = 3600.0 * (1.0 + 0.05) / 2
USERS = st.sampled_from("abc")
ASKED = st.lists(st.builds(WantedService, USERS, st.floats(1, 100)), max_size=20)
LEADS = st.dictionaries(USERS, st.floats(-200, 200))


def of(user: str, job: Job) -> Job:
    """Return a job of a user."""
    return replace(job, spec=replace(job.spec, user=user))


@given(ASKED, LEADS, st.floats(0, 300))
def test_every_job_is_dealt_once_and_each_users_in_hadars_order(
    asked: list[WantedService], leads: dict[str, float], budget: float
) -> None:
    """The order is a permutation that keeps the order of each user's own jobs."""
    order = dealt(asked, leads, budget)
    assert sorted(order) == list(range(len(asked)))
    for user in "abc":
        own = [position for position in order if asked[position].user == user]
        assert own == sorted(own)


@given(ASKED, LEADS)
def test_without_shares_hadars_order_holds(
    asked: list[WantedService], leads: dict[str, float]
) -> None:
    """An infinite budget changes nothing, nor does any budget for jobs without users."""
    same = list(range(len(asked)))
    assert dealt(asked, leads, math.inf) == same
    assert dealt([WantedService("", gpu_s) for _, gpu_s in asked], leads, 0.0) == same


@given(ASKED, st.lists(st.floats(1, 100), min_size=1, max_size=30), LEADS, st.floats(0, 300))
def test_no_claim_puts_more_than_the_budget_before_a_job_within_its_own(
    asked: list[WantedService], flood: list[float], leads: dict[str, float], budget: float
) -> None:
    """However many jobs a user claims to be first, before those of a user within the budget goes at
    most what is left of it, and one job."""
    order = dealt([*(WantedService("liar", each) for each in flood), *asked], leads, budget)
    needs = {user: sum(each.gpu_s for each in asked if each.user == user) for user in "abc"}
    within = {u for u, need in needs.items() if need and leads.get(u, 0.0) + need <= budget}
    last = max((at for at, p in enumerate(order) if _user(p, flood, asked) in within), default=-1)
    ahead = [flood[position] for position in order[: last + 1] if position < len(flood)]
    assert sum(ahead) <= budget + max(flood)


def _user(position: int, flood: list[float], asked: list[WantedService]) -> str:
    return "liar" if position < len(flood) else asked[position - len(flood)].user


def test_beyond_the_budget_the_least_lead_goes_first() -> None:
    """Of users who are all ahead of the budget, the one who is least ahead is served, in turns."""
    asked = [
        WantedService("a", 10.0),
        WantedService("a", 10.0),
        WantedService("b", 10.0),
        WantedService("b", 10.0),
    ]
    assert dealt(asked, {"a": 25.0, "b": 20.0}, 0.0) == [2, 0, 3, 1]


def test_a_lead_is_what_is_had_above_a_share() -> None:
    """Who holds three GPUs of four beside another user gains one GPU's time; that one loses it."""
    held = Leads(0.0, {}, {"a": 3.0, "b": 1.0})
    found = held.after({"a": 1.0, "b": 1.0}, 100.0, math.inf)
    assert found.gpu_s == {"a": pytest.approx(100.0), "b": pytest.approx(-100.0)}
    weighted = held.after({"a": 3.0, "b": 1.0}, 100.0, math.inf)
    assert not any(weighted.gpu_s.values())


def test_a_lead_is_bounded_either_way() -> None:
    """Neither a long use of idle GPUs nor long modesty counts for more than the largest lead."""
    held = Leads(0.0, {}, {"a": 4.0, "b": 0.0})
    assert held.after({"a": 1.0, "b": 1.0}, 1e6, 50.0).gpu_s == {"a": 50.0, "b": -50.0}
    assert most_of(3600.0, 2.0) == 4 * most_of(0.0, 0.5)
    assert most_of(1e9, 2.0) == 1e9


def test_no_share_is_saved_up_by_a_user_without_jobs() -> None:
    """What a user without jobs is behind is forgotten; what the user is ahead shrinks with time."""
    known = Leads(0.0, {"a": -50.0, "b": 50.0}, {"c": 2.0})
    assert known.after({"c": 1.0}, 10.0, 1000.0).gpu_s == {"b": pytest.approx(30.0)}


def test_the_knob_has_both_ends() -> None:
    """0 gives no bound, 1 no budget, and between them the budget shrinks."""
    assert budget_of(0.0, 2.0) == math.inf
    assert budget_of(1.0, 2.0) == 0.0
    assert budget_of(0.2, 2.0) > budget_of(0.5, 2.0) == 7200.0


def test_shares_go_by_slurms_fair_share_where_it_is_known() -> None:
    """A factor of 0.5 is an equal share, as is an unknown one; a heavy user's is smaller."""
    job = a_job("1", throughputs=V100)
    assert share_of([job]) == 1.0
    assert share_of([replace(job, fair_share=0.5)]) == 1.0
    assert share_of([replace(job, fair_share=0.1), job]) == pytest.approx(math.sqrt(0.2))


def test_a_user_ahead_of_the_budget_waits_for_the_others() -> None:
    """A shorter job of a user far ahead goes after another user's; without shares it is first."""
    mine = of("ada", a_job("1", steps=9000, throughputs=V100))
    short = of("mallory", a_job("2", steps=10, throughputs=V100))
    snapshot = a_snapshot("1xV100", mine, short)
    leads = Leads(0.0, {"mallory": 1e6})
    round_ = replace(ROUND, memory=Memory(arrivals=Arrivals(0.0, 60.0), leads=leads))
    assert placed_by(Hadar(user_shares=0.5).plan(snapshot, round_)) == {"1": "n1:V100:1"}
    assert placed_by(Hadar(user_shares=0.0).plan(snapshot, round_)) == {"2": "n1:V100:1"}


def test_an_only_type_is_got_first_by_users_behind_by_an_hour_of_a_share() -> None:
    """Naming the fast type alone does not take it from a job to which it is worth more.

    A job without a user is given it, and so is the job of an only user.
    """
    several = of("ada", a_job("1", steps=1000, throughputs=some_rates(V100=10.0, K80=1.0)))
    only = a_job("2", steps=9000, throughputs=some_rates(V100=10.0))

    def fast(job: Job, other: Job, lead: float) -> str:
        leads = Leads(0.0, {"mallory": lead})
        round_ = replace(ROUND, memory=Memory(arrivals=Arrivals(0.0, 60.0), leads=leads))
        placed = placed_by(Hadar().plan(a_snapshot("1xV100,1xK80", other, job), round_))
        return next(job_id for job_id, gang in placed.items() if gang == "n1:V100:1")

    leads = (0.0, -SHARE_S + 1.0, -SHARE_S - 1.0)
    assert [fast(of("mallory", only), several, lead) for lead in leads] == ["1", "1", "2"]
    assert fast(only, several, 0.0) == "2"
    assert fast(of("ada", only), several, 0.0) == "2"


def test_what_a_user_holds_is_counted_by_the_next_round() -> None:
    """After an hour on the only GPU a user is half an hour of it ahead of another with jobs."""
    jobs = [
        of("ada", a_job("1", steps=10**6, throughputs=V100)),
        of("ben", a_job("2", steps=10**7)),
    ]
    jobs[1] = of("ben", a_job("2", steps=10**7, throughputs=V100))
    policy = Hadar(user_shares=0.5)
    first = policy.plan(a_snapshot("1xV100", *jobs), ROUND)
    later = a_snapshot("1xV100", *jobs, now_s=3600.0)
    memory = policy.plan(later, replace(ROUND, memory=first.memory)).memory
    assert isinstance(memory, Memory)
    assert memory.leads is not None
    (holder,) = placed_by(first)
    ahead = "ada" if holder == "1" else "ben"
    assert memory.leads.gpu_s[ahead] == pytest.approx(1800.0)


CLAIMS = st.tuples(st.integers(1, 10**15), st.floats(1e-6, 1e12), st.booleans())


def claimed(claim: tuple[int, float, bool], number: int, gpus: int, limit_s: float) -> Job:
    """Return a waiting job of the liar, whose claims are not proven."""
    steps, speed, can_move = claim
    throughputs = some_rates(V100=speed)
    job = a_job(str(number), gpus, steps=steps, throughputs=throughputs, can_checkpoint=can_move)
    return replace(of("mallory", job), limit_left_s=limit_s)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(CLAIMS, st.integers(1, 4)), min_size=1, max_size=4),
    st.booleans(),
    st.floats(400, 1e9),
)
def test_no_unproven_claim_goes_before_a_job_shorter_than_its_limit(
    claims: list[tuple[tuple[int, float, bool], int]],
    can_move: bool,
    limit_s: float,
) -> None:
    """Whatever is claimed: jobs of another user within the budget keep their GPUs, and the one that
    waits gets what they leave."""
    throughputs, steps = some_rates(V100=10.0), 1000
    honest = [
        a_job("1", 2, on="n1:V100:2", steps=steps, throughputs=throughputs, service_gpu_s=20.0),
        a_job("2", 1, on="n1:V100:1", steps=steps, throughputs=throughputs),
        a_job("3", 1, steps=steps, throughputs=throughputs, can_checkpoint=can_move),
    ]
    liars = [claimed(claim, at, gpus, limit_s) for at, (claim, gpus) in enumerate(claims, start=4)]
    snapshot = a_snapshot("4xV100", *(of("ada", job) for job in honest), *liars, now_s=10.0)
    plan = Hadar().plan(snapshot, ROUND)
    assert placed_by(plan) == {"1": "n1:V100:2", "2": "n1:V100:1", "3": "n1:V100:1"}


def test_a_job_that_claims_the_whole_horizon_is_not_critical_before_another_user() -> None:
    """A claim of a week does not make a job urgent beside shorter ones of others, if unproven."""
    honest = of("ada", a_job("1", on="n1:V100:1", steps=1000, throughputs=V100))
    liar = claimed((10**15, 10.0, True), 2, 1, 7 * DAY_S)
    plan = Hadar().plan(a_snapshot("1xV100", honest, liar), ROUND)
    assert placed_by(plan) == {"1": "n1:V100:1"}
    believed = replace(liar, limit_left_s=None)
    plan = Hadar().plan(a_snapshot("1xV100", honest, believed), ROUND)
    assert placed_by(plan) == {"2": "n1:V100:1"}


def test_the_only_user_is_ranked_by_claims() -> None:
    """Beside no other user's jobs, the shorter job goes first, whatever its time limit."""
    short, long = (
        replace(of("ada", a_job(name, steps=steps, throughputs=V100)), limit_left_s=limit_s)
        for name, steps, limit_s in (("1", 1000, 1e6), ("2", 9000, 1000.0))
    )
    plan = Hadar().plan(a_snapshot("1xV100", long, short), ROUND)
    assert placed_by(plan) == {"1": "n1:V100:1"}


def test_an_unproven_job_that_cannot_move_takes_its_limit_from_the_budget() -> None:
    """Of a flood of such jobs that claim a second, three hours go before another user's job."""
    flood = [claimed((1, 1.0, False), number, 1, 3600.0) for number in range(2, 10)]
    honest = of("ada", a_job("1", steps=10**6, throughputs=V100))
    kinds = Kinds(Allocator(a_snapshot("1xV100", honest, *flood), ROUND))
    for limit_left_s, place in ((3600.0, 3), (None, 8)):
        jobs = [replace(job, limit_left_s=limit_left_s) for job in flood]
        shares = Shares.of(kinds, [*jobs, honest], 0.2, None)
        assert shares is not None
        assert shares.order([*jobs, honest]).index(8) == place


@settings(max_examples=25, deadline=None)
@given(st.lists(CLAIMS, min_size=1, max_size=4), st.sampled_from((0.0, 0.2, 1.0)), st.booleans())
def test_an_honest_job_starts_within_the_guards_promise(
    claims: list[tuple[int, float, bool]], user_shares: float, are_proven: bool
) -> None:
    """Whatever others claim of jobs that can move, a job that has waited 2 days and 20 times its
    time alone is next, at any strictness of the shares."""
    now_s = 2 * DAY_S + 20 * 100.0 + 1.0
    honest = of("ada", a_job("1", steps=1000, throughputs=V100))
    liars = [
        replace(
            of(
                "mallory",
                a_job(
                    str(number),
                    on="n1:V100:1" if number == 2 else "",
                    steps=steps,
                    throughputs=some_rates(V100=speed),
                    submitted_s=now_s if is_new else 10.0,
                ),
            ),
            limit_left_s=None if are_proven else 60.0,
        )
        for number, (steps, speed, is_new) in enumerate(claims, start=2)
    ]
    plan = Hadar(user_shares=user_shares).plan(
        a_snapshot("1xV100", honest, *liars, now_s=now_s), ROUND
    )
    assert placed_by(plan) == {"1": "n1:V100:1"}
