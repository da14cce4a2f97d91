"""Forecast of the start times of a snapshot's jobs."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from builders import a_cluster, a_gang, a_job, a_snapshot, some_rates

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.daemon.world import Remembering
from hadar_slurm.errors import HadarError
from hadar_slurm.policies.fifo import YarnCapacity
from hadar_slurm.policies.hadar.policy import Hadar
from hadar_slurm.sim.backend import SimBackend
from hadar_slurm.sim.onward import Begin, after, begins

V100 = some_rates(V100=10.0)


def played(snapshot: Snapshot, awaited: str, limit_s: float = 1e9) -> dict[JobId, Begin]:
    """Forecast under FIFO; the clock advances by a second per call."""
    clock = map(float, count())
    return begins(
        snapshot,
        YarnCapacity(),
        is_enough=lambda begun: JobId(awaited) in begun,
        round_s=360.0,
        is_late=after(lambda: next(clock), limit_s),
    )


class Fragile:
    """FIFO that fails with one job."""

    name = "fragile"

    def __init__(self, bad: str) -> None:
        self.bad, self.plans = JobId(bad), 0

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return the plan, unless the job is there."""
        self.plans += 1
        if self.bad in snapshot.by_id:
            raise KeyError(self.bad)
        return YarnCapacity().plan(snapshot, round_)


def waiting(name: str, submitted_s: float, gpus: int = 1, steps: int = 1000) -> Job:
    return a_job(name, gpus, steps=steps, throughputs=V100, submitted_s=submitted_s)


