"""Properties of every policy's plan for any snapshot; `contenders.py` lists the policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from builders import ROUND, free_after, gangs_that_fit, is_so, would_bind
from contenders import (
    BLIND_TO_LENGTHS,
    CONTENDERS,
    NAMED,
    NON_PREEMPTIVE,
    RIGID_ONLY,
    UNIFORM_ONLY,
    why_gpus_may_idle,
)
from hypothesis import event, given
from hypothesis import strategies as st
from strategies import clusters, rules, snapshots, specs, spread_gangs

from hadar_slurm.core.broken_plan import check_plan
from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.job import Job, JobSpec, Phase, uniform_shapes
from hadar_slurm.core.plan import Plan, WaitReason
from hadar_slurm.core.snapshot import GangRules, Round, Snapshot
from hadar_slurm.core.throughput import GangThroughput, Throughputs
from hadar_slurm.policies.policy import Policy
from hadar_slurm.policies.registry import POLICY_NAMES

# Policies for which only the ratios of throughputs matter.
SCALE_FREE = [name for name in CONTENDERS if name.startswith("hadar-paper")]

every_policy = pytest.mark.parametrize("name", CONTENDERS)


def test_every_policy_on_the_command_line_is_tested() -> None:
    """Every policy that users can name is tested in this file, and has that name."""
    assert set(POLICY_NAMES) <= set(NAMED)
    assert [make().name for make in NAMED.values()] == list(NAMED)
    assert set(NAMED) >= NON_PREEMPTIVE | UNIFORM_ONLY | RIGID_ONLY


# The laws. Each takes the input of a policy and its plan.


def law_it_breaks_no_rule(policy: Policy, snapshot: Snapshot, round_: Round, plan: Plan) -> None:
    """Capacity, whole gangs and closed nodes are respected, and every waiting job has a reason."""
    check_plan(snapshot, plan)


def law_within_a_round_nobody_is_moved(
    policy: Policy, snapshot: Snapshot, round_: Round, plan: Plan
) -> None:
    """Within a round running jobs keep their gangs, and only free GPUs are allocated."""
    for job in snapshot.plannable:
        if job.phase is Phase.RUNNING and not round_.may_move:
            event("runs on")
            assert set(job.allocation.copies) <= set(plan.by_id[job.job_id].copies)


def law_what_cannot_be_checkpointed_keeps_its_gpus(
    policy: Policy, snapshot: Snapshot, round_: Round, plan: Plan
) -> None:
    """Running jobs without checkpoints, and jobs about to start, keep their allocation."""
    for job in snapshot.plannable:
        if job.is_pinned_in_place:
            event("pinned")
            assert plan.by_id[job.job_id] == job.allocation


def law_a_stopping_job_gets_nothing_and_nobody_gets_its_gpus(
    policy: Policy, snapshot: Snapshot, round_: Round, plan: Plan
) -> None:
    """A stopping job gets no GPUs, and its own are not free yet."""
    stopping = {job.job_id for job in snapshot.jobs if job.phase is Phase.STOPPING}
    assert not stopping & set(plan.by_id)
    assert all(dict(plan.waiting)[job_id] is WaitReason.STOPPING for job_id in stopping)
    assert all(count >= 0 for count in free_after(snapshot, plan).values())


def law_no_gpu_is_idle_while_a_job_could_use_it(
    policy: Policy, snapshot: Snapshot, round_: Round, plan: Plan
) -> None:
    """Work conservation: no waiting job fits the free GPUs, and none is stopped without need.

    Except jobs that could not migrate afterwards: they wait for GPUs with which they end sooner.
    """
    if why_gpus_may_idle(policy, snapshot.rules):
        return
    free = free_after(snapshot, plan)
    waiting = dict(plan.waiting)
    for job in snapshot.plannable:
        if job.job_id not in waiting:
            continue
        if waiting[job.job_id] is WaitReason.BETTER_LATER:
            event("waits for better GPUs")
            assert not job.spec.can_checkpoint
            continue
        fitting = gangs_that_fit(snapshot, job, free, only_uniform=policy.name in UNIFORM_ONLY)
        found = next((gang for gang in fitting if not would_bind(snapshot, job, gang)), None)
        assert found is None, f"job {job.job_id} waits ({waiting[job.job_id]}), {found} is free"
        for gang in job.allocation.gangs:
            assert any(free[slot] < count for slot, count in gang.slots), (
                f"job {job.job_id} is to leave {gang}, which nobody gets"
            )


def law_who_runs_is_stopped_by_those_only_that_preempt(
    policy: Policy, snapshot: Snapshot, round_: Round, plan: Plan
) -> None:
    """A policy without preemption keeps the allocations of running jobs."""
    for job in snapshot.plannable:
        if job.phase is Phase.RUNNING and policy.name in NON_PREEMPTIVE:
            event("runs on without preemption")
            assert plan.by_id[job.job_id] == job.allocation


def law_the_cluster_is_never_all_idle(
    policy: Policy, snapshot: Snapshot, round_: Round, plan: Plan
) -> None:
    """If no GPU is occupied and some job could run, some job has GPUs, whatever the policy."""
    are_ours = snapshot.plannable_capacity == snapshot.cluster.capacity
    gangs = (gangs_that_fit(snapshot, j, snapshot.cluster.capacity) for j in snapshot.plannable)
    if are_ours and any(next(found, None) is not None for found in gangs):
        assert plan.allocations


def law_every_job_has_a_place_or_a_true_reason(
    policy: Policy, snapshot: Snapshot, round_: Round, plan: Plan
) -> None:
    """Every job has an allocation or a true wait reason.

    Reasons are not checked by `is_so` where a rule leaves GPUs idle or allows uniform gangs only,
    since `is_so` also tries places that such a policy does not use.
    """
    waiting = dict(plan.waiting)
    assert set(plan.by_id) | set(waiting) == set(snapshot.by_id)
    assert not set(plan.by_id) & set(waiting)
    gpu_types = list(snapshot.cluster.gpus_by_type)
    empty = replace(snapshot, jobs=(), occupied=(), cluster=snapshot.cluster.all_open())
    for job_id, why in waiting.items():
        job = snapshot.by_id[job_id]
        gangs = gangs_that_fit(
            empty, job, empty.cluster.capacity, only_uniform=policy.name in UNIFORM_ONLY
        )
        could = next(gangs, None) is not None
        is_known = job.spec.throughputs.best(gpu_types, job.spec.num_gpus) > 0
        event(why.name)
        assert (why is WaitReason.NO_THROUGHPUT) == (
            not is_known and why is not WaitReason.STOPPING
        )
        if why is WaitReason.INFEASIBLE:
            assert not could, f"job {job_id} could run on an empty cluster"
        elif why not in (WaitReason.NO_THROUGHPUT, WaitReason.STOPPING):
            assert could, f"job {job_id} never could run and is told {why}"
        is_free_to = not why_gpus_may_idle(policy, snapshot.rules)
        if is_free_to and policy.name not in UNIFORM_ONLY:
            assert is_so(why, snapshot, plan, job), f"job {job_id} is told {why}"


Law = Callable[[Policy, Snapshot, Round, Plan], None]
LAWS: Mapping[str, Law] = {
    name: value for name, value in list(globals().items()) if name.startswith("law_")
}


def check_laws(policy: Policy, snapshot: Snapshot, round_: Round, plan: Plan) -> None:
    for law in LAWS.values():
        law(policy, snapshot, round_, plan)


@every_policy
@given(data=st.data(), may_move=st.booleans())
def test_a_plan_keeps_every_law(name: str, data: st.DataObject, *, may_move: bool) -> None:
    """The laws above hold for every plan, made at the beginning of a round or within it."""
    policy = CONTENDERS[name]()
    snapshot = data.draw(snapshots_for(policy))
    round_ = replace(ROUND, may_move=may_move)
    plan = policy.plan(snapshot, round_)
    event(f"{len(plan.allocations)} placed")
    check_laws(policy, snapshot, round_, plan)


@every_policy
@given(data=st.data(), may_move=st.booleans())
def test_a_plan_depends_on_what_is_seen_and_remembered_alone(
    name: str, data: st.DataObject, *, may_move: bool
) -> None:
    """A plan is deterministic and independent of the order in which Slurm lists jobs and nodes.

    A new instance of the policy with the same memory gives the same plan. The laws also hold with
    the memory of another snapshot.
    """
    policy = CONTENDERS[name]()
    snapshot = data.draw(snapshots_for(policy))
    round_ = replace(ROUND, may_move=may_move)
    plan = policy.plan(snapshot, round_)
    if plan.memory is not None:
        other = data.draw(snapshots_for(policy))
        memories = (None, plan.memory, policy.plan(other, ROUND).memory)
        round_ = replace(round_, index=1, memory=data.draw(st.sampled_from(memories)))
        plan = policy.plan(snapshot, round_)
        check_laws(policy, snapshot, round_, plan)
    assert policy.plan(snapshot, round_) == plan
    assert CONTENDERS[name]().plan(shuffled(snapshot, data), round_) == plan


def snapshots_for(policy: Policy) -> st.SearchStrategy[Snapshot]:
    """Return snapshots with everything that a policy must support."""
    return snapshots(may_fork=policy.name not in RIGID_ONLY)


def shuffled(snapshot: Snapshot, data: st.DataObject) -> Snapshot:
    """Return the same snapshot, built from jobs, nodes and occupied GPUs in another order."""
    return Snapshot.of(
        now_s=snapshot.now_s,
        cluster=Cluster.of(data.draw(st.permutations(snapshot.cluster.nodes))),
        jobs=data.draw(st.permutations(snapshot.jobs)),
        occupied=dict(reversed(snapshot.occupied)),
        rules=snapshot.rules,
    )


@pytest.mark.parametrize("seen", [snapshots(may_fork=True), spread_gangs()], ids=["any", "spread"])
@pytest.mark.parametrize("name", sorted(BLIND_TO_LENGTHS))
@given(data=st.data(), may_move=st.booleans())
def test_who_is_not_told_lengths_does_not_see_them(
    name: str, seen: st.SearchStrategy[Snapshot], data: st.DataObject, *, may_move: bool
) -> None:
    """The plan does not depend on the remaining steps of the jobs, also with a memory."""
    policy = CONTENDERS[name]()
    snapshot = data.draw(seen)
    left = data.draw(st.lists(st.sampled_from((0, 1, 1000, 10**7)), min_size=6, max_size=6))
    jobs = (
        _with_steps(job, math.ceil(job.progress.steps_done) + more + 1, job.progress.steps_done)
        for job, more in zip(snapshot.jobs, left, strict=False)
    )
    _assert_planned_alike(policy, snapshot, replace(snapshot, jobs=tuple(jobs)), may_move)


@given(snapshot=spread_gangs(), may_move=st.booleans(), factor=st.sampled_from((2, 1024)))
def test_elas_sees_only_what_share_is_done(
    snapshot: Snapshot, *, may_move: bool, factor: int
) -> None:
    """The plan is the same if total and done steps of every job are multiplied by one factor."""
    jobs = (
        _with_steps(job, factor * job.spec.total_steps, factor * job.progress.steps_done)
        for job in snapshot.jobs
    )
    changed = replace(snapshot, jobs=tuple(jobs))
    _assert_planned_alike(CONTENDERS["e-las"](), snapshot, changed, may_move)


def _with_steps(job: Job, total: int, done: float) -> Job:
    spec = replace(job.spec, total_steps=total)
    return replace(job, spec=spec, progress=replace(job.progress, steps_done=done))


def _assert_planned_alike(
    policy: Policy, snapshot: Snapshot, other: Snapshot, may_move: bool
) -> None:
    """Fail unless two rounds are planned alike, the second with the memory of the first."""
    rounds = [replace(ROUND, may_move=may_move)] * 2
    for number in range(2):
        plan, again = (
            policy.plan(seen, round_)
            for seen, round_ in zip((snapshot, other), rounds, strict=True)
        )
        assert (again.allocations, again.waiting) == (plan.allocations, plan.waiting)
        rounds = [
            replace(round_, index=number + 1, memory=left.memory)
            for round_, left in zip(rounds, (plan, again), strict=True)
        ]


@pytest.mark.parametrize("name", SCALE_FREE)
@given(snapshot=snapshots(is_fresh=True, restart_costs=(0.0,)))
def test_twice_the_throughput_changes_nobodys_place(name: str, snapshot: Snapshot) -> None:
    """The unit of progress does not matter: a step may be a sample, a batch or an epoch."""

    def doubled(job: Job) -> Job:
        rows = {
            key: GangThroughput(
                2 * throughput.together,
                None if throughput.spread is None else 2 * throughput.spread,
            )
            for key, throughput in job.spec.throughputs.rows
        }
        return replace(job, spec=replace(job.spec, throughputs=Throughputs.of(rows)))

    faster = replace(snapshot, jobs=tuple(map(doubled, snapshot.jobs)))
    policy = CONTENDERS[name]()
    before, after = policy.plan(snapshot, ROUND), policy.plan(faster, ROUND)
    assert after.allocations == before.allocations
    assert after.waiting == before.waiting


@every_policy
@given(spec=specs("1", may_fork=True), cluster=clusters(may_close=False), rules=rules)
def test_one_job_alone_is_never_turned_away(
    name: str, spec: JobSpec, cluster: Cluster, rules: GangRules
) -> None:
    """On an empty cluster a job runs if any gang fits it."""
    if not rules.is_uniform:
        spec = replace(spec, shapes=uniform_shapes(spec.num_gpus))
    policy = CONTENDERS[name]()
    job = Job(spec)
    snapshot = Snapshot.of(now_s=spec.submitted_s, cluster=cluster, jobs=[job], rules=rules)
    gangs = gangs_that_fit(
        snapshot, job, cluster.capacity, only_uniform=policy.name in UNIFORM_ONLY
    )
    can_run = next(gangs, None) is not None
    event(f"can run: {can_run}")
    assert bool(policy.plan(snapshot, ROUND).by_id) == can_run
