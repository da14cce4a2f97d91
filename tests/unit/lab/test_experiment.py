"""The figures of a run that are more than a sum."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import FirstFit, a_cluster, a_spec, some_rates

from hadar_slurm.lab.study.experiment import run_experiment
from hadar_slurm.lab.study.figures import Result

BOTH = some_rates(V100=10.0, K80=1.0)


def run(cluster: str, *, gpus: int = 1) -> Result:
    """Run two jobs of 1,000 steps that arrive together."""
    jobs = [a_spec(name, gpus, steps=1000, throughputs=BOTH) for name in "12"]
    return run_experiment(jobs, a_cluster(cluster), FirstFit())


def test_the_slow_down_is_relative_to_the_time_alone_on_the_fastest_type() -> None:
    """The first job has the V100 for its 100 s; the second waits for it and takes twice as long."""
    result = run("1xV100")
    assert result.mean_jct_s == 150.0
    assert (result.mean_slowdown, result.p99_slowdown) == (1.5, pytest.approx(1.99))


def test_a_slow_type_counts_as_a_slow_down() -> None:
    """The second job runs on the K80 at once, at a tenth of the speed."""
    result = run("1xV100,1xK80")
    assert (result.mean_jct_s, result.mean_slowdown) == (550.0, 5.5)


def test_alone_a_gang_has_as_few_nodes_as_the_cluster_allows() -> None:
    """A gang over two nodes is slowed down only where one node could hold it."""
    assert run("1xV100,1xV100", gpus=2).mean_slowdown == 1.5
    # The first gang has the node of two, the second two nodes at 0.8 of the speed.
    assert run("2xV100,1xV100,1xV100", gpus=2).mean_slowdown == (1.0 + 1.25) / 2


def test_users_slow_downs_are_means_over_their_jobs() -> None:
    """Three jobs follow each other: ana's have 1 and 3, ben's 2; a job without user is left out."""
    users = {"1": "ana", "2": "ben", "3": "ana", "4": ""}
    jobs = [a_spec(name, steps=1000, throughputs=BOTH, user=user) for name, user in users.items()]
    result = run_experiment(jobs, a_cluster("1xV100"), FirstFit())
    assert result.mean_slowdown == 2.5
    assert (result.mean_user_slowdown, result.max_user_slowdown) == (2.0, 2.0)
    uneven = run_experiment(
        [*jobs[:2], replace(jobs[3], user="ben")], a_cluster("1xV100"), FirstFit()
    )
    assert (uneven.mean_user_slowdown, uneven.max_user_slowdown) == (1.75, 2.5)


def test_without_users_there_is_no_slow_down_of_users() -> None:
    """The figures are None, not 0."""
    result = run("1xV100")
    assert (result.mean_user_slowdown, result.max_user_slowdown) == (None, None)
