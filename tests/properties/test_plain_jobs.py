"""Further copies of forked jobs leave their GPUs to plain jobs that can start on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from builders import (
    ROUND,
    a_cluster,
    a_gang,
    a_job,
    a_snapshot,
    a_spec,
    free_after,
    placed_by,
    some_rates,
)
from hypothesis import event, given, settings
from hypothesis import strategies as st
from strategies import held_allocations

from hadar_slurm.core.broken_plan import check_plan
from hadar_slurm.core.cluster import GpuType, JobId, NodeName, Slot
from hadar_slurm.core.gang import Allocation
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import PlainJob, Snapshot
from hadar_slurm.engine.loop import run_round
from hadar_slurm.engine.plain_jobs import PlainWaits, without_further_copies
from hadar_slurm.placement.copies import held_by
from hadar_slurm.policies.hadare.policy import Hadare

# Nodes of 2 V100s, 2 V100s and 2 K80s, where a V100 is four times as fast.
CLUSTER = a_cluster("2xV100,2xV100,2xK80")
RATES = some_rates(V100=4.0, K80=1.0)
THREE = {0: "n1:V100:2", 1: "n2:V100:2", 2: "n3:K80:2"}


def a_fork(copies: Mapping[int, str], job_id: str = "1", *, phase: Phase = Phase.RUNNING) -> Job:
    """Return a job with these copies of two GPUs."""
    spec = a_spec(job_id, 2, throughputs=RATES, max_copies=3)
    held = Allocation.of({number: a_gang(gang) for number, gang in copies.items()})
    return Job(spec, phase, allocation=held)


def plain(
    job_id: str,
    count: int = 2,
    *,
    on: str = "n1 n2 n3",
    gpu_type: str | None = None,
    num_nodes: int = 1,
    user: str = "eve",
) -> PlainJob:
    """Return a plain job of `count` GPUs on each of some of these nodes."""
    gpus = ((None if gpu_type is None else GpuType(gpu_type), count),)
    return PlainJob(JobId(job_id), user, frozenset(map(NodeName, on.split())), num_nodes, gpus)


def left_of(
    copies: Mapping[int, str],
    *waiting: PlainJob,
    held: Mapping[int, str] | None = None,
    occupied: str = "",
    may_stop: bool = True,
) -> str:
    """Return what a plan of one job in `copies`, of which it holds `held`, leaves of them."""
    snapshot = a_snapshot(CLUSTER, a_fork(copies if held is None else held), occupied=occupied)
    snapshot = replace(snapshot, plain_jobs=waiting)
    allocation = Allocation.of({number: a_gang(gang) for number, gang in copies.items()})
    plan = without_further_copies(
        snapshot, Plan.of({JobId("1"): allocation}, {}), may_stop=may_stop
    )
    check_plan(snapshot, plan)
    return placed_by(plan)["1"]


def test_the_slowest_further_copies_leave() -> None:
    """For one job the slowest, for three all but one; the job keeps that."""
    assert left_of(THREE, plain("8")) == "n1:V100:2 + n2:V100:2"
    assert left_of(THREE, plain("8"), plain("9")) == "n2:V100:2"
    assert left_of(THREE, plain("7"), plain("8"), plain("9")) == "n2:V100:2"


@pytest.mark.parametrize(
    "waiting",
    [
        plain("8", 4),
        plain("8", on="n4"),
        plain("8", on=""),
        plain("8", gpu_type="P100"),
        plain("8", gpu_type="K80", num_nodes=2),
        plain("8", num_nodes=3),
    ],
)
def test_no_copy_leaves_for_a_job_that_could_not_start_even_so(waiting: PlainJob) -> None:
    """It wants larger nodes, others, another type, or more than all further copies have."""
    assert left_of(THREE, waiting) == "n1:V100:2 + n2:V100:2 + n3:K80:2"


def test_no_copy_leaves_where_gpus_are_free() -> None:
    """The plain job starts there; a second one needs a copy's."""
    two = {0: "n1:V100:2", 1: "n2:V100:2"}
    assert left_of(two, plain("8")) == "n1:V100:2 + n2:V100:2"
    assert left_of(two, plain("8"), plain("9")) == "n2:V100:2"
    assert left_of(two, plain("8"), occupied="n3:K80:1") == "n2:V100:2"


