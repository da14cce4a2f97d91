"""The contract of every backend (engine/backend.py), in every world."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from builders import a_gang
from contract.worlds import SlurmWorld, World

from hadar_slurm.core.broken_plan import check_plan
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Phase
from hadar_slurm.core.plan import Plan, WaitReason
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.engine.actions import Action, Outcome, Renew, Start, Status, Stop
from hadar_slurm.engine.reconcile import reconcile
from hadar_slurm.errors import SlurmUnavailable
from hadar_slurm.sim.backend import SimBackend

N1, N2, N3 = a_gang("n1:v100:2"), a_gang("n2:v100:2"), a_gang("n3:p100:2")


def plan_of(snapshot: Snapshot, gangs: Mapping[JobId, Gang]) -> Plan:
    """Return a plan with these gangs, after check_plan."""
    waiting = {
        job.job_id: WaitReason.INSUFFICIENT for job in snapshot.jobs if job.job_id not in gangs
    }
    plan = Plan.of({job: Allocation.rigid(gang) for job, gang in gangs.items()}, waiting)
    check_plan(snapshot, plan)
    return plan


def carry_out(world: World, gangs: Mapping[JobId, Gang]) -> dict[tuple[type, JobId], Status]:
    """Observe, plan these gangs and no others, apply, and return the status of each action."""
    snapshot = world.backend.observe()
    actions = reconcile(snapshot, plan_of(snapshot, gangs))
    outcomes = world.backend.apply(actions)
    assert [outcome.action for outcome in outcomes] == list(actions)
    return {(type(o.action), o.action.job_id): o.status for o in outcomes}


def start(world: World, gangs: Mapping[JobId, Gang]) -> None:
    """Start jobs and wait until they run."""
    assert set(carry_out(world, gangs).values()) == {Status.DONE}
    world.settle()


def on(world: World, job: JobId) -> Gang | None:
    """Return a job's gang in a new snapshot, None while it is queued."""
    seen = world.backend.observe().by_id[job]
    return None if seen.phase is Phase.QUEUED else seen.allocation.gangs[0]


def statuses(outcomes: list[Outcome]) -> list[Status]:
    """Return the statuses of outcomes."""
    return [outcome.status for outcome in outcomes]


def test_every_job_that_waits_is_seen_with_nothing(world: World) -> None:
    """Pending jobs are queued without GPUs, and all six nodes are schedulable."""
    jobs = {world.submit(2), world.submit(4)}
    snapshot = world.backend.observe()
    assert {job.job_id for job in snapshot.jobs} == jobs
    assert all(job.phase is Phase.QUEUED and not job.allocation for job in snapshot.jobs)
    assert sorted(job.spec.num_gpus for job in snapshot.jobs) == [2, 4]
    assert [len(node.gpus) for node in snapshot.cluster.nodes] == [1, 1, 1, 1, 1, 2]
    assert all(node.is_schedulable for node in snapshot.cluster.nodes)
    assert snapshot.occupied == ()


