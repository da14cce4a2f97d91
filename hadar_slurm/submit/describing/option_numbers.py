"""The numbers in hadar-sbatch's options, each read once. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from hadar_slurm.core.time_limit import parse_duration
from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.description import MAX_LOSS_S, MIN_LOSS_S
from hadar_slurm.jobspec.units import parse_count, parse_memory_gb, parse_number
from hadar_slurm.submit.own_options import PREFIX

_COUNTS = ("steps", "batch-size", "copies")
_NUMBERS = ("restart-cost", "compute-capability")
_AUTO = ("copies", "auto")


class OptionNumbers(NamedTuple):
    """What is given as a number; None, 0 or nothing where it is not given."""

    steps: int
    batch_size: int | None
    # None: as many copies as nodes suit.
    copies: int | None
    restart_cost_s: float | None
    memory_gb: float
    compute_capability: float
    # By GPU type in lower case, in steps/s.
    throughputs: Mapping[str, float]
    # The job saves: when asked or, with the seconds of work that a requeue may lose, at times.
    saves: bool
    loss_s: float


def option_numbers(given: Mapping[str, str]) -> OptionNumbers:
    """Return the numbers in the options; raises JobSpecError naming the wrong one."""
    speeds, (saves, loss_s) = _speeds(given.get("throughput")), _checkpoint(given)
    counts = {
        name: parse_count(given[name], PREFIX + name, JobSpecError)
        for name in _COUNTS
        if name in given and (name, given[name].lower()) != _AUTO
    }
    numbers = {
        name: parse_number(given[name], PREFIX + name, JobSpecError)
        for name in _NUMBERS
        if name in given
    }
    what = f"{PREFIX}throughput"
    throughputs = {k: parse_number(text, what, JobSpecError) for k, text in speeds.items()}
    memory_gb = parse_memory_gb(given.get("gpu-memory", "0"))
    if memory_gb is None:
        text = f"{PREFIX}gpu-memory {given['gpu-memory']!r}: expected a size such as 40G"
        raise JobSpecError(text)
    return OptionNumbers(
        steps=counts.get("steps", 0),
        batch_size=counts.get("batch-size"),
        copies=counts.get("copies"),
        restart_cost_s=numbers.get("restart-cost"),
        memory_gb=memory_gb,
        compute_capability=numbers.get("compute-capability", 0.0),
        throughputs=throughputs,
        saves=saves,
        loss_s=loss_s,
    )


def _speeds(text: str | None) -> dict[str, str]:
    """Return the throughput given for each GPU type, in lower case, as text."""
    pairs = [part.partition("=") for part in text.split(",")] if text is not None else []
    for gpu_type, equals, value in pairs:
        if not (gpu_type and equals):
            part = f"{gpu_type}{equals}{value}"
            raise JobSpecError(f"{PREFIX}throughput {part!r}: expected TYPE=STEPS_PER_S")
    return {gpu_type.strip().lower(): value for gpu_type, _, value in pairs}


def _checkpoint(given: Mapping[str, str]) -> tuple[bool, float]:
    """Return whether the job saves, and the seconds of work that a requeue may lose; 0: none.

    The former with a signal, the latter without one. Copies save in any case.
    """
    text = given.get("checkpoint", "no")
    level, colon, time = text.lower().partition(":")
    loss_s = parse_duration(time) if level == "restart" else None
    if not colon and level in ("yes", "no"):
        loss_s = 0.0
    elif loss_s is None:
        wanted = "yes, no, or restart:TIME with the work that a requeue may lose, such as 20m"
        raise JobSpecError(f"{PREFIX}checkpoint {text!r}: expected {wanted}, 90s or 1h")
    elif not MIN_LOSS_S <= loss_s <= MAX_LOSS_S:
        least, most = f"{MIN_LOSS_S:g}s", f"{MAX_LOSS_S / 86_400:g}d"
        raise JobSpecError(f"{PREFIX}checkpoint {text!r}: expected a time of {least} to {most}")
    return level != "no" or "copies" in given, loss_s
