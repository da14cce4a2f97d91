"""hadard counts as alive while its rounds succeed, not while its process runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Timer

import pytest
from builders import a_gang, a_job, a_plan, a_snapshot
from fakes.fake_slurm import Asked, FakeSlurm, parse_gpus
from fakes.fake_tools import FakeRunner

from hadar_slurm.cli.release import reason_to_keep
from hadar_slurm.config import load_config
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.plan import Plan, WaitReason
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.daemon.rounds import run_with
from hadar_slurm.daemon.signals import Requests
from hadar_slurm.daemon.signs_of_life import Places, SignsOfLife
from hadar_slurm.daemon.world import Life, Remembering, World
from hadar_slurm.engine import breaker_search
from hadar_slurm.engine.actions import Outcome, Start, Status
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.engine.modes import Modes, Partitions
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.journal.reader import read_journal
from hadar_slurm.policies.policy import Policy
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.protocol import Site
from hadar_slurm.state.heartbeat import MOST_FAILED, Heartbeat, LastRounds
from hadar_slurm.state.heartbeat_reader import read_heartbeat
from hadar_slurm.state.lease import Lease
from hadar_slurm.state.problems import Problems

TWO = Asked(per_job=parse_gpus("gpu:2"))
DESCRIBED = encode(Description(steps=5, gpus=2, throughputs={"v100": 1.0}, is_held=True))


def all_wait(snapshot: Snapshot) -> Plan:
    return a_plan({}, {job.job_id: WaitReason.INSUFFICIENT for job in snapshot.jobs})


def key_error(snapshot: Snapshot) -> Plan:
    raise KeyError("gtx1080")


def invalid(snapshot: Snapshot) -> Plan:
    return a_plan({"999": "n77:v100:2"})


@dataclass
class Scripted:
    """A policy that plans as `ways` say, round by round, and then has hadard end."""

    ways: list[Callable[[Snapshot], Plan]]
    requests: Requests
    seen: Callable[[], None] = lambda: None
    name: str = "scripted"
    last: int = -1

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return or raise what the script says; before that, look at the heartbeat."""
        if round_.index > self.last:
            self.last = round_.index
            self.seen()
        if round_.index >= len(self.ways):
            self.requests.to_end = True
            return all_wait(snapshot)
        return self.ways[round_.index](snapshot)


