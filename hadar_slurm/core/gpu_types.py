"""GPU types: what is known of each, by whatever name a site gives it, and what a job needs of one.

A slice (MIG) is a type of its own, with its share of the GPU's memory and speed. How fast types are
relative to each other: `core/type_ratios.py`. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

# `1g.5gb`, as in `nvidia_a100-sxm4-40gb_mig_1g.5gb`: one compute slice with 5 GB.
_SLICE = re.compile(r"(?<![0-9])([0-9])g\.([0-9]+)gb")
# The GPU of a slice that names none, and the compute slices of a GPU (NVIDIA MIG User Guide).
_SLICED, _NUM_SLICES = "a100", {"a30": 4}
_MOST_SLICES = 7
# `v100-sxm2` is a `v100`, not a `v100s`.
_SOCKET = re.compile("sxm[0-9]?")
_WORD = re.compile("[0-9a-z]+")
# What `a100_80gb` says of its memory.
_MEMORY = re.compile(r"(?<![0-9])([0-9]+)gb")
# What may follow a name within a word: no further digits but those of a memory.
_LATER = re.compile(r"(?![0-9])|[1-9][0-9]*gb")
# What a variant's name adds to that of its type.
_VARIANTS = frozenset({"80gb", "pcie", "nvl"})


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What is known of a GPU type; None where nothing is."""

    # Relative speed: a training's throughput follows memory bandwidth (docs/speeds.md).
    bandwidth_gb_s: float | None = None
    memory_gb: float | None = None
    # Of CUDA, such as 8.0.
    compute_capability: float | None = None


@dataclass(frozen=True, slots=True)
class MeasuredRatios:
    """Throughputs on one GPU of each type relative to one of `relative_to`, by model and type."""

    relative_to: str
    by_model: Mapping[str, Mapping[str, float]]

    def without(self, gpu_types: Collection[str]) -> MeasuredRatios:
        """Return the ratios without those of some types."""
        kept = {
            model: {name: value for name, value in ratios.items() if name not in gpu_types}
            for model, ratios in self.by_model.items()
        }
        return replace(self, by_model=kept)


NOT_MEASURED = MeasuredRatios("", {})

# By name, in lower case.
KnownTypes = Mapping[str, GpuFacts]
# A site's own values by the name of the type: those of `GpuFacts`.
OwnTypes = Mapping[str, Mapping[str, float]]
NO_TYPES: OwnTypes = {}


def is_slice(name: str) -> bool:
    """Return whether a GPU type is a slice of a GPU (MIG)."""
    return _SLICE.search(name.lower()) is not None


def nearest_name(name: str, names: Iterable[str]) -> str | None:
    """Return which of `names` a site's name of a whole GPU contains; the longest, None without one.

    Case, punctuation and sockets do not count: `nvidia_a100-sxm4-80gb` is an `a10080gb` rather than
    an `a100` or an `a10`. A number counts as a whole: an `a1000` is no `a100`.
    """
    words = _WORD.findall(_SOCKET.sub("", name.lower()))
    plain, ends = "".join(words), set(accumulate(map(len, words)))
    found = [
        (len(key), known)
        for known in names
        if (key := _plain(known))
        and (at := plain.find(key)) >= 0
        and ((end := at + len(key)) in ends or _LATER.match(plain, end))
    ]
    return max(found)[1] if found else None


def type_among(name: str, names: Collection[str], known: KnownTypes) -> str | None:
    """Return which of `names`, in lower case, a type is that is no slice; None: none of them.

    A variant is the type itself: an `h100_pcie` is an `h100` where no other is among the names.
    """
    lower = name.lower()
    if lower in names:
        return lower
    nearest = None if is_slice(lower) else nearest_name(lower, names)
    if nearest is None:
        return None
    own, plain = _plain(nearest_name(lower, {*names, *known}) or ""), _plain(nearest)
    return nearest if own == plain or own.removeprefix(plain) in _VARIANTS else None


def whole_of(name: str) -> str:
    """Return the GPU of a slice, as far as its name says it; an A100 if it does not."""
    lower = name.lower()
    found = _SLICE.search(lower)
    words = _WORD.findall(lower[: found.start()] if found else lower)
    return "-".join(word for word in words if word != "mig") or _SLICED


@lru_cache(maxsize=4096)
def _plain(name: str) -> str:
    return "".join(_WORD.findall(name.lower()))


def share_of(name: str, known: KnownTypes) -> float:
    """Return which share of its GPU's speed a slice has; 1 for a whole GPU.

    It has a share of the GPU's compute slices and one of its memory and bandwidth; the less counts.
    """
    found = _SLICE.search(name.lower())
    if found is None:
        return 1.0
    whole = nearest_name(whole_of(name), known)
    memory_gb = facts_of(whole_of(name), known).memory_gb
    compute = int(found[1]) / _NUM_SLICES.get(whole or "", _MOST_SLICES)
    return min(1.0, compute, float(found[2]) / memory_gb if memory_gb else 1.0)


def facts_of(name: str, known: KnownTypes) -> GpuFacts:
    """Return what is known of a type by whatever name a site gives it.

    Memory in the name wins over the known one. A slice has its share of the bandwidth.
    """
    lower = name.lower()
    if lower in known:
        return known[lower]
    if sliced := _SLICE.search(lower):
        found, share = facts_of(whole_of(lower), known), share_of(lower, known)
        speed = found.bandwidth_gb_s and found.bandwidth_gb_s * share
        return replace(found, memory_gb=float(sliced[2]), bandwidth_gb_s=speed)
    nearest = nearest_name(lower, known)
    found = GpuFacts() if nearest is None else known[nearest]
    told = _MEMORY.search(lower)
    return replace(found, memory_gb=float(told[1])) if told else found


def parse_gpu_types(text: str) -> dict[str, GpuFacts]:
    """Return the types in the JSON of `data/gpu_types.json`, by name."""
    return {name: GpuFacts(**row) for name, row in json.loads(text)["gpu_types"].items()}


def parse_measured(text: str) -> MeasuredRatios:
    """Return the measured ratios in the JSON of `data/gpu_types.json`."""
    tree = json.loads(text)["measured"]
    return MeasuredRatios(tree["relative_to"], tree["ratios"])


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
