"""Jobs that Slurm may preempt by requeue are moved as it would, on a real Slurm.

The scripts say nothing of hadard: they name a partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration.counted_steps import KNOWN, trained, write_program
from integration.site import Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.devcluster.cluster import LocalCluster

pytestmark = pytest.mark.slurm

STEPS = 250
PARTITIONS = """
PartitionName=killable Nodes=ALL MaxTime=INFINITE PriorityTier=1
PartitionName=spot Nodes=ALL MaxTime=INFINITE PriorityTier=1 GraceTime=4
PartitionName=cheap Nodes=ALL MaxTime=INFINITE PriorityTier=1 PreemptMode=CANCEL
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""
# By name: the words of sbatch, the command, and how often a step may be trained.
MOVED = {
    "by the epoch": ("--partition=killable", "python3 train.py dies", 2),
    "saves on SIGTERM": ("--partition=spot", "srun python3 train.py exits 143", 1),
    "dies of SIGTERM": ("--partition=spot", "srun python3 train.py dies", 2),
}
STAYS = {
    "above the others": "--partition=main",
    "would be cancelled": "--partition=cheap",
    "one of two is not": "--partition=killable,main",
    "--no-requeue": "--partition=killable --no-requeue",
    "forbidden": "--partition=killable --hadar-checkpoint=no",
    "an array": "--partition=killable --array=0",
}


@pytest.fixture
def site(local_cluster: Callable[..., LocalCluster], tmp_path: Path) -> Iterator[Site]:
    """Give a cluster on which all V100s are taken, and partitions below the default one."""
    with local_cluster("v100:8,k80:8") as cluster:
        conf = cluster.slurm_conf
        text = conf.read_text().replace("PartitionName=main ", "PartitionName=main PriorityTier=9 ")
        conf.write_text(text + PARTITIONS)
        cluster.stop_controller()
        cluster.start_controller()
        site = Site(cluster, tmp_path)
        site.settings |= {"policy": "hadar", "round_seconds": 4, "restart_cost_seconds": 0.5}
        write_program(site, steps=STEPS, signal="SIGTERM", every=20)
        yield site
        site.close()


def submit(site: Site, name: str, words: str, command: str) -> JobId:
    """Submit a user's script."""
    script = site.script(name.replace(" ", "-"), command)
    return site.submit(*KNOWN, "--output=%j.out", *words.split(), script)


def test_they_are_moved_once_and_lose_one_interval_at_most(site: Site) -> None:
    """With the GraceTime of their partition; the second move would lose too much in a day."""
    fast = site.occupy(n1="gpu:8")
    site.start(moves="{default: preemptible}")
    jobs = {name: submit(site, name, *given[:2]) for name, given in MOVED.items()}
    site.until_running(*jobs.values())
    eventually(lambda: all(len(trained(site, job)[0]) > 100 for job in jobs.values()), "they train")
    site.free(*fast.values())
    done = [site.directory / f"{job}.done" for job in jobs.values()]
    eventually(lambda: all(p.exists() for p in done), lambda: site.told(*jobs.values()), 120)
    for name, job in jobs.items():
        counts, nodes = trained(site, job)
        assert nodes == ["n2", "n1"], (name, site.told(job))
        assert set(counts) == {*range(1, STEPS + 1)}, name
        assert max(counts.values()) == MOVED[name][2], name
        assert sum(count - 1 for count in counts.values()) <= 20, name
        assert site.queue()[job].restarts == 1, name
        remarks = {r for line in site.lines() for r in line["jobs"].get(job, {}).get("remarks", ())}
        assert any("ago, would lose" in remark for remark in remarks), (name, remarks)


def test_others_stay(site: Site) -> None:
    """Those that Slurm would not requeue, whose user has said no, or for which others wait."""
    fast = site.occupy(n1="gpu:8")
    site.start(moves="{default: preemptible}")
    jobs = [submit(site, name, words, "sleep 600") for name, words in STAYS.items()]
    awaited = submit(site, "awaited", "--partition=killable", "sleep 600")
    site.submit("--dependency=afterany:" + awaited, "--wrap=true", command=["sbatch"])
    eventually(
        lambda: [row.state for row in site.queue().values()].count("RUNNING") == len(STAYS) + 2,
        lambda: site.told(*jobs),
    )
    site.until_rounds(2)
    site.free(*fast.values())
    site.until_rounds(4)
    assert {row.restarts for row in site.queue().values()} == {0}
    assert [a for line in site.lines() for a in line["actions"] if a["do"] == "stop"] == []
    assert "other jobs wait for its end" in "; ".join(site.seen(awaited)["remarks"])


@pytest.mark.parametrize("moves", ["{}", "{default: preemptible, partition=spot: signals}"])
def test_the_site_decides(site: Site, moves: str) -> None:
    """And hadar-sbatch says so, with what the job may lose."""
    site.start(moves=moves)
    script = site.script("job", "srun python3 train.py exits 143")
    said = site.hadar_sbatch(*KNOWN, "--partition=spot", "--hadar-dry-run", script)
    assert "may be requeued" not in said.stderr
    assert "--open-mode" not in said.stdout


def test_the_line_says_by_which_rule(site: Site) -> None:
    """And how to forbid it."""
    site.start(moves="{partition=spot: preemptible:30m}")
    script = site.script("job", "srun python3 train.py exits 143")
    said = site.hadar_sbatch(*KNOWN, "--partition=spot", "--hadar-dry-run", script)
    rule = "may be requeued to move, as Slurm may preempt it, after TERM and 4 s, losing at most"
    assert f"{rule} 30 min of work in a day; not with --hadar-checkpoint=no" in said.stderr
    assert "--open-mode=append" in said.stdout
