"""What each step of docs/users.md earns on a trace: the GPU type left open, and jobs moved.

    python benchmarks/levels.py TRACE TABLE FIRST

Speeds are known. A move costs 30 s. Plain Slurm is simulated by how users write their jobs
(docs/policies.md); the strongest counts.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from hadar_slurm.lab.inputs import TraceOptions, read_cluster, read_table, read_workload
from hadar_slurm.lab.study.experiment import run_experiment
from hadar_slurm.lab.traces.restart import parse_restart_costs
from hadar_slurm.policies.registry import make_policy

CLUSTER = "20xV100,20xP100,20xK80"
PLAIN = ("slurm", "slurm:list", "slurm:list:open", "slurm:list:look")
# Step, policy, whether jobs may be moved.
STEPS = (
    *((f"plain Slurm, {policy}", policy, False) for policy in PLAIN),
    ("1. GPU type left open", "hadar", False),
    ("2. moved", "hadar", True),
)


def main() -> None:
    """Print a table."""
    trace, table, first = sys.argv[1:]
    nodes = read_cluster(CLUSTER, gpus_per_node=4)
    reading = TraceOptions(read_table(Path(table)), nodes, costs=parse_restart_costs("30"))
    specs = read_workload(trace, reading, seed=0, first=int(first)).specs
    print(
        "| | mean JCT h | p95 h | mean queueing h | TTD h | moves |\n|---|---:|---:|---:|---:|---:|"
    )
    for step, policy, moves in STEPS:
        jobs = [replace(spec, can_checkpoint=moves) for spec in specs]
        found = run_experiment(jobs, nodes, make_policy(policy))
        hours = (found.mean_jct_s, found.p95_jct_s, found.mean_queueing_s, found.ttd_s)
        row = " | ".join(f"{time_s / 3600:.1f}" for time_s in hours)
        print(f"| {step} | {row} | {found.moves:,} |", flush=True)


if __name__ == "__main__":
    main()
