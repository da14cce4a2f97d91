"""A hadard that gets SIGTERM gives back what it has changed, within a bounded time."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm, parse_gpus
from fakes.fake_tools import FakeRunner

from hadar_slurm.config import Config, load_config
from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.daemon.ending import give_back
from hadar_slurm.daemon.world import Life
from hadar_slurm.engine.loan import Loan
from hadar_slurm.errors import DaemonError
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.enforce.claim import Claim, State
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.state.lease import Lease
from hadar_slurm.state.locks import RELEASE, lock

N2 = NodeName("n2")


@dataclass
class Bench:
    """A fake cluster with one job that hadard steers and one that it holds."""

    place: Path
    fake: FakeSlurm = field(default_factory=lambda: FakeSlurm("v100:4,v100:4"))

    def __post_init__(self) -> None:
        self.life = Life()
        self.runner = FakeRunner(slurm=self.fake)
        # As hadard's runner does before each command.
        self.runner.before.append(lambda argv: self.life.sign())
        self.lease = Lease(self.place / "spool", "fake", 30.0, token="mine")
        asked = Asked(per_job=parse_gpus("gpu:2"))
        held = Description(steps=5, gpus=2, throughputs={"v100": 1.0}, is_held=True)
        self.held = self.fake.submit(asked, hold="user", comment=encode(held))
        self.steered = self.fake.submit(asked)

    @property
    def config(self) -> Config:
        """The configuration of a hadard that keeps all in one directory."""
        path = self.place / "hadar.yaml"
        path.write_text(f"run_dir: {self.place}\nstate_dir: {self.place}\n")
        return load_config(path)

    def steer(self) -> FakeJob:
        """Change a waiting job as mode `steer` does, and claim it."""
        job, ledger = self.steered, Ledger(self.place / FILE_NAME)
        own = CommandLine(self.runner).queue()[JobId(job.key)].request
        job.excluded, job.nice, job.limit_min = ("n2",), 7, 20
        loans = {"excluded": Loan((N2,), (), ()), "nice": Loan(7, 0, 0)}
        claim = Claim(state=State.STEERED, own=own, limit_s=Loan(1200.0, 600.0, 600.0), **loans)
        ledger.note({JobId(job.key): claim})
        return job

    def end(self, limit_s: float = 0.0) -> None:
        """Have hadard end."""
        give_back(self.config, CommandLine(self.runner), self.life, self.lease, limit_s)


@pytest.fixture
def bench(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Bench:
    """Return a cluster whose GPUs are all taken."""
    caplog.set_level("INFO")
    return Bench(tmp_path)


def test_what_is_lent_and_held_is_given_back(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Excluded nodes, nice value, time limit and hold; the log has the number of jobs."""
    job = bench.steer()
    bench.end()
    assert (job.excluded, job.nice, job.limit_min, bench.held.hold) == ((), 0, 10, "")
    assert "jobs given back to plain Slurm: 2" in caplog.text


def test_what_is_left_is_named_with_the_command_that_does_the_rest(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that Slurm refuses to change keeps no other job waiting, nor hadard."""
    job = bench.steer()
    bench.runner.before.append(lambda argv: "no mood" if f"JobId={job.key}" in argv else None)
    bench.end()
    assert (job.nice, bench.held.hold) == (7, "")
    assert "jobs given back to plain Slurm: 1" in caplog.text
    assert "jobs not given back yet: 1; `hadar release` does the rest" in caplog.text


def test_without_slurm_it_ends_and_says_so(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """The jobs are left for `hadar release`."""
    bench.fake.is_away = True
    bench.end()
    assert "jobs stay as hadard has changed them" in caplog.text
    assert "`hadar release` does the rest" in caplog.text


def test_a_release_that_runs_does_it_alone(bench: Bench) -> None:
    """Two at once would write the ledger against each other."""
    with lock(bench.place, RELEASE):
        bench.end()
    assert bench.held.hold == "user"


def test_where_another_hadard_has_taken_over_nothing_is_changed(bench: Bench) -> None:
    """Its lease is looked at before each command."""
    (bench.place / "spool").mkdir()
    Lease(bench.place / "spool", "fake", 30.0, token="another").take()
    with pytest.raises(DaemonError, match="another hadard is at work"):
        bench.end()
    assert bench.held.hold == "user"
