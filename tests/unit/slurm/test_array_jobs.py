"""Tasks of a job array as the copies of one job: progress, throughputs, quotas, end of the job."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from builders import a_gang
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm
from fakes.fake_tools import FakeRunner
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.broken_plan import check_plan
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, Phase, Shape
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Outcome, Status, Stop
from hadar_slurm.engine.loop import Carried, run_round
from hadar_slurm.engine.reconcile import reconcile
from hadar_slurm.handoff import (
    Assignment,
    ProgressReport,
    assignment_path,
    read_assignment,
    report_path,
    user_reports,
    write_report,
)
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.policies.registry import POLICY_NAMES, make_policy
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.jobs.forked_jobs import ForkedJobs
from hadar_slurm.slurm.settings import BackendSettings
from hadar_slurm.state.assignments import Assignments

FAST, SLOW, OTHER = a_gang("n1:v100:2"), a_gang("n3:k80:2"), a_gang("n2:v100:2")
RATES = {"v100": 10.0, "k80": 2.0}
ROOT = Path(__file__).parents[3]


DESCRIBED = Description(
    steps=1000,
    gpus=2,
    throughputs=RATES,
    shape=Shape(1, 2),
    copies=3,
    checkpoint=True,
    is_held=True,
)


class Cluster:
    """A model of Slurm with one forked job of three copies, and hadard's backend on it.

    Its request names the GPU type `gpu_type`, or none.
    """

    def __init__(self, directory: Path, gpu_type: str = "") -> None:
        self.spool, self.assignments = directory / "spool", directory / "assignments"
        self.slurm = FakeSlurm("v100:4,v100:4,k80:4", spool=directory / "elsewhere")
        first = self.slurm.submit(
            Asked(per_node=((gpu_type, 2),), min_nodes=1, max_nodes=1),
            tasks=range(3),
            comment=encode(DESCRIBED),
            hold="user",
            work_s=10_000.0,
            steps=1000,
        )
        self.job = JobId(str(first.array))
        self.settings = BackendSettings(
            spool=self.spool, grace_s=5.0, assignments=self.assignments, slot_s=100.0
        )
        self.ledger = directory / FILE_NAME
        self.begin_anew()

    def begin_anew(self) -> None:
        """Start or restart hadard."""
        self.backend = SlurmBackend(
            CommandLine(FakeRunner(slurm=self.slurm)),
            ThroughputTable("none", {}),
            self.settings,
            Ledger(self.ledger),
            now_s=lambda: self.slurm.now_s,
            sleep=self.slurm.advance,
        )

    def task(self, number: int) -> JobId:
        return JobId(f"{self.job}_{number}")

    def place(self, copies: Mapping[int, Gang]) -> list[Outcome]:
        """Apply a plan with these copies, and return the outcome of each action."""
        snapshot = self.backend.observe()
        plan = Plan.of({self.job: Allocation.of(copies)}, {})
        check_plan(snapshot, plan)
        outcomes = list(self.backend.apply(reconcile(snapshot, plan)))
        self.slurm.advance(3.0)
        return outcomes

    def start(self) -> None:
        """Start one copy on a V100 node and one on a K80 node."""
        assert {outcome.status for outcome in self.place({0: FAST, 1: SLOW})} == {Status.DONE}

    def report(self, number: int, **told: object) -> None:
        """Write a report of a copy."""
        [job] = self.slurm.find(self.task(number))
        usual = {"restart": job.restarts, "state": "running", "steps_done": 0}
        given = {**usual, "time_s": self.slurm.now_s, **told}
        own = user_reports(self.spool, os.geteuid())
        write_report(own, str(job.number), ProgressReport(**given))  # type: ignore[arg-type]

    @property
    def seen(self) -> Job:
        """Return the job as policies see it."""
        (job,) = self.backend.observe().jobs
        return job

    @property
    def forked(self) -> ForkedJobs:
        """Return what hadard knows of the forked jobs."""
        assert self.backend.observer.forked is not None
        return self.backend.observer.forked

    def averages(self) -> int:
        """Observe one second later, and return the number of averages since the last call."""
        self.slurm.advance(1.0)
        self.backend.observe()
        return self.forked.averages.take()

    def quotas(self) -> Mapping[int, int]:
        """Return the steps assigned to each copy."""
        told = read_assignment(assignment_path(self.assignments, self.job))
        assert told is not None
        assert told.slot_s == self.settings.slot_s
        return told.quotas


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Return a cluster of three nodes."""
    return Cluster(tmp_path)


