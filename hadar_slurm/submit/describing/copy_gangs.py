"""The GPUs, cores and memory of a copy by GPU type, from `--hadar-gang=v100:1,k80:4`. Pure.

All copies are tasks of one array: hadard sets these values on a task when it chooses the node.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.units import parse_count
from hadar_slurm.submit.own_options import PREFIX
from hadar_slurm.submit.request import SbatchRequest

_FORM = "v100:1,k80:4"
_MB = {"k": 1 / 1024, "m": 1.0, "": 1.0, "g": 1024.0, "t": 1024.0**2}


class CopyGangs(NamedTuple):
    """By GPU type in lower case: GPUs, cores and MB of memory; empty where not given by type."""

    gpus: Mapping[str, int]
    cores: Mapping[str, int]
    memory_mb: Mapping[str, int]


def copy_gangs(request: SbatchRequest) -> CopyGangs:
    """Return what a copy has on each GPU type; raises JobSpecError naming the wrong value."""
    given = request.hadar_options
    is_by_type = ":" in given.get("gang", "")
    for name in ("cores", "mem"):
        if name in given and not is_by_type:
            remedy = f"give the GPUs of a copy by type too, as in {PREFIX}gang={_FORM}"
            raise JobSpecError(f"{PREFIX}{name} {given[name]}: {remedy}")
    if not is_by_type:
        return CopyGangs({}, {}, {})
    gang = given["gang"]
    if "copies" not in given:
        remedy = f"add {PREFIX}copies, or give one number of GPUs"
        raise JobSpecError(f"{PREFIX}gang {gang}: only copies have other gangs by type; {remedy}")
    gpus = _by_type(gang, "gang", _whole)
    cores = _by_type(given.get("cores", ""), "cores", _whole)
    memory = _by_type(given.get("mem", ""), "mem", _megabytes)
    for name, values in (("cores", cores), ("mem", memory)):
        if other := sorted(values.keys() - gpus.keys()):
            remedy = f"add {other[0]}:GPUs to {PREFIX}gang, or leave it out"
            raise JobSpecError(f"{PREFIX}{name} {other[0]}: a copy has no GPUs there; {remedy}")
    _check_request(request, cores, memory)
    return CopyGangs(gpus, cores, memory)


def _check_request(
    request: SbatchRequest, cores: Mapping[str, int], memory_mb: Mapping[str, int]
) -> None:
    """Raise JobSpecError for an option of sbatch beside which these cannot be set per task."""
    values = request.values
    if named := [option for option in request.gpus if option.gpu_types]:
        text = f"--{named[0].name} names {', '.join(named[0].gpu_types)}"
        remedy = f"name the types in {PREFIX}gang only"
        raise JobSpecError(f"{text}: the copies have several types; {remedy}")
    if "cpus-per-gpu" in values:
        # 22.05.8 gives a task that has run never fewer cores than it had.
        remedy = f"give the cores of a copy by type, as in {PREFIX}cores=v100:4,k80:16"
        text = "--cpus-per-gpu is given, and a copy's number of GPUs changes"
        raise JobSpecError(f"{text}: {remedy}")
    tasks = [name for name in ("ntasks", "ntasks-per-node") if values.get(name, "1") != "1"]
    if cores and tasks:
        text = f"--{tasks[0]}={values[tasks[0]]}: {PREFIX}cores are those of one task"
        raise JobSpecError(f"{text}; start the processes of a copy in its script, as torchrun does")
    if memory_mb and "mem-per-gpu" in values:
        remedy = "leave one of them out; by --mem-per-gpu Slurm counts for each gang"
        raise JobSpecError(f"--mem-per-gpu and {PREFIX}mem are given: {remedy}")


def _by_type(text: str, what: str, parse: Callable[[str, str], int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, colon, value = part.strip().rpartition(":")
        gpu_type = name.lower()
        if not (colon and gpu_type and value):
            raise JobSpecError(f"{PREFIX}{what} {part!r}: expected TYPE:NUMBER, as in {_FORM}")
        if gpu_type in found:
            raise JobSpecError(f"{PREFIX}{what} {text}: {gpu_type} is given twice")
        if re.fullmatch("0+", value):
            remedy = f"leave {gpu_type} out"
            least = "a copy has at least 1" if what != "gang" else "a copy has at least 1 GPU"
            raise JobSpecError(f"{PREFIX}{what} {part}: {least}; {remedy}")
        found[gpu_type] = parse(value, f"{PREFIX}{what} {gpu_type}")
    return found


def _whole(text: str, what: str) -> int:
    return parse_count(text, what, JobSpecError)


def _megabytes(text: str, what: str) -> int:
    """Return MB from `16G`, `16000M` or `16000`, as for sbatch's --mem."""
    found = re.fullmatch(r"([0-9]{1,12})([kmgt]?)b?", text.lower())
    if not found:
        raise JobSpecError(f"{what} {text!r}: expected a size such as 16G or 16000M")
    return max(1, int(int(found[1]) * _MB[found[2]]))
