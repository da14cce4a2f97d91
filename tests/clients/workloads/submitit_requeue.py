"""A user's program with submitit under preemption: a job that saves and requeues itself."""

from __future__ import annotations

import json
import os
import sys
import time

import submitit


class Count:
    """Counts, and resumes from the number reached when it was stopped."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self, end: int) -> list[int]:
        """Return the number reached, how often the job was requeued, and how many GPUs it sees."""
        print("counting", flush=True)
        while self.number < end:
            self.number += 1
            time.sleep(0.1)
        devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return [
            self.number,
            int(os.environ.get("SLURM_RESTART_COUNT", "0")),
            len(devices.split(",")),
        ]

    def checkpoint(self, end: int) -> submitit.helpers.DelayedSubmission:
        """Return the submission with which submitit resumes."""
        return submitit.helpers.DelayedSubmission(self, end)


executor = submitit.AutoExecutor(folder="logs", cluster="slurm")
executor.update_parameters(timeout_min=5, slurm_gpus_per_node=1, slurm_job_name="count")
job = executor.submit(Count(), 60)
deadline_s = time.monotonic() + 60
# submitit has installed its signal handler by then.
while "counting" not in (job.stdout() or "") and time.monotonic() < deadline_s:
    time.sleep(0.2)
job._interrupt(timeout=False)
json.dump({"result": job.result()}, sys.stdout)
