"""Starting a job does not undo what its owner or an operator changed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm, parse_gpus
from fakes.fake_tools import FakeRunner

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.core.gang import Gang
from hadar_slurm.engine.actions import Start, Status
from hadar_slurm.jobspec.description import Description, encode
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.enforce.claim import Claim, State
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.enforce.start_stop import Mover

ON_N2 = Gang.of({("n2", "v100"): 2})


class Bench:
    """A cluster with a job that hadard holds, and a mover."""

    def __init__(self, directory: Path) -> None:
        self.fake = FakeSlurm("v100:4,v100:4")
        self.runner = FakeRunner(slurm=self.fake)
        self.ledger = Ledger(directory / FILE_NAME)
        described = Description(steps=5, gpus=2, throughputs={"v100": 1.0}, is_held=True)
        asked = Asked(per_job=parse_gpus("gpu:2"))
        self.job: FakeJob = self.fake.submit(asked, hold="user", comment=encode(described))
        self.ledger.note({JobId(self.job.key): Claim(state=State.HOLDING)})
        slurm = CommandLine(self.runner)
        self.mover = Mover(
            slurm, self.ledger, directory, 1.0, self.fake.advance, lambda: self.fake.now_s
        )

    def start(self) -> Status:
        """Start the job on n2, and return the status."""
        action = Start(JobId(self.job.key), 0, ON_N2)
        return self.mover.start([action])[action].status


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Return a cluster of two nodes."""
    return Bench(tmp_path)


def test_a_job_under_our_hold_starts(bench: Bench) -> None:
    assert bench.start() is Status.DONE
    assert bench.job.hold == ""


def test_a_hold_of_its_owner_stays(bench: Bench) -> None:
    """hadard has released the job before, so the hold is not hadard's."""
    key = JobId(bench.job.key)
    bench.ledger.note({key: Claim(state=State.RELEASED)})
    assert bench.start() is Status.DEFERRED
    assert bench.job.hold == "user"


def test_nodes_that_its_owner_has_named_stay(bench: Bench) -> None:
    bench.job.asked = replace(bench.job.asked, nodes=(NodeName("n1"),))
    assert bench.start() is Status.DEFERRED
    assert bench.job.asked.nodes == ("n1",)


def test_an_operators_hold_between_pin_and_release_stays(bench: Bench) -> None:
    """It replaces hadard's hold after the request has been set."""

    def hold(argv: Sequence[str]) -> None:
        if argv[0] == "squeue" and bench.job.asked.nodes:
            bench.fake.hold(bench.job, "admin")
            bench.job.reason = "JobHeldAdmin"

    bench.runner.before.append(hold)
    assert bench.start() is Status.DEFERRED
    assert bench.job.hold == "admin"
