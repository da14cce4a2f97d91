"""Node failures: drawn from a seed, and simulated."""

from builders import FirstFit, a_cluster, a_spec

from hadar_slurm.core.cluster import NodeName
from hadar_slurm.lab.failures import draw_failures
from hadar_slurm.lab.study.experiment import ExperimentSettings, run_experiment
from hadar_slurm.sim.backend import Failure

HOUR_S = 3600.0


def test_the_same_seed_fails_the_same_nodes() -> None:
    """The same seed draws the same failures; another seed draws others."""
    cluster = a_cluster("4xV100,4xP100,4xK80")
    times = {"mtbf_s": 20 * HOUR_S, "repair_s": HOUR_S, "until_s": 500 * HOUR_S}
    first = draw_failures(cluster, **times, seed=1)
    assert first == draw_failures(cluster, **times, seed=1)
    assert first != draw_failures(cluster, **times, seed=2)
    assert all(failure.down_s < failure.up_s for failure in first)
    # 3 nodes, 500 h, one failure per node every 21 h.
    assert 40 < len(first) < 110


def test_another_node_changes_nothing_for_the_others() -> None:
    """Adding a node does not change the failures of the other nodes."""
    few, many = a_cluster("4xV100"), a_cluster("4xV100,4xV100")
    times = {"mtbf_s": HOUR_S, "repair_s": HOUR_S, "until_s": 50 * HOUR_S, "seed": 0}
    assert draw_failures(few, **times) == tuple(
        failure for failure in draw_failures(many, **times) if failure.node == "n1"
    )


def test_a_failing_node_costs_the_round_and_its_repair() -> None:
    """Work since the last round is lost; the job waits for the repair and restarts."""
    # 100 s rounds; 10 steps/s; the node fails at 250 s and is repaired at 400 s.
    spec = a_spec("1", steps=5000, restart_cost_s=30.0)
    failure = Failure(250.0, 400.0, NodeName("n1"))
    result = run_experiment(
        [spec],
        a_cluster("1xV100"),
        FirstFit(),
        ExperimentSettings(round_s=100.0, failures=(failure,)),
    )
    # 200 s of work are kept; the other 300 s follow at 400 s, after a restart of 30 s.
    assert result.ttd_s == 730.0
    assert result.completed == 1
    assert result.max_wait_s == 150.0
    assert result.moves == 1


def test_a_failing_node_leaves_the_others_alone() -> None:
    """A job on another node ends at its normal time."""
    jobs = [a_spec("1", steps=5000), a_spec("2", steps=5000)]
    failure = Failure(250.0, 400.0, NodeName("n1"))
    result = run_experiment(
        jobs,
        a_cluster("1xV100,1xV100"),
        FirstFit(),
        ExperimentSettings(round_s=100.0, failures=(failure,)),
    )
    assert sorted(done.end_s for done in result.jcts)[0] == 500.0
