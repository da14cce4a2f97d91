"""Throughputs of jobs in traces without them: recorded time and relative speeds of GPU types.

The recorded time of a job is its work. Its throughput on other GPU types follows from the relative
speed for its model, by the first of these sources that has one:

1. a speed given by the user (`parse_gpu_speeds`);
2. a workload of exactly this name in the throughput table: the ratio of its rows for the gang;
3. what hadard, too, believes of the types (`core/type_ratios.py`).

On a type that none of these covers, only jobs that ran on it can run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

from hadar_slurm.core.gpu_types import GpuFacts, parse_gpu_types, type_among
from hadar_slurm.core.throughput import SPREAD_FACTOR, GangThroughput, Throughputs, ThroughputTable
from hadar_slurm.core.throughput_model import UNCERTAINTIES, Origin
from hadar_slurm.core.type_ratios import MOST, Ratio, TypeRatios
from hadar_slurm.errors import UsageError
from hadar_slurm.jobspec.estimator import shipped_ratios
from hadar_slurm.jobspec.units import parse_number
from hadar_slurm.resources import data_file

DEFAULT_REFERENCE = "V100"
# The spread where it is not known, as for bandwidth (docs/speeds.md), and the least.
_UNKNOWN_SPREAD = UNCERTAINTIES[Origin.PUBLISHED]
_LEAST_SPREAD = UNCERTAINTIES[Origin.MEASURED]


class RatioOrigin(StrEnum):
    """Where a ratio comes from."""

    REFERENCE = "reference"
    GIVEN = "given"
    TABLE = "table"
    MEASURED = "measured"
    BANDWIDTH = "bandwidth"


class KnownRatio(NamedTuple):
    """A type's speed over another's; two thirds of the true ones within exp(`spread`) of it."""

    value: float
    origin: RatioOrigin
    spread: float
    # The number of models, or of a model's batch sizes, on which the spread rests; 0: on none.
    samples: int = 0
    # With origin `bandwidth`: the type whose speed is scaled.
    basis: str = ""


@dataclass(frozen=True, slots=True)
class TypeSpeed:
    """The speed of a GPU type that a replay assumes, relative to the reference type."""

    gpu_type: str
    # The model of the jobs concerned; "" for all jobs without a known model.
    model: str
    relative_to: str
    ratio: float
    # Two thirds of the true ratios are within this factor of it, 1 or more.
    spread: float
    origin: RatioOrigin
    # The number of models, or of a model's batch sizes, on which the spread rests; 0: on none.
    samples: int
    # With origin `bandwidth`: the type whose speed is scaled.
    basis: str

    @property
    def source(self) -> str:
        """Return the origin in words."""
        models = (
            f"{self.samples} {'batch sizes' if self.model else 'models'}" if self.samples else ""
        )
        match self.origin:
            case RatioOrigin.BANDWIDTH:
                return f"memory bandwidth, from {self.basis}"
            case RatioOrigin.TABLE:
                return f"throughput table, {models or 'one workload'}"
            case RatioOrigin.MEASURED:
                return f"measured elsewhere, {models or 'other models'}"
            case RatioOrigin.GIVEN:
                return "--gpu-speeds"
            case RatioOrigin.REFERENCE:
                return "reference"

    @property
    def tree(self) -> dict[str, object]:
        """Return it as JSON."""
        return asdict(self)


def shipped_gpu_types() -> dict[str, GpuFacts]:
    """Return the GPU types that the package knows, by name."""
    return parse_gpu_types(data_file("gpu_types.json").read_text(encoding="utf-8"))


def parse_gpu_speeds(text: str, what: str = "--gpu-speeds") -> dict[str, float]:
    """Return the speeds in `H100=2.5,A40=1.1`, relative to the reference type, names in lower case.

    Raises UsageError with the invalid part; `what` is for errors.
    """
    speeds: dict[str, float] = {}
    for part in text.split(",") if text.strip() else ():
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not (name and equals):
            raise UsageError(f"{what}: {part!r}: expected TYPE=SPEED, such as H100=2.5")
        speed = parse_number(value, f"{what}: speed of {name}", UsageError)
        if not 1 / MOST < speed < MOST:
            raise UsageError(f"{what}: speed of {name} {value!r}: expected a number above 0")
        if name.lower() in speeds:
            raise UsageError(f"{what}: {part!r}: given twice; upper and lower case are one type")
        speeds[name.lower()] = speed
    return speeds


@dataclass(frozen=True)
class SpeedTable:
    """Relative speeds of GPU types; one GPU of type `reference` is 1."""

    table: ThroughputTable
    reference: str = DEFAULT_REFERENCE
    # Speeds given by the user, names in lower case.
    given: Mapping[str, float] = field(default_factory=dict)
    # Types for which jobs need rates, in the cluster's spelling; the table's types if empty.
    gpu_types: tuple[str, ...] = ()
    # Caches: throughputs by job type relative to the recorded one, and by job type and steps/s.
    _relative: dict[object, dict[str, GangThroughput]] = field(default_factory=dict, init=False)
    _throughputs: dict[object, Throughputs] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.given.get(self.reference.lower(), 1.0) != 1.0:
            raise UsageError(
                f"--gpu-speeds: {self.reference} is the reference type, whose speed is 1; leave it "
                "out or give another --reference"
            )

    def throughputs(
        self,
        name: str,
        *,
        num_gpus: int,
        steps_per_s: float,
        ran_on: Iterable[str],
        was_spread: bool = False,
    ) -> Throughputs:
        """Return the rates of a job that trained `steps_per_s` with `num_gpus` on types `ran_on`.

        A gang of several types had the speed of its slowest. A job that ran on several nodes
        (`was_spread`) is faster by 1 / `SPREAD_FACTOR` on one.
        """
        types = frozenset(gpu_type.lower() for gpu_type in ran_on)
        job_type = (name.lower(), num_gpus, types, was_spread)
        key = (job_type, steps_per_s)
        if key not in self._throughputs:
            if job_type not in self._relative:
                found = self._find_relative(name, num_gpus, types, was_spread=was_spread)
                self._relative[job_type] = found
            rows = {}
            for gpu_type, (together, spread) in self._relative[job_type].items():
                spread = None if spread is None else spread * steps_per_s
                rows[gpu_type, num_gpus] = GangThroughput(together * steps_per_s, spread)
            self._throughputs[key] = Throughputs.of(rows)
        return self._throughputs[key]

    @cached_property
    def ratios(self) -> TypeRatios:
        """Return what is known of the types, without the speeds given."""
        return shipped_ratios(self.table)

    def family(self, name: str) -> str | None:
        """Return the table's model whose relative speeds apply; None for the mean of all."""
        return self.ratios.family(name)

    def names(self, name: str) -> bool:
        """Return whether the table has a workload or a model of exactly this name."""
        return self.ratios.names(name)

    def ratio(self, gpu_type: str, family: str | None) -> KnownRatio | None:
        """Return the speed of a type relative to a reference GPU; None if unknown."""
        found = self.ratios.ratio(gpu_type, self.reference, family, self.given)
        return _ratio_of(self.ratios, found, self.given) if found else None

    def speed(self, gpu_type: str, family: str | None) -> float | None:
        """Return the value of `ratio`."""
        found = self.ratios.ratio(gpu_type, self.reference, family, self.given)
        return None if found is None else found.value

    def here(self, gpu_type: str) -> str:
        """Return the cluster's type that a recorded one is ("": the reference), in lower case.

        The recorded one if the cluster has none.
        """
        name, types = (gpu_type or self.reference).lower(), [k.lower() for k in self.gpu_types]
        return type_among(name, types, self.ratios.known_types) or name

    def assumed(self, gpu_types: Iterable[str], names: Iterable[str]) -> tuple[TypeSpeed, ...]:
        """Return the speeds of types, the cluster's too, for the models of workloads."""
        families = sorted({self.family(name) or "" for name in names})
        return tuple(
            TypeSpeed(
                gpu_type,
                model=family,
                relative_to=self.reference,
                ratio=ratio.value,
                spread=math.exp(ratio.spread),
                origin=ratio.origin,
                samples=ratio.samples,
                basis=ratio.basis,
            )
            for family in families
            for gpu_type in self._all(gpu_types)
            if (ratio := self.ratio(gpu_type, family or None))
        )

    def note(self, gpu_types: Iterable[str]) -> tuple[str, ...]:
        """Return a sentence on types, the cluster's too, without a relative speed, if any."""
        unknown = [name for name in self._all(gpu_types) if not self.speed(name, None)]
        if not unknown:
            return ()
        return (
            f"unknown speed of {', '.join(unknown)} relative to {self.reference}: only jobs that "
            f"ran on it can run on it; give --gpu-speeds {unknown[0]}=SPEED",
        )

    def _all(self, gpu_types: Iterable[str]) -> list[str]:
        """Return types with those of the cluster, in the latter's spelling, sorted."""
        return sorted({name.lower(): name for name in (*gpu_types, *self.gpu_types)}.values())

    def _find_relative(
        self, name: str, num_gpus: int, ran_on: frozenset[str], *, was_spread: bool
    ) -> dict[str, GangThroughput]:
        """Return the rates on every type, relative to the recorded one."""
        gpu_types = self.gpu_types or (*self._table_types, self.reference)
        wanted = ran_on.union(gpu_type.lower() for gpu_type in gpu_types)
        family = self.family(name)
        speeds = {gpu_type: self.speed(gpu_type, family) or 0.0 for gpu_type in wanted}
        pace = min((speeds[gpu_type] for gpu_type in ran_on if speeds[gpu_type]), default=0.0)
        found: dict[str, GangThroughput] = {}
        for gpu_type, speed in speeds.items():
            if (speed and pace) or gpu_type in ran_on:
                value = speed / pace if speed and pace else 1.0
                rates = (value / SPREAD_FACTOR, value) if was_spread else (value,)
                found[gpu_type] = GangThroughput(*rates)
        if rows := self.table.throughputs(name):
            on = {
                gpu_type: (rows.on(row, num_gpus), rows.on(row, num_gpus, is_spread=True))
                for gpu_type in wanted
                if gpu_type not in self.given and (row := self._row(gpu_type, rows))
            }
            found |= _ratios(on, ran_on, was_spread=was_spread)
        return found

    def _row(self, gpu_type: str, rows: Throughputs) -> str | None:
        """Return the type of a workload's rows that a type is."""
        return type_among(gpu_type, rows.gpu_types, self.ratios.known_types)

    @cached_property
    def _table_types(self) -> tuple[str, ...]:
        return tuple(sorted({k for row in self.table.workloads.values() for k in row.gpu_types}))


