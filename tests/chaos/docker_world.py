"""The dockerized cluster as a world of the chaos test: nodes are containers, with several users.

hadard, its reaper and the users' commands run in a separate container, in place of the cluster's
hadard. Its small file systems can be filled, and its main program only sleeps, so that hadard can
be killed at any time. The cluster and the container are removed at the end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.faults import Kind
from chaos.sabotage import Control
from chaos.slurm_conf import Change
from chaos.world import COMMAND_LIMIT_S, DISKS, OF_SITE, SETTINGS, TESTS, Ran, ran, yaml_of

from hadar_slurm.errors import ClusterError

SCRIPTS = TESTS.parent / "docker"
PYTHON = "/opt/hadar/bin/python"
# Time to install an engine, make a base image and build the project's images on two cores.
_START_S = 1800.0
_NODE_FAILS_AFTER_S = 10
_PLACES = {"journal": "/var/log/hadar", "state": "/var/lib/hadar", "run": "/run/hadar"}


@dataclass
class DockerWorld:
    """A separate cluster of docker/compose.yaml; `directory` is mounted in the test's container."""

    directory: Path
    name: str = "docker"
    missing: dict[Kind, str] = field(default_factory=dict)
    users: Sequence[str] = ("alice", "bob", "carol", "dave")
    nodes: Sequence[str] = tuple(f"n{number}" for number in range(1, 7))
    look_every_s: float = 0.8
    # hadard's mode.
    mode: str = "hold"
    has_accounting: bool = False

    def __post_init__(self) -> None:
        self.control = Control(self.directory / "control")
        self.logs = self.directory / "logs"
        self.homes = self.directory / "homes"
        self.project = f"hadar-chaos-{os.getpid()}"
        self.ours = f"{self.project}-hadard"
        self.containers: dict[str, str] = {}
        self.training = ""
        self.missing |= dict.fromkeys(OF_SITE, "the local cluster has it")

    def up(self) -> None:
        """Start the cluster, and the test's container in place of its hadard."""
        self.logs.mkdir()
        self.control.prepare()
        self._script("up")
        for line in self._docker(
            "ps", "--filter", f"label=com.docker.compose.project={self.project}",
            "--format", '{{.Label "com.docker.compose.service"}} {{.Names}}',
        ).splitlines():  # fmt: skip
            service, _, name = line.partition(" ")
            self.containers[service] = name
        self._docker("stop", "--time", "5", self.containers["hadard"])
        disks = [
            word
            for disk, place in _PLACES.items()
            for word in ("--tmpfs", f"{place}:size={DISKS[disk]}k,mode=0755")
        ]
        image = self._docker("inspect", "--format", "{{.Config.Image}}", self.containers["ctl"])
        self._docker(
            "run", "--detach", "--name", self.ours, "--hostname", "chaos",
            "--network", f"{self.project}_cluster", *disks,
            "--volume", f"{self.project}_home:/home",
            "--volume", f"{self.project}_spool:/var/spool/hadar",
            "--volume", f"{self.directory}:/chaos", "--volume", f"{TESTS}:/tests:ro",
            image.strip(), "sleep", "infinity",
        )  # fmt: skip
        self._as_root("chown", "hadar:hadar", *_PLACES.values())
        self._as_root("mkdir", "-p", "/run/munge")
        self._as_root("chown", "munge:munge", "/run/munge")
        self._docker("exec", "--user", "munge", self.ours, "munged", "--force")
        self._let_nodes_fail_sooner()
        find = (
            "from hadar_slurm.resources import beside;"
            "print(beside('job_templates', 'paced_training.sbatch'))"
        )
        self.training = self.run([PYTHON, "-c", find]).out.strip()
        self.configure(self.config())

    def _let_nodes_fail_sooner(self) -> None:
        conf = "/etc/slurm/slurm.conf"
        change = f"s/^SlurmdTimeout=.*/SlurmdTimeout={_NODE_FAILS_AFTER_S}/"
        self._docker("exec", self.containers["ctl"], "sed", "-i", change, conf)
        self._docker("exec", self.containers["ctl"], "scontrol", "reconfigure")

    def down(self) -> None:
        """Remove the test's container and the cluster."""
        ran(["docker", "rm", "--force", "--volumes", self.ours], COMMAND_LIMIT_S)
        for name in self.containers.values():
            ran(["docker", "unpause", name], COMMAND_LIMIT_S)
        for _ in range(5):
            # It may fail while another cluster on this machine is being removed.
            with suppress(ClusterError):
                self._script("down")
                return
        self._script("down")

    def _script(self, name: str) -> None:
        environment = {**os.environ, "COMPOSE_PROJECT_NAME": self.project}
        done = ran([str(SCRIPTS / name)], _START_S, env=environment)
        if done.status != 0:
            words = (done.err.strip() or "no answer").splitlines()
            raise ClusterError(f"docker/{name}: {words[-1]}")

    def _docker(self, *words: str) -> str:
        done = ran(["docker", *words], COMMAND_LIMIT_S * 2)
        if done.status != 0:
            raise ClusterError(f"docker {' '.join(words[:2])}: {done.err.strip() or 'no answer'}")
        return done.out

    def _as_root(self, *argv: str) -> Ran:
        return ran(["docker", "exec", self.ours, *argv], COMMAND_LIMIT_S)

    def _exec(self, user: str) -> list[str]:
        """Return the words that run a command in the test's container."""
        homes = {"": "/root", "hadar": "/var/lib/hadar"}
        home = homes.get(user, f"/home/{user}")
        variables = {
            "HOME": home,
            "LC_ALL": "C",
            "SLURM_TIME_FORMAT": "%s",
            "PYTHONPATH": "/tests",
            "HADAR_PYTHON": PYTHON,
            "HADAR_TEMPLATES": os.path.dirname(self.training),
        }
        given = [word for pair in variables.items() for word in ("--env", "=".join(pair))]
        who = ["--user", user] if user else []
        return ["docker", "exec", *who, "--workdir", home, *given, self.ours]

    def run(self, argv: Sequence[str], *, user: str = "", limit_s: float = COMMAND_LIMIT_S) -> Ran:
        """Run a command in the test's container."""
        return ran([*self._exec(user), *argv], limit_s)

    def popen(self, argv: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        """Start a command as hadard's user, an operator."""
        with (self.logs / log).open("ab") as sink:
            return subprocess.Popen(
                [*self._exec("hadar"), *argv],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                process_group=0,
            )

    def config(self, **changes: object) -> str:
        """Return hadard's configuration, with the default paths but for the disable file."""
        places = {"disable_file": "/chaos/disabled"}
        return yaml_of({**SETTINGS, "mode": self.mode, **places, **changes})

    def configure(self, text: str) -> None:
        """Replace hadard's configuration file in one step."""
        draft = self.directory / "hadar.yaml.new"
        draft.write_text(text)
        draft.replace(self.directory / "hadar.yaml")

    def switch(self, *, is_off: bool) -> None:
        """Make or remove the disable file."""
        if is_off:
            (self.directory / "disabled").touch()
        else:
            (self.directory / "disabled").unlink(missing_ok=True)

    def start_hadard(self) -> subprocess.Popen[bytes]:
        """Start hadard under its driver."""
        argv = [PYTHON, "-m", "chaos.driver", "/chaos/control", "--config", "/chaos/hadar.yaml"]
        return self.popen(argv, "hadard.log")

    def signal_hadard(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        """Send a signal to the hadard process in the container."""
        pid = self.control.pid()
        if process.poll() is None and pid:
            self._as_root("kill", f"-{int(number)}", str(pid))

    def release_argv(self, *words: str) -> list[str]:
        """Return the command of `hadar release`."""
        return ["hadar", "release", "--config", "/chaos/hadar.yaml", *words]

    def leave_argv(self, job: str) -> list[str]:
        """Return the command of `hadar leave`."""
        return ["hadar", "leave", job]

    def sbatch_argv(self, *, with_hadar: bool) -> list[str]:
        """Return the command that submits jobs."""
        return ["hadar-sbatch"] if with_hadar else ["sbatch"]

    def script(self, name: str, text: str) -> str:
        """Write a batch script for all users and return its path."""
        (self.directory / name).write_text(text)
        return f"/chaos/{name}"

    def fetch(self) -> None:
        """Copy the files of jobs from the users' home directories."""
        self.homes.mkdir()
        for user in self.users:
            source = f"{self.ours}:/home/{user}/checkpoints"
            ran(["docker", "cp", source, str(self.homes / user)], _START_S)

    def trained(self, user: str, raw_id: str, name: str) -> str:
        """Return a file of a job's training; empty where there is none."""
        path = self.homes / user / raw_id / name
        return path.read_text(errors="replace") if path.exists() else ""

    def uninterrupted(self, steps: int) -> dict[str, Any]:
        """Return the result of a training that was never stopped."""
        program = str(Path(self.training).with_suffix(".py"))
        target = f"/tmp/uninterrupted-{steps}"
        ends = [f"--total-steps={steps}", f"--checkpoint-dir={target}"]
        self.run([PYTHON, program, "--gpus=n1:v100:1", "--rate=v100=100000", *ends])
        result: dict[str, Any] = json.loads(self.run(["cat", f"{target}/result.json"]).out)
        return result

    def spoil_report(self, raw_id: str, text: str) -> None:
        """Replace a job's progress report."""
        draft = self.directory / "report"
        draft.write_text(text)
        place = f"/var/spool/hadar/reports/u*/{raw_id}/progress.json"
        self._as_root("sh", "-c", f"for report in {place}; do cp /chaos/report $report; done")

    def ledger(self) -> set[str]:
        """Return the jobs in hadard's ledger."""
        try:
            return set(json.loads(self._as_root("cat", "/var/lib/hadar/ledger.json").out)["jobs"])
        except (ValueError, KeyError):
            return set()

    def told(self, name: str) -> str:
        """Return the end of a log file."""
        path = self.logs / name
        return path.read_text(errors="replace")[-1500:] if path.exists() else ""

    def keep(self, target: Path) -> None:
        """Copy logs and journals."""
        for path in self.logs.iterdir():
            (target / path.name).write_bytes(path.read_bytes())
        for source in ("/var/log/hadar/journal.jsonl", "/var/lib/hadar/ledger.json"):
            (target / Path(source).name).write_text(self._as_root("cat", source).out)
        (target / "slurmctld.log").write_text(self.controller_log())

    def ended_runs(self) -> str:
        """Return nothing: slurmdbd has these records here."""
        return ""

    def controller_log(self) -> str:
        """Return slurmctld's log."""
        argv = ["docker", "exec", self.containers["ctl"], "cat", "/var/log/slurm/slurmctld.log"]
        return ran(argv, 60).out

    # Faults.

    def reconfigure(self, change: Change) -> None:
        """Do nothing: such faults are left out here."""

    def restore(self, change: Change) -> None:
        """Do nothing: such faults are left out here."""

    def fail_over(self) -> None:
        """Do nothing: such faults are left out here."""

    def warn(self, text: str) -> None:
        """Do nothing: such faults are left out here."""

    def stop_controller(self) -> None:
        """Stop the controller's container; slurmctld saves its state."""
        self._docker("stop", "--time", "15", self.containers["ctl"])

    def start_controller(self) -> None:
        """Start the controller's container again."""
        self._docker("start", self.containers["ctl"])

    def take_node(self, kind: Kind, name: str) -> None:
        """Kill a node's container, pause it, or take it off the network."""
        container = self.containers[name]
        if kind is Kind.NODE_DEATH:
            self._docker("kill", container)
        elif kind is Kind.NODE_STOP:
            self._docker("pause", container)
        else:
            self._docker("network", "disconnect", f"{self.project}_cluster", container)

    def return_node(self, kind: Kind, name: str) -> None:
        """Start, unpause or reconnect a node's container."""
        container = self.containers[name]
        if kind is Kind.NODE_DEATH:
            self._docker("start", container)
        elif kind is Kind.NODE_STOP:
            self._docker("unpause", container)
        else:
            network = f"{self.project}_cluster"
            self._docker("network", "connect", "--alias", name, network, container)

    def fill(self, disk: str) -> None:
        """Fill a disk; dd ends when it is full."""
        self._as_root("dd", "if=/dev/zero", f"of={_PLACES[disk]}/filler", "bs=4096")

    def make_room(self, disk: str) -> None:
        """Undo `fill`."""
        self._as_root("rm", "-f", f"{_PLACES[disk]}/filler")
