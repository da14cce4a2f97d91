"""Changes as Slurm's commands: their exact words, in the forms of old and new versions."""

from __future__ import annotations

import pytest
from builders import a_gang

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.client.scontrol import (
    command,
    keeps_types,
    parse_version,
    request_for,
    requested_gpus,
)
from hadar_slurm.slurm.client.updates import (
    ClearRequest,
    Hold,
    Prefer,
    Release,
    Requeue,
    SetRequest,
    SignalCheckpoint,
    Update,
)

JOB = JobId("31_2")
TWO_NODES = a_gang("n1:v100:2 n2:v100:2")
MIXED = a_gang("n1:v100:1 n3:k80:1")
OLD, NEW = (22, 5), (24, 11)


def ask(
    gang: Gang,
    version: tuple[int, int],
    *,
    names_type: bool = False,
    begins_in_s: int | None = None,
) -> SetRequest:
    return SetRequest(JOB, request_for(gang, version, names_type=names_type), begins_in_s)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ClearRequest(JOB),
            "scontrol update JobId=31_2 TresPerNode= TresPerJob= TresPerTask= TresPerSocket= "
            "ReqNodeList=",
        ),
        (
            ClearRequest(JOB, keeps_nodes=True),
            "scontrol update JobId=31_2 TresPerNode= TresPerJob= TresPerTask= TresPerSocket=",
        ),
        (
            ClearRequest(JOB, delays_start=True),
            "scontrol update JobId=31_2 StartTime=now+60 TresPerNode= TresPerJob= TresPerTask= "
            "TresPerSocket= ReqNodeList=",
        ),
        (
            ask(TWO_NODES, OLD, names_type=True),
            "scontrol update JobId=31_2 NumNodes=2-2 ReqNodeList=n[1-2] "
            "TresPerNode=gres:gpu:v100:2",
        ),
        (
            ask(TWO_NODES, NEW, names_type=True),
            "scontrol update JobId=31_2 NumNodes=2-2 ReqNodeList=n[1-2] "
            "TresPerNode=gres/gpu:v100:2",
        ),
        (
            ask(TWO_NODES, OLD, begins_in_s=1),
            "scontrol update JobId=31_2 NumNodes=2-2 ReqNodeList=n[1-2] TresPerNode=gres:gpu:2 "
            "StartTime=now+1",
        ),
        (
            ask(MIXED, OLD),
            "scontrol update JobId=31_2 NumNodes=2-2 ReqNodeList=n[1,3] TresPerNode=gres:gpu:1",
        ),
        (
            ask(a_gang("gpu7:k80:4"), NEW, begins_in_s=1),
            "scontrol update JobId=31_2 NumNodes=1-1 ReqNodeList=gpu7 TresPerNode=gres/gpu:4 "
            "StartTime=now+1",
        ),
        (
            # A site without GPU types: squeue's `gpu` is not a type to request.
            ask(a_gang("n1:gpu:2"), NEW, names_type=True),
            "scontrol update JobId=31_2 NumNodes=1-1 ReqNodeList=n1 TresPerNode=gres/gpu:2",
        ),
        (
            SetRequest(JOB, Request(num_nodes="1-4", per_job="gres:gpu:4")),
            "scontrol update JobId=31_2 NumNodes=1-4 TresPerJob=gres:gpu:4",
        ),
        (
            SetRequest(JOB, Request(per_task="gres:gpu:1", per_socket="gres:gpu:2"), begins_in_s=1),
            "scontrol update JobId=31_2 NumNodes=1 TresPerTask=gres:gpu:1 "
            "TresPerSocket=gres:gpu:2 StartTime=now+1",
        ),
        (Hold(JOB), "scontrol uhold 31_2"),
        (Release(JOB), "scontrol release 31_2"),
        (SignalCheckpoint(JOB), "scancel --signal=USR1 --batch 31_2"),
        (Requeue(JOB), "scontrol requeuehold 31_2"),
        (Prefer(JOB, "v100"), "scontrol update JobId=31_2 Prefer=v100"),
        (Prefer(JOB, ""), "scontrol update JobId=31_2 Prefer="),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_words_of_a_command(change: Update, words: str) -> None:
    """Every argument is a separate word; no shell is needed."""
    assert command(change) == words.split()


def test_what_a_node_is_asked_for() -> None:
    """GPUs are typed if the request names the type, else untyped."""
    assert requested_gpus(TWO_NODES, names_type=True) == (("v100", 2),)
    assert requested_gpus(TWO_NODES, names_type=False) == (("gpu", 2),)
    assert requested_gpus(MIXED, names_type=False) == (("gpu", 1),)


def test_nodes_are_folded() -> None:
    """The node list of a large gang fits on a command line."""
    many = a_gang(" ".join(f"gpu{number:03}:k80:1" for number in (1, 2, 3, 7, 10)))
    assert "ReqNodeList=gpu[001-003,007,010]" in command(ask(many, NEW))


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("slurm-wlm 22.05.8", (22, 5)),
        ("slurm 24.11.5", (24, 11)),
        ("slurm 26.05.0-0rc1", (26, 5)),
        ("slurm 23.02", (23, 2)),
        ("Welcome to X 25.11, RHEL 8.9\nslurm-wlm 22.05.8\n", (22, 5)),
        ("", (0, 0)),
        ("slurm of the future", (0, 0)),
    ],
)
def test_versions(text: str, version: tuple[int, int]) -> None:
    """Year and month are parsed; without them the oldest version is assumed."""
    assert parse_version(text) == version


@pytest.mark.parametrize(
    ("version", "keeps"),
    [((0, 0), True), ((22, 5), True), ((24, 5), True), ((24, 11), False), ((26, 5), False)],
)
def test_old_versions_keep_types(version: tuple[int, int], *, keeps: bool) -> None:
    """Measured on 22.05.8 and 24.11.5; versions between them count as old."""
    assert keeps_types(version) is keeps