def test_a_job_is_in_the_partition_that_slurm_tells(tmp_path: Path) -> None:
    """A forked job has the partitions of its running copies, or else of all copies."""
    cluster = Cluster(tmp_path)
    cluster.slurm.nodes["n3"].partitions += ("long",)
    for task in cluster.slurm.find(cluster.job):
        task.partition = "main,long"
    assert cluster.backend.observe().by_id[cluster.job].partition == "main,long"
    cluster.start()
    for number in (0, 1):
        [task] = cluster.slurm.find(cluster.task(number))
        task.partition = "main"
    assert cluster.backend.observe().by_id[cluster.job].partition == "main"
    task.partition = "long"
    assert cluster.backend.observe().by_id[cluster.job].partition == "main,long"


def test_copies_share_a_slot_by_what_was_said_of_their_speed(cluster: Cluster) -> None:
    """A quota is the described throughput times the slot length; averaging is not deducted."""
    cluster.start()
    assert cluster.quotas() == {0: 1000, 1: 200}


def test_what_copies_measure_takes_the_place_of_what_was_said(cluster: Cluster) -> None:
    """Measured throughputs replace described ones, and scale those of other GPU types."""
    cluster.start()
    cluster.report(0, steps_done=10, own_steps=10, steps_per_s=5.0, aggregation_s=11.0)
    seen = cluster.seen
    assert seen.spec.throughputs.on("v100", 2) == 5.0
    assert seen.spec.throughputs.on("k80", 2) == 1.0
    assert seen.spec.aggregation_cost_s == 11.0
    cluster.place({0: FAST, 1: SLOW})
    assert cluster.quotas() == {0: 500, 1: 100}


def test_noise_in_what_copies_measure_tells_no_jobs_apart(cluster: Cluster) -> None:
    """Measurements within 10 % of the description change no throughput, but all change quotas."""
    cluster.start()
    cluster.report(0, steps_per_s=10.4)
    cluster.report(1, steps_per_s=1.9)
    assert dict(cluster.seen.spec.throughputs.rows) == {
        ("v100", 2): (10.0, None),
        ("k80", 2): (2.0, None),
    }
    cluster.place({0: FAST, 1: SLOW})
    assert cluster.quotas() == {0: 1040, 1: 190}
    cluster.report(1, steps_per_s=1.0)
    assert cluster.seen.spec.throughputs.on("k80", 2) == 1.0


def test_progress_is_what_is_made_one_and_what_each_has_trained_since(cluster: Cluster) -> None:
    """Progress is the averaged steps plus the copies' own ones, if based on the newest average."""
    cluster.start()
    cluster.report(0, steps_done=110, own_steps=10)
    cluster.report(1, steps_done=104, own_steps=4)
    assert cluster.seen.progress.steps_done == 114
    cluster.report(0, steps_done=150, own_steps=30)
    assert cluster.seen.progress.steps_done == 150


def test_averages_are_counted_from_look_to_look(cluster: Cluster) -> None:
    """An average counts once, by the highest number reported, even if a report disappears."""
    cluster.start()
    assert cluster.averages() == 0
    cluster.report(0, averages=2)
    cluster.report(1, averages=1)
    assert cluster.averages() == 2
    cluster.report(1, averages=2)
    assert cluster.averages() == 0
    cluster.report(1, averages=4)
    cluster.report(0, averages=3)
    assert cluster.averages() == 2
    own = user_reports(cluster.spool, os.geteuid())
    report_path(own, str(cluster.slurm.find(cluster.task(1))[0].number)).unlink()
    assert cluster.averages() == 0
    cluster.report(1, averages=5)
    assert cluster.averages() == 1


