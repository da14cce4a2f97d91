"""The actions from `reconcile` turn the snapshot into the plan, in an order that can be applied."""

from __future__ import annotations

from builders import a_gang, a_job, a_plan, a_snapshot
from hypothesis import event, given
from hypothesis import strategies as st
from strategies import snapshots, traces, valid_plans

from hadar_slurm.core.broken_plan import check_plan
from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.job import JobSpec, Phase
from hadar_slurm.core.plan import WaitReason
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.engine.actions import Renew, Start, Status, Stop
from hadar_slurm.engine.reconcile import reconcile
from hadar_slurm.sim.backend import SimBackend

Trace = tuple[Cluster, tuple[JobSpec, ...]]


def held_by(snapshot: Snapshot) -> dict[str, object]:
    return {str(job.job_id): job.allocation for job in snapshot.jobs if job.allocation}


@given(trace=traces(), data=st.data(), later_s=st.floats(0, 5000))
def test_applying_the_actions_gives_the_plan(
    trace: Trace, data: st.DataObject, later_s: float
) -> None:
    """After its actions are applied a plan is in force, and reconcile only renews; two in turn."""
    world = SimBackend(*trace)
    world.wait(later_s)
    for _ in range(2):
        snapshot = world.observe()
        plan = data.draw(valid_plans(snapshot))
        check_plan(snapshot, plan)
        actions = reconcile(snapshot, plan)
        outcomes = world.apply(actions)
        event(f"{sum(isinstance(action, Stop) for action in actions)} stops")
        assert [outcome.action for outcome in outcomes] == list(actions)
        assert all(outcome.status is Status.DONE for outcome in outcomes)
        after = world.observe()
        assert held_by(after) == {str(key): held for key, held in plan.allocations}
        again = reconcile(after, plan)
        assert all(isinstance(action, Renew) for action in again)
        assert len(again) == len(plan.allocations)
        world.wait(world.now_s + 10.0)


@given(snapshot=snapshots(), data=st.data())
def test_stops_come_first_then_renewals_then_starts(
    snapshot: Snapshot, data: st.DataObject
) -> None:
    """GPUs are freed before they are allocated."""
    actions = reconcile(snapshot, data.draw(valid_plans(snapshot)))
    order = [(Stop, Renew, Start).index(type(action)) for action in actions]
    assert order == sorted(order)


@given(snapshot=snapshots(), data=st.data())
def test_every_action_follows_from_the_difference(snapshot: Snapshot, data: st.DataObject) -> None:
    """Gangs only held are stopped, gangs only planned are started, and gangs of both renewed."""
    plan = data.draw(valid_plans(snapshot))
    actions = reconcile(snapshot, plan)
    held = {
        job.job_id: job.allocation.gangs[0]
        for job in snapshot.plannable
        if job.phase is not Phase.QUEUED
    }
    wanted = {job_id: allocation.gangs[0] for job_id, allocation in plan.allocations}
    stops = {(a.job_id, a.gang) for a in actions if isinstance(a, Stop)}
    renewals = {(a.job_id, a.gang) for a in actions if isinstance(a, Renew)}
    starts = {(a.job_id, a.gang) for a in actions if isinstance(a, Start)}
    assert stops == set(held.items()) - set(wanted.items())
    assert renewals == set(held.items()) & set(wanted.items())
    assert starts == set(wanted.items()) - set(held.items())
    assert len(actions) == len(stops) + len(renewals) + len(starts)
    assert {action.copy for action in actions} <= {0}


def test_a_move_is_a_stop_and_a_start() -> None:
    """The job is stopped on one gang and started on the other in one round."""
    snapshot = a_snapshot("1xV100,1xK80", a_job("1", on="n2:K80:1"))
    assert reconcile(snapshot, a_plan({"1": "n1:V100:1"})) == (
        Stop(snapshot.jobs[0].job_id, 0, a_gang("n2:K80:1")),
        Start(snapshot.jobs[0].job_id, 0, a_gang("n1:V100:1")),
    )


def test_what_a_queued_job_held_is_history() -> None:
    """A queued job needs no stop, and a start even on the gang that it has held before."""
    job = a_job("1", on="n1:V100:1", phase=Phase.QUEUED)
    snapshot = a_snapshot("1xV100", job)
    start = Start(job.job_id, 0, a_gang("n1:V100:1"))
    assert reconcile(snapshot, a_plan({"1": "n1:V100:1"})) == (start,)
    assert reconcile(snapshot, a_plan(waiting={"1": WaitReason.OUTBID})) == ()


def test_a_stopping_job_is_left_alone() -> None:
    """A stopping job gets no further actions."""
    job = a_job("1", on="n1:V100:1", phase=Phase.STOPPING)
    plan = a_plan(waiting={"1": WaitReason.STOPPING})
    assert reconcile(a_snapshot("1xV100", job), plan) == ()


def test_a_queued_job_that_waits_on_needs_nothing() -> None:
    """A job without GPUs, before and in the plan, gets no actions."""
    plan = a_plan(waiting={"1": WaitReason.OUTBID})
    assert reconcile(a_snapshot("1xV100", a_job("1")), plan) == ()
