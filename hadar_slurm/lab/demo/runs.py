"""Submit the demo's jobs to a real Slurm, wait for them, and collect their histories."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId
from hadar_slurm.errors import HadarError, SlurmUnavailable
from hadar_slurm.journal import Line
from hadar_slurm.journal.values import gang_from_tree
from hadar_slurm.lab.demo.workload import DemoJob
from hadar_slurm.metrics import Segment
from hadar_slurm.resources import beside
from hadar_slurm.slurm.client.parse import HOLDING_STATES
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.state import read_queue
from hadar_slurm.state.heartbeat_reader import read_heartbeat

_POLL_EVERY_S = 0.25
_SUBMITTED = re.compile(r"Submitted batch job (\d+)")
# Limit for the start and for the end of the daemon, in seconds.
_DAEMON_S = 30.0


@dataclass(frozen=True, slots=True)
class JobRun:
    """The history of one job; times in seconds since the run's start."""

    job: DemoJob
    job_id: JobId
    state: str
    submitted_s: float
    ended_s: float
    segments: tuple[Segment, ...]
    # Steps of all segments.
    steps_trained: int
    # Whether each segment continued at the step at which the previous one had stopped.
    is_continuous: bool

    @property
    def has_finished(self) -> bool:
        """Whether the job trained every step exactly once and Slurm calls it completed."""
        is_whole = self.is_continuous and self.steps_trained == self.job.total_steps
        return self.state == "COMPLETED" and is_whole

    @property
    def is_killed(self) -> bool:
        """Whether Slurm ended the job at its time limit."""
        return self.state == "TIMEOUT"

    @property
    def gpu_s(self) -> float:
        """Return the GPU-seconds that it held."""
        return sum(s.gang.num_gpus * (s.end_s - s.start_s) for s in self.segments)

    @property
    def jct_s(self) -> float:
        """Return the time from submission to end."""
        return self.ended_s - self.submitted_s


def submission(
    job: DemoJob, hadar_sbatch: Sequence[str] | None, *, tells_steps: bool = True
) -> list[str]:
    """Return the command that submits `job`, by `hadar_sbatch` or, if None, by plain sbatch.

    Both request the same GPUs, script and limits. Without `tells_steps` the command omits the
    steps, so hadard knows only the time limit, which is equal for all jobs.
    """
    steps = [f"--hadar-steps={job.total_steps}"] if tells_steps else []
    described = [f"--hadar-model={job.workload}", *steps, "--hadar-checkpoint=yes"]
    return [
        *([*hadar_sbatch, *described] if hadar_sbatch else ["sbatch"]),
        f"--job-name={job.name}",
        f"--gpus={job.num_gpus}",
        "--time=30",
        "--requeue",
        str(beside("job_templates", "paced_training.sbatch")),
        f"--workload={job.workload}",
        f"--total-steps={job.total_steps}",
    ]


