"""check_plan: every rule, errors that list all broken rules, and gangs that run already."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import a_cluster, a_gang, a_job, a_plan, a_snapshot, some_rates

from hadar_slurm.core.broken_plan import check_plan
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Allocation
from hadar_slurm.core.job import Phase, Shape
from hadar_slurm.core.plan import Plan, WaitReason
from hadar_slurm.core.snapshot import GangRules, Snapshot
from hadar_slurm.errors import InvalidPlan

OUTBID = WaitReason.OUTBID
CLUSTER = "2xV100,2xV100,4xK80,1xV100+1xK80"


def broken_by(snapshot: Snapshot, plan: Plan) -> tuple[str, ...]:
    with pytest.raises(InvalidPlan) as caught:
        check_plan(snapshot, plan)
    return caught.value.broken


def test_a_sound_plan_passes() -> None:
    """A plan of new gangs, kept gangs and waiting jobs within the rules is valid."""
    snapshot = a_snapshot(
        CLUSTER,
        a_job("1", 2),
        a_job("2", 2),
        a_job("3", 1, on="n3:K80:1"),
        a_job("4", 4),
        a_job("5", 1, on="n4:K80:1", phase=Phase.STOPPING),
        occupied="n3:K80:3",
    )
    plan = a_plan(
        {"1": "n1:V100:2", "2": "n2:V100:1 n4:V100:1", "3": "n3:K80:1"},
        {"4": OUTBID, "5": WaitReason.STOPPING},
    )
    check_plan(snapshot, plan)


@pytest.mark.parametrize(
    ("gang", "rule"),
    [
        ("n1:V100:1", "job 1 gets 1 GPUs and its gang is 2"),
        ("n1:V100:2 n2:V100:1", "job 1 gets 3 GPUs and its gang is 2"),
        ("n9:V100:2", "job 1 is placed on unknown node n9"),
        ("n1:K80:2", "n1 is to give 2 K80 and has 0"),
        ("n4:V100:2", "n4 is to give 2 V100 and has 1"),
        ("n1:V100:1 n4:K80:1", "cannot be expressed: it mixes GPU types and n4 holds several"),
        ("n4:V100:1 n4:K80:1", "cannot be expressed: it mixes GPU types and n4 holds several"),
    ],
)
def test_a_gang_that_cannot_be_is_refused(gang: str, rule: str) -> None:
    """Refused: wrong size, unknown node, missing GPUs, and types that Slurm cannot express."""
    broken = broken_by(a_snapshot(CLUSTER, a_job("1", 2)), a_plan({"1": gang}))
    assert any(rule in words for words in broken), broken


def test_a_layout_that_the_job_does_not_allow_is_refused() -> None:
    """A job that allows one node only is not spread over two."""
    job = a_job("1", 2, shapes=[Shape(nodes=1, gpus_per_node=2)])
    assert broken_by(a_snapshot(CLUSTER, job), a_plan({"1": "n1:V100:1 n2:V100:1"})) == (
        "job 1 gets the shape 1x2, which it does not allow",
    )


def test_nodes_with_different_numbers_of_gpus_are_refused() -> None:
    """A Slurm job cannot request different numbers of GPUs per node."""
    snapshot = a_snapshot("3xV100,1xV100", a_job("1", 4))
    assert broken_by(snapshot, a_plan({"1": "n1:V100:3 n2:V100:1"})) == (
        "job 1 gets n1:V100:3 n2:V100:1, which cannot be expressed: "
        "its nodes do not hold equally many GPUs",
    )


def test_mixing_types_is_refused_where_the_backend_cannot() -> None:
    """Mixed types are refused if the backend's rules exclude them."""
    rules = GangRules(may_mix_types=False)
    snapshot = a_snapshot("1xV100,1xK80", a_job("1", 2), rules=rules)
    assert "it mixes GPU types" in broken_by(snapshot, a_plan({"1": "n1:V100:1 n2:K80:1"}))[0]


def test_a_backend_without_the_uniform_rule_takes_any_gang() -> None:
    """Without the rule `is_uniform` a gang of any form is valid."""
    rules = GangRules(is_uniform=False)
    snapshot = a_snapshot("1xV100+2xK80,1xK80", a_job("1", 4), rules=rules)
    check_plan(snapshot, a_plan({"1": "n1:V100:1 n1:K80:2 n2:K80:1"}))


def test_a_node_that_takes_no_work_gets_none() -> None:
    """A closed node keeps its jobs and gets no new ones."""
    cluster = a_cluster("1xV100,1xV100", closed=["n1"])
    staying, coming = a_job("1", on="n1:V100:1"), a_job("2")
    check_plan(a_snapshot(cluster, staying, coming), a_plan({"1": "n1:V100:1", "2": "n2:V100:1"}))
    assert broken_by(a_snapshot(cluster, coming), a_plan({"2": "n1:V100:1"})) == (
        "job 2 is placed on n1, which takes no work",
    )


