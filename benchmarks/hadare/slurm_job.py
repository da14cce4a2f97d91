"""A training in copies as the tasks of a real Slurm under a real hadard, and its faults."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

import fault_copy
from fault_copy import Spoil
from fault_record import STEP_S, Fault, Outcome, Run, Scale

from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.config import parse_nodes
from hadar_slurm.devcluster.processes import wait_until
from hadar_slurm.errors import ClusterError, SlurmError
from hadar_slurm.handoff import user_reports
from hadar_slurm.lab.demo.runs import Daemon, job_environment
from hadar_slurm.runtime.averaging.modes import TrainingMode
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.state import read_queue

SCALE = Scale(slots=3, slot_s=3.0, most_copies=3, most_faults=4, lasts_s=6.0)
# One more than a job has copies, so that a copy may go elsewhere; a type each, for a speed each.
NODES = {"n1": "v100", "n2": "p100", "n3": "k80", "n4": "t4"}
SETTINGS = {
    "policy": "hadare",
    "mode": "hold",
    "round_seconds": SCALE.slot_s,
    "poll_seconds": 0.5,
    "restart_cost_seconds": 0.5,
    "grace_seconds": 10,
    "pin_timeout_seconds": 20,
}
SLURMD_TIMEOUT_S = 5
DISK_MIB = 16
_LOOK_AT_SLURM_S = 0.5
_SPARE_SPEED = 0.5
_LIMIT_S = 300.0  # for any command to Slurm or hadard
_SCRIPT = """\
#!/bin/bash
trap '' USR1
[[ -e $HADAR_JOB_DIR/done ]] && exit
"$@" &
child=$!
trap "kill -USR1 $child" USR1
while kill -0 $child 2>/dev/null; do wait $child; done
wait $child
status=$?
# Killed as by a lack of memory: once more.
((status == 137)) && scontrol requeue ${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID && sleep 60
exit $status
"""


class Kind(StrEnum):
    """What is done to a job."""

    HADARD = "hadard killed"
    NODE = "node killed"
    KILL = "copy killed"
    KILL_TASK = "copy killed with its batch script"
    KILL_ENDING = "copy killed while it makes all one"
    STALL = "disk stands still"
    FULL = "disk full"
    KILL_EXCHANGE = "copy killed while gradients are exchanged"
    GRADIENTS = "gradients not finite"
    PARAMETERS = "parameters not finite"
    CUT = "connections cut"


_SPOILS = {
    Kind.GRADIENTS: Spoil.GRADIENTS,
    Kind.PARAMETERS: Spoil.PARAMETERS,
    Kind.CUT: Spoil.CUT,
}


def kinds_of(mode: str) -> list[Kind]:
    """Return the kinds of faults in a mode."""
    kinds = list(Kind)
    return kinds if mode != TrainingMode.AVERAGED else kinds[: kinds.index(Kind.KILL_EXCHANGE)]


class World(AbstractContextManager["World"]):
    """A cluster in `directory`, its hadard, and the disk that nodes and hadard share.

    On the disk, which can be filled and frozen, are the jobs' directories and the spool.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.disk, self.submitted = directory / "disk", directory / "submitted"
        self.spool = self.disk / "spool"
        self.script = self.submitted / "job.sh"
        self._at_end = ExitStack()
        self._thawing: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> World:
        with self._at_end:
            self._up()
            self._at_end = self._at_end.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._at_end.close()

    def _up(self) -> None:
        for path in (self.disk, self.submitted, self.directory / "hadard"):
            path.mkdir()
        self.script.write_text(_SCRIPT)
        self._mount()
        self.spool.mkdir()
        nodes = parse_nodes(",".join(f"{kind}:1" for kind in NODES.values()))
        where = self.directory / "c"
        self.cluster = LocalCluster.up(where, nodes, slurmd_timeout_s=SLURMD_TIMEOUT_S)
        self._at_end.callback(self.cluster.down)
        self.runner = self.cluster.runner()
        environment = job_environment(self.cluster.environment())
        own = user_reports(self.spool / "reports", os.geteuid())
        self.environment = {**environment, "HADAR_SPOOL": str(own), "OMP_NUM_THREADS": "1"}
        config = {
            **SETTINGS,
            "slurm_conf": self.cluster.slurm_conf,
            "run_dir": self.environment["HADAR_RUN_DIR"],
            "spool_dir": self.spool,
            "state_dir": self.directory / "state",
            "disable_file": self.directory / "disabled",
        }
        self.hadard = Daemon(self.directory / "hadard", self.environment, config)
        self._at_end.callback(self.hadard.stop)
        self.hadard.start()

    def _mount(self) -> None:
        image = self.directory / "image"
        with image.open("wb") as file:
            file.truncate(DISK_MIB * 2**20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
        subprocess.run(["mount", "-o", "loop,noatime", image, self.disk], check=True)
        self._at_end.callback(subprocess.run, ["umount", self.disk], check=True)

    def freeze(self, seconds: float) -> bool:
        """Freeze the disk, and return whether it was not frozen already.

        A process that writes waits and cannot be killed. The disk thaws without this program.
        """
        if self._thawing is not None and self._thawing.poll() is None:
            return False
        disk, pipe = self.disk, subprocess.PIPE
        words = f"fsfreeze -f {disk} && echo frozen && sleep {seconds}; fsfreeze -u {disk}"
        thawing = subprocess.Popen(["sh", "-c", words], stdout=pipe, start_new_session=True)
        assert thawing.stdout is not None
        if thawing.stdout.readline() != b"frozen\n":
            raise ClusterError(f"{disk} cannot be frozen")
        self._thawing = thawing
        return True

    def kill_hadard(self) -> bool:
        """Kill hadard, and return whether it ran."""
        process = self.hadard.process
        if process is None:
            return False
        process.kill()
        process.wait(_LIMIT_S)
        self.hadard.process = None
        return True

    def start_hadard(self) -> None:
        """Start hadard unless it runs."""
        if self.hadard.process is None:
            self.hadard.start()

    def kill_node(self, name: str) -> None:
        """Kill slurmd and all jobs of a node; those that wait for a frozen disk end later."""
        with suppress(ClusterError):
            self.cluster.kill_node(name)

    def mend(self) -> None:
        """Restore the state of the beginning."""
        self.start_hadard()
        for name in NODES:
            self.cluster.start_node(name)
        (self.disk / "filler").unlink(missing_ok=True)
        self.cluster.cancel_jobs()

        def is_idle() -> bool:
            states = {node.name: node.state for node in self.cluster.status().nodes}
            for name, state in states.items():
                if state.startswith(("down", "drain", "fail")):
                    self.runner.run(["scontrol", "update", f"NodeName={name}", "State=RESUME"])
            return set(states.values()) == {"idle"}

        if not wait_until(is_idle, _LIMIT_S, every_s=0.5):
            raise ClusterError(f"nodes do not become idle: {self.cluster.status().nodes}")

    def submit(self, words: Sequence[str], directory: Path) -> str:
        """Submit a job that shares `directory`, and return its id."""
        words = [sys.executable, "-m", "hadar_slurm.cli.sbatch", *words]
        environment = {**self.environment, "HADAR_JOB_DIR": str(directory)}
        done = subprocess.run(
            words, cwd=self.submitted, env=environment, capture_output=True, text=True,
            timeout=_LIMIT_S, check=False,
        )  # fmt: skip
        match = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)
        if match is None:
            raise ClusterError(f"not submitted: {done.stdout} {done.stderr}")
        return match[1]

    def keep(self, target: Path, *of_run: Path) -> None:
        """Copy the files of a run and of its daemons."""
        for source in (self.hadard.directory, self.cluster.directory / "log", *of_run):
            shutil.copytree(source, target / source.name, dirs_exist_ok=True)


@dataclass
class SlurmRun(Run):
    """A job whose copies are Slurm tasks; it runs only with a `world`."""

    look_every_s: float = 0.1
    limit_s: float = 900.0
    world: World | None = None
    parent: str = ""
    tasks: dict[int, QueueRow] = field(default_factory=dict)
    failed: set[int] = field(default_factory=set)  # because this program killed them
    _looked_s: float = 0.0
    _dying: set[int] = field(default_factory=set)
    _is_ended: threading.Event = field(default_factory=threading.Event)

    @property
    def here(self) -> World:
        """Return the world."""
        assert self.world is not None
        return self.world

    def begin(self) -> None:
        """Submit the job; its time begins with its first slot."""
        speeds = dict(zip(NODES, (*self.case.speeds, _SPARE_SPEED), strict=False))
        rates = ",".join(f"{NODES[name]}={speed / STEP_S:g}" for name, speed in speeds.items())
        paces = ",".join(f"{name}={STEP_S / speed:g}" for name, speed in speeds.items())
        notes, steps = self.job.notes, self.case.total_steps
        copies = len(self.case.speeds)
        hadar = [f"--hadar-throughput={rates}", f"--hadar-copies={copies}", "--hadar-gang=1"]
        options = [f"--hadar-steps={steps}", "--requeue", "--open-mode=append"]
        options += [f"--output={notes}/out-%a", str(self.here.script), sys.executable]
        program = [fault_copy.__file__, f"--notes={notes}", f"--steps={steps}"]
        program += [f"--step-seconds={paces}", f"--mode={self.job.mode}"]
        program.append(f"--gone-after={self.job.settings.gone_after_s:g}")
        self.parent = self.here.submit([*hadar, *options, *program], self.job.directory)
        # Slots' files are deleted later, and commands to Slurm take time.
        threading.Thread(target=self._keep_looking, daemon=True).start()
        if not wait_until(lambda: bool(self.ends) or self.is_over(), _LIMIT_S):
            self.broken.append(f"no slot after {_LIMIT_S:g} s")
        self.begun_s = time.monotonic()

    def _keep_looking(self) -> None:
        while not self._is_ended.wait(self.look_every_s):
            self.look()

    def finish(self) -> None:
        """Drop pending faults, and restore the cluster."""
        self._is_ended.set()
        self.agenda.clear()
        self.here.mend()

    def watch(self) -> None:
        """Find the copies that were killed while they averaged."""
        for died in self.job.notes.glob("died-*"):
            copy = int(died.name[5:])
            if copy not in self._dying:
                self._dying.add(copy)
                self.soon(0.5, partial(self._has_died, copy))  # it has ended by then

    def _has_died(self, copy: int) -> None:
        self._dying.discard(copy)
        self.died_within(copy)

    def alive(self) -> set[int]:
        """Return the copies whose processes run."""
        return {copy for copy in range(len(self.case.speeds)) if _is_copy(self.pid(copy))}

    def is_over(self) -> bool:
        """Return whether no task waits or runs."""
        now_s = time.monotonic()
        if now_s > self._looked_s + _LOOK_AT_SLURM_S:
            self._looked_s = now_s
            with suppress(SlurmError):
                self._read()
        return bool(self.tasks) and not any(row.is_live for row in self.tasks.values())

    def _read(self) -> None:
        prefix = f"{self.parent}_"
        self.tasks |= {
            int(key.removeprefix(prefix)): row
            for key, row in read_queue(self.here.runner).items()
            if key.startswith(prefix) and key.removeprefix(prefix).isdecimal()
        }

    def running(self) -> list[int]:
        """Return the copies that run now."""
        self._read()
        return [copy for copy, row in sorted(self.tasks.items()) if row.state == "RUNNING"]

    def hit(self, fault: Fault) -> None:
        """Let a fault happen."""
        there, world = self.running(), self.here
        match fault.kind:
            case Kind.HADARD:
                fault.is_free = world.kill_hadard()
                fault.came = f"back after {fault.lasts_s} s" if fault.is_free else "was dead"
                self.soon(fault.lasts_s, world.start_hadard)
            case Kind.KILL_ENDING:
                self.hit_within(fault, "ending")
            case Kind.KILL_EXCHANGE:
                self.hit_within(fault, "exchange")
            case Kind.STALL:
                fault.came = "it stood still already"
                if world.freeze(fault.lasts_s):
                    fault.victims, fault.came = tuple(there), f"{fault.lasts_s} s"
                    self.soon(fault.lasts_s, partial(self.goes_on, fault))
            case Kind.FULL:
                self.hit_full(fault, world.disk, there)
            case _ if not there:
                fault.came = "no copy ran"
            case Kind.NODE:
                self._hit_node(fault, there)
            case Kind.GRADIENTS | Kind.PARAMETERS | Kind.CUT:
                copy = there[fault.copy % len(there)]
                fault.came = f"copy {copy}"
                self.hit_step(fault, copy, _SPOILS[Kind(fault.kind)])
            case _:
                self._kill(fault, there[fault.copy % len(there)])

    def _hit_node(self, fault: Fault, there: Sequence[int]) -> None:
        (node,) = self.tasks[there[fault.copy % len(there)]].nodes
        fault.victims = tuple(copy for copy in there if node in self.tasks[copy].nodes)
        fault.came = f"{node} with copies {', '.join(map(str, fault.victims))}"
        self.here.kill_node(node)
        self.soon(fault.lasts_s, partial(self.here.cluster.start_node, node))

    def _kill(self, fault: Fault, copy: int) -> None:
        """Kill a copy; its batch script too only while other copies can end the job."""
        is_whole = fault.kind is Kind.KILL_TASK
        if is_whole and len(self.failed) + 1 >= len(self.case.speeds):
            fault.came = "left alone: the last one"
            return
        try:
            pid, parent = map(int, (self.job.notes / f"pid-{copy}").read_text().split())
            if not _is_copy(pid):
                raise ProcessLookupError(pid)
            if is_whole:
                os.kill(parent, signal.SIGKILL)
                self.failed.add(copy)
            os.kill(pid, signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError):
            fault.came = f"copy {copy} was not there yet"
            return
        fault.victims, fault.came = (copy,), f"copy {copy}"

    def outcome(self) -> Outcome:
        """Return the run's outcome; only tasks that this program killed may have failed."""
        done = super().outcome()
        for copy, row in sorted(self.tasks.items()):
            if row.state != "COMPLETED" and not (row.state == "FAILED" and copy in self.failed):
                done.broken.append(f"copy {copy} ended as {row.state}")
        if len(self.tasks) != len(self.case.speeds):
            done.broken.append(f"{len(self.tasks)} tasks, {len(self.case.speeds)} copies")
        return done


def _is_copy(pid: int) -> bool:
    """Return whether a process is a copy."""
    with suppress(OSError):
        return fault_copy.__file__.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