def test_averages_are_counted_to_the_end_of_a_job(cluster: Cluster) -> None:
    """Averages that are first reported after all copies have ended are counted."""
    cluster.start()
    assert cluster.averages() == 0
    cluster.report(0, averages=3, state="done", steps_done=1000)
    for number in range(3):
        [task] = cluster.slurm.find(cluster.task(number))
        cluster.slurm.end(task, "COMPLETED")
    assert cluster.averages() == 3


def test_averages_of_before_hadard_began_are_not_counted(cluster: Cluster) -> None:
    """Averages from before hadard's start may have been counted already, and are not counted."""
    cluster.start()
    cluster.report(0, averages=7)
    cluster.begin_anew()
    assert cluster.averages() == 0
    cluster.report(0, averages=8)
    assert cluster.averages() == 1


def test_nobody_makes_the_count_absurd(cluster: Cluster) -> None:
    """Reports are not trusted: the number of averages is capped per second."""
    cluster.start()
    cluster.averages()
    cluster.report(0, averages=10**18)
    assert 0 < cluster.averages() <= 100
    cluster.report(1, averages=10**18)
    assert cluster.averages() == 0


def test_a_copy_that_moves_is_one_task_stopped_and_started(cluster: Cluster) -> None:
    """Only the copy that moves is requeued; the quotas follow the new placement."""
    cluster.start()
    cluster.report(0, steps_done=1)
    cluster.report(1, steps_done=1)
    cluster.slurm.advance(10.0)
    before = [job.restarts for job in cluster.slurm.find(cluster.job)]
    outcomes = cluster.place({0: FAST, 1: OTHER})
    assert {outcome.status for outcome in outcomes} == {Status.DONE}
    after = [job.restarts for job in cluster.slurm.find(cluster.job)]
    assert [b - a for a, b in zip(before, after, strict=True)] == [0, 1, 0]
    assert cluster.seen.allocation == Allocation.of({0: FAST, 1: OTHER})
    assert cluster.quotas() == {0: 1000, 1: 1000}


def test_a_copy_that_only_starts_is_not_stopped(cluster: Cluster) -> None:
    """A starting copy is not stopped, since USR1 would kill it."""
    cluster.start()
    cluster.report(0, steps_done=1)
    outcomes = cluster.place({0: FAST})
    (stop,) = [outcome for outcome in outcomes if isinstance(outcome.action, Stop)]
    assert (stop.status, stop.action.copy) == (Status.DEFERRED, 1)


def wait_beside(cluster: Cluster, **given: object) -> FakeJob:
    """Submit a plain job of all GPUs of n3 while copies run on n1 and n3."""
    cluster.start()
    for number in (0, 1):
        cluster.report(number, steps_done=1)
    job = cluster.slurm.submit(Asked(per_node=(("k80", 4),)), **given)
    cluster.slurm.advance(10.0)
    assert job.state == "PENDING"
    return job


def test_a_further_copy_leaves_for_a_plain_job(cluster: Cluster) -> None:
    """It is stopped though no job of hadard comes in its place, and does not return."""
    job = wait_beside(cluster)
    # Of the nodes with V100s, one has no GPUs left for a copy.
    cluster.slurm.submit(Asked(per_node=(("v100", 4),), nodes=("n2",)))
    carried = Carried()
    for index in range(3):
        round_ = Round(index, cluster.slurm.now_s, 360.0)
        run_round(
            cluster.backend,
            make_policy("hadare"),
            round_,
            wake="",
            clock=lambda: 0.0,
            carried=carried,
        )
        cluster.slurm.advance(20.0)
    assert job.state == "RUNNING"
    assert [task.state for task in cluster.slurm.find(cluster.job)] == [
        "RUNNING",
        "PENDING",
        "PENDING",
    ]


def test_copies_leave_for_what_a_plain_job_asks_for(cluster: Cluster) -> None:
    """Policies see its nodes and GPUs, by priority before other plain jobs."""
    job = wait_beside(cluster, excluded=("n1",))
    wide = cluster.slurm.submit(Asked(per_job=(("", 8),), min_nodes=2, max_nodes=2))
    cluster.slurm.advance(1.0)
    seen = cluster.backend.observe().plain_jobs
    nodes = {each.job_id: each.nodes for each in seen}
    assert nodes == {job.key: {"n2", "n3"}, str(wide.number): {"n1", "n2", "n3"}}
    asked = [(each.num_nodes, each.gpus) for each in seen]
    assert asked == [(1, (("k80", 4),)), (2, ((None, 4),))]


