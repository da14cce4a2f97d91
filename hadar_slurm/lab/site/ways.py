"""The ways in which hadard may treat waiting jobs, as configurations of hadard."""

from __future__ import annotations

from collections.abc import Mapping

# Rounds and costs at the scale of jobs that last seconds instead of hours.
_SCALED: Mapping[str, object] = {
    "round_seconds": 5,
    "poll_seconds": 1,
    "restart_cost_seconds": 2.5,
    "grace_seconds": 10,
    "pin_timeout_seconds": 10,
}
# By the name that `--way` takes; a further way is one line.
WAYS: Mapping[str, Mapping[str, object]] = {
    # Waiting jobs are held; each is released when GPUs are free for it.
    "hold": {**_SCALED, "mode": "enforce"},
    # Slurm keeps the queue; hadard limits the nodes of waiting jobs.
    "steer": {**_SCALED, "mode": "steer"},
}
