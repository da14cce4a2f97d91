"""The directory of a local cluster: whether it may be used, its content and its removal."""

from __future__ import annotations

import json
import os
import pwd
import re
import secrets
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hadar_slurm.devcluster import accounting, config
from hadar_slurm.devcluster.config import Nodes, NodeShape
from hadar_slurm.errors import ClusterError, UsageError

# Marks a cluster's directory: no directory without this file is ever removed.
MARKER = "hadar-cluster.json"

_FOLDERS = "gpu munge pid run slurmd spool spool/reports state log log/munged log/slurmctld".split()
_UNIX_SOCKET_LIMIT = 107


def default_directory() -> Path:
    """Return where a cluster lies if its user names no directory."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    parent = Path(runtime) if os.path.isdir(runtime) else Path(tempfile.gettempdir())
    return parent / f"hadar-cluster-{os.geteuid()}"


def absolute(directory: Path) -> Path:
    """Return the canonical path of a directory: links above it are followed."""
    directory = directory.expanduser()
    return directory.parent.resolve() / directory.name


def check_path(directory: Path, nodes: Nodes) -> None:
    """Raise UsageError for a path that Slurm cannot read from slurm.conf or bind sockets in."""
    if not nodes:
        raise UsageError("a cluster needs at least one node, for example v100:4")
    if not re.fullmatch(r"[A-Za-z0-9/._-]+", str(directory)):
        raise UsageError(
            f"{str(directory)!r} has characters that slurm.conf cannot hold: choose a directory "
            "of letters, digits and . _ - with --dir"
        )
    # slurmstepd's socket is the longest: node_job.step.
    longest = max((f"slurmd/{n.name}/{n.name}_4000000000.4294967295" for n in nodes), key=len)
    room = _UNIX_SOCKET_LIMIT - len(longest) - 1
    if len(str(directory)) > room:
        raise UsageError(
            f"{directory} has {len(str(directory))} characters; the sockets in it leave room for "
            f"{room}: choose a shorter directory with --dir"
        )


def claim(directory: Path, nodes: Nodes) -> None:
    """Create and mark the directory; raises ClusterError."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        require_owned(directory)
        with (directory / MARKER).open("x", encoding="utf-8") as marker:
            json.dump({"nodes": [{"name": n.name, "gpus": dict(n.gpus)} for n in nodes]}, marker)
    except FileExistsError:
        require_owned(directory)
        raise ClusterError(
            f"{directory} holds what is left of a cluster that no longer runs: remove it with "
            f"hadar cluster down --dir {directory}"
        ) from None
    except OSError as error:
        raise ClusterError(f"cannot use {directory} for a cluster: {error}") from None
    if others := sorted(path.name for path in directory.iterdir() if path.name != MARKER):
        (directory / MARKER).unlink()
        text = f"{directory} is not empty (it holds {others[0]}): choose another with --dir"
        raise ClusterError(text)


def require_owned(directory: Path) -> None:
    """Raise ClusterError unless it is a directory of the calling user, and no link to one."""
    if directory.is_symlink() or not directory.is_dir():
        raise ClusterError(f"{directory} is not a directory: choose another with --dir")
    if (owner := directory.stat().st_uid) != os.geteuid():
        raise ClusterError(
            f"{directory} belongs to uid {owner} and you are uid {os.geteuid()}: run as its "
            "owner or choose another with --dir"
        )


def read_nodes(directory: Path) -> tuple[NodeShape, ...]:
    """Return the nodes that the directory's marker names."""
    try:
        require_owned(directory)
        content = json.loads((directory / MARKER).read_text(encoding="utf-8"))
        return tuple(NodeShape(node["name"], node["gpus"]) for node in content["nodes"])
    except FileNotFoundError:
        text = f"is no cluster that hadar started, since it has no {MARKER}: nothing done"
        raise ClusterError(f"{directory} {text}") from None
    except (OSError, ValueError, KeyError, TypeError, UsageError) as error:
        raise ClusterError(f"cannot read {directory / MARKER}: {error}") from None


def fill(
    directory: Path,
    nodes: Nodes,
    ports: Sequence[int],
    slurmd_timeout_s: int,
    version: str,
    settings: str = "",
) -> None:
    """Write the configuration for what `slurmctld -V` prints, munge's key and the fake devices.

    The ports are those of slurmctld, of the nodes in turn and, with accounting, of slurmdbd.
    `settings` are further lines of slurm.conf.
    """
    own = [part for node in nodes for part in (f"slurmd/{node.name}", f"log/{node.name}")]
    ports, of_accounting = ports[: len(nodes) + 1], ports[len(nodes) + 1 :]
    if of_accounting:
        own += accounting.SUBDIRECTORIES
    for name in (*_FOLDERS, *own):
        (directory / name).mkdir()
        (directory / name).chmod(0o755)
    directory.chmod(0o755)
    (directory / "state").chmod(0o700)
    # Every user of the cluster leaves reports here, as in /tmp.
    (directory / "spool" / "reports").chmod(0o1777)
    for node in nodes:
        for gpu_type, count in node.gpus.items():
            for index in range(count):
                config.device_path(directory, node.name, gpu_type, index).symlink_to("/dev/null")
    key = directory / "munge" / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    conf = config.slurm_conf_text(
        directory, nodes, ports, user=user(), slurmd_timeout_s=slurmd_timeout_s
    )
    for port in of_accounting:
        conf += accounting.slurm_conf_lines(directory, nodes, port)
        accounting.prepare(directory, port, user())
    conf += settings
    gres, cgroup = config.gres_conf_text(directory, nodes), config.cgroup_conf_text(version)
    for name, text in (("slurm", conf), ("gres", gres), ("cgroup", cgroup)):
        path = directory / f"{name}.conf"
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)


def user() -> str:
    """Return the name of the calling user."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise ClusterError(
            f"uid {os.geteuid()} has no name, and Slurm runs jobs of named users only: "
            "run as a user that getent passwd lists"
        ) from None


def remove(directory: Path) -> None:
    """Remove the directory with all in it; the marker goes last, so that a retry is allowed."""
    require_owned(directory)
    if not (directory / MARKER).exists():
        raise ClusterError(f"{directory} has no {MARKER}, so it is not removed")
    try:
        for path in directory.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name != MARKER:
                path.unlink()
        (directory / MARKER).unlink()
        directory.rmdir()
    except OSError as error:
        text = f"{error}; remove it by hand when nothing uses it"
        raise ClusterError(f"cannot remove {directory}: {text}") from None
