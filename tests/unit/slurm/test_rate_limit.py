"""Where slurmctld limits the RPCs of hadard's account, it changes what it can undo in time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from builders import a_gang
from fakes.fake_bucket import Bucket
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm
from fakes.fake_tools import FakeRunner

from hadar_slurm.config import Config
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.daemon.world import modes
from hadar_slurm.engine.modes import Mode, Modes
from hadar_slurm.engine.rate_limit import (
    RELEASED_WITHIN_S,
    at_once,
    changes_in,
    consequences,
    in_command,
    is_slow,
    rpcs_per_s,
)
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.updates import Release
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.enforce.release_all import release_all
from hadar_slurm.slurm.settings import BackendSettings

OPERATOR = 64_031
ROUND_S = 60.0


@pytest.mark.parametrize(
    ("parameters", "uid", "found"),
    [
        ("rl_enable", OPERATOR, 2.0),
        ("enable_configless,rl_enable,rl_bucket_size=90,rl_refill_rate=5", OPERATOR, 5.0),
        ("rl_refill_period=10,RL_ENABLE,rl_refill_rate=5", OPERATOR, 0.5),
        ("rl_enable,rl_refill_rate=x", OPERATOR, 2.0),
        ("rl_enable", 0, math.inf),
        ("rl_enable", 64_030, math.inf),
        ("rl_refill_rate=5", OPERATOR, math.inf),
        ("(null)", OPERATOR, math.inf),
    ],
)
def test_root_and_slurmuser_are_exempt(parameters: str, uid: int, found: float) -> None:
    """Of another account it says what slurmctld adds to the bucket each second."""
    config = {"SlurmUser": "slurm(64030)", "SlurmctldParameters": parameters}
    assert rpcs_per_s(config, uid) == found
    assert rpcs_per_s({}, uid) == math.inf


def test_an_account_without_a_limit_is_bounded_as_before() -> None:
    """It changes all jobs that a round may change, and says nothing."""
    assert changes_in(1.0, math.inf) == math.inf
    assert (at_once(math.inf), in_command(math.inf)) == (25, 1_000_000)
    assert (is_slow(math.inf), consequences(math.inf)) == (False, "")


def test_what_a_limit_costs_is_said_with_the_remedy() -> None:
    """The line at hadard's start, and of `hadar config check`."""
    assert changes_in(RELEASED_WITHIN_S, 2.0) == 41
    said = consequences(2.0)
    assert "at most 41 waiting jobs" in said
    assert "rl_refill_rate" in said


def test_mode_hold_works_as_steer_where_held_jobs_are_not_released_in_time() -> None:
    """Users hold their own jobs, which nothing bounds; other modes stay."""
    config = Config(mode="hold", partitions={"a": "observe", "b": "steer"}, policy="hadar")
    assert modes(config, 2.0).of("b") is modes(config, 2.0).of("c") is Mode.STEER
    assert modes(config, 2.0).of("a") is Mode.OBSERVE
    assert modes(config).of("c") is modes(config, 20.0).of("c") is Mode.HOLD


class Limited:
    """A full cluster, waiting jobs, and hadard as an operator whose bucket is empty."""

    def __init__(
        self, directory: Path, per_s: float, nodes: str = "v100:1,k80:1", **throughputs: float
    ) -> None:
        self.slurm = FakeSlurm(nodes, version=(24, 11, 5))
        self.throughputs = throughputs or {"v100": 10.0, "k80": 1.0}
        self.directory = directory
        runner = FakeRunner(slurm=self.slurm, uid=OPERATOR)
        self.adapter = CommandLine(runner)
        self.bucket = Bucket(self.slurm, per_s)
        for name in nodes.split(","):
            self.slurm.submit(Asked(per_job=((name.partition(":")[0], 1),)), work_s=1e6)
        self.slurm.advance(1.0)
        self.waiting = [self.submit() for _ in range(60)]
        self.soon: Mapping[JobId, Gang] = {}
        runner.before.append(self.bucket)
        self.adapter.site()
        self.backend = SlurmBackend(
            self.adapter,
            ThroughputTable("none", {}),
            BackendSettings(spool=directory, modes=Modes(Mode.STEER), slot_s=ROUND_S),
            self.ledger(),
            Mode.STEER,
            foresee=lambda snapshot: self.soon,
            now_s=lambda: self.slurm.now_s,
            sleep=self.slurm.advance,
        )

    def ledger(self) -> Ledger:
        """Return the ledger as another process reads it."""
        return Ledger(self.directory / FILE_NAME, lambda: self.slurm.now_s)

    def submit(self, gpus: int = 1, hold: str = "") -> FakeJob:
        """Submit a job that hadard manages."""
        described = Description(
            steps=100, gpus=gpus, throughputs=self.throughputs, checkpoint=True, is_held=bool(hold)
        )
        asked = Asked(per_job=(("", gpus),))
        return self.slurm.submit(asked, comment=encode(described), work_s=1e6, hold=hold)

    @property
    def steered(self) -> list[FakeJob]:
        """Return the jobs that differ from what their owners asked for."""
        return [job for job in self.waiting if job.excluded or job.nice]

    def a_round(self) -> float:
        """Observe and change; return the seconds that the changes took."""
        self.backend.observe()
        begun_s = self.slurm.now_s
        self.backend.apply([])
        return self.slurm.now_s - begun_s

    def release(self) -> float:
        """Run `hadar release`; return its seconds."""
        faults, seconds = self.try_release(60.0)
        assert not any(faults.values())
        return seconds

    def try_release(self, limit_s: float) -> tuple[dict[str, str], float]:
        """Run `hadar release` with an empty bucket; return the faults by job, and its seconds."""
        begun_s, now_s = self.slurm.now_s, lambda: self.slurm.now_s
        self.bucket.left = 0.0
        self.adapter.site()
        answers = release_all(
            self.adapter, self.ledger(), limit_s=limit_s, now_s=now_s, sleep=self.slurm.advance
        )
        return {answer.job: answer.fault for answer in answers}, self.slurm.now_s - begun_s


