"""Sizes of live jobs that give no steps: learned from ended jobs, kept with the profile."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm
from fakes.fake_tools import FakeRunner

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job
from hadar_slurm.core.learned_sizes import LEAST_JOBS, EndedJob
from hadar_slurm.core.lengths.durations import Durations, Trained
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.core.throughput_model import Workload
from hadar_slurm.core.type_failures import Unsized, Work
from hadar_slurm.daemon.rounds import _Rounds
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.settings import BackendSettings
from hadar_slurm.state import learned_file as store
from hadar_slurm.state.learned_changes import add_ended, forget, read_profile
from hadar_slurm.state.throughput_store import Profile

LIMIT_S, SHORT_S = 36_000.0, 600.0
NAME = "job:train.sh"


class Cluster:
    """A model of Slurm with a V100 and a K80 node, and a hadard that may be restarted."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "profile.sqlite"
        self.directory = directory
        self.slurm = FakeSlurm("v100:4,k80:4", spool=directory / "elsewhere")

    def backend(self, *, learns_sizes: bool = True) -> SlurmBackend:
        return SlurmBackend(
            CommandLine(FakeRunner(slurm=self.slurm)),
            ThroughputTable("none", {}),
            BackendSettings(spool=self.directory / "spool", learns_sizes=learns_sizes),
            Ledger(self.directory / FILE_NAME),
            profile=Profile(self.path, lambda: self.slurm.now_s),
            now_s=lambda: self.slurm.now_s,
            sleep=self.slurm.advance,
        )

    def submit(self, *, work_s: float = 1e6, **said: object) -> FakeJob:
        """Submit a job on two GPUs that gives a time limit only."""
        usual: dict[str, object] = {"limit_s": LIMIT_S, "gpus": 2, "workload": NAME}
        described = Description(**{**usual, **said})  # type: ignore[arg-type]
        return self.slurm.submit(
            Asked(per_job=(("", 2),)), comment=encode(described), work_s=work_s, steps=100_000
        )

    def user(self) -> str:
        """Return the user of the jobs."""
        (row, *_) = CommandLine(FakeRunner(slurm=self.slurm)).queue().values()
        return row.user

    def fill(self, number: int, user: str, *, service_s: float = SHORT_S) -> int:
        """Let jobs have ended before."""
        work = Work(Workload(user, NAME), 2)
        return add_ended(
            self.path,
            [EndedJob(JobId(f"9{n:04}"), 1e9 + n, work, service_s) for n in range(number)],
        )


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


def seen(backend: SlurmBackend, job: FakeJob) -> Job:
    """Return a job as policies see it, after a round."""
    backend.apply([])
    return backend.observe().by_id[JobId(str(job.number))]


def seconds(job: Job) -> float:
    """Return the time of the whole job on its fastest type."""
    spec = job.spec
    return spec.total_steps / spec.throughputs.best(spec.throughputs.gpu_types, spec.num_gpus)


def test_a_new_job_has_the_size_that_ended_jobs_say(cluster: Cluster) -> None:
    """And its remark says which; the time limit counts without enough of them, or if so chosen."""
    job = cluster.submit()
    by_limit = seconds(seen(cluster.backend(), job))
    assert by_limit < LIMIT_S
    assert cluster.fill(LEAST_JOBS, cluster.user()) == LEAST_JOBS
    learned = seen(cluster.backend(), job)
    assert seconds(learned) < by_limit / 3
    text = f"its size is learned, from {LEAST_JOBS} ended jobs of {NAME} on 2 GPUs"
    assert text in learned.remarks
    assert seconds(seen(cluster.backend(learns_sizes=False), job)) == by_limit


def test_policies_get_what_is_believed_and_the_limit(cluster: Cluster) -> None:
    """As in the simulator: the distribution of a learned size, and the limit that may end it."""
    job, timed = cluster.submit(), cluster.submit(time_on="k80")
    job.limit_min = timed.limit_min = round(LIMIT_S / 60)
    assert seen(cluster.backend(), job).belief is None
    cluster.fill(LEAST_JOBS, cluster.user())
    backend = cluster.backend()
    learned, by_type = seen(backend, job), seen(backend, timed)
    assert learned.belief
    assert by_type.belief
    assert learned.belief.beyond(2 * SHORT_S) < 0.5 < learned.belief.beyond(SHORT_S / 4)
    assert learned.spec.limit_s == LIMIT_S
    assert by_type.spec.limit_s == math.inf, "hadard sets its limit where it starts"
    assert seen(cluster.backend(learns_sizes=False), job).belief is None


