"""Starts the daemons of a local cluster, and finds and ends every process that belongs to it.

Daemons carry the cluster's directory in their environment, jobs its ClusterName, and job steps
have a working directory in it, so that no pid file is needed and no pid is mistaken.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hadar_slurm.devcluster.config import cluster_name
from hadar_slurm.errors import ClusterError

_DAEMONS = ("munged", "slurmctld", "slurmd")
_COMMANDS = ("scancel", "scontrol", "sinfo", "squeue")
_OF_ACCOUNTING = ("mariadbd", "slurmdbd", "sacct", "sacctmgr")
_SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin")
_PACKAGES = "slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins"
_PACKAGES_OF_ACCOUNTING = "slurmdbd mariadb-server-core"
_DIRECTORY_MARK = "HADAR_LOCAL_CLUSTER"
_NODE_MARK = "HADAR_LOCAL_NODE"
_IS_ERROR = re.compile("error|fatal", re.IGNORECASE)
# MPI libraries that are not installed, and a database smaller than a site's.
_AT_EVERY_START = re.compile("mpi|settings not recommended", re.IGNORECASE)
_START_LIMIT_S = 15.0
# Longer than a fork takes to become a program, on a busy machine.
_SETTLE_S = 0.1


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a local cluster; `node` is empty for daemons that serve all nodes."""

    pid: int
    program: str
    node: str

    @property
    def is_daemon(self) -> bool:
        """Whether it is a daemon or slurmctld's child, and no part of a job."""
        return not self.node or self.program == "slurmd"


@dataclass(frozen=True, slots=True)
class _Observed:
    pid: int
    parent: int
    program: str
    environment: Mapping[str, str]
    cwd: Path


def find_binaries(path: str | None = None, *, accounting: bool = False) -> dict[str, str]:
    """Return the path of every daemon and command that a local cluster needs, by name.

    Looks on `path`, by default PATH and the sbin directories, which an ordinary user's PATH lacks.
    """
    if path is None:
        path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SBIN])
    names = (*_DAEMONS, *_COMMANDS, *(_OF_ACCOUNTING if accounting else ()))
    found = {name: where for name in names if (where := shutil.which(name, path=path)) is not None}
    if missing := [name for name in names if name not in found]:
        packages = [_PACKAGES] * bool(set(missing) - set(_OF_ACCOUNTING))
        packages += [_PACKAGES_OF_ACCOUNTING] * bool(set(missing) & set(_OF_ACCOUNTING))
        raise ClusterError(
            f"not installed: {', '.join(missing)}; on Debian and Ubuntu: "
            f"apt-get install --no-install-recommends {' '.join(packages)}"
        )
    return found


def free_ports(count: int, candidates: Iterable[int] | None = None) -> list[int]:
    """Return `count` TCP ports that nothing listens on, found by binding them.

    By default below the kernel's range for outgoing connections: a node can restart on its port.
    """
    if candidates is None:
        candidates = random.sample(range(10240, 32768), 32768 - 10240)
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        for port in candidates:
            if len(ports) == count:
                break
            bound = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            try:
                bound.bind(("", port))
            except OSError:
                continue
            ports.append(port)
    if len(ports) < count:
        raise ClusterError(
            f"found {len(ports)} free TCP ports and need {count}: stop programs that listen, "
            "or ask for fewer nodes"
        )
    return ports


def start_daemon(
    argv: Sequence[str],
    directory: Path,
    *,
    node: str | None = None,
    name: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Start a daemon that puts itself into the background, and wait until it has done so.

    Its log lies under `name`, by default its node or program; `variables` add to its environment.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))}
    environment |= daemon_variables(directory, node) | dict(variables or {})
    name = name or node or Path(argv[0]).name
    home = directory / "log" / name
    run = partial(subprocess.run, stdin=subprocess.DEVNULL, start_new_session=True, check=False)
    run = partial(run, timeout=_START_LIMIT_S)
    # An open stream would block a reader of our output until its end, for example pytest.
    with (home / "out").open("ab") as sink:
        try:
            status = run(argv, stdout=sink, stderr=sink, cwd=home, env=environment).returncode
        except subprocess.TimeoutExpired:
            text = f"within {_START_LIMIT_S:g} s: {log_tail(directory, name)}"
            raise ClusterError(f"{name} did not start {text}") from None
    if status != 0:
        raise ClusterError(f"{name} ended with status {status}: {log_tail(directory, name)}")