@pytest.mark.parametrize(
    "given",
    [
        {"hold": "user"},
        {"dependency": 1},
        {"begins_s": 9e9},
        {"reservation": "theirs"},
        {"qos": "full"},
        {"het_id": 77},
    ],
    ids=str,
)
def test_no_copy_leaves_for_a_job_that_waits_for_something_else(
    cluster: Cluster, given: dict[str, object]
) -> None:
    """It is held, has a dependency, begin time, reservation or limit, or is one of a group."""
    cluster.slurm.gpus_per_user = 3 if "qos" in given else 0
    wait_beside(cluster, **given)
    assert not any(each.nodes for each in cluster.backend.observe().plain_jobs)


def test_a_copy_that_has_failed_is_none_any_more(cluster: Cluster) -> None:
    """The job continues with its other copies, and its maximum number of copies decreases."""
    cluster.start()
    [job] = cluster.slurm.find(cluster.task(0))
    cluster.slurm.end(job, "FAILED")
    cluster.slurm.advance(10.0)
    seen = cluster.seen
    assert seen.spec.max_copies == 2
    assert seen.allocation == Allocation.of({0: SLOW})
    cluster.place({0: SLOW, 1: FAST})
    assert cluster.quotas() == {1: 200, 2: 1000}


def test_when_the_training_is_over_the_other_copies_are_let_go(cluster: Cluster) -> None:
    """Pending copies are released with their original requests; the job is planned no more."""
    cluster.start()
    cluster.report(0, state="done", steps_done=1000)
    snapshot = cluster.backend.observe()
    assert snapshot.jobs == ()
    held = {slot.node for slot, _ in snapshot.occupied}
    assert held == {"n1", "n3"}
    cluster.backend.apply(())
    cluster.slurm.advance(3.0)
    [third] = cluster.slurm.find(cluster.task(2))
    assert third.state == "RUNNING"
    for number in range(3):
        [job] = cluster.slurm.find(cluster.task(number))
        cluster.slurm.end(job, "COMPLETED")
    cluster.slurm.advance(10.0)
    (ended,) = cluster.backend.observe().ended
    assert (ended.job_id, ended.phase) == (cluster.job, Phase.DONE)
    cluster.backend.apply(())
    assert list(cluster.backend.ledger) == []


def test_a_copy_that_ends_early_leaves_the_job_to_the_others(cluster: Cluster) -> None:
    """Exit status 0 does not end the training: the other copies are still placed and moved."""
    cluster.start()
    cluster.report(0, steps_done=300, own_steps=20)
    cluster.report(1, steps_done=290, own_steps=10)
    [first] = cluster.slurm.find(cluster.task(0))
    cluster.slurm.end(first, "COMPLETED")
    cluster.slurm.advance(10.0)
    seen = cluster.seen
    assert seen.phase is Phase.RUNNING
    assert seen.allocation == Allocation.of({0: SLOW})
    assert seen.spec.max_copies == 2
    # Copy 1 moves, copy 2 starts, and the completed copy 0 is not restarted.
    outcomes = cluster.place({0: OTHER, 1: FAST})
    assert {outcome.status for outcome in outcomes} == {Status.DONE}
    states = [cluster.slurm.find(cluster.task(number))[0].state for number in range(3)]
    assert states == ["COMPLETED", "RUNNING", "RUNNING"]
    assert set(cluster.quotas()) == {1, 2}


def test_a_job_whose_copies_have_all_ended_early_has_ended(cluster: Cluster) -> None:
    """The job has ended although no copy has reported that the training is done."""
    cluster.start()
    for number in range(3):
        [job] = cluster.slurm.find(cluster.task(number))
        cluster.slurm.end(job, "COMPLETED")
    cluster.slurm.advance(10.0)
    snapshot = cluster.backend.observe()
    assert snapshot.jobs == ()
    (ended,) = snapshot.ended
    assert (ended.job_id, ended.phase) == (cluster.job, Phase.DONE)