def test_a_running_hadard_takes_over_what_is_learned_beside_it(cluster: Cluster) -> None:
    job, backend = cluster.submit(), cluster.backend()
    before = seconds(seen(backend, job))
    cluster.fill(LEAST_JOBS, cluster.user())
    assert seconds(seen(backend, job)) < before / 3


def test_steps_that_are_given_count(cluster: Cluster) -> None:
    """What the user says of steps is bounded elsewhere (core/claims.py)."""
    job = cluster.submit(steps=12_345)
    cluster.fill(LEAST_JOBS, cluster.user())
    found = seen(cluster.backend(), job)
    assert found.spec.total_steps == 12_345
    assert not any("learned" in remark for remark in found.remarks)


def test_no_size_goes_beyond_the_time_limit(cluster: Cluster) -> None:
    """Not even where all former jobs trained for longer."""
    job = cluster.submit()
    by_limit = seen(cluster.backend(), job).spec.total_steps
    cluster.fill(LEAST_JOBS, cluster.user(), service_s=100 * LIMIT_S)
    assert seen(cluster.backend(), job).spec.total_steps <= by_limit


def test_hadard_learns_from_the_jobs_that_end(cluster: Cluster) -> None:
    """Once each, also after a restart, by the time on the fastest type; the file keeps them."""
    backend = cluster.backend()
    jobs = [cluster.submit(work_s=300.0) for _ in range(2)]
    for _ in range(8):
        backend.observe()
        backend.apply([])
        cluster.slurm.advance(100.0)
    assert all(job.state == "COMPLETED" for job in jobs)
    backend.observe()
    backend.apply([])
    found = read_profile(cluster.path).ended
    assert {job_id for job_id, _ in found.jobs} == {str(job.number) for job in jobs}
    assert {job.work for job in found.jobs.values()} == {Work(Workload(cluster.user(), NAME), 2)}
    for each in found.jobs.values():
        assert 0 < each.service_s <= 700.0
    again = cluster.backend()
    again.observe()
    again.apply([])
    assert read_profile(cluster.path).ended.jobs == found.jobs


def test_ended_jobs_are_forgotten_with_their_workload(cluster: Cluster) -> None:
    cluster.submit()
    cluster.fill(5, "ann")
    assert cluster.fill(5, "ann") == 0
    assert forget(cluster.path, "ann", "job:other") == 0
    assert forget(cluster.path, "ann", NAME) == 5
    assert not read_profile(cluster.path).ended.jobs