def daemon_variables(directory: Path, node: str | None = None) -> dict[str, str]:
    """Return the variables by which a daemon, of `node` if given, belongs to the cluster."""
    own = {"SLURM_CONF": str(directory / "slurm.conf"), _DIRECTORY_MARK: str(directory)}
    return own | ({_NODE_MARK: node} if node is not None else {})


def log_tail(directory: Path, name: str) -> str:
    """Return the last lines that a daemon wrote, joined to one; errors only if it has any."""
    lines: list[str] = []
    for log in (directory / "log" / name / "log", directory / "log" / name / "out"):
        if log.exists():
            lines += log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [ln for ln in lines if _IS_ERROR.search(ln) and not _AT_EVERY_START.search(ln)]
    return " | ".join((errors or lines)[-4:]) or f"{name} logged nothing"


def processes_of(directory: Path) -> list[Process]:
    """Return the cluster's daemons, job steps and jobs, and what these have started.

    The caller and its ancestors are never among them, so a job may stop its own cluster.
    """
    seen = {process.pid: process for process in _all_processes()}
    name = cluster_name(directory)
    found = {pid: _node_of(process, directory, name) for pid, process in seen.items()}
    nodes = {pid: node for pid, node in found.items() if node is not None}
    children = {pid: process.parent for pid, process in seen.items()}
    while new := {k: nodes[p] for k, p in children.items() if k not in nodes and p in nodes}:
        nodes |= new
    pid = os.getpid()
    while pid in seen:
        nodes.pop(pid, None)
        pid = seen[pid].parent
    return [Process(pid, seen[pid].program, node) for pid, node in sorted(nodes.items())]


def _node_of(process: _Observed, directory: Path, name: str) -> str | None:
    """Return the process's node, empty if it serves all nodes, None if it is not the cluster's."""
    variables = process.environment
    if variables.get(_DIRECTORY_MARK) == str(directory):
        return variables.get(_NODE_MARK, "")
    if variables.get("SLURM_CLUSTER_NAME") == name:
        # None in the shell of salloc, which runs beside the cluster.
        return variables.get("SLURMD_NODENAME")
    # From 24.11 on slurmstepd wipes its environment, but it stays where slurmd writes its log.
    if process.program == "slurmstepd" and process.cwd.parent == directory / "log":
        return process.cwd.name
    return None


def _all_processes() -> Iterable[_Observed]:
    listed: set[str] = set()
    # A process that forks and ends while we read is missed by one listing, not by the next.
    while new := {name for name in os.listdir("/proc") if name.isdigit()} - listed:
        listed |= new
        for name in new:
            with contextlib.suppress(OSError):  # it has just ended, or is another user's
                if (seen := _read_process(Path("/proc", name))) is not None:
                    yield seen


def _read_process(entry: Path) -> _Observed | None:
    before, _, after = (entry / "stat").read_text(errors="replace").rpartition(")")
    state, parent = after.split()[:2]
    if state == "Z":
        return None
    variables = os.fsdecode((entry / "environ").read_bytes()).split("\0")
    environment = dict(variable.split("=", 1) for variable in variables if "=" in variable)
    cwd = Path(os.readlink(entry / "cwd").removesuffix(" (deleted)"))
    return _Observed(int(entry.name), int(parent), before.partition("(")[2], environment, cwd)


def end(find: Callable[[], list[Process]], *, grace_s: float, limit_s: float = 5.0) -> None:
    """Ask the processes that `find` returns to end, and kill them after `grace_s` seconds."""

    def are_gone() -> bool:
        # Twice and apart, since a process is not known between its fork and its program's start.
        if find():
            return False
        time.sleep(_SETTLE_S)
        return not find()

    def are_killed() -> bool:
        _signal(find(), signal.SIGKILL)
        return are_gone()

    if grace_s > 0:
        _signal(find(), signal.SIGTERM)
        if wait_until(are_gone, grace_s):
            return
    if not wait_until(are_killed, limit_s):
        pids = ", ".join(str(process.pid) for process in find())
        raise ClusterError(f"processes {pids} do not end after SIGKILL: end them as their owner")


def _signal(processes: Iterable[Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, number)


def wait_until(condition: Callable[[], bool], limit_s: float, *, every_s: float = 0.05) -> bool:
    """Return whether `condition` became true within `limit_s` seconds; checks at least once."""
    deadline_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(every_s)
    return True
