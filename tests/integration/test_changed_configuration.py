"""Slurm's configuration changes below a running hadard: its rounds go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration.site import Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.processes import end
from hadar_slurm.slurm.client.parse import detail_of

pytestmark = pytest.mark.slurm

OFTEN = {"policy": "hadar", "round_seconds": 1}


@pytest.fixture
def site(local_cluster: Callable[..., LocalCluster], tmp_path: Path) -> Iterator[Site]:
    """Give a cluster whose configuration the test may change."""
    with local_cluster("v100:4,p100:4,k80:4") as cluster:
        site = Site(cluster, tmp_path)
        yield site
        site.close()


def known(site: Site) -> set[str]:
    """Return the GPU types of the newest round's cluster."""
    lines = [line for line in site.lines() if "nodes" in line]
    return {name for node in lines[-1]["nodes"].values() for name in node["gpus"]}


def configure(site: Site, *changes: tuple[str, str], without: str = "") -> None:
    """Change texts in slurm.conf and gres.conf, leave out a node, and restart Slurm's daemons."""
    cluster = site.cluster
    cluster.stop_controller()
    for path in (cluster.slurm_conf, cluster.directory / "gres.conf"):
        kept = path.with_suffix(".all")
        text = kept.read_text() if kept.exists() else path.read_text()
        for old, new in changes:
            text = text.replace(old, new)
        kept.write_text(text)
        lines = text.splitlines(keepends=True)
        path.write_text("".join(ln for ln in lines if f"NodeName={without} " not in ln))
    # The jobs of the nodes go on.
    end(lambda: [p for p in cluster.processes() if p.is_daemon and p.node], grace_s=5)
    cluster.start_controller()
    for node in cluster.nodes:
        if node.name != without:
            cluster.start_node(node.name)


def submit(site: Site, speeds: str, *words: str) -> JobId:
    """Submit a job of two GPUs that hadard places."""
    return site.submit(
        f"--hadar-throughput={speeds}",
        "--hadar-gang=2",
        "--hadar-steps=1000000",
        *words,
        site.script("sleeps", "sleep 600"),
    )


def test_rounds_go_on_while_types_are_renamed_and_nodes_come_and_go(site: Site) -> None:
    """The job whose GPUs have another type now runs on; others are placed, on new nodes too."""
    site.start(**OFTEN)
    first = submit(site, "v100=20,p100=10,k80=5")
    site.until_running(first)
    assert site.tree(first) == {"n1": {"v100": 2}}

    renamed = (("gpu:v100:4", "gpu:a100:4"), ("Type=v100", "Type=a100"))
    configure(site, *renamed, without="n3")
    second = submit(site, "p100=10", "--exclude=n1")
    site.until_running(second)
    assert site.tree(second) == {"n2": {"p100": 2}}
    eventually(lambda: known(site) == {"a100", "p100"}, "the new type, and no n3", 20)

    configure(site)
    third = submit(site, "k80=5", "--exclude=n1,n2")
    site.until_running(third)
    assert site.tree(third) == {"n3": {"k80": 2}}
    assert {site.state(job) for job in (first, second)} == {"RUNNING"}
    assert site.queue()[first].restarts == 0


def test_no_waiting_job_is_lost_with_a_node(site: Site) -> None:
    """A job that requires a node is ended with it; one that excludes it, or all others, waits."""

    def sleeps(*words: str) -> JobId:
        return site.submit(*words, "--time=10", "--wrap=sleep 600", command=["sbatch"])

    # Their ends are known, and so the next starts.
    site.until_running(*(sleeps("-G4", "-N1") for _ in range(3)))
    site.start(**OFTEN | {"mode": "steer"}, enrol="{partitions: [main]}")
    asked = (("-G1",), ("--gres=gpu:2",), ("-N1", "-G3"), ("-a0-1", "-G1"))
    jobs = [sleeps(*words) for words in asked]
    jobs += [submit(site, speeds) for speeds in ("v100=9,p100=1", "k80=9")]
    waiting = {key for key, row in site.queue().items() if row.state == "PENDING"}
    eventually(lambda: waiting <= {*site.newest()["jobs"]}, lambda: site.told(*jobs))
    site.until_rounds(2)
    for gone in ("n1", "n2", "n3"):
        configure(site, without=gone)
        site.until_rounds(2)
        lost = [row for key, row in site.queue().items() if key in waiting and not row.is_live]
        assert lost == [], gone
    configure(site)
    site.until_running(jobs[0])


