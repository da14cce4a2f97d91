"""How fast a workload trains on which GPUs, in steps per second of the whole gang.

Conventions, and where they come from:

* A row is the throughput of a whole gang on one GPU type, measured alone, as in Gavel's tables
  (OSDI'20, scheduler/simulation_throughputs.json). 0 means that the workload does not fit.
* Synchronous SGD: the slowest type sets the pace of a mixed gang (Hadar, IPDPS'24, bottleneck
  constraint), so a gang's throughput is the minimum over its types of the row for the gang's full
  size.
* A gang that spans nodes uses the row measured across nodes or, where the table has none, the row
  within a node times `SPREAD_FACTOR` (our rule).
* A gang size without a row uses the next smaller row scaled in proportion (our rule).
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from hadar_slurm.errors import ConfigError

SPREAD_FACTOR = 0.8


class GangThroughput(NamedTuple):
    """Steps per second of a gang within one node and across nodes (None: not measured)."""

    together: float
    spread: float | None = None

    def when(self, *, is_spread: bool) -> float:
        """Return the throughput for a gang that does or does not span nodes."""
        across = self.together * SPREAD_FACTOR if self.spread is None else self.spread
        return across if is_spread else self.together


@dataclass(frozen=True)
class Throughputs:
    """One workload's rows: ((GPU type in lower case, gang size), throughput), sorted."""

    rows: tuple[tuple[tuple[str, int], GangThroughput], ...] = ()

    @classmethod
    def of(cls, rows: Mapping[tuple[str, int], GangThroughput]) -> Throughputs:
        """Return throughputs from a mapping of (GPU type, gang size) to `GangThroughput`."""
        lower = (((gpu_type.lower(), size), row) for (gpu_type, size), row in rows.items())
        return cls(tuple(sorted(lower)))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.rows)

    @cached_property
    def gpu_types(self) -> tuple[str, ...]:
        """Return the GPU types with at least one row, in lower case."""
        return tuple(sorted({gpu_type for (gpu_type, _), _ in self.rows}))

    def without(self, gpu_types: Collection[str]) -> Throughputs:
        """Return the throughputs on all types but these, which are in lower case."""
        return Throughputs(tuple((key, row) for key, row in self.rows if key[0] not in gpu_types))

    def run_on_all(self, gpu_types: Iterable[str], num_gpus: int) -> bool:
        """Return whether a gang of `num_gpus` runs on each of these types."""
        return all(self.on(gpu_type, num_gpus) > 0 for gpu_type in gpu_types)

    def on(self, gpu_type: str, num_gpus: int, *, is_spread: bool = False) -> float:
        """Return the steps/s of a gang of `num_gpus` on one type; 0 where unknown or unfit."""
        key = (gpu_type, num_gpus, is_spread)
        found = self._found.get(key)
        if found is None:
            lower, spans, found = gpu_type.lower(), is_spread and num_gpus > 1, 0.0
            rows = {size: row for (k, size), row in self.rows if k == lower and size <= num_gpus}
            if rows:
                known = max(rows)
                found = rows[known].when(is_spread=spans) * num_gpus / known
            self._found[key] = found
        return found

    @cached_property
    def _found(self) -> dict[tuple[str, int, bool], float]:
        """Answers so far: the policies repeat the same few look-ups every round."""
        return {}

    def of_gang(self, gpu_types: Iterable[str], num_gpus: int, *, is_spread: bool) -> float:
        """Return the steps/s of a gang of `num_gpus` on `gpu_types`: its slowest type's."""
        found = (self.on(k, num_gpus, is_spread=is_spread) for k in set(gpu_types))
        return min(found, default=0.0)

    def best(self, gpu_types: Iterable[str], num_gpus: int) -> float:
        """Return the steps/s on the fastest of `gpu_types`, within a node."""
        return max((self.on(gpu_type, num_gpus) for gpu_type in gpu_types), default=0.0)


@dataclass(frozen=True)
class ThroughputTable:
    """Throughputs by workload name, such as `ResNet-50 (batch size 64)`."""

    source: str
    workloads: Mapping[str, Throughputs]

    def throughputs(self, workload: str) -> Throughputs | None:
        """Return a workload's throughputs, its name matched without regard to case."""
        return self._by_lower_case.get(workload.lower())

    @cached_property
    def _by_lower_case(self) -> Mapping[str, Throughputs]:
        """The workloads for look-ups, of which a trace needs one a line."""
        return {name.lower(): throughputs for name, throughputs in self.workloads.items()}


def items_of(value: object, place: str) -> Iterable[tuple[str, object]]:
    """Return the entries of an object; raises ConfigError for anything else."""
    if not isinstance(value, dict):
        raise ConfigError(f"{place}: expected an object, not {value!r}")
    return value.items()


def gang_size(text: str, place: str) -> int:
    """Return a number of GPUs; raises ConfigError."""
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 9 and int(text) >= 1):
        raise ConfigError(f"{place}: a gang is a whole number of GPUs, 1 or more")
    return int(text)


def steps_per_s_of(value: Any, place: str) -> float:
    """Return a throughput; raises ConfigError."""
    if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
        raise ConfigError(
            f"{place}: a rate is a finite number of steps/s, 0 or more, not {value!r}"
        )
    return float(value)