def test_a_job_gets_gpus_of_its_type_and_of_several_nodes() -> None:
    """Copies leave where it may run."""
    assert left_of(THREE, plain("8", gpu_type="V100")) == "n2:V100:2 + n3:K80:2"
    assert left_of(THREE, plain("8", on="n2")) == "n1:V100:2 + n3:K80:2"
    assert left_of(THREE, plain("8", num_nodes=2)) == "n2:V100:2"


def test_copies_that_would_only_start_leave_first() -> None:
    """Within a round no running copy leaves, and none starts on what plain jobs wait for."""
    held = {1: "n2:V100:2", 2: "n3:K80:2"}
    assert left_of(THREE, plain("8"), held=held) == "n2:V100:2 + n3:K80:2"
    both = plain("8"), plain("9")
    assert left_of(THREE, *both, held=held, may_stop=False) == "n2:V100:2 + n3:K80:2"
    assert left_of(THREE, *both, held=held) == "n2:V100:2"


def test_the_only_copy_that_runs_stays() -> None:
    """One that is to start with it may take its place in a later round."""
    two = {0: "n1:V100:2", 1: "n2:V100:2"}
    held, occupied = {1: "n2:V100:2"}, "n3:K80:2"
    assert left_of(two, plain("8"), held=held, occupied=occupied) == "n2:V100:2"
    both = "n1:V100:2 + n2:V100:2"
    assert left_of(two, plain("8", on="n2"), held=held, occupied=occupied) == both
    assert left_of(two, plain("8", on="n2"), occupied=occupied) == "n1:V100:2"


def test_jobs_that_only_start_keep_their_copies() -> None:
    """A job that is about to start cannot be moved."""
    job = a_fork(THREE, phase=Phase.STARTING)
    snapshot = replace(a_snapshot(CLUSTER, job), plain_jobs=(plain("8"),))
    plan = Plan.of({job.job_id: job.allocation}, {})
    assert without_further_copies(snapshot, plan, may_stop=True) is plan


def test_the_round_goes_by_the_rule_under_any_policy() -> None:
    """The loop applies it to the policy's plan, and counts the copies that leave."""

    class Keeps:
        name = "keeps"

        def plan(self, snapshot: Snapshot, round_: object) -> Plan:
            return Plan.of({job.job_id: job.allocation for job in snapshot.jobs}, {})

    class Backend:
        def observe(self) -> Snapshot:
            return replace(a_snapshot(CLUSTER, a_fork(THREE)), plain_jobs=(plain("8"),))

        def apply(self, actions: object) -> list[object]:
            return []

    record = run_round(Backend(), Keeps(), ROUND, wake="", clock=lambda: 0.0)  # type: ignore[arg-type]
    assert record.plan is not None
    assert placed_by(record.plan) == {"1": "n1:V100:2 + n2:V100:2"}
    assert dict(record.plan.figures)["copies_left_out"] == 1.0


# For whom copies leave.


def heeded(waits: PlainWaits, now_s: float, *jobs: PlainJob, on: str) -> dict[str, str]:
    """Return the nodes where copies leave for each job while a managed job has the GPUs `on`."""
    snapshot = a_snapshot(CLUSTER, a_job("1", len(on.split()) * 2, on=on), now_s=now_s)
    found = waits.heeded(snapshot, jobs)
    return {str(job.job_id): " ".join(sorted(job.nodes)) for job in found}


FULL, ROOMY = "n1:V100:2 n2:V100:2 n3:K80:2", "n1:V100:2 n2:V100:2"


def test_a_job_that_does_not_start_on_free_gpus_is_kept_off_their_node_for_ten_times_as_long() -> (
    None
):
    """So are jobs like it; these GPUs are idle for at most a tenth of the time."""
    waits, jobs = PlainWaits(60.0), (plain("8"), plain("9"), plain("7", user="bob"))
    everywhere = dict.fromkeys(("8", "9", "7"), "n1 n2 n3")
    assert heeded(waits, 0.0, *jobs, on=FULL) == everywhere
    assert heeded(waits, 500.0, *jobs, on=ROOMY) == everywhere
    assert heeded(waits, 560.0, *jobs, on=ROOMY) == everywhere
    elsewhere = everywhere | {"8": "n1 n2", "9": "n1 n2"}
    assert heeded(waits, 600.0, *jobs, on=ROOMY) == elsewhere
    assert heeded(waits, 1590.0, *jobs, on=FULL) == elsewhere
    assert heeded(waits, 1600.0, *jobs, on=FULL) == everywhere


