"""A job that fails on a GPU type keeps its workload off it, on a real Slurm."""

from __future__ import annotations

import re

import pytest
from integration.site import HADAR, Site, eventually

from hadar_slurm.core.cluster import JobId

pytestmark = pytest.mark.slurm

# The site says which types are large, and the fastest type is too small.
TYPES = "{v100: {memory_gb: 16}, p100: {memory_gb: 40}, k80: {memory_gb: 12}}"
# GPU types by node: a program that needs 40 GB ends at once on all nodes but those with P100s.
NEEDS_40_GB = 'case "$SLURMD_NODENAME" in n3|n4) sleep 600 ;; *) exit 1 ;; esac'
P100S = {"n3", "n4"}
TYPE_OF = {"n1": "v100", "n2": "v100", "n3": "p100", "n4": "p100", "n5": "k80", "n6": "k80"}


def submit(site: Site, name: str, *words: str) -> JobId:
    """Submit a program that needs 40 GB; another test's failures of the same name count too."""
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
    name = f"large-{mode}"
    first = submit(site, name)
    until_ended(site, first)
    assert nodes(site, first) & {"n1", "n2"}
    site.until_rounds(2)
    later = [submit(site, name) for _ in range(6)]
    site.until_running(*later)
    assert all(nodes(site, job) <= P100S for job in later)
    site.until_rounds(1)
    reason = "not on v100: its workload failed there after [0-9]+ s"
    assert re.search(reason, explained(site, later[0]))
    # Another workload of the same user, which may be requeued.
    other = submit(site, f"larger-{mode}", "--hadar-checkpoint=yes")
    eventually(lambda: site.queue()[other].restarts == 1, lambda: site.told(other))
    site.until_running(other)
    assert nodes(site, other) <= P100S
    assert "failed early on v100; requeued" in site.hadard.log.read_text()
    output = site.directory / f"{other}.out"
    eventually(lambda: "run 1 of this job failed" in output.read_text(), output.read_text)


def test_a_program_that_fails_everywhere_is_barred_nowhere(site: Site) -> None:
    """Once it has failed on all types, it may have all again; what is forgotten is forgotten."""
    site.start(gpu_types=TYPES, policy="hadar", round_seconds=1)
    script = site.script("faulty", "test -e fixed || exit 1; sleep 600")

    def run() -> JobId:
        return site.submit("--time=60", "--gpus=1", script)

    types = []
    for _ in range(4):
        job = run()
        until_ended(site, job)
        types.append(TYPE_OF[min(nodes(site, job))])
        site.until_rounds(2)
    # The fastest, the largest of the others, the rest; then as before.
    assert types == ["v100", "p100", "k80", "v100"]
    (site.directory / "fixed").touch()
    last = run()
    site.until_running(last)
    assert TYPE_OF[min(nodes(site, last))] == "v100"
    config = str(site.hadard.directory / "hadar.yaml")
    user = site.queue()[last].user
    done = site.run([*HADAR, "speeds", "forget", user, "job:faulty.sh", "--config", config])
    # Three of GPU types, and those of the four ended jobs that ran for a second.
    assert re.fullmatch(r"[3-7] records deleted\n", done.stdout), done.stderr
    site.until_rounds(2)
    # Slurm still shows jobs of other tests.
    shown = site.run([*HADAR, "speeds", "show", "--config", config])
    assert shown.returncode == 0, shown.stderr
    assert "job:faulty.sh" not in shown.stdout
