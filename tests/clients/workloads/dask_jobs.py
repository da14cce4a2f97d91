"""What a user does with dask-jobqueue: a cluster of two workers, each a job with a GPU."""

from __future__ import annotations

import json
import os
import sys

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
    """Fail as a training does that diverges."""
    raise ValueError("diverged")


def main() -> None:
    """Run everything and print what came of it."""
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
            "workers": sorted(cluster.workers),
        }
    json.dump(said, sys.stdout)


if __name__ == "__main__":
    main()
