"""The chaos test's checks find violations where there are some, and nowhere else."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from chaos.faults import KILL_POINTS, Kind, draw_faults
from chaos.invariants import (
    APART,
    FREE,
    LAUNCH_FAILED,
    LOST,
    WHOLE,
    Past,
    Sample,
    Waits,
    fate,
    incomplete_gangs,
    kept_by_begin_time,
    plan_differences,
    shared_gpus,
    two_at_once,
    untrue_training,
)
from chaos.records import Sighting, gpus_in_use, node_states, sightings
from chaos.workload import Task
from integration.site import Gpu

RUNNING = Sighting(
    key="7",
    raw_id="7",
    state="RUNNING",
    reason="None",
    priority=1000,
    restarts=0,
    requested_nodes="n1",
    excluded_nodes="",
    dependency="",
    started_s=100.0,
    ended_s=0.0,
    gpus=frozenset({Gpu("n1", "v100", 0), Gpu("n1", "v100", 1)}),
)
HELD = replace(
    RUNNING, state="PENDING", reason="JobHeldUser", priority=0, requested_nodes="", gpus=frozenset()
)
FREE_JOB = replace(HELD, reason="Resources", priority=1000)
DONE = replace(RUNNING, state="COMPLETED", gpus=frozenset(), ended_s=120.0)
GONE = replace(DONE, state="CANCELLED")


def a_task(**values: Any) -> Task:
    known: dict[str, Any] = {"key": "7", "kind": "gang", "gpus": 2, "steps": 60}
    return Task(**{**known, "submitted_s": 90.0, **values})


def a_sample(*jobs: Sighting, at_s: float = 110.0) -> Sample:
    return Sample(at_s, at_s, jobs)


def a_past(*jobs: Sighting, every_s: float = 10.0) -> Past:
    past = Past(jobs[0], 100.0)
    for number, job in enumerate(jobs):
        past.add(job, 100.0 + every_s * number)
    return past


def test_a_gpu_of_two_jobs_is_found() -> None:
    """A GPU held by two jobs is found, also if one of them is COMPLETING."""
    other = replace(RUNNING, key="8", state="COMPLETING", gpus=frozenset({Gpu("n1", "v100", 1)}))
    [finding] = shared_gpus(a_sample(RUNNING, other))
    assert finding.invariant == APART
    elsewhere = replace(other, gpus=frozenset({Gpu("n2", "v100", 1), Gpu("n1", "k80", 1)}))
    assert not list(shared_gpus(a_sample(RUNNING, elsewhere)))
    waiting = replace(other, state="PENDING")
    assert not list(shared_gpus(a_sample(RUNNING, waiting)))


@pytest.mark.parametrize("number", [0, 1])
def test_a_job_that_runs_without_all_its_gpus_is_found(number: int) -> None:
    """A running job with no or too few GPUs is found."""
    poor = replace(RUNNING, gpus=frozenset(list(RUNNING.gpus)[:number]))
    [finding] = incomplete_gangs(a_sample(poor), {"7": a_task()})
    assert finding.invariant == WHOLE
    assert not list(incomplete_gangs(a_sample(RUNNING), {"7": a_task()}))
    assert not list(incomplete_gangs(a_sample(HELD), {"7": a_task()}))


@pytest.mark.parametrize(
    "job", [HELD, replace(FREE_JOB, requested_nodes="n1"), replace(HELD, requested_nodes="n1")]
)
def test_a_job_that_waits_for_a_hadard_that_is_gone_is_found(job: Sighting) -> None:
    """A held or pinned job is found once it has waited past the limit without hadard."""
    waits = Waits()
    tasks = {"7": a_task()}
    for at_s in (100.0, 110.0, 119.0):
        assert not list(waits.add(a_sample(job, at_s=at_s), tasks, 99.0, 20.0))
    [finding] = waits.add(a_sample(job, at_s=121.0), tasks, 99.0, 20.0)
    assert finding.invariant == FREE
    assert waits.longest_s == 21.0
    assert not list(waits.add(a_sample(job, at_s=150.0), tasks, 140.0, 20.0))
    assert not list(waits.add(a_sample(job, at_s=200.0), tasks, None, 20.0))


@pytest.mark.parametrize(
    ("job", "task"),
    [
        (HELD, a_task(held_s=95.0)),
        (HELD, a_task(kind="plain")),
        (replace(HELD, reason=LAUNCH_FAILED), a_task()),
        (replace(HELD, dependency="afterany:3(unfulfilled)"), a_task()),
        (replace(FREE_JOB, requested_nodes="n1"), a_task(named="n1")),
        (FREE_JOB, a_task()),
        (RUNNING, a_task()),
    ],
)
def test_a_job_that_waits_for_others_is_no_fault(job: Sighting, task: Task) -> None:
    """A job that waits for its user, Slurm, another job or GPUs is not found."""
    waits = Waits()
    for at_s in (100.0, 200.0):
        assert not list(waits.add(a_sample(job, at_s=at_s), {"7": task}, 90.0, 20.0))


def test_how_jobs_end() -> None:
    """A job that ends neither COMPLETED nor CANCELLED by its user is lost."""
    assert fate(a_task(), a_past(RUNNING, DONE), ()) is None
    assert fate(a_task(cancelled_s=115.0), a_past(RUNNING, GONE), ()) is None
    for past in (a_past(RUNNING, GONE), a_past(RUNNING, DONE)):
        assert fate(a_task(may_be_cancelled=True), past, ()) is None
    pasts: tuple[Past | None, ...] = (
        None,
        a_past(HELD),
        a_past(RUNNING, GONE),
        a_past(RUNNING, replace(DONE, state="FAILED")),
        a_past(RUNNING, replace(DONE, state="NODE_FAIL")),
    )
    for wrong in pasts:
        finding = fate(a_task(), wrong, ())
        assert finding is not None
        assert finding.invariant == LOST
        assert not finding.apart


def test_a_job_that_slurm_alone_starts_without_gpus_is_not_hadards_doing() -> None:
    """Such a job is counted apart, unless hadard has pinned it."""
    for nodes in ("", "n1"):
        bare = replace(RUNNING, gpus=frozenset(), requested_nodes=nodes, restarts=1)
        failed = replace(DONE, state="FAILED", requested_nodes=nodes, restarts=1)
        (whole,) = incomplete_gangs(a_sample(bare), {"7": a_task()})
        assert bool(whole.apart) is (nodes == "")
        # Also after a run with all of them.
        for past in (a_past(bare, failed), a_past(RUNNING, bare, failed)):
            finding = fate(a_task(), past, ())
            assert finding is not None
            assert bool(finding.apart) is (nodes == "")


def test_a_cancelled_job_must_not_come_back() -> None:
    """A cancelled job that runs again is lost; close to a requeue by hadard it is counted apart."""
    task = a_task(cancelled_s=105.0)
    finding = fate(task, a_past(RUNNING, GONE, RUNNING, DONE), ())
    assert finding is not None
    assert not finding.apart
    told = fate(task, a_past(RUNNING, DONE), [105.2])
    assert told is not None
    assert told.apart
    assert fate(a_task(cancelled_s=119.0), a_past(RUNNING, DONE), ()) is None
    failed = replace(HELD, reason=LAUNCH_FAILED)
    told = fate(task, a_past(RUNNING, RUNNING, failed, RUNNING, DONE), ())
    assert told is not None
    assert told.apart == "cancelled while its node failed to launch it"


def test_a_job_must_not_wait_for_the_begin_time_of_our_requeue() -> None:
    """Slurm's delay of a requeued job is found after a requeue by hadard, not by a user."""
    kept = replace(FREE_JOB, reason="BeginTime", restarts=1)
    past = a_past(RUNNING, HELD, kept, RUNNING, every_s=30.0)
    ours = [125.0]
    assert kept_by_begin_time(a_task(), past, [*ours, 500.0], 20.0) == (30.0, ours[-1])
    assert kept_by_begin_time(a_task(), past, ours, 40.0) == (0.0, 0.0)
    assert kept_by_begin_time(a_task(), past, (), 20.0) == (0.0, 0.0)
    assert kept_by_begin_time(a_task(), past, [90.0], 20.0) == (0.0, 0.0)
    assert kept_by_begin_time(a_task(kind="plain"), past, ours, 20.0) == (0.0, 0.0)


