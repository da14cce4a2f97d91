"""The worlds of the contract tests: the simulator, and Slurms: fake, local or in containers.

They have the same six nodes. Tests use only the methods of the protocols below.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from builders import a_cluster, a_spec, some_rates
from fakes.fake_slurm import FakeSlurm
from fakes.fake_tools import FakeRunner
from integration.site import Site, eventually, gpu_tree, gpus_in

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.job import JobSpec
from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.engine.backend import Backend
from hadar_slurm.errors import SlurmError
from hadar_slurm.handoff import ProgressReport, report_path, user_reports, write_report
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.resources import data_file
from hadar_slurm.sim.backend import SimBackend
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.parse import HOLDING_STATES, QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.slurm.settings import BackendSettings
from hadar_slurm.submit.compose import compose
from hadar_slurm.submit.describing.describe import describe
from hadar_slurm.submit.request import parse_words

NODES = "v100:4,v100:4,p100:4,p100:4,k80:4,v100:2+k80:2"
# Equal on all GPU types, so that only the test decides where a job runs.
RATES = {"v100": 20.0, "p100": 20.0, "k80": 20.0}
LONG = 10**6  # steps of a job that outlasts its test
TABLE = parse_table(data_file("throughputs.json").read_text(), "throughputs.json")


class World(Protocol):
    """A cluster of `NODES` without jobs, and its backend.

    `slack_s` is how late the backend's `wait` may return on a busy machine.
    """

    slack_s: float

    @property
    def backend(self) -> Backend:
        """Return the backend."""
        ...

    def now_s(self) -> float:
        """Return the backend's time."""
        ...

    def submit(self, gpus: int = 2) -> JobId:
        """Submit a held, migratable job for any node; call before the first observation."""
        ...

    def settle(self) -> None:
        """Let time pass until every started job runs and can handle a checkpoint signal."""
        ...

    def holds(self, job: JobId) -> Gang | None:
        """Return the GPUs that a job holds in the world's own records."""
        ...


class SlurmWorld(World, Protocol):
    """A world with a Slurm, fake or real."""

    @property
    def slurm(self) -> SlurmAdapter:
        """Return the adapter."""
        ...

    @property
    def backend(self) -> SlurmBackend:
        """Return the backend."""
        ...

    def another_backend(self, slurm: SlurmAdapter) -> SlurmBackend:
        """Return a new backend for this world that uses the given adapter."""
        ...

    def sbatch(self, *options: str) -> JobId:
        """Submit a plain job that sleeps."""
        ...

    def hadar_sbatch(self, *options: str) -> JobId:
        """Submit a managed job, held, that sleeps."""
        ...

    def run(self, *argv: str) -> None:
        """Run a command with an operator's rights at least."""
        ...

    def until(self, condition: Callable[[], bool], what: object = "") -> None:
        """Let time pass until `condition` holds; fail with `what` after a limit."""
        ...

    def away(self) -> AbstractContextManager[None]:
        """Make slurmctld unreachable."""
        ...


@dataclass
class SimWorld:
    """The simulator."""

    slack_s: float = 0.0
    jobs: list[JobSpec] = field(default_factory=list)

    @cached_property
    def backend(self) -> SimBackend:
        """Return the simulator with the jobs submitted so far."""
        parts = NODES.split(",")
        words = ",".join("+".join(_turned(gpus) for gpus in part.split("+")) for part in parts)
        return SimBackend(a_cluster(words), self.jobs)

    def now_s(self) -> float:
        """Return virtual time."""
        return self.backend.now_s

    def submit(self, gpus: int = 2) -> JobId:
        """Add a job to the workload."""
        number = str(len(self.jobs) + 1)
        self.jobs.append(a_spec(number, gpus, steps=LONG, throughputs=some_rates(**RATES)))
        return self.jobs[-1].job_id

    def settle(self) -> None:
        """Do nothing: starts take no time."""

    def holds(self, job: JobId) -> Gang | None:
        """Return the gang of the simulated job."""
        copies = self.backend.sim_jobs[job].copies
        return copies[0].gang if copies else None


