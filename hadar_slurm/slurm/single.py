"""At most one hadard a cluster, and one `hadar release`; neither begins while the other works."""

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
    """Be the one hadard of a cluster; raises DaemonError when another is."""
    with _name("hadard", cluster) as is_ours:
        if not is_ours:
            raise DaemonError(
                f"another hadard is at work on cluster {cluster.name} ({cluster.address}); "
                "stop it first"
            )
        yield


def is_free(cluster: Site) -> bool:
    """Return whether no hadard is at work on a cluster, as far as this machine knows."""
    with _name("hadard", cluster) as is_ours:
        return is_ours


@contextmanager
def only_release(cluster: Site) -> Iterator[bool]:
    """Be the one `hadar release` of a cluster; gives whether it is so."""
    with _name("hadar-release", cluster) as is_ours:
        yield is_ours


@contextmanager
def _name(name: str, cluster: Site) -> Iterator[bool]:
    """Hold a name that this machine gives out once; gives whether it was to be had.

    It is that of a unix socket without a file. It goes with the process, however it ends, and
    needs no directory of ours; a lock on slurm.conf would be lost when that file is replaced.
    """
    digest = hashlib.sha256(f"{cluster.name} {cluster.address}".encode()).hexdigest()
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(f"\0{name}-{digest[:32]}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            yield False
        else:
            yield True
