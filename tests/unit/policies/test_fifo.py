"""Policies yarn-cs and slurm: FIFO, without and with backfill."""

from __future__ import annotations

import pytest
from builders import ROUND, a_cluster, a_job, a_snapshot, placed_by, reasons_of, some_rates

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.job import Job, Shape
from hadar_slurm.core.plan import Plan, WaitReason
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.policies.backfill import SlurmBackfill, time_limit_s
from hadar_slurm.policies.fifo import YarnCapacity
from hadar_slurm.policies.policy import Policy
from hadar_slurm.sim.backend import GAVEL_RULES

# 1 step/s on every GPU, so that a job of s steps on one GPU has a limit of s seconds.
EVEN = some_rates(V100=1.0, K80=1.0)
every_fifo = pytest.mark.parametrize("policy", [YarnCapacity(), SlurmBackfill()])


def even(job_id: str, gpus: int = 1, *, on: str = "", seconds: int = 100, ran_s: float = 0) -> Job:
    """Return a job on one node, submitted in the order of its id, that runs for `seconds`."""
    return a_job(
        job_id,
        gpus,
        on=on,
        steps=seconds * gpus,
        service_gpu_s=ran_s * gpus,
        throughputs=EVEN,
        shapes=[Shape(1, gpus)],
        submitted_s=float(job_id),
    )


def slurm(snapshot: Snapshot) -> Plan:
    return SlurmBackfill().plan(snapshot, ROUND)


@every_fifo
def test_the_first_to_come_is_the_first_to_start(policy: Policy) -> None:
    """Jobs start in order of submission, whatever their id, size or speed."""
    jobs = [a_job("1", submitted_s=9.0), a_job("2", steps=10**9, submitted_s=8.0)]
    plan = policy.plan(a_snapshot("1xV100", *jobs), ROUND)
    assert placed_by(plan) == {"2": "n1:V100:1"}
    assert reasons_of(plan) == {"1": WaitReason.INSUFFICIENT}


@every_fifo
def test_nobody_who_runs_is_moved_or_stopped(policy: Policy) -> None:
    """A running job is not preempted for an earlier job, nor moved to a faster type."""
    runs = a_job("2", on="n2:K80:1", submitted_s=9.0)
    plan = policy.plan(a_snapshot("1xV100,1xK80", a_job("1", 2, shapes=[Shape(1, 2)]), runs), ROUND)
    assert placed_by(plan) == {"2": "n2:K80:1"}


@every_fifo
def test_who_never_fits_stands_in_nobodys_way(policy: Policy) -> None:
    """Jobs too large for all open nodes do not block the queue."""
    jobs = [even("1", 4), even("2", 3), even("3")]
    cluster = a_cluster("2xV100,4xV100", closed=["n2"])
    plan = policy.plan(a_snapshot(cluster, *jobs), ROUND)
    assert placed_by(plan) == {"3": "n1:V100:1"}
    assert set(reasons_of(plan).values()) == {WaitReason.INSUFFICIENT}


def test_yarn_lets_nobody_past_the_head_of_the_queue() -> None:
    """A later job does not start before the head of the queue, even on a free GPU."""
    jobs = [even("1", on="n1:V100:1"), even("2", 2), even("3")]
    plan = YarnCapacity().plan(a_snapshot("2xV100", *jobs), ROUND)
    assert placed_by(plan) == {"1": "n1:V100:1"}


def test_yarn_takes_types_by_plenty() -> None:
    """A job gets the type with most free GPUs on which it trains."""
    jobs = [a_job("1"), a_job("2", throughputs=some_rates(V100=1.0))]
    plan = YarnCapacity().plan(a_snapshot("1xV100,2xK80", *jobs), ROUND)
    assert placed_by(plan) == {"1": "n2:K80:1", "2": "n1:V100:1"}


def test_slurm_takes_the_first_nodes_in_order() -> None:
    """Nodes are taken in order, whatever their type, unless the job does not train on it."""
    snapshot = a_snapshot("1xK80,1xK80,2xV100", a_job("1", 3, shapes=[Shape(3, 1)]), a_job("2"))
    assert placed_by(slurm(snapshot)) == {"1": "n1:K80:1 n2:K80:1 n3:V100:1", "2": "n3:V100:1"}
    picky = a_job("1", 2, throughputs=some_rates(V100=1.0))
    assert placed_by(slurm(a_snapshot("2xK80,2xV100", picky))) == {"1": "n2:V100:2"}


