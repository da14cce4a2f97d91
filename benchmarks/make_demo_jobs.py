"""Print the demo's job list: 24 consecutive jobs of a production cluster, shrunk to fit a minute.

    python benchmarks/make_demo_jobs.py PATH/elasticflow_cluster10.csv \
        > hadar_slurm/data/demo_jobs.json

The jobs come from the traces published with ElasticFlow (ASPLOS 2023). Which ones, and what is
done to them, follows `RULE`, which travels with the file. The rule was written down before any
scheduler had run on its outcome, and is not to be changed for what a scheduler makes of it.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hadar_slurm.core.throughput import Throughputs, ThroughputTable
from hadar_slurm.lab.inputs import read_table

NUM_JOBS = 24
MIN_GANGS = 3  # jobs of the window with 2 GPUs or more
MIN_LARGE_GANGS = 1  # jobs of the window with 4 GPUs or more
MAX_GPUS = 4
LAST_ARRIVAL_S = 30.0
SHORTEST_S, LONGEST_S = 4.0, 16.0
CLUSTER = "v100:4,v100:4,p100:4,p100:4,k80:4,v100:2+k80:2"
WORKLOADS = {
    "bert": "Transformer (batch size 64)",
    "deepspeech2": "LM (batch size 80)",
    "gpt2": "Transformer (batch size 128)",
    "inception3": "ResNet-50 (batch size 32)",
    "resnet50": "ResNet-50 (batch size 64)",
    "vgg16": "ResNet-18 (batch size 128)",
}

SOURCE = (
    "ElasticFlow: Gu et al., 'ElasticFlow: An Elastic Serverless Training Platform for Distributed "
    "Deep Learning', ASPLOS 2023; github.com/microsoft/elasticflow-traces at 277ed24, the trace of "
    "production cluster 10 (260 jobs)"
)
LICENCE = (
    "MIT License, Copyright (c) Microsoft Corporation; the terms of that licence are the ones "
    "printed in this project's LICENSE"
)
RULE = (
    "The rule was fixed before any scheduling result was seen.",
    f"Jobs: of all windows of {NUM_JOBS} consecutive jobs by submission time that hold at least "
    f"{MIN_GANGS} jobs with 2 GPUs or more and at least {MIN_LARGE_GANGS} with 4 GPUs or more, the "
    "one with the smallest time between its first and last submission; of equals the earliest.",
    f"num_gpus: the trace's, at most {MAX_GPUS}.",
    "workload: the nearest family among the measured workloads that have rates for 1, 2 and 4 GPUs "
    "of all three types: "
    + "; ".join(f"{model} -> {workload}" for model, workload in WORKLOADS.items())
    + " (image classifiers to image classifiers, language models to Transformers, the recurrent "
    "speech model to the recurrent language model).",
    f"submit_s: submission times shifted and scaled linearly, first at 0 s, last at "
    f"{LAST_ARRIVAL_S:g} s, rounded to 1 ms.",
    f"v100_s: linear in the logarithm of the trace's duration, from {SHORTEST_S:g} s for the "
    f"window's shortest job to {LONGEST_S:g} s for its longest, rounded to 1 ms. "
    f"{LONGEST_S:g} s keeps every job under 110 s alone on its slowest GPU type.",
    "total_steps: v100_s times the steps/s of num_gpus V100s within one node in throughputs.json, "
    "rounded to whole steps.",
)


class TraceJob(NamedTuple):
    """One line of the trace: seconds, and GPUs asked for."""

    job_id: str
    submission_s: int
    model: str
    num_gpus: int
    duration_s: int


def read_trace(path: Path) -> list[TraceJob]:
    """Return the trace's jobs by submission time."""
    with path.open(encoding="utf-8", newline="") as file:
        jobs = [
            TraceJob(
                job_id=row["job_id"],
                submission_s=int(row["submission_time"]),
                model=row["model_name"],
                num_gpus=int(row["num_gpu"]),
                duration_s=int(row["duration"]),
            )
            for row in csv.DictReader(file)
        ]
    return sorted(jobs, key=lambda job: job.submission_s)


def chosen_window(jobs: Sequence[TraceJob]) -> Sequence[TraceJob]:
    """Return the window that the rule names."""
    windows = (jobs[start : start + NUM_JOBS] for start in range(len(jobs) - NUM_JOBS + 1))
    fitting = [window for window in windows if _has_gangs(window)]
    if not fitting:
        raise ValueError(f"no {NUM_JOBS} consecutive jobs of {len(jobs)} have the gangs asked for")
    return min(fitting, key=lambda window: window[-1].submission_s - window[0].submission_s)


def demo_jobs(window: Sequence[TraceJob], table: ThroughputTable) -> list[dict[str, object]]:
    """Return the demo's jobs, in order of submission."""
    first_s, last_s = window[0].submission_s, window[-1].submission_s
    durations_s = [job.duration_s for job in window]
    shortest_s, longest_s = min(durations_s), max(durations_s)
    jobs: list[dict[str, object]] = []
    for number, job in enumerate(window, start=1):
        workload, num_gpus = WORKLOADS[job.model], min(job.num_gpus, MAX_GPUS)
        submit_s = LAST_ARRIVAL_S * (job.submission_s - first_s) / (last_s - first_s)
        share = math.log(job.duration_s / shortest_s) / math.log(longest_s / shortest_s)
        v100_s = round(SHORTEST_S + (LONGEST_S - SHORTEST_S) * share, 3)
        rates = table.throughputs(workload) or Throughputs()
        jobs.append(
            {
                "id": f"demo-{number:02d}",
                "submit_s": round(submit_s, 3),
                "workload": workload,
                "num_gpus": num_gpus,
                "total_steps": round(v100_s * rates.on("v100", num_gpus)),
                "v100_s": v100_s,
                "trace_job_id": job.job_id,
            }
        )
    return jobs


def _has_gangs(window: Sequence[TraceJob]) -> bool:
    num_large = sum(job.num_gpus >= 4 for job in window)
    return sum(job.num_gpus >= 2 for job in window) >= MIN_GANGS and num_large >= MIN_LARGE_GANGS


def demo_text(jobs: Sequence[dict[str, object]]) -> str:
    """Return the job list as JSON with one job per line, so that differences can be read."""
    source, licence, cluster = map(json.dumps, (SOURCE, LICENCE, CLUSTER))
    rules, lines = (",\n".join(f"  {json.dumps(each)}" for each in part) for part in (RULE, jobs))
    return (
        f'{{\n"source": {source},\n"licence": {licence},\n"rule": [\n{rules}\n],\n'
        f'"cluster": {cluster},\n"jobs": [\n{lines}\n]\n}}\n'
    )


def main() -> None:
    """Read the path in the first argument and print the job list."""
    if len(sys.argv) != 2:
        sys.exit(f"usage: {Path(__file__).name} PATH/elasticflow_cluster10.csv")
    window = chosen_window(read_trace(Path(sys.argv[1])))
    sys.stdout.write(demo_text(demo_jobs(window, read_table(None))))


if __name__ == "__main__":
    main()
