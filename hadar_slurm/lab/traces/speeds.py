"""Throughputs of jobs in traces without them: recorded time and relative speeds of GPU types.

The recorded time of a job is its work. Its throughput on other GPU types follows from the relative
speed for its model, by the first of these sources that has one:

1. a speed given by the user (`parse_gpu_speeds`);
2. a workload of exactly this name in the throughput table: the ratio of its rows for the gang;
3. the model's family: the table's models are the families (`ResNet-50`, `LM`, ...), `_FAMILIES`
   maps other models to them, and a family's speed is the geometric mean over its batch sizes of
   the ratio of rates on one GPU (V100 gangs were measured on other machines than single V100s);
4. for models without a family: the geometric mean over all families;
5. for types that the shipped table lacks: Sia's measurements, see `_SIA`;
6. for a MIG slice: its fraction of the whole GPU's compute slices, `1g.5gb` being 1/7 of an A100.

On a type that none of these covers, only jobs that ran on it can run.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import geometric_mean

from hadar_slurm.core.throughput import SPREAD_FACTOR, GangThroughput, Throughputs, ThroughputTable
from hadar_slurm.core.units import parse_number
from hadar_slurm.errors import UsageError

DEFAULT_REFERENCE = "V100"

# Upper bound of the ratio of two GPUs' speeds; larger ratios in a table are ignored.
_MOST = 1e6

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

# Samples/s on one GPU at each GPU's largest batch, relative to a V100: Sia (SOSP'23),
# github.com/siasosp23/artifacts at aaf7a0d; ResNet-50 on ImageNet, ResNet-18 on CIFAR-10, and BERT
# for Transformer. Families without a measurement take the geometric mean of these three.
_SIA_ANCHOR = "v100"
_SIA: dict[str, dict[str, float]] = {
    "ResNet-50": {"a100": 1.54, "rtx6000": 0.62, "rtx2080ti": 0.64, "t4": 0.32},
    "ResNet-18": {"a100": 2.13, "rtx6000": 0.79, "rtx2080ti": 0.70, "t4": 0.31},
    "Transformer": {"a100": 3.4, "rtx6000": 0.90, "rtx2080ti": 0.65, "t4": 0.31},
}
# Other spellings, by Slurm's AutoDetect and by users.
_SPELLINGS: Mapping[str, str] = {
    **dict.fromkeys(("rtx-2080-ti", "2080ti", "2080-ti"), "rtx2080ti"),
    "rtx-6000": "rtx6000",
}

# Compute slices of GPUs with MIG if not seven; and the GPU of a slice without a GPU name.
_MIG = re.compile(r"(?:^|[^0-9a-z])([1-7])g\.[0-9]+gb")
_NUM_SLICES: Mapping[str, int] = {"a30": 4}
_MIG_WHOLE = "a100"


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
        if not 1 / _MOST < speed < _MOST:
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
    # Caches: speeds by type and family, throughputs by job type relative to the recorded one, and
    # throughputs by job type and recorded steps/s.
    _speeds: dict[tuple[str, str | None], float | None] = field(default_factory=dict, init=False)
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

    def family(self, name: str) -> str | None:
        """Return the table's model whose relative speeds apply; None for the mean of all."""
        plain = _plain(name)
        if own := [model for model in self._families if _plain(model) == plain]:
            return own[-1]
        family = _FAMILIES.get(max(filter(plain.startswith, _FAMILIES), key=len, default=""))
        return family if family in self._families else None

    def names(self, name: str) -> bool:
        """Return whether the table has a workload or a model of exactly this name."""
        models = map(str.lower, self._families)
        return self.table.throughputs(name) is not None or name.lower() in models

    def speed(self, gpu_type: str, family: str | None) -> float | None:
        """Return the speed of a type relative to a reference GPU; None if unknown."""
        key = (gpu_type.lower(), family)
        if key not in self._speeds:
            known = {**self._of_family(family), self.reference.lower(): 1.0, **self.given}
            self._speeds[key] = _look_up(gpu_type.lower(), known)
        return self._speeds[key]

    def note(self, gpu_types: Iterable[str]) -> tuple[str, ...]:
        """Return a sentence on types, the cluster's too, without a relative speed, if any."""
        names = {name.lower(): name for name in (*gpu_types, *self.gpu_types)}
        unknown = sorted(name for lower, name in names.items() if not self.speed(lower, None))
        if not unknown:
            return ()
        return (
            f"unknown speed of {', '.join(unknown)} relative to {self.reference}: only jobs that "
            f"ran on it can run on it; give --gpu-speeds {unknown[0]}=SPEED",
        )

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
                if gpu_type not in self.given and (row := _match(gpu_type, rows.gpu_types))
            }
            found |= _ratios(on, ran_on, was_spread=was_spread)
        return found

    def _of_family(self, family: str | None) -> Mapping[str, float]:
        """Return the known speeds by type for a family, or for models without one."""
        reference = self.reference.lower()
        if family is not None and (base := _look_up(reference, self._families[family])):
            return {gpu_type: speed / base for gpu_type, speed in self._families[family].items()}
        ratios: dict[str, list[float]] = defaultdict(list)
        for own in self._families.values():
            if base := _look_up(reference, own):
                for gpu_type, speed in own.items():
                    ratios[gpu_type].append(speed / base)
        return {gpu_type: geometric_mean(values) for gpu_type, values in ratios.items()}

    @cached_property
    def _table_types(self) -> tuple[str, ...]:
        return tuple(sorted({k for row in self.table.workloads.values() for k in row.gpu_types}))

    @cached_property
    def _families(self) -> dict[str, dict[str, float]]:
        """Speeds by type of every model of the table, relative to the table's anchor type."""
        types = self._table_types
        anchor = _SIA_ANCHOR if _SIA_ANCHOR in types else next(iter(types), "")
        ratios: dict[str, dict[str, list[float]]] = {}
        for name, throughputs in self.table.workloads.items():
            family = ratios.setdefault(name.partition(" (batch size")[0], defaultdict(list))
            for gpu_type in throughputs.gpu_types:
                if ratio := _ratio(throughputs, gpu_type, anchor):
                    family[gpu_type].append(ratio)
        mean = {k: geometric_mean([row[k] for row in _SIA.values()]) for k in _SIA["ResNet-50"]}
        return {
            model: (_SIA.get(model, mean) if anchor == _SIA_ANCHOR else {})
            | {gpu_type: geometric_mean(values) for gpu_type, values in gpu_types.items()}
            for model, gpu_types in ratios.items()
        }


