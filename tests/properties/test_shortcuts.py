"""What is left unread, or taken from an earlier round, equals what is computed from all jobs."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import event, given
from hypothesis import strategies as st
from strategies import failures_of, snapshots, traces, valid_plans

from hadar_slurm.core import broken_plan
from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.gang import Allocation
from hadar_slurm.core.job import Job, JobSpec, Phase
from hadar_slurm.core.plan import Plan, WaitReason, is_plainly_valid
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.engine.actions import Renew
from hadar_slurm.engine.reconcile import Renewals, reconcile
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.sim.backend import SimBackend
from hadar_slurm.sim.unread_snapshot import with_progress

Trace = tuple[Cluster, tuple[JobSpec, ...]]


def whole(snapshot: Snapshot, jobs: tuple[Job, ...]) -> Snapshot:
    """Return the snapshot with these jobs, from which all else is computed."""
    return Snapshot(
        snapshot.now_s,
        snapshot.cluster,
        jobs,
        snapshot.occupied,
        snapshot.rules,
        snapshot.ended,
    )


def assert_parts_follow(snapshot: Snapshot, jobs: tuple[Job, ...]) -> None:
    """Fail unless all parts of a snapshot are those of a snapshot with these jobs."""
    expected = whole(snapshot, jobs)
    assert list(snapshot.running.items()) == list(expected.running.items())
    assert snapshot.others == expected.others
    assert snapshot.others_by_id == expected.others_by_id
    assert dict(snapshot.spare) == dict(expected.spare)
    assert snapshot.left_out == expected.left_out
    assert snapshot.plannable_capacity == expected.plannable_capacity
    assert snapshot.jobs == expected.jobs


def with_a_step(job: Job) -> Job:
    """Return a job with one more step done and one more to do."""
    progress = replace(job.progress, steps_done=job.progress.steps_done + 1)
    return replace(
        job, spec=replace(job.spec, total_steps=job.spec.total_steps + 1), progress=progress
    )


@given(trace=traces(), data=st.data())
def test_the_parts_of_a_simulated_snapshot_follow_from_its_jobs(
    trace: Trace, data: st.DataObject
) -> None:
    """Also where jobs are read only after the world has gone on; with failures of nodes."""
    world = SimBackend(*trace, failures=data.draw(failures_of(trace[0])))
    renewals = Renewals()
    unread = []
    for _ in range(data.draw(st.integers(1, 8))):
        at_once, later = world.observe(), world.observe()
        unread.append((later, at_once.jobs))
        assert_parts_follow(at_once, at_once.jobs)
        changed = with_progress(world.observe(), with_a_step)
        assert_parts_follow(changed, tuple(with_a_step(job) for job in at_once.jobs))
        plan = data.draw(valid_plans(at_once))
        actions = reconcile(at_once, plan, renewals)
        assert actions == reconcile(whole(at_once, at_once.jobs), plan)
        assert [outcome.action for outcome in world.apply(actions)] == list(actions)
        event(f"renewals: {any(isinstance(action, Renew) for action in actions)}")
        world.wait(world.now_s + data.draw(st.floats(1.0, 5000.0)))
    for snapshot, jobs in unread:
        assert_parts_follow(snapshot, jobs)


@given(snapshot=snapshots())
def test_running_jobs_are_kept_together_or_one_by_one(snapshot: Snapshot) -> None:
    """Within a round, those whose GPUs are free keep them, in the jobs' order."""
    allocator = Allocator(snapshot, Round(0, snapshot.now_s, 360.0, may_move=False))
    free, placed, left = snapshot.plannable_capacity, dict[str, Allocation](), list[Job]()
    for job in snapshot.plannable:
        must_stay = job.phase is Phase.RUNNING or job.is_pinned_in_place
        if must_stay and all(free.get(slot, 0) >= count for slot, count in job.allocation.slots):
            placed[job.job_id] = job.allocation
            for slot, count in job.allocation.slots:
                free[slot] -= count
        else:
            left.append(job)
    assert allocator.free == free
    assert list(allocator.placed.items()) == list(placed.items())
    assert list(allocator.jobs) == left


@given(snapshot=snapshots(), data=st.data())
def test_a_plan_that_passes_at_once_breaks_no_rule(snapshot: Snapshot, data: st.DataObject) -> None:
    """However a valid plan is damaged."""
    plan = data.draw(valid_plans(snapshot))
    allocations, waiting = list(plan.allocations), list(plan.waiting)
    ids = [job.job_id for job in snapshot.jobs]
    for _ in range(data.draw(st.integers(0, 2)) if ids else 0):
        job_id = data.draw(st.sampled_from(ids))
        match data.draw(st.sampled_from(("lose", "keep", "take", "wait"))):
            case "lose":
                allocations = [item for item in allocations if item[0] != job_id]
            case "keep":
                waiting = [item for item in waiting if item[0] != job_id]
                allocations.append((job_id, snapshot.by_id[job_id].allocation))
            case "take" if allocations:
                allocations.append((job_id, data.draw(st.sampled_from(allocations))[1]))
            case "wait":
                waiting.append((job_id, WaitReason.INSUFFICIENT))
    damaged = Plan(tuple(allocations), tuple(waiting))
    faults = [
        *broken_plan._broken_by_jobs(snapshot, damaged),
        *broken_plan._broken_by_capacity(snapshot, damaged),
    ]
    passes = is_plainly_valid(snapshot, damaged)
    event(f"passes: {passes}, faults: {bool(faults)}")
    assert not (passes and faults)
