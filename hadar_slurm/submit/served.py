"""Finds whether a live hadard would place a job."""

from __future__ import annotations

import time
from collections.abc import Mapping

from hadar_slurm.state.heartbeat import Heartbeat, read_heartbeat, run_dir
from hadar_slurm.submit.request import SbatchRequest


def find_hadard(
    request: SbatchRequest, environment: Mapping[str, str]
) -> tuple[Heartbeat | None, str]:
    """Return hadard's heartbeat, and why it would not place the job, "" if it would."""
    directory = run_dir(environment)
    beat = read_heartbeat(directory)
    now_s = time.time()
    if beat is None or not beat.is_fresh(now_s):
        return beat, f"hadard is not alive here (no fresh heartbeat in {directory})"
    partition = request.last("partition")
    if not beat.covers(partition, now_s):
        name = f"partition {partition}" if partition else "the default partition"
        return beat, f"hadard does not enforce in {name}"
    return beat, ""
