"""Which limits are learned from Slurm's reasons, and which jobs are planned within them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm
from fakes.fake_tools import FakeRunner

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.plan import WaitReason
from hadar_slurm.core.snapshot import Round
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.backend import Wake
from hadar_slurm.engine.loop import RoundRecord, run_round
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.policies.registry import DEFAULT_POLICY, make_policy
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.parse import QueueRow, array_throttles, parse_queue
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.jobs.throttles import (
    Kind,
    ThrottleCandidate,
    Throttles,
    kind_of,
    scope_of,
)
from hadar_slurm.slurm.settings import BackendSettings

RETRY_S = 300.0
MARK = "#m"


def a_row(
    key: str, state: str = "PENDING", reason: str = "None", *, user: str = "alice", **given: str
) -> QueueRow:
    """Return a row of squeue; the defaults are QOS `normal` and account `physics`."""
    told = {"qos": "normal", "account": "physics", "licenses": "(null)"} | given
    text = (
        f"{key}|{key.partition('_')[0]}|{state}|{reason}|0|{user}|main|7|(null)|n1|n1|1|N/A|"
        f"gres:gpu:1|N/A|N/A|0|1|1|1|(null)|N/A|1|0|{told['qos']}|1|1|{told['account']}{MARK}"
        f"{told['licenses']}{MARK}(null){MARK}(null){MARK}\n"
    )
    (row,) = parse_queue(text, MARK)
    return row


class Watch:
    """Throttles with a clock, for rows given by a test."""

    def __init__(self) -> None:
        self.throttles = Throttles(RETRY_S)
        self.now_s = 1000.0

    def look(
        self,
        running: Mapping[QueueRow, int] | Iterable[QueueRow] = (),
        denied: Mapping[QueueRow, int] | Iterable[QueueRow] = (),
        **arrays: int,
    ) -> None:
        """Observe one second later; each row has one GPU unless given otherwise."""
        held = {row.key: gpus for row, gpus in _counted(running).items()}
        wanted = [ThrottleCandidate(row, gpus) for row, gpus in _counted(denied).items()]
        self.now_s += 1.0
        numbers = {name.removeprefix("a"): most for name, most in arrays.items()}
        self.throttles.observe(list(running), held, wanted, numbers, self.now_s)

    def let_in(
        self, queued: Sequence[QueueRow] | Mapping[QueueRow, int], starting: Sequence[QueueRow] = ()
    ) -> list[JobId]:
        """Return the jobs that may be planned."""
        wanted = [ThrottleCandidate(row, gpus) for row, gpus in _counted(queued).items()]
        pinned = [ThrottleCandidate(row, 1) for row in starting]
        out = self.throttles.left_out(wanted, pinned, self.now_s)
        return [each.row.key for each in wanted if each.row.key not in out]


def _counted(rows: Mapping[QueueRow, int] | Iterable[QueueRow]) -> dict[QueueRow, int]:
    return dict(rows) if isinstance(rows, Mapping) else dict.fromkeys(rows, 1)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("JobArrayTaskLimit", Kind.ARRAY),
        ("QOSMaxGRESPerUser", Kind.USER_IN_QOS),
        ("QOSMaxJobsPerUserLimit", Kind.USER_IN_QOS),
        ("MaxGRESPerAccount", Kind.ACCOUNT_IN_QOS),
        ("MaxJobsPerAccount", Kind.ACCOUNT_IN_QOS),
        ("QOSGrpGRES", Kind.QOS),
        ("QOSGrpGRESMinutes", Kind.QOS),
        ("QOSMaxCpuPerJobLimit", Kind.JOB),
        ("QOSMaxWallDurationPerJobLimit", Kind.JOB),
        ("QOSMinGRES", Kind.JOB),
        ("QOSNotAllowed", Kind.JOB),
        ("AssocGrpGRES", Kind.USER_IN_ACCOUNT),
        ("AssocMaxJobsLimit", Kind.USER_IN_ACCOUNT),
        ("AssocGrpGRESMinutes", Kind.USER_IN_ACCOUNT),
        ("AssocMaxGRESPerJob", Kind.JOB),
        ("AssocMaxCpuMinutesPerJobLimit", Kind.JOB),
        ("QOSUsageThreshold", Kind.QOS),
        ("InvalidQOS", Kind.JOB),
        ("Licenses", Kind.LICENSES),
        ("PartitionTimeLimit", Kind.JOB),
        ("PartitionNodeLimit", Kind.JOB),
        ("PartitionDown", Kind.PARTITION),
        *(
            (reason, None)
            for reason in ("None", "Resources", "Priority", "Dependency", "BeginTime")
        ),
        *((reason, None) for reason in ("ReqNodeNotAvail", "JobHeldUser", "BadConstraints")),
    ],
)
def test_what_a_limit_is_for_is_in_the_reason(reason: str, kind: Kind | None) -> None:
    assert kind_of(reason) is kind


def test_a_limit_is_for_the_jobs_that_share_it() -> None:
    """It does not apply to another user, QOS, account, array or license."""
    row = a_row("7_1", licenses="lic:1")
    others = {
        Kind.ARRAY: a_row("8_1"),
        Kind.USER_IN_QOS: a_row("9", qos="high"),
        Kind.ACCOUNT_IN_QOS: a_row("9", account="biology"),
        Kind.QOS: a_row("9", qos="high"),
        Kind.USER_IN_ACCOUNT: a_row("9", user="bob"),
        Kind.LICENSES: a_row("9", licenses="other:1"),
        Kind.JOB: a_row("7_2"),
    }
    for kind, other in others.items():
        assert scope_of(row, kind) != scope_of(other, kind)
        assert scope_of(row, kind) is not None
    assert scope_of(a_row("9"), Kind.ARRAY) is None
    assert scope_of(a_row("9"), Kind.LICENSES) is None


def test_a_user_at_the_limit_of_gpus_is_left_out_and_others_are_not() -> None:
    """When one of the user's jobs ends, one job of that user is planned."""
    watch = Watch()
    running = [a_row("1", "RUNNING"), a_row("2", "RUNNING")]
    denied = [a_row(str(n), reason="QOSMaxGRESPerUser") for n in range(3, 17)]
    watch.look(running, denied)
    bob = a_row("20", user="bob")
    waiting = [a_row(str(n)) for n in range(3, 17)]
    assert watch.let_in([*waiting, bob]) == ["20"]
    watch.look(running[:1])
    assert watch.let_in([*waiting, bob]) == ["3", "20"]
    watch.look(running[:1])
    assert watch.let_in([*waiting[1:], bob], starting=[a_row("3")]) == ["20"]


