"""Slurm's configuration changes below running jobs: what Slurm no longer lists is occupied.

No such job may keep the others from being planned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm
from fakes.fake_tools import UNREACHABLE, FakeRunner

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.snapshot import Round
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.backend import Wake
from hadar_slurm.engine.loop import RoundRecord, run_round
from hadar_slurm.engine.modes import Mode, Modes
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.policies.registry import make_policy
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.settings import BackendSettings

SPEEDS = {"v100": 4.0, "p100": 2.0, "a100": 8.0, "gpu": 4.0}
FOREVER = 10**9


class Changing:
    """A Slurm whose first node, n1, has four GPUs, of which a managed job holds two."""

    def __init__(
        self, directory: Path, mode: Mode, *, first: str = "v100", enrols: bool = False
    ) -> None:
        self.slurm = FakeSlurm(f"{first}:4,p100:4", spool=directory / "elsewhere")
        self.runner = FakeRunner(slurm=self.slurm)
        self.enrols = enrols
        self.policy = make_policy("hadar")
        self.memory: object = None
        self.rounds = 0
        self.backend = SlurmBackend(
            CommandLine(self.runner),
            ThroughputTable("none", {}),
            BackendSettings(
                spool=directory,
                modes=Modes(mode),
                enrol={"partitions": frozenset({"main"})} if enrols else {},
            ),
            Ledger(directory / FILE_NAME),
            mode,
            now_s=lambda: self.slurm.now_s,
            sleep=self.slurm.advance,
        )

    def submit(self, gpus: int = 2, **given: object) -> FakeJob:
        """Submit a job that is described, or enrolled."""
        described = Description(steps=FOREVER, gpus=gpus, throughputs=SPEEDS, is_held=True)
        comment = "" if self.enrols else encode(described)
        given = {"comment": comment, **given}
        return self.slurm.submit(Asked(per_job=(("", gpus),)), **given)  # type: ignore[arg-type]

    def round(self) -> RoundRecord:
        """Run one round, and let its starts happen."""
        self.rounds += 1
        at = Round(self.rounds, self.slurm.now_s, 60.0, memory=self.memory)
        record = run_round(self.backend, self.policy, at, wake="test", clock=lambda: 0.0)
        self.memory = record.plan.memory if record.plan else None
        self.slurm.advance(70.0)
        return record


def rename(slurm: FakeSlurm) -> None:
    """Give the GPUs of n1 a type that no node has had before."""
    slurm.nodes["n1"].gpus = {"a100": 4}


def mix(slurm: FakeSlurm) -> None:
    """Make two types of the one that n1 had."""
    slurm.nodes["n1"].gpus = {"a100": 2, "h100": 2}


def hide(slurm: FakeSlurm) -> None:
    """Let Slurm show n1 no more."""
    slurm.hidden.add("n1")


def shrink(slurm: FakeSlurm) -> None:
    """Leave n1 fewer GPUs than its job holds."""
    slurm.nodes["n1"].gpus = {"v100": 1}


def strip(slurm: FakeSlurm) -> None:
    """Leave n1 no GPUs."""
    slurm.nodes["n1"].gpus = {}


CHANGES = [rename, mix, hide, shrink, strip]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(
    ("mode", "enrols"), [(Mode.HOLD, False), (Mode.STEER, False), (Mode.STEER, True)]
)
@pytest.mark.parametrize("first", ["v100", "gpu"])
def test_a_change_below_a_job_leaves_out_that_job_alone(
    tmp_path: Path,
    change: Callable[[FakeSlurm], None],
    mode: Mode,
    first: str,
    *,
    enrols: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rounds go on, other jobs are planned, and what the job holds is given to none."""
    at = Changing(tmp_path, mode, first=first, enrols=enrols)
    runs = at.submit()
    at.round()
    assert list(runs.held) == ["n1"]
    change(at.slurm)
    waits = [at.submit(), at.submit()]
    with caplog.at_level(logging.INFO):
        records = [at.round() for _ in range(3)]
    for record in records:
        assert record.errors == ()
        assert record.snapshot is not None
        assert {
            slot for slot, _ in record.snapshot.occupied
        } <= record.snapshot.cluster.capacity.keys()
    # Of the GPUs that n1 still has, no more than are certainly free.
    first_seen = records[0].snapshot
    assert first_seen is not None
    assert runs.key not in first_seen.by_id
    left = first_seen.plannable_capacity
    for slot, count in first_seen.cluster.capacity.items():
        assert left[slot] == (max(0, count - 2) if slot.node == "n1" else count)
    assert runs.state == "RUNNING"
    assert [job.state for job in waits] == ["RUNNING"] * 2, [job.reason for job in waits]
    told = [r.getMessage() for r in caplog.records if f"job {runs.key} " in r.getMessage()]
    assert sum("left out" in text for text in told) == 1


