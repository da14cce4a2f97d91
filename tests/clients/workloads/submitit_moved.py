"""A user's program with submitit: a job that saves and requeues itself when Slurm says so."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import submitit


class Count:
    """Counts, and resumes from the number reached when it was stopped."""

    def __init__(self, counted: Path) -> None:
        self.number, self.counted = 0, counted

    def __call__(self, end: int) -> list[str]:
        """Return the nodes on which each number was counted."""
        while self.number < end:
            self.number += 1
            with self.counted.open("a") as file:
                print(self.number, os.environ["SLURMD_NODENAME"], file=file)
            time.sleep(0.1)
        return self.counted.read_text().splitlines()

    def checkpoint(self, end: int) -> submitit.helpers.DelayedSubmission:
        """Return the submission with which submitit resumes."""
        return submitit.helpers.DelayedSubmission(self, end)


executor = submitit.AutoExecutor(folder="logs", cluster="slurm")
executor.update_parameters(
    timeout_min=60, slurm_gpus_per_node=1, slurm_job_name="count", slurm_signal_delay_s=5
)
job = executor.submit(Count(Path("counted").absolute()), 300)
json.dump({"result": job.result()}, sys.stdout)
