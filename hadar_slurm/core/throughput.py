"""How fast a workload trains on which GPUs, in steps per second of the whole gang.

Conventions, and where they come from:

* A row is the rate of a whole gang on one GPU type, measured alone, as in Gavel's tables (OSDI'20,
  scheduler/simulation_throughputs.json). 0 means that the workload does not fit.
* Synchronous SGD: the slowest type sets the pace of a mixed gang (Hadar, IPDPS'24, bottleneck
  constraint), so a gang's rate is the minimum over its types of the row for the gang's full size.
* A gang that spans nodes uses the row measured across nodes; where the table has none, ours is
  the row within a node times `SPREAD_FACTOR`.
* Where a table has no row for a gang size, ours is the next smaller row scaled in proportion.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from hadar_slurm.errors import ConfigError

SPREAD_FACTOR = 0.8


class Rate(NamedTuple):
    """Steps per second of a gang within one node and across nodes (None: not measured)."""

    together: float
    spread: float | None = None

    def when(self, *, is_spread: bool) -> float:
        """Return the rate for a gang that does or does not span nodes."""
        if not is_spread:
            return self.together
        return self.together * SPREAD_FACTOR if self.spread is None else self.spread


@dataclass(frozen=True)
class Rates:
    """One workload's rows: ((gpu type in lower case, gang size), Rate), sorted."""

    rows: tuple[tuple[tuple[str, int], Rate], ...] = ()

    @classmethod
    def of(cls, rows: Mapping[tuple[str, int], Rate]) -> Rates:
        """Return rates from a mapping of (GPU type, gang size) to `Rate`."""
        return cls(
            tuple(sorted(((kind.lower(), size), rate) for (kind, size), rate in rows.items()))
        )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.rows)

    @cached_property
    def gpu_types(self) -> tuple[str, ...]:
        """Return the GPU types with at least one row, in lower case."""
        return tuple(sorted({kind for (kind, _), _ in self.rows}))

    def on(self, gpu_type: str, num_gpus: int, *, is_spread: bool = False) -> float:
        """Return the steps/s of a gang of `num_gpus` on one type; 0 where unknown or unfit."""
        key = (gpu_type, num_gpus, is_spread)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._find(gpu_type.lower(), num_gpus, is_spread=is_spread)
        return found

    @cached_property
    def _found(self) -> dict[tuple[str, int, bool], float]:
        """Answers so far: every round of every policy asks the same few questions."""
        return {}

    def _find(self, wanted: str, num_gpus: int, *, is_spread: bool) -> float:
        sizes = {size: rate for (kind, size), rate in self.rows if kind == wanted}
        known = max((size for size in sizes if size <= num_gpus), default=None)
        if known is None:
            return 0.0
        return sizes[known].when(is_spread=is_spread and num_gpus > 1) * num_gpus / known

    def of_gang(self, gpu_types: Iterable[str], num_gpus: int, *, is_spread: bool) -> float:
        """Return the steps/s of a gang of `num_gpus` on `gpu_types`: its slowest type's."""
        return min(
            (self.on(kind, num_gpus, is_spread=is_spread) for kind in set(gpu_types)), default=0.0
        )

    def best(self, gpu_types: Iterable[str], num_gpus: int) -> float:
        """Return the steps/s on the fastest of `gpu_types`, within a node."""
        return max((self.on(kind, num_gpus) for kind in gpu_types), default=0.0)


@dataclass(frozen=True, slots=True)
class ThroughputTable:
    """Rates by workload name, such as `ResNet-50 (batch size 64)`."""

    source: str
    workloads: Mapping[str, Rates]

    def rates(self, workload: str) -> Rates | None:
        """Return a workload's rates, its name matched without regard to case."""
        wanted = workload.lower()
        return next((r for name, r in self.workloads.items() if name.lower() == wanted), None)


def workload_name(model: str, batch_size: int | None) -> str:
    """Return the name a table uses for a model at a batch size."""
    return model if batch_size is None else f"{model} (batch size {batch_size})"


def parse_table(text: str, origin: str) -> ThroughputTable:
    """Return the table in JSON `text`; `origin` names it in errors.

    Form: `{"source": str, "workloads": {name: {gpu_type: {gang: [together, spread or null]}}}}`,
    all rates in steps/s. Raises ConfigError naming the place of the first wrong value.
    """
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{origin}: not JSON: {error}") from error
    if not isinstance(tree, dict) or not isinstance(tree.get("workloads"), dict):
        raise ConfigError(f'{origin}: expected an object with "workloads", an object of its own')
    workloads = {
        name: Rates.of(_rows(kinds, f"{origin}: {name}"))
        for name, kinds in tree["workloads"].items()
    }
    return ThroughputTable(str(tree.get("source", origin)), workloads)


def _rows(kinds: object, place: str) -> dict[tuple[str, int], Rate]:
    rows: dict[tuple[str, int], Rate] = {}
    for kind, sizes in _items(kinds, place):
        for size, pair in _items(sizes, f"{place}, {kind}"):
            here = f"{place}, {kind}, gang {size}"
            row = (kind.lower(), _gang_size(size, here))
            if row in rows:
                raise ConfigError(f"{here}: given twice; upper and lower case are one GPU type")
            rows[row] = _pair(pair, here)
    return rows


def _items(value: object, place: str) -> Iterable[tuple[str, object]]:
    if not isinstance(value, dict):
        raise ConfigError(f"{place}: expected an object, not {value!r}")
    return value.items()


def _gang_size(text: str, place: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 9 and int(text) >= 1):
        raise ConfigError(f"{place}: a gang is a whole number of GPUs, 1 or more")
    return int(text)


def _pair(pair: object, place: str) -> Rate:
    if not isinstance(pair, list) or len(pair) != 2:
        raise ConfigError(f"{place}: expected [within a node, across nodes or null], not {pair!r}")
    together, spread = pair
    return Rate(_rate(together, place), None if spread is None else _rate(spread, place))


def _rate(value: object, place: str) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= sys.float_info.max
    ):
        raise ConfigError(
            f"{place}: a rate is a finite number of steps/s, 0 or more, not {value!r}"
        )
    return float(value)
