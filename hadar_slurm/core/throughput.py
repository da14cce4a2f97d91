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

import json
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from hadar_slurm.errors import ConfigError

SPREAD_FACTOR = 0.8

# Gavel's form: `k80_unconsolidated` has the throughputs of gangs across nodes, and a key is a
# Python tuple of workload and gang size, "('LM (batch size 5)', 2)".
_ACROSS = "_unconsolidated"
_GAVEL_KEY = re.compile(r"""\((['"])(?P<workload>.+)\1, (?P<gang>[0-9]+)\)""", re.DOTALL)


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


def workload_name(model: str, batch_size: int | None) -> str:
    """Return the name a table uses for a model at a batch size."""
    return model if batch_size is None else f"{model} (batch size {batch_size})"


def parse_table(text: str, origin: str) -> ThroughputTable:
    """Return the table in JSON `text`, in either of two forms; `origin` names it in errors.

    Hadar's: `{"source": str, "workloads": {name: {gpu_type: {gang: [together, spread or null]}}}}`.
    Gavel's (OSDI'20, scheduler/simulation_throughputs.json), as published:
    `{gpu_type: {"('<name>', <gang>)": {"null": alone, "('<other>', <gang>)": [mine, other]}}}`, a
    type `<gpu_type>_unconsolidated` for gangs across nodes, throughputs of pairs that share GPUs
    not used. All in steps/s; 0: does not fit. Raises ConfigError at the first wrong value.
    """

    def object_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
        # json itself silently keeps the last of two equal keys.
        tree = dict(pairs)
        if len(tree) < len(pairs):
            twin = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise ConfigError(f"{origin}: key {twin!r} is given twice in one object; keep one")
        return tree

    try:
        tree = json.loads(text, object_pairs_hook=object_of)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{origin}: not JSON: {error}") from error
    source = origin
    if isinstance(tree, dict) and isinstance(tree.get("workloads"), dict):
        rows = {name: _rows(k, f"{origin}: {name}") for name, k in tree["workloads"].items()}
        source = str(tree.get("source", origin))
    elif isinstance(tree, dict) and _is_gavels(tree):
        rows = _gavel_rows(tree, origin)
    else:
        raise ConfigError(
            f'{origin}: expected an object with "workloads", an object of its own, or a table in '
            'Gavel\'s form: {"v100": {"(\'LM (batch size 5)\', 2)": {"null": 185.7}}}'
        )
    names: dict[str, str] = {}
    for name in rows:
        other = names.setdefault(name.lower(), name)
        if other != name:
            raise ConfigError(
                f"{origin}: {name}: given already as {other}; upper and lower case are one workload"
            )
    return ThroughputTable(source, {name: Throughputs.of(pairs) for name, pairs in rows.items()})


def _is_gavels(tree: Mapping[str, object]) -> bool:
    """Return whether every value is an object and some key in one looks like Gavel's."""
    objects = [entries for entries in tree.values() if isinstance(entries, dict)]
    keys = (key for entries in objects for key in entries)
    return len(objects) == len(tree) and any(key.startswith("(") for key in keys)


def _gavel_rows(
    tree: Mapping[str, object], origin: str
) -> dict[str, dict[tuple[str, int], GangThroughput]]:
    """Return the rows of each workload in a table in Gavel's form."""
    found: dict[tuple[str, str, int, bool], float] = {}
    for column, entries in tree.items():
        is_across = column.lower().endswith(_ACROSS)
        gpu_type = column.lower().removesuffix(_ACROSS)
        for key, entry in _items(entries, f"{origin}: {column}"):
            here = f"{origin}: {column}, {key}"
            match = _GAVEL_KEY.fullmatch(key)
            if match is None:
                raise ConfigError(f"{here}: expected a key like \"('LM (batch size 5)', 2)\"")
            place = (match["workload"], gpu_type, _gang_size(match["gang"], here), is_across)
            if place in found:
                raise ConfigError(f"{here}: given twice; upper and lower case are one GPU type")
            throughputs = dict(_items(entry, here))
            if "null" not in throughputs:
                raise ConfigError(f'{here}: no "null", the steps/s of the workload alone')
            found[place] = _throughput(throughputs["null"], here)
    rows: dict[str, dict[tuple[str, int], GangThroughput]] = {}
    for (workload, gpu_type, size, is_across), throughput in found.items():
        if not is_across:
            # A gang of one spans nothing: what Gavel repeats there is not one across nodes.
            spread = found.get((workload, gpu_type, size, True)) if size > 1 else None
            rows.setdefault(workload, {})[gpu_type, size] = GangThroughput(throughput, spread)
        elif (workload, gpu_type, size, False) not in found:
            raise ConfigError(
                f"{origin}: {gpu_type}{_ACROSS}: ('{workload}', {size}) has a rate across nodes "
                f"and none in {gpu_type!r}, within one; give both"
            )
    return rows


def _rows(gpu_types: object, place: str) -> dict[tuple[str, int], GangThroughput]:
    rows: dict[tuple[str, int], GangThroughput] = {}
    for gpu_type, sizes in _items(gpu_types, place):
        for size, pair in _items(sizes, f"{place}, {gpu_type}"):
            here = f"{place}, {gpu_type}, gang {size}"
            row = (gpu_type.lower(), _gang_size(size, here))
            if row in rows:
                raise ConfigError(f"{here}: given twice; upper and lower case are one GPU type")
            if not isinstance(pair, list) or len(pair) != 2:
                raise ConfigError(
                    f"{here}: expected [within a node, across nodes or null], not {pair!r}"
                )
            spread = None if pair[1] is None else _throughput(pair[1], here)
            rows[row] = GangThroughput(_throughput(pair[0], here), spread)
    return rows


def _items(value: object, place: str) -> Iterable[tuple[str, object]]:
    if not isinstance(value, dict):
        raise ConfigError(f"{place}: expected an object, not {value!r}")
    return value.items()


def _gang_size(text: str, place: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 9 and int(text) >= 1):
        raise ConfigError(f"{place}: a gang is a whole number of GPUs, 1 or more")
    return int(text)


def _throughput(value: Any, place: str) -> float:
    if type(value) not in (int, float) or not 0 <= value <= sys.float_info.max:
        raise ConfigError(
            f"{place}: a rate is a finite number of steps/s, 0 or more, not {value!r}"
        )
    return float(value)
