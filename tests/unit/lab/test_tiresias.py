"""Policy tiresias: queues by attained service, FIFO in each queue, types by free GPUs."""

from __future__ import annotations

from builders import ROUND, a_job, a_snapshot, placed_by, reasons_of, some_rates

from hadar_slurm.core.plan import WaitReason
from hadar_slurm.lab.policies.tiresias import Tiresias


def test_a_job_falls_a_queue_at_each_limit() -> None:
    """A job leaves a queue when its service reaches 3,250 or 7,200 GPU-seconds."""
    jobs = [
        a_job("1", service_gpu_s=7200.0, submitted_s=1.0),
        a_job("2", service_gpu_s=7199.0, submitted_s=2.0),
        a_job("3", service_gpu_s=3250.0, submitted_s=3.0),
        a_job("4", service_gpu_s=3249.0, submitted_s=4.0),
    ]
    for gpus, served in ((1, "4"), (2, "24"), (3, "234"), (4, "1234")):
        plan = Tiresias().plan(a_snapshot(f"{gpus}xV100", *jobs), ROUND)
        assert "".join(placed_by(plan)) == served


def test_in_a_queue_those_that_run_go_first_and_then_the_first_to_come() -> None:
    """In a queue running jobs precede waiting ones; a job of a higher queue preempts lower ones."""
    runs = a_job("3", on="n1:V100:1", service_gpu_s=4000.0, submitted_s=30.0)
    waits = a_job("1", service_gpu_s=4000.0, submitted_s=10.0)
    other = a_job("2", service_gpu_s=4000.0, submitted_s=5.0)
    plan = Tiresias().plan(a_snapshot("2xV100", runs, waits, other), ROUND)
    assert placed_by(plan) == {"2": "n1:V100:1", "3": "n1:V100:1"}
    new = [a_job(name, submitted_s=40.0) for name in ("4", "5")]
    plan = Tiresias().plan(a_snapshot("2xV100", runs, waits, *new), ROUND)
    assert placed_by(plan) == {"4": "n1:V100:1", "5": "n1:V100:1"}


def test_a_job_that_does_not_fit_is_skipped() -> None:
    """A job that does not fit does not block the jobs behind it."""
    jobs = [a_job("1", 4, submitted_s=1.0), a_job("2", 1, submitted_s=2.0)]
    plan = Tiresias().plan(a_snapshot("2xV100", *jobs), ROUND)
    assert placed_by(plan) == {"2": "n1:V100:1"}
    assert reasons_of(plan) == {"1": WaitReason.INFEASIBLE}


def test_types_are_taken_by_plenty_and_not_by_speed() -> None:
    """A job gets the type with most free GPUs on which it trains; a running job keeps its type."""
    jobs = [
        a_job("1", submitted_s=1.0),
        a_job("2", throughputs=some_rates(V100=1.0), submitted_s=2.0),
        a_job("3", submitted_s=3.0, on="n2:K80:1", service_gpu_s=10.0),
    ]
    plan = Tiresias().plan(a_snapshot("2xV100,2xK80,3xP100", *jobs), ROUND)
    assert placed_by(plan) == {"1": "n3:P100:1", "2": "n1:V100:1", "3": "n2:K80:1"}


def test_a_gang_of_several_types_is_left_together() -> None:
    """A running gang of several types stays, so that it does not restart in every round."""
    mixed = a_job("1", 2, on="n1:V100:1 n2:K80:1")
    plan = Tiresias().plan(a_snapshot("1xV100,1xK80,2xP100", mixed, a_job("2")), ROUND)
    assert placed_by(plan) == {"1": "n1:V100:1 n2:K80:1", "2": "n3:P100:1"}
