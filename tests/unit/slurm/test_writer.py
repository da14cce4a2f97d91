"""No update takes effect on a job that Slurm has started between a reading and the update."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from builders import a_gang
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm
from fakes.fake_tools import FakeRunner

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Start
from hadar_slurm.engine.modes import Mode, Modes
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.settings import BackendSettings


class Race:
    """Slurm 22.05.8 with three nodes, a hadard in `mode`, and a job that waits for two GPUs.

    The job starts immediately before the command that `starts_before` recognizes.
    """

    def __init__(self, directory: Path, mode: Mode, starts_before: Sequence[str]) -> None:
        self.slurm = FakeSlurm("v100:2,v100:2,v100:2", version=(22, 5, 8))
        self.starts_before = starts_before
        runner = FakeRunner(slurm=self.slurm, before=[self._maybe_start])
        self.backend = SlurmBackend(
            CommandLine(runner),
            ThroughputTable("none", {}),
            BackendSettings(spool=directory / "spool", modes=Modes(mode)),
            Ledger(directory / FILE_NAME, lambda: self.slurm.now_s),
            mode,
            now_s=lambda: self.slurm.now_s,
            sleep=self.slurm.advance,
        )

    def submit(self, hold: str) -> FakeJob:
        """Submit a job on one GPU of each of two nodes."""
        described = Description(
            gpus=2, steps=100, throughputs={"v100": 10}, checkpoint=True, is_held=bool(hold)
        )
        asked = Asked(per_node=(("", 1),), min_nodes=2, max_nodes=2)
        return self.slurm.submit(asked, comment=encode(described), hold=hold)

    def _maybe_start(self, argv: Sequence[str]) -> str | None:
        if self.starts_before and all(word in " ".join(argv) for word in self.starts_before):
            self.starts_before = ()
            self.slurm.release(self.slurm.jobs[0])
            self.slurm.jobs[0].begins_s = 0.0
            self.slurm.advance(0.0)
            assert self.slurm.jobs[0].state == "RUNNING"
        return None


@pytest.mark.parametrize(
    ("mode", "starts_before", "gang"),
    [
        (Mode.STEER, ["scontrol update", "ExcNodeList"], "n1:v100:1 n2:v100:1"),
        (Mode.STEER, ["scontrol update", "TresPerNode= "], "n1:v100:2"),
        (Mode.HOLD, ["scontrol uhold"], "n1:v100:2"),
        (Mode.HOLD, ["scontrol update", "TresPerNode= "], "n1:v100:1 n2:v100:1"),
    ],
)
def test_a_job_that_has_just_started_is_not_resized(
    tmp_path: Path, mode: Mode, starts_before: Sequence[str], gang: str
) -> None:
    """Slurm up to 23.11 takes nodes in an update as a resize of a running job."""
    race = Race(tmp_path, mode, starts_before)
    job = race.submit("user" if mode is Mode.HOLD else "")
    race.backend.observe()
    race.backend.apply([Start(JobId(job.key), 0, a_gang(gang))])
    assert race.starts_before == ()
    assert (job.resizes, job.num_gpus, job.state) == (0, 2, "RUNNING")
