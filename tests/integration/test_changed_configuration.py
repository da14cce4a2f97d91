"""Slurm's configuration changes below a running hadard: its rounds go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from integration.site import Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.snapshot import Round
from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.processes import end
from hadar_slurm.engine.loop import RoundRecord, run_round
from hadar_slurm.policies.policy import Policy
from hadar_slurm.policies.registry import make_policy
from hadar_slurm.slurm.backend import SlurmBackend

pytestmark = pytest.mark.slurm


@pytest.fixture
def site(local_cluster: Callable[..., LocalCluster], tmp_path: Path) -> Iterator[Site]:
    """Give a cluster whose configuration the test may change."""
    with local_cluster("v100:4,p100:4,k80:4") as cluster:
        site = Site(cluster, tmp_path)
        yield site
        site.close()


class Rounds:
    """The rounds of one hadard in this process."""

    def __init__(self, site: Site) -> None:
        self.backend: SlurmBackend = site.backend()
        self.policy: Policy = make_policy("hadar")
        self.memory: object = None
        self.done: list[RoundRecord] = []

    def run(self) -> RoundRecord:
        """Run a round, which must succeed once Slurm answers."""
        at = Round(len(self.done), self.backend.now_s(), 2.0, memory=self.memory)
        record = run_round(self.backend, self.policy, at, wake="test", clock=lambda: 0.0)
        self.memory = record.plan.memory if record.plan else self.memory
        self.done.append(record)
        assert record.errors == ()
        return record

    def known(self) -> set[str]:
        """Run a round and return the GPU types that it has seen."""
        snapshot = self.run().snapshot
        assert snapshot is not None
        return set(snapshot.cluster.gpus_by_type)

    def until_running(self, site: Site, job: JobId) -> None:
        """Run rounds until a job runs; nodes may have to report to slurmctld first."""

        def runs() -> bool:
            self.run()
            return site.state(job) == "RUNNING"

        eventually(runs, lambda: site.told(job), 20)


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
    site.vouch()
    return site.submit(
        f"--hadar-throughput={speeds}",
        "--hadar-gang=2",
        "--hadar-steps=1000000",
        *words,
        site.script("sleeps", "sleep 600"),
    )


def test_rounds_go_on_while_types_are_renamed_and_nodes_come_and_go(site: Site) -> None:
    """The job whose GPUs have another type now runs on; others are placed, on new nodes too."""
    rounds = Rounds(site)
    first = submit(site, "v100=20,p100=10,k80=5")
    rounds.until_running(site, first)
    assert site.tree(first) == {"n1": {"v100": 2}}

    renamed = (("gpu:v100:4", "gpu:a100:4"), ("Type=v100", "Type=a100"))
    configure(site, *renamed, without="n3")
    eventually(lambda: rounds.known() == {"a100", "p100"}, "the new type, and no n3", 20)
    second = submit(site, "p100=10", "--exclude=n1")
    rounds.until_running(site, second)
    assert site.tree(second) == {"n2": {"p100": 2}}

    configure(site)
    eventually(lambda: rounds.known() == {"a100", "p100", "k80"}, "n3", 20)
    third = submit(site, "k80=5", "--exclude=n1,n2")
    rounds.until_running(site, third)
    assert site.tree(third) == {"n3": {"k80": 2}}
    assert {site.state(job) for job in (first, second)} == {"RUNNING"}
    assert site.queue()[first].restarts == 0


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
    rounds = Rounds(site)
    first = submit(site, "k80=5")
    rounds.until_running(site, first)
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
    rounds.until_running(site, third)
    assert site.tree(third) == {"n1": {"v100": 3}}
    assert site.queue()[second].is_held
    assert site.state(first) == "RUNNING"
    assert site.queue()[first].restarts == 0