def lines(*spans: tuple[int, int], start_s: float = 0.0) -> str:
    return "".join(
        json.dumps({"from_step": a, "to_step": b, "start_s": start_s + a, "end_s": start_s + b})
        + "\n"
        for a, b in spans
    )


EXPECTED = {"steps": 60, "parameters_sha256": "a"}
RESULT = json.dumps(EXPECTED)


def test_a_training_that_is_whole_is_accepted() -> None:
    """A training with each step once is accepted, also with a line that a kill has cut off."""
    assert untrue_training(lines((0, 60)), RESULT, EXPECTED) == ""
    torn = lines((0, 20)) + '{"from_st' + "\n" + lines((20, 60))
    assert untrue_training(torn, RESULT, EXPECTED) == ""


@pytest.mark.parametrize(
    ("history", "result"),
    [
        (lines((0, 20), (30, 60)), RESULT),
        (lines((0, 20), (10, 60)), RESULT),
        (lines((0, 20), (20, 50)), RESULT),
        ("", RESULT),
        (lines((0, 60)), json.dumps(EXPECTED | {"parameters_sha256": "b"})),
        (lines((0, 60)), ""),
    ],
)
def test_a_training_with_missing_or_repeated_steps_is_found(history: str, result: str) -> None:
    """A gap, an overlap, an early end, no history, and a wrong or missing result are found."""
    assert untrue_training(history, result, EXPECTED)


