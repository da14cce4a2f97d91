"""How good the answers of `hadar explain` are, on a journal: reasons, and when jobs begin.

    python benchmarks/explain.py JOURNAL [--rounds N] [--jobs N]

Of up to N rounds, evenly spread, the reasons of all jobs are held against what the plan did, and
for up to N of those that wait and have never run the forecast against when they began in truth.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from hadar_slurm.answers.explain import explain
from hadar_slurm.core.cluster import JobId
from hadar_slurm.journal import Line, read_journal
from hadar_slurm.policies.table import make_policy

LIMIT_S = 30.0


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("journal", type=Path)
    parser.add_argument("--rounds", type=int, default=100, metavar="N")
    parser.add_argument("--jobs", type=int, default=3, metavar="N", help="of each round")
    options = parser.parse_args()
    lines = [line for line in read_journal(options.journal) if "jobs" in line and line["plan"]]
    began = begins_in(lines)
    wrong, asked = 0, 0
    errors: list[tuple[float, float]] = []
    took: list[float] = []
    with_waiting = [line for line in lines if line["waiting"]]
    for line in with_waiting[:: max(1, len(with_waiting) // options.rounds)]:
        for job_id in line["jobs"]:
            asked += 1
            wrong += (job_id in line["waiting"]) == (job_id in line["plan"])
        never_ran = [
            job_id
            for job_id in line["waiting"]
            if job_id in began and not line["jobs"][job_id]["restarts"]
            if line["jobs"][job_id]["phase"] == "queued" and began[job_id] >= line["time_s"]
        ]
        for job_id in never_ran[: options.jobs]:
            started_s = time.perf_counter()
            policy = make_policy(line["policy"])
            found = explain(line, JobId(job_id), policy, time.monotonic, LIMIT_S)
            took.append(time.perf_counter() - started_s)
            if found and found.reason != line["waiting"][job_id]:
                wrong += 1
            if found and found.expected:
                truth_s = began[job_id] - line["time_s"]
                errors.append((abs(found.expected.begins_in_s - truth_s), truth_s))
    print(f"{asked} jobs in rounds, {wrong} with a reason that does not match the plan")
    if errors:
        median_s = statistics.median(error for error, _ in errors)
        wait_s = statistics.median(truth for _, truth in errors)
        print(
            f"{len(took)} forecasts, {len(errors)} with an answer: median error {median_s:.1f} s, "
            f"median wait {wait_s:.1f} s; {statistics.median(took):.2f} s each, at the most "
            f"{max(took):.2f} s"
        )


def begins_in(lines: list[Line]) -> dict[str, float]:
    """Return when each job began first, in the journal's seconds."""
    began: dict[str, float] = {}
    for line in lines:
        for action in line["actions"]:
            if action["do"] == "start" and action["status"] == "done":
                began.setdefault(action["job"], float(line["time_s"]))
    return began


if __name__ == "__main__":
    main()