def _ratio(throughputs: Throughputs, gpu_type: str, anchor: str) -> float | None:
    """Return the ratio of two types' rates for the smallest gang measured on both."""
    sizes, on = sorted({size for (_, size), _ in throughputs.rows}), throughputs.on
    both = ((on(gpu_type, size), on(anchor, size)) for size in sizes)
    ratios = (one / other for one, other in both if one > 0 and other > 0)
    return next((ratio for ratio in ratios if 1 / _MOST < ratio < _MOST), None)


def _ratios(
    on: Mapping[str, tuple[float, float]], ran_on: frozenset[str], *, was_spread: bool
) -> dict[str, GangThroughput]:
    """Return a workload's own rates relative to the recorded one; empty if a type lacks a row."""
    pace = min(on[gpu_type][was_spread] for gpu_type in ran_on) if ran_on <= on.keys() else 0.0
    if pace <= 0:
        return {}
    is_sane = all(max(rates) / pace < _MOST for rates in on.values())
    found = {k: GangThroughput(one / pace, spread / pace) for k, (one, spread) in on.items()}
    return found if is_sane else {}


def _look_up(gpu_type: str, known: Mapping[str, float]) -> float | None:
    """Return a type's speed by its name, by a known name in it, or as a slice of a GPU."""
    if gpu_type in known:
        return known[gpu_type]
    if cut := _MIG.search(gpu_type):
        whole = _match(gpu_type[: cut.start()] or _MIG_WHOLE, (*known, *_NUM_SLICES)) or ""
        speed = known.get(whole)
        return None if speed is None else speed * int(cut[1]) / _NUM_SLICES.get(whole, 7)
    return known.get(_match(gpu_type, known) or "")


def _match(gpu_type: str, known: Iterable[str]) -> str | None:
    """Return the known type in a name such as `tesla_v100-sxm2-32gb`; None without one."""
    known = tuple(known)
    if gpu_type in known:
        return gpu_type
    words = f"-{re.sub('[^0-9a-z]+', '-', gpu_type).strip('-')}-"
    if "-ada-" in words or _MIG.search(gpu_type):
        # An RTX 6000 Ada is not an RTX 6000, a slice not a whole GPU.
        return None
    spellings = [*((name, name) for name in known), *_SPELLINGS.items()]
    fits = [(len(word), name) for word, name in spellings if f"-{word}-" in words and name in known]
    return max(fits)[1] if fits else None


def _plain(name: str) -> str:
    return re.sub("[^0-9a-z]+", "", name.partition(" (batch size")[0].lower())