def test_a_training_stays_over_when_slurm_forgets_who_said_so(cluster: Cluster) -> None:
    """The training stays done after Slurm has forgotten the job that reported it."""
    cluster.start()
    [third] = cluster.slurm.find(cluster.task(2))
    cluster.report(0, state="done", steps_done=1000)
    for number in (0, 1):
        [job] = cluster.slurm.find(cluster.task(number))
        cluster.slurm.end(job, "COMPLETED")
    cluster.slurm.advance(10.0)
    cluster.backend.observe()
    cluster.slurm.forget_ended()
    assert [job.task for job in cluster.slurm.jobs] == [2]
    for _ in range(2):
        assert cluster.backend.observe().jobs == ()
        cluster.backend.apply(())
        cluster.slurm.advance(3.0)
    assert third.state == "RUNNING"
    # It exits because of the file `done`, without a report.
    cluster.slurm.end(third, "COMPLETED")
    cluster.slurm.advance(10.0)
    (ended,) = cluster.backend.observe().ended
    assert (ended.job_id, ended.phase) == (cluster.job, Phase.DONE)


def test_a_copy_that_was_requeued_after_it_was_done_has_said_so(cluster: Cluster) -> None:
    """A copy's report of an earlier run that the training is done still counts after a requeue."""
    cluster.start()
    [first] = cluster.slurm.find(cluster.task(0))
    cluster.report(0, state="done", steps_done=1000)
    cluster.slurm.requeue(first, hold=True)
    cluster.slurm.advance(10.0)
    assert first.restarts == 1
    assert cluster.backend.observe().jobs == ()


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_every_policy_can_take_over_a_job_in_copies(cluster: Cluster, name: str) -> None:
    """Also policies that fork no jobs plan a job with two running copies."""
    cluster.start()
    for number in (0, 1):
        cluster.report(number, steps_done=1)
    snapshot: Snapshot = cluster.backend.observe()
    assert len(snapshot.jobs[0].allocation.copies) == 2
    plan = make_policy(name).plan(snapshot, Round(0, snapshot.now_s, 60.0))
    check_plan(snapshot, plan)


def test_what_copies_are_told_is_kept_while_the_job_is_there(tmp_path: Path) -> None:
    """An assignment is readable for its owner only, and removed with its job."""
    told = Assignments(tmp_path / "assignments")
    path = assignment_path(told.directory, "7")
    told.put(JobId("7"), 4321, Assignment(1, {0: 3}, 60.0))
    first = path.stat()
    assert (first.st_uid, stat.S_IMODE(first.st_mode)) == (4321, 0o400) or os.geteuid() != 0
    told.put(JobId("7"), 4321, Assignment(2, {0: 3}, 60.0))
    assert path.stat().st_ino == first.st_ino
    told.put(JobId("7"), 4321, Assignment(3, {0: 2, 1: 1}, 60.0))
    found = read_assignment(path)
    assert found is not None
    assert (found.number, found.quotas) == (3, {0: 2, 1: 1})
    told.keep([JobId("7")])
    assert path.exists()
    told.keep([])
    assert list(told.directory.iterdir()) == []


@given(
    speeds=st.lists(st.floats(0.1, 100.0), min_size=1, max_size=3),
    slot_s=st.floats(0.5, 1000.0),
)
def test_quotas_are_the_slots_budget_in_proportion(
    tmp_path_factory: pytest.TempPathFactory, speeds: list[float], slot_s: float
) -> None:
    """Each copy's quota is within one step of its share of the slot, at any throughputs."""
    cluster = Cluster(tmp_path_factory.mktemp("forked"))
    places = [FAST, SLOW, OTHER][: len(speeds)]
    gangs = dict(enumerate(places))
    cluster.place(gangs)
    for number, speed in enumerate(speeds):
        cluster.report(number, steps_per_s=speed)
    cluster.backend.observe()
    observation = cluster.backend._observation
    assert observation is not None
    quotas = observation.forks.by_parent[cluster.job].quotas(gangs, slot_s)
    budget = max(len(speeds), int(sum(speeds) * slot_s))
    assert sum(quotas.values()) == budget
    for number, speed in enumerate(speeds):
        assert abs(quotas[number] - budget * speed / sum(speeds)) <= 1.0