def test_a_node_outside_the_jobs_partition_is_refused() -> None:
    """A job is placed on the nodes that it may use only."""
    snapshot = a_snapshot("1xV100,1xV100", a_job("1", allowed=["n2"]))
    check_plan(snapshot, a_plan({"1": "n2:V100:1"}))
    assert broken_by(snapshot, a_plan({"1": "n1:V100:1"})) == (
        "job 1 is placed on n1, where it may not run",
    )


def test_another_type_than_the_one_a_job_is_bound_to_is_refused() -> None:
    """A job whose request names a GPU type gets no other type."""
    snapshot = a_snapshot("1xV100,1xK80", a_job("1", bound_type="K80"))
    check_plan(snapshot, a_plan({"1": "n2:K80:1"}))
    assert broken_by(snapshot, a_plan({"1": "n1:V100:1"})) == (
        "job 1 gets n1:V100:1 and can ask for K80 only",
    )


def test_a_place_without_a_rate_is_refused() -> None:
    """A job is not placed on a type where its throughput is 0."""
    snapshot = a_snapshot("1xV100", a_job("1", throughputs=some_rates(V100=0.0, K80=1.0)))
    assert broken_by(snapshot, a_plan({"1": "n1:V100:1"})) == ("job 1 does not fit on n1:V100:1",)


def test_gpus_given_twice_are_refused() -> None:
    """A GPU goes to one job only, and not to a job if unmanaged jobs occupy it."""
    jobs = (a_job("1"), a_job("2"))
    plan = a_plan({"1": "n1:V100:1", "2": "n1:V100:1"})
    assert broken_by(a_snapshot("1xV100", *jobs), plan) == ("n1 is to give 2 V100 and has 1",)
    occupied = a_snapshot("2xV100", *jobs, occupied="n1:V100:1")
    assert broken_by(occupied, plan) == ("n1 is to give 2 V100 and has 1",)


def test_gpus_of_a_stopping_job_are_not_free_yet() -> None:
    """The GPUs of a stopping job cannot be placed."""
    leaving = a_job("1", on="n1:V100:1", phase=Phase.STOPPING)
    plan = a_plan({"2": "n1:V100:1"}, {"1": WaitReason.STOPPING})
    assert broken_by(a_snapshot("1xV100", leaving, a_job("2")), plan) == (
        "n1 is to give 1 V100 and has 0",
    )


def test_a_stopping_job_is_not_placed() -> None:
    """A job is not placed while it is stopping."""
    leaving = a_job("1", on="n1:V100:1", phase=Phase.STOPPING)
    assert "job 1 is stopping and cannot be placed" in broken_by(
        a_snapshot("1xV100,1xV100", leaving), a_plan({"1": "n2:V100:1"})
    )


def test_a_job_that_keeps_its_gpus_is_checked_like_any_other() -> None:
    """Its phase, its copies and whether it is left out count also where nothing changes."""
    copies = Allocation.of({0: a_gang("n1:V100:1"), 1: a_gang("n2:V100:1")})
    jobs = [
        (a_job("1", on="n1:V100:1", phase=Phase.STOPPING), "is stopping and cannot be placed"),
        (replace(a_job("1", on="n1:V100:1"), left_out=True), "is left out and cannot be placed"),
        (replace(a_job("1", on="n1:V100:1"), allocation=copies), "has 2 copies and may have 1"),
    ]
    for job, rule in jobs:
        plan = Plan.of({job.job_id: job.allocation}, {})
        assert f"job 1 {rule}" in broken_by(a_snapshot("1xV100,1xV100", job), plan)


def test_an_unknown_job_is_refused() -> None:
    """A plan cannot place a job that is not in the snapshot."""
    assert broken_by(a_snapshot("1xV100"), a_plan({"7": "n1:V100:1"})) == (
        "job 7 is not in the snapshot",
    )


def test_two_copies_of_a_rigid_job_are_refused() -> None:
    """A rigid job has one copy only."""
    copies = Allocation.of({0: a_gang("n1:V100:1"), 1: a_gang("n2:V100:1")})
    plan = Plan.of({JobId("1"): copies}, {})
    assert broken_by(a_snapshot("1xV100,1xV100", a_job("1")), plan) == (
        "job 1 has 2 copies and may have 1",
    )


def test_an_allocation_of_nothing_is_refused() -> None:
    """A job without GPUs must wait with a reason; an empty allocation is invalid."""
    plan = Plan.of({JobId("1"): Allocation()}, {})
    assert broken_by(a_snapshot("1xV100", a_job("1")), plan) == (
        "job 1 has 0 copies and may have 1",
    )


