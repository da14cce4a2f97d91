"""The GPUs that sbatch's own options request. Pure. Imports little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

# Their GPUs are not counted: they depend on the number of sockets, or are of newer Slurm versions.
UNCOUNTED = ("gpus-per-socket", "tres-per-task")
_COUNTED = ("gpus", "gpus-per-node", "gres", "gpus-per-task")


class GpuOption(NamedTuple):
    """One option of sbatch that requests GPUs: their number (0 for UNCOUNTED), and named types."""

    name: str
    number: int
    gpu_types: tuple[str, ...]


def gpu_options(values: Mapping[str, str]) -> list[GpuOption]:
    """Return the options that request GPUs, of the values of all options."""
    found = []
    for name in _COUNTED:
        parts = values[name].split(",") if name in values else []
        if name == "gres":
            parts = [part.removeprefix("gpu").removeprefix(":") for part in parts if _is_gpu(part)]
        if parts:
            counts, gpu_types = zip(*map(_read, parts), strict=True)
            found.append(GpuOption(name, sum(counts), tuple(filter(None, gpu_types))))
    found += [
        GpuOption(name, 0, ())
        for name in UNCOUNTED
        if name in values and (name != "tres-per-task" or "gpu" in values[name])
    ]
    return found


def other_resources(values: Mapping[str, str]) -> str:
    """Return the option that requests generic resources other than GPUs, or an empty string."""
    gres = values.get("gres")
    if gres is not None and not all(map(_is_gpu, gres.split(","))):
        return f"--gres={gres}"
    return "--tres-per-task" if "tres-per-task" in values else ""


def _is_gpu(part: str) -> bool:
    return part.split(":")[0] == "gpu"


def _read(part: str) -> tuple[int, str]:
    """Return count and type of `4`, `v100:4`, `v100` or ``; the count is 1 for the last two."""
    gpu_type, _, count = part.rpartition(":")
    if count.isascii() and count.isdigit():
        return int(count), gpu_type
    return 1, part
