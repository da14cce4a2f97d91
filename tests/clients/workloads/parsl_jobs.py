"""A user's program with parsl: functions on two blocks, each a job with one GPU."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SimpleLauncher
from parsl.providers import SlurmProvider


@parsl.python_app
def square(number: int) -> int:
    """Return the square of a number."""
    return number * number


@parsl.python_app
def num_gpus() -> int:
    """Return how many GPUs the job sees."""
    import os

    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return len(devices.split(",")) if devices else 0


@parsl.python_app
def fail() -> None:
    """Raise an error, as a training that diverges."""
    raise ValueError("diverged")


def states(executor: HighThroughputExecutor) -> list[str]:
    """Return the states that parsl shows for its blocks."""
    return sorted(status.state.name for status in executor.status().values())


def until(executor: HighThroughputExecutor, wanted: list[str]) -> list[str]:
    """Return the states of parsl's blocks once they are `wanted`, or after 90 s."""
    deadline_s = time.monotonic() + 90
    while (seen := states(executor)) != wanted and time.monotonic() < deadline_s:
        time.sleep(0.5)
    return seen


programs = Path(sys.executable).parent
executor = HighThroughputExecutor(
    label="slurm",
    address="127.0.0.1",
    max_workers_per_node=1,
    provider=SlurmProvider(
        partition="main",
        nodes_per_block=1,
        init_blocks=2,
        min_blocks=2,
        max_blocks=2,
        walltime="00:05:00",
        exclusive=False,
        scheduler_options="#SBATCH --gpus=1\n#HADAR --hadar-model=a-model-of-my-own",
        worker_init=f"export PATH={programs}:$PATH",
        launcher=SimpleLauncher(),
    ),
)
config = Config(executors=[executor], run_dir="runs", strategy="none")
with parsl.load(config):
    broken = fail()
    said = {
        "results": [square(number).result() for number in range(6)],
        "failure": str(broken.exception()),
        "gpus": num_gpus().result(),
        "blocks": until(executor, ["RUNNING", "RUNNING"]),
    }
json.dump(said, sys.stdout)
