"""Policies yarn-cs and slurm: first come, first served, without and with backfill."""

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

# One step a second on every GPU, so that a job of s steps on one GPU has a limit of s seconds.
EVEN = some_rates(V100=1.0, K80=1.0)
every_fifo = pytest.mark.parametrize("policy", [YarnCapacity(), SlurmBackfill()])


def even(job_id: str, gpus: int = 1, *, on: str = "", seconds: int = 100, ran_s: float = 0) -> Job:
    """Return a job on one node that came in the order of its id and is to take so many seconds."""
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
    """By submission, whatever the id, the size or the speed."""
    jobs = [a_job("1", submitted_s=9.0), a_job("2", steps=10**9, submitted_s=8.0)]
    plan = policy.plan(a_snapshot("1xV100", *jobs), ROUND)
    assert placed_by(plan) == {"2": "n1:V100:1"}
    assert reasons_of(plan) == {"1": WaitReason.INSUFFICIENT}


@every_fifo
def test_nobody_who_runs_is_moved_or_stopped(policy: Policy) -> None:
    """Not for a job that came before it, nor for a better place."""
    runs = a_job("2", on="n2:K80:1", submitted_s=9.0)
    plan = policy.plan(a_snapshot("1xV100,1xK80", a_job("1", 2, shapes=[Shape(1, 2)]), runs), ROUND)
    assert placed_by(plan) == {"2": "n2:K80:1"}


@every_fifo
def test_who_never_fits_stands_in_nobodys_way(policy: Policy) -> None:
    """A job too large for all open nodes is passed over."""
    jobs = [even("1", 4), even("2", 3), even("3")]
    cluster = a_cluster("2xV100,4xV100", closed=["n2"])
    plan = policy.plan(a_snapshot(cluster, *jobs), ROUND)
    assert placed_by(plan) == {"3": "n1:V100:1"}
    assert set(reasons_of(plan).values()) == {WaitReason.INSUFFICIENT}


def test_yarn_lets_nobody_past_the_head_of_the_queue() -> None:
    """Although a GPU is free that the head cannot use."""
    jobs = [even("1", on="n1:V100:1"), even("2", 2), even("3")]
    plan = YarnCapacity().plan(a_snapshot("2xV100", *jobs), ROUND)
    assert placed_by(plan) == {"1": "n1:V100:1"}


def test_yarn_takes_types_by_plenty() -> None:
    """Where most is free, if the job trains there at all."""
    jobs = [a_job("1"), a_job("2", throughputs=some_rates(V100=1.0))]
    plan = YarnCapacity().plan(a_snapshot("1xV100,2xK80", *jobs), ROUND)
    assert placed_by(plan) == {"1": "n2:K80:1", "2": "n1:V100:1"}


def test_slurm_takes_the_first_nodes_in_order() -> None:
    """Slow or fast, and of both where they meet; but none on which the job does not train."""
    snapshot = a_snapshot("1xK80,1xK80,2xV100", a_job("1", 3, shapes=[Shape(3, 1)]), a_job("2"))
    assert placed_by(slurm(snapshot)) == {"1": "n1:K80:1 n2:K80:1 n3:V100:1", "2": "n3:V100:1"}
    picky = a_job("1", 2, throughputs=some_rates(V100=1.0))
    assert placed_by(slurm(a_snapshot("2xK80,2xV100", picky))) == {"1": "n2:V100:2"}


def test_slurm_takes_the_first_layout_that_fits() -> None:
    """One node if one has room, else two."""
    snapshot = a_snapshot(
        "2xV100,2xV100", even("1", on="n1:V100:1"), a_job("2", 2, submitted_s=2.0)
    )
    assert placed_by(slurm(snapshot))["2"] == "n2:V100:2"
    busy = even("3", on="n2:V100:1")
    snapshot = a_snapshot("2xV100,2xV100", snapshot.jobs[0], snapshot.jobs[1], busy)
    assert placed_by(slurm(snapshot))["2"] == "n1:V100:1 n2:V100:1"


def test_slurm_under_gavels_rules_takes_any_gpus_of_a_type() -> None:
    """Three GPUs are three GPUs, and types are not mixed."""
    jobs = [even("1", on="n2:V100:1"), a_job("2", 3)]
    plan = slurm(a_snapshot("2xK80,2xV100,2xV100", *jobs, rules=GAVEL_RULES))
    assert placed_by(plan)["2"] == "n2:V100:1 n3:V100:2"


def test_the_time_limit_is_what_the_slowest_type_would_take() -> None:
    """Spread over nodes, if a layout spreads it; types without speed do not count."""
    gpu_types = (GpuType("V100"), GpuType("P100"), GpuType("K80"), GpuType("A100"))
    assert time_limit_s(a_job("1", steps=1000), gpu_types) == 1000.0
    # Twice as fast with two GPUs, 0.8 of it over two nodes.
    assert time_limit_s(a_job("1", 2, steps=1000), gpu_types) == pytest.approx(625.0)
    assert time_limit_s(a_job("1", 2, steps=1000, shapes=[Shape(1, 2)]), gpu_types) == 500.0


def test_a_later_job_starts_if_it_ends_before_the_first_could() -> None:
    """Job 1 has 60 of 100 s left: job 2 waits for it, a job of 60 s goes ahead, one of 61 not."""
    one = even("1", on="n1:V100:1", ran_s=40.0)
    for seconds, goes in ((60, True), (61, False)):
        plan = slurm(a_snapshot("2xV100", one, even("2", 2), even("3", seconds=seconds)))
        assert ("3" in placed_by(plan)) == goes
        assert "2" not in placed_by(plan)


def test_a_later_job_may_use_what_the_first_will_leave_free() -> None:
    """For as long as it likes; but two such cannot have the same GPU."""
    one = even("1", on="n1:V100:2", ran_s=40.0)
    long = [even(name, seconds=10**6) for name in ("3", "4")]
    plan = slurm(a_snapshot("4xV100", one, even("2", 3), *long))
    assert placed_by(plan) == {"1": "n1:V100:2", "3": "n1:V100:1"}


def test_the_place_is_reserved_at_the_earliest_time() -> None:
    """On node 2, free in 50 s; what is free on node 1 may be used meanwhile and beyond."""
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
    """Nobody but who leaves the reserved GPUs alone starts then."""
    jobs = [even("1", on="n1:V100:1", ran_s=500.0), even("2", 2), even("3", seconds=1)]
    assert placed_by(slurm(a_snapshot("2xV100", *jobs))) == {"1": "n1:V100:1"}
