"""Invocations of sbatch from sites' public documentation, and the test-bed that they are mapped to.

tests/data/sites/invocations.yaml names the pages and says what was mapped to what.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml
from ClusterShell.NodeSet import NodeSet

_FILE = Path(__file__).parent / "data" / "sites" / "invocations.yaml"
_TREE = yaml.safe_load(_FILE.read_text(encoding="utf-8"))
_BED = _TREE["test_bed"]

# The test-bed: nodes with their GPUs by type and features, partitions with their nodes.
GPUS: Mapping[str, Mapping[str, int]] = {
    name: row["gpus"] for row in _BED["nodes"] for name in NodeSet(row["name"])
}
FEATURES: Mapping[str, str] = {
    name: row["features"] for row in _BED["nodes"] for name in NodeSet(row["name"])
}
PARTITIONS: Mapping[str, NodeSet] = {
    name: NodeSet(nodes) for name, nodes in _BED["partitions"].items()
}
RESERVATIONS: Mapping[str, str] = _BED["reservations"]
UNRESERVED = NodeSet.fromlist(GPUS) - NodeSet.fromlist(list(RESERVATIONS.values()))
TYPES = {name for gpus in GPUS.values() for name in gpus}
# Slices of GPUs (MIG), which hadard gives only to jobs that name them.
SLICES = {name for name in TYPES if "g." in name}


@dataclass(frozen=True)
class SiteInvocation:
    """Documented options: where, and what hadard and Slurm should make of them on the test-bed."""

    site: str
    page: str
    words: tuple[str, ...]
    environment: Mapping[str, str]
    # The GPUs of each job, and its nodes where the words fix their number.
    gpus: int
    nodes: int | None
    # Where the words allow GPUs: node and type.
    allowed: frozenset[tuple[str, str]]
    # Whether they name no type.
    any_type: bool
    # A part of the reason why hadard does not place the job; empty: it does.
    left: str

    @property
    def is_managed(self) -> bool:
        """Return whether hadard places the job now."""
        return not self.left

    @property
    def line(self) -> str:
        """Return the command line."""
        return shlex.join(("sbatch", *self.words))


def _read(site: Mapping[str, str], row: Mapping[str, object]) -> SiteInvocation:
    types, environment = row.get("types", TYPES - SLICES), row.get("environment", {})
    at = NodeSet(str(row["at"])) if "at" in row else UNRESERVED
    assert isinstance(types, list | set)
    assert isinstance(environment, dict)
    return SiteInvocation(
        site["name"],
        f"{site['pages']} {row['page']}",
        tuple(shlex.split(str(row["words"]))),
        environment,
        int(str(row.get("gpus", 0))),
        int(str(row["nodes"])) if "nodes" in row else None,
        frozenset((node, name) for node in at for name in GPUS[node] if name in types),
        "types" not in row,
        str(row.get("left", "")),
    )


SITE_INVOCATIONS = tuple(_read(site, row) for site in _TREE["sites"] for row in site["calls"])
