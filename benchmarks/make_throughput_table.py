"""Print the shipped throughput table, made from Gavel's published measurements.

    python benchmarks/make_throughput_table.py PATH/gavel_simulation_throughputs.json \
        > hadar_slurm/data/throughputs.json

The input is `scheduler/simulation_throughputs.json` of github.com/stanford-futuredata/gavel at
commit c4fa400. Only its "null" entries are read: a workload alone on its GPUs, in steps/s of the
whole gang. What becomes of them, and why, is said in `NOTES`, which travel with the table.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

SOURCE = (
    "Gavel: Narayanan, Santhanam, Kazhamiaka, Phanishayee, Zaharia, 'Heterogeneity-Aware Cluster "
    "Scheduling Policies for Deep Learning Workloads', OSDI 2020; "
    "github.com/stanford-futuredata/gavel at c4fa400, scheduler/simulation_throughputs.json "
    "(Recommendation: scheduler/physical_cluster_throughputs.json)"
)
LICENCE = (
    "MIT License, Copyright (c) 2020 Stanford Future Data Systems; the terms of that licence are "
    "the ones printed in this project's LICENSE"
)
NOTES = (
    "Form: workload -> GPU type -> gang size -> [within one node, across nodes], in steps/s of "
    "the whole gang, alone on its GPUs, rounded to 5 significant digits.",
    "null: not measured. A gang of one cannot span nodes, so its second value is always null, "
    "although Gavel's tables repeat the first there.",
    "0: does not fit. ResNet-50 (batch size 128) has a K80 rate for one GPU and 0 for gangs; "
    "Gavel's physical-cluster table gives 0 for one GPU as well.",
    "ResNet-50 (batch size 64 and 128) has no K80 rate across nodes.",
    "Recommendation: one GPU only, from Gavel's physical-cluster table (2 decimals), because the "
    "simulation table has it slower on a V100 than on a K80 at most batch sizes.",
    "ResNet-18 (batch size 16 and 32) is faster on one P100 than on one V100 here; a third table "
    "of Gavel's has it the other way round.",
    "V100 gangs were measured on other machines than single V100s: two V100s run ResNet-18 (batch "
    "size 16 to 64) 3.1 times as fast as one; four run LM (batch size 5 to 20) slower than two, "
    "and ResNet-50 (batch size 16 to 64) slower than four P100s. Do not derive how a workload "
    "scales from the V100 rows.",
    "A3C, CycleGAN and Recommendation were measured on one GPU only.",
)
GPU_TYPES = ("k80", "p100", "v100")
_KEY = re.compile(r"^\('(?P<workload>.+)', (?P<gang>\d+)\)$")

# One GPU, steps/s, from scheduler/physical_cluster_throughputs.json at the same commit.
_PHYSICAL_RECOMMENDATION = {
    512: {"k80": 58.75, "p100": 182.47, "v100": 253.63},
    1024: {"k80": 34.79, "p100": 108.74, "v100": 150.54},
    2048: {"k80": 18.93, "p100": 53.84, "v100": 88.21},
    4096: {"k80": 8.34, "p100": 28.48, "v100": 45.85},
    8192: {"k80": 3.96, "p100": 13.35, "v100": 22.25},
}

# What Gavel's file holds: {gpu type: {"('<workload>', <gang>)": {"null": steps/s, ...}}}.
GavelTable = Mapping[str, Mapping[str, Mapping[str, object]]]
Pair = list[float | None]
Workload = dict[str, dict[str, Pair]]


def shipped_table(gavel: GavelTable) -> dict[str, Workload]:
    """Return rates by workload, GPU type and gang, workloads by name and then batch size."""
    names = {_name_and_gang(key)[0] for gpu_type in GPU_TYPES for key in gavel[gpu_type]}
    table = {
        name: {gpu_type: _gangs(gavel, gpu_type, name) for gpu_type in GPU_TYPES}
        for name in sorted(names, key=_by_batch_size)
    }
    for batch_size, throughputs in _PHYSICAL_RECOMMENDATION.items():
        table[f"Recommendation (batch size {batch_size})"] = {
            gpu_type: {"1": [throughputs[gpu_type], None]} for gpu_type in GPU_TYPES
        }
    return table


def table_text(table: Mapping[str, Workload]) -> str:
    """Return the table as JSON with one workload per line, so that differences can be read."""
    notes = ",\n".join(f"  {json.dumps(note)}" for note in NOTES)
    rows = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in table.items())
    return (
        f'{{\n"source": {json.dumps(SOURCE)},\n"licence": {json.dumps(LICENCE)},\n'
        f'"notes": [\n{notes}\n],\n"workloads": {{\n{rows}\n}}\n}}\n'
    )


def _gangs(gavel: GavelTable, gpu_type: str, name: str) -> dict[str, Pair]:
    here, across = gavel[gpu_type], gavel[f"{gpu_type}_unconsolidated"]
    own = sorted((_name_and_gang(key)[1], key) for key in here if _name_and_gang(key)[0] == name)
    return {
        str(gang): [_alone(here[key]), None if gang == 1 else _alone(across.get(key, {}))]
        for gang, key in own
    }


def _alone(entry: Mapping[str, object]) -> float | None:
    throughput = entry.get("null")
    return float(f"{throughput:.5g}") if isinstance(throughput, int | float) else None


def _name_and_gang(key: str) -> tuple[str, int]:
    match = _KEY.match(key)
    if match is None:
        raise ValueError(f"expected a key like \"('LM (batch size 5)', 2)\", not {key!r}")
    return match["workload"], int(match["gang"])


def _by_batch_size(name: str) -> tuple[str, int]:
    model, _, rest = name.partition(" (batch size ")
    return model, int(rest.rstrip(")") or 0)


def main() -> None:
    """Read the path in the first argument and print the table."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {Path(__file__).name} PATH/gavel_simulation_throughputs.json")
    gavel = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.stdout.write(table_text(shipped_table(gavel)))


if __name__ == "__main__":
    main()