def test_two_runs_at_once_are_told() -> None:
    """Overlapping runs of a job are found, as after its node was unreachable for Slurm."""
    assert not two_at_once(lines((0, 20), (20, 60)))
    assert two_at_once(lines((0, 20)) + lines((10, 60)))


def test_plans_that_a_restart_would_change_are_found() -> None:
    """A plan that changes is found; one by excluded nodes, a stop or a time limit is apart."""
    note = {"time_s": 1.0, "policy": "hadar", "differing": ["7: here, there"], "stood_s": 0.1}
    note |= {"is_timely": True, "is_same_ledger": True}
    same = note | {"is_same_plan": True, "is_same_but_for_pins": True}
    pins = note | {"is_same_plan": False, "is_same_but_for_pins": True}
    other = note | {"is_same_plan": False, "is_same_but_for_pins": False}
    stopped = other | {"stood_s": 14.0}
    cut_off = other | {"is_timely": False}
    reaped = other | {"is_same_ledger": False}
    apart, broken, late, slow, undone = plan_differences(
        [same, pins, other, stopped, cut_off, reaped]
    )
    assert apart.apart
    assert not broken.apart
    assert late.apart
    assert slow.apart
    assert undone.apart


DETAIL = (
    "JobId=12 ArrayJobId=11 ArrayTaskId=1 JobName=x UserId=root(0) Priority=7 JobState=RUNNING "
    "Reason=None Dependency=(null) Restarts=1 StartTime=100 EndTime=200 ReqNodeList=n1 "
    "ExcNodeList=(null) NodeList=n1   Nodes=n1 CPU_IDs=0-1 Mem=100 GRES=gpu:v100:2(IDX:0,3)"
)


def test_records_are_read() -> None:
    """Array tasks are read by number, also several in one record, and GPUs by index."""
    [seen] = sightings(DETAIL)
    assert (seen.key, seen.raw_id, seen.restarts, seen.started_s) == ("11_1", "12", 1, 100.0)
    assert seen.gpus == {Gpu("n1", "v100", 0), Gpu("n1", "v100", 3)}
    waiting = DETAIL.replace("ArrayTaskId=1", "ArrayTaskId=0,2-3%2").replace("RUNNING", "PENDING")
    found = list(sightings(waiting))
    assert [job.key for job in found] == ["11_0", "11_2", "11_3"]
    assert not any(job.gpus for job in found)


def test_nodes_are_read() -> None:
    """Node states, missing reports, and the GPUs that slurmctld counts as allocated are read."""
    text = (
        "NodeName=n1 GresUsed=gpu:v100:2(IDX:0-1) State=MIXED SlurmdStartTime=5\n"
        "NodeName=n2 GresUsed=gpu:k80:0(IDX:N/A) State=IDLE SlurmdStartTime=None\n"
    )
    assert node_states(text) == {"n1": "MIXED", "n2": "UNREPORTED"}
    assert gpus_in_use(text) == {Gpu("n1", "v100", 0), Gpu("n1", "v100", 1)}


def test_a_seed_always_draws_the_same_faults() -> None:
    """A seed always draws the same faults, in a shorter run the first of them."""
    faults = draw_faults(1, 200)
    assert draw_faults(1, 200) == faults
    assert draw_faults(1, 20) == faults[:20]
    assert draw_faults(2, 200) != faults


def test_two_hundred_faults_have_every_kind_and_every_step() -> None:
    """200 faults contain every kind, and kill hadard at every step of a round."""
    for seed in range(1, 6):
        faults = draw_faults(seed, 200)
        assert {fault.kind for fault in faults} == set(Kind)
        killed = {(f.step, f.when) for f in faults if f.kind is Kind.KILL_AT_STEP}
        assert killed == set(KILL_POINTS)
