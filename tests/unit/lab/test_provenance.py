"""Provenance of a result: code digest, versions, machine."""

from __future__ import annotations

from hadar_slurm.lab.provenance import code_digest, machine, versions


def test_a_digest_follows_imports() -> None:
    """The digest of a module includes the modules it imports."""
    core = code_digest(["hadar_slurm.core.cluster"])
    policy = code_digest(["hadar_slurm.lab.policies.greedy"])
    assert core != policy
    # `greedy` already imports `core.cluster`.
    assert policy == code_digest(["hadar_slurm.lab.policies.greedy", "hadar_slurm.core.cluster"])


def test_solvers_and_machine_are_named() -> None:
    """Versions include those of the solvers; the machine's description has cores and Python."""
    assert {"hadar_slurm", "highspy", "numpy"} <= set(versions())
    assert "cores, Python 3." in machine()
