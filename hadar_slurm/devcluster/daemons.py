"""How each daemon of a local cluster that is no part of its accounting is started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hadar_slurm.devcluster.processes import start_daemon


def start_munged(directory: Path, binaries: Mapping[str, str]) -> None:
    """Start munged with the cluster's own key and socket."""
    munge = directory / "munge"
    files = [f"--{name}-file={munge / name}" for name in ("key", "pid", "seed")]
    log = f"--log-file={directory / 'log/munged/log'}"
    argv = [binaries["munged"], "--force", f"--socket={munge / 'socket'}", log, *files]
    start_daemon(argv, directory)


def start_slurmctld(directory: Path, binaries: Mapping[str, str]) -> None:
    """Start slurmctld, with the jobs and nodes that it saved."""
    start_daemon([binaries["slurmctld"], "-f", str(directory / "slurm.conf")], directory)


def start_slurmd(directory: Path, node: str, binaries: Mapping[str, str]) -> None:
    """Start the slurmd of one node."""
    argv = [binaries["slurmd"], "-N", node, "-f", str(directory / "slurm.conf")]
    start_daemon(argv, directory, node=node)
