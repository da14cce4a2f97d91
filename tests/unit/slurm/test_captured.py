"""The output of each version of Slurm (tests/data/slurm) is parsed with the same results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hadar_slurm.slurm.client.parse import (
    held_gang,
    parse_nodes,
    parse_queue,
    split_job_details,
)

CAPTURED = Path(__file__).parents[2] / "data" / "slurm"
VERSIONS = sorted(path.name for path in CAPTURED.iterdir() if path.is_dir())
MARK = "#0123456789abcdef0123456789abcdef"
# Numbers of GPUs that running jobs hold.
HELD = {"running-two-nodes": 4, "running-mixed": 3, "running-untyped": 2}
STATES = {
    "running-typed": "RUNNING",
    "suspended": "SUSPENDED",
    "completed": "COMPLETED",
    "failed": "FAILED",
    "cancelled": "CANCELLED",
    "requeued-held": "PENDING",
    "waits-for-job": "PENDING",
}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_captured_queue_is_read(version: str) -> None:
    """Nodes with their GPUs, job states, and the GPUs that running jobs hold are parsed."""
    texts = {
        path.stem: path.read_text("utf-8", "replace")
        for path in CAPTURED.joinpath(version).iterdir()
    }
    number = json.loads(texts["numbers"])
    nodes = {str(row.node.name): dict(row.node.gpus) for row in parse_nodes(texts["nodes"])}
    assert sorted(nodes) == ["n1", "n2", "n3", "n4", "n5", "n6"]
    assert nodes["n6"] == {"v100": 2, "k80": 2}
    queue = {row.key: row for row in parse_queue(texts["queue"], MARK)}
    assert {name: queue[number[name]].state for name in STATES} == STATES
    details = split_job_details(texts["jobs"], {row.raw_id for row in queue.values()})
    assert number["running-typed"] not in details  # other jobs' names imitate its line
    rows = {name: queue[number[name]] for name in HELD}
    gangs = {name: held_gang(details[row.raw_id], row.nodes) for name, row in rows.items()}
    assert {name: gang.num_gpus for name, gang in gangs.items()} == HELD