def test_a_job_that_is_denied_tells_how_much_is_too_much() -> None:
    """More GPUs than in use, but fewer than denied, may be within the limit, and are tried."""
    watch = Watch()
    running = {a_row("1", "RUNNING"): 2}
    watch.look(running, {a_row("2", reason="QOSMaxGRESPerUser"): 4})
    assert watch.let_in({a_row("2"): 4, a_row("3"): 3}) == ["3"]
    watch.look(running, {a_row("3", reason="QOSMaxGRESPerUser"): 3})
    assert watch.let_in({a_row("3"): 3, a_row("4"): 2, a_row("5"): 1}) == ["4"]


def test_limits_of_jobs_count_jobs() -> None:
    """The number of their GPUs does not matter."""
    watch = Watch()
    running = {a_row("1", "RUNNING"): 8, a_row("2", "RUNNING"): 8}
    watch.look(running, [a_row("3", reason="QOSMaxJobsPerUserLimit")])
    assert watch.let_in([a_row("3")]) == []
    watch.look(dict([running.popitem()]))
    assert watch.let_in([a_row("3"), a_row("4")]) == ["3"]


def test_a_reason_of_before_a_job_ended_teaches_what_ran_then() -> None:
    """Slurm updates reasons less often than jobs end."""
    watch = Watch()
    running = [a_row("1", "RUNNING"), a_row("2", "RUNNING")]
    watch.look(running)
    watch.look(running[:1], [a_row("3", reason="QOSMaxGRESPerUser")])
    assert watch.let_in([a_row("3"), a_row("4")]) == ["3"]


def test_when_nothing_of_it_runs_one_job_is_tried() -> None:
    """If that job is denied too, the next is tried later: the limit may be 0."""
    watch = Watch()
    watch.look([a_row("1", "RUNNING")], [a_row("2", reason="AssocGrpGRES")])
    waiting = [a_row("2"), a_row("3")]
    assert watch.let_in(waiting) == []
    watch.look()
    assert watch.let_in(waiting) == ["2"]
    watch.look(denied=[a_row("2", reason="AssocGrpGRES")])
    assert watch.let_in(waiting) == []
    watch.look()
    assert watch.let_in(waiting) == []


def test_a_limit_is_tried_again_after_a_while_and_forgotten_when_it_was_raised() -> None:
    """One more job is tried; if it starts, the limit is forgotten."""
    watch = Watch()
    running = [a_row("1", "RUNNING")]
    watch.look(running, [a_row("2", reason="QOSGrpGRES")])
    waiting = [a_row(str(n)) for n in range(2, 6)]
    assert watch.throttles.next_retry_s(watch.now_s) == watch.now_s + RETRY_S
    watch.now_s += RETRY_S
    watch.look(running)
    assert watch.let_in(waiting) == ["2"]
    assert watch.let_in(waiting[1:], starting=waiting[:1]) == []
    assert watch.throttles.next_retry_s(watch.now_s) == float("inf")
    watch.look([*running, a_row("2", "RUNNING")])
    assert watch.let_in(waiting[1:]) == ["3", "4", "5"]


def test_a_job_that_its_partition_refuses_is_alone_left_out() -> None:
    """Other jobs are planned, and the refused job is tried again later."""
    watch = Watch()
    watch.look(denied=[a_row("2", reason="PartitionTimeLimit")])
    assert watch.let_in([a_row("2"), a_row("3")]) == ["3"]
    watch.now_s += RETRY_S
    assert watch.let_in([a_row("2"), a_row("3")]) == ["2", "3"]


