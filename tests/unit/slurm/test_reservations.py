"""A job that would meet a reservation gets other nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import a_gang, a_queue_row
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm
from fakes.fake_tools import FakeRunner

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Start, Status
from hadar_slurm.engine.modes import Mode, Modes
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.parse import node_row
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.settings import BackendSettings


@pytest.fixture
def slurm() -> FakeSlurm:
    """Return a model of Slurm with three nodes."""
    return FakeSlurm("v100:2,v100:2,k80:2")


@pytest.fixture
def job(slurm: FakeSlurm) -> FakeJob:
    """Return a held job of hadar-sbatch."""
    speeds = {"v100": 2.0, "k80": 1.0}
    described = Description(steps=100, gpus=2, throughputs=speeds, is_held=True)
    return slurm.submit(Asked(per_job=(("", 2),)), comment=encode(described), hold="user")


def seen(backend: SlurmBackend) -> Job:
    """Return the job as policies see it."""
    (found,) = backend.observe().jobs
    return found


@pytest.fixture
def backend(slurm: FakeSlurm, job: FakeJob, tmp_path: Path) -> SlurmBackend:
    """Return hadard's backend, which has pinned the job to n1."""
    backend = SlurmBackend(
        CommandLine(FakeRunner(slurm=slurm)),
        ThroughputTable("none", {}),
        BackendSettings(spool=tmp_path / "spool", modes=Modes(Mode.HOLD), pin_timeout_s=600.0),
        Ledger(tmp_path / FILE_NAME),
        now_s=lambda: slurm.now_s,
        sleep=slurm.advance,
    )
    slurm.reserved = {"n1", "n2"}
    (outcome,) = backend.apply([Start(seen(backend).job_id, 0, a_gang("n1:v100:2"))])
    assert outcome.status is Status.DONE
    return backend


def test_a_job_gets_the_nodes_of_its_reservation_and_others_none_of_them() -> None:
    """While the reservation is active; before that such a job is left to Slurm."""
    inside, outside = (
        a_queue_row(key=JobId(name), reservation=name, partition="main") for name in ("lab", "")
    )
    nodes = tuple(
        node_row(name, {"v100": 2}, state, ["main"], [], has_reported=True)
        for name, state in (("n1", "IDLE"), ("n2", "IDLE+RESERVED"), ("n3", "DOWN+RESERVED"))
    )
    queue = {row.key: row for row in (inside, outside)}
    n1, n2 = NodeName("n1"), NodeName("n2")
    state = SlurmState(queue, nodes, {}, reservations={"lab": frozenset([n2])})
    assert [state.nodes_of(row) for row in (inside, outside)] == [{n2}, {n1, NodeName("n3")}]
    assert [node.name for node in state.cluster.nodes if node.is_schedulable] == [n1, n2]
    before = SlurmState(queue, nodes, {})
    assert [before.nodes_of(row) for row in (inside, outside)] == [frozenset(), None]
    assert [node.name for node in before.cluster.nodes if node.is_schedulable] == [n1]


def test_all_reserved_nodes_are_avoided_at_once(slurm: FakeSlurm, backend: SlurmBackend) -> None:
    slurm.advance(3.0)
    found = seen(backend)
    assert found.phase is Phase.QUEUED
    assert found.allowed_nodes == {"n3"}


def test_the_reason_wakes_the_loop(slurm: FakeSlurm, job: FakeJob, backend: SlurmBackend) -> None:
    """It is seen within a round, long before the pin times out."""
    assert seen(backend).phase is Phase.STARTING
    begun_s = slurm.now_s
    assert backend.wait(begun_s + 500.0) == "change"
    assert "reserved" in job.reason
    assert slurm.now_s < begun_s + 30.0


def test_a_reservation_of_other_nodes_changes_nothing(
    slurm: FakeSlurm, job: FakeJob, backend: SlurmBackend
) -> None:
    """Slurm gives this reason also of nodes that it keeps for another job."""
    slurm.advance(3.0)
    assert "reserved" in job.reason
    slurm.reserved = {"n2"}
    assert seen(backend).phase is Phase.STARTING