def test_looking_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two observations at one time are equal, with pending and running jobs."""
    first, _ = world.submit(), world.submit()
    start(world, {first: N1})
    before = world.backend.observe()
    if not isinstance(world.backend, SimBackend):
        # For how long a job has run is a part of its progress.
        monkeypatch.setattr(world.backend, "now_s", lambda: before.now_s)
    assert world.backend.observe() == before
    assert world.holds(first) == N1


def test_what_is_done_shows_at_the_next_look(world: World) -> None:
    """A snapshot shows a start or a stop at once, also before the job runs."""
    job = world.submit()
    assert carry_out(world, {job: N1}) == {(Start, job): Status.DONE}
    assert on(world, job) == N1
    world.settle()
    assert (on(world, job), world.holds(job)) == (N1, N1)
    assert carry_out(world, {}) == {(Stop, job): Status.DONE}
    assert (on(world, job), world.holds(job)) == (None, None)


def test_jobs_get_exactly_their_gangs(world: World) -> None:
    """Jobs hold exactly their gangs: on several nodes, with several types, on a mixed node."""
    told = (
        "n1:v100:2 n2:v100:2",
        "n2:v100:2 n3:p100:2",
        "n1:v100:1 n4:p100:1 n5:k80:1",
        "n6:k80:2",
        "n6:v100:2",
        "n5:k80:1",
    )
    gangs = {world.submit(a_gang(text).num_gpus): a_gang(text) for text in told}
    start(world, gangs)
    assert {job: on(world, job) for job in gangs} == gangs
    assert {job: world.holds(job) for job in gangs} == gangs


def test_what_was_carried_out_needs_nothing_more(world: World) -> None:
    """Reconciling an applied plan again gives renewals only, at once and when the jobs run."""
    jobs = [world.submit(), world.submit(4), world.submit()]
    gangs = dict(zip(jobs, (N1, a_gang("n2:v100:2 n3:p100:2"), N3), strict=True))
    assert set(carry_out(world, gangs).values()) == {Status.DONE}
    for _ in range(2):
        snapshot = world.backend.observe()
        again = reconcile(snapshot, plan_of(snapshot, gangs))
        assert again == tuple(Renew(job, 0, gang) for job, gang in gangs.items())
        assert set(carry_out(world, gangs).values()) == {Status.DONE}
        world.settle()
    assert {job: world.holds(job) for job in jobs} == gangs


def test_a_start_on_busy_gpus_waits_and_keeps_no_other_from_starting(world: World) -> None:
    """A start on busy GPUs is deferred, the next one is done, and the running job is unchanged."""
    first, second, third = world.submit(4), world.submit(), world.submit()
    start(world, {first: a_gang("n1:v100:4")})
    actions: list[Action] = [Start(second, 0, N1), Start(third, 0, N2)]
    outcomes = world.backend.apply(actions)
    assert [outcome.action for outcome in outcomes] == actions
    assert statuses(list(outcomes)) == [Status.DEFERRED, Status.DONE]
    world.settle()
    assert (on(world, first), on(world, second), on(world, third)) == (
        a_gang("n1:v100:4"),
        None,
        N2,
    )
    assert world.holds(second) is None


def test_two_starts_on_the_same_gpus_are_one(world: World) -> None:
    """The first start is done, the second is deferred."""
    first, second = world.submit(4), world.submit(4)
    gang = a_gang("n1:v100:4")
    outcomes = world.backend.apply([Start(first, 0, gang), Start(second, 0, gang)])
    assert statuses(list(outcomes)) == [Status.DONE, Status.DEFERRED]
    world.settle()
    assert (world.holds(first), world.holds(second)) == (gang, None)


def test_jobs_change_places_in_one_go(world: World) -> None:
    """Two jobs swap nodes in one round, since stops precede starts; a third job is unchanged."""
    first, second, third = world.submit(4), world.submit(4), world.submit()
    here, there = a_gang("n1:v100:4"), a_gang("n3:p100:4")
    start(world, {first: here, second: there, third: N2})
    assert carry_out(world, {first: there, second: here, third: N2}) == {
        (Stop, first): Status.DONE,
        (Stop, second): Status.DONE,
        (Renew, third): Status.DONE,
        (Start, first): Status.DONE,
        (Start, second): Status.DONE,
    }
    world.settle()
    assert [world.holds(job) for job in (first, second, third)] == [there, here, N2]


def test_a_wait_ends_in_time(world: World) -> None:
    """`wait` returns at the given time or earlier."""
    job = world.submit()
    start(world, {job: N1})
    until_s = world.now_s() + 1.0
    world.backend.wait(until_s)
    assert world.now_s() <= until_s + world.slack_s


# Tests of Slurm backends only.


def test_an_unseen_slurm_is_told_and_nothing_is_done_to_it(slurm_world: SlurmWorld) -> None:
    """Without slurmctld, observing fails and actions are deferred; later the job starts."""
    job = slurm_world.submit()
    snapshot = slurm_world.backend.observe()
    actions = reconcile(snapshot, plan_of(snapshot, {job: N1}))
    with slurm_world.away():
        with pytest.raises(SlurmUnavailable):
            slurm_world.backend.observe()
        assert statuses(list(slurm_world.backend.apply(actions))) == [Status.DEFERRED]

    def can_be_seen() -> bool:
        return all(row.node.is_schedulable for row in slurm_world.slurm.nodes())

    slurm_world.until(can_be_seen, "nodes have reported")
    start(slurm_world, {job: N1})
    assert slurm_world.holds(job) == N1


def test_what_slurm_refuses_stops_nothing_else(slurm_world: SlurmWorld) -> None:
    """A job that gets Requeue=0 is not stopped; the other job of the plan migrates."""
    fixed, mover = slurm_world.submit(), slurm_world.submit()
    start(slurm_world, {fixed: N1, mover: N2})
    snapshot = slurm_world.backend.observe()
    plan = plan_of(snapshot, {fixed: N3, mover: a_gang("n5:k80:2")})
    slurm_world.run("scontrol", "update", f"JobId={fixed}", "Requeue=0")
    done = slurm_world.backend.apply(reconcile(snapshot, plan))
    outcomes = {(type(each.action), each.action.job_id): each.status for each in done}
    assert outcomes[Stop, fixed] is Status.DEFERRED
    assert outcomes[Start, fixed] is Status.DEFERRED
    assert outcomes[Stop, mover] is outcomes[Start, mover] is Status.DONE
    slurm_world.settle()
    assert (slurm_world.holds(fixed), slurm_world.holds(mover)) == (N1, a_gang("n5:k80:2"))


def test_tasks_of_an_array_are_jobs_apart(slurm_world: SlurmWorld) -> None:
    """Each array task is planned as its own job; one that was not started stays pending."""
    array = slurm_world.hadar_sbatch("--hadar-gang=2", "--array=0-2")
    tasks = [JobId(f"{array}_{number}") for number in range(3)]
    seen = slurm_world.backend.observe().jobs
    assert {(job.job_id, job.partition) for job in seen} == {(task, "main") for task in tasks}
    gangs = {tasks[0]: a_gang("n1:v100:1 n3:p100:1"), tasks[2]: a_gang("n5:k80:2")}
    assert set(carry_out(slurm_world, gangs).values()) == {Status.DONE}

    def states() -> list[str]:
        queue = slurm_world.slurm.queue()
        return [queue[task].state for task in tasks]

    slurm_world.until(lambda: states() == ["RUNNING", "PENDING", "RUNNING"], states)
    assert [on(slurm_world, task) for task in tasks] == [
        gangs[tasks[0]],
        None,
        gangs[tasks[2]],
    ]


def test_gpus_of_others_are_no_ones_to_plan(slurm_world: SlurmWorld) -> None:
    """GPUs of unmanaged jobs are occupied, and a start on them is deferred."""
    job = slurm_world.submit()
    plain = slurm_world.sbatch("--nodelist=n1", "--gres=gpu:3")
    slurm_world.until(lambda: slurm_world.slurm.queue()[plain].state == "RUNNING", "plain job")
    snapshot = slurm_world.backend.observe()
    assert plain not in snapshot.by_id
    assert [(slot.node, count) for slot, count in snapshot.occupied] == [("n1", 3)]
    assert statuses(list(slurm_world.backend.apply([Start(job, 0, N1)]))) == [Status.DEFERRED]


def test_a_named_type_binds_where_slurm_keeps_types(slurm_world: SlurmWorld) -> None:
    """A named type binds the job only where Slurm keeps types."""
    job = slurm_world.hadar_sbatch("--hadar-gang=2", "--gpus=v100:2")
    keeps = slurm_world.slurm.abilities.keeps_types
    snapshot = slurm_world.backend.observe()
    assert snapshot.rules.naming_binds is keeps
    assert snapshot.by_id[job].bound_type == ("v100" if keeps else None)


def test_a_job_that_names_two_types_is_left_alone_where_slurm_keeps_types(
    slurm_world: SlurmWorld,
) -> None:
    """The job is in the snapshot only where Slurm does not keep types."""
    job = slurm_world.hadar_sbatch("--hadar-gang=2", "--gres=gpu:v100:1,gpu:k80:1")
    keeps = slurm_world.slurm.abilities.keeps_types
    assert (job in slurm_world.backend.observe().by_id) is not keeps


def test_tasks_of_a_forked_job_are_its_copies(slurm_world: SlurmWorld) -> None:
    """A forked job is one job in the snapshot; its tasks are copies with gangs of their own."""
    job = slurm_world.hadar_sbatch("--hadar-gang=2", "--hadar-copies=3")
    tasks = [JobId(f"{job}_{number}") for number in range(3)]
    snapshot = slurm_world.backend.observe()
    (seen,) = snapshot.jobs
    assert (seen.job_id, seen.spec.max_copies, seen.phase) == (job, 3, Phase.QUEUED)
    plan = Plan.of({job: Allocation.of({0: N1, 1: a_gang("n6:k80:2")})}, {})
    check_plan(snapshot, plan)
    actions = reconcile(snapshot, plan)
    outcomes = slurm_world.backend.apply(actions)
    assert [outcome.action for outcome in outcomes] == list(actions)
    assert statuses(list(outcomes)) == [Status.DONE] * 2

    def states() -> list[str]:
        queue = slurm_world.slurm.queue()
        return [queue[task].state for task in tasks]

    slurm_world.until(lambda: states() == ["RUNNING", "RUNNING", "PENDING"], states)
    numbers = [JobId(slurm_world.slurm.queue()[task].raw_id) for task in tasks[:2]]
    assert [slurm_world.holds(number) for number in numbers] == [N1, a_gang("n6:k80:2")]
    (seen,) = slurm_world.backend.observe().jobs
    assert seen.allocation == plan.by_id[job]
    assert slurm_world.slurm.queue()[tasks[2]].is_held_by_user
