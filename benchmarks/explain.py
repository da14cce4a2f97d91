"""Checks the answers of `hadar explain` on a journal: reasons, and when jobs begin.

    PYTHONPATH=tests python benchmarks/explain.py JOURNAL [--rounds N] [--jobs N]

Of up to N rounds, evenly spread: each waiting job has a reason, which must hold for the GPUs that
the plan left free, tested at all places; and up to N waiting jobs that have never run are
explained: with that reason, and a forecast that is compared with the time when they began.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter
from pathlib import Path

from builders import is_so, plan_of

from hadar_slurm.core.cluster import JobId
from hadar_slurm.journal import Line
from hadar_slurm.journal.reader import read_journal
from hadar_slurm.journal.values import snapshot_of
from hadar_slurm.policies.registry import make_policy
from hadar_slurm.status.explain import explain

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
    wrong, asked = 0, Counter[str]()
    errors: list[tuple[float, float]] = []
    took: list[float] = []
    with_waiting = [line for line in lines if line["waiting"]]
    with_waiting = with_waiting[:: max(1, len(with_waiting) // options.rounds)]
    for line in with_waiting:
        snapshot, plan = snapshot_of(line), plan_of(line)
        for job in snapshot.jobs:
            if (why := dict(plan.waiting).get(job.job_id)) is None:
                wrong += job.job_id not in plan.by_id
                continue
            asked[str(why)] += 1
            wrong += job.job_id in plan.by_id or not is_so(why, snapshot, plan, job)
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
    told = ", ".join(f"{number} times {why!r}" for why, number in asked.most_common())
    print(f"{len(with_waiting)} rounds with waiting jobs, {told}: {wrong} do not match the plan")
    if errors:
        median_s, wait_s = map(statistics.median, zip(*errors, strict=True))
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
