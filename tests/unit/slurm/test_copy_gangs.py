"""Copies with other GPUs, cores and memory by GPU type: what hadard sets on tasks, and undoes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from builders import a_gang
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm
from fakes.fake_tools import FakeRunner

from hadar_slurm.core.broken_plan import check_plan
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, Phase, Shape
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Outcome, Status
from hadar_slurm.engine.reconcile import reconcile
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.cores_memory import Sizes, shown_sizes, size_words, with_sizes
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.scontrol import command
from hadar_slurm.slurm.client.updates import SetRequest
from hadar_slurm.slurm.enforce.claim import Claim, State
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.enforce.restore import restore_jobs
from hadar_slurm.slurm.settings import BackendSettings

ON_V100, ON_K80 = a_gang("n1:v100:1"), a_gang("n3:k80:4")
OTHER_V100, OTHER_K80 = a_gang("n2:v100:1"), a_gang("n4:k80:4")
DESCRIBED = Description(
    steps=1000,
    throughputs={"v100": 10.0, "k80": 8.0},
    shape=Shape(1, 1),
    copies=3,
    gangs={"v100": 1, "k80": 4},
    cores={"v100": 2, "k80": 8},
    memory_mb={"k80": 2400},
    checkpoint=True,
    is_held=True,
)
SUBMITTED = ("", 1, 1, 0, 100)


class Stage:
    """A model of Slurm with a job of three copies, and hadard's backend on it."""

    def __init__(self, directory: Path) -> None:
        self.slurm = FakeSlurm("v100:1,v100:1,k80:4,k80:4", spool=directory / "elsewhere")
        first = self.slurm.submit(
            Asked(per_node=(("", 1),), min_nodes=1, max_nodes=1),
            tasks=range(3),
            comment=encode(DESCRIBED),
            hold="user",
            work_s=10_000.0,
            steps=1000,
        )
        self.job = JobId(str(first.array))
        self.adapter = CommandLine(FakeRunner(slurm=self.slurm))
        self.ledger = Ledger(directory / FILE_NAME)
        self.backend = SlurmBackend(
            self.adapter,
            ThroughputTable("none", {}),
            BackendSettings(spool=directory / "spool", grace_s=5.0),
            self.ledger,
            now_s=lambda: self.slurm.now_s,
            sleep=self.slurm.advance,
        )

    def place(self, copies: Mapping[int, Gang]) -> list[Outcome]:
        """Apply a plan with these copies, and return the outcome of each action."""
        snapshot = self.backend.observe()
        plan = Plan.of({self.job: Allocation.of(copies)}, {})
        check_plan(snapshot, plan)
        outcomes = list(self.backend.apply(reconcile(snapshot, plan)))
        self.slurm.advance(30.0)
        return outcomes

    def task(self, number: int) -> FakeJob:
        [job] = self.slurm.find(f"{self.job}_{number}")
        return job

    def has(self, number: int) -> tuple[object, ...]:
        """Return a task's node, cores of the node and of a task, and MB of the node and a core."""
        job = self.task(number)
        node = ",".join(sorted(job.held))
        return node, job.node_cores, job.task_cores, job.node_memory_mb, job.core_memory_mb

    def requeue(self, number: int) -> None:
        """Requeue a task with a hold of hadard."""
        self.slurm.requeue(self.task(number), hold=True)
        self.slurm.advance(30.0)
        key = JobId(f"{self.job}_{number}")
        own, pinned = self.ledger[key].own, self.ledger[key].pinned
        self.ledger.note({key: Claim(state=State.HELD, own=own, pinned=pinned)})

    @property
    def seen(self) -> Job:
        """Return the job as policies see it."""
        (job,) = self.backend.observe().jobs
        return job


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_each_copy_is_given_what_it_has_on_its_type(stage: Stage) -> None:
    """Memory that is not given for a type stays as submitted."""
    outcomes = stage.place({0: ON_V100, 1: ON_K80})
    assert {outcome.status for outcome in outcomes} == {Status.DONE}
    assert stage.has(0) == ("n1", 2, 2, 0, 100)
    assert stage.has(1) == ("n3", 8, 8, 2400, 0)
    job = stage.seen
    assert job.phase in (Phase.STARTING, Phase.RUNNING)
    assert sorted(map(str, job.allocation.gangs)) == ["n1:v100:1", "n3:k80:4"]
    assert job.spec.gangs == (("k80", 4), ("v100", 1))


def test_a_copy_that_moves_gets_what_it_has_there(stage: Stage) -> None:
    """Its owner's memory too, where none is given for the type."""
    stage.place({0: ON_K80})
    assert stage.has(0) == ("n3", 8, 8, 2400, 0)
    stage.requeue(0)
    assert {outcome.status for outcome in stage.place({0: OTHER_V100})} == {Status.DONE}
    assert stage.has(0) == ("n2", 2, 2, 0, 100)
    assert str(stage.seen.allocation.gangs[0]) == "n2:v100:1"