def test_the_job_is_planned_again_once_slurm_lists_its_gpus(tmp_path: Path) -> None:
    """As after a node that was hidden for a moment."""
    at = Changing(tmp_path, Mode.HOLD)
    runs = at.submit()
    at.round()
    hide(at.slurm)
    assert runs.key not in at.backend.observe().by_id
    at.slurm.hidden.clear()
    assert runs.key in at.backend.observe().by_id


def test_a_first_reading_that_fails_does_not_end_hadard(tmp_path: Path) -> None:
    """With enrolment, jobs are looked at while hadard waits, before any round has succeeded."""
    at = Changing(tmp_path, Mode.STEER, enrols=True)
    at.submit(begins_s=at.slurm.now_s + 500.0)
    at.runner.before.append(lambda argv: UNREACHABLE)
    assert at.round().errors
    at.runner.before.clear()
    assert at.backend.wait(at.slurm.now_s + 30.0) is Wake.CHANGE
    assert at.round().errors == ()


def test_a_disable_file_that_appears_while_jobs_are_read_ends_the_round(
    tmp_path: Path,
) -> None:
    """It is looked for once before the jobs, which are all planned, and again at the next poll."""
    at = Changing(tmp_path, Mode.STEER)
    at.submit()
    answers = iter([False])
    at.backend.is_off = lambda: next(answers, True)
    at.backend.observe()
    assert at.backend.wait(at.slurm.now_s + 30.0) is Wake.CHANGE


def test_why_a_job_is_left_to_slurm_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also of jobs that have ended, and of the tasks of an array."""
    at = Changing(tmp_path, Mode.STEER, enrols=True)
    ended = at.submit(is_exclusive=True, work_s=10.0)
    array = at.submit(tasks=range(20), is_exclusive=True, begins_s=at.slurm.now_s + 5000.0)
    with caplog.at_level(logging.INFO):
        for _ in range(5):
            at.round()
    assert ended.state == "COMPLETED"
    for job in (ended.key, str(array.array)):
        texts = [r.getMessage() for r in caplog.records]
        told = [t for t in texts if "left to Slurm" in t and f"job {job}" in t]
        assert len(told) == 1, told


def test_an_enrolled_jobs_exclusions_that_are_in_doubt_stay(tmp_path: Path) -> None:
    """No description shows them: the job is as its owner has it until Slurm's answer is clear."""

    class Doubtful(CommandLine):
        def read(self) -> SlurmState:
            return replace(super().read(), excluded={})

        def read_jobs(self, jobs: Collection[JobId]) -> SlurmState:
            return replace(super().read_jobs(jobs), excluded={})

    at = Changing(tmp_path, Mode.STEER, enrols=True)
    at.slurm.reserved = {"n1", "n2"}
    job = at.submit(excluded=("n1",))
    clear, at.backend.slurm = at.backend.slurm, Doubtful(at.runner)
    for _ in range(2):
        assert at.round().plan is not None
        assert job.excluded == ("n1",)
    at.backend.slurm = clear
    at.round()
    assert "n1" in job.excluded
