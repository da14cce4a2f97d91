"""Mode `advise` borrows the features that a job prefers, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import a_gang
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm
from fakes.fake_tools import FakeRunner

from hadar_slurm.cli.diff import differences
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Start, Status
from hadar_slurm.engine.modes import Mode, Modes
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.enforce.release_all import release_all
from hadar_slurm.slurm.settings import BackendSettings

COMMENT = encode(Description(steps=100, throughputs={"v100": 10, "k80": 1}))


class Bench:
    """A full Slurm with a job that waits, and hadard in mode `advise`."""

    def __init__(self, directory: Path) -> None:
        self.slurm = FakeSlurm("v100:1,k80:1", version=(24, 11, 5))
        self.slurm.reserved = {"n1", "n2"}
        self.adapter = CommandLine(FakeRunner(slurm=self.slurm))
        self.ledger = Ledger(directory / FILE_NAME, self.now_s)
        settings = BackendSettings(spool=directory, modes=Modes(Mode.ADVISE))
        parts = self.adapter, ThroughputTable("none", {}), settings, self.ledger, Mode.ADVISE
        self.backend = SlurmBackend(*parts, now_s=self.now_s)
        self.job: FakeJob = self.slurm.submit(Asked(per_job=(("", 1),)), comment=COMMENT)
        self.job.prefers = "old"

    def now_s(self) -> float:
        """Return the modelled time."""
        return self.slurm.now_s

    def advise(self, gang: str) -> Status:
        """Observe, and advise the job to start on a gang."""
        self.backend.observe()
        (outcome,) = self.backend.apply([Start(JobId(self.job.key), 0, a_gang(gang))])
        return outcome.status

    def release(self) -> list[str]:
        """Run `hadar release`; return the faults."""
        parts = self.adapter, self.ledger
        answers = release_all(*parts, limit_s=5.0, now_s=self.now_s, sleep=self.slurm.advance)
        return [answer.fault for answer in answers]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Return a Slurm with a job that prefers nodes with the feature `old`."""
    return Bench(tmp_path)


def test_a_preference_is_set_and_given_back(bench: Bench) -> None:
    """It stays from round to round, and is the only change."""
    job = bench.job
    for gang, feature in (("n1:v100:1", "v100"), ("n1:v100:1", "v100"), ("n2:k80:1", "k80")):
        assert bench.advise(gang) is Status.DONE
        assert job.prefers == feature
    assert (job.hold, job.excluded, job.asked.nodes, job.comment) == ("", (), (), COMMENT)
    (difference,) = differences(bench.adapter, bench.ledger, bench.adapter.queue().values())
    assert difference.fields == {"preferred": ("k80", "old")}
    assert bench.release() == [""]
    assert job.prefers == "old"
    assert bench.release() == []


def test_what_its_owner_prefers_since_is_kept(bench: Bench) -> None:
    """hadard gives no more advice for the job, and gives nothing back."""
    assert bench.advise("n1:v100:1") is Status.DONE
    bench.job.prefers = "mine"
    assert [bench.advise("n1:v100:1") for _ in range(2)] == [Status.SKIPPED] * 2
    assert (bench.job.prefers, bench.release()) == ("mine", [])


@pytest.mark.parametrize("state", ["PENDING", "RUNNING"])
def test_a_job_that_has_changed_since_the_plan_is_read_again(bench: Bench, state: str) -> None:
    """Its owner's new preference is the one that is given back; one that has started keeps its."""
    bench.backend.observe()
    bench.job.prefers = "mine"
    if state == "RUNNING":
        bench.slurm.reserved = set()
        bench.slurm.advance(1.0)
    assert bench.job.state == state
    (outcome,) = bench.backend.apply([Start(JobId(bench.job.key), 0, a_gang("n1:v100:1"))])
    is_done = state == "PENDING"
    assert outcome.status is (Status.DONE if is_done else Status.SKIPPED)
    assert bench.job.prefers == ("v100" if is_done else "mine")
    assert bench.release() == [""] * is_done
    assert bench.job.prefers == "mine"


def test_a_job_that_leaves_gets_its_own_preference(bench: Bench) -> None:
    """As a job of any other mode gets back what it asked for."""
    bench.advise("n1:v100:1")
    described = Description(steps=100, throughputs={"v100": 10, "k80": 1}, leaves=True)
    bench.job.comment = encode(described)
    bench.backend.observe()
    bench.backend.apply([])
    assert bench.job.prefers == "old"
