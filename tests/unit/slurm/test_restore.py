"""A restored job starts as its owner submitted it, or stays held and is reported."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
from builders import a_gang, a_job, a_snapshot
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm, parse_gpus
from fakes.fake_tools import FakeRunner

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.engine.loan import Loan
from hadar_slurm.engine.modes import Mode
from hadar_slurm.engine.rate_limit import AT_ONCE
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.scontrol import request_for
from hadar_slurm.slurm.client.updates import (
    REQUEUE_DELAY_S,
    ClearRequest,
    Hold,
    Release,
    SetRequest,
    Update,
)
from hadar_slurm.slurm.corrections import Corrections
from hadar_slurm.slurm.enforce.claim import Claim, State
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.enforce.restore import Returned, restore_jobs
from hadar_slurm.slurm.jobs.observation import Observation

NODES = "v100:4,p100:4,v100:2+k80:2"
DESCRIBED = Description(steps=100, gpus=2, throughputs={"v100": 1.0, "p100": 1.0}, is_held=True)


class Bench:
    """A cluster with a ledger, and common actions of the tests."""

    def __init__(self, directory: Path, version: tuple[int, int, int] = (26, 5, 5)) -> None:
        self.fake = FakeSlurm(NODES, version=version)
        self.runner = FakeRunner(slurm=self.fake)
        self.slurm = CommandLine(self.runner)
        self.ledger = Ledger(directory / FILE_NAME, lambda: self.fake.now_s)
        self.ledger.adopt()

    def submit(self, asked: Asked, *, described: Description | None = DESCRIBED) -> FakeJob:
        """Submit a held job."""
        comment = encode(described) if described else "mine"
        return self.fake.submit(asked, hold="user", comment=comment)

    def pin(self, job: FakeJob, gang: str, *, released: bool = False, noted: bool = True) -> None:
        """Pin a job as hadard does, and record its original request."""
        key = JobId(job.key)
        reading = self.slurm.read()
        if noted:
            own = reading.request(reading.queue[key])
            nodes = tuple(a_gang(gang).gpus_by_node)
            state = State.RELEASED if released else State.HELD
            self.ledger.note({key: Claim(state=state, own=own, pinned=nodes)})
        request = request_for(a_gang(gang), self.slurm.version, names_type="k80" in gang)
        changes: list[Update] = [Hold(key), ClearRequest(key), SetRequest(key, request)]
        changes += [Release(key)] if released else []
        assert self.slurm.change(changes) == [None] * len(changes)

    def restore_jobs(self, *jobs: FakeJob) -> list[Returned]:
        """Restore jobs."""
        keys = [JobId(job.key) for job in jobs]
        return restore_jobs(self.slurm, self.ledger, self.slurm.queue(), keys)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Return a cluster that keeps no GPU types."""
    return Bench(tmp_path)


@pytest.mark.parametrize(
    "asked",
    [
        Asked(per_job=parse_gpus("gpu:2")),
        Asked(per_job=parse_gpus("gpu:p100:2")),
        Asked(per_node=parse_gpus("gpu:2"), max_nodes=1),
        Asked(per_node=parse_gpus("gpu:1"), min_nodes=2, max_nodes=2),
        Asked(per_job=parse_gpus("gpu:2"), min_nodes=1, max_nodes=2),
        Asked(per_task=parse_gpus("gpu:2")),
        Asked(per_socket=parse_gpus("gpu:2"), max_nodes=1),
    ],
    ids=str,
)
@pytest.mark.parametrize("released", [False, True], ids=["held", "pinned"])
def test_the_request_is_the_owners_again(bench: Bench, asked: Asked, released: bool) -> None:
    """All of the original request is restored, then the job is released once, and starts."""
    job = bench.submit(asked)
    bench.pin(job, "n1:v100:2", released=released)
    assert bench.restore_jobs(job) == [Returned(JobId(job.key))]
    for part in ("per_node", "per_job", "per_task", "per_socket"):
        assert (getattr(job.asked, part) or ()) == (getattr(asked, part) or ())
    assert (job.asked.nodes, job.asked.min_nodes) == ((), asked.min_nodes)
    # GPUs by node or task on more nodes would be more GPUs.
    is_open = asked.max_nodes is None and asked.per_job
    assert job.asked.max_nodes is None or not is_open or job.asked.max_nodes >= 3
    assert not bench.ledger[JobId(job.key)].holds
    bench.fake.advance(1.0)
    assert (job.state, job.num_gpus) == ("RUNNING", 2)


