"""Where a chaos test takes place: a real Slurm, a hadard, disks that can be filled.

`LocalWorld` is the local cluster on this machine. What a world cannot do it says in `missing`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from chaos.faults import Kind
from chaos.records import node_states
from chaos.sabotage import Control

from hadar_slurm.demo.runs import job_environment
from hadar_slurm.errors import ClusterError, SlurmError
from hadar_slurm.resources import job_template
from hadar_slurm.slurm.command_line import CommandLine
from hadar_slurm.slurm.enforce import keeps_types
from hadar_slurm.slurm.local_cluster import LocalCluster
from hadar_slurm.slurm.local_config import parse_nodes

NODES = "v100:4,v100:4,p100:4,p100:4,k80:4,v100:2+k80:2"
SLURMD_TIMEOUT_S = 10
COMMAND_LIMIT_S = 30.0
# A node that cannot be reached never reports.
_REPORT_WITHIN_S = 10.0
TESTS = Path(__file__).resolve().parents[1]
# The disks that are filled, and their sizes in KiB.
DISKS = {"journal": 32768, "state": 4096, "run": 1024}
# How long hadard's sign of life is good for: a third of the default.
LIFE_S = 10.0
# Rounds and costs at the scale of jobs that last seconds.
SETTINGS: Mapping[str, object] = {
    "policy": "hadar",
    "mode": "enforce",
    "round_seconds": 2,
    "poll_seconds": 0.25,
    "restart_cost_seconds": 0.5,
    "grace_seconds": 4,
    "pin_timeout_seconds": 8,
    "command_timeout_seconds": 4,
    "alive_seconds": LIFE_S,
}


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a command: its status, None where it took too long, and what it said."""

    status: int | None
    out: str = ""
    err: str = ""


