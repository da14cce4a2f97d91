"""Policy e-las: queues by attained service; in a queue, least remaining service first."""

from __future__ import annotations

import pytest
from builders import ROUND, a_job, a_snapshot, placed_by

from hadar_slurm.lab.policies.e_las import Elas, service_left


def test_what_is_left_follows_from_progress_and_service() -> None:
    """A quarter of the steps took 3,000 GPU-s, so the other three quarters need 9,000."""
    assert service_left(a_job(steps=1000, done=250.0, service_gpu_s=3000.0)) == 9000.0
    assert service_left(a_job(steps=1000, done=1000.0, service_gpu_s=3000.0)) == 0.0
    assert service_left(a_job(steps=1000, done=0.0, service_gpu_s=3000.0)) == 0.0


@pytest.mark.parametrize("sign", [1, -1])
def test_in_a_queue_who_needs_least_goes_first(sign: int) -> None:
    """After 4,000 GPU-s each, the job at 50 % (4,000 left) precedes the one at 20 % (16,000)."""
    jobs = [
        a_job("1", done=200.0, service_gpu_s=4000.0, submitted_s=10.0 * sign),
        a_job("2", done=500.0, service_gpu_s=4000.0, submitted_s=0.0),
    ]
    plan = Elas().plan(a_snapshot("1xV100", *jobs), ROUND)
    assert placed_by(plan) == {"2": "n1:V100:1"}


def test_queues_come_first() -> None:
    """A nearly finished job with 8,000 GPU-s attained waits for a job with none."""
    jobs = [
        a_job("1", done=999.0, service_gpu_s=8000.0, submitted_s=1.0),
        a_job("2", submitted_s=2.0),
    ]
    plan = Elas().plan(a_snapshot("1xV100", *jobs), ROUND)
    assert placed_by(plan) == {"2": "n1:V100:1"}


def test_types_are_taken_by_plenty_and_who_runs_stays() -> None:
    """As in tiresias, the type with most free GPUs is chosen, whatever its speed."""
    jobs = [a_job("1", submitted_s=1.0), a_job("2", on="n2:K80:1", done=5.0, service_gpu_s=10.0)]
    plan = Elas().plan(a_snapshot("1xV100,1xK80,2xP100", *jobs), ROUND)
    assert placed_by(plan) == {"1": "n3:P100:1", "2": "n2:K80:1"}
