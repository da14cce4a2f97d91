"""Whether a waiting job still asks for the GPUs of its description."""

from __future__ import annotations

import pytest

from hadar_slurm.core.job import Shape
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.owners_gpus import is_as_described
from hadar_slurm.jobspec.request import Request

PLAIN = Description(steps=1, workload="w", gpus=4)
NODES = Description(steps=1, workload="w", gpus=4, shape=Shape(2, 2), asks={"gpus-per-node": "2"})
TASKS = Description(steps=1, workload="w", gpus=4, asks={"gpus-per-task": "v100:1"})
OTHER = Description(steps=1, workload="w", gpus=4, asks={"gpus": "2"})
BY_TASK = Description(steps=1, workload="w", gpus=2)
FURTHER = Description(steps=1, workload="w", gpus=2, asks={"gres": "gpu:2,craynetwork:1"})
SLICE = Description(steps=1, workload="w", gpus=2, shape=Shape(2, 1), asks={"gres": "gpu:2g.10gb"})
TWICE = Description(
    steps=1, workload="w", gpus=4, shape=Shape(2, 2), asks={"gpus-per-node": "2", "gres": "gpu:2"}
)
ESTIMATED = Description(steps=1, workload="w", gpus=4, asks={"gpus-per-task": "1", "nodes": "1-1"})
COPY = Description(
    steps=1, workload="w", gpus=1, shape=Shape(1, 1), copies=2, gangs={"v100": 1, "k80": 4}
)


@pytest.mark.parametrize(
    ("described", "request_"),
    [
        (PLAIN, Request(per_job="gres:gpu:4", num_nodes="1-1048576")),
        (PLAIN, Request(per_job="gres/gpu:4", num_nodes="2-2")),
        (PLAIN, Request(per_node="gres:gpu:v100:2", nodes=("n1", "n2"))),
        (PLAIN, Request(per_node="gres:gpu:2", num_nodes="2-2")),
        (PLAIN, Request()),
        (NODES, Request(per_node="gres/gpu:2", num_nodes="2-2")),
        (NODES, Request(per_node="gres/gpu:2", nodes=("n1", "n2"))),
        (TASKS, Request(per_task="gres/gpu:V100=1", num_nodes="1-4")),
        (OTHER, Request(per_job="gres:gpu:2")),
        (OTHER, Request(per_node="gres:gpu:4", nodes=("n1",))),
        (COPY, Request(per_node="gres:gpu:k80:4", nodes=("n1",))),
        (BY_TASK, Request(per_task="gres/gpu:1", num_nodes="1-2")),
        (FURTHER, Request(per_node="gres:gpu:2,gres:craynetwork:1")),
        (SLICE, Request(per_node="gres/gpu:2g.10gb", num_nodes="2-2")),
        (TWICE, Request(per_node="gres:gpu:2,gres:gpu:2", num_nodes="2-2")),
        (ESTIMATED, Request(per_task="gres/gpu=1", num_nodes="2-2")),
    ],
)
def test_it_asks_as_submitted_or_as_it_is_pinned(described: Description, request_: Request) -> None:
    """In any of the forms that Slurm or hadard give it."""
    assert is_as_described(request_, encode(described))
    assert is_as_described(request_, "no description")


@pytest.mark.parametrize(
    ("described", "request_"),
    [
        (PLAIN, Request(per_job="gres:gpu:2", num_nodes="1-1048576")),
        (PLAIN, Request(per_node="gres:gpu:v100:4", nodes=("n1", "n2"))),
        (PLAIN, Request(per_node="gres:gpu:2", num_nodes="1-1")),
        (NODES, Request(per_node="gres/gpu:4", num_nodes="2-2")),
        (NODES, Request(per_node="gres/gpu:2", num_nodes="4-4")),
        (TASKS, Request(per_task="gres/gpu:v100=2", num_nodes="1-4")),
        (TASKS, Request(per_task="gres/gpu:k80=1", num_nodes="1-4")),
        (COPY, Request(per_node="gres:gpu:2", nodes=("n1",))),
        (TWICE, Request(per_node="gres:gpu:2,gres:gpu:4", num_nodes="2-2")),
    ],
)
def test_what_its_owner_has_changed_is_seen(described: Description, request_: Request) -> None:
    """Another number of GPUs or nodes, or another type."""
    assert not is_as_described(request_, encode(described))
