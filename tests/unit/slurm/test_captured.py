"""The output of each version of Slurm (tests/data/slurm) is parsed with the same results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hadar_slurm.jobspec.gres import parse_gpus
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.fairshare import parse_fair_shares
from hadar_slurm.slurm.client.parse import (
    array_throttles,
    asked_nodes,
    detail_of,
    held_gang,
    parse_nodes,
    parse_queue,
    split_job_details,
)
from hadar_slurm.slurm.client.scontrol import parse_version

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


def captured(version: str) -> dict[str, str]:
    """Return the captured texts of one version by command."""
    paths = CAPTURED.joinpath(version).iterdir()
    return {path.stem: path.read_text("utf-8", "replace") for path in paths}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_captured_queue_is_read(version: str) -> None:
    """Nodes with their GPUs, job states, and the GPUs that running jobs hold are parsed."""
    texts = captured(version)
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


@pytest.mark.parametrize("version", VERSIONS)
def test_captured_details_of_jobs_are_read(version: str) -> None:
    """Array throttles, excluded nodes and ranges of nodes are parsed from the job details."""
    texts = captured(version)
    number = json.loads(texts["numbers"])
    queue = {row.key: row for row in parse_queue(texts["queue"], MARK)}
    details = split_job_details(texts["jobs"], {row.raw_id for row in queue.values()})
    throttled = set(array_throttles(details.values()).values())
    assert throttled == {2}
    of_key = {row.key: details[row.raw_id] for row in queue.values() if row.raw_id in details}
    apart = {key for key, detail in of_key.items() if detail_of(detail).is_set_apart}
    assert apart == {number[name] for name in ("scrontab",) if name in number}
    assert asked_nodes(of_key[number["per-node-range"]], "3") == "3-3"


@pytest.mark.parametrize("version", VERSIONS)
def test_captured_partitions_shares_and_version_are_read(version: str) -> None:
    """The output of sinfo, sshare and `scontrol --version` is parsed."""
    texts = captured(version)

    class Captured:
        """Answers sinfo with the captured text."""

        def run(self, argv: list[str]) -> str:
            """Return the captured output."""
            return {"sinfo": texts["partitions"]}[argv[0]]

    partitions = CommandLine(Captured()).partitions()  # type: ignore[arg-type]
    assert (partitions.names, partitions.default) == (("main", "other"), "main")
    gres = dict(line.split("|")[:2] for line in texts["gres"].splitlines())
    assert parse_gpus(gres["n6"]) == {"v100": 2, "k80": 2}
    assert parse_version(texts["version"]) == tuple(map(int, version.split(".")))
    if version != "22.05":  # that cluster had no accounting
        shares = parse_fair_shares(texts["shares"])
        assert {"alice", "bob", "carol", "dave"} <= {user for _, user in shares}
        assert set(shares.values()) == {1.0}