def _turned(gpus: str) -> str:
    gpu_type, count = gpus.split(":")
    return f"{count}x{gpu_type}"


@dataclass
class FakeWorld:
    """The command-line adapter over the model of slurmctld; `version` is Slurm's."""

    directory: Path
    version: tuple[int, int, int]
    slack_s: float = 0.2

    def __post_init__(self) -> None:
        self.fake = FakeSlurm(NODES, version=self.version, spool=self.directory)
        self.runner = FakeRunner(slurm=self.fake)
        self.slurm = CommandLine(self.runner)
        self.backend = self.another_backend(self.slurm)

    def another_backend(self, slurm: SlurmAdapter) -> SlurmBackend:
        """Return a backend on the fake's clock."""
        settings = BackendSettings(
            spool=self.directory, restart_cost_s=0.5, grace_s=20.0, poll_s=0.2
        )
        ledger = Ledger(self.directory / "ledger.json")
        return SlurmBackend(
            slurm, TABLE, settings, ledger, now_s=self.now_s, sleep=self.fake.advance
        )

    def now_s(self) -> float:
        """Return the fake's time."""
        return self.fake.now_s

    def submit(self, gpus: int = 2) -> JobId:
        """Submit a job as hadar-sbatch would."""
        return self.hadar_sbatch(f"--hadar-gang={gpus}")

    def sbatch(self, *options: str) -> JobId:
        """Submit a plain job."""
        key = JobId(self.runner.run(["sbatch", "--parsable", *options, "--wrap=sleep"]).strip())
        for job in self.fake.find(key):
            job.dies_of_usr1 = True
        return key

    def hadar_sbatch(self, *options: str) -> JobId:
        """Submit a job as hadar-sbatch would."""
        request = parse_words([*_described(), *options, "job.sh"], {})
        _, *words = compose(request, describe(request, Estimator.shipped(TABLE)), is_held=True)
        return JobId(self.runner.run(["sbatch", "--parsable", *words]).strip())

    def settle(self) -> None:
        """Let some seconds pass."""
        self.fake.advance(3.0)

    def holds(self, job: JobId) -> Gang | None:
        """Return the GPUs in the fake's record of the job."""
        [found] = self.fake.find(job)
        return Gang.of(found.gpus) if found.held else None

    def run(self, *argv: str) -> None:
        """Run one of the fake's tools."""
        self.runner.run(argv)

    def until(self, condition: Callable[[], bool], what: object = "") -> None:
        """Advance the clock until `condition` holds, by 200 s at most."""
        for _ in range(2000):
            if condition():
                return
            self.fake.advance(0.1)
        raise AssertionError(what() if callable(what) else what)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Make every command fail to reach slurmctld."""
        self.fake.is_away = True
        yield
        self.fake.is_away = False


def _described() -> list[str]:
    told = ",".join(f"{gpu_type}={throughput}" for gpu_type, throughput in RATES.items())
    return [f"--hadar-throughput={told}", f"--hadar-steps={LONG}", "--hadar-checkpoint=yes"]


@dataclass
class LocalWorld:
    """A real Slurm on this machine, through its commands."""

    site: Site
    slack_s: float = 10.0

    def __post_init__(self) -> None:
        self.slurm = CommandLine(self.site.cluster.runner(timeout_s=10))
        self.backend = self.another_backend(self.slurm)

    def another_backend(self, slurm: SlurmAdapter) -> SlurmBackend:
        """Return a backend in this process."""
        settings = BackendSettings(
            spool=self.site.reports, restart_cost_s=0.5, grace_s=20.0, poll_s=0.2
        )
        self.site.state_dir.mkdir(exist_ok=True)
        return SlurmBackend(slurm, TABLE, settings, Ledger(self.site.state_dir / "ledger.json"))

    def now_s(self) -> float:
        """Return the time of day."""
        return self.backend.now_s()

    def submit(self, gpus: int = 2) -> JobId:
        """Submit the job template that trains."""
        return self.site.train(RATES, steps=LONG, gpus=gpus, held=True)

    def sbatch(self, *options: str) -> JobId:
        """Submit a plain job that sleeps."""
        return self.site.submit(*options, "--wrap=exec sleep 600", command=["sbatch"])

    def hadar_sbatch(self, *options: str) -> JobId:
        """Submit a managed job that sleeps."""
        self.site.vouch()
        return self.site.submit(*_described(), *options, self.site.script("rest", "sleep 600"))

    def settle(self) -> None:
        """Wait until no job is starting or completing, and running jobs have trained some steps."""

        def is_settled() -> bool:
            rows = self.site.queue().values()
            free_to_start = [r for r in rows if r.state == "PENDING" and r.priority]
            running = [r for r in rows if r.state == "RUNNING" and r.comment]
            is_moving = any(r.state in HOLDING_STATES - {"RUNNING"} for r in rows)
            trains = all(self.site.steps(JobId(r.raw_id)) for r in running)
            return trains and not free_to_start and not is_moving

        eventually(is_settled, lambda: self.site.told(*self.site.queue()))

    def holds(self, job: JobId) -> Gang | None:
        """Return the GPUs that Slurm shows, read without the product's parser."""
        tree = self.site.tree(job)
        counts = {
            (n, gpu_type): many for n, gpus in tree.items() for gpu_type, many in gpus.items()
        }
        return Gang.of(counts) if counts else None

    def run(self, *argv: str) -> None:
        """Run a command that must succeed."""
        done = self.site.run(argv)
        if done.returncode:
            raise SlurmError(f"{argv}: {done.stderr}")

    def until(self, condition: Callable[[], bool], what: object = "") -> None:
        """Wait until `condition` holds."""
        eventually(condition, what)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Stop slurmctld during the block; commands time out after one second."""
        cluster: LocalCluster = self.site.cluster
        waits_s = self.slurm.runner.timeout_s
        object.__setattr__(self.slurm.runner, "timeout_s", 1.0)
        cluster.stop_controller()
        try:
            yield
        finally:
            cluster.start_controller()
            object.__setattr__(self.slurm.runner, "timeout_s", waits_s)


@dataclass(frozen=True, slots=True)
class InContainer(Runner):
    """Runs Slurm's tools in a container, as one of its users."""

    container: str = ""
    user: str = ""

    def _done(self, argv: Sequence[str], stdin: str) -> subprocess.CompletedProcess[str]:
        variables = ("LC_ALL=C", "SLURM_TIME_FORMAT=%s")
        settings = [word for variable in variables for word in ("--env", variable)]
        words = ["docker", "exec", "-i", "--user", self.user, "--workdir", "/tmp", *settings]
        return Runner._done(self, [*words, self.container, *argv], stdin)


