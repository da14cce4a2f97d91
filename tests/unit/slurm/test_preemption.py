"""What Slurm preempts by requeue, from what Slurm 22.05.8 printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from fakes.fake_slurm import FakeSlurm
from fakes.fake_tools import FakeRunner

from hadar_slurm.errors import SlurmUnavailable
from hadar_slurm.slurm.client.preemption import read_preemptible
from hadar_slurm.slurm.client.protocol import Preemptible

CONFIG = """Configuration data as of 2026-11-30T23:29:51
PreemptMode             = {mode}
PreemptType             = preempt/{kind}
PreemptExemptTime       = 00:05:00
"""
PARTITION = (
    "PartitionName={} AllowGroups=ALL QoS=N/A GraceTime={} Hidden=NO Nodes=n[1-2] "
    "PriorityJobFactor=1 PriorityTier={} RootOnly=NO OverTimeLimit=NONE PreemptMode={} State=UP\n"
)
PARTITIONS = "".join(
    PARTITION.format(*row)
    for row in (
        ("main", 0, 10, "OFF"),
        ("low", 120, 1, "REQUEUE"),
        ("gang", 0, 1, "GANG,REQUEUE"),
        ("cheap", 0, 1, "CANCEL"),
        ("apart", 0, 1, "REQUEUE"),
    )
)
QOS = """normal||cluster|00:00:00|
low||requeue|00:00:30|
high|low,normal|cluster|00:00:00|00:10:00
cheap||cancel|00:00:00|
alone||requeue|00:00:00|
urgent|cheap,high|cluster|00:00:00|
"""


@dataclass(frozen=True)
class Answers(FakeRunner):
    """Answers as Slurm does, where it has the answer."""

    texts: Mapping[str, str] | None = None

    def run(self, argv: Sequence[str], **options: object) -> str:
        """Return the text for the last word of a command that has one."""
        found = next((text for word, text in (self.texts or {}).items() if word in argv), None)
        if found == "":
            raise SlurmUnavailable("sacctmgr: error: no answer")
        return super().run(argv) if found is None else found


def read(kind: str, mode: str) -> Preemptible:
    """Return what a Slurm preempts."""
    slurm = FakeSlurm(
        "v100:2,v100:2",
        partitions={"low": ["n1"], "gang": ["n2"], "cheap": ["n1"], "apart": []},
    )
    texts = {"config": CONFIG.format(kind=kind, mode=mode), "partition": PARTITIONS, "qos": QOS}
    return read_preemptible(Answers(slurm=slurm, texts=texts))


def test_partitions_below_another_on_their_nodes() -> None:
    """By their own PreemptMode; their GraceTime is in seconds."""
    assert read("partition_prio", "REQUEUE") == {
        "partition=low": (120.0, 300.0),
        "partition=gang": (0.0, 300.0),
    }


@pytest.mark.parametrize("mode", ["REQUEUE", "CANCEL", "OFF"])
def test_qos_that_another_preempts(mode: str) -> None:
    """By their own PreemptMode, or that of the cluster; their PreemptExemptTime goes before."""
    of_cluster = {
        "qos=normal": (0.0, 300.0),
        "qos=high": (0.0, 600.0),
    }
    own = {"qos=low": (30.0, 300.0)}
    assert read("qos", mode) == own | (of_cluster if mode == "REQUEUE" else {})


def test_no_answer_is_no_preemption(caplog: pytest.LogCaptureFixture) -> None:
    """slurmdbd may be down; the partitions that hadard places in are known nevertheless."""
    texts = {"config": CONFIG.format(kind="qos", mode="REQUEUE"), "qos": ""}
    assert read_preemptible(Answers(slurm=FakeSlurm("v100:2"), texts=texts)) == {}
    assert "sacctmgr: error: no answer" in caplog.text


def test_a_slurm_without_preemption() -> None:
    assert read("none", "OFF") == {}
