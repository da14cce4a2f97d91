"""What holds for the plan of every policy, on any snapshot. A further policy joins in POLICIES."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from builders import ROUND, free_after, gangs_that_fit
from hypothesis import event, given
from hypothesis import strategies as st
from strategies import clusters, rules, snapshots, specs

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.job import Job, JobSpec, Phase
from hadar_slurm.core.plan import WaitReason, check_plan
from hadar_slurm.core.snapshot import GangRules, Snapshot
from hadar_slurm.core.throughput import Rate, Rates
from hadar_slurm.policies.base import Policy
from hadar_slurm.policies.hadar_paper import HadarPaper
from hadar_slurm.policies.lp import SolverLimits
from hadar_slurm.policies.table import POLICY_NAMES, make_policy
from hadar_slurm.policies.utility import UTILITIES

# A solver that may not take any time gives nothing, and the greedy form decides.
NO_TIME = SolverLimits(time_limit_s=0.0)

POLICIES: dict[str, Callable[[], Policy]] = {
    **{f"hadar-paper {utility}": lambda u=utility: HadarPaper(utility=u) for utility in UTILITIES},
    "hadar-paper greedy": lambda: HadarPaper(limits=NO_TIME),
}
# Policies which say that only the ratio of throughputs matters to them.
SCALE_FREE = [name for name in POLICIES if name.startswith("hadar-paper")]

every_policy = pytest.mark.parametrize("name", POLICIES)


def test_every_policy_on_the_command_line_is_tested() -> None:
    """A policy that users can name is under the properties of this file."""
    tested = {make().name for make in POLICIES.values()}
    named = {make_policy(name, utility="jct", limits=SolverLimits()).name for name in POLICY_NAMES}
    assert tested == named == set(POLICY_NAMES)


@every_policy
@given(snapshot=snapshots())
def test_a_plan_breaks_no_rule(name: str, snapshot: Snapshot) -> None:
    """Never above capacity, gangs whole, closed nodes left alone, a reason for who waits."""
    plan = POLICIES[name]().plan(snapshot, ROUND)
    event(f"{len(plan.allocations)} placed")
    check_plan(snapshot, plan)


@every_policy
@given(snapshot=snapshots())
def test_the_same_snapshot_gives_the_same_plan(name: str, snapshot: Snapshot) -> None:
    """A policy remembers nothing and draws no lots."""
    policy = POLICIES[name]()
    first = policy.plan(snapshot, ROUND)
    assert policy.plan(snapshot, ROUND) == first
    assert POLICIES[name]().plan(snapshot, ROUND) == first


@every_policy
@given(snapshot=snapshots(), random=st.randoms(use_true_random=False))
def test_the_order_of_jobs_and_nodes_is_of_no_account(
    name: str, snapshot: Snapshot, random: st.RandomGenerator
) -> None:
    """What Slurm happens to list first gets no advantage."""
    jobs, nodes = list(snapshot.jobs), list(snapshot.cluster.nodes)
    random.shuffle(jobs)
    random.shuffle(nodes)
    shuffled = Snapshot.of(
        now_s=snapshot.now_s,
        cluster=Cluster.of(nodes),
        jobs=jobs,
        occupied=dict(reversed(snapshot.occupied)),
        rules=snapshot.rules,
    )
    policy = POLICIES[name]()
    assert policy.plan(shuffled, ROUND) == policy.plan(snapshot, ROUND)


@pytest.mark.parametrize("name", SCALE_FREE)
@given(snapshot=snapshots(is_fresh=True, restart_costs=(0.0,)))
def test_twice_the_throughput_changes_nobodys_place(name: str, snapshot: Snapshot) -> None:
    """The unit of progress is of no account: a step may be a sample, a batch or an epoch."""

    def doubled(job: Job) -> Job:
        rows = {
            key: Rate(2 * rate.together, None if rate.spread is None else 2 * rate.spread)
            for key, rate in job.spec.rates.rows
        }
        return replace(job, spec=replace(job.spec, rates=Rates.of(rows)))

    faster = replace(snapshot, jobs=tuple(map(doubled, snapshot.jobs)))
    policy = POLICIES[name]()
    before, after = policy.plan(snapshot, ROUND), policy.plan(faster, ROUND)
    assert after.allocations == before.allocations
    assert after.waiting == before.waiting


@every_policy
@given(snapshot=snapshots())
def test_within_a_round_nobody_is_moved(name: str, snapshot: Snapshot) -> None:
    """When a job comes or ends in the middle of a round, what is free is given out and no more."""
    plan = POLICIES[name]().plan(snapshot, replace(ROUND, may_move=False))
    check_plan(snapshot, plan)
    for job in snapshot.plannable:
        if job.phase is Phase.RUNNING:
            event("running")
            assert plan.by_id[job.job_id] == job.allocation


@every_policy
@given(snapshot=snapshots())
def test_a_job_that_cannot_be_checkpointed_keeps_its_gpus(name: str, snapshot: Snapshot) -> None:
    """What runs and cannot resume is never moved or stopped."""
    placed = POLICIES[name]().plan(snapshot, ROUND).by_id
    for job in snapshot.plannable:
        if job.is_pinned_in_place:
            event("pinned")
            assert placed[job.job_id] == job.allocation


@every_policy
@given(snapshot=snapshots())
def test_a_stopping_job_gets_nothing_and_its_gpus_go_to_nobody(
    name: str, snapshot: Snapshot
) -> None:
    """GPUs are free only when Slurm says so."""
    plan = POLICIES[name]().plan(snapshot, ROUND)
    stopping = {job.job_id for job in snapshot.jobs if job.phase is Phase.STOPPING}
    assert not stopping & set(plan.by_id)
    assert all(dict(plan.waiting)[job_id] is WaitReason.STOPPING for job_id in stopping)
    assert all(count >= 0 for count in free_after(snapshot, plan).values())


@every_policy
@given(snapshot=snapshots(), may_move=st.booleans())
def test_no_gpu_is_idle_while_a_job_could_use_it(
    name: str, snapshot: Snapshot, *, may_move: bool
) -> None:
    """Work conservation: nobody waits who fits what is left, be it where he runs already."""
    plan = POLICIES[name]().plan(snapshot, replace(ROUND, may_move=may_move))
    free = free_after(snapshot, plan)
    waiting = dict(plan.waiting)
    for job in snapshot.plannable:
        if job.job_id not in waiting:
            continue
        found = next(
            (g for g in gangs_that_fit(snapshot, job, free) if not _would_bind(snapshot, job, g)),
            None,
        )
        assert found is None, f"job {job.job_id} waits ({waiting[job.job_id]}), {found} is free"
        for gang in job.allocation.gangs:
            assert any(free[slot] < count for slot, count in gang.slots), (
                f"job {job.job_id} is to leave {gang}, which nobody gets"
            )


def _would_bind(snapshot: Snapshot, job: Job, gang: Gang) -> bool:
    """Return whether a start on `gang` ties a job that moves to one GPU type for good."""
    nodes = snapshot.cluster.by_name
    names_type = any(len(nodes[name].gpus) > 1 for name in gang.gpus_by_node)
    is_free = job.spec.can_checkpoint and job.bound_type is None
    return snapshot.rules.naming_binds and names_type and is_free


@every_policy
@given(snapshot=snapshots())
def test_every_job_has_a_place_or_a_reason(name: str, snapshot: Snapshot) -> None:
    """A user can be told why a job waits, and the reason is never one that is not so."""
    plan = POLICIES[name]().plan(snapshot, ROUND)
    waiting = dict(plan.waiting)
    assert set(plan.by_id) | set(waiting) == set(snapshot.by_id)
    assert not set(plan.by_id) & set(waiting)
    kinds = list(snapshot.cluster.gpus_by_type)
    empty = replace(
        snapshot,
        jobs=(),
        occupied=(),
        cluster=Cluster.of(replace(n, is_schedulable=True) for n in snapshot.cluster.nodes),
    )
    for job_id, why in waiting.items():
        job = snapshot.by_id[job_id]
        could = next(gangs_that_fit(empty, job, empty.cluster.capacity), None) is not None
        is_known = job.spec.rates.best(kinds, job.spec.num_gpus) > 0
        event(why.name)
        assert (why is WaitReason.NO_THROUGHPUT) == (
            not is_known and why is not WaitReason.STOPPING
        )
        if why is WaitReason.INFEASIBLE:
            assert not could, f"job {job_id} could run on an empty cluster"
        if why in (WaitReason.OUTBID, WaitReason.INSUFFICIENT):
            assert could, f"job {job_id} never could run and is told {why}"


@every_policy
@given(spec=specs("1"), cluster=clusters(may_close=False), rules=rules)
def test_one_job_alone_is_never_turned_away(
    name: str, spec: JobSpec, cluster: Cluster, rules: GangRules
) -> None:
    """On an empty cluster a job runs if there is any way to run it."""
    snapshot = Snapshot.of(now_s=spec.submitted_s, cluster=cluster, jobs=[Job(spec)], rules=rules)
    can_run = next(gangs_that_fit(snapshot, Job(spec), cluster.capacity), None) is not None
    event(f"can run: {can_run}")
    assert bool(POLICIES[name]().plan(snapshot, ROUND).by_id) == can_run