def test_a_job_that_was_only_held_is_only_released(bench: Bench) -> None:
    """No part of its request is changed."""
    job = bench.submit(Asked(per_job=parse_gpus("gpu:2")))
    said: list[str] = []

    def listen(argv: Sequence[str]) -> None:
        said.append(argv[1])

    bench.runner.before.append(listen)
    assert bench.restore_jobs(job) == [Returned(JobId(job.key))]
    assert [word for word in said if word in ("update", "uhold", "release")] == ["release"]
    assert not job.hold


def test_nodes_that_the_owner_named_are_kept(bench: Bench) -> None:
    """They are not a pin of hadard."""
    job = bench.submit(Asked(per_job=parse_gpus("gpu:2"), nodes=("n2",)))
    assert bench.restore_jobs(job) == [Returned(JobId(job.key))]
    assert job.asked.nodes == ("n2",)
    bench.fake.advance(1.0)
    assert job.held.keys() == {"n2"}


def test_nodes_that_the_owner_named_after_a_pin_of_ours_are_kept(bench: Bench) -> None:
    """The original request names no nodes; it is restored with the owner's."""
    job = bench.submit(Asked(per_job=parse_gpus("gpu:2")))
    bench.pin(job, "n1:v100:2")
    job.asked = replace(job.asked, nodes=("n2",))
    assert bench.restore_jobs(job) == [Returned(JobId(job.key))]
    assert (job.asked.nodes, job.asked.per_job) == (("n2",), (("", 2),))


@pytest.mark.parametrize("nodes", [("n2",), ()])
def test_a_pin_on_two_nodes_is_no_edit_of_the_gpus(bench: Bench, nodes: tuple[str, ...]) -> None:
    """Its owner has named another node since, or none: the job still asks for as many GPUs."""
    job = bench.submit(Asked(per_job=parse_gpus("gpu:2")))
    bench.pin(job, "n1:v100:1 n3:v100:1")
    job.asked = replace(job.asked, nodes=nodes)
    assert bench.restore_jobs(job) == [Returned(JobId(job.key))]
    assert (job.asked.nodes, job.asked.per_job) == (nodes, (("", 2),))


def test_gpus_that_its_owner_sets_on_a_pin_are_kept(bench: Bench) -> None:
    """Also where the owner names another node in the same moment."""
    job = bench.submit(Asked(per_job=parse_gpus("gpu:2")))
    bench.pin(job, "n1:v100:1 n3:v100:1")
    job.asked = replace(job.asked, nodes=("n1",), per_node=parse_gpus("gpu:4"))
    assert bench.restore_jobs(job) == [Returned(JobId(job.key))]
    assert (job.asked.nodes, job.asked.per_node, job.asked.per_job) == (("n1",), (("", 4),), ())


def test_nodes_that_the_owner_named_are_never_written(bench: Bench) -> None:
    """Nor cleared for a moment; hadard then limits the job no further."""
    job = bench.submit(Asked(per_job=parse_gpus("gpu:2")))
    bench.pin(job, "n1:v100:2")
    job.asked = replace(job.asked, nodes=("n2",))
    said: list[str] = []
    bench.runner.before.append(lambda argv: said.append(" ".join(argv)))
    key = JobId(job.key)
    limits = {key: (NodeName("n2"), NodeName("n3"))}
    answer = restore_jobs(bench.slurm, bench.ledger, bench.slurm.queue(), [key], limits)
    assert answer == [Returned(key)]
    assert not [words for words in said if "ReqNodeList" in words]
    assert (job.asked.nodes, job.excluded, job.hold) == (("n2",), (), "")


