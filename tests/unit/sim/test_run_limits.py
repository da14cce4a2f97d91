"""Runs that reach their time limit are ended there, as Slurm does, and counted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from builders import FirstFit, a_cluster, a_gang, a_job, a_plan, a_snapshot, a_spec, some_rates

from hadar_slurm.core.gang import Allocation
from hadar_slurm.core.job import JobSpec, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Ended, GangRules, Round, Snapshot
from hadar_slurm.engine.actions import Start
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.lab.study.experiment import ExperimentSettings, run_experiment
from hadar_slurm.lab.study.figures import Result
from hadar_slurm.policies.policy import Policy
from hadar_slurm.sim.backend import SimBackend

# A T4 trains a tenth of the steps of an A100.
RATES = some_rates(A100=10.0, T4=1.0)


def a_limited(
    job_id: str, limit_s: float = math.inf, limit_type: str = "a100", **given: object
) -> JobSpec:
    """Return a job of 1000 steps, 100 s on an A100, with a time limit written for a type."""
    spec = a_spec(job_id, throughputs=RATES, **given)  # type: ignore[arg-type]
    return replace(spec, limit_s=limit_s, limit_type=limit_type)


@dataclass
class Places:
    """A policy that gives each job the gangs listed for it, one a round, and then the last."""

    gangs: Mapping[str, Sequence[str]]
    name: str = "places"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return the plan; rounds of 100 s."""
        number = int(snapshot.now_s // 100)
        there = [job.job_id for job in snapshot.jobs]
        lists = {job_id: self.gangs[job_id] for job_id in there}
        return a_plan({k: gangs[min(number, len(gangs) - 1)] for k, gangs in lists.items()})


@dataclass
class KeepsLimits(FirstFit):
    """A policy under which no limit is ever adjusted, as under plain Slurm."""

    keeps_limits = True


def play(
    *specs: JobSpec,
    cluster: str = "1xA100,1xT4",
    policy: Policy | None = None,
    settings: ExperimentSettings | None = None,
) -> tuple[Result, dict[str, Ended]]:
    """Return the result and how each job ended; run_experiment checks the accounts."""
    ended: dict[str, Ended] = {}

    def add(record: RoundRecord) -> None:
        assert record.snapshot is not None
        ended.update({end.job_id: end for end in record.snapshot.ended})

    settings = settings or ExperimentSettings(sizes="limit", round_s=100.0)
    result = run_experiment(specs, a_cluster(cluster), policy or FirstFit(), settings, on_round=add)
    return result, ended


def test_a_run_ends_at_its_limit_and_frees_its_gpus_at_once() -> None:
    """A limit for the A100 is too short on the T4; the next job starts at that moment."""
    result, ended = play(a_limited("1", steps=9000), a_limited("2", 250.0), a_limited("3"))
    assert [(end.job_id, end.phase) for end in ended.values()] == [
        ("2", Phase.FAILED),
        ("1", Phase.DONE),
        ("3", Phase.DONE),
    ]
    assert (ended["2"].end_s, ended["1"].end_s) == (250.0, pytest.approx(900.0))
    assert ended["3"].end_s == pytest.approx(250.0 + 1000.0)
    assert [s.start_s for s in result.segments if s.job_id == "3"] == [250.0]


def test_what_a_job_that_its_limit_ends_has_held_is_counted_as_lost() -> None:
    """Of 100 s on the A100 and 250 s on the T4, the latter."""
    result, _ = play(a_limited("1"), a_limited("2", 250.0))
    assert (result.jobs, result.completed, result.killed) == (2, 1, 1)
    assert result.killed_gpu_s == 250.0
    assert result.killed_share == pytest.approx(250.0 / 350.0)
    assert [done.is_killed for done in sorted(result.jcts)] == [False, True]


def test_fairness_and_slow_downs_are_those_of_jobs_that_trained_all_their_steps() -> None:
    """Completion times count a job that is ended at its limit until then."""
    result, _ = play(a_limited("1", user="ana"), a_limited("2", 250.0, user="ben"))
    assert result.mean_jct_s == 175.0
    assert result.mean_slowdown == result.max_user_slowdown == pytest.approx(1.0)
    alone, _ = play(a_limited("1"))
    assert alone.killed == alone.killed_gpu_s == alone.killed_share == 0.0
    assert result.max_ftf < result.mean_jct_s / 100.0 * 11.0 / 10.0


def test_a_limit_that_is_adjusted_lasts_on_each_type() -> None:
    """150 s on the A100 are 1500 s on the T4, where the work lasts 1000 s; not under Slurm."""
    jobs = a_limited("1"), a_limited("2", 150.0)
    adjusted = ExperimentSettings(sizes="limit", round_s=100.0, adjusts_limits=True)
    result, ended = play(*jobs, settings=adjusted)
    assert (result.killed, ended["2"].end_s) == (0, pytest.approx(1000.0))
    kept, ended = play(*jobs, settings=adjusted, policy=KeepsLimits())
    assert (kept.killed, ended["2"].end_s) == (1, 150.0)


def test_a_limit_without_a_type_is_for_the_slowest() -> None:
    """Adjusted or not, it is the same on all types; it says how many steps fit."""
    spec = a_limited("2", 150.0, "")
    assert spec.limit_steps == 150.0
    assert replace(spec, limit_type="a100").limit_steps == 1500.0
    assert math.isinf(a_limited("1").limit_steps)
    for adjusts in (False, True):
        settings = ExperimentSettings(sizes="limit", adjusts_limits=adjusts)
        assert play(a_limited("1"), spec, settings=settings)[1]["2"].end_s == 150.0


def test_a_mixed_gang_has_the_limit_of_its_slowest_type() -> None:
    """It trains at that type's speed."""
    rates = some_rates(A100=5.0, T4=0.5)
    spec = replace(a_spec("1", 2, throughputs=rates), limit_s=150.0, limit_type="a100")
    for adjusts, end_s in ((False, 150.0), (True, 1250.0)):
        settings = ExperimentSettings(sizes="limit", adjusts_limits=adjusts)
        assert play(spec, settings=settings)[1]["1"].end_s == pytest.approx(end_s)


def test_a_requeued_job_has_its_whole_limit_again() -> None:
    """From the start of each run, in which a restart counts."""
    spec = a_limited("1", 140.0, steps=2000, restart_cost_s=30.0)
    here, there = "n1:A100:1", "n2:A100:1"
    moving, ended = play(spec, cluster="1xA100,1xA100", policy=Places({"1": [here, there, here]}))
    assert (moving.killed, ended["1"].end_s) == (0, pytest.approx(260.0))
    staying, ended = play(spec, cluster="1xA100,1xA100", policy=Places({"1": [here]}))
    assert (staying.killed, ended["1"].end_s) == (1, 140.0)
    moved_once, ended = play(
        spec, cluster="1xA100,1xA100", policy=Places({"1": [here, there, there]})
    )
    assert (moved_once.killed, ended["1"].end_s) == (0, pytest.approx(230.0))
    longer = replace(spec, total_steps=2200)
    lost, ended = play(longer, cluster="1xA100,1xA100", policy=Places({"1": [here, there, there]}))
    assert (lost.killed, ended["1"].end_s, lost.killed_gpu_s) == (1, 240.0, 240.0)


def test_a_job_that_lasts_exactly_its_limit_is_done() -> None:
    """Its last step is trained at that moment."""
    for steps in (1000, 999, 333, 1001, 7):
        spec = a_limited("1", steps / 10.0, steps=steps, submitted_s=0.1)
        result, ended = play(spec, cluster="1xA100")
        assert (result.killed, ended["1"].phase) == (0, Phase.DONE)


def test_a_copy_that_reaches_its_limit_leaves_its_steps_to_the_others() -> None:
    """Each copy is a task with a limit of its own; the job is lost with its last copy."""
    spec = a_limited("1", 150.0, steps=4000, max_copies=2)
    world = SimBackend(a_cluster("1xA100,1xA100"), [spec], rules=GangRules())
    first, second = (a_gang(f"n{n}:A100:1") for n in (1, 2))
    world.apply([Start(spec.job_id, 0, first)])
    world.wait(100.0)
    world.apply([Start(spec.job_id, 1, second)])
    world.wait(120.0)
    world.wait(400.0)
    assert world.now_s == 150.0
    (job,) = world.observe().jobs
    assert job.allocation == Allocation.of({1: second})
    # 1500 + 500 steps were trained; those of the first since the last round are lost.
    assert job.progress.steps_done == pytest.approx(2000.0 - 300.0)
    world.wait(400.0)
    assert (world.now_s, world.observe().ended) == (
        250.0,
        (Ended(spec.job_id, Phase.FAILED, 250.0),),
    )
    assert world.num_unfinished == 0


def test_types_on_which_a_job_of_known_size_would_reach_its_limit_are_left_out() -> None:
    """It waits for an A100 then; plain Slurm starts it anywhere, and hadard by limits alone."""
    jobs = a_limited("1", steps=3000), a_limited("2", 250.0)
    known = ExperimentSettings(round_s=100.0)
    result, ended = play(*jobs, settings=known)
    assert (result.killed, ended["2"].end_s) == (0, pytest.approx(400.0))
    assert play(*jobs)[1]["2"].end_s == 250.0
    assert play(*jobs, settings=known, policy=KeepsLimits())[1]["2"].end_s == 250.0


def test_a_job_that_ends_in_time_nowhere_starts_anywhere() -> None:
    """Nothing is gained by waiting."""
    jobs = a_limited("1", steps=3000), a_limited("2", 50.0)
    result, ended = play(*jobs, settings=ExperimentSettings(round_s=100.0))
    assert (result.killed, ended["2"].end_s) == (1, 50.0)


def test_only_types_that_can_hold_a_gang_are_left_out_for_others() -> None:
    """The one A100 cannot hold two GPUs: the job starts on T4s, where its limit ends it."""
    spec = replace(a_spec("1", 2, throughputs=RATES), limit_s=250.0, limit_type="a100")
    settings = ExperimentSettings(round_s=100.0)
    result, ended = play(spec, cluster="1xA100,2xT4", settings=settings)
    assert (result.killed, ended["1"].end_s) == (1, 250.0)


def test_copies_that_are_started_again_and_again_are_lost_at_last() -> None:
    """A task that Slurm has ended does not come back: no more are ended than the job may have."""
    spec = a_limited("1", 50.0, steps=10_000, max_copies=2)
    world = SimBackend(a_cluster("1xA100,1xA100"), [spec])
    for number, at_s in enumerate((0.0, 25.0, 50.0)):
        world.wait(at_s)
        world.apply([Start(spec.job_id, number % 2, a_gang(f"n{number % 2 + 1}:A100:1"))])
    world.wait(75.0)
    assert world.observe().ended == (Ended(spec.job_id, Phase.FAILED, 75.0),)


def test_gavels_rules_have_no_limits() -> None:
    """As its simulator has none."""
    settings = ExperimentSettings(sizes="limit", rules="gavel", round_s=100.0)
    result, _ = play(a_limited("1"), a_limited("2", 50.0), settings=settings)
    assert (result.completed, result.killed) == (2, 0)


def test_what_is_foreseen_has_no_limits() -> None:
    """hadard foresees the starts of jobs whose limits it does not know."""
    running = a_job("1", on="n1:V100:1", steps=1000)
    limited = replace(running, spec=replace(running.spec, limit_s=20.0))
    world = SimBackend.from_snapshot(a_snapshot("1xV100", limited))
    world.wait(1000.0)
    assert world.observe().ended[0].phase is Phase.DONE
