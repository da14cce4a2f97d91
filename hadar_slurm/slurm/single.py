"""At most one hadard a cluster."""

from __future__ import annotations

import errno
import hashlib
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from hadar_slurm.errors import DaemonError
from hadar_slurm.slurm.adapter import Site


@contextmanager
def only_daemon(cluster: Site) -> Iterator[None]:
    """Hold a name of the cluster that this machine gives out once: one daemon a cluster.

    It is that of a unix socket without a file. It goes with the process, however it ends, and
    needs no directory of ours; a lock on slurm.conf would be lost when that file is replaced.
    Raises DaemonError when another process holds it.
    """
    digest = hashlib.sha256(f"{cluster.name} {cluster.address}".encode()).hexdigest()
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(f"\0hadard-{digest[:32]}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise DaemonError(
                f"another hadard is at work on cluster {cluster.name} ({cluster.address}); "
                "stop it first"
            ) from None
        yield


def is_free(cluster: Site) -> bool:
    """Return whether no hadard is at work on a cluster, as far as this machine knows."""
    try:
        with only_daemon(cluster):
            return True
    except DaemonError:
        return False