# Faults that users, or Slurm on its own, may cause.


@pytest.mark.parametrize("speed", [5e-324, 1e-320, 1e18])
@pytest.mark.parametrize("name", ["hadar", "hadare", "gavel-max-min"])
def test_a_speed_that_nobody_trains_at_is_not_believed(
    cluster: Cluster, name: str, speed: float
) -> None:
    """Implausible reported values are ignored: they would break a solver for all users."""
    cluster.start()
    cluster.report(0, steps_per_s=speed, aggregation_s=1e18)
    snapshot = cluster.backend.observe()
    (seen,) = snapshot.jobs
    assert seen.spec.throughputs.on("v100", 2) == 10.0
    assert seen.spec.aggregation_cost_s <= 1e9
    check_plan(snapshot, make_policy(name).plan(snapshot, Round(0, snapshot.now_s, 60.0)))


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_copies_that_slurm_has_put_on_one_node_break_no_plan(cluster: Cluster, name: str) -> None:
    """Of two copies on one node, as Slurm may start without hadard, only one is planned with."""
    cluster.backend.observe()
    for job in list(cluster.slurm.jobs):
        cluster.slurm.release(job)
    cluster.slurm.advance(10.0)
    nodes = [node for job in cluster.slurm.jobs for node in job.held]
    assert len(set(nodes)) < len(nodes) == 3
    for number in range(3):
        cluster.report(number, steps_done=1)
    for _ in range(2):
        snapshot = cluster.backend.observe()
        (seen,) = snapshot.jobs
        assert len(seen.allocation.copies) == len(set(nodes)) == seen.spec.max_copies
        check_plan(snapshot, make_policy(name).plan(snapshot, Round(0, snapshot.now_s, 60.0)))
        cluster.slurm.advance(100.0)


def test_a_copy_that_its_owner_takes_away_brings_no_others(cluster: Cluster) -> None:
    """If the owner withdraws a copy, the others stay held until it reports the end of training."""
    cluster.place({0: FAST})
    [job] = cluster.slurm.find(cluster.task(0))
    job.comment = encode(replace(DESCRIBED, leaves=True))
    assert cluster.backend.observe().jobs == ()
    cluster.report(0, state="done", steps_done=1000, time_s=cluster.slurm.now_s)
    cluster.backend.observe()
    cluster.backend.apply(())
    cluster.slurm.advance(3.0)
    assert {job.state for job in cluster.slurm.jobs} == {"RUNNING"}


def test_copies_bound_to_a_type_are_placed_there(tmp_path: Path) -> None:
    """A request with a GPU type can be placed on nodes of that type where Slurm keeps types."""
    cluster = Cluster(tmp_path, gpu_type="k80")
    (seen,) = cluster.backend.observe().jobs
    bound = cluster.backend.slurm.abilities.keeps_types
    assert bound
    assert (seen.bound_type, seen.spec.max_copies) == ("k80", 3)
    assert {outcome.status for outcome in cluster.place({0: SLOW})} == {Status.DONE}


def test_a_report_of_another_run_ends_no_training(cluster: Cluster) -> None:
    """Reports of another run, or older than the job, do not end the training."""
    cluster.start()
    for told in ({"restart": 3}, {"time_s": cluster.slurm.now_s - 1000.0}):
        cluster.report(0, **{"state": "done", "time_s": cluster.slurm.now_s, **told})
        assert cluster.backend.observe().jobs != ()


def test_a_copy_that_could_not_be_stopped_keeps_its_part(cluster: Cluster) -> None:
    """A copy that could not be stopped keeps its quota, as it would idle without one."""
    cluster.start()
    cluster.report(0, steps_done=1)
    cluster.place({0: FAST})
    assert cluster.quotas() == {0: 1000, 1: 200}


