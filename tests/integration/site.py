"""A local cluster with a hadard: helpers that submit jobs, control both and read their state."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ClusterShell.NodeSet import NodeSet

from hadar_slurm.core.cluster import JobId
from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.processes import wait_until
from hadar_slurm.handoff import ProgressReport, read_report
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.journal import Line
from hadar_slurm.journal.reader import read_journal
from hadar_slurm.lab.demo.runs import Daemon, job_environment
from hadar_slurm.resources import beside, data_file
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.state import read_queue
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.settings import BackendSettings
from hadar_slurm.state.heartbeat import Heartbeat, write_heartbeat

# Far above every expected duration, for heavily loaded machines.
LIMIT_S = 120.0
# Another installation's, to try another version (CONTRIBUTING.md); tests of what is within a module
# then try this one.
PYTHON = os.environ.get("HADAR_TEST_PYTHON", sys.executable)
HADARD = (PYTHON, "-m", "hadar_slurm.daemon.main")
HADAR_SBATCH = (PYTHON, "-m", "hadar_slurm.cli.sbatch")
HADAR = (PYTHON, "-m", "hadar_slurm.cli.main")
# Rounds and costs at the scale of jobs that last seconds.
SETTINGS = {
    # The tests expect this policy's placements; the default may preempt a job for a shorter one.
    "policy": "hadar-paper",
    "mode": "hold",
    "round_seconds": 2,
    "poll_seconds": 0.2,
    "restart_cost_seconds": 0.5,
    "grace_seconds": 20,
    "pin_timeout_seconds": 20,
}
# Every GPU but the K80s of n5.
ALL_FAST = {
    "n1": "gpu:4",
    "n2": "gpu:4",
    "n3": "gpu:4",
    "n4": "gpu:4",
    "n6": "gpu:v100:2,gpu:k80:2",
}
# Lines of a script that reports once: by the protocol that declares that it handles USR1.
REPORT = """
own=$HADAR_SPOOL/$SLURM_JOB_ID
mkdir -p "$own"
printf '{"version":1,"restart":%d,"state":"running","steps_done":7}' \\
    "${SLURM_RESTART_COUNT:-0}" > "$own/new"
mv "$own/new" "$own/progress.json"
"""
GpuTree = dict[str, dict[str, int]]  # as in the journal: node -> GPU type -> count
# A site's own job_submit.lua: it rejects some jobs with a message, and nodes of others; all changes
# while there is a file `{ours}.refuses`.
OF_THE_SITE = """
function slurm_job_submit(job_desc, part_list, submit_uid)
    if job_desc.name == "unwanted" then
        slurm.log_user("the site does not want this job")
        return slurm.ERROR
    end
    return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    local file = io.open("{ours}.refuses")
    if file then
        file:close()
        slurm.log_user("the site takes no changes")
        return slurm.ERROR
    end
    if job_rec.name == "stubborn" and (job_desc.req_nodes or "") ~= "" then
        slurm.log_user("the site takes no nodes for this job")
        return slurm.ERROR
    end
    return slurm.SUCCESS
end
pcall(dofile, "{ours}")
return slurm.SUCCESS
"""


def eventually(condition: Callable[[], bool], what: object = "", limit_s: float = LIMIT_S) -> None:
    """Wait until `condition` holds; after the limit fail with `what`, called if it is callable."""
    if not wait_until(condition, limit_s, every_s=0.1):
        raise AssertionError(f"not within {limit_s:g} s: {what() if callable(what) else what}")


@dataclass(frozen=True)
class Gpu:
    """One GPU of the cluster, as Slurm numbers it on its node."""

    node: str
    gpu_type: str
    index: int


def gpu_tree(gpus: Iterable[Gpu]) -> GpuTree:
    """Return GPUs in the form of the journal's gangs."""
    tree: GpuTree = {}
    for gpu in gpus:
        here = tree.setdefault(gpu.node, {})
        here[gpu.gpu_type] = here.get(gpu.gpu_type, 0) + 1
    return tree


