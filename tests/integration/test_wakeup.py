"""Slurm's hooks wake hadard, so that it sees new and ended jobs before the next poll."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration.site import OF_THE_SITE, Site, eventually

from hadar_slurm.devcluster.cluster import LocalCluster

pytestmark = pytest.mark.slurm

HOOKS = Path(__file__).resolve().parents[2] / "slurm_conf"
EQUAL = {"v100": 20.0, "k80": 20.0}
# The time between two polls without a hook; no test here may take this long.
POLL_S = 45


@pytest.fixture(params=["alone", "beside a site's own"])
def hooked(
    local_cluster: Callable[..., LocalCluster], tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Site]:
    """Give a site whose Slurm runs the shipped hooks, with the paths of this cluster."""
    cluster = local_cluster("v100:2,k80:2")
    site = Site(cluster, tmp_path)
    for name in ("job_submit.lua", "wake-hadard"):
        text = (HOOKS / name).read_text()
        assert "/run/hadar" in text
        hook = cluster.directory / name
        hook.write_text(text.replace("/run/hadar", str(site.run_dir)))
        hook.chmod(0o755)
    if request.param != "alone":
        ours = (cluster.directory / "job_submit.lua").rename(cluster.directory / "hadar.lua")
        text = OF_THE_SITE.replace("{ours}", str(ours))
        (cluster.directory / "job_submit.lua").write_text(text)
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
    """A submission and the end of a job cause a round long before the next poll."""
    hooked.start(poll_seconds=POLL_S, round_seconds=600)
    began_s = time.monotonic()
    # Two take all GPUs, so that the third waits for the end of one.
    jobs = [hooked.train(EQUAL, steps=steps) for steps in (160, 400, 40)]
    hooked.until_running(jobs[0], jobs[1])
    hooked.until_completed(jobs[0], jobs[2])
    assert time.monotonic() - began_s < POLL_S
    assert {line["wake"] for line in hooked.lines()} == {"start", "change"}


def test_hooks_do_no_harm_where_no_hadard_is(hooked: Site) -> None:
    """Without hadard the hooks write nothing, jobs run as usual, and a site's rules apply."""
    job = hooked.submit("--gpus=1", "--wrap=true", command=["sbatch"])
    hooked.until_completed(job)
    assert not (hooked.run_dir / "wake").exists()
    ours = hooked.cluster.directory / "hadar.lua"
    if not ours.exists():
        return
    for text in (ours.read_text(), "this is no Lua", None):
        if text is None:
            ours.unlink()
        else:
            ours.write_text(text)
        # slurmctld keeps a loaded script until the file has changed, so it is restarted.
        hooked.cluster.stop_controller()
        hooked.cluster.start_controller()
        with pytest.raises(AssertionError, match="the site does not want this job"):
            hooked.submit("--gpus=1", "--job-name=unwanted", "--wrap=true", command=["sbatch"])
        hooked.until_completed(hooked.submit("--gpus=1", "--wrap=true", command=["sbatch"]))
