"""Reads a throughput table in the form of Gavel's (OSDI'20), for `throughput_table.py`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from hadar_slurm.core.throughput import GangThroughput, gang_size, items_of, steps_per_s_of
from hadar_slurm.errors import ConfigError

# Gavel's form: `k80_unconsolidated` has the throughputs of gangs across nodes, and a key is a
# Python tuple of workload and gang size, "('LM (batch size 5)', 2)".
_ACROSS = "_unconsolidated"
_GAVEL_KEY = re.compile(r"""\((['"])(?P<workload>.+)\1, (?P<gang>[0-9]+)\)""", re.DOTALL)


def rows_of(
    tree: Mapping[str, object], origin: str
) -> dict[str, dict[tuple[str, int], GangThroughput]]:
    """Return the rows of each workload in a table in Gavel's form."""
    found: dict[tuple[str, str, int, bool], float] = {}
    for column, entries in tree.items():
        is_across = column.lower().endswith(_ACROSS)
        gpu_type = column.lower().removesuffix(_ACROSS)
        for key, entry in items_of(entries, f"{origin}: {column}"):
            here = f"{origin}: {column}, {key}"
            match = _GAVEL_KEY.fullmatch(key)
            if match is None:
                raise ConfigError(f"{here}: expected a key like \"('LM (batch size 5)', 2)\"")
            place = (match["workload"], gpu_type, gang_size(match["gang"], here), is_across)
            if place in found:
                raise ConfigError(f"{here}: given twice; upper and lower case are one GPU type")
            throughputs = dict(items_of(entry, here))
            if "null" not in throughputs:
                raise ConfigError(f'{here}: no "null", the steps/s of the workload alone')
            found[place] = steps_per_s_of(throughputs["null"], here)
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