@pytest.mark.parametrize(
    ("edit", "nodes", "delay_s"),
    [(("ReqNodeList", "n2"), ("n2",), 0.0), (("StartTime", "now+3600"), (), 3600.0)],
)
def test_what_the_owner_changes_as_many_others_are_restored_is_kept(
    bench: Bench, edit: tuple[str, str], nodes: tuple[str, ...], delay_s: float
) -> None:
    """A reading of Slurm is followed by a limited number of changes."""
    jobs = [bench.submit(Asked(per_job=parse_gpus("gpu:2"))) for _ in range(AT_ONCE + 1)]
    for job in jobs:
        bench.pin(job, "n1:v100:2")
    last, begins_s = jobs[-1], bench.fake.now_s + delay_s

    def change(argv: Sequence[str]) -> None:
        if last.asked.nodes == ("n1",) and not jobs[0].asked.nodes:
            bench.fake.update(last, [edit])

    bench.runner.before.append(change)
    assert not any(returned.fault for returned in bench.restore_jobs(*jobs))
    assert (last.asked.per_job, last.asked.nodes) == ((("", 2),), nodes)
    assert last.begins_s == begins_s


def test_without_a_record_the_description_tells_what_was_asked_for(tmp_path: Path) -> None:
    """A pin is removed although its ledger entry is lost."""
    bench = Bench(tmp_path)
    job = bench.submit(Asked(per_job=parse_gpus("gpu:2")))
    bench.pin(job, "n1:v100:2", released=True, noted=False)
    (tmp_path / FILE_NAME).unlink()
    bench.ledger = Ledger(tmp_path / FILE_NAME)
    assert bench.restore_jobs(job) == [Returned(JobId(job.key))]
    assert (job.asked.nodes, job.asked.per_job) == ((), (("", 2),))


def test_where_types_are_kept_the_type_stays(tmp_path: Path) -> None:
    """22.05 then accepts no untyped request, which must not keep the job held."""
    bench = Bench(tmp_path, (22, 5, 8))
    job = bench.submit(Asked(per_job=parse_gpus("gpu:2")))
    bench.pin(job, "n3:k80:2")
    assert bench.restore_jobs(job) == [Returned(JobId(job.key))]
    assert (job.asked.per_job, job.asked.nodes) == ((("k80", 2),), ())
    bench.fake.advance(1.0)
    assert dict(job.gpus) == {("n3", "k80"): 2}


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_job_that_hadard_has_requeued_begins_soon(bench: Bench, *, is_ours: bool) -> None:
    """Others wait for what is left of Slurm's delay: Slurm may still end their last run."""
    job = bench.submit(Asked(per_job=parse_gpus("gpu:2")))
    bench.pin(job, "n1:v100:2", released=True)
    bench.fake.advance(1.0)
    assert job.state == "RUNNING"
    bench.fake.requeue(job, hold=True)
    bench.fake.advance(1.0)
    requeued_s, key = bench.fake.now_s, JobId(job.key)
    claim = replace(bench.ledger[key], state=State.HOLDING, requeued=int(is_ours))
    bench.ledger.note({key: claim})
    bench.fake.advance(40.0)
    assert bench.restore_jobs(job) == [Returned(key)]
    begins_s = bench.fake.now_s + 1 if is_ours else requeued_s + REQUEUE_DELAY_S
    assert job.begins_s == pytest.approx(begins_s, abs=1.0)
    bench.fake.advance(3.0)
    assert job.state == ("RUNNING" if is_ours else "PENDING")


@pytest.mark.parametrize("word", ["TresPerNode=", "TresPerJob=gres/gpu:2", "release"])
def test_what_fails_keeps_the_job_held_and_is_done_the_next_time(bench: Bench, word: str) -> None:
    """The job does not start without GPUs, and other jobs are restored."""
    stuck, other = (bench.submit(Asked(per_job=parse_gpus("gpu:2"))) for _ in range(2))
    for job in (stuck, other):
        bench.pin(job, "n1:v100:2")

    def refuse(argv: Sequence[str]) -> str | None:
        is_its = stuck.key in argv or f"JobId={stuck.key}" in argv
        return "Slurm is in no mood" if is_its and word in argv else None

    bench.runner.before.append(refuse)
    first, second = bench.restore_jobs(stuck, other)
    assert "Slurm is in no mood" in first.fault
    assert second == Returned(JobId(other.key))
    bench.fake.advance(1.0)
    assert (stuck.state, stuck.hold, other.state) == ("PENDING", "user", "RUNNING")
    assert bench.ledger[JobId(stuck.key)].holds
    bench.runner.before.clear()
    assert bench.restore_jobs(stuck) == [Returned(JobId(stuck.key))]
    bench.fake.advance(1.0)
    assert (stuck.state, stuck.num_gpus) == ("RUNNING", 2)


