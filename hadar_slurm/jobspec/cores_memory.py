"""Parses the cores and the memory in a job's line of `scontrol show job -d -o`. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

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
