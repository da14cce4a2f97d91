"""The ways in which hadard may treat waiting jobs, as configurations of hadard."""

from __future__ import annotations

from collections.abc import Mapping

from hadar_slurm.lab.demo.both_runs import WAYS

# Rounds and costs at the scale of jobs that last seconds instead of hours.
_SCALED: Mapping[str, object] = {
    "round_seconds": 5,
    "poll_seconds": 1,
    "restart_cost_seconds": 2.5,
    "grace_seconds": 10,
    "pin_timeout_seconds": 10,
}
# By the name that `--way` takes.
SETTINGS: Mapping[str, Mapping[str, object]] = {way: {**_SCALED, "mode": way} for way in WAYS}
