"""One play of a scenario: submissions, what Slurm shows of them, and the waits."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from threading import Event
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId
from hadar_slurm.errors import HadarError, SlurmUnavailable
from hadar_slurm.lab.site.jobs import NUM_GPUS, UserJob
from hadar_slurm.lab.site.observation import GpuRecord, JobSeen, parse_jobs
from hadar_slurm.lab.site.testbed import SharedSite
from hadar_slurm.lab.site.users import SiteUser

POLL_S = 0.25
# Of hadard, beside its mode: rounds and costs at the scale of jobs that last seconds, not hours.
SETTINGS: Mapping[str, object] = {
    "round_seconds": 5,
    "poll_seconds": 1,
    "restart_cost_seconds": 2.5,
    "grace_seconds": 10,
    "pin_timeout_seconds": 10,
}
_LINE_EVERY_S = 15.0
_SHOW = ("scontrol", "-a", "show", "job", "-d", "-o")


class Interrupted(HadarError):
    """The run is being stopped."""


class NotReached(HadarError):
    """The state in which a scenario judges a job did not come about."""


class Played(NamedTuple):
    """The result of one play for one group of judged jobs."""

    # None: a job did not start within the limit; `note` says why.
    wait_s: float | None
    lost_gpus: int
    idle_gpu_s: float
    note: str


@dataclass
class SitePlay:
    """A play on a cleared cluster; `way` None is plain Slurm without hadard.

    Waits run from the return of sbatch to the first look that shows the job started, so they are
    exact to `POLL_S` and the duration of a look, equally in both twins.
    """

    site: SharedSite
    way: str | None
    name: str
    stop: Event
    say: Callable[[str], None]
    # Where hadard's log and journal of the play are kept.
    logs: Path
    directory: Path = field(init=False)
    jobs: dict[JobId, JobSeen] = field(default_factory=dict)
    judged: dict[str, list[JobId]] = field(default_factory=dict)
    managed_jobs: set[JobId] = field(default_factory=set)
    # Called after each look.
    on_look: list[Callable[[], None]] = field(default_factory=list)
    # Called after the play, the last first.
    at_end: list[Callable[[], None]] = field(default_factory=list)
    submitted_s: dict[JobId, float] = field(default_factory=dict)
    started_s: dict[JobId, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    record: GpuRecord = field(default_factory=lambda: GpuRecord(NUM_GPUS))

    def __post_init__(self) -> None:
        self.directory = self.site.play_directory()
        self.environment = self.site.environment(self.directory)
        # Slurm shows the jobs of earlier plays for some minutes.
        self._earlier = frozenset(parse_jobs(self.site.runner.run(_SHOW)))
        self.ann, self.bob, self.cat, *_ = self.site.users
        self._said_s = self._begun_s = time.monotonic()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run hadard during a block unless the play is plain; afterwards clear the cluster.

        Raises HadarError if hadard has ended by itself.
        """
        try:
            if self.way is None:
                yield
            else:
                with self._daemon({**SETTINGS, "mode": self.way}):
                    yield
        finally:
            for action in reversed(self.at_end):
                action()
            if not self.stop.is_set():
                self.site.clear()

    @contextmanager
    def _daemon(self, config: Mapping[str, object]) -> Iterator[None]:
        daemon = self.site.daemon(self.directory, dict(config))
        try:
            with daemon.running():
                yield
                if daemon.process is not None and daemon.process.poll() is not None:
                    raise HadarError(f"hadard has ended during {self.title}: see {self.logs}")
        finally:
            name = f"{self.name}-{self.way}-{self.directory.name}-of-{self.site.scratch.name}"
            for file in (daemon.log, daemon.journal):
                if file.exists():
                    shutil.copy(file, self.logs / f"{name}{file.suffix}")

    def submit(self, user: SiteUser, *works: UserJob) -> list[JobId]:
        """Submit jobs that are hadard's in a play with hadard, else plain ones."""
        script = self.site.script
        words = [work.words(script, with_hadar=self.way is not None) for work in works]
        if self.way is None:
            jobs = [user.sbatch(each, self.environment) for each in words]
        else:
            jobs, left = user.hadar_sbatch(words, self.environment)
            self.notes += [reason for reason in dict.fromkeys(left) if reason not in self.notes]
        self.managed_jobs |= set(jobs)
        self._note_submission(jobs)
        return jobs

    def submit_plain(self, user: SiteUser, work: UserJob) -> JobId:
        """Submit a job by sbatch in any play."""
        job = user.sbatch(work.words(self.site.script, with_hadar=False), self.environment)
        self._note_submission([job])
        return job

    def submit_command(self, user: SiteUser, command: str, *options: str) -> JobId:
        """Submit a command by sbatch in any play."""
        words = ["--output=/dev/null", f"--wrap={command}", *options]
        job = user.sbatch(words, self.environment)
        self._note_submission([job])
        return job

    def _note_submission(self, jobs: Sequence[JobId]) -> None:
        self.submitted_s |= dict.fromkeys(jobs, time.monotonic())

    def judge(self, group: str, jobs: Sequence[JobId]) -> None:
        """Name jobs whose waits are the result of the play."""
        self.judged[group] = list(jobs)

    def look(self) -> None:
        """Read all jobs once, and take in what has changed."""
        if self.stop.is_set():
            raise Interrupted("interrupted")
        counts_idle = any(job not in self.started_s for job in self._all_judged)
        try:
            seen_jobs = parse_jobs(self.site.runner.run(_SHOW))
        except SlurmUnavailable:
            return
        self.jobs = {job: seen for job, seen in seen_jobs.items() if job not in self._earlier}
        now_s = time.monotonic()
        for job, seen in self.jobs.items():
            if seen.has_started:
                self.started_s.setdefault(job, now_s)
        self.record.update(self.jobs, self.managed_jobs, now_s, counts_idle=counts_idle)
        for action in tuple(self.on_look):
            action()
        if now_s - self._said_s >= _LINE_EVERY_S:
            self._said_s = now_s
            judged = self._all_judged
            done = sum(job in self.started_s for job in judged)
            state = (
                f"{done} of {len(judged)} judged jobs have started"
                if judged
                else f"{len(self.started_s)} jobs have started"
            )
            self.say(f"{self.title}: {now_s - self._begun_s:.0f} s, {state}")

    @property
    def title(self) -> str:
        """Return the name of the scenario and of the way."""
        return f"{self.name}, {self.way or 'plain'}"

    @property
    def _all_judged(self) -> list[JobId]:
        return [job for jobs in self.judged.values() for job in jobs]

    def num_running(self, jobs: Sequence[JobId]) -> int:
        """Return how many of these jobs hold their GPUs now."""
        return sum(job in self.jobs and self.jobs[job].state == "RUNNING" for job in jobs)

    def until(self, condition: Callable[[], bool], limit_s: float, what: str) -> None:
        """Look until a condition holds; raises NotReached with `what` after the limit."""
        deadline_s = time.monotonic() + limit_s
        while True:
            self.look()
            if condition():
                return
            if time.monotonic() > deadline_s:
                raise NotReached(f"not within {limit_s:g} s: {what}")
            self.stop.wait(POLL_S)

    def watch(self, limit_s: float, settle_s: float) -> None:
        """Look until all judged jobs have started, and `settle_s` more; stop at the limit."""
        deadline_s = max(self.submitted_s[job] for job in self._all_judged) + limit_s
        ends_s = None
        while ends_s is None or time.monotonic() < ends_s:
            self.look()
            now_s = time.monotonic()
            if ends_s is None and all(job in self.started_s for job in self._all_judged):
                ends_s = now_s + settle_s
            if now_s > deadline_s:
                return
            self.stop.wait(POLL_S)

    def results(self, limit_s: float) -> dict[str, Played]:
        """Return the mean wait of each group of judged jobs."""
        return {group: self._result(jobs, limit_s) for group, jobs in self.judged.items()}

    def _result(self, jobs: Sequence[JobId], limit_s: float) -> Played:
        lost, idle_gpu_s = len(self.record.lost), self.record.idle_gpu_s
        late = [job for job in jobs if job not in self.started_s]
        notes = list(self.notes)
        if late:
            seen = self.jobs.get(late[0])
            why = f"{seen.state} ({seen.reason})" if seen else "unknown to Slurm"
            many = f"{len(late)} of {len(jobs)} jobs" if len(jobs) > 1 else "the job"
            notes.append(f"{many} did not start within {limit_s:g} s: {why}")
        waits = [max(0.0, self.started_s[job] - self.submitted_s[job]) for job in jobs if not late]
        return Played(fmean(waits) if waits else None, lost, idle_gpu_s, "; ".join(notes))