def test_what_slurm_refuses_is_not_tried_there_again(stage: Stage) -> None:
    """The nodes of the refused gang are avoided; the copy is placed elsewhere."""
    stage.slurm.refused.add("MinMemoryNode")
    outcomes = stage.place({0: OTHER_V100, 1: ON_K80})
    status = {o.action.gang: o.status for o in outcomes}  # type: ignore[union-attr]
    assert status == {OTHER_V100: Status.DONE, ON_K80: Status.REFUSED}
    assert stage.has(0) == ("n2", 2, 2, 0, 100)
    assert stage.task(1).hold == "user"
    allowed = stage.seen.allowed_nodes
    assert allowed is not None
    assert "n3" not in allowed
    assert "n1" in allowed


def test_a_job_that_is_done_starts_its_last_copies_as_submitted(stage: Stage) -> None:
    """So does `hadar release`: the cores and the memory are put back before the release."""
    stage.place({0: ON_K80})
    stage.requeue(0)
    key, task = JobId(f"{stage.job}_0"), stage.task(0)
    queue = stage.adapter.queue()
    (returned,) = restore_jobs(stage.adapter, stage.ledger, queue, [key])
    assert returned.fault == ""
    assert task.hold == ""
    assert stage.has(0) == SUBMITTED
    assert task.asked.per_node == (("", 1),)


def test_the_ledger_keeps_what_the_owner_asked(stage: Stage) -> None:
    stage.place({0: ON_K80})
    again = Ledger(stage.ledger.path)
    key = JobId(f"{stage.job}_0")
    assert again[key].own == stage.ledger[key].own
    assert again[key].own is not None
    assert again[key].own.core_memory_mb == "100"


LINE = (
    "JobId=3 ArrayJobId=1 ArrayTaskId=1 JobName={name} NumCPUs=2 NumTasks=1 CPUs/Task=2 "
    "ReqB:S:C:T=0:0:*:* TRES=cpu=2,mem=500M,node=1 MinCPUsNode=2 {memory} MinTmpDiskNode=0"
)


@pytest.mark.parametrize(
    ("memory", "wanted"),
    [
        ("MinMemoryCPU=100M", Sizes("2", "2", "", "100")),
        ("MinMemoryNode=500M", Sizes("2", "2", "500", "")),
        ("MinMemoryNode=2G", Sizes("2", "2", "2048", "")),
        ("MinMemoryNode=1.50G", Sizes("2", "2", "1536", "")),
        ("MinMemoryNode=0", Sizes("2", "2", "0", "")),
        ("MinMemoryNode=much", None),
        ("", None),
    ],
)
def test_cores_and_memory_are_read_from_a_line(memory: str, wanted: Sizes | None) -> None:
    assert shown_sizes(LINE.format(name="train", memory=memory)) == wanted


@pytest.mark.parametrize("forged", [" MinCPUsNode=9", " MinMemoryNode=1M", " CPUs/Task=7"])
def test_a_name_that_imitates_them_makes_them_unknown(forged: str) -> None:
    line = LINE.format(name=f"x{forged}", memory="MinMemoryCPU=100M")
    assert shown_sizes(line) is None


def test_cores_and_memory_come_first_in_an_update() -> None:
    """Of an update that fails, Slurm may keep the keys before the wrong one: nodes come last."""
    own = Request(node_cores="1", task_cores="1", core_memory_mb="100")
    asked = Request(num_nodes="1-1", per_node="gres:gpu:4")
    both = with_sizes(asked, own, cores=8, memory_mb=2400)
    words = command(SetRequest(JobId("1_0"), both))
    assert words[3:6] == ["MinCPUsNode=8", "CPUsPerTask=8", "MinMemoryNode=2400"]
    own_again = command(
        SetRequest(JobId("1_0"), with_sizes(asked, own, cores=None, memory_mb=None))
    )
    assert own_again[3:6] == ["MinCPUsNode=1", "CPUsPerTask=1", "MinMemoryCPU=100"]


def test_what_is_not_known_of_the_owner_is_not_changed() -> None:
    """It could not be put back."""
    asked = Request(num_nodes="1-1", per_node="gres:gpu:4")
    assert with_sizes(asked, Request(), cores=8, memory_mb=2400) == asked


def test_sizes_are_told_in_words() -> None:
    assert size_words(("8", "8", "2400", "")) == "8 cores a node, 8 cores a task, 2400 MB a node"
    assert "not known" in size_words(("", "", "", ""))
