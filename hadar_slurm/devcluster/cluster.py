"""A real Slurm on this machine: slurmctld and many slurmd on loopback, with fake GPUs.

Runs as the calling user, root or not. Everything it writes lies in one directory, no other
configuration of Slurm or munge is read, and `down` leaves no process and no file.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hadar_slurm.devcluster import accounting as slurmdbd
from hadar_slurm.devcluster import directory as layout
from hadar_slurm.devcluster import processes
from hadar_slurm.devcluster.config import KILL_WAIT_S, NodeShape, cluster_name
from hadar_slurm.devcluster.processes import Process, free_ports, log_tail, wait_until
from hadar_slurm.errors import ClusterError, HadarError, SlurmError, SlurmUnavailable, UsageError
from hadar_slurm.job_files import user_reports
from hadar_slurm.slurm.client.runner import Runner

_PORT_TRIES = 3
_PORT_IN_USE = "Address already in use"


class _PortTaken(ClusterError):
    """Another program took a port between its choice and its use."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node; `state` as sinfo prints it, for example `idle` or `down*`."""

    name: str
    state: str
    gpus: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class DevclusterStatus:
    """The nodes, and the numbers of running and pending jobs; an array task is a job."""

    nodes: tuple[NodeStatus, ...]
    running: int
    pending: int
    # `up`, `down` when slurmdbd or its database has ended, or `none`.
    accounting: str


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """A cluster that `up` started or `attach` found; a `with` block ends by stopping it."""

    directory: Path
    nodes: tuple[NodeShape, ...]
    accounting: bool = False

    @classmethod
    def up(
        cls,
        directory: Path,
        nodes: Sequence[NodeShape],
        *,
        accounting: bool = False,
        timeout_s: float = 30.0,
        slurmd_timeout_s: int = 300,
        settings: str = "",
        choose_ports: Callable[[int], Sequence[int]] = free_ports,
        on_wait: Callable[[int], None] = lambda num_idle: None,
    ) -> LocalCluster:
        """Start a cluster in `directory` and return it when every node is idle.

        With `accounting` it has a slurmdbd, in which the calling user belongs to one account. Nodes
        that do not answer for `slurmd_timeout_s` seconds count as down. `settings` are further
        lines of slurm.conf. `on_wait` gets the number of idle nodes while they start. A failure
        leaves nothing behind.
        """
        cluster = cls(layout.absolute(directory), tuple(nodes), accounting)
        layout.check_path(cluster.directory, nodes)
        binaries = processes.find_binaries(accounting=accounting)
        for tries_left in reversed(range(_PORT_TRIES)):
            try:
                if cluster.processes():
                    raise ClusterError(
                        f"a cluster is already running in {cluster.directory}: use it, or stop it "
                        f"with hadar cluster down --dir {cluster.directory}"
                    )
                layout.claim(cluster.directory, cluster.nodes)
                with cluster._removed_on_failure():
                    ports = choose_ports(len(nodes) + (2 if accounting else 1))
                    version = Runner().run([binaries["slurmctld"], "-V"])
                    layout.fill(
                        cluster.directory, nodes, ports, slurmd_timeout_s, version, settings
                    )
                    cluster._start(binaries, ports[-1] if accounting else None)
                    cluster._wait_until_idle(timeout_s, on_wait)
                break
            except _PortTaken:
                if not tries_left:
                    raise
        return cluster

    @classmethod
    def attach(cls, directory: Path) -> LocalCluster:
        """Return the cluster that lies in `directory`, whether or not its daemons run."""
        directory = layout.absolute(directory)
        if os.path.lexists(directory):
            accounting = (directory / "slurmdbd.conf").exists()
            return cls(directory, layout.read_nodes(directory), accounting)
        if cls.exists(directory):
            return cls(directory, ())  # someone removed the directory under running daemons
        raise ClusterError(f"no cluster in {directory}: start one with hadar cluster up")

    @staticmethod
    def exists(directory: Path) -> bool:
        """Return whether there is anything to stop or remove, be it only processes."""
        directory = layout.absolute(directory)
        return os.path.lexists(directory) or bool(processes.processes_of(directory))

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *error: object) -> None:
        self.down()

    @property
    def name(self) -> str:
        """Return Slurm's ClusterName, another one in every directory."""
        return cluster_name(self.directory)

    @property
    def slurm_conf(self) -> Path:
        """Return the path of slurm.conf."""
        return self.directory / "slurm.conf"

    def environment(self) -> dict[str, str]:
        """Return the variables with which commands find this cluster."""
        return {
            "SLURM_CONF": str(self.slurm_conf),
            "HADAR_RUN_DIR": str(self.directory / "run"),
            "HADAR_SPOOL": str(user_reports(self.directory / "spool" / "reports", os.geteuid())),
        }

    def runner(self, *, timeout_s: float = 30.0) -> Runner:
        """Return a runner of commands on this cluster, with a limit in seconds for each."""
        return Runner(self.slurm_conf, timeout_s, self.environment())

    def processes(self) -> list[Process]:
        """Return every process of this cluster: daemons, job steps and jobs."""
        return processes.processes_of(self.directory)

    def controller_runs(self) -> bool:
        """Return whether slurmctld runs."""
        return any(process.program == "slurmctld" for process in self.processes())

    def status(self) -> DevclusterStatus:
        """Return the states of the nodes and the number of jobs."""
        if not self.controller_runs():
            raise ClusterError(
                f"slurmctld of {self.directory} does not run: remove the cluster with "
                f"hadar cluster down --dir {self.directory} and start a new one"
            )
        states = self._node_states(timeout_s=10)
        jobs = self.runner(timeout_s=10).run(["squeue", "-h", "-r", "-o", "%T"]).split()
        nodes = [NodeStatus(n.name, states.get(n.name, "unknown"), n.gpus) for n in self.nodes]
        pending, accounting = jobs.count("PENDING"), "none"
        if self.accounting:
            running = {process.program for process in self.processes()}
            accounting = "up" if running.issuperset(slurmdbd.DAEMONS) else "down"
        return DevclusterStatus(tuple(nodes), len(jobs) - pending, pending, accounting)

    def cancel_jobs(self) -> None:
        """Cancel every job and wait until their processes have ended; kill these after 7 s.

        Slurm with proctrack/linuxproc loses a process that a job starts while it is killed.
        """
        self.runner(timeout_s=10).run(["scancel", "--partition=main"])
        if not wait_until(lambda: not self._of_jobs(), KILL_WAIT_S + 2):
            processes.end(self._of_jobs, grace_s=0)

    def _of_jobs(self) -> list[Process]:
        return [process for process in self.processes() if not process.is_daemon]

    def down(self) -> None:
        """Cancel all jobs, end every process, also after crashes, and remove the directory."""
        if self.slurm_conf.exists() and self.controller_runs():
            # A controller that does not answer is killed below, and so are its jobs.
            with contextlib.suppress(SlurmError):
                self.cancel_jobs()
        processes.end(self._of_jobs, grace_s=0)
        processes.end(self.processes, grace_s=5)
        if self.directory.exists():
            layout.remove(self.directory)

    def kill_node(self, name: str) -> None:
        """Kill the slurmd of a node, its job steps and its jobs, as after a power failure."""
        self._require_node(name)
        processes.end(lambda: [p for p in self.processes() if p.node == name], grace_s=0)

    def start_node(self, name: str, *, timeout_s: float = 30.0) -> None:
        """Start the slurmd of a node unless it runs, and wait until slurmctld has seen it."""
        self._require_node(name)
        if name not in self._dead_daemons():
            return
        started_s = int(time.time())
        self._start_slurmd(name, processes.find_binaries())

        def is_registered() -> bool:
            text = self.runner().run(["scontrol", "--oneliner", "show", "node", name])
            match = re.search(r" SlurmdStartTime=(\d+)", text)
            return match is not None and int(match[1]) >= started_s

        if not wait_until(is_registered, timeout_s):
            raise self._failed_to_start(name, timeout_s)

    def stop_controller(self) -> None:
        """Stop slurmctld, which saves its jobs and nodes; the nodes and their jobs go on."""
        processes.end(lambda: [p for p in self.processes() if p.program == "slurmctld"], grace_s=10)

    def start_controller(self, *, timeout_s: float = 30.0) -> None:
        """Start slurmctld unless it runs, and wait for an answer; nodes may first be `unknown`."""
        if not self.controller_runs():
            self._start_slurmctld(processes.find_binaries())
        if not wait_until(lambda: bool(self._node_states()), timeout_s):
            raise self._failed_to_start("slurmctld", timeout_s)

    @contextlib.contextmanager
    def _removed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            processes.end(self.processes, grace_s=0)
            layout.remove(self.directory)
            if isinstance(error, OSError):
                raise ClusterError(f"cannot start in {self.directory}: {error}") from error
            raise

    def _start(self, binaries: Mapping[str, str], accounting_port: int | None) -> None:
        munge, log = self.directory / "munge", self.directory / "log/munged/log"
        argv = [binaries["munged"], "--force", f"--socket={munge / 'socket'}", f"--log-file={log}"]
        argv += [f"--{name}-file={munge / name}" for name in ("key", "pid", "seed")]
        processes.start_daemon(argv, self.directory)
        if accounting_port is not None:
            self._start_accounting(binaries, accounting_port)
        self._start_slurmctld(binaries)
        for node in self.nodes:
            self._start_slurmd(node.name, binaries)

    def _start_slurmctld(self, binaries: Mapping[str, str]) -> None:
        processes.start_daemon([binaries["slurmctld"], "-f", str(self.slurm_conf)], self.directory)

    def _start_slurmd(self, node: str, binaries: Mapping[str, str]) -> None:
        argv = [binaries["slurmd"], "-N", node, "-f", str(self.slurm_conf)]
        processes.start_daemon(argv, self.directory, node=node)

    def _start_accounting(self, binaries: Mapping[str, str], port: int) -> None:
        try:
            runner = self.runner(timeout_s=60)  # sacctmgr takes long on a loaded machine
            slurmdbd.start(self.directory, binaries, user=layout.user(), port=port, runner=runner)
        except HadarError:
            if _PORT_IN_USE in log_tail(self.directory, "slurmdbd"):
                raise self._failed_to_start("slurmdbd") from None
            raise

    def _wait_until_idle(self, timeout_s: float, on_wait: Callable[[int], None]) -> None:
        def all_idle() -> bool:
            # A daemon that has just gone into the background may escape one look.
            dead = self._dead_daemons()
            if dead and not wait_until(lambda: not self._dead_daemons(), 0.5):
                raise self._failed_to_start(dead[0])
            num_idle = list(self._node_states().values()).count("idle")
            on_wait(num_idle)
            return num_idle == len(self.nodes)

        if not wait_until(all_idle, timeout_s):
            states = self._node_states()
            waiting = [n.name for n in self.nodes if states.get(n.name) != "idle"]
            late = waiting[0] if states and waiting else "slurmctld"
            raise self._failed_to_start(late, timeout_s)

    def _failed_to_start(self, daemon: str, after_s: float | None = None) -> ClusterError:
        tail = log_tail(self.directory, daemon)
        error = _PortTaken if _PORT_IN_USE in tail else ClusterError
        how = "stopped while starting" if after_s is None else f"was not ready in {after_s:g} s"
        return error(f"{daemon} {how}; its log ends: {tail}")

    def _dead_daemons(self) -> list[str]:
        """Return the daemons that do not run, a slurmd by the name of its node."""
        alive = {p.node or p.program for p in self.processes() if p.is_daemon}
        accounting = slurmdbd.DAEMONS if self.accounting else ()
        expected = ("munged", *accounting, "slurmctld", *(node.name for node in self.nodes))
        return [name for name in expected if name not in alive]

    def _node_states(self, *, timeout_s: float = 1.0) -> dict[str, str]:
        """Return what sinfo says, nothing while slurmctld does not answer."""
        try:
            text = self.runner(timeout_s=timeout_s).run(["sinfo", "-h", "-N", "-o", "%N|%T"])
        except SlurmUnavailable:
            return {}
        return dict(line.split("|", 1) for line in text.splitlines())

    def _require_node(self, name: str) -> None:
        if name not in {node.name for node in self.nodes}:
            known = ", ".join(node.name for node in self.nodes)
            raise UsageError(f"no node {name} in {self.directory}; there are {known}")
