"""Where a figure comes from."""

from __future__ import annotations

from hadar_slurm.lab.study.provenance import code_digest, machine, versions


def test_a_digest_follows_imports() -> None:
    """A module that imports another has another digest, and the same call gives the same."""
    core = code_digest(["hadar_slurm.core.cluster"])
    policy = code_digest(["hadar_slurm.lab.policies.greedy"])
    assert core != policy
    # greedy imports core.cluster already.
    assert policy == code_digest(["hadar_slurm.lab.policies.greedy", "hadar_slurm.core.cluster"])


def test_solvers_and_machine_are_named() -> None:
    """What may break ties in another way, and what times were measured on."""
    assert {"hadar_slurm", "highspy", "numpy"} <= set(versions())
    assert "cores, Python 3." in machine()