def test_copies_leave_elsewhere_for_a_job_that_lacks_something_on_a_node() -> None:
    """On its last node too it gets one try; then no copy leaves for it."""
    waits, job = PlainWaits(60.0), plain("8", on="n2 n3")
    for now_s in (0.0, 100.0):
        seen = heeded(waits, now_s, job, on=ROOMY)
    assert seen == {"8": "n2"}
    for now_s in (200.0, 300.0):
        seen = heeded(waits, now_s, job, on="n1:V100:2")
    assert seen == {}


def test_jobs_that_start_one_by_one_are_not_ignored() -> None:
    """Each has its own time."""
    waits = PlainWaits(60.0)
    for number in range(10):
        jobs = [plain(str(key)) for key in range(number, 10)]
        assert heeded(waits, number * 50.0, *jobs, on=ROOMY) == {
            str(job.job_id): "n1 n2 n3" for job in jobs
        }


def test_a_job_whose_gpus_are_taken_again_is_not_ignored() -> None:
    waits = PlainWaits(60.0)
    for now_s, on in ((0.0, ROOMY), (50.0, FULL), (70.0, ROOMY), (120.0, ROOMY)):
        assert heeded(waits, now_s, plain("8"), on=on) == {"8": "n1 n2 n3"}


# Properties.


@st.composite
def beside_copies(draw: st.DrawFn) -> Snapshot:
    """One to three forked jobs, some of which run in copies, and up to six plain jobs."""
    cluster = a_cluster(draw(st.sampled_from(("2xV100,2xV100,4xK80", "1xV100,4xK80+2xV100,3xK80"))))
    free, jobs = Counter(cluster.capacity), []
    for number in range(draw(st.integers(1, 3))):
        spec = a_spec(str(number + 1), draw(st.integers(1, 2)), throughputs=RATES, max_copies=3)
        held = draw(held_allocations(spec, free))
        free.subtract(dict(held.slots))
        jobs.append(Job(spec, Phase.RUNNING if held else Phase.QUEUED, allocation=held))
    names = [node.name for node in cluster.nodes]
    gpu_types = st.sampled_from((None, None, GpuType("V100"), GpuType("K80")))
    waiting = tuple(
        PlainJob(
            JobId(str(90 + number)),
            "eve",
            frozenset(draw(st.sets(st.sampled_from(names), min_size=1) | st.just(set(names)))),
            draw(st.sampled_from((1, 1, 2))),
            ((draw(gpu_types), draw(st.integers(1, 3))),),
        )
        for number in range(draw(st.integers(1, 6)))
    )
    return replace(a_snapshot(cluster, *jobs), plain_jobs=waiting)


@settings(max_examples=50)
@given(beside_copies(), st.booleans())
def test_a_plan_loses_further_copies_alone_and_only_where_a_job_then_fits(
    snapshot: Snapshot, may_stop: bool
) -> None:
    """The plan stays valid, and every job in it keeps a copy that runs; within a round all."""
    waiting = snapshot.plain_jobs
    before = Hadare().plan(snapshot, replace(ROUND, may_move=may_stop))
    after = without_further_copies(snapshot, before, may_stop=may_stop)
    check_plan(snapshot, after)
    assert after.waiting == before.waiting
    assert after.by_id.keys() == before.by_id.keys()
    gone = 0
    for job, held in before.by_id.items():
        kept, own = set(after.by_id[job].copies), set(held.copies)
        assert kept <= own
        gone += len(own - kept)
        held_gangs = set(held_by(snapshot.by_id[job]).gangs)
        run_on = {gang for _, gang in kept} & held_gangs
        assert run_on or held_gangs.isdisjoint(gang for _, gang in own)
        assert may_stop or held_gangs.isdisjoint(gang for _, gang in own - kept)
    event(f"{gone} copies leave")
    if gone:
        names = snapshot.cluster.open_names
        assert any(fits(job, free_after(snapshot, after), names) for job in waiting)
        assert len(waiting) > 1 or not fits(waiting[0], free_after(snapshot, before), names)


def fits(job: PlainJob, free: Mapping[Slot, int], names: frozenset[NodeName]) -> bool:
    """Return whether a job of one type of GPUs fits, by counting nodes."""
    ((gpu_type, count),) = job.gpus
    found = [
        sum(
            n for slot, n in free.items() if slot.node == node and gpu_type in (None, slot.gpu_type)
        )
        for node in job.nodes & names
    ]
    return sum(number >= count for number in found) >= job.num_nodes
