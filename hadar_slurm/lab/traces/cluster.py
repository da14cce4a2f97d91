"""Clusters from a text such as `20xV100,20xP100,20xK80`, or from a YAML file.

A file lists nodes and the GPUs of each:

    nodes:
      - name: gpu[01-05]
        gpus: {V100: 4}
      - name: old[1-2]
        gpus: {K80: 8, P100: 2}

The case of GPU types does not matter; all nodes get the first spelling.
"""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Iterable, Mapping

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
from pydantic import Field

from hadar_slurm.core.cluster import Cluster, Node
from hadar_slurm.errors import ConfigError
from hadar_slurm.lab.traces.yaml_file import Section, YamlFile, parse_yaml

MAX_GPUS = 1_000_000
MAX_NODES = 100_000

_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
# Patterns of names have no groups and no set operation except the comma.
_PATTERN = re.compile(r"[A-Za-z0-9._,/\[\]-]+")
_RANGES = re.compile(r"\[([^\]]*)\]")


class NodeEntry(Section):
    """Nodes with equal GPUs: a name or pattern of names, and the GPUs of each by type."""

    name: str = Field(min_length=1)
    gpus: dict[str, int] = Field(min_length=1)


class ClusterFile(Section):
    """A cluster file."""

    nodes: list[NodeEntry] = Field(min_length=1)


def parse_cluster(text: str, *, gpus_per_node: int) -> Cluster:
    """Return a cluster of single-type nodes with up to `gpus_per_node` GPUs each.

    Raises ConfigError with the invalid part.
    """
    if gpus_per_node < 1:
        raise ConfigError(f"{gpus_per_node} GPUs per node: expected 1 or more")
    nodes: list[Node] = []
    spellings: dict[str, str] = {}
    for part in text.split(","):
        count, cross, gpu_type = part.strip().partition("x")
        if not (cross and count.isascii() and count.isdigit() and _TYPE.fullmatch(gpu_type)):
            raise ConfigError(f"cluster {part!r}: expected COUNTxTYPE, such as 20xV100")
        left = int(count) if len(count) < 10 else MAX_GPUS + 1
        if not 1 <= left <= MAX_GPUS:
            want = f"COUNTxTYPE with 1 to {MAX_GPUS} GPUs, such as 20xV100"
            raise ConfigError(f"cluster {part!r}: expected {want}")
        gpu_type = spellings.setdefault(gpu_type.lower(), gpu_type)
        while left > 0:
            nodes.append(Node.of(f"n{len(nodes) + 1}", {gpu_type: min(left, gpus_per_node)}))
            left -= gpus_per_node
    return Cluster.of(nodes)


def is_cluster_file(text: str) -> bool:
    """Return whether the text is the name of a YAML file: it ends in .yaml or .yml."""
    return text.lower().endswith((".yaml", ".yml"))


def parse_cluster_file(text: str, origin: str) -> Cluster:
    """Return the cluster in YAML `text`; `origin` names it in errors.

    Raises ConfigError with line, key, value and the values accepted.
    """
    example = "`nodes:` and a list, such as `- {name: n[1-5], gpus: {V100: 4}}`"
    file = parse_yaml(text, origin, ClusterFile, NodeEntry, what="cluster file", expected=example)
    return Cluster.of(_nodes(file))


def _nodes(file: YamlFile[ClusterFile]) -> Iterable[Node]:
    spellings: dict[str, str] = {}
    places: dict[str, str] = {}
    num_gpus = 0
    for index, entry in enumerate(file.value.nodes):
        gpus = _gpus(entry.gpus, spellings, file.place("nodes", index, "gpus"))
        place = file.place("nodes", index, "name")
        for name in _names(entry.name, place):
            if name in places:
                fault = f"is already listed in {places[name]}; list it once, with all its GPUs"
                raise ConfigError(f"{place}: node {name} {fault}")
            places[name] = place
            num_gpus += sum(gpus.values())
            if len(places) > MAX_NODES or num_gpus > MAX_GPUS:
                limits = f"{MAX_NODES} nodes and {MAX_GPUS} GPUs in all"
                raise ConfigError(f"{place}: expected at most {limits}")
            yield Node.of(name, gpus)


def _gpus(gpus: Mapping[str, int], spellings: dict[str, str], place: str) -> dict[str, int]:
    """Return GPUs by type, in the spelling used throughout the file."""
    counts: dict[str, int] = {}
    for gpu_type, count in gpus.items():
        if not _TYPE.fullmatch(gpu_type):
            want = "expected a name such as V100 or 1g.5gb"
            raise ConfigError(f"{place}: GPU type {gpu_type!r}: {want}")
        if not 1 <= count <= MAX_GPUS:
            raise ConfigError(f"{place}: {gpu_type}: {count}: expected 1 or more GPUs on each node")
        gpu_type = spellings.setdefault(gpu_type.lower(), gpu_type)
        if gpu_type in counts:
            raise ConfigError(f"{place}: {gpu_type} twice; upper and lower case are one GPU type")
        counts[gpu_type] = count
    return counts


def _names(pattern: str, place: str) -> Iterable[str]:
    """Return the names in a pattern such as `n[1-5,8],login1`."""
    ways = math.prod(_num_values(ranges) for ranges in _RANGES.findall(pattern))
    try:
        if not _PATTERN.fullmatch(pattern) or not 1 <= ways <= MAX_NODES:
            raise ValueError(f"letters, digits, ._- and ranges of at most {MAX_NODES} names")
        names = [str(name) for name in NodeSet(pattern, resolver=RESOLVER_NOGROUP)]
    except (NodeSetException, ValueError) as error:
        want = f"expected a name or a pattern such as n[1-5]: {error}"
        raise ConfigError(f"{place}: node name {reprlib.repr(pattern)}: {want}") from error
    if not names:
        raise ConfigError(f"{place}: node name {pattern!r}: expected a name such as n[1-5]")
    return names


def _num_values(ranges: str) -> int:
    """Return an upper bound of the number of values of `1-5,8`, without expanding it."""
    if re.search("[0-9]{10}", ranges):
        return MAX_NODES + 1
    bounds = [list(map(int, re.findall("[0-9]+", part)[:2])) for part in ranges.split(",")]
    return sum(max(pair) - min(pair) + 1 if len(pair) == 2 else 1 for pair in bounds)
