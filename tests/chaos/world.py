"""The interface of a world of the chaos test, and the settings of hadard in it.

A world is a real Slurm with a hadard, and disks that can be filled. `missing` has the kinds of
faults that it cannot inject.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from chaos.faults import Kind
from chaos.sabotage import Control
from chaos.slurm_conf import Change

TESTS = Path(__file__).resolve().parents[1]
COMMAND_LIMIT_S = 30.0
# The disks that are filled, and their sizes in KiB.
DISKS = {"journal": 32768, "state": 4096, "run": 1024}
# The faults that change Slurm's configuration or commands.
OF_SITE = (
    Kind.NODE_REMOVED,
    Kind.NODE_RENAMED,
    Kind.GPUS_RETYPED,
    Kind.GPUS_UNTYPED,
    Kind.PARTITION,
    Kind.FEATURES,
    Kind.QOS,
    Kind.FAIL_OVER,
    Kind.NOISE,
)
FULL_DISKS = (Kind.FULL_JOURNAL, Kind.FULL_STATE, Kind.FULL_RUN)
# How long hadard's heartbeat stays fresh: a third of the default.
LIFE_S = 10.0
# Rounds and costs for jobs that last seconds.
SETTINGS: Mapping[str, object] = {
    "policy": "hadar",
    "round_seconds": 2,
    "poll_seconds": 0.25,
    "restart_cost_seconds": 0.5,
    "grace_seconds": 4,
    "pin_timeout_seconds": 8,
    "command_timeout_seconds": 4,
    "alive_seconds": LIFE_S,
    "moves": "{default: signals}",
    "journal_megabytes": 4,
    "journal_files": 2,
}


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a command: its exit status, None after a timeout, and its output."""

    status: int | None
    out: str = ""
    err: str = ""


def ran(argv: Sequence[str], limit_s: float, **options: Any) -> Ran:
    """Run a command and return its result."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
            process_group=0,
            check=False,
            **options,
        )
    except subprocess.TimeoutExpired:
        return Ran(None)
    return Ran(done.returncode, done.stdout, done.stderr)


def yaml_of(settings: Mapping[str, object]) -> str:
    """Return settings as a configuration file."""
    return "".join(f"{key}: {value}\n" for key, value in settings.items())


class World(Protocol):
    """A cluster of any kind. An empty user is the operator, with all rights."""

    name: str
    control: Control
    missing: dict[Kind, str]
    users: Sequence[str]
    has_accounting: bool
    nodes: Sequence[str]
    training: str
    look_every_s: float

    def up(self) -> None:
        """Start the cluster."""
        ...

    def down(self) -> None:
        """Stop and remove the cluster."""
        ...

    def run(self, argv: Sequence[str], *, user: str = "", limit_s: float = ...) -> Ran:
        """Run a command on the machine or in the container where jobs are submitted."""
        ...

    def popen(self, argv: Sequence[str], log: str) -> subprocess.Popen[bytes]:
        """Start a command as hadard's user, with its output in a log file."""
        ...

    def config(self, **changes: object) -> str:
        """Return hadard's configuration with the given changes."""
        ...

    def configure(self, text: str) -> None:
        """Replace hadard's configuration file in one step."""
        ...

    def switch(self, *, is_off: bool) -> None:
        """Make or remove the disable file."""
        ...

    def start_hadard(self) -> subprocess.Popen[bytes]:
        """Start hadard under its driver."""
        ...

    def signal_hadard(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        """Send a signal to the hadard process, unless it has ended."""
        ...

    def release_argv(self, *words: str) -> list[str]:
        """Return the command of `hadar release`."""
        ...

    def leave_argv(self, job: str) -> list[str]:
        """Return the command of `hadar leave`, as a user runs it."""
        ...

    def sbatch_argv(self, *, with_hadar: bool) -> list[str]:
        """Return the command that submits jobs."""
        ...

    def script(self, name: str, text: str) -> str:
        """Write a batch script and return its path."""
        ...

    def fetch(self) -> None:
        """Make the files of jobs readable for `trained`."""
        ...

    def trained(self, user: str, raw_id: str, name: str) -> str:
        """Return a file of a job's training; empty where there is none."""
        ...

    def uninterrupted(self, steps: int) -> dict[str, Any]:
        """Return the result of a training that was never stopped."""
        ...

    def spoil_report(self, raw_id: str, text: str) -> None:
        """Replace a job's progress report."""
        ...

    def ledger(self) -> set[str]:
        """Return the jobs in hadard's ledger."""
        ...

    def told(self, name: str) -> str:
        """Return the end of a log file."""
        ...

    def keep(self, target: Path) -> None:
        """Copy logs and journals."""
        ...

    def stop_controller(self) -> None:
        """Stop slurmctld, which saves its state."""
        ...

    def start_controller(self) -> None:
        """Start slurmctld again."""
        ...

    def take_node(self, kind: Kind, name: str) -> None:
        """Kill, stop or cut off a node."""
        ...

    def return_node(self, kind: Kind, name: str) -> None:
        """Undo `take_node`, without waiting until Slurm has noticed."""
        ...

    def fill(self, disk: str) -> None:
        """Fill a disk."""
        ...

    def make_room(self, disk: str) -> None:
        """Undo `fill`."""
        ...

    def reconfigure(self, change: Change) -> None:
        """Change the nodes in Slurm's configuration, and restart what has to read it."""
        ...

    def restore(self, change: Change) -> None:
        """Undo `reconfigure`."""
        ...

    def fail_over(self) -> None:
        """Let slurmctld's backup take over."""
        ...

    def warn(self, text: str) -> None:
        """Have Slurm's commands write `text` on standard error from now on."""
        ...

    def ended_runs(self) -> str:
        """Return slurmctld's record of every run of a job that has ended."""
        ...

    def controller_log(self) -> str:
        """Return slurmctld's log."""
        ...
