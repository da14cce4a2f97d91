"""A job that fails on a GPU type keeps its workload off it, on a real Slurm."""

from __future__ import annotations

import re
import sys

import pytest
from integration.site import Site, eventually

from hadar_slurm.core.cluster import JobId

pytestmark = pytest.mark.slurm

HADAR = (sys.executable, "-m", "hadar_slurm.cli.main")
# The site says which types are large, and the fastest type is too small.
TYPES = "{v100: {memory_gb: 16}, p100: {memory_gb: 40}, k80: {memory_gb: 12}}"
# GPU types by node: a program that needs 40 GB ends at once on all nodes but those with P100s.
NEEDS_40_GB = 'case "$SLURMD_NODENAME" in n3|n4) sleep 600 ;; *) exit 1 ;; esac'
P100S = {"n3", "n4"}


def submit(site: Site, *words: str, name: str = "large") -> JobId:
    script = site.script(name, "#SBATCH --open-mode=append --output=%j.out", NEEDS_40_GB)
    return site.submit("--time=60", "--gpus=1", "--hadar-gang=1", *words, script)


def until_ended(site: Site, job: JobId) -> None:
    eventually(lambda: site.state(job) == "FAILED", lambda: site.told(job))


def nodes(site: Site, job: JobId) -> set[str]:
    return set(site.queue()[job].nodes)


def explained(site: Site, job: JobId) -> str:
    """Return what `hadar explain` prints of a job."""
    config = site.hadard.directory / "hadar.yaml"
    done = site.run([*HADAR, "explain", job, "--config", str(config)])
    return done.stdout + done.stderr


@pytest.mark.parametrize("mode", ["hold", "steer"])
def test_a_workload_fails_once_on_a_type_that_is_too_small(site: Site, mode: str) -> None:
    """Then it runs on types with the most memory only, and a job that may is requeued there."""
    site.start(mode=mode, gpu_types=TYPES, policy="hadar", round_seconds=1)
    first = submit(site)
    until_ended(site, first)
    assert nodes(site, first) & {"n1", "n2"}
    site.until_rounds(2)
    later = [submit(site) for _ in range(3)]
    site.until_running(*later)
    assert all(nodes(site, job) <= P100S for job in later)
    site.until_rounds(1)
    assert re.search(
        "not on v100: its workload failed there after [0-9]+ s", explained(site, later[0])
    )
    # Another workload of the same user, which may be requeued.
    other = submit(site, "--hadar-checkpoint=yes", name="larger")
    eventually(lambda: site.queue()[other].restarts == 1, lambda: site.told(other))
    site.until_running(other)
    assert nodes(site, other) <= P100S
    assert "failed early on v100; requeued" in site.hadard.log.read_text()
    output = site.directory / f"{other}.out"
    eventually(lambda: "run 1 of this job failed" in output.read_text(), output.read_text)
