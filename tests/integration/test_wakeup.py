"""Slurm's hooks wake hadard: what comes and goes is seen at once, not at the next look."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration.site import Site, eventually

from hadar_slurm.slurm.local_cluster import LocalCluster

pytestmark = pytest.mark.slurm

HOOKS = Path(__file__).resolve().parents[2] / "slurm_conf"
EQUAL = {"v100": 20.0, "k80": 20.0}
# Between two looks without a hook; no test here may last so long.
POLL_S = 45


@pytest.fixture
def hooked(local_cluster: Callable[..., LocalCluster], tmp_path: Path) -> Iterator[Site]:
    """Give a site whose Slurm runs the shipped hooks, with the paths of this cluster."""
    cluster = local_cluster("v100:2,k80:2")
    site = Site(cluster, tmp_path)
    for name in ("job_submit.lua", "wake-hadard"):
        text = (HOOKS / name).read_text()
        assert "/run/hadar" in text
        hook = cluster.directory / name
        hook.write_text(text.replace("/run/hadar", str(site.run_dir)))
        hook.chmod(0o755)
    with cluster.slurm_conf.open("a") as file:
        file.write("JobSubmitPlugins=lua\n")
        file.write(f"EpilogSlurmctld={cluster.directory / 'wake-hadard'}\n")
    cluster.stop_controller()
    cluster.start_controller()
    eventually(lambda: all(n.state == "idle" for n in cluster.status().nodes), "idle nodes")
    yield site
    site.close()
    cluster.down()
    shutil.rmtree(tmp_path, ignore_errors=True)


def test_a_round_begins_when_a_job_comes_or_ends(hooked: Site) -> None:
    """A submission and an end are planned for long before hadard would look by itself."""
    hooked.start(poll_seconds=POLL_S, round_seconds=600)
    began_s = time.monotonic()
    # Two take all GPUs, so that the third waits for the end of one.
    jobs = [hooked.train(EQUAL, steps=steps) for steps in (40, 400, 40)]
    hooked.until_running(jobs[0], jobs[1])
    hooked.until_completed(jobs[0], jobs[2])
    assert time.monotonic() - began_s < POLL_S
    assert {line["wake"] for line in hooked.lines()} == {"start", "change"}


def test_hooks_do_no_harm_where_no_hadard_is(hooked: Site) -> None:
    """Without the file nothing is written, and jobs come and go as ever."""
    job = hooked.submit("--gpus=1", "--wrap=true", command=["sbatch"])
    hooked.until_completed(job)
    assert not (hooked.run_dir / "wake").exists()