def share_and_hide(site: Site) -> None:
    """Give GPUs of n1 shards, those of n2 MPS, n3 slices, and Slurm a node that it hides."""
    gpu = site.cluster.directory / "gpu"
    power = "SuspendTime=3600\nSuspendProgram=/bin/true\nResumeProgram=/bin/true"
    hidden = "NodeName=cloud-1 CPUs=16 RealMemory=8000 State=CLOUD Gres=gpu:v100:2"
    configure(
        site,
        ("GresTypes=gpu", f"GresTypes=gpu,mps,shard\n{power}"),
        ("gpu:v100:4", "gpu:v100:4,shard:8"),
        ("gpu:p100:4", "gpu:p100:4,mps:400"),
        ("gpu:k80:4", "gpu:k80:2,gpu:k80_1g.5gb:2"),
        ("PartitionName=main ", f"{hidden}\nPartitionName=main "),
        (f"{gpu}/n1-v100-[0-3]", f"{gpu}/n1-v100-[0-3]\nNodeName=n1 Name=shard Count=8"),
        (f"{gpu}/n2-p100-[0-3]", f"{gpu}/n2-p100-[0-3]\nNodeName=n2 Name=mps Count=400"),
        (
            f"{gpu}/n3-k80-[0-3]",
            f"{gpu}/n3-k80-[0-1]\nNodeName=n3 Name=gpu Type=k80_1g.5gb File={gpu}/n3-k80-[2-3]",
        ),
    )


def test_gpus_that_are_shared_or_hidden_are_occupied(site: Site) -> None:
    """A job whose node gets other types below it runs on; nothing is placed on shared GPUs."""
    site.start(**OFTEN)
    first = submit(site, "k80=5")
    site.until_running(first)
    share_and_hide(site)
    plain = ("--wrap=sleep 600",)
    shares = [
        site.submit("--nodelist=n1", "--gres=shard:1", *plain, command=["sbatch"]),
        site.submit("--nodelist=n2", "--gres=mps:50", *plain, command=["sbatch"]),
    ]
    site.until_running(*shares)
    hidden = site.submit("--nodelist=cloud-1", "--gres=gpu:2", *plain, command=["sbatch"])
    eventually(lambda: site.state(hidden) == "CONFIGURING", lambda: site.told(hidden))
    second = submit(site, "v100=20,p100=10", "--hadar-gang=4")
    third = submit(site, "v100=20", "--hadar-gang=3")
    site.until_running(third)
    assert site.tree(third) == {"n1": {"v100": 3}}
    assert site.queue()[second].is_held
    assert site.state(first) == "RUNNING"
    assert site.queue()[first].restarts == 0


def test_no_narrowing_makes_a_slice_more_likely(site: Site) -> None:
    """A plain job that is kept off any node is kept off the one with slices beside A100s."""
    gpu, slices = site.cluster.directory / "gpu", "a100_1g.5gb"
    configure(
        site,
        ("gpu:k80:4", f"gpu:a100:2,gpu:{slices}:2"),
        (
            f"Type=k80 File={gpu}/n3-k80-[0-3]",
            f"Type=a100 File={gpu}/n3-k80-[0-1]\n"
            f"NodeName=n3 Name=gpu Type={slices} File={gpu}/n3-k80-[2-3]",
        ),
    )
    site.occupy(n1="gpu:4", n2="gpu:4", n3="gpu:4")
    site.start(**OFTEN | {"mode": "steer"}, enrol="{partitions: [main]}")
    plain = ("-t10", "--wrap=sleep 600")
    jobs = [site.submit(gpus, *plain, command=["sbatch"]) for gpus in ("-G1", "-G2")]
    site.until_rounds(4)
    assert {*jobs} <= {*site.newest()["jobs"]}
    for job in jobs:
        excluded = detail_of(site.details()[job]).excluded
        assert not excluded or "n3" in excluded
        assert "n3" not in site.queue()[job].requested_nodes
