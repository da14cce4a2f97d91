"""How fast GPU types are relative to each other, where a workload itself has not been measured.

One knowledge for hadard's first guess of a job and for the replay of a history. The ratio of two
types for a model is that of the first of these sources that has it:

1. speeds that a user gives;
2. the throughput table. Its models are families (`ResNet-50`, `LM`, ...), `_FAMILIES` maps other
   models to them. A family's ratio is the geometric mean over its batch sizes of the ratio of
   throughputs on one GPU (V100 gangs were measured on other machines than single V100s);
3. measured ratios in `data/gpu_types.json`, with their source. A family that was not measured takes
   the geometric mean of those that were;
4. the ratio of memory bandwidths, to that type of the sources before whose bandwidth is nearest.

A model without a family takes the geometric mean over all families. A slice of a GPU (MIG) has its
share (`core.gpu_types.share_of`). Of a type in none of the sources nothing is known. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from hadar_slurm.core.gpu_types import (
    KnownTypes,
    MeasuredRatios,
    facts_of,
    is_slice,
    share_of,
    type_among,
    whole_of,
)
from hadar_slurm.core.throughput import Throughputs, ThroughputTable

# Upper bound of the ratio of two GPUs' speeds; larger ones in a table are ignored.
MOST = 1e6
# Prefixes of model names, in lower case without punctuation; the longest match decides.
_PREFIXES: Mapping[str, str] = {
    "ResNet-50": "alexnet densenet efficientnet inception mobilenet resnet resnext vgg",
    "ResNet-18": "resnet18",
    "Transformer": "bert gpt roberta t5 transformer",
    "LM": "deepspeech gnmt lstm",
    "CycleGAN": "dcgan",
    "Recommendation": "ncf neumf recoder",
}
_FAMILIES = {start: family for family, starts in _PREFIXES.items() for start in starts.split()}


@dataclass(frozen=True, slots=True)
class Family:
    """The speeds of types for a model, relative to the anchor type."""

    speeds: Mapping[str, float]
    # By type and workload, where the model itself was measured.
    measured: Mapping[str, Mapping[str, float]]
    # The types in the throughput table.
    in_table: frozenset[str]


class Found(NamedTuple):
    """A type's speed: that of `key`, as a share or scaled by bandwidth."""

    value: float
    key: str
    is_scaled: bool = False