def test_a_job_without_a_place_needs_a_reason() -> None:
    """Every job has an allocation or a reason to wait."""
    assert broken_by(a_snapshot("1xV100", a_job("1")), a_plan()) == (
        "job 1 has neither an allocation nor a reason to wait",
    )


def test_a_job_cannot_both_run_and_wait() -> None:
    """A job with an allocation cannot have a reason to wait."""
    plan = a_plan({"1": "n1:V100:1"}, {"1": OUTBID})
    assert broken_by(a_snapshot("1xV100", a_job("1")), plan) == (
        "job 1 is both placed and waiting",
    )


def test_jobs_that_have_ended_need_nothing() -> None:
    """A finished job is not part of a plan."""
    check_plan(a_snapshot("1xV100", a_job("1", phase=Phase.DONE)), a_plan())


@pytest.mark.parametrize(
    "job",
    [
        a_job("1", on="n1:V100:1", can_checkpoint=False),
        a_job("1", on="n1:V100:1", phase=Phase.STARTING),
    ],
    ids=["not checkpointable", "starting"],
)
def test_a_job_that_cannot_be_moved_keeps_its_gpus(job: object) -> None:
    """A job that cannot resume or is starting can be neither migrated nor preempted."""
    snapshot = a_snapshot("1xV100,1xV100", job)  # type: ignore[arg-type]
    check_plan(snapshot, a_plan({"1": "n1:V100:1"}))
    rule = ("job 1 cannot be moved now and must keep its GPUs",)
    assert broken_by(snapshot, a_plan({"1": "n2:V100:1"})) == rule
    assert broken_by(snapshot, a_plan(waiting={"1": OUTBID})) == rule


def test_a_job_that_cannot_be_checkpointed_may_be_placed_once() -> None:
    """A job without checkpoints can be placed anywhere before it runs."""
    check_plan(a_snapshot("1xV100", a_job("1", can_checkpoint=False)), a_plan({"1": "n1:V100:1"}))


@pytest.mark.parametrize(
    ("held", "job"),
    [
        ("n1:V100:2 n2:V100:1", {"gpus": 3}),
        ("n1:V100:2", {"gpus": 2, "shapes": [Shape(2, 1)]}),
        ("n4:V100:1 n4:K80:1", {"gpus": 2}),
        ("n1:V100:1", {"gpus": 2}),
        ("n3:K80:1", {"gpus": 1, "throughputs": some_rates(V100=1.0)}),
        ("n3:K80:1", {"gpus": 1, "bound_type": "V100", "allowed": ["n1"]}),
    ],
    ids=["not uniform", "other layout", "mixed node", "other size", "no rate", "other nodes"],
)
def test_what_runs_already_is_a_fact(held: str, job: dict[str, object]) -> None:
    """A running gang of any form may be kept; a new gang of that form is refused."""
    staying = a_job("1", on=held, **job)  # type: ignore[arg-type]
    check_plan(a_snapshot(CLUSTER, staying), a_plan({"1": held}))
    coming = a_job("1", **job)  # type: ignore[arg-type]
    assert broken_by(a_snapshot(CLUSTER, coming), a_plan({"1": held}))


def test_every_broken_rule_is_told() -> None:
    """The error lists every broken rule, not only the first."""
    cluster = a_cluster("1xV100,2xV100", closed=["n2"])
    snapshot = a_snapshot(cluster, a_job("1"), a_job("2"), a_job("3"), a_job("10"))
    plan = a_plan({"1": "n1:V100:1", "2": "n1:V100:1", "3": "n2:V100:2", "9": "n1:V100:1"})
    assert set(broken_by(snapshot, plan)) == {
        "job 9 is not in the snapshot",
        "job 3 gets 2 GPUs and its gang is 1",
        "job 3 is placed on n2, which takes no work",
        "job 10 has neither an allocation nor a reason to wait",
        "n1 is to give 3 V100 and has 1",
    }
    with pytest.raises(InvalidPlan, match=r"invalid plan: .*job 3 gets 2 GPUs.*; .*n1 is to give"):
        check_plan(snapshot, plan)


def test_plans_are_canonical() -> None:
    """Plans are equal whatever the order of their entries; job 10 comes after job 9."""
    one = a_plan({"10": "n1:V100:1", "9": "n1:V100:1"}, {"3": OUTBID, "20": OUTBID})
    other = a_plan({"9": "n1:V100:1", "10": "n1:V100:1"}, {"20": OUTBID, "3": OUTBID})
    assert one == other
    assert list(one.by_id) == ["9", "10"]
