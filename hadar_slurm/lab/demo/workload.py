"""The demo's jobs: drawn from a production trace by the rule in their file."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hadar_slurm.resources import data_file


@dataclass(frozen=True, slots=True)
class DemoJob:
    """One job; `submit_s` in seconds from the start of the run, `total_steps` of the whole gang."""

    name: str
    submit_s: float
    workload: str
    num_gpus: int
    total_steps: int


@dataclass(frozen=True, slots=True)
class DemoWorkload:
    """The jobs in order of submission, their cluster and their source."""

    source: str
    cluster: str
    jobs: tuple[DemoJob, ...]


def load_workload() -> DemoWorkload:
    """Return the shipped workload."""
    tree = json.loads(data_file("demo_jobs.json").read_text(encoding="utf-8"))
    names = ("submit_s", "workload", "num_gpus", "total_steps")
    jobs = [DemoJob(job["id"], *(job[name] for name in names)) for job in tree["jobs"]]
    ordered = tuple(sorted(jobs, key=lambda job: (job.submit_s, job.name)))
    return DemoWorkload(str(tree["source"]), str(tree["cluster"]), ordered)
