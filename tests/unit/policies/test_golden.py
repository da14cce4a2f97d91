"""The decisions of every policy on a small workload, round by round, kept in `tests/golden`.

A changed line is a changed decision: `make golden` rewrites the files, and the difference is
reviewed like code. Every policy that users can name has such a file.
"""

from __future__ import annotations

import json
from typing import Any

import highspy
import numpy as np
import pulp
import pytest
from builders import GOLDEN, golden
from contenders import NAMED, SOLVER_FREE

from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.lab.study.compare import FORKING
from hadar_slurm.lab.study.experiment import ExperimentSettings, forked, run_experiment
from hadar_slurm.lab.traces.cluster import parse_cluster
from hadar_slurm.lab.traces.load import parse_gavel_trace
from hadar_slurm.resources import data_file

MAX_LINES = 200


def rounded(value: Any) -> Any:
    """Return a tree with its floats rounded to 1e-6, and no difference between -0 and 0."""
    if isinstance(value, float):
        return round(value, 6) + 0.0
    if isinstance(value, dict):
        return {str(key): rounded(part) for key, part in value.items()}
    return value


def as_lines(records: list[RoundRecord]) -> list[dict[str, Any]]:
    """Return each round as its start, the jobs that ended, the allocations and the wait reasons."""
    lines = []
    for record in records:
        assert record.snapshot is not None
        assert record.plan is not None
        lines.append(
            {
                "time_s": record.round.start_s,
                "may_move": record.round.may_move,
                "ended": {end.job_id: end.end_s for end in record.snapshot.ended},
                "plan": {
                    job_id: {str(number): str(gang) for number, gang in allocation.copies}
                    for job_id, allocation in record.plan.allocations
                },
                "waiting": {job_id: why.name for job_id, why in record.plan.waiting},
                "figures": dict(record.plan.figures),
            }
        )
    return lines


def solver_of(name: str) -> str | None:
    """Return the name and version of a policy's solver; None if it has none."""
    if name in SOLVER_FREE:
        return None
    if name == "hadar-paper":
        return f"HiGHS {highspy.Highs().version()} by PuLP {pulp.__version__}"
    if name.startswith("gavel-"):
        # Solved by the interior point method of this project.
        return f"numpy {np.__version__}"
    return f"HiGHS {highspy.Highs().version()}"


@pytest.mark.parametrize("name", NAMED)
def test_the_decisions_are_the_recorded_ones(name: str) -> None:
    """Decisions on 14 jobs and 16 GPUs equal the recorded file; skipped for another solver."""
    table = parse_table(data_file("throughputs.json").read_text(encoding="utf-8"), "table")
    trace = (GOLDEN / "mix.trace").read_text(encoding="utf-8").splitlines()
    specs = parse_gavel_trace(trace, table, "mix.trace")
    if name in FORKING:
        specs = forked(specs, max_copies=6, aggregation_s=10.0)
    cluster = parse_cluster("8xV100,4xP100,4xK80", gpus_per_node=4)
    records: list[RoundRecord] = []
    result = run_experiment(
        specs, cluster, NAMED[name](), ExperimentSettings(), on_round=records.append
    )
    assert result.completed == len(specs)
    head = {"policy": name, "solver": solver_of(name)}
    lines = [head, *map(rounded, as_lines(records))]
    text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
    recorded = golden(f"{name}.journal.jsonl", text)
    if json.loads(recorded.splitlines()[0])["solver"] != head["solver"]:
        pytest.skip(f"recorded with another solver than {head['solver']}")
    assert len(lines) <= MAX_LINES
    assert text == recorded
