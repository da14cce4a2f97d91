"""On a real Slurm, hadard's changes race with starts and with what owners change themselves."""

from __future__ import annotations

import pytest
from integration.site import Site

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Start
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.enforce.modes import Mode, Modes
from hadar_slurm.slurm.settings import BackendSettings

pytestmark = pytest.mark.slurm

V100_ONLY = {"v100": 20.0}
ALL_V100 = {"n1": "gpu:4", "n2": "gpu:4", "n6": "gpu:v100:2"}
LONG = 10**6  # steps of a job that outlasts its test


def steering(site: Site) -> SlurmBackend:
    """Return a backend in this process that steers."""
    site.state_dir.mkdir(exist_ok=True)
    settings = BackendSettings(spool=site.reports, modes=Modes(Mode.STEER), poll_s=0.2)
    ledger = Ledger(site.state_dir / "ledger.json")
    table = ThroughputTable("none", {})
    return SlurmBackend(CommandLine(site.runner), table, settings, ledger, Mode.STEER)


def was_resized(site: Site, job: JobId) -> bool:
    """Return whether Slurm has resized a job."""
    return "ResizeTime=" in site.details()[job]


def test_a_job_that_starts_as_it_is_steered_keeps_its_gpus(site: Site) -> None:
    """Slurm up to 23.11 would resize the running job to the nodes of the update."""
    plain = site.occupy(**ALL_V100)
    job = site.train(V100_ONLY, steps=LONG, gpus=4)
    backend = steering(site)
    backend.observe()
    site.free(*plain.values())
    site.until_running(job)
    held = site.gpus(job)
    backend.apply([Start(job, 0, Gang.of({("n1", "v100"): 4}))])
    assert site.gpus(job) == held
    assert not was_resized(site, job)
