"""The cores and the memory of copies: in a line of `scontrol show job -d -o`, and in a request."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hadar_slurm.jobspec.request import Request

_SIZES = ("MinCPUsNode", "CPUs/Task", "MinMemoryNode", "MinMemoryCPU")
_MEMORY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGT]?)")
_MB = {"K": 1 / 1024, "M": 1.0, "": 1.0, "G": 1024.0, "T": 1024.0**2}


class Sizes(NamedTuple):
    """The cores and MB of memory that a pending job asks for, as in `Request`."""

    node_cores: str
    task_cores: str
    node_memory_mb: str
    core_memory_mb: str


def shown_sizes(detail: str) -> Sizes | None:
    """Return a job's cores and memory by its detail line; None if a text of its user imitates them.

    Slurm shows the memory of the node or that of a core.
    """
    found = [set(re.findall(rf" {name}=(\S+)", detail)) for name in _SIZES]
    cores, task_cores, *memory = ("".join(values) for values in found)
    is_sure = all(len(values) <= 1 for values in found) and cores.isdecimal()
    if not (is_sure and task_cores.isdecimal() and len(list(filter(None, memory))) == 1):
        return None
    amounts = [_MEMORY.fullmatch(text) if text else None for text in memory]
    if not any(amounts):
        return None
    node, core = (str(round(float(m[1]) * _MB[m[2]])) if m else "" for m in amounts)
    return Sizes(cores, task_cores, node, core)


def with_sizes(
    request: Request, own: Request, *, cores: int | None, memory_mb: int | None
) -> Request:
    """Return a request with these cores and MB of a node, and its owner's where they are None.

    What the owner's request does not say stays unchanged.
    """
    on_node, of_task, of_node, of_core = own.sizes
    if cores and on_node:
        on_node = of_task = str(cores)
    if memory_mb and (of_node or of_core):
        of_node, of_core = str(memory_mb), ""
    return replace(
        request,
        node_cores=on_node,
        task_cores=of_task,
        node_memory_mb=of_node,
        core_memory_mb=of_core,
    )


def size_words(sizes: Sequence[str]) -> str:
    """Return cores and memory as text, in the order of `Request.sizes`."""
    units = ("cores a node", "cores a task", "MB a node", "MB a core")
    given = [f"{size} {unit}" for size, unit in zip(sizes, units, strict=True) if size]
    return ", ".join(given) or "cores and memory that are not known"
