"""GPU types: what is known of each, by whatever name a site gives it, and what a job needs of one.

A slice (MIG) is a type of its own, with its share of the GPU's memory and speed. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

# `1g.5gb`, as in `nvidia_a100-sxm4-40gb_mig_1g.5gb`: a slice with 5 GB.
_SLICE = re.compile(r"(?<![0-9])[0-9]g\.([0-9]+)gb")
# `v100-sxm2` is a `v100`, not a `v100s`.
_SOCKET = re.compile("sxm[0-9]?")
# What `a100_80gb` says of its memory.
_MEMORY = re.compile(r"(?<![0-9])([0-9]+)gb")


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What is known of a GPU type; None where nothing is."""

    # Relative speed: a training's throughput follows memory bandwidth (docs/speeds.md).
    bandwidth_gb_s: float | None = None
    memory_gb: float | None = None
    # Of CUDA, such as 8.0.
    compute_capability: float | None = None


# By name, in lower case.
KnownTypes = Mapping[str, GpuFacts]
# A site's own values by the name of the type: those of `GpuFacts`.
OwnTypes = Mapping[str, Mapping[str, float]]
NO_TYPES: OwnTypes = {}


def is_slice(name: str) -> bool:
    """Return whether a GPU type is a slice of a GPU (MIG)."""
    return _SLICE.search(name.lower()) is not None


def facts_of(name: str, known: KnownTypes) -> GpuFacts:
    """Return what is known of a type by whatever name a site gives it.

    Of all known names that are part of it the longest counts: `nvidia_a100_80gb` is an `a10080gb`
    rather than an `a100` or an `a10`. Memory in the name wins over the known one.
    """
    lower = name.lower()
    if lower in known:
        return known[lower]
    sliced = _SLICE.search(lower)
    whole = lower[: sliced.start()] if sliced else lower
    plain = "".join(filter(str.isalnum, _SOCKET.sub("", whole)))
    nearest = max((key for key in known if key in plain), key=len, default=None)
    found = GpuFacts() if nearest is None else known[nearest]
    if told := _MEMORY.search(whole):
        found = replace(found, memory_gb=float(told[1]))
    if sliced is None:
        return found
    memory_gb, speed = float(sliced[1]), found.bandwidth_gb_s
    if speed and found.memory_gb:
        speed *= min(1.0, memory_gb / found.memory_gb)
    return replace(found, memory_gb=memory_gb, bandwidth_gb_s=speed)


def relative_speeds(names: Iterable[str], known: KnownTypes) -> dict[str, float | None]:
    """Return the relative speed of types, by their names in lower case."""
    return {name.lower(): facts_of(name, known).bandwidth_gb_s for name in names}


def parse_gpu_types(text: str) -> dict[str, GpuFacts]:
    """Return the types in the JSON of `data/gpu_types.json`, by name."""
    return {name: GpuFacts(**row) for name, row in json.loads(text)["gpu_types"].items()}


def with_own(known: KnownTypes, own: OwnTypes) -> dict[str, GpuFacts]:
    """Return the known types with a site's own values over them."""
    own_facts = {k.lower(): replace(facts_of(k, known), **values) for k, values in own.items()}
    return {**known, **own_facts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a job needs of each of its GPUs."""

    # The types that it may have, in lower case; empty: all whole GPUs.
    types: tuple[str, ...] = ()
    memory_gb: float = 0.0
    compute_capability: float = 0.0

    def naming(self, name: str) -> Needs:
        """Return these, with a type named where all whole GPUs are allowed."""
        return self if self.types else replace(self, types=(name.lower(),))

    def why_not(self, name: str, known: KnownTypes) -> str:
        """Return why a job may not have GPUs of a type; "" if it may."""
        named, found = name.lower() in self.types, facts_of(name, known)
        if self.types and not named:
            return f"only {', '.join(self.types)} may be used"
        if is_slice(name) and not named:
            return "it is a slice of a GPU, and whole GPUs are requested"
        for what, least, has, unit in (
            ("memory", self.memory_gb, found.memory_gb, " GB"),
            ("compute capability", self.compute_capability, found.compute_capability, ""),
        ):
            if least and has is None:
                return f"its {what} is not known; hadar.yaml may say it (gpu_types)"
            if has is not None and has < least:
                return f"its {what} is {has:g}{unit}, {least:g}{unit} is needed"
        return ""


_UNITS = {"": 1.0, "g": 1.0, "gb": 1.0, "m": 1e-3, "mb": 1e-3, "t": 1e3, "tb": 1e3}


def parse_memory_gb(text: str) -> float | None:
    """Return GB from `40`, `40G`, `40GB` or `40000M`; None for anything else."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)", text.strip().lower())
    unit = _UNITS.get(found[2].replace("ib", "b")) if found else None
    return float(found[1]) * unit if found and unit else None
