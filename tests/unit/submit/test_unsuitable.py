"""The nodes that do not suit a job which sbatch gets without hadard."""

from __future__ import annotations

from builders import a_cluster

from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.submit.unsuitable import unsuitable


def late_on_k80(gpus: int) -> Description:
    """Return a job that ends within its limit on V100s only."""
    return Description(gpus=gpus, steps=1000, limit_s=600.0, throughputs={"v100": 10, "k80": 1})


def test_types_on_which_a_job_ends_too_late_do_not_suit_unless_only_they_can_hold_it() -> None:
    """Else it would never start."""
    estimator, cluster = Estimator(ThroughputTable("none", {}), {}), a_cluster("1xV100,2xK80")
    assert unsuitable(late_on_k80(1), estimator, cluster, None).nodes == ("n2",)
    assert not unsuitable(late_on_k80(2), estimator, cluster, None).nodes


def test_a_throughput_of_0_is_no_fault() -> None:
    """On that type the job does not run, in no time."""
    estimator, cluster = Estimator(ThroughputTable("none", {}), {}), a_cluster("1xV100,2xK80")
    job = Description(steps=1000, limit_s=600.0, throughputs={"v100": 10, "k80": 0})
    assert unsuitable(job, estimator, cluster, None).nodes == ("n2",)