@dataclass
class Submitter:
    """Submits jobs of the demo, by sbatch or by hadar-sbatch."""

    environment: Mapping[str, str]
    directory: Path
    with_hadar: bool
    tells_steps: bool = True

    def submit(self, job: DemoJob) -> JobId:
        """Submit `job` and return its id."""
        own = [sys.executable, "-m", "hadar_slurm.cli.sbatch"]
        done = subprocess.run(
            submission(job, own if self.with_hadar else None, tells_steps=self.tells_steps),
            cwd=self.directory,
            env=dict(self.environment),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        match = _SUBMITTED.search(done.stdout)
        if done.returncode != 0 or match is None:
            raise HadarError(f"{job.name} could not be submitted: {done.stderr.strip()}")
        return JobId(match.group(1))


class DemoTally(NamedTuple):
    """The numbers of jobs by state during a run."""

    total: int
    running: int
    finished: int


def run_jobs(
    jobs: Sequence[DemoJob],
    submitter: Submitter,
    runner: Runner,
    *,
    limit_s: float,
    on_progress: Callable[[DemoTally], None],
) -> list[JobRun]:
    """Submit every job at its time, wait until all have ended, and return their histories.

    Raises HadarError if they have not ended within `limit_s` seconds.
    """
    start_s = time.time()
    submitted: dict[JobId, tuple[DemoJob, float]] = {}
    todo, finished = list(jobs), 0
    while True:
        while todo and time.time() - start_s >= todo[0].submit_s:
            job, came_s = todo.pop(0), time.time() - start_s
            submitted[submitter.submit(job)] = (job, came_s)
        try:
            states = {key: row.state for key, row in read_queue(runner).items()}
        except SlurmUnavailable:
            states = {}
        alive = {"PENDING", *HOLDING_STATES}
        live = {key: states[key] for key in submitted if states.get(key) in alive}
        running = sum(state == "RUNNING" for state in live.values())
        finished = len(submitted) - len(live) if states else finished
        on_progress(DemoTally(len(jobs), running, finished))
        if states and not todo and not live:
            return [
                _job_run(
                    job,
                    key=key,
                    state=states.get(key, "GONE"),
                    came_s=came_s,
                    start_s=start_s,
                    directory=submitter.directory,
                )
                for key, (job, came_s) in submitted.items()
            ]
        if time.time() - start_s > limit_s:
            left = f"{len(live) + len(todo)} of {len(jobs)} jobs have not ended within"
            raise HadarError(f"{left} {limit_s:g} s: {', '.join(sorted(live))}")
        time.sleep(_POLL_EVERY_S)


def _job_run(
    job: DemoJob, key: JobId, state: str, came_s: float, start_s: float, directory: Path
) -> JobRun:
    path = directory / "checkpoints" / key / "history.jsonl"
    try:
        lines: list[Line] = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    except OSError:
        lines = []
    # A segment without steps changes neither the total nor the continuity.
    spans = [(int(line["from_step"]), int(line["to_step"])) for line in lines]
    times_s = [(float(line["start_s"]) - start_s, float(line["end_s"]) - start_s) for line in lines]
    gangs = [gang_from_tree(line["gpus"]) for line in lines]
    ends = [0, *(end for _, end in spans)]
    ended_s = max((end_s for _, end_s in times_s), default=came_s)
    segments = tuple(Segment(key, gang, *held) for gang, held in zip(gangs, times_s, strict=True))
    num_steps = sum(end - begin for begin, end in spans)
    is_continuous = all(begin == end for (begin, _), end in zip(spans, ends, strict=False))
    return JobRun(
        job,
        job_id=key,
        state=state,
        submitted_s=came_s,
        ended_s=ended_s,
        segments=segments,
        steps_trained=num_steps,
        is_continuous=is_continuous,
    )


@dataclass
class Daemon:
    """A private hadard with its configuration and journal in `directory`."""

    directory: Path
    environment: Mapping[str, str]
    config: Mapping[str, object]
    # The interpreter of the installation that is run.
    python: str = sys.executable
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.journal, self.log = self.directory / "journal.jsonl", self.directory / "hadard.log"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the daemon during a block; it has written a heartbeat before the block starts."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def start(self) -> None:
        """Start the daemon and wait for its first heartbeat. Raises HadarError without one."""
        path = self.directory / "hadar.yaml"
        run_dir = Path(str(self.config["run_dir"]))
        lines = {**self.config, "journal": str(self.journal)}
        path.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.python, "-m", "hadar_slurm.daemon.main", "--config", str(path)],
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline_s = time.monotonic() + _DAEMON_S
        while (beat := read_heartbeat(run_dir)) is None or beat.pid != self.process.pid:
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                self.stop()
                raise HadarError(f"hadard did not start: {self.log.read_text()[-2000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Terminate the daemon; kill it if it does not end in time."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_DAEMON_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None


def job_environment(cluster_environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the submissions of both runs."""
    templates = str(beside("job_templates", "paced_training.py").parent)
    own = {"HADAR_PYTHON": sys.executable, "HADAR_TEMPLATES": templates}
    return {**os.environ, **cluster_environment, **own}


def fresh_directory(path: Path) -> Path:
    """Return an empty directory at `path`."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path