def test_how_a_copy_has_ended_is_not_forgotten(cluster: Cluster) -> None:
    """A failed copy still makes the job fail after Slurm has forgotten that copy."""
    cluster.start()
    [first], [second] = (cluster.slurm.find(cluster.task(number)) for number in (0, 1))
    cluster.slurm.end(first, "FAILED")
    cluster.slurm.advance(10.0)
    cluster.backend.observe()
    cluster.slurm.forget_ended()
    assert cluster.backend.observe().ended == ()
    cluster.slurm.end(second, "COMPLETED")
    cluster.slurm.cancel(cluster.slurm.find(cluster.task(2))[0])
    cluster.slurm.advance(10.0)
    (ended,) = cluster.backend.observe().ended
    assert ended.phase is Phase.FAILED


def test_nobody_else_has_a_file_written_or_a_directory_taken(tmp_path: Path) -> None:
    """Symbolic links of other users in the assignment directory are not followed."""
    outside = tmp_path / "outside"
    outside.write_text("mine")
    told = Assignments(tmp_path / "assignments")
    told.put(JobId("6"), 0, Assignment(1, {0: 3}, 60.0))
    (told.directory / "7").symlink_to(tmp_path)
    told.put(JobId("7"), 0, Assignment(1, {0: 3}, 60.0))
    assert not (tmp_path / "assignment.json").exists()
    draft = told.directory / "6" / f".assignment.json.{os.getpid()}"
    draft.symlink_to(outside)
    told.put(JobId("6"), 0, Assignment(2, {0: 4}, 60.0))
    assert outside.read_text() == "mine"
    found = read_assignment(assignment_path(told.directory, "6"))
    assert found is not None
    assert found.number == 2


@pytest.mark.parametrize("name", ["7", "assignments"])
def test_what_lies_behind_a_planted_link_is_not_removed(name: str, tmp_path: Path) -> None:
    """A link in place of a job's directory, or of hadard's own, causes no deletion of files."""
    state = tmp_path / "state"
    state.mkdir()
    for file in ("ledger.json", "assignment.json"):
        (state / file).write_text("kept")
    told = Assignments(tmp_path / "assignments")
    if name == "7":
        told.put(JobId("6"), os.geteuid(), Assignment(1, {0: 3}, 60.0))
        (told.directory / "7").symlink_to(state)
    else:
        (tmp_path / "7").symlink_to(state)
        told.directory.symlink_to(tmp_path)
    told.keep([])
    assert {path.name for path in state.iterdir()} == {"ledger.json", "assignment.json"}
    told.put(JobId("7"), os.geteuid(), Assignment(1, {0: 3}, 60.0))
    assert (state / "assignment.json").read_text() == "kept"
    assert str(told.directory) in told.fault


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
def test_a_directory_that_another_user_made_first_is_not_used(tmp_path: Path) -> None:
    """Assignments are not written into a directory of another user; the fault names its owner."""
    told = Assignments(tmp_path / "assignments")
    told.directory.mkdir()
    os.chown(told.directory, 65534, -1)
    told.put(JobId("7"), 4321, Assignment(1, {0: 3}, 60.0))
    assert list(told.directory.iterdir()) == []
    assert "belongs to uid 65534, not to uid 0" in told.fault
    os.chown(told.directory, 0, -1)
    told.put(JobId("7"), 4321, Assignment(1, {0: 3}, 60.0))
    assert told.fault == ""


def test_a_narrow_umask_keeps_no_owner_out(tmp_path: Path) -> None:
    """The directories are accessible for owners of jobs even with a restrictive umask."""
    before = os.umask(0o077)
    try:
        told = Assignments(tmp_path / "assignments")
        told.put(JobId("7"), 4321, Assignment(1, {0: 3}, 60.0))
    finally:
        os.umask(before)
    path = assignment_path(told.directory, "7")
    modes = [stat.S_IMODE(place.stat().st_mode) for place in (told.directory, path.parent)]
    assert modes == [0o711, 0o711]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users")