@pytest.mark.parametrize("begins_in_s", [0.0, 3600.0])
def test_an_update_that_lies_is_noticed(bench: Bench, begins_in_s: float) -> None:
    """Slurm reports success but shows another request: the job stays held.

    With its owner's begin time squeue shows the same texts afterwards.
    """
    job = bench.submit(Asked(per_job=parse_gpus("gpu:2")))
    bench.pin(job, "n1:v100:2")
    job.begins_s = begins_in_s and bench.fake.now_s + begins_in_s

    def lie(argv: Sequence[str]) -> None:
        if "release" in argv or argv[0] == "squeue":
            job.asked.per_job = ()

    bench.runner.before.append(lie)
    for _ in range(2):
        [returned] = bench.restore_jobs(job)
        assert "another request" in returned.fault
    bench.fake.advance(1.0)
    assert (job.state, job.hold) == ("PENDING", "user")


def test_an_update_that_changes_nothing_is_noticed(bench: Bench) -> None:
    """Slurm reports success and shows what it showed before: the job stays held."""
    job = bench.submit(Asked(per_job=parse_gpus("gpu:2")))
    bench.pin(job, "n1:v100:2")
    asked, begins_s = deepcopy(job.asked), job.begins_s

    def ignore(argv: Sequence[str]) -> None:
        if "release" in argv or argv[0] == "squeue":
            job.asked, job.begins_s = deepcopy(asked), begins_s

    bench.runner.before.append(ignore)
    [returned] = bench.restore_jobs(job)
    assert "another request" in returned.fault
    assert (job.state, job.hold) == ("PENDING", "user")


def test_a_ledger_that_cannot_be_written_keeps_nobody_held(bench: Bench) -> None:
    """The job is held already: without the record it could at worst stay so."""
    job = bench.submit(Asked(per_job=parse_gpus("gpu:2")))
    bench.pin(job, "n1:v100:2")
    bench.ledger.path.unlink()
    bench.ledger.path.mkdir()
    assert bench.restore_jobs(job) == [Returned(JobId(job.key))]
    assert not job.hold


@pytest.mark.parametrize("hold", ["user", "admin"])
def test_under_anothers_hold_the_pin_goes_and_the_hold_stays(bench: Bench, hold: str) -> None:
    """It is the owner's or an operator's; after its release the job starts with its own request."""
    job = bench.submit(Asked(per_job=parse_gpus("gpu:2")))
    bench.pin(job, "n1:v100:2", released=True)
    bench.fake.hold(job, hold)
    assert bench.restore_jobs(job) == [Returned(JobId(job.key))]
    assert (job.hold, job.asked.nodes, job.asked.per_job) == (hold, (), (("", 2),))
    assert not job.asked.per_node
    assert not bench.ledger[JobId(job.key)].holds
    bench.fake.release(job)
    bench.fake.advance(2.0)
    assert (job.state, job.num_gpus) == ("RUNNING", 2)