def test_slurm_takes_the_first_layout_that_fits() -> None:
    """A gang is placed on one node if possible, else on two."""
    snapshot = a_snapshot(
        "2xV100,2xV100", even("1", on="n1:V100:1"), a_job("2", 2, submitted_s=2.0)
    )
    assert placed_by(slurm(snapshot))["2"] == "n2:V100:2"
    busy = even("3", on="n2:V100:1")
    snapshot = a_snapshot("2xV100,2xV100", snapshot.jobs[0], snapshot.jobs[1], busy)
    assert placed_by(slurm(snapshot))["2"] == "n1:V100:1 n2:V100:1"


def test_slurm_under_gavels_rules_takes_any_gpus_of_a_type() -> None:
    """A gang takes any three GPUs of one type; types are not mixed."""
    jobs = [even("1", on="n2:V100:1"), a_job("2", 3)]
    plan = slurm(a_snapshot("2xK80,2xV100,2xV100", *jobs, rules=GAVEL_RULES))
    assert placed_by(plan)["2"] == "n2:V100:1 n3:V100:2"


def test_the_time_limit_is_what_the_slowest_type_would_take() -> None:
    """The limit is for the slowest type and the layout; types without speed do not count."""
    gpu_types = (GpuType("V100"), GpuType("P100"), GpuType("K80"), GpuType("A100"))
    assert time_limit_s(a_job("1", steps=1000), gpu_types) == 1000.0
    # Twice as fast with two GPUs, times 0.8 across two nodes.
    assert time_limit_s(a_job("1", 2, steps=1000), gpu_types) == pytest.approx(625.0)
    assert time_limit_s(a_job("1", 2, steps=1000, shapes=[Shape(1, 2)]), gpu_types) == 500.0


def test_a_later_job_starts_if_it_ends_before_the_first_could() -> None:
    """Job 1 has 60 s left: a job of 60 s is backfilled before job 2, a job of 61 s is not."""
    one = even("1", on="n1:V100:1", ran_s=40.0)
    for seconds, goes in ((60, True), (61, False)):
        plan = slurm(a_snapshot("2xV100", one, even("2", 2), even("3", seconds=seconds)))
        assert ("3" in placed_by(plan)) == goes
        assert "2" not in placed_by(plan)


def test_a_later_job_may_use_what_the_first_will_leave_free() -> None:
    """GPUs outside the reservation are backfilled without a time limit, but only once."""
    one = even("1", on="n1:V100:2", ran_s=40.0)
    long = [even(name, seconds=10**6) for name in ("3", "4")]
    plan = slurm(a_snapshot("4xV100", one, even("2", 3), *long))
    assert placed_by(plan) == {"1": "n1:V100:2", "3": "n1:V100:1"}


def test_the_place_is_reserved_at_the_earliest_time() -> None:
    """Node 2, free in 50 s, is reserved; long jobs are backfilled on node 1 only."""
    jobs = [
        even("1", on="n1:V100:1", seconds=100),
        even("2", on="n2:V100:1", seconds=50),
        even("3", 2),
        even("4", seconds=1000),
        even("5", seconds=1000),
        even("6", seconds=50),
    ]
    plan = slurm(a_snapshot("2xV100,2xV100", *jobs))
    assert placed_by(plan) == {
        "1": "n1:V100:1",
        "2": "n2:V100:1",
        "4": "n1:V100:1",
        "6": "n2:V100:1",
    }


def test_a_job_over_its_limit_is_expected_to_end_at_once() -> None:
    """No job is backfilled on reserved GPUs beside a job over its time limit."""
    jobs = [even("1", on="n1:V100:1", ran_s=500.0), even("2", 2), even("3", seconds=1)]
    assert placed_by(slurm(a_snapshot("2xV100", *jobs))) == {"1": "n1:V100:1"}