def test_a_hadard_without_privileges_lets_the_owner_read_and_nobody_else() -> None:
    """Without root, hadard gives only the owner read access, by an access control list."""
    hadard, owner, other = 65534, 4321, 4322
    write = "Assignments(place).put('7', {owner}, Assignment(1, {{0: 5}}, 9.0))"
    read = "print(read_assignment(assignment_path(place, '7')).quotas)"
    with tempfile.TemporaryDirectory() as name:
        os.chown(name, hadard, -1)
        Path(name).chmod(0o755)

        def as_user(uid: int, what: str) -> subprocess.CompletedProcess[str]:
            code = (
                "from pathlib import Path\n"
                "from hadar_slurm.handoff import Assignment, assignment_path, read_assignment\n"
                "from hadar_slurm.state.assignments import Assignments\n"
                f"place = Path({name!r}) / 'assignments'\n{what}"
            )
            # Only root may be able to read the interpreter's files, so it changes the user itself.
            first = f"import os, sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            imports = "import hadar_slurm.handoff, hadar_slurm.state.assignments\n"
            become = f"os.setgroups([])\nos.setgid({uid})\nos.setuid({uid})\n"
            return subprocess.run(
                [sys.executable, "-c", first + imports + become + code],
                capture_output=True,
                text=True,
                check=False,
            )

        assert as_user(hadard, write.format(owner=owner)).stderr == ""
        assert as_user(owner, read).stdout == "{0: 5}\n"
        refused = as_user(other, read)
        assert refused.returncode != 0
        assert "Permission denied" in refused.stderr


def test_a_copy_let_go_is_not_held_again_for_waiting_on_its_pin(cluster: Cluster) -> None:
    """A copy stuck on a drained node when the training ends is restored, not held again."""
    cluster.start()
    for number in (0, 1):
        cluster.report(number, steps_done=1)
    cluster.slurm.advance(10.0)
    snapshot = cluster.backend.observe()
    plan = Plan.of({cluster.job: Allocation.of({0: FAST, 1: SLOW, 2: OTHER})}, {})
    cluster.backend.apply(reconcile(snapshot, plan))
    cluster.slurm.nodes["n2"].is_drained = True
    cluster.slurm.advance(3.0)
    [third] = cluster.slurm.find(cluster.task(2))
    assert (third.state, third.asked.nodes) == ("PENDING", ("n2",))
    cluster.report(0, state="done", steps_done=1000)
    cluster.backend.observe()
    cluster.backend.apply(())
    assert (third.hold, third.asked.nodes) == ("", ())


def test_the_journal_is_told_of_copies_and_their_averages(cluster: Cluster) -> None:
    """The journal gets each copy's task and speed, and the job's averages and their time."""
    assert cluster.backend.observer.forked is None
    cluster.start()
    cluster.averages()
    cluster.report(0, averages=2, steps_per_s=4.25)
    cluster.averages()
    seen_s = cluster.slurm.now_s
    cluster.averages()
    assert cluster.forked.facts() == {
        cluster.job: {
            "averages": 2,
            "averaged_s": seen_s,
            "copies": {
                "0": {"task": f"{cluster.job}_0", "steps_per_s": 4.25},
                "1": {"task": f"{cluster.job}_1"},
            },
        }
    }


def test_the_journal_is_told_that_copies_share_every_step(cluster: Cluster) -> None:
    """A job whose last averaging is an hour ago may train all the better."""
    cluster.start()
    cluster.report(0, averages=1, synchronous=True)
    cluster.averages()
    facts = cluster.forked.facts()[cluster.job]
    assert isinstance(facts, dict)
    assert facts["synchronous"] is True
    cluster.report(0, averages=2)
    cluster.averages()
    facts = cluster.forked.facts()[cluster.job]
    assert isinstance(facts, dict)
    assert "synchronous" not in facts


def test_averages_of_before_are_told_without_a_time(cluster: Cluster) -> None:
    """The time of an average before hadard's start is left out."""
    cluster.start()
    cluster.report(0, averages=7)
    cluster.begin_anew()
    cluster.averages()
    facts = cluster.forked.facts()[cluster.job]
    assert isinstance(facts, dict)
    assert facts["averages"] == 7
    assert "averaged_s" not in facts