@pytest.mark.parametrize("word", ["TresPerNode=", "TresPerJob=gres/gpu:2"])
def test_a_job_released_while_its_request_is_cut_does_not_start_without_gpus(
    bench: Bench, word: str
) -> None:
    """A delayed start keeps the job pending until a later attempt restores its request."""
    job = bench.submit(Asked(per_job=parse_gpus("gpu:2")))
    bench.pin(job, "n1:v100:2", released=True)
    bench.fake.hold(job, "user")

    def meddle(argv: Sequence[str]) -> str | None:
        if word not in argv:
            return None
        bench.fake.release(job)
        bench.fake.advance(5.0)
        return "Slurm is in no mood"

    bench.runner.before.append(meddle)
    [returned] = bench.restore_jobs(job)
    assert "Slurm is in no mood" in returned.fault
    if word == "TresPerNode=":
        assert (job.state, job.num_gpus) == ("RUNNING", 2)  # with its pin, which was not cleared
        return
    assert (job.state, job.hold) == ("PENDING", "")
    bench.runner.before.clear()
    assert bench.restore_jobs(job) == [Returned(JobId(job.key))]
    bench.fake.advance(60.0)
    assert (job.state, job.num_gpus, job.asked.nodes) == ("RUNNING", 2, ())


def test_a_begin_time_that_the_owner_has_chosen_stays(bench: Bench) -> None:
    """The owner's later begin time also prevents a start meanwhile."""
    job = bench.submit(Asked(per_job=parse_gpus("gpu:2")))
    bench.pin(job, "n1:v100:2", released=True)
    job.begins_s = begins_s = bench.fake.now_s + 3600.0
    bench.fake.hold(job, "user")
    assert bench.restore_jobs(job) == [Returned(JobId(job.key))]
    assert (job.hold, job.asked.nodes, job.begins_s) == ("user", (), begins_s)


def test_a_job_that_is_released_to_be_steered_has_its_limits_before(bench: Bench) -> None:
    """Otherwise Slurm could start it on other nodes before the next round."""
    job = bench.submit(Asked(per_job=parse_gpus("gpu:2")))
    bench.pin(job, "n1:v100:2")
    key, queue = JobId(job.key), bench.slurm.queue()
    asked: list[str] = []
    bench.runner.before.append(lambda argv: asked.append(" ".join(argv)))
    wanted = {key: (NodeName("n2"),)}
    [returned] = restore_jobs(bench.slurm, bench.ledger, queue, [key], wanted)
    assert returned == Returned(key)
    assert not bench.slurm.queue()[key].is_held
    assert bench.slurm.read().excluded[key] == ("n2",)
    assert bench.ledger[key].steers
    [limited] = [at for at, text in enumerate(asked) if "ExcNodeList=n2" in text]
    [released] = [at for at, text in enumerate(asked) if "release" in text]
    assert limited < released


def test_a_nice_value_is_given_back_after_the_release(bench: Bench) -> None:
    """Slurm releases a held job whose nice value changes: a foreign hold would be lost."""
    for state, hold in ((State.HELD, ""), (State.FOREIGN_HOLD, "user")):
        job = bench.submit(Asked(per_job=parse_gpus("gpu:2")))
        key = JobId(job.key)
        own = bench.slurm.read().request(bench.slurm.queue()[key])
        job.nice, job.excluded = 7, ("n2",)
        excluded = (NodeName("n2"),)
        bench.ledger.note(
            {key: Claim(state=state, own=own, excluded=Loan(excluded, (), ()), nice=Loan(7, 7, 0))}
        )
        bench.restore_jobs(job)
        assert job.hold == hold
        assert (job.nice, job.excluded) == (0 if not hold else 7, ())


def test_jobs_that_could_not_be_restored_before_are_a_fault_where_none_is_left_to_try(
    bench: Bench,
) -> None:
    """A round may find nothing to change on jobs that Slurm still holds."""
    jobs = [JobId(bench.submit(Asked(per_job=parse_gpus("gpu:2"))).key) for _ in range(3)]
    bench.ledger.note({job: Claim(state=State.HELD) for job in jobs})
    refused = dict.fromkeys(jobs, "the site takes no changes")
    corrections = Corrections(bench.slurm, bench.ledger, lambda: 0.0, _not_restored=refused)
    corrections._give_back(bench.slurm.queue(), ())
    assert corrections.fault == "no job can be restored: the site takes no changes"
    # Jobs that hadard places again, as their owners have mended them, are held rightly.
    planned = a_snapshot("1xv100", *(a_job(job) for job in jobs))
    corrections.restore(Observation(planned, mode=Mode.HOLD), bench.slurm.read())
    corrections._give_back(bench.slurm.queue(), ())
    assert corrections.fault == ""
