"""A simulation in which policies see claims: jobs train as they truly do."""

from __future__ import annotations

import pytest
from builders import a_cluster, a_spec, some_rates

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job, JobSpec
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.lab.study.experiment import ExperimentSettings, Told, run_experiment
from hadar_slurm.lab.study.figures import Result
from hadar_slurm.policies.registry import make_policy
from hadar_slurm.sim.claims import UserClaim

TRUE = some_rates(V100=10.0, K80=2.0)


def play(
    *specs: JobSpec, claims: dict[str, UserClaim], bounds: bool = True
) -> tuple[Result, list[dict[JobId, Job]]]:
    """Return the result on one V100, and the jobs as the policy saw them in each round."""
    seen: list[dict[JobId, Job]] = []

    def add(record: RoundRecord) -> None:
        assert record.snapshot is not None
        seen.append(dict(record.snapshot.by_id))

    result = run_experiment(
        specs,
        a_cluster("1xV100"),
        make_policy("srsf"),
        ExperimentSettings(bounds_claims=bounds),
        told=Told({JobId(job_id): claim for job_id, claim in claims.items()}),
        on_round=add,
    )
    return result, seen


def test_a_job_trains_its_true_steps_whatever_is_claimed() -> None:
    """A claim of a tenth of the steps at a thousand times the speed changes no run time."""
    claim = UserClaim(600, some_rates(V100=10_000.0, K80=1.0), can_checkpoint=False)
    spec = a_spec("1", steps=6000, throughputs=TRUE)
    result, seen = play(spec, claims={"1": claim}, bounds=False)
    assert result.mean_jct_s == pytest.approx(600.0)
    assert (seen[0][JobId("1")].spec.total_steps, seen[0][JobId("1")].spec.can_checkpoint) == (
        600,
        False,
    )
    assert seen[0][JobId("1")].spec.throughputs.on("V100", 1) == 10_000.0


def test_bounded_claims_are_near_what_is_known_and_are_measured() -> None:
    """A given throughput is clipped to twice the known one, and measured once the job trains."""
    claim = UserClaim(36_000, some_rates(V100=10_000.0, K80=2.0), limit_s=1000.0)
    _, seen = play(a_spec("1", steps=8000, throughputs=TRUE), claims={"1": claim})
    speeds = [jobs[JobId("1")].spec.throughputs.on("V100", 1) for jobs in seen if jobs]
    assert speeds[0] == 20.0
    assert speeds[-1] == 10.0
    assert seen[0][JobId("1")].spec.total_steps == 20_000


def test_a_job_that_outlives_its_claim_is_estimated_anew() -> None:
    """Each round after its claim, as much is assumed to be left as is done."""
    claim = UserClaim(100, TRUE)
    _, seen = play(a_spec("1", steps=18_000, throughputs=TRUE), claims={"1": claim})
    jobs = [found[JobId("1")] for found in seen[1:-1]]
    assert len(jobs) == 4
    for job in jobs:
        assert job.steps_left == pytest.approx(job.progress.steps_done, abs=1)


def test_a_liar_is_believed_less_the_next_time() -> None:
    """After a job of ten times its claim, the next claim counts ten times."""
    first, later = (
        a_spec(name, steps=6000, throughputs=TRUE, submitted_s=at_s)
        for name, at_s in (("1", 0.0), ("2", 700.0))
    )
    _, seen = play(first, later, claims={name: UserClaim(600, TRUE) for name in ("1", "2")})
    found = [jobs[JobId("2")].spec.total_steps for jobs in seen if JobId("2") in jobs]
    assert found[0] == pytest.approx(6000, rel=0.01)
