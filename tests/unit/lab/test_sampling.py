"""Policy sampling: shares become copies on separate nodes."""

from __future__ import annotations

from dataclasses import replace

from builders import ROUND, a_job, a_snapshot, placed_by, some_rates

from hadar_slurm.core.job import Job
from hadar_slurm.lab.policies.sampling import Sampling


def forking(job: Job, max_copies: int = 4) -> Job:
    """Return a job that may be forked."""
    return replace(job, spec=replace(job.spec, max_copies=max_copies))


def test_a_job_alone_has_a_copy_on_every_node_that_hastens_it() -> None:
    """A single job gets one copy per node, however many GPUs the node has."""
    plan = Sampling().plan(a_snapshot("2xV100,1xV100,1xK80", forking(a_job("1"))), ROUND)
    gangs = placed_by(plan)["1"].split(" + ")
    assert sorted(gangs) == ["n1:V100:1", "n2:V100:1", "n3:K80:1"]


def test_a_rigid_job_has_one_copy() -> None:
    """A job that may not be forked has one copy, even beside idle GPUs."""
    plan = Sampling().plan(a_snapshot("1xV100,1xV100", a_job("1")), ROUND)
    assert placed_by(plan) in ({"1": "n1:V100:1"}, {"1": "n2:V100:1"})


def test_with_more_jobs_than_gpus_the_shortest_go_in() -> None:
    """Of jobs of 10, 20 and 30 s the two shortest get the two GPUs."""
    jobs = [forking(a_job(str(n), steps=100 * n)) for n in (3, 1, 2)]
    plan = Sampling().plan(a_snapshot("1xV100,1xV100", *jobs), ROUND)
    assert set(placed_by(plan)) == {"1", "2"}


def test_a_type_goes_to_whom_it_speeds_up_most() -> None:
    """Job 1 gets the fast GPU; job 2 is equally fast on both."""
    jobs = [a_job("1"), a_job("2", throughputs=some_rates(V100=1.0, K80=1.0), steps=100)]
    plan = Sampling().plan(a_snapshot("1xV100,1xK80", *jobs), ROUND)
    assert placed_by(plan) == {"1": "n1:V100:1", "2": "n2:K80:1"}


def test_who_runs_keeps_its_place_and_its_copies() -> None:
    """A running job does not move between equal GPUs."""
    runs = forking(a_job("1", on="n2:V100:1", restart_cost_s=30.0), 1)
    plan = Sampling().plan(a_snapshot("1xV100,1xV100", runs), ROUND)
    assert placed_by(plan) == {"1": "n2:V100:1"}


def test_copies_have_to_pay_for_being_made_one() -> None:
    """1,000 steps take 100 s on a V100, or 91 s with a K80 plus 40/2 s of averaging: no copy."""
    job = forking(a_job("1"))
    job = replace(job, spec=replace(job.spec, aggregation_cost_s=40.0))
    plan = Sampling().plan(a_snapshot("1xV100,1xK80", job), ROUND)
    assert placed_by(plan) == {"1": "n1:V100:1"}
