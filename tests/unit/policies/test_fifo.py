"""Policy yarn-cs, and what it has in common with plain Slurm."""

from __future__ import annotations

import pytest
from builders import ROUND, a_cluster, a_job, a_snapshot, even, placed_by, reasons_of, some_rates

from hadar_slurm.core.job import Shape
from hadar_slurm.core.plan import WaitReason
from hadar_slurm.lab.policies.slurm.policy import PlainSlurm
from hadar_slurm.policies.fifo import YarnCapacity
from hadar_slurm.policies.policy import Policy

every_fifo = pytest.mark.parametrize("policy", [YarnCapacity(), PlainSlurm()])


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