class World(Protocol):
    """What the test does to a cluster, whatever kind of cluster it is."""

    control: Control
    missing: dict[Kind, str]
    users: Sequence[str]
    nodes: Sequence[str]

    def run(self, argv: Sequence[str], *, user: str = "", limit_s: float = ...) -> Ran:
        """Run a command where jobs are submitted, as the operator or as a user."""
        ...

    def configure(self, text: str) -> None:
        """Replace hadard's configuration file."""
        ...

    def config(self, **changes: object) -> str:
        """Return hadard's configuration, with other settings if given."""
        ...

    def start_hadard(self) -> subprocess.Popen[bytes]:
        """Start hadard under its driver."""
        ...

    def signal_hadard(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        """Signal hadard itself."""
        ...

    def release_argv(self, *words: str) -> list[str]:
        """Return the command of the operator's reaper, to be run with `popen`."""
        ...

    def popen(self, argv: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        """Begin a command of the operator's, its words going to a log file."""
        ...


@dataclass
class LocalWorld:
    """The local cluster; `directory` is short, empty and ours."""

    directory: Path
    missing: dict[Kind, str] = field(default_factory=dict)
    users: Sequence[str] = ("",)

    def __post_init__(self) -> None:
        self.control = Control(self.directory / "control")
        self.jobs = self.directory / "jobs"
        self.logs = self.directory / "logs"
        self.config_file = self.directory / "hadar.yaml"
        self.disks = {name: self.directory / name for name in DISKS}
        self._mounted: list[Path] = []

    def up(self) -> None:
        """Start the cluster."""
        for directory in (self.jobs, self.logs, *self.disks.values()):
            directory.mkdir()
        self.control.prepare()
        self._mount()
        cluster = LocalCluster.up(
            self.directory / "c", parse_nodes(NODES), slurmd_timeout_s=SLURMD_TIMEOUT_S
        )
        self.cluster = cluster
        self.nodes = tuple(node.name for node in cluster.nodes)
        environment = job_environment(cluster.environment())
        self.environment = {
            **environment,
            "HADAR_RUN_DIR": str(self.disks["run"]),
            "PYTHONPATH": os.pathsep.join(map(str, [TESTS, *sys.path[1:]])),
            "LC_ALL": "C",
            "SLURM_TIME_FORMAT": "%s",
        }
        self.needs_closed_partition = keeps_types(CommandLine(cluster.runner()).version)
        self.configure(self.config())

    def down(self) -> None:
        """End everything."""
        if LocalCluster.exists(self.directory / "c"):
            LocalCluster.attach(self.directory / "c").down()
        for path in self._mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=False)

    def _mount(self) -> None:
        """Put small file systems where hadard writes; in this process's own mount namespace."""
        for name, path in self.disks.items():
            argv = ["mount", "-t", "tmpfs", "-o", f"size={DISKS[name]}k,mode=0755", "chaos"]
            done = subprocess.run([*argv, str(path)], capture_output=True, text=True, check=False)
            if done.returncode != 0:
                why = f"no disk of its own: {done.stderr.strip() or 'mount failed'}"
                full = (Kind.FULL_JOURNAL, Kind.FULL_STATE, Kind.FULL_RUN)
                self.missing |= dict.fromkeys(full, why)
                return
            self._mounted.append(path)

    def run(self, argv: Sequence[str], *, user: str = "", limit_s: float = COMMAND_LIMIT_S) -> Ran:
        """Run a command; there is one user here."""
        try:
            done = subprocess.run(
                argv,
                cwd=self.jobs,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
                process_group=0,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Ran(None)
        return Ran(done.returncode, done.stdout, done.stderr)

    def config(self, **changes: object) -> str:
        """Return hadard's configuration."""
        places = {
            "slurm_conf": self.cluster.slurm_conf,
            "run_dir": self.disks["run"],
            "spool_dir": self.cluster.directory / "spool",
            "state_dir": self.disks["state"],
            "journal": self.disks["journal"] / "journal.jsonl",
            "journal_megabytes": 4,
            "journal_files": 2,
            "disable_file": self.directory / "disabled",
        }
        return "".join(f"{k}: {v}\n" for k, v in {**SETTINGS, **places, **changes}.items())

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
        """Begin a command of the operator's."""
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
        """Signal hadard, unless it has ended."""
        if process.poll() is None:
            process.send_signal(number)

    def release_argv(self, *words: str) -> list[str]:
        """Return the command of `hadar release`."""
        hadar = [sys.executable, "-c", "from hadar_slurm.cli.main import app; app()"]
        return [*hadar, "release", "--config", str(self.config_file), *words]

    def leave_argv(self, job: str) -> list[str]:
        """Return the command of `hadar leave`, as a user gives it."""
        hadar = [sys.executable, "-c", "from hadar_slurm.cli.main import app; app()"]
        return [*hadar, "leave", job]

    def sbatch_argv(self, *, with_hadar: bool) -> list[str]:
        """Return the command that submits."""
        return [sys.executable, "-m", "hadar_slurm.cli.sbatch"] if with_hadar else ["sbatch"]

    @property
    def training(self) -> str:
        """Return the batch script of a training job, as the cluster sees it."""
        return str(job_template("paced_training.sbatch"))

    def script(self, name: str, text: str) -> str:
        """Write a batch script and return its path."""
        path = self.jobs / name
        path.write_text(text)
        return str(path)

    def trained(self, raw_id: str, name: str) -> str:
        """Return a file of a job's training; empty where there is none."""
        path = self.jobs / "checkpoints" / raw_id / name
        return path.read_text(errors="replace") if path.exists() else ""

    def output(self, raw_id: str) -> str:
        """Return what a job printed."""
        texts = [path.read_text(errors="replace") for path in self.jobs.glob(f"*-{raw_id}.out")]
        return "".join(texts)

    def spoil_report(self, raw_id: str, text: str) -> None:
        """Replace a job's progress report."""
        path = self.cluster.directory / "spool" / raw_id / "progress.json"
        with suppress(OSError):
            path.write_text(text)

    def uninterrupted(self, steps: int) -> dict[str, Any]:
        """Return the result of a training that was never stopped."""
        directory = self.directory / f"uninterrupted-{steps}"
        program = str(job_template("paced_training.py"))
        gpus = ["--gpus=n1:v100:1", "--rate=v100=100000"]
        ends = [f"--total-steps={steps}", f"--checkpoint-dir={directory}"]
        self.run([sys.executable, program, *gpus, *ends])
        result: dict[str, Any] = json.loads((directory / "result.json").read_text())
        return result

    # Faults.

    def stop_controller(self) -> None:
        """End slurmctld, which saves what it knows; killed, 22.05.8 forgets and mixes up much."""
        self.cluster.stop_controller()

    def start_controller(self) -> None:
        """Start slurmctld again; on a Slurm that needs it, with the partition closed at first.

        22.05.8 gives jobs no GPUs on nodes that have not yet reported (docs/slurm.md), whoever has
        submitted them, and an operator's remedy is this.
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
        self._opening = threading.Thread(target=self._open, daemon=True)
        self._opening.start()

    def _open(self) -> None:
        """Open the partition once all nodes have reported, and after a while without some."""
        deadline_s = time.monotonic() + _REPORT_WITHIN_S
        while time.monotonic() < deadline_s:
            shown = self.run(["scontrol", "show", "node", "-o"], limit_s=5)
            if shown.status == 0 and "UNREPORTED" not in node_states(shown.out).values():
                break
            time.sleep(0.2)
        argv = ["scontrol", "update", "PartitionName=main", "State=UP"]
        while self.cluster.directory.exists() and self.run(argv, limit_s=5).status != 0:
            time.sleep(0.5)

    def kill_node(self, name: str) -> None:
        """Kill slurmd, its steps and its jobs."""
        self.cluster.kill_node(name)

    def start_node(self, name: str) -> None:
        """Start slurmd again; Slurm sees it when it does."""
        with suppress(ClusterError, SlurmError):
            self.cluster.start_node(name, timeout_s=0.1)

    def cut_node(self, name: str, *, is_cut: bool) -> None:
        """Have a node's slurmd answer nobody while its jobs run on; or let it answer again."""
        number = signal.SIGSTOP if is_cut else signal.SIGCONT
        for process in self.cluster.processes():
            if process.node == name and process.program == "slurmd":
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def fill(self, disk: str) -> None:
        """Leave no room on a disk."""
        with suppress(OSError), (self.disks[disk] / "filler").open("ab", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def make_room(self, disk: str) -> None:
        """Undo `fill`."""
        (self.disks[disk] / "filler").unlink(missing_ok=True)

    def ledger(self) -> set[str]:
        """Return the jobs that hadard's ledger knows."""
        try:
            return set(json.loads((self.disks["state"] / "ledger.json").read_text())["jobs"])
        except (OSError, ValueError):
            return set()

    def told(self, name: str) -> str:
        """Return the end of a log file."""
        path = self.logs / name
        return path.read_text(errors="replace")[-1500:] if path.exists() else ""
