"""A user's program with dask-jobqueue: each worker is a job with one GPU."""

from __future__ import annotations

import json
import os
import sys
import time

from dask.distributed import Client
from dask_jobqueue import SLURMCluster


def square(number: int) -> int:
    """Return the square of a number."""
    return number * number


def num_gpus() -> int:
    """Return how many GPUs the job of this worker sees."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return len(devices.split(",")) if devices else 0


def fail() -> None:
    """Raise an error, as a training that diverges."""
    raise ValueError("diverged")


def main() -> None:
    """Run the workload and print its results."""
    options = {"cores": 1, "processes": 1, "memory": "500MB", "walltime": "00:05:00"}
    with (
        SLURMCluster(
            **options,
            job_extra_directives=["--gpus=1"],
            job_script_prologue=["#HADAR --hadar-model=a-model-of-my-own"],
            scheduler_options={"host": "127.0.0.1", "dashboard": False},
            log_directory="logs",
        ) as cluster,
        Client(cluster) as client,
    ):
        cluster.scale(jobs=2)
        client.wait_for_workers(2, timeout=90)
        results = client.gather(client.map(square, range(6)))
        failed = client.submit(fail, pure=False)
        said = {
            "results": results,
            "failure": str(failed.exception(timeout=60)),
            "gpus": sorted(client.run(num_gpus).values()),
            # Not scheduler_info: the client overwrites its answer every two seconds.
            "workers": len(client.nthreads()),
        }
        # More workers than GPUs: pending jobs are cancelled when the cluster is closed.
        cluster.scale(jobs=6)
        said["submitted"] = until_submitted(cluster, 6)
    json.dump(said, sys.stdout)


def until_submitted(cluster: SLURMCluster, num_jobs: int) -> bool:
    """Wait until the cluster has submitted its jobs, and return whether it has."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        workers = list(cluster.workers.values())
        if len(workers) == num_jobs and all(worker.job_id for worker in workers):
            return True
        time.sleep(0.1)
    return False


if __name__ == "__main__":
    main()
