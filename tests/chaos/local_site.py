"""Changes of the local cluster's configuration, and wrappers of Slurm's commands that warn."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from chaos.slurm_conf import Change

from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.processes import find_binaries, start_daemon, wait_until
from hadar_slurm.errors import ClusterError, HadarError

_BACKUP = "backup"
_WRAPPED = ("scontrol", "squeue", "sinfo")
_WRAPPER = """\
#!/bin/sh
while read -r line; do echo "{name}: $line" >&2; done <{warning}
exec {program} "$@"
"""


@dataclass
class LocalSite:
    """The local cluster's configuration; `start_controller` starts slurmctld as its world does."""

    cluster: LocalCluster
    start_controller: Callable[[], None]

    def wrap_commands(self, directory: Path) -> Path:
        """Make commands that also write what is in the file `warning`; return their directory."""
        warning, target = directory / "warning", directory / "bin"
        warning.touch()
        target.mkdir()
        for name in _WRAPPED:
            path = target / name
            path.write_text(_WRAPPER.format(name=name, warning=warning, program=shutil.which(name)))
            path.chmod(0o755)
        return target

    def add_qos(self) -> None:
        """Add a QOS that jobs may ask for."""
        runner = self.cluster.runner(timeout_s=60)
        argv = ["sacctmgr", "--immediate", "--quiet"]
        runner.run([*argv, "add", "qos", "extra"])
        runner.run([*argv, "modify", "account", "local", "set", "qos+=extra"])

    def add_backup(self) -> None:
        """Name a second slurmctld in slurm.conf, under another address of this machine."""
        conf, host = self.cluster.slurm_conf, socket.gethostname().partition(".")[0]
        text = conf.read_text()
        hosts = f"SlurmctldHost={host}(127.0.0.1)\nSlurmctldHost={_BACKUP}(127.0.0.2)\n"
        hosts += "CommunicationParameters=NoCtldInAddrAny\n"
        conf.write_text(text.replace("SlurmctldHost=localhost(127.0.0.1)\n", hosts))
        self.cluster.stop_controller()
        for node in self.cluster.nodes:
            self._end_slurmd(node.name)
            self._start_slurmd(node.name)
        self.cluster.start_controller()
        if not wait_until(self._are_all_idle, 30):
            raise ClusterError("the nodes do not come back with a backup controller")

    def _are_all_idle(self) -> bool:
        states = self.cluster.status().nodes
        return all(node.state == "idle" for node in states)

    def fail_over(self) -> None:
        """Start the backup, which has another name of this machine, and let it take over.

        The partition is closed before, as after any start of slurmctld (`LocalWorld`): a backup
        takes that from the saved state, not from its slurm.conf.
        """
        place, whole = self.cluster.directory / _BACKUP, self.cluster.directory
        place.mkdir(exist_ok=True)
        text = self.cluster.slurm_conf.read_text()
        for name in ("slurmctld.pid", "log/slurmctld/log"):
            text = text.replace(name, name.replace("slurmctld", _BACKUP, 1))
        (place / "slurm.conf").write_text(text)
        (whole / "log" / _BACKUP).mkdir(exist_ok=True)
        for name in ("gres.conf", "cgroup.conf"):
            shutil.copy(whole / name, place / name)
        host = socket.gethostname().partition(".")[0]
        (place / "hosts").write_text(f"127.0.0.1 localhost {host}\n127.0.0.2 {_BACKUP}\n")
        start = f"mount --bind {place}/hosts /etc/hosts; hostname {_BACKUP}; exec "
        start += f"{find_binaries()['slurmctld']} -f {place}/slurm.conf"
        argv = ["unshare", "--uts", "--mount", "sh", "-c", start]
        start_daemon(argv, whole, name=_BACKUP)
        runner = self.cluster.runner(timeout_s=20)

        def is_ready() -> bool:
            with suppress(HadarError):
                return f"(backup) at {_BACKUP} is UP" in runner.run(["scontrol", "ping"])
            return False

        if wait_until(is_ready, 10):
            with suppress(HadarError):
                runner.run(["scontrol", "update", "PartitionName=main", "State=DOWN"])
            with suppress(HadarError):  # it takes over nevertheless
                runner.run(["scontrol", "takeover"])

    def reconfigure(self, change: Change) -> None:
        """Change a node in slurm.conf and gres.conf, and restart its slurmd and slurmctld."""
        texts = {
            path: (path.read_text(), edit)
            for path, edit in (
                (self.cluster.slurm_conf, change.in_slurm_conf),
                (self.cluster.directory / "gres.conf", change.in_gres_conf),
            )
        }
        self._before = {path: text for path, (text, _) in texts.items()}
        after = {path: edit(text) for path, (text, edit) in texts.items()}
        self._replace(after, change.node, change.slurmd)

    def restore(self, change: Change) -> None:
        """Undo `reconfigure`."""
        self._replace(self._before, change.slurmd, change.node)

    def _replace(self, texts: dict[Path, str], ends: str, starts: str) -> None:
        """Write configuration files while slurmctld and one slurmd are away; jobs go on."""
        self.cluster.stop_controller()
        self._end_slurmd(ends)
        for path, text in texts.items():
            path.write_text(text)
        if starts:
            self._start_slurmd(starts)
        self.start_controller()

    def _end_slurmd(self, node: str) -> None:
        def pids() -> list[int]:
            found = self.cluster.processes()
            return [p.pid for p in found if p.node == node and p.program == "slurmd"]

        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in pids():
                with suppress(ProcessLookupError):
                    # A stopped one ends only once it goes on.
                    os.kill(pid, number)
                    os.kill(pid, signal.SIGCONT)
            if wait_until(lambda: not pids(), 3):
                return

    def _start_slurmd(self, node: str) -> None:
        directory, slurmd = self.cluster.directory, find_binaries()["slurmd"]
        for place in ("slurmd", "log"):
            (directory / place / node).mkdir(exist_ok=True)
        argv = [slurmd, "-N", node, "-f", str(self.cluster.slurm_conf)]
        with suppress(HadarError):  # a node whose slurmd does not start is found by its state
            start_daemon(argv, directory, node=node)