def _ratios(
    on: Mapping[str, tuple[float, float]], ran_on: frozenset[str], *, was_spread: bool
) -> dict[str, GangThroughput]:
    """Return a workload's own rates relative to the recorded one; empty if a type lacks a row."""
    pace = min(on[gpu_type][was_spread] for gpu_type in ran_on) if ran_on <= on.keys() else 0.0
    if pace <= 0:
        return {}
    is_sane = all(max(rates) / pace < MOST for rates in on.values())
    found = {k: GangThroughput(one / pace, spread / pace) for k, (one, spread) in on.items()}
    return found if is_sane else {}


def _ratio_of(known: TypeRatios, found: Ratio, given: Mapping[str, float]) -> KnownRatio:
    """Return a ratio with its origin, and how far it is known."""
    one, other = found.one, found.other
    if not found.models:
        origin = RatioOrigin.GIVEN if one.key in given else RatioOrigin.REFERENCE
        is_given = origin is RatioOrigin.GIVEN
        return KnownRatio(found.value, origin, UNCERTAINTIES[Origin.GIVEN] if is_given else 0.0)
    if other.is_scaled or one.is_scaled:
        basis = one.key if one.is_scaled else other.key
        return KnownRatio(found.value, RatioOrigin.BANDWIDTH, _UNKNOWN_SPREAD, basis=basis)
    both = {other.key, one.key} - {known.anchor}
    in_table = all(known.families[name].in_table >= both for name in found.models)
    origin = RatioOrigin.TABLE if in_table else RatioOrigin.MEASURED
    return KnownRatio(found.value, origin, *_spread(known, found))


def _spread(known: TypeRatios, found: Ratio) -> tuple[float, int]:
    """Return the spread of the ratio of two types, over models or a model's batch sizes."""
    by_model = []
    for each in map(known.families.__getitem__, found.models):
        above, below = each.measured.get(found.one.key, {}), each.measured.get(found.other.key, {})
        if both := above.keys() & below.keys():
            by_model.append([math.log(above[n]) - math.log(below[n]) for n in sorted(both)])
    logs = by_model[0] if len(by_model) == 1 else [_mean(values) for values in by_model]
    if len(logs) < 2:
        return _UNKNOWN_SPREAD, len(logs)
    middle = _mean(logs)
    variance = sum((value - middle) ** 2 for value in logs) / (len(logs) - 1)
    return max(_LEAST_SPREAD, math.sqrt(variance)), len(logs)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
