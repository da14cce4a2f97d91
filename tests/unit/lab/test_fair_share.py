"""Simulated policies see Slurm's fair-share factor of each job's user."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import a_cluster, a_gang, a_spec, some_rates

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.core.job import Job, JobSpec
from hadar_slurm.engine.actions import Start
from hadar_slurm.engine.loop import RoundRecord, run_rounds
from hadar_slurm.lab.policies.slurm.fair_share import FairShareBackend
from hadar_slurm.lab.policies.slurm.settings import SlurmSettings
from hadar_slurm.lab.study.experiment import run_experiment
from hadar_slurm.policies.policy import Policy
from hadar_slurm.policies.registry import make_policy
from hadar_slurm.sim.backend import Failure, SimBackend

RATES = some_rates(V100=1.0)
DAY_S = 86_400.0


def of(user: str, name: str, *, steps: int, at_s: float = 0.0, gpus: int = 1) -> JobSpec:
    spec = a_spec(name, gpus, steps=steps, throughputs=RATES, submitted_s=at_s)
    return replace(spec, user=user)


def seen_by(policy: Policy, *specs: JobSpec) -> list[Job]:
    """Return the jobs that the policy saw, round by round."""
    found: list[Job] = []

    def add(record: RoundRecord) -> None:
        assert record.snapshot is not None
        found.extend(record.snapshot.jobs)

    run_experiment(specs, a_cluster("2xV100"), policy, on_round=add)
    return found


def test_who_has_used_more_has_the_smaller_factor() -> None:
    """Ada has used both GPUs for an hour, Ben has used one for a minute, and Cleo none."""
    specs = (
        of("ada", "1", steps=3600, gpus=2),
        of("ben", "2", steps=60, at_s=3600.0),
        *(of(user, name, steps=60, at_s=7300.0) for user, name in (("ada", "3"), ("ben", "4"))),
        of("cleo", "5", steps=60, at_s=7300.0),
    )
    last = {job.job_id: job.fair_share for job in seen_by(make_policy("srsf"), *specs)}
    assert last[JobId("1")] == pytest.approx(1.0)  # ada alone
    assert last[JobId("3")] == pytest.approx(1 / 3)
    assert last[JobId("4")] == pytest.approx(2 / 3)
    assert last[JobId("5")] == 1.0


def test_jobs_without_users_have_no_factor() -> None:
    found = seen_by(make_policy("srsf"), a_spec("1", steps=100, throughputs=RATES))
    assert {job.fair_share for job in found} == {None}


def test_a_copy_that_is_lost_uses_no_gpus() -> None:
    """Of a job in two copies on two nodes one node fails after 100 s, for 200 s."""
    spec = replace(of("ada", "1", steps=1000), max_copies=2)
    world = SimBackend(a_cluster("1xV100,1xV100"), [spec])
    known = FairShareBackend(world, [spec])
    known.observe()
    gangs = [a_gang("n1:V100:1"), a_gang("n2:V100:1")]
    known.apply([Start(spec.job_id, number, gang) for number, gang in enumerate(gangs)])
    world.wait(100.0)
    known.observe()
    assert known._in_use["ada"] == 2
    world._stop(world._running[spec.job_id], 1, keeps_steps=False)
    known.observe()
    assert known._in_use["ada"] == 1


def test_use_is_that_of_the_gpus_held_and_fades() -> None:
    """A job holds two GPUs for 100 s, and after a failure of its node none for 1,000 s."""
    specs = [of("ada", "1", steps=200, gpus=2), of("ben", "2", steps=1, at_s=8 * DAY_S)]
    failures = [Failure(100.0, 1100.0, NodeName("n1"))]
    world = SimBackend(a_cluster("2xV100"), specs, failures=failures)
    known, policy, used = FairShareBackend(world, specs), make_policy("srsf"), dict[float, float]()

    def add(record: RoundRecord) -> None:
        assert record.snapshot is not None
        used[record.snapshot.now_s] = known._used.get("ada", 0.0)

    run_rounds(known, policy, add, length_s=300.0, now_s=lambda: world.now_s, clock=lambda: 0.0)
    assert used[100.0] == pytest.approx(200.0, rel=0.01)
    assert used[1100.0] == pytest.approx(200.0, rel=0.01)
    ended_s = max(now_s for now_s in used if now_s < DAY_S)
    halves = (8 * DAY_S - ended_s) / SlurmSettings().half_life
    assert used[8 * DAY_S] == pytest.approx(used[ended_s] * 0.5**halves, rel=1e-6)