def test_the_file_keeps_the_last_jobs_of_a_user(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user with many jobs fills no disk."""
    monkeypatch.setattr(store, "MAX_ENDED_JOBS_OF_USER", 7)
    cluster.fill(30, "ann")
    cluster.fill(3, "ben")
    kept = read_profile(cluster.path).ended
    assert sorted(
        job.ended_s - 1e9 for job in kept.jobs.values() if job.work.workload.user == "ann"
    ) == [*range(23, 30)]
    assert sum(job.work.workload.user == "ben" for job in kept.jobs.values()) == 3


def test_time_limits_of_ended_jobs_are_kept(tmp_path: Path) -> None:
    """A job without one, and one whose limit becomes known later, too."""
    path, work = tmp_path / "profile.sqlite", Work(Workload("ann", NAME), 2)
    without = EndedJob(JobId("1"), 1e9, work, SHORT_S)
    limited = EndedJob(JobId("2"), 1e9, work, SHORT_S)._replace(asked_s=LIMIT_S)
    assert add_ended(path, [without, limited]) == 2
    assert list(read_profile(path).ended.jobs.values()) == [without, limited]
    assert add_ended(path, [without._replace(asked_s=7200.0)]) == 0
    assert [job.asked_s for job in read_profile(path).ended.jobs.values()] == [7200.0, LIMIT_S]


def test_where_time_limits_count_nothing_is_learned_of_the_ended_jobs(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `sizes: limit` no job is replayed, in no round; ended jobs are kept as well."""
    replayed: list[int] = []
    of = Durations.of

    def replay(jobs: Iterable[Trained]) -> Durations:
        replayed.append(1)
        return of(jobs)

    monkeypatch.setattr(Durations, "of", replay)
    job = cluster.submit(work_s=300.0)
    cluster.fill(LEAST_JOBS, cluster.user())
    for learns, expected in ((False, []), (True, [1])):
        backend = cluster.backend(learns_sizes=learns)
        for _ in range(8):
            backend.observe()
            backend.apply([])
            cluster.slurm.advance(3600.0)
        assert replayed == expected
    assert job.state == "COMPLETED"
    assert len(read_profile(cluster.path).ended.jobs) == LEAST_JOBS + 1


def test_a_job_is_judged_by_all_of_its_limit(cluster: Cluster) -> None:
    """As after a restart; its size has only the steps that fit the limit on a slower type."""
    job, backend = cluster.submit(), cluster.backend()
    cluster.fill(LEAST_JOBS, cluster.user(), service_s=100 * LIMIT_S)
    assert seconds(seen(backend, job)) < LIMIT_S
    for _ in range(3):
        seen(backend, job)
        cluster.slurm.advance(60.0)
    assert job.state == "RUNNING"
    assert backend.profile
    going = backend.profile.ended.durations._going[JobId(str(job.number))]
    assert going.belief.limit_s == going.corrected.limit_s == LIMIT_S


@pytest.mark.parametrize("learns", [True, False])
def test_the_journal_has_no_beliefs_where_time_limits_count(cluster: Cluster, learns: bool) -> None:
    """They are those of the ended jobs, once."""
    cluster.fill(LEAST_JOBS, "ann")
    backend, written = cluster.backend(learns_sizes=learns), list[dict[str, Any]]()
    backend.observe()
    rounds: Any = _Rounds(
        config=SimpleNamespace(state_dir=cluster.directory, journal=""),  # type: ignore[arg-type]
        life=SimpleNamespace(take_answers=dict),  # type: ignore[arg-type]
        backends=[backend],
        journal=SimpleNamespace(write=lambda *_, mode, more: written.append(more)),  # type: ignore[arg-type]
        run=lambda: 0,
        places=SimpleNamespace(),  # type: ignore[arg-type]
        hides_jobs=False,
    )
    for _ in range(2):
        rounds._record(SimpleNamespace(errors=(), failed_in="", snapshot=None), backend)
    assert [line.get("beliefs", {}).get("jobs") for line in written] == [
        LEAST_JOBS if learns else None,
        None,
    ]


def test_a_file_that_kept_no_time_limits_still_tells(cluster: Cluster) -> None:
    """Its jobs say how long those train that have a limit: here within a factor of two."""
    with closing(sqlite3.connect(cluster.path)) as connection, connection:
        for version in range(1, 5):
            connection.execute(store._TABLES[version])
        connection.execute("PRAGMA user_version = 4")
        rows = [(str(n), 10**9 + n, f"u{n % 8}", NAME, 2, 6 * 3600.0) for n in range(80)]
        connection.executemany("INSERT INTO ended_jobs VALUES (?,?,?,?,?,?)", rows)
    known = read_profile(cluster.path).ended
    assert len(known.jobs) == 80
    for user in ("u1", "new"):
        job = Unsized(Work(Workload(user, "job:other"), 1), 86_400.0, 86_400.0)
        median_s = known.durations.belief(job, 0.0).rest_s(0.0, 0.5)
        assert 3 * 3600.0 < median_s < 12 * 3600.0


@pytest.mark.parametrize("limit_s", [1e13, -1.0])
def test_a_limit_that_cannot_be_is_none(cluster: Cluster, limit_s: float) -> None:
    """The rest of the row counts."""
    cluster.fill(3, "ann")
    with closing(sqlite3.connect(cluster.path)) as connection, connection:
        connection.execute("UPDATE ended_jobs SET limit_s = ? WHERE job = '90001'", (limit_s,))
    limits_s = [job.asked_s for job in read_profile(cluster.path).ended.jobs.values()]
    assert limits_s == [math.inf] * 3
