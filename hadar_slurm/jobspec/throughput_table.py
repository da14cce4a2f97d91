"""Reads a throughput table. Standard library only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

from hadar_slurm.core.throughput import (
    GangThroughput,
    Throughputs,
    ThroughputTable,
    gang_size,
    items_of,
    steps_per_s_of,
)
from hadar_slurm.errors import ConfigError


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
        from hadar_slurm.jobspec.gavel_table import rows_of

        rows = rows_of(tree, origin)
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


def _rows(gpu_types: object, place: str) -> dict[tuple[str, int], GangThroughput]:
    rows: dict[tuple[str, int], GangThroughput] = {}
    for gpu_type, sizes in items_of(gpu_types, place):
        for size, pair in items_of(sizes, f"{place}, {gpu_type}"):
            here = f"{place}, {gpu_type}, gang {size}"
            row = (gpu_type.lower(), gang_size(size, here))
            if row in rows:
                raise ConfigError(f"{here}: given twice; upper and lower case are one GPU type")
            if not isinstance(pair, list) or len(pair) != 2:
                raise ConfigError(
                    f"{here}: expected [within a node, across nodes or null], not {pair!r}"
                )
            spread = None if pair[1] is None else steps_per_s_of(pair[1], here)
            rows[row] = GangThroughput(steps_per_s_of(pair[0], here), spread)
    return rows
