"""The reason why a job waits is the plan's; its start is a forecast."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from builders import a_job, a_plan, a_snapshot, some_rates

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import WaitReason
from hadar_slurm.core.snapshot import Round
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.errors import ConfigError
from hadar_slurm.journal import as_line
from hadar_slurm.policies.hadar.policy import Hadar
from hadar_slurm.status.explain import Expected, Explanation, TypeForecast, explain

BOTH = some_rates(V100=10.0, K80=1.0)


def explained(
    job: str, *jobs: Job, nodes: str = "1xV100,1xK80", plan: dict[str, str] | None = None
) -> Explanation | None:
    """Return the explanation of a job; queued jobs without a place in `plan` wait for room."""
    snapshot = a_snapshot(nodes, *jobs, now_s=1000.0)
    given = plan or {}
    waits = {
        one.job_id: WaitReason.INSUFFICIENT
        for one in jobs
        if one.phase is Phase.QUEUED and one.job_id not in given
    }
    made = replace(a_plan(given, waits), figures=(("price.K80", 0.0), ("price.V100", 0.5)))
    line = as_line(RoundRecord(Round(7, 1000.0, 360.0), "round end", "hadar", snapshot, made))
    return explain(line, JobId(job), Hadar(), time.monotonic, 20.0)


def fixed(job: Job) -> Job:
    return replace(job, spec=replace(job.spec, can_checkpoint=False))


def test_who_is_not_there_is_not_explained() -> None:
    assert explained("9", a_job("1")) is None


def test_each_type_is_told_with_what_it_gives() -> None:
    runs = a_job("1", on="n1:V100:1", throughputs=BOTH)
    found = explained("2", runs, a_job("2", steps=2000, done=1000.0, throughputs=BOTH))
    assert found is not None
    assert found.choices == (
        TypeForecast("V100", 10.0, 100.0, 0, 0.5),
        TypeForecast("K80", 1.0, 1000.0, 1, 0.0),
    )
    assert (found.round, found.time_s, found.policy, found.gpus) == (7, 1000.0, "hadar", 1)


def test_who_waits_is_told_when_and_on_what_it_begins() -> None:
    """The V100 is free in 100 s and then goes to the shorter job for 100 s."""
    runs = fixed(a_job("1", on="n1:V100:1", throughputs=BOTH))
    other = fixed(a_job("2", throughputs=BOTH))
    waits = fixed(a_job("3", throughputs=BOTH, steps=2000))
    found = explained("3", runs, other, waits)
    assert found is not None
    assert found.reason == str(WaitReason.INSUFFICIENT)
    assert found.expected == Expected(200.0, 400.0, {"n1": {"V100": 1}})
    assert found.ahead == ("2",)


def test_a_job_of_estimated_size_is_forecast_as_one() -> None:
    """Its wait of 1,000 s for the V100 counts twice: 1,450 s on the K80 are less."""
    runs = fixed(a_job("1", on="n1:V100:1", throughputs=BOTH, steps=10_000))
    waits = fixed(a_job("2", throughputs=BOTH, steps=1450))
    stated = explained("2", runs, waits)
    estimated = explained("2", runs, replace(waits, is_estimated=True))
    assert stated is not None
    assert estimated is not None
    assert stated.expected == Expected(1000.0, 1145.0, {"n1": {"V100": 1}})
    assert estimated.expected == Expected(0.0, 1450.0, {"n2": {"K80": 1}})


def test_jobs_that_start_at_the_same_time_are_not_ahead() -> None:
    """Two jobs start when the V100s of a third are free; neither is ahead of the other."""
    runs = fixed(a_job("1", 2, on="n1:V100:2", throughputs=BOTH))
    pair = [fixed(a_job(name, throughputs=BOTH)) for name in "23"]
    for name in "23":
        found = explained(name, runs, *pair, nodes="2xV100,1xK80")
        assert found is not None
        assert (found.ahead, found.expected and found.expected.begins_in_s) == ((), 50.0)


def test_what_moving_would_change_is_told_of_who_cannot() -> None:
    """A preemptible job could start on the K80 at once: the wait is longer than a round."""
    runs = fixed(a_job("1", on="n1:V100:1", steps=4000, throughputs=BOTH))
    found = explained("2", runs, fixed(a_job("2", throughputs=BOTH)))
    assert found is not None
    assert found.expected == Expected(400.0, 500.0, {"n1": {"V100": 1}})
    assert found.if_moved is not None
    assert found.if_moved.begins_in_s == 0.0
    movable = explained("2", runs, a_job("2", throughputs=BOTH))
    assert movable is not None
    assert movable.if_moved is None


def test_who_has_gpus_is_told_when_it_ends() -> None:
    found = explained("1", a_job("1", on="n2:K80:1", done=400.0, throughputs=BOTH))
    assert found is not None
    assert (found.reason, found.ends_in_s, found.expected) == ("", 600.0, None)
    assert found.held == {"0": {"n2": {"K80": 1}}}


def test_who_is_to_start_does_not_wait() -> None:
    found = explained("1", a_job("1", throughputs=BOTH), plan={"1": "n1:V100:1"})
    assert found is not None
    assert (found.reason, found.expected, found.ahead) == ("", None, ())


def test_whose_claims_are_not_proven_is_told_beside_others_only() -> None:
    """Alone, and under a policy without shares, claims count."""
    mine, other = (
        replace(job, spec=replace(job.spec, user=user), limit_left_s=60.0)
        for job, user in ((a_job("1"), "ada"), (a_job("2"), "bob"))
    )
    beside, alone = explained("1", mine, other), explained("1", mine)
    assert beside is not None
    assert alone is not None
    assert (beside.goes_by_limit, alone.goes_by_limit) == (True, False)


def test_who_never_begins_is_told_so() -> None:
    found = explained("1", a_job("1", 4, throughputs=BOTH))
    assert found is not None
    assert found.expected is None


def test_what_breaks_the_plan_is_not_forecast_nor_in_the_way() -> None:
    """The jobs that the round has left out are not planned, and hold what they hold."""
    runs, waits = a_job("1", on="n1:V100:1", throughputs=BOTH), a_job("2", throughputs=BOTH)
    snapshot = a_snapshot("1xV100,1xK80", runs, waits, a_job("3", throughputs=BOTH))
    plan = a_plan({}, {JobId(n): WaitReason.INSUFFICIENT for n in "23"})
    left_out = {JobId("1"): "KeyError", JobId("3"): "KeyError"}
    record = RoundRecord(Round(7, 0.0, 360.0), "start", "hadar", snapshot, plan, left_out=left_out)
    line = as_line(record)
    found = explain(line, JobId("2"), Hadar(), time.monotonic, 20.0)
    assert found is not None
    assert (found.expected, found.ahead) == (Expected(0.0, 1000.0, {"n2": {"K80": 1}}), ())
    broken = explain(line, JobId("3"), Hadar(), time.monotonic, 20.0)
    assert broken is not None
    assert broken.expected is None


def test_a_round_that_saw_nothing_explains_nothing() -> None:
    line = as_line(RoundRecord(Round(0, 5.0, 360.0), "start", "p", errors=("no squeue",)))
    with pytest.raises(ConfigError, match="round 0 has no snapshot: no squeue"):
        explain(line, JobId("1"), Hadar(), time.monotonic, 1.0)