def test_a_partition_that_is_down_starts_nothing_though_jobs_run_there() -> None:
    """One job is tried after a while."""
    watch = Watch()
    running = [a_row("1", "RUNNING")]
    waiting = [a_row("2"), a_row("3")]
    watch.look(running, [a_row("2", reason="PartitionDown")])
    watch.look(running)
    assert watch.let_in(waiting) == []
    watch.now_s += RETRY_S
    assert watch.let_in(waiting) == ["2"]


def test_limits_of_jobs_that_are_gone_are_forgotten() -> None:
    """Memory use stays bounded."""
    watch = Watch()
    watch.look(denied=[a_row("2", reason="PartitionTimeLimit")])
    watch.throttles.keep([a_row("3")])
    assert watch.throttles.next_retry_s(watch.now_s) == float("inf")


def test_the_throttle_of_an_array_is_read_and_never_tried() -> None:
    """A job name that imitates the throttle is ignored."""
    line = "JobId=3 ArrayJobId=3 ArrayTaskId=3-6%2 ArrayTaskThrottle=2 JobName=wrap UserId=root(0)"
    forged = "JobId=9 JobName=x\nJobId=1 ArrayJobId=3 ArrayTaskId=1 ArrayTaskThrottle=99 UserId=0"
    assert array_throttles([line, forged]) == {"3": 2}
    watch = Watch()
    tasks = [a_row(f"3_{n}") for n in range(1, 9)]
    watch.look(a3=2)
    assert watch.let_in(tasks) == ["3_1", "3_2"]
    watch.look([a_row("3_1", "RUNNING"), a_row("3_2", "RUNNING")], a3=2)
    watch.now_s += RETRY_S
    assert watch.let_in(tasks[2:]) == []
    watch.look([a_row("3_2", "RUNNING")], a3=2)
    assert watch.let_in(tasks[2:]) == ["3_3"]


class Bench:
    """A model of Slurm with a limit of two GPUs for each user, and hadard's backend."""

    def __init__(self, directory: Path) -> None:
        self.slurm = FakeSlurm("v100:4,v100:4", spool=directory / "spool")
        self.slurm.gpus_per_user = 2
        self.backend = SlurmBackend(
            CommandLine(FakeRunner(slurm=self.slurm)),
            ThroughputTable("none", {}),
            BackendSettings(spool=directory / "spool", poll_s=1.0),
            Ledger(directory / FILE_NAME, lambda: self.slurm.now_s),
            now_s=lambda: self.slurm.now_s,
            sleep=self.slurm.advance,
        )
        self.policy = make_policy(DEFAULT_POLICY)

    def submit(self, user: str, number: int) -> list[FakeJob]:
        """Submit jobs of one GPU that hadard manages."""
        described = Description(steps=100, gpus=1, throughputs={"v100": 1.0}, is_held=True)
        return [
            self.slurm.submit(
                Asked(per_job=(("", 1),)),
                user=user,
                comment=encode(described),
                hold="user",
                work_s=1000.0,
                steps=100,
            )
            for _ in range(number)
        ]

    def round(self) -> RoundRecord:
        """Run a round, and return its record."""
        round_ = Round(0, self.slurm.now_s, 360.0)
        line = run_round(self.backend, self.policy, round_, wake="test", clock=lambda: 0.0)
        assert not line.errors
        return line


def test_jobs_that_a_limit_denies_give_their_gpus_to_others_at_once(tmp_path: Path) -> None:
    """Neither the round nor the timeout of the pin has to end first."""
    bench = Bench(tmp_path)
    alices = bench.submit("alice", 8)
    bench.round()
    begun_s = bench.slurm.now_s
    assert bench.backend.wait(begun_s + 300.0) is Wake.CHANGE
    assert bench.slurm.now_s - begun_s < 5.0
    bobs = bench.submit("bob", 2)
    for _ in range(2):
        line = bench.round()
        bench.slurm.advance(1.0)
    assert [job.state for job in bobs] == ["RUNNING"] * 2
    assert [job.state for job in alices].count("RUNNING") == 2
    waiting = [job for job in alices if job.state == "PENDING"]
    assert all(job.hold == "user" for job in waiting)
    assert line.plan is not None
    assert line.snapshot is not None
    why = dict(line.plan.waiting)
    for job in waiting:
        assert why[JobId(job.key)] is WaitReason.LIMITED
        (remark,) = line.snapshot.by_id[JobId(job.key)].remarks
        assert remark == (
            "left out until a job ends: its user in its QOS has 2 GPUs, and Slurm starts no more "
            "(QOSMaxGRESPerUser)"
        )
    bench.slurm.end(next(job for job in alices if job.state == "RUNNING"), "COMPLETED")
    bench.slurm.advance(2.0)
    line = bench.round()
    assert line.plan is not None
    started = [job for job in waiting if JobId(job.key) in line.plan.by_id]
    assert len(started) == 1
    bench.slurm.advance(1.0)
    assert started[0].state == "RUNNING"