class Ratio(NamedTuple):
    """A type's speed over another's, and the speeds of both on which it rests."""

    value: float
    one: Found
    other: Found
    # The models of which it is the mean.
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class TypeRatios:
    """The ratios of GPU types by model. Answers are kept."""

    table: ThroughputTable
    known_types: KnownTypes
    measured: MeasuredRatios
    _answers: dict[object, Ratio | None] = field(default_factory=dict, init=False, repr=False)

    def family(self, name: str) -> str | None:
        """Return the table's model whose ratios apply to a model; None for the mean of all."""
        plain = _plain(name)
        if own := [model for model in self.families if _plain(model) == plain]:
            return own[-1]
        family = _FAMILIES.get(max(filter(plain.startswith, _FAMILIES), key=len, default=""))
        return family if family in self.families else None

    def names(self, name: str) -> bool:
        """Return whether the table has a workload or a model of exactly this name."""
        models = map(str.lower, self.families)
        return self.table.throughputs(name) is not None or name.lower() in models

    def ratio(
        self,
        gpu_type: str,
        reference: str,
        family: str | None = None,
        given: Mapping[str, float] | None = None,
    ) -> Ratio | None:
        """Return the speed of a type over that of `reference`; None if it is not known.

        `given` are speeds by type, in lower case, relative to the reference.
        """
        told = given or {}
        key = (gpu_type.lower(), reference.lower(), family, *told.items())
        if key not in self._answers:
            self._answers[key] = self._ratio(gpu_type.lower(), reference.lower(), family, told)
        return self._answers[key]

    def speeds(self, gpu_types: Iterable[str], family: str | None) -> dict[str, float | None]:
        """Return the speeds of types relative to one of them, by name in lower case.

        None where nothing is known. The one is that by which most are known.
        """
        names = [name.lower() for name in gpu_types]
        most: dict[str, float] = {}
        for reference in (self.anchor, *names):
            ratios = ((name, self.ratio(name, reference, family)) for name in names)
            found = {name: ratio.value for name, ratio in ratios if ratio}
            most = max(most, found, key=len)
            if len(most) == len(names):
                break
        return {name: most.get(name) for name in names}

    def _ratio(
        self, gpu_type: str, reference: str, family: str | None, given: Mapping[str, float]
    ) -> Ratio | None:
        told = {**given, reference: 1.0}
        if own := self._share(gpu_type, told):
            return Ratio(own.value, own, Found(1.0, reference))
        bases = self._surest({k: self._in(reference, f.speeds) for k, f in self.families.items()})
        if family in bases:
            bases = {family: bases[family]}
        values = self._surest(
            {
                name: self._in(
                    gpu_type,
                    {k: v / base.value for k, v in self.families[name].speeds.items()}
                    | dict(given),
                )
                for name, base in bases.items()
            }
            or {"": self._scaled(gpu_type, told)}
        )
        if not values:
            return None
        value = _geometric([found.value for found in values.values()])
        base = bases.get(next(iter(values)), Found(1.0, reference))
        return Ratio(value, next(iter(values.values())), base, tuple(values))

    @staticmethod
    def _surest(found: Mapping[str, Found | None]) -> dict[str, Found]:
        """Return the speeds by model that are known; those by bandwidth only if all are."""
        known = {name: speed for name, speed in found.items() if speed is not None}
        return {k: speed for k, speed in known.items() if not speed.is_scaled} or known

    def _in(self, gpu_type: str, speeds: Mapping[str, float]) -> Found | None:
        """Return a type's speed by its name, as a share, or by its bandwidth."""
        return self._share(gpu_type, speeds) or self._scaled(gpu_type, speeds)

    def _share(self, gpu_type: str, speeds: Mapping[str, float]) -> Found | None:
        if gpu_type in speeds:
            return Found(speeds[gpu_type], gpu_type)
        whole = whole_of(gpu_type) if is_slice(gpu_type) else gpu_type
        key = type_among(whole, speeds.keys(), self.known_types)
        if key is None:
            return None
        return Found(speeds[key] * share_of(gpu_type, self.known_types), key)

    def _scaled(self, gpu_type: str, speeds: Mapping[str, float]) -> Found | None:
        here = self._bandwidth(gpu_type)
        others = {key: there for key in speeds if (there := self._bandwidth(key))}
        if not here or not others:
            return None
        whole = self._bandwidth(whole_of(gpu_type)) or here
        key = min(others, key=lambda key: (abs(math.log(others[key] / whole)), key))
        return Found(speeds[key] * here / others[key], key, is_scaled=True)

    def _bandwidth(self, gpu_type: str) -> float | None:
        return facts_of(gpu_type, self.known_types).bandwidth_gb_s

    @cached_property
    def anchor(self) -> str:
        """The type to which speeds are relative within a family."""
        types = sorted({k for row in self.table.workloads.values() for k in row.gpu_types})
        own = self.measured.relative_to
        return own if own in types or not types else types[0]

    @cached_property
    def families(self) -> Mapping[str, Family]:
        """The speeds by model of the table; by measured model if the table has none."""
        rows: dict[str, dict[str, dict[str, float]]] = {}
        for name, throughputs in self.table.workloads.items():
            family = rows.setdefault(name.partition(" (batch size")[0], defaultdict(dict))
            for gpu_type in throughputs.gpu_types:
                if ratio := _ratio_of(throughputs, gpu_type, self.anchor):
                    family[gpu_type][name] = ratio
        is_joined = self.anchor == self.measured.relative_to
        measured = self.measured.by_model if is_joined else {}
        names = sorted({gpu_type for row in measured.values() for gpu_type in row})
        means = {k: _geometric([row[k] for row in measured.values() if k in row]) for k in names}
        found = {}
        for model in rows or measured:
            table, own = rows.get(model, {}), measured.get(model, {})
            speeds = {k: _geometric(list(of.values())) for k, of in table.items()}
            others = {k: {model: v} for k, v in own.items()}
            anchor = {self.anchor: dict.fromkeys((model, *self.table.workloads), 1.0)}
            found[model] = Family(
                {**means, **own, **speeds, self.anchor: 1.0},
                measured={**others, **table, **anchor},
                in_table=frozenset(table),
            )
        return found


def _ratio_of(throughputs: Throughputs, gpu_type: str, anchor: str) -> float | None:
    """Return the ratio of two types' throughputs for the smallest gang measured on both."""
    sizes, on = sorted({size for (_, size), _ in throughputs.rows}), throughputs.on
    both = ((on(gpu_type, size), on(anchor, size)) for size in sizes)
    ratios = (one / other for one, other in both if one > 0 and other > 0)
    return next((ratio for ratio in ratios if 1 / MOST < ratio < MOST), None)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _geometric(values: Sequence[float]) -> float:
    if len(set(values)) == 1:
        return values[0]  # without rounding
    return math.exp(_mean(list(map(math.log, values))))


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.partition(" (batch size")[0].lower()))