@pytest.mark.parametrize("per_s", [1.0, 2.0])
def test_what_is_steered_is_given_back_in_time(tmp_path: Path, per_s: float) -> None:
    """The changes fit into a round and `hadar release` into its time, with an empty bucket."""
    limited = Limited(tmp_path, per_s)
    assert limited.a_round() <= ROUND_S
    most = changes_in(RELEASED_WITHIN_S, per_s)
    assert len(limited.steered) == most
    limited.a_round()
    assert len(limited.steered) == most
    assert limited.release() <= RELEASED_WITHIN_S
    assert not limited.steered


def test_the_next_starts_are_steered_and_others_get_back_what_they_lent(tmp_path: Path) -> None:
    """Also those that are foreseen only once as many are steered as may be."""
    limited = Limited(tmp_path, 1.0)
    limited.a_round()
    first = limited.steered
    last = limited.waiting[-3:]
    limited.soon = {JobId(job.key): a_gang("n2:k80:1") for job in last}
    assert limited.a_round() <= ROUND_S
    assert [job.excluded for job in last] == [("n1",)] * 3
    assert len(limited.steered) == len(first)
    assert sum(job not in limited.steered for job in first) == 3
    assert limited.release() <= RELEASED_WITHIN_S


def test_a_job_is_never_left_to_types_on_which_it_does_not_run(tmp_path: Path) -> None:
    """It makes no room for others, though these are nearer to their start."""
    limited = Limited(tmp_path, 1.0, "v100:1,k80:1,p100:1", v100=10.0, k80=1.0)
    limited.a_round()
    first, last = limited.steered, limited.waiting[-3:]
    limited.soon = {JobId(job.key): a_gang("n2:k80:1") for job in last}
    limited.a_round()
    assert limited.steered == first
    assert all("n3" in job.excluded for job in first)
    assert limited.release() <= RELEASED_WITHIN_S


def test_gangs_whose_number_of_nodes_is_set_count_twice(tmp_path: Path) -> None:
    """Each change of that number is three RPCs."""
    limited = Limited(tmp_path, 2.0, "v100:1,v100:1,k80:1")
    limited.waiting = [limited.submit(gpus=2) for _ in range(30)]
    limited.soon = {JobId(job.key): a_gang("n1:v100:1 n2:v100:1") for job in limited.waiting}
    assert limited.a_round() <= ROUND_S
    number = sum(job.asked.max_nodes == 2 for job in limited.waiting)
    assert number == changes_in(RELEASED_WITHIN_S, 2.0) // 2
    assert limited.release() <= RELEASED_WITHIN_S
    assert not limited.steered


def test_held_jobs_go_to_slurm_a_part_in_each_round(tmp_path: Path) -> None:
    """Those of a hadard that held them before there was a limit."""
    limited = Limited(tmp_path, 2.0)
    held = [limited.submit(hold="user") for _ in range(40)]
    left = []
    for _ in range(4):
        assert limited.a_round() <= 2 * ROUND_S
        left.append(sum(bool(job.hold) for job in held))
    assert left == [25, 10, 0, 0]
    assert limited.release() <= RELEASED_WITHIN_S


def test_a_release_with_less_time_gives_back_what_starts_next_and_names_the_rest(
    tmp_path: Path,
) -> None:
    """hadard has 20 s as it ends; what hadar-sbatch has excluded is last."""
    limited = Limited(tmp_path, 1.0)
    limited.a_round()
    first = limited.steered
    faults, seconds = limited.try_release(25.0)
    assert seconds < 40
    assert 0 < len(limited.steered) < len(first)
    assert [job.key for job in limited.steered] == [job for job, fault in faults.items() if fault]
    assert first[0] not in limited.steered


def test_one_command_makes_no_more_changes_than_are_answered_in_time(tmp_path: Path) -> None:
    """After one without an answer none is tried: each would wait as long."""
    limited = Limited(tmp_path, 2.0)
    jobs = [Release(JobId(job.key)) for job in limited.waiting]
    limited.adapter.runner.before.append(
        lambda argv: "Unable to contact slurm controller" if argv[-1] == jobs[3].job else None
    )
    faults = limited.adapter.change(jobs)
    assert [fault is None for fault in faults[:5]] == [True, True, True, False, True]
    assert {str(fault) for fault in faults[in_command(2.0) :]} == {
        "not tried: slurmctld did not answer to the change before"
    }