@dataclass
class Bench:
    """A hadard in this process, on a fake Slurm."""

    place: Path
    fake: FakeSlurm = field(default_factory=lambda: FakeSlurm("v100:4"))
    runner: FakeRunner = field(init=False)
    beats: list[Heartbeat] = field(default_factory=list)
    more: str = ""

    def __post_init__(self) -> None:
        self.runner = FakeRunner(slurm=self.fake)

    def run(self, *ways: Callable[[Snapshot], Plan], life: Life | None = None) -> list[Heartbeat]:
        """Run a round by each of `ways`, and one more; return the heartbeats as each began."""
        path = self.place / "hadar.yaml"
        path.write_text(
            f"run_dir: {self.place}\nspool_dir: {self.place}/spool\nstate_dir: {self.place}\n"
            f"journal: {self.place}/j.jsonl\nround_seconds: 0.1\npoll_seconds: 0.05\n{self.more}"
        )
        requests, config = Requests(), load_config(path)

        def make(_: object) -> Policy:
            return Scripted(list(ways), requests, self.look)

        slurm = CommandLine(self.runner)
        world = World(make_policy=make, life=life or Life())
        lease = Lease(config.spool_dir, "fake", 30.0, token="of this test")
        site = Site("fake", str(self.place))
        timer = Timer(60.0, lambda: setattr(requests, "to_end", True))
        timer.start()
        try:
            run_with(config, slurm, world, lease, site, requests, once=False)
        finally:
            timer.cancel()
        return self.beats

    def look(self) -> None:
        """Note the heartbeat."""
        beat = read_heartbeat(self.place)
        assert beat is not None
        self.beats.append(beat)

    def kept(self) -> str:
        """Return why the reaper keeps the jobs now."""
        return reason_to_keep(
            self.place, self.place, Lease(self.place, "fake", 30.0), only_expired=True
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("way", [key_error, invalid])
def test_rounds_that_always_fail_are_no_sign_of_life(
    bench: Bench, way: Callable[[Snapshot], Plan]
) -> None:
    """The heartbeat is fresh up to the third failure in a row, and again after a success."""
    bench.fake.submit(TWO, hold="user", comment=DESCRIBED)
    beats = bench.run(all_wait, *[way] * 5, all_wait)
    now_s = time.time()
    assert [beat.is_fresh(now_s) for beat in beats] == [True] * 4 + [False] * 3 + [True]
    assert all(beat.is_signed(now_s) for beat in beats)
    assert [beat.rounds.failed for beat in beats] == [0, 0, 1, 2, 3, 4, 5, 0]
    failing = beats[6].rounds
    assert failing.part == "plan"
    assert ("KeyError: 'gtx1080'" if way is key_error else "invalid plan") in failing.fault
    assert failing.succeeded_s == beats[2].rounds.succeeded_s
    assert failing.since_s == beats[2].rounds.since_s
    assert now_s - 30 < (failing.succeeded_s or 0) <= (failing.since_s or 0) <= now_s


@pytest.mark.parametrize(("side", "failed"), [("observe", 0), ("advise", 0), ("steer", 4)])
def test_only_modes_that_place_jobs_end_the_heartbeat(
    tmp_path: Path, side: str, failed: int
) -> None:
    """A mode that holds nothing may fail, unless there is no other."""
    bench = Bench(tmp_path, FakeSlurm("v100:4", partitions={"side": ["n1"]}))
    job = bench.fake.submit(TWO, comment=DESCRIBED, partition="side")

    def fragile(snapshot: Snapshot) -> Plan:
        return key_error(snapshot) if job.key in snapshot.by_id else all_wait(snapshot)

    bench.more = f"mode: hold\npartitions:\n  side: {side}\n"
    beats = bench.run(*[fragile] * 5)
    assert beats[4].rounds.failed == failed
    assert beats[4].is_fresh(time.time()) == (failed < MOST_FAILED)


def test_a_hadard_that_only_observes_says_that_it_fails(bench: Bench) -> None:
    """The failures of its one mode count."""
    bench.more = "mode: observe\n"
    beats = bench.run(*[key_error] * 4)
    assert [beat.rounds.failed for beat in beats] == [0, 1, 2, 3, 4]


def test_the_reaper_and_submissions_go_by_it(bench: Bench) -> None:
    """After the third failure jobs go to plain Slurm, though hadard's process signs its life."""
    life = Life()
    signs = _signs(bench, life)
    signs.sign()
    assert bench.kept() == "hadard was alive a moment ago"
    for failed in range(1, MOST_FAILED + 1):
        life.rounds = life.rounds.after(time.time(), "plan", "KeyError")
        signs.sign()
        beat = read_heartbeat(bench.place)
        assert beat is not None
        assert beat.is_fresh(time.time()) == (failed < MOST_FAILED)
        assert (bench.kept() == "") == (failed == MOST_FAILED)


def test_failures_outlast_a_reload(bench: Bench) -> None:
    """SIGHUP makes no failing hadard look alive."""
    life = Life()
    bench.run(key_error, key_error, key_error, life=life)
    life.rounds = LastRounds(failed=3, since_s=1.0, part="plan", fault="x")
    assert not bench.run(key_error, life=life)[-1].is_fresh(time.time())


def test_a_job_that_breaks_the_plan_is_left_out_and_named(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The others are planned, hadard is alive, and the log names the job once."""
    good, bad = (bench.fake.submit(TWO, hold="user", comment=DESCRIBED) for _ in range(2))

    def fragile(snapshot: Snapshot) -> Plan:
        if bad.key in snapshot.by_id:
            raise KeyError("gtx1080")
        return all_wait(snapshot)

    beats = bench.run(*[fragile] * 5)
    assert all(beat.is_fresh(time.time()) for beat in beats)
    assert beats[-1].rounds.failed == 0
    lines = list(read_journal(bench.place / "j.jsonl"))[1:5]
    assert [line["left_out"] for line in lines] == [{bad.key: "KeyError: 'gtx1080'"}] * 4
    for line in lines:
        assert line["errors"] == []
        assert line["waiting"][good.key] == str(WaitReason.INSUFFICIENT)
        assert line["waiting"][bad.key] == str(WaitReason.BREAKS_PLAN)
    assert caplog.text.count(f"job {bad.key} is left out of the plan: KeyError: 'gtx1080'") == 1


def test_a_job_that_breaks_every_plan_does_not_wait_under_a_hold(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hold is given back after three plans, said once in the log and the journal."""
    monkeypatch.setattr(breaker_search, "ROUNDS", 1)
    bench.more = "mode: hold\n"
    good, bad = (bench.fake.submit(TWO, hold="user", comment=DESCRIBED) for _ in range(2))

    def fragile(snapshot: Snapshot) -> Plan:
        if bad.key in snapshot.by_id:
            raise KeyError("gtx1080")
        return all_wait(snapshot)

    bench.run(*[fragile] * 8)
    assert (good.hold, bad.hold) == ("user", "")
    found = (line.get("left_out") for line in read_journal(bench.place / "j.jsonl"))
    broken = list(filter(None, found))
    fault = "KeyError: 'gtx1080'"
    end = f"{fault}; left to Slurm after {breaker_search.MOST_BROKEN} such plans"
    assert broken == [{bad.key: fault}, {bad.key: fault}, {bad.key: end}]
    assert caplog.text.count(f"job {bad.key} is left to Slurm: no valid plan was made with it") == 1


def test_a_slurm_that_does_not_answer_is_a_failure_too(bench: Bench) -> None:
    """Reading fails three times: the heartbeat lapses; the first answer makes it fresh again."""
    bench.fake.is_away = True
    seen: list[tuple[int, bool]] = []

    def look(argv: Sequence[str]) -> None:
        beat = read_heartbeat(bench.place)
        if beat is not None and argv[0] == "squeue":
            seen.append((beat.rounds.failed, beat.is_fresh(time.time())))
            bench.fake.is_away = beat.rounds.failed < 4

    bench.runner.before.append(look)
    (beat,) = bench.run()
    assert dict(seen) == {0: True, 1: True, 2: True, 3: False, 4: False}
    assert beat.rounds.part == "observe"
    assert "Unable to contact slurm controller" in beat.rounds.fault


def test_changes_that_are_all_refused_are_a_failure(bench: Bench) -> None:
    """An account that has lost its rights helps no job; one job's refusal is that job's.

    What was not tried says nothing on the rest.
    """
    start = [Start(JobId(str(n)), 0, a_gang("n1:v100:1")) for n in range(3)]
    none = [Outcome(each, Status.REFUSED, "Access/permission denied") for each in start]
    record = RoundRecord(Round(0, 0.0, 1.0), "start", "p", a_snapshot("1xV100"), Plan())
    assert replace(record, outcomes=none).failed_in == "apply"
    assert "Access/permission denied" in replace(record, outcomes=none).fault
    later = [
        Outcome(each, status) for each in start for status in (Status.DEFERRED, Status.SKIPPED)
    ]
    assert replace(record, outcomes=[*later, *none]).failed_in == "apply"
    for fine in ([], none[:2], [*none, Outcome(start[1], Status.DONE)], later, [*later, *none[:2]]):
        assert replace(record, outcomes=fine).failed_in == ""


@pytest.mark.parametrize(
    ("more", "longest_s"),
    [
        ("", 1340.0),
        ("round_seconds: 60\ngrace_seconds: 600\n", 980.0),
        ("round_seconds: 60\ncommand_timeout_seconds: 300\n", 1540.0),
    ],
)
def test_a_round_that_does_not_end_is_no_sign_of_life(
    bench: Bench, more: str, longest_s: float
) -> None:
    """Signing between commands does not help when no round has ended for longer than any takes.

    A round may stop jobs that have their grace to save, by commands that are slow.
    """
    now_s, bench.more = [0.0], more
    life = Life(rounds=LastRounds(time.time()))
    signs = _signs(bench, life, lambda: now_s[0])
    signs.sign()
    for later_s, fresh in ((longest_s, True), (longest_s + 10.0, False)):
        now_s[0], signs._last = later_s, (0.0, None, {}, LastRounds())
        signs.sign()
        beat = read_heartbeat(bench.place)
        assert beat is not None
        assert (beat.is_fresh(time.time()), beat.is_signed(time.time())) == (fresh, True)


@pytest.mark.parametrize(
    ("owners", "failed"), [("aaab", ""), ("abab", "apply"), ("aaaa", "apply"), ("aba", "apply")]
)
def test_one_user_among_others_ends_no_heartbeat(owners: str, failed: str) -> None:
    """Slurm may refuse all changes of a user's jobs for what they are; the others' jobs wait on."""
    jobs = [
        replace(job, spec=replace(job.spec, user=user))
        for job, user in ((a_job(str(n)), user) for n, user in enumerate(owners))
    ]
    starts = [Start(JobId(str(n)), 0, a_gang("n1:V100:1")) for n in range(3)]
    refused = [Outcome(start, Status.REFUSED, "Requested node configuration") for start in starts]
    snapshot = a_snapshot("1xV100", *jobs)
    record = RoundRecord(Round(0, 0.0, 1.0), "start", "p", snapshot, Plan(), refused)
    assert record.failed_in == failed


def test_hadard_signs_before_each_plan_of_a_round() -> None:
    """The search for jobs that break the plan may take several plans, all of them slow."""
    signed: list[int] = []
    policy = Scripted([key_error, all_wait], Requests())
    remembering = Remembering(policy, policy, life=Life(sign=lambda: signed.append(1)))
    snapshot = a_snapshot("1xV100")
    with pytest.raises(KeyError):
        remembering.plan(snapshot, Round(0, 0.0, 1.0))
    remembering.plan(snapshot, Round(1, 0.0, 1.0))
    assert len(signed) == 2


def _signs(bench: Bench, life: Life, clock: Callable[[], float] = time.monotonic) -> SignsOfLife:
    path = bench.place / "other.yaml"
    path.write_text(f"run_dir: {bench.place}\nspool_dir: {bench.place}\n{bench.more}")
    lease = Lease(bench.place, "fake", 30.0)
    return SignsOfLife(
        config=load_config(path),
        cluster="fake",
        lease=lease,
        problems=Problems(),
        places=Places(Modes(), lambda: Partitions(()), placed=None),
        is_off=lambda: False,
        rounds=lambda: life.rounds,
        clock=clock,
    )
