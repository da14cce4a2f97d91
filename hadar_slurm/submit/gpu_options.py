"""The GPUs that sbatch's own options request. Pure. Imports little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

# Their GPUs are not counted: they depend on a node's sockets, or are of newer Slurm versions.
UNCOUNTED = ("gpus-per-socket", "tres-per-task")
# Their number is that of each node.
PER_NODE = ("gpus-per-node", "gres", "gpus-per-socket")
_COUNTED = ("gpus", "gpus-per-node", "gres", "gpus-per-task", "gpus-per-socket")


class GpuOption(NamedTuple):
    """One option of sbatch that requests GPUs: their number (0: not counted), and named types."""

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
            number = sum(counts) * (_sockets(values) if name == "gpus-per-socket" else 1)
            found.append(GpuOption(name, number, tuple(filter(None, gpu_types))))
    if "gpu" in values.get("tres-per-task", ""):
        found.append(GpuOption("tres-per-task", 0, ()))
    return found


def _sockets(values: Mapping[str, str]) -> int:
    """Return the sockets of each node that the options ask for, 0 if they do not say."""
    text = values.get("sockets-per-node", "")
    return int(text) if text.isascii() and text.isdigit() else 0


def why_not_counted(asked: Sequence[GpuOption], values: Mapping[str, str]) -> str:
    """Return why `asked` in these values is not read as a number of GPUs of one or any type.

    An empty text: it is.
    """
    if uncounted := [o.name for o in asked if o.name in UNCOUNTED and not o.number]:
        text = "hadard reads --gpus, --gpus-per-node, --gpus-per-task and --gres=gpu:N"
        return f"--{uncounted[0]} is given; {text}"
    if not sum(option.number for option in asked):
        return "no GPUs are requested"
    named = {gpu_type: None for option in asked for gpu_type in option.gpu_types}
    if len(named) > 1:
        return f"GPUs of several types are requested together ({', '.join(named)})"
    gres = values.get("gres")
    if gres is not None and not all(map(_is_gpu, gres.split(","))):
        return f"--gres={gres} requests other resources too"
    return "--tres-per-task requests other resources too" if "tres-per-task" in values else ""


def _is_gpu(part: str) -> bool:
    return part.split(":")[0] == "gpu"


def _read(part: str) -> tuple[int, str]:
    """Return count and type of `4`, `v100:4`, `v100` or ``; the count is 1 for the last two."""
    gpu_type, _, count = part.rpartition(":")
    if count.isascii() and count.isdigit():
        return int(count), gpu_type
    return 1, part
