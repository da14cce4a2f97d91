"""Slurm's texts about GPUs. The long ones are output of Slurm 22.05.8."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.jobspec.gres import parse_gpu_detail, parse_gpus, parse_shared_gpus

# `scontrol show job -d -o` of a running job, from JOB_GRES on; the text before names no GPU.
TWO_NODES = (
    "JobId=30 JobName=wrap NodeList=n[1-2] BatchHost=n1 NumNodes=2 NumCPUs=2 NumTasks=2 "
    "TRES=cpu=2,mem=200M,node=2,billing=2 Socks/Node=* CoreSpec=* JOB_GRES=gpu:v100:4   "
    "Nodes=n1 CPU_IDs=1 Mem=100 GRES=gpu:v100:2(IDX:1-2)   "
    "Nodes=n2 CPU_IDs=0 Mem=100 GRES=gpu:v100:2(IDX:0-1) MinCPUsNode=1 MinMemoryCPU=100M "
    "Command=(null) Power= TresPerNode=gres:gpu:2 "
)
FOLDED = (
    "JobId=31 ReqNodeList=n[1-2] NodeList=n[1-2] JOB_GRES=gpu:v100:4   "
    "Nodes=n[1-2] CPU_IDs=0 Mem=100 GRES=gpu:v100:2(IDX:0-1) MinCPUsNode=1 "
    "TresPerNode=gres:gpu:v100:2"
)
MIXED_NODE = "   Nodes=n5 CPU_IDs=0 Mem=100 GRES=gpu:k80:1(IDX:0),gpu:v100:1(IDX:2) MinCPUsNode=1"
OTHER_TYPE_ZERO = "   Nodes=n5 CPU_IDs=0 Mem=100 GRES=gpu:v100:2(IDX:2-3),gpu:k80:0(IDX:)"
NO_GPU = "JOB_GRES=(null)   Nodes=n3 CPU_IDs=0 Mem=100 GRES= MinCPUsNode=1 Features=(null)"
# Without -o each part is on its own line.
LINES = """   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*
   JOB_GRES=gpu:v100:3
     Nodes=n1 CPU_IDs=0-1,4 Mem=100 GRES=gpu:v100:1(IDX:0)
     Nodes=n[2,4-5] CPU_IDs=0 Mem=0 GRES=gpu:p100:2(IDX:0,3),gpu:rtx_6000:1(IDX:4)
   MinCPUsNode=1 MinMemoryCPU=100M MinTmpDiskNode=0
"""

gpu_types = st.from_regex(r"[a-z0-9][a-z0-9_.\-]{0,11}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("", {}),
        ("(null)", {}),
        ("gpu:p100:6,gpu:rtx:2", {"p100": 6, "rtx": 2}),
        ("gpu:v100:0,gpu:k80:2(IDX:0-1)", {"k80": 2}),
        ("gpu:k80:2(IDX:0-1),gpu:v100:0(IDX:)", {"k80": 2}),
        ("gpu:4(S:0-1)", {"gpu": 4}),
        ("gpu:4", {"gpu": 4}),
        ("gpu:v100:4(S:0),gpu:k80:2(S:1)", {"v100": 4, "k80": 2}),
        ("gpu:v100:3(IDX:0,2-3),gpu:k80:2(IDX:0,1)", {"v100": 3, "k80": 2}),
        ("gpu:v100:1,gpu:v100:2", {"v100": 3}),
        ("gpu:a100_3g.20gb:7", {"a100_3g.20gb": 7}),
        ("gpu:nvidia_a100-sxm4-40gb:8(S:0-1)", {"nvidia_a100-sxm4-40gb": 8}),
        ("gpu:1080:2", {"1080": 2}),
        ("craynetwork:4,gpu:v100:2,shard:v100:32", {"v100": 2}),
        ("mygpu:v100:2", {}),
        ("gpu:0", {}),
    ],
)
def test_gpus_are_counted_by_type(text: str, gpus: dict[str, int]) -> None:
    """Types with a count above zero are returned; other resources are skipped."""
    assert parse_gpus(text) == gpus


def test_gpus_without_a_type_go_by_the_name_given() -> None:
    """A site may have GPUs without types."""
    assert parse_gpus("gpu:2,gpu:k80:1", untyped="any") == {"any": 2, "k80": 1}


@given(gpus=st.dictionaries(gpu_types, st.integers(0, 64), max_size=5), is_indexed=st.booleans())
def test_what_slurm_prints_is_read_back(gpus: dict[str, int], *, is_indexed: bool) -> None:
    """An inventory in Slurm's form is parsed to its counts above zero."""
    suffix = "(IDX:0-3,7)" if is_indexed else ""
    text = ",".join(f"gpu:{gpu_type}:{count}{suffix}" for gpu_type, count in gpus.items())
    assert parse_gpus(text) == {gpu_type: count for gpu_type, count in gpus.items() if count}


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (TWO_NODES, [("n1", {"v100": 2}), ("n2", {"v100": 2})]),
        (FOLDED, [("n[1-2]", {"v100": 2})]),
        (MIXED_NODE, [("n5", {"k80": 1, "v100": 1})]),
        (OTHER_TYPE_ZERO, [("n5", {"v100": 2})]),
        (NO_GPU, []),
        (LINES, [("n1", {"v100": 1}), ("n[2,4-5]", {"p100": 2, "rtx_6000": 1})]),
        ("JobId=9 JobState=PENDING NodeList= ReqNodeList=n1 TresPerNode=gres:gpu:2", []),
    ],
    ids=["two nodes", "folded", "mixed node", "zero of a type", "no GPU", "lines", "pending"],
)
def test_a_jobs_detail_tells_each_part(text: str, parts: list[tuple[str, dict[str, int]]]) -> None:
    """Each part of an allocation that has GPUs is returned, with its node list still folded."""
    assert parse_gpu_detail(text) == parts


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ("gpu:v100:1(IDX:2),shard:v100:2(IDX:0-1),mps:0", {"v100": 2}),
        ("gpu:k80:0(IDX:N/A),shard:k80:0(IDX:N/A),mps:k80:1(IDX:0)", {"k80": 1}),
        ("gpu:v100:0(IDX:N/A),shard:0,mps:0", {}),
        ("gpu:a100:0(IDX:N/A),shard:a100:5(0/4,4/4,1/4)", {"a100": 2}),
        ("gpu:1(IDX:0),shard:2(1/4,1/4,0/4)", {"gpu": 2}),
        ("gpu:a100_3g.20gb:1(IDX:0)", {}),
        ("", {}),
    ],
)
def test_gpus_of_which_jobs_have_shards(text: str, shared: dict[str, int]) -> None:
    """This number of GPUs cannot be had whole, in the forms of several versions."""
    assert parse_shared_gpus(text) == shared