_DETAIL = re.compile(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_GPUS = re.compile(r"gpu:(?:([^:(]+):)?[1-9]\d*\(IDX:([^)]*)\)")


def gpus_in(detail: str) -> frozenset[Gpu]:
    """Return the GPUs in a line of `scontrol show job -d -o`, parsed without the product's code."""
    return frozenset(
        Gpu(node, gpu_type, index)
        for nodes, gres in _DETAIL.findall(detail)
        for gpu_type, indices in _GPUS.findall(gres)
        for node in NodeSet(nodes)
        for index in map(int, NodeSet(f"[{indices}]"))
    )


@dataclass
class Site:
    """A cluster without jobs, and a daemon that a test may start.

    Jobs run in `directory`, and the daemon keeps its files there.
    """

    cluster: LocalCluster
    directory: Path
    settings: dict[str, object] = field(default_factory=lambda: dict(SETTINGS))
    daemons: list[Daemon] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.environment = job_environment(self.cluster.environment())
        self.runner: Runner = self.cluster.runner()
        self.run_dir = Path(self.environment["HADAR_RUN_DIR"])
        self.spool = self.cluster.directory / "spool"
        self.reports = self.spool / "reports"
        self.state_dir = self.directory / "state"
        self.hadard = self.new_daemon("hadard")

    def config(self, **changes: object) -> dict[str, object]:
        """Return the daemon's configuration."""
        places = {
            "slurm_conf": self.cluster.slurm_conf,
            "run_dir": self.run_dir,
            "spool_dir": self.spool,
            "state_dir": self.state_dir,
            "disable_file": self.directory / "disabled",
        }
        return {**self.settings, **places, **changes}

    def new_daemon(self, name: str, **changes: object) -> Daemon:
        """Return a daemon with its own files, not yet started."""
        directory = self.directory / name
        directory.mkdir()
        self.daemons.append(Daemon(directory, self.environment, self.config(**changes), PYTHON))
        return self.daemons[-1]

    def close(self) -> None:
        """Stop every daemon."""
        for daemon in self.daemons:
            daemon.stop()

    def start(self, **changes: object) -> Daemon:
        """Start the daemon, with other settings if given, and return it."""
        self.hadard.config = self.config(**changes)
        self.hadard.start()
        return self.hadard

    def kill(self, daemon: Daemon) -> None:
        """Kill a daemon as a crash would, and reap it."""
        assert daemon.process is not None
        daemon.process.send_signal(signal.SIGKILL)
        daemon.process.wait(LIMIT_S)

    def run(
        self, argv: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as a user would, in the directory where jobs run."""
        return subprocess.run(
            argv,
            cwd=self.directory,
            env={**self.environment, **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    def run_hadard(self, *options: str, **changes: object) -> subprocess.CompletedProcess[str]:
        """Run hadard with the daemon's own journal until it ends by itself."""
        path = self.directory / "run_hadard.yaml"
        lines = {"journal": self.hadard.journal, **self.config(**changes)}
        path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
        return self.run([*HADARD, "--config", str(path), *options])

    def once(self) -> None:
        """Run one round."""
        done = self.run_hadard("--once")
        assert done.returncode == 0, done.stderr

    def backend(self, runner: Runner | None = None, *, grace_s: float = 20.0) -> SlurmBackend:
        """Return a backend in this process."""
        table = parse_table(data_file("throughputs.json").read_text(), "throughputs.json")
        settings = BackendSettings(
            spool=self.reports, restart_cost_s=0.5, grace_s=grace_s, poll_s=0.2
        )
        slurm = CommandLine(runner or self.runner)
        self.state_dir.mkdir(exist_ok=True)
        return SlurmBackend(slurm, table, settings, Ledger(self.state_dir / "ledger.json"))

    def hadar_sbatch(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run hadar-sbatch."""
        return self.run([*HADAR_SBATCH, *words])

    def vouch(self) -> None:
        """Write a fresh heartbeat, so that jobs are submitted as for a live hadard."""
        good_until_s = time.time() + LIMIT_S
        write_heartbeat(
            self.run_dir, Heartbeat(os.getpid(), "test", good_until_s, str(self.reports))
        )

    def submit(self, *words: str, command: Sequence[str] = HADAR_SBATCH) -> JobId:
        """Submit a job with hadar-sbatch, or with plain sbatch, and return its id."""
        done = self.run([*command, *words])
        match = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)
        assert match is not None, f"{done.stdout} {done.stderr}"
        return JobId(match[1])

    def script(self, name: str, *lines: str) -> str:
        """Write a batch script and return its path."""
        path = self.directory / f"{name}.sh"
        path.write_text("\n".join(["#!/bin/bash", *lines, ""]))
        return str(path)

    def train(
        self,
        throughputs: Mapping[str, float],
        *options: str,
        steps: int,
        gpus: int = 2,
        checkpoint: str = "yes",
        script: str | None = None,
        program: Sequence[str] = (),
        held: bool = False,
    ) -> JobId:
        """Submit a job that trains at `throughputs`, steps/s of the whole gang, and return its id.

        With `held` a heartbeat is written first, so that the job is held without a running hadard.
        """
        if held:
            self.vouch()
        told = ",".join(f"{gpu_type}={throughput}" for gpu_type, throughput in throughputs.items())
        return self.submit(
            f"--hadar-throughput={told}",
            f"--hadar-gang={gpus}",
            f"--hadar-steps={steps}",
            f"--hadar-checkpoint={checkpoint}",
            *options,
            script or str(beside("job_templates", "paced_training.sbatch")),
            *(
                f"--rate={gpu_type}={throughput / gpus}"
                for gpu_type, throughput in throughputs.items()
            ),
            f"--total-steps={steps}",
            *program,
        )

    def occupy(self, **gres: str) -> dict[str, JobId]:
        """Occupy GPUs with plain jobs, as in `n1="gpu:2"`, and return their ids by node."""
        jobs = {
            node: self.submit(
                f"--nodelist={node}", f"--gres={gpus}", "--wrap=sleep 600", command=["sbatch"]
            )
            for node, gpus in gres.items()
        }
        self.until_running(*jobs.values())
        return jobs

    def set_partition(self, *values: str) -> None:
        """Change values of the partition `main`, also where slurmctld does not answer at first."""
        words = ["scontrol", "update", "PartitionName=main", *values]
        eventually(lambda: self.run(words).returncode == 0, lambda: self.run(words).stderr)

    def free(self, *jobs: JobId) -> None:
        """Cancel jobs and wait until they have left their GPUs."""
        self.runner.run(["scancel", *jobs])
        eventually(lambda: not any(self.is_live(job) for job in jobs), "jobs cancelled")

    def is_live(self, job: JobId) -> bool:
        """Return whether a job waits or runs; Slurm forgets ended ones after a while."""
        row = self.queue().get(job)
        return row is not None and row.is_live

    def queue(self) -> dict[JobId, QueueRow]:
        """Return every job that Slurm shows, including ended ones."""
        return read_queue(self.runner)

    def state(self, job: JobId) -> str:
        """Return a job's state."""
        return self.queue()[job].state

    def until_running(self, *jobs: JobId) -> None:
        """Wait until all of these jobs run."""
        eventually(
            lambda: all(self.state(job) == "RUNNING" for job in jobs),
            lambda: self.told(*jobs),
        )

    def until_completed(self, *jobs: JobId, limit_s: float = LIMIT_S) -> None:
        """Wait until all of these jobs have completed; fail once one ends in another state.

        hadard's own signal may still end a program that is about to exit; hadard requeues such a
        job.
        """

        def are_completed() -> bool:
            queue = self.queue()
            rows = [queue[job] for job in jobs]
            lost = {"FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
            # Slurm 22.05 gives another reason, and newer ones may give another status.
            ended = [
                row
                for row in rows
                if row.exit_status != signal.SIGUSR1
                and not row.reason.startswith("RaisedSignal:10")
            ]
            assert lost.isdisjoint(row.state for row in ended), self.told(*jobs)
            return {row.state for row in rows} == {"COMPLETED"}

        eventually(are_completed, lambda: self.told(*jobs), limit_s)

    def told(self, *jobs: JobId) -> str:
        """Return the queue rows of jobs and the end of hadard's log, for failure messages."""
        rows = self.queue()
        log = self.hadard.log.read_text()[-3000:] if self.hadard.log.exists() else ""
        return "\n".join([*(str(rows.get(job)) for job in jobs), log])

    def details(self) -> dict[JobId, str]:
        """Return each job's line of `scontrol show job -d -o`."""
        text = self.runner.run(["scontrol", "show", "job", "-d", "-o"])
        # A line may be broken by the name of an earlier test's job.
        lines = (line for line in text.splitlines() if line.startswith("JobId="))
        return {JobId(line.split()[0].removeprefix("JobId=")): line for line in lines}

    def gpus(self, job: JobId) -> frozenset[Gpu]:
        """Return the GPUs that Slurm has allocated to a job."""
        return gpus_in(self.details()[job])

    def tree(self, job: JobId) -> GpuTree:
        """Return the GPUs that Slurm has allocated to a job, in the form of the journal."""
        return gpu_tree(self.gpus(job))

    def check_gpus_are_apart(self) -> None:
        """Fail if two jobs hold the same GPU."""
        owners: dict[Gpu, JobId] = {}
        for job, line in self.details().items():
            if re.search(r" JobState=(RUNNING|COMPLETING) ", line):
                for gpu in gpus_in(line):
                    assert owners.setdefault(gpu, job) == job, f"{gpu}: {owners[gpu]} and {job}"

    def lines(self) -> list[Line]:
        """Return the journal's lines about partitions in which hadard places jobs."""
        journal = self.hadard.journal
        lines = read_journal(journal) if journal.exists() else ()
        return [line for line in lines if line["mode"] in ("hold", "steer")]

    def newest(self) -> Line:
        """Return the journal's newest such line, after the first round."""
        eventually(lambda: bool(self.lines()), lambda: f"a first round\n{self.told()}")
        return self.lines()[-1]

    def seen(self, job: JobId) -> Line:
        """Return what the newest such line says of a job, empty if nothing."""
        return self.newest()["jobs"].get(job, {})

    def planned(self, job: JobId) -> GpuTree | None:
        """Return a job's gang in the newest plan, None without one."""
        plans = [line["plan"] for line in self.lines() if line["plan"] is not None]
        return plans[-1][job]["0"] if plans and job in plans[-1] else None

    def until_rounds(self, count: int) -> None:
        """Wait until the daemon has run `count` more rounds."""
        before = len(self.lines())
        eventually(lambda: len(self.lines()) >= before + count, f"{count} rounds")

    def actions(self, job: JobId) -> Iterator[Line]:
        """Yield the daemon's actions on a job, in order."""
        for line in self.lines():
            yield from (action for action in line["actions"] if action["job"] == job)

    def report(self, job: JobId) -> ProgressReport | None:
        """Return a job's report, None without a valid one."""
        return read_report(self.reports, job, owner_uid=os.geteuid())

    def steps(self, job: JobId) -> int:
        """Return the steps done in a job's report, 0 without one."""
        report = self.report(job)
        return 0 if report is None else report.steps_done

    def segments(self, job: JobId) -> list[dict[str, Any]]:
        """Return the segments that a training job has recorded in its history."""
        path = self.directory / "checkpoints" / job / "history.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def check_training(self, job: JobId, steps: int) -> list[dict[str, Any]]:
        """Fail unless a job trained every step once, with the result of an uninterrupted one."""
        segments = self.segments(job)
        bounds = [0, *(segment["to_step"] for segment in segments)]
        assert [segment["from_step"] for segment in segments] == bounds[:-1]
        assert bounds[-1] == steps
        result = json.loads((self.directory / "checkpoints" / job / "result.json").read_text())
        assert result == self.uninterrupted(steps)
        return segments

    def uninterrupted(self, steps: int) -> dict[str, Any]:
        """Return the result of a training that was never stopped."""
        directory = self.directory / f"uninterrupted-{steps}"
        program = str(beside("job_templates", "paced_training.py"))
        gpus = ["--gpus=n1:v100:1", "--rate=v100=100000"]
        ends = [f"--total-steps={steps}", f"--checkpoint-dir={directory}"]
        done = self.run([sys.executable, program, *gpus, *ends])
        assert done.returncode == 0, done.stderr
        result: dict[str, Any] = json.loads((directory / "result.json").read_text())
        return result