# The grace period of jobs in containers, which never save.
GRACE_S = 0.5


@dataclass
class DockerWorld:
    """A cluster in containers, with hadard's own container stopped.

    The adapter has an operator's rights, and jobs belong to an ordinary user. Jobs ignore the
    checkpoint signal. `settle` writes the reports of running jobs here, since their own are in a
    volume that this process cannot read.
    """

    containers: Mapping[str, str]
    directory: Path
    slack_s: float = 10.0

    def __post_init__(self) -> None:
        self.slurm = CommandLine(self._runner("hadar"))
        self.backend = self.another_backend(self.slurm)

    def _runner(self, user: str) -> InContainer:
        # Not the controller's container: `away` stops it.
        return InContainer(timeout_s=20.0, container=self.containers["n6"], user=user)

    def another_backend(self, slurm: SlurmAdapter) -> SlurmBackend:
        """Return a backend in this process."""
        settings = BackendSettings(
            spool=self.directory, restart_cost_s=0.5, grace_s=GRACE_S, poll_s=0.2
        )
        return SlurmBackend(slurm, TABLE, settings, Ledger(self.directory / "ledger.json"))

    def now_s(self) -> float:
        """Return the time of day."""
        return self.backend.now_s()

    def submit(self, gpus: int = 2) -> JobId:
        """Submit a managed job that ignores the checkpoint signal."""
        return self.hadar_sbatch(f"--hadar-gang={gpus}")

    def sbatch(self, *options: str) -> JobId:
        """Submit a plain job that sleeps."""
        return self._sbatch(*options, "--wrap=exec sleep 600")

    def hadar_sbatch(self, *options: str) -> JobId:
        """Submit a job as hadar-sbatch would."""
        request = parse_words([*_described(), *options, "job.sh"], {})
        _, *words, _ = compose(request, describe(request, Estimator.shipped(TABLE)), is_held=True)
        return self._sbatch(*words, "--wrap=trap '' USR1; sleep 600")

    def _sbatch(self, *words: str) -> JobId:
        told = ["sbatch", "--parsable", "--output=/dev/null", *words]
        return JobId(self._runner("alice").run(told).strip())

    def settle(self) -> None:
        """Wait until no job is starting or completing, and running jobs have set their traps."""

        def is_settled() -> bool:
            rows = self.slurm.queue().values()
            is_starting = any(row.state == "PENDING" and row.priority for row in rows)
            running = [row for row in rows if row.state == "RUNNING" and row.comment]
            for row in running:
                self._report(row)
            is_new = any(self.now_s() - row.started_s <= 2 * GRACE_S for row in running)
            return not (is_starting or is_new) and not any(
                row.state in HOLDING_STATES - {"RUNNING"} for row in rows
            )

        eventually(is_settled, "settled")

    def _report(self, row: QueueRow) -> None:
        """Write a report of a running job, in a file owned by the job's user."""
        own = user_reports(self.directory, row.user_id)
        report = ProgressReport(restart=row.restarts, state="running", steps_done=0)
        for place in (own, own / row.raw_id):
            place.mkdir(exist_ok=True)
            os.chown(place, os.geteuid(), -1)
        write_report(own, row.raw_id, report)
        for place in (report_path(own, row.raw_id), own / row.raw_id, own):
            os.chown(place, row.user_id, -1)

    def holds(self, job: JobId) -> Gang | None:
        """Return the GPUs that Slurm shows, read without the product's parser."""
        tree = gpu_tree(
            gpus_in(self.slurm.runner.run(["scontrol", "show", "job", "-d", "-o", job]))
        )
        counts = {
            (n, gpu_type): many for n, gpus in tree.items() for gpu_type, many in gpus.items()
        }
        return Gang.of(counts) if counts else None

    def run(self, *argv: str) -> None:
        """Run a command with an operator's rights."""
        self.slurm.runner.run(argv)

    def until(self, condition: Callable[[], bool], what: object = "") -> None:
        """Wait until `condition` holds."""
        eventually(condition, what)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Stop slurmctld's container during the block."""
        controller = self.containers["ctl"]
        subprocess.run(["docker", "stop", controller], check=True, capture_output=True)
        try:
            yield
        finally:
            subprocess.run(["docker", "start", controller], check=True, capture_output=True)
            eventually(self._answers, "slurmctld is back")

    def _answers(self) -> bool:
        try:
            return bool(self.slurm.queue()) and all(
                row.node.is_schedulable for row in self.slurm.nodes()
            )
        except SlurmError:
            return False

    def reset(self) -> None:
        """Cancel all jobs and wait until none is left on a node."""
        for row in self.slurm.queue().values():
            if row.state in HOLDING_STATES or row.state == "PENDING":
                self.slurm.runner.run(["scancel", row.key])
        live = HOLDING_STATES | {"PENDING"}
        eventually(
            lambda: not any(row.state in live for row in self.slurm.queue().values()), "no jobs"
        )


def docker_containers() -> tuple[dict[str, str], str]:
    """Return the running containers of a cluster by service, or why there are none."""
    if shutil.which("docker") is None:
        return {}, "no container engine: docker is not installed"
    project = os.environ.get("HADAR_DOCKER_PROJECT")
    if not project:
        return {}, "HADAR_DOCKER_PROJECT names no cluster that docker/up has started"
    label = f"label=com.docker.compose.project={project}"
    form = '{{.Label "com.docker.compose.service"}} {{.Names}}'
    done = subprocess.run(
        ["docker", "ps", "--filter", label, "--format", form],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    found = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    return found, "" if {"ctl", "n6"} <= found.keys() else f"no cluster {project} runs"
