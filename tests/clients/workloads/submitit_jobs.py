"""A user's program with submitit: a function, an array of it, one without a GPU, and a failure."""

from __future__ import annotations

import json
import os
import sys
import time

import submitit


def square(number: int) -> list[int]:
    """Return the square of a number and how many GPUs the job sees."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return [number * number, len(devices.split(",")) if devices else 0]


def fail() -> None:
    """Raise an error, as a training that diverges."""
    raise ValueError("diverged")


def final_state(job: submitit.Job) -> str:
    """Return submitit's state of a job, once Slurm's accounting has recorded its end."""
    deadline_s = time.monotonic() + 60
    while True:
        state = job.watcher.get_state(job.job_id, mode="force")
        if state not in ("UNKNOWN", "PENDING", "RUNNING", "COMPLETING"):
            return state
        if time.monotonic() > deadline_s:
            return f"still {state}"
        time.sleep(0.2)


executor = submitit.AutoExecutor(folder="logs", cluster="slurm")
executor.update_parameters(timeout_min=5, slurm_job_name="prepare")
without = executor.submit(square, 7)
executor.update_parameters(slurm_job_name="train", slurm_gpus_per_node=1)
executor.update_parameters(slurm_setup=["#HADAR --hadar-model=a-model-of-my-own"])
one = executor.submit(square, 3)
executor.update_parameters(slurm_setup=[])
array = executor.map_array(square, [4, 5, 6])
broken = executor.submit(fail)

jobs = [without, one, *array]
results = [job.result() for job in jobs]
failure = str(broken.exception())
said = {
    "results": results,
    "failure": [line for line in failure.splitlines() if line.startswith("ValueError")],
    "states": [final_state(job) for job in (*jobs, broken)],
    "array": [job.job_id.partition("_")[2] for job in array],
}
json.dump(said, sys.stdout)