class Watching:
    """FIFO that keeps, of each plan, the time, when the jobs were submitted, and the memory."""

    name = "watching"

    def __init__(self) -> None:
        self.seen: list[tuple[float, list[float], object]] = []

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return the plan."""
        submitted = [job.spec.submitted_s for job in snapshot.jobs]
        self.seen.append((snapshot.now_s, submitted, round_.memory))
        return YarnCapacity().plan(snapshot, round_)


def test_the_policy_sees_the_times_of_its_memory() -> None:
    """What it remembers, such as when the last job came, is in the times of the snapshot."""
    policy, snapshot = Watching(), a_snapshot("1xV100", waiting("1", 4000.0), now_s=5000.0)
    begins(snapshot, policy, is_enough=bool, round_s=360.0, is_late=lambda: False, memory="known")
    assert policy.seen[0] == (5000.0, [4000.0], "known")


def test_rounds_go_on_from_the_time_of_the_snapshot() -> None:
    """The second job is planned again when the first has ended, 100 s later."""
    policy = Watching()
    snapshot = a_snapshot("1xV100", waiting("1", 4000.0), waiting("2", 4500.0), now_s=5000.0)
    begins(
        snapshot,
        policy,
        is_enough=lambda begun: JobId("2") in begun,
        round_s=360.0,
        is_late=lambda: False,
    )
    assert [time_s for time_s, _, _ in policy.seen][:2] == [5000.0, 5100.0]


def test_who_waits_begins_when_those_ahead_have_ended() -> None:
    """The first job has 70 s left, then the second one runs for 100 s."""
    runs = a_job("1", steps=1000, done=300.0, on="n1:V100:1", throughputs=V100)
    snapshot = a_snapshot("1xV100", runs, waiting("2", 10.0), waiting("3", 20.0), now_s=5000.0)
    gang = a_gang("n1:V100:1")
    assert played(snapshot, "3") == {"2": Begin(70.0, gang), "3": Begin(170.0, gang)}
    assert played(snapshot, "2") == {"2": Begin(70.0, gang)}


def test_who_could_begin_begins_at_once() -> None:
    snapshot = a_snapshot("2xV100", waiting("1", 0.0, gpus=2), now_s=9.0)
    assert played(snapshot, "1")["1"].in_s == 0.0


def test_what_others_hold_they_keep() -> None:
    snapshot = a_snapshot("2xV100", waiting("1", 0.0, gpus=2), occupied="n1:V100:1")
    assert played(snapshot, "1") == {}


def test_a_closed_node_takes_nobody() -> None:
    nodes = a_cluster("1xV100,1xV100", closed=["n1"])
    runs = a_job("1", steps=1000, on="n2:V100:1", throughputs=V100)
    assert played(a_snapshot(nodes, runs, waiting("2", 0.0)), "2")["2"].in_s == 100.0


def test_a_job_keeps_to_its_nodes() -> None:
    here = a_job("2", throughputs=V100, allowed=["n1"], submitted_s=1.0)
    runs = a_job("1", steps=500, on="n1:V100:1", throughputs=V100)
    assert played(a_snapshot("1xV100,1xV100", runs, here), "2") == {
        "2": Begin(50.0, a_gang("n1:V100:1"))
    }


def test_who_runs_already_does_not_count_as_beginning() -> None:
    """A running job is not among the starts, even if it moves."""
    runs = a_job("1", steps=10_000, on="n2:K80:1", restart_cost_s=30.0)
    snapshot = a_snapshot("1xV100,1xK80", runs, a_job("2", steps=100_000))
    found = begins(
        snapshot,
        Hadar(),
        is_enough=lambda begun: JobId("2") in begun,
        round_s=360.0,
        is_late=lambda: False,
    )
    assert set(found) == {"2"}


def test_a_forecast_that_takes_too_long_ends_without_an_answer() -> None:
    runs = a_job("1", steps=10**9, on="n1:V100:1", throughputs=V100)
    assert played(a_snapshot("1xV100", runs, waiting("2", 0.0)), "2", limit_s=50.0) == {}


def test_a_policy_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object) -> None:
        raise ValueError("no plan")

    monkeypatch.setattr(YarnCapacity, "plan", fail)
    with pytest.raises(HadarError, match="the forecast fails: ValueError: no plan"):
        played(a_snapshot("1xV100", waiting("1", 0.0)), "1")


def test_a_policy_that_fails_with_one_job_fails_the_forecast_at_once() -> None:
    """It is not searched for that job: a forecast has little time, and hadard knows the job."""
    policy = Fragile("2")
    jobs = [waiting(str(n), float(n)) for n in range(1, 9)]
    with pytest.raises(HadarError, match="the forecast fails: KeyError"):
        begins(
            a_snapshot("1xV100", *jobs),
            policy,
            is_enough=lambda begun: JobId("8") in begun,
            round_s=360.0,
            is_late=lambda: False,
        )
    assert policy.plans == 1


def test_hadard_foresees_the_starts_of_the_jobs_that_it_can_plan() -> None:
    """A job that its round has left out is not in its forecasts either."""
    policy = Remembering(Fragile("2"), Fragile("2"))
    snapshot = a_snapshot("1xV100", *[waiting(str(n), float(n)) for n in range(1, 5)])
    with pytest.raises(KeyError):
        policy.plan(snapshot, Round(0, 0.0, 360.0))
    policy.plan(snapshot.without({JobId("2")}), Round(0, 0.0, 360.0))
    assert [*policy.foresee(snapshot, 360.0)] == ["1", "3", "4"]


def test_a_stopping_job_counts_as_queued() -> None:
    """A stopping job holds no GPUs in the forecast, and keeps the steps it has done."""
    stops = a_job(
        "1", on="n1:V100:1", phase=Phase.STOPPING, steps=1000, done=400.0, throughputs=V100
    )
    world = SimBackend.from_snapshot(a_snapshot("1xV100", stops, now_s=50.0))
    (job,) = world.observe().jobs
    assert (job.phase, job.steps_left, world.is_busy) == (Phase.QUEUED, 600.0, False)


def test_jobs_that_have_run_pay_for_their_next_start() -> None:
    """A queued job that has trained before starts at once, and its successor 40 s + 60 s later."""
    again = a_job("1", steps=1000, done=400.0, throughputs=V100, restart_cost_s=40.0)
    found = played(a_snapshot("1xV100", again, waiting("2", 10.0), now_s=50.0), "2")
    assert {job: begin.in_s for job, begin in found.items()} == {"1": 0.0, "2": 100.0}


def test_the_forecast_keeps_the_service_that_jobs_have_received() -> None:
    """Policies that rank by attained service rank as in the snapshot."""
    served = a_job("1", on="n1:V100:1", done=400.0, service_gpu_s=5000.0, throughputs=V100)
    (job,) = SimBackend.from_snapshot(a_snapshot("1xV100", served, now_s=50.0)).observe().jobs
    assert (job.progress, job.phase) == (served.progress, Phase.RUNNING)


def test_a_job_kept_back_by_a_limit_does_not_start_in_the_forecast() -> None:
    """A left-out job gets no GPUs, and the next one starts."""
    kept = replace(waiting("1", 0.0), left_out=True)
    assert set(played(a_snapshot("1xV100", kept, waiting("2", 10.0), now_s=50.0), "2")) == {"2"}
