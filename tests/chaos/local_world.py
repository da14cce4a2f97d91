"""The local cluster as a world of the chaos test: all runs on this machine, as one user."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.faults import Kind
from chaos.local_site import LocalSite
from chaos.opening import Opening
from chaos.sabotage import Control
from chaos.slurm_conf import Change
from chaos.world import (
    COMMAND_LIMIT_S,
    DISKS,
    FULL_DISKS,
    SETTINGS,
    TESTS,
    Ran,
    ran,
    yaml_of,
)

from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.config import parse_nodes
from hadar_slurm.errors import ClusterError, SlurmError
from hadar_slurm.handoff import report_path, user_reports
from hadar_slurm.lab.demo.runs import job_environment
from hadar_slurm.resources import beside
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.scontrol import keeps_types

# Set in the environment of a test that has its own mount namespace.
OWN_MOUNTS = "CHAOS_HAS_ITS_OWN_MOUNTS"
NODES = "v100:4,v100:4,p100:4,p100:4,k80:4,v100:2+k80:2"
SLURMD_TIMEOUT_S = 10


@dataclass
class LocalWorld:
    """The local cluster; `directory` is empty and has a short path."""

    directory: Path
    name: str = "local"
    missing: dict[Kind, str] = field(default_factory=dict)
    users: Sequence[str] = ("",)
    nodes: Sequence[str] = ()
    look_every_s: float = 0.4
    # hadard's mode.
    mode: str = "hold"
    has_accounting: bool = False
    # Whether slurmctld will fail over.
    has_backup: bool = False

    def __post_init__(self) -> None:
        self.control = Control(self.directory / "control")
        self.training = str(beside("job_templates", "paced_training.sbatch"))
        self.jobs = self.directory / "jobs"
        self.logs = self.directory / "logs"
        self.config_file = self.directory / "hadar.yaml"
        self.disks = {name: self.directory / name for name in DISKS}
        self._mounted: list[Path] = []
        self._opening = self._new_opening()

    def up(self) -> None:
        """Start the cluster."""
        for directory in (self.jobs, self.logs, *self.disks.values()):
            directory.mkdir()
        self.control.prepare()
        self._mount()
        cluster = LocalCluster.up(
            self.directory / "c",
            parse_nodes(NODES),
            accounting=self.has_accounting,
            slurmd_timeout_s=SLURMD_TIMEOUT_S,
            settings=f"JobCompType=jobcomp/filetxt\nJobCompLoc={self.directory}/ended-runs\n",
        )
        self.cluster = cluster
        self.site = LocalSite(cluster, self.start_controller)
        self.nodes = tuple(node.name for node in cluster.nodes)
        environment = job_environment(cluster.environment())
        self.environment = {
            **environment,
            "HADAR_RUN_DIR": str(self.disks["run"]),
            "PYTHONPATH": os.pathsep.join(map(str, [TESTS, *sys.path[1:]])),
            "LC_ALL": "C",
            "SLURM_TIME_FORMAT": "%s",
        }
        wrappers = self.site.wrap_commands(self.directory)
        self.environment["PATH"] = f"{wrappers}{os.pathsep}{self.environment['PATH']}"
        if self.has_accounting:
            self.site.add_qos()
        else:
            self.missing[Kind.QOS] = "it needs --accounting"
        if OWN_MOUNTS not in os.environ:
            self.missing[Kind.FAIL_OVER] = "no right to a mount namespace"
        elif self.has_backup:
            self.site.add_backup()
        self.needs_closed_partition = keeps_types(CommandLine(cluster.runner()).version)
        self.configure(self.config())

    def down(self) -> None:
        """Stop the cluster and unmount the disks."""
        self._opening.end()
        if LocalCluster.exists(self.directory / "c"):
            LocalCluster.attach(self.directory / "c").down()
        for path in self._mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=False)

    def _mount(self) -> None:
        """Mount small file systems where hadard writes, in this process's own mount namespace."""
        if OWN_MOUNTS not in os.environ:
            self.missing |= dict.fromkeys(FULL_DISKS, "no right to a mount namespace")
            return
        for name, path in self.disks.items():
            argv = ["mount", "-t", "tmpfs", "-o", f"size={DISKS[name]}k,mode=0755", "chaos"]
            done = subprocess.run([*argv, str(path)], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                why = f"no disk of its own: {done.stderr.strip() or 'mount failed'}"
                self.missing |= dict.fromkeys(FULL_DISKS, why)
                return
            self._mounted.append(path)

    def run(self, argv: Sequence[str], *, user: str = "", limit_s: float = COMMAND_LIMIT_S) -> Ran:
        """Run a command; this world has one user only."""
        return ran(argv, limit_s, cwd=self.jobs, env=self.environment)

    def config(self, **changes: object) -> str:
        """Return hadard's configuration."""
        places = {
            "slurm_conf": self.cluster.slurm_conf,
            "run_dir": self.disks["run"],
            "spool_dir": self.cluster.directory / "spool",
            "state_dir": self.disks["state"],
            "journal": self.disks["journal"] / "journal.jsonl",
            "disable_file": self.directory / "disabled",
        }
        # slurmctld may wait 5 s for slurmdbd before it changes a job.
        limit = {"command_timeout_seconds": 6} if self.has_accounting else {}
        return yaml_of({**SETTINGS, "mode": self.mode, **limit, **places, **changes})

    def configure(self, text: str) -> None:
        """Replace hadard's configuration file in one step."""
        draft = self.config_file.with_suffix(".new")
        draft.write_text(text)
        draft.replace(self.config_file)

    def switch(self, *, is_off: bool) -> None:
        """Make or remove the disable file."""
        if is_off:
            (self.directory / "disabled").touch()
        else:
            (self.directory / "disabled").unlink(missing_ok=True)

    def popen(self, argv: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        """Start a command as the operator."""
        with (self.logs / log).open("ab") as sink:
            return subprocess.Popen(
                argv,
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                process_group=0,
            )

    def start_hadard(self) -> subprocess.Popen[bytes]:
        """Start hadard under its driver."""
        argv = [sys.executable, "-m", "chaos.driver", str(self.control.directory)]
        return self.popen([*argv, "--config", str(self.config_file)], "hadard.log")

    def signal_hadard(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        """Send a signal to hadard, unless it has ended."""
        if process.poll() is None:
            process.send_signal(number)

    def release_argv(self, *words: str) -> list[str]:
        """Return the command of `hadar release`."""
        hadar = [sys.executable, "-c", "from hadar_slurm.cli.main import app; app()"]
        return [*hadar, "release", "--config", str(self.config_file), *words]

    def leave_argv(self, job: str) -> list[str]:
        """Return the command of `hadar leave`, as a user runs it."""
        hadar = [sys.executable, "-c", "from hadar_slurm.cli.main import app; app()"]
        return [*hadar, "leave", job]

    def sbatch_argv(self, *, with_hadar: bool) -> list[str]:
        """Return the command that submits jobs."""
        return [sys.executable, "-m", "hadar_slurm.cli.sbatch"] if with_hadar else ["sbatch"]

    def script(self, name: str, text: str) -> str:
        """Write a batch script and return its path."""
        path = self.jobs / name
        path.write_text(text)
        return str(path)

    def fetch(self) -> None:
        """Do nothing: the files are on this machine."""

    def trained(self, user: str, raw_id: str, name: str) -> str:
        """Return a file of a job's training; empty where there is none."""
        path = self.jobs / "checkpoints" / raw_id / name
        return path.read_text(errors="replace") if path.exists() else ""

    def spoil_report(self, raw_id: str, text: str) -> None:
        """Replace a job's progress report."""
        own = user_reports(self.cluster.directory / "spool" / "reports", os.geteuid())
        path = report_path(own, raw_id)
        with suppress(OSError):
            path.write_text(text)

    def uninterrupted(self, steps: int) -> dict[str, Any]:
        """Return the result of a training that was never stopped."""
        directory = self.directory / f"uninterrupted-{steps}"
        program = str(beside("job_templates", "paced_training.py"))
        gpus = ["--gpus=n1:v100:1", "--rate=v100=100000"]
        ends = [f"--total-steps={steps}", f"--checkpoint-dir={directory}"]
        self.run([sys.executable, program, *gpus, *ends])
        result: dict[str, Any] = json.loads((directory / "result.json").read_text())
        return result

    # Faults.

    def stop_controller(self) -> None:
        """Stop slurmctld, which saves its state; a killed 22.05.8 loses some (docs/chaos.md)."""
        self._opening.end()
        self.cluster.stop_controller()

    def start_controller(self) -> None:
        """Start slurmctld again, with the partition closed at first on a Slurm that needs it.

        22.05.8 starts jobs without GPUs on nodes that have not yet reported (docs/slurm.md), also
        without hadard. This is an operator's workaround.
        """
        if not self.needs_closed_partition:
            self.cluster.start_controller()
            return
        conf = self.cluster.slurm_conf
        text = conf.read_text()
        conf.write_text(text.replace(" State=UP", " State=DOWN"))
        try:
            self.cluster.start_controller()
        finally:
            conf.write_text(text)
        self._open()

    def _open(self) -> None:
        self._opening = self._new_opening()
        self._opening.begin()

    def _new_opening(self) -> Opening:
        return Opening(lambda argv, limit_s: self.run(argv, limit_s=limit_s))

    def take_node(self, kind: Kind, name: str) -> None:
        """Kill a node with all its jobs, or stop its slurmd while its jobs run on."""
        if kind is Kind.NODE_DEATH:
            self.cluster.kill_node(name)
        else:
            self._signal_slurmd(name, signal.SIGSTOP)

    def return_node(self, kind: Kind, name: str) -> None:
        """Start slurmd again, or continue it."""
        if kind is Kind.NODE_DEATH:
            with suppress(ClusterError, SlurmError):
                self.cluster.start_node(name, timeout_s=0.1)
        else:
            self._signal_slurmd(name, signal.SIGCONT)

    def _signal_slurmd(self, name: str, number: signal.Signals) -> None:
        for process in self.cluster.processes():
            if process.node == name and process.program == "slurmd":
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def reconfigure(self, change: Change) -> None:
        """Change a node in Slurm's configuration, and restart its slurmd and slurmctld."""
        self._opening.end()
        self.site.reconfigure(change)

    def restore(self, change: Change) -> None:
        """Undo `reconfigure`."""
        self._opening.end()
        self.site.restore(change)

    def fail_over(self) -> None:
        """Let slurmctld's backup take over."""
        self._opening.end()
        self.site.fail_over()
        self._open()

    def warn(self, text: str) -> None:
        """Have Slurm's commands write `text` on standard error from now on."""
        (self.directory / "warning").write_text(text + "\n")

    def ended_runs(self) -> str:
        """Return slurmctld's record of every run of a job that has ended."""
        path = self.directory / "ended-runs"
        return path.read_text(errors="replace") if path.exists() else ""

    def controller_log(self) -> str:
        """Return slurmctld's log."""
        return (self.cluster.directory / "log/slurmctld/log").read_text(errors="replace")

    def keep(self, target: Path) -> None:
        """Copy logs and journals."""
        left_out = shutil.ignore_patterns("filler")
        for source in (self.logs, *self.disks.values(), self.jobs):
            shutil.copytree(source, target / source.name, dirs_exist_ok=True, ignore=left_out)
        (target / "ended-runs").write_text(self.ended_runs())
        log = self.cluster.directory / "log"
        shutil.copytree(log, target / "slurm", dirs_exist_ok=True)

    def fill(self, disk: str) -> None:
        """Fill a disk."""
        with suppress(OSError), (self.disks[disk] / "filler").open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def make_room(self, disk: str) -> None:
        """Undo `fill`."""
        (self.disks[disk] / "filler").unlink(missing_ok=True)

    def ledger(self) -> set[str]:
        """Return the jobs in hadard's ledger."""
        try:
            return set(json.loads((self.disks["state"] / "ledger.json").read_text())["jobs"])
        except (OSError, ValueError):
            return set()

    def told(self, name: str) -> str:
        """Return the end of a log file."""
        path = self.logs / name
        return path.read_text(errors="replace")[-1500:] if path.exists() else ""
