"""Mode `steer` on a real Slurm: waiting jobs are not held, and Slurm starts them."""

from __future__ import annotations

import json
import re
import time

import pytest
from integration.site import HADAR, Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.slurm.client.parse import detail_of

pytestmark = pytest.mark.slurm

EQUAL = {"v100": 20.0, "p100": 20.0, "k80": 20.0}
V100_ONLY = {"v100": 20.0}
ALL_V100 = {"n1": "gpu:4", "n2": "gpu:4", "n6": "gpu:v100:2"}
LONG = 10**6  # steps of a job that outlasts its test
STEER = {"mode": "steer", "round_seconds": 1}


def limits(site: Site, job: JobId) -> tuple[tuple[str, ...], tuple[str, ...], int | None]:
    """Return the nodes that a pending job requires, those that it excludes, and its nice value."""
    detail = detail_of(site.details()[job])
    return site.queue()[job].requested_nodes, detail.excluded, detail.nice


def test_a_job_waits_in_slurms_queue_and_starts_where_hadard_wants_it(site: Site) -> None:
    """It is never held, keeps its own request, and its wait is true in Slurm's records."""
    plain = site.occupy(**ALL_V100)
    site.start(**STEER)
    job = site.train(V100_ONLY, steps=20)
    other = site.train({"v100": 20.0, "k80": 1.0}, "--hadar-checkpoint=no", steps=LONG, gpus=4)
    site.until_rounds(3)
    rows = site.queue()
    assert not rows[job].is_held
    assert rows[job].gpus_otherwise == (("gpu", 2),)
    # On n6 Slurm would choose the type.
    assert set(limits(site, job)[1]) >= {"n3", "n4", "n5"}
    eventually(lambda: site.state(other) == "RUNNING", lambda: site.told(other))
    site.free(plain["n2"])
    site.until_running(job)
    assert site.tree(job) == {"n2": {"v100": 2}}
    assert site.queue()[job].restarts == 0
    eligible = re.search(r" EligibleTime=(\d+) ", site.details()[job])
    assert eligible
    assert int(eligible[1]) == int(site.queue()[job].submitted_s)
    site.until_completed(job)


@pytest.mark.parametrize("mode", ["steer", "hold"])
def test_a_successor_gets_the_gpus_before_plain_jobs_that_wait(site: Site, mode: str) -> None:
    """It is first in line before the running job saves and leaves; that job then waits unheld.

    In mode `hold` as well, as long as plain jobs wait.
    """
    site.occupy(n3="gpu:4", n4="gpu:4", n5="gpu:4", n6="gpu:v100:2,gpu:k80:2")
    site.start(**{**STEER, "mode": mode}, policy="srsf")
    long = [site.train(V100_ONLY, steps=LONG, gpus=4) for _ in range(2)]
    site.until_running(*long)
    eventually(lambda: all(site.steps(job) > 0 for job in long), lambda: site.told(*long))
    waiting = [
        site.submit("--gpus=4", "--nodes=1", "--wrap=sleep 2", command=["sbatch"]) for _ in range(2)
    ]
    short = site.train(V100_ONLY, steps=20, gpus=4)
    site.until_completed(short)
    stopped = [job for job in long if site.queue()[job].restarts]
    assert stopped
    eventually(lambda: not site.queue()[stopped[0]].is_held, lambda: site.told(*stopped))
    # Slurm would let a requeued job begin after two minutes.
    row = site.queue()[stopped[0]]
    assert row.reason != "BeginTime" or row.started_s < time.time() + 10
    site.until_completed(*waiting)
    site.until_running(*long)
    rows = site.queue()
    assert all(rows[job].started_s > rows[short].started_s for job in waiting)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_dead_hadard_leaves_jobs_that_slurm_starts(site: Site, how: str) -> None:
    """Killed, without the reaper: on nodes of their type. `hadar release` gives all back."""
    plain = site.occupy(**ALL_V100, n3="gpu:4", n4="gpu:4", n5="gpu:4")
    daemon = site.start(**STEER)
    job = site.train({"v100": 20.0, "p100": 1.0, "k80": 1.0}, "--nice=3", steps=LONG, gpus=4)
    site.until_rounds(2)
    eventually(lambda: limits(site, job)[1] != (), lambda: site.told(job))
    site.kill(daemon)
    if how == "stopped":
        release = [
            *HADAR,
            "release",
            "--config",
            str(site.hadard.directory / "hadar.yaml"),
            "--json",
        ]
        assert json.loads(site.run(release).stdout)["released"] == [job]
        assert limits(site, job) == ((), (), 3)
        site.free(plain["n3"])
        site.until_running(job)
    else:
        site.free(plain["n1"])
        site.until_running(job)
