"""`hadar release` restores only the jobs that hadard changed, and only if hadard is not at work."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm, parse_gpus
from fakes.fake_tools import FakeRunner

from hadar_slurm.cli.release import reason_to_keep
from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.engine.loan import Loan
from hadar_slurm.errors import SlurmError, SlurmUnavailable
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.protocol import Site
from hadar_slurm.slurm.client.updates import Hold, Update
from hadar_slurm.slurm.enforce.claim import Claim, State
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.enforce.release_all import release_all
from hadar_slurm.slurm.enforce.restore import Returned
from hadar_slurm.state.heartbeat import Heartbeat, write_heartbeat
from hadar_slurm.state.lease import Holder, Lease
from hadar_slurm.state.locks import DAEMON, only_daemon

NOW_S = 1000.0
HOLDING = Claim(state=State.HOLDING)
TWO = Asked(per_job=parse_gpus("gpu:2"))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a cluster whose lock no other test has."""
    return Site(f"releasing-{os.getpid()}", str(tmp_path))


def kept(place: Path, *, only_expired: bool, now_s: float = NOW_S) -> str:
    """Return why jobs are not released; `place` serves as every directory."""
    lease = Lease(place, "c", 30.0)
    return reason_to_keep(place, place, lease, only_expired=only_expired, now_s=lambda: now_s)


def begun(place: Path, time_s: float) -> None:
    """Set the start time of the running hadard."""
    os.utime(place / DAEMON, (time_s, time_s))


@pytest.mark.parametrize("only_expired", [False, True])
def test_a_living_hadard_keeps_its_jobs(site: Site, tmp_path: Path, only_expired: bool) -> None:
    """The lock is held, and the heartbeat is fresh or hadard has only just started."""
    with only_daemon(site.name, site.address, tmp_path):
        begun(tmp_path, NOW_S - 5)
        assert kept(tmp_path, only_expired=only_expired) == "hadard is at work"
        write_heartbeat(tmp_path, Heartbeat(1, "c", NOW_S + 5, "/spool"))
        assert kept(tmp_path, only_expired=only_expired) == "hadard is at work"


@pytest.mark.parametrize("only_expired", [False, True])
def test_a_hung_hadard_does_not(site: Site, tmp_path: Path, only_expired: bool) -> None:
    """The lock is held, but the heartbeat has expired or was never written."""
    with only_daemon(site.name, site.address, tmp_path):
        begun(tmp_path, NOW_S - 31)
        assert kept(tmp_path, only_expired=only_expired) == ""
        begun(tmp_path, NOW_S - 1)
        write_heartbeat(tmp_path, Heartbeat(1, "c", NOW_S, "/spool"))
        assert kept(tmp_path, only_expired=only_expired) == ""


@pytest.mark.parametrize("only_expired", [False, True])
def test_a_hadard_on_another_machine_keeps_its_jobs(tmp_path: Path, only_expired: bool) -> None:
    """While its lease is valid, other machines do not release its jobs."""
    holder = Holder("t", "elsewhere", "boot", 1, "1", 30.0, NOW_S - 10)
    Lease(tmp_path, "c", 30.0).path.write_text(json.dumps(asdict(holder)))
    said = kept(tmp_path, only_expired=only_expired)
    assert said == "hadard is at work on elsewhere"
    assert kept(tmp_path, only_expired=only_expired, now_s=NOW_S + 1000) == ""


def test_a_dead_hadard_may_come_back_until_its_sign_runs_out(tmp_path: Path) -> None:
    """The reaper waits until the heartbeat expires; `hadar release` by hand does not."""
    write_heartbeat(tmp_path, Heartbeat(1, "c", NOW_S + 5, "/spool"))
    assert kept(tmp_path, only_expired=True) == "hadard was alive a moment ago"
    assert kept(tmp_path, only_expired=False) == ""
    assert kept(tmp_path, only_expired=True, now_s=NOW_S + 5) == ""


def test_without_any_sign_all_may_go(tmp_path: Path) -> None:
    """A heartbeat that cannot be read counts as none."""
    assert kept(tmp_path, only_expired=True) == ""
    (tmp_path / "heartbeat.json").write_text("{")
    assert kept(tmp_path, only_expired=True) == ""


class Bench:
    """A cluster and a ledger."""

    def __init__(self, directory: Path) -> None:
        self.fake = FakeSlurm("v100:4,v100:4,v100:4")
        self.slurm = CommandLine(FakeRunner(slurm=self.fake))
        self.ledger = Ledger(directory / FILE_NAME)
        self.ledger.adopt()

    def submit(self, *, mark: bool = False, hold: str = "user", text: str = "") -> FakeJob:
        """Submit a described job; `mark` says in the description that hadar-sbatch has held it."""
        described = Description(steps=5, gpus=2, throughputs={"v100": 1.0}, is_held=mark)
        return self.fake.submit(TWO, hold=hold, comment=text or encode(described))

    def release(self, limit_s: float = 5.0) -> dict[str, str]:
        """Restore all jobs, and return the faults by job."""
        answers = release_all(
            self.slurm,
            self.ledger,
            limit_s=limit_s,
            now_s=lambda: self.fake.now_s,
            sleep=self.fake.advance,
        )
        return {answer.job: answer.fault for answer in answers}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Return an empty cluster."""
    return Bench(tmp_path)


def test_what_is_ours_goes_and_nothing_else(bench: Bench) -> None:
    """Holds of hadard, marked at submission or recorded since, are released; all others stay."""
    marked, noted = bench.submit(mark=True), bench.submit()
    spoiled = bench.submit(text='{"hadar": 99}')
    bench.ledger.note({JobId(job.key): HOLDING for job in (noted, spoiled)})
    users, plain = bench.submit(), bench.submit(text="mine")
    operators = bench.submit(mark=True, hold="admin")
    operators.reason = "JobHeldAdmin"
    assert bench.release() == {marked.key: "", noted.key: "", spoiled.key: ""}
    assert [job.hold for job in (users, plain, operators)] == ["user", "user", "admin"]
    bench.fake.advance(1.0)
    assert {job.state for job in (marked, noted, spoiled)} == {"RUNNING"}
    assert bench.release() == {}


def test_a_job_on_its_way_off_its_gpus_is_waited_for(bench: Bench) -> None:
    """A completing job is released once it is pending and held."""
    job = bench.submit(hold="")
    bench.fake.advance(1.0)
    bench.ledger.note({JobId(job.key): HOLDING})
    bench.fake.requeue(job, hold=True)
    assert job.state == "COMPLETING"
    assert bench.release() == {job.key: ""}
    assert not job.hold


def test_what_does_not_leave_in_time_is_told(bench: Bench) -> None:
    """The limit is for all jobs together; the result names the job that is late."""
    job = bench.submit(hold="")
    bench.fake.advance(1.0)
    bench.ledger.note({JobId(job.key): HOLDING})
    bench.fake.requeue(job, hold=True)
    begun_s = bench.fake.now_s
    assert release_all(
        bench.slurm,
        bench.ledger,
        limit_s=3.0,
        now_s=lambda: bench.fake.now_s,
        sleep=lambda seconds: setattr(bench.fake, "now_s", bench.fake.now_s + seconds),
    ) == (Returned(JobId(job.key), "it has not yet left its GPUs"),)
    assert 3.0 <= bench.fake.now_s - begun_s < 4.0


def test_what_slurm_refuses_is_tried_again_until_it_takes_it(bench: Bench) -> None:
    """If Slurm refuses until the limit, the result has its message."""
    job = bench.submit(mark=True)
    runner = bench.slurm.runner
    assert isinstance(runner, FakeRunner)
    tries: list[int] = []

    def refuse(argv: object) -> str | None:
        if "release" not in argv:  # type: ignore[operator]
            return None
        tries.append(1)
        return "Slurm is in no mood" if len(tries) < 3 else None

    runner.before.append(refuse)
    assert bench.release() == {job.key: ""}
    assert len(tries) == 3
    other = bench.submit(mark=True)
    runner.before[:] = [lambda argv: "Slurm is in no mood" if "release" in argv else None]
    assert "no mood" in bench.release()[other.key]


def test_a_slurm_that_does_not_answer_is_a_fault(bench: Bench) -> None:
    """The caller tries again."""
    bench.submit(mark=True)
    bench.fake.is_away = True
    with pytest.raises(SlurmUnavailable):
        bench.release()


def test_nodes_that_have_not_reported_are_waited_for(bench: Bench) -> None:
    """Just after its restart slurmctld could start a job without its GPUs; waits half the limit."""
    job = bench.submit(mark=True)
    bench.fake.restart()
    begun_s = bench.fake.now_s
    assert bench.release(limit_s=60.0) == {job.key: ""}
    assert 4.0 <= bench.fake.now_s - begun_s < 10.0
    other = bench.submit(mark=True)
    bench.fake.nodes["n1"].has_reported = False
    begun_s = bench.fake.now_s
    assert bench.release(limit_s=20.0) == {other.key: ""}
    assert 10.0 <= bench.fake.now_s - begun_s < 20.0


def test_a_pin_of_ours_goes_with_the_hold(bench: Bench) -> None:
    """A pinned job that was released and waits for its nodes is restored, too."""
    job = bench.submit()
    key = JobId(job.key)
    reading = bench.slurm.read()
    own = reading.request(reading.queue[key])
    bench.ledger.note({key: Claim(state=State.RELEASED, own=own, pinned=(NodeName("n2"),))})
    assert bench.slurm.change([Hold(key)]) == [None]
    job.asked.nodes, job.asked.per_job, job.asked.per_node = ("n2",), (), (("", 2),)
    bench.fake.release(job)
    assert bench.release() == {job.key: ""}
    [given_back] = bench.fake.find(job.key)
    assert given_back.asked.nodes == ()
    assert given_back.asked.per_node == ()
    assert given_back.asked.per_job == (("", 2),)


def test_a_job_that_starts_meanwhile_is_not_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running job cannot be changed, and needs no restoring."""
    job = bench.submit(mark=True)
    job.asked = replace(job.asked)
    before = Request(num_nodes="1-2", per_job="gres:gpu:2")
    entry = Claim(state=State.HELD, own=before, pinned=(NodeName("n1"),))
    bench.ledger.note({JobId(job.key): entry})
    job.asked.nodes = ("n1",)
    change, begun_s = CommandLine.change, bench.fake.now_s

    def once_started(self: CommandLine, changes: Sequence[Update]) -> list[SlurmError | None]:
        if job.state == "PENDING":
            bench.fake.release(job)
            bench.fake.advance(1.0)
        return change(self, changes)

    monkeypatch.setattr(CommandLine, "change", once_started)
    assert bench.release(limit_s=60.0) == {}
    assert job.state == "RUNNING"
    assert bench.fake.now_s - begun_s < 10.0


def landed(bench: Bench) -> FakeJob:
    """Return a running job with a hold of hadard that raced with its start."""
    job = bench.submit(hold="")
    key = JobId(job.key)
    bench.ledger.note({key: HOLDING})
    bench.fake.advance(1.0)
    assert bench.slurm.change([Hold(key)]) == [None]
    assert (job.state, job.hold) == ("RUNNING", "user")
    return job


def test_a_hold_that_came_too_late_is_taken_back(bench: Bench) -> None:
    """The hold is released, and a later one counts as the owner's."""
    job = landed(bench)
    assert bench.release() == {}
    assert (job.state, job.hold) == ("RUNNING", "")
    assert not bench.ledger[JobId(job.key)].holds
    bench.fake.hold(job, "user")
    assert bench.release() == {}
    assert job.hold == "user"


def test_a_hold_that_cannot_be_taken_back_is_told(bench: Bench) -> None:
    """It is reported at the end of the limit; the next `hadar release` tries again."""
    job = landed(bench)
    assert isinstance(bench.slurm.runner, FakeRunner)
    bench.slurm.runner.before.append(lambda argv: "no" if argv[1] == "release" else None)
    assert bench.release() == {job.key: "it runs, and is held should it be requeued"}
    bench.slurm.runner.before.clear()
    assert bench.release() == {}
    assert job.hold == ""


def test_an_operators_hold_on_a_job_that_runs_stays(bench: Bench) -> None:
    """The operator's hold has replaced hadard's."""
    job = landed(bench)
    bench.fake.hold(job, "admin")
    assert bench.release() == {}
    assert job.hold == "admin"


def test_an_operators_hold_ends_ours_for_good(bench: Bench) -> None:
    """A later hold of the owner, after the operator's release, does not count as hadard's."""
    job = bench.submit(mark=True)
    bench.ledger.note({JobId(job.key): HOLDING})
    bench.fake.hold(job, "admin")
    job.reason = "JobHeldAdmin"
    assert bench.release() == {}
    bench.fake.release(job)
    job.begin_s = bench.fake.now_s + 1000.0
    bench.fake.hold(job, "user")
    job.reason = "JobHeldUser"
    assert bench.release() == {}
    assert job.hold == "user"


def test_a_nice_value_that_an_owners_hold_keeps_is_named_without_a_wait(bench: Bench) -> None:
    """Slurm releases a held job whose nice value changes: it is given back once it is not held."""
    job, other = bench.submit(), bench.submit(mark=True)
    job.nice, lent = 7, Loan(7, 7, 0)
    own = bench.slurm.read().request(bench.slurm.queue()[JobId(job.key)])
    excluded = Loan((NodeName("n1"),), (), ())
    bench.ledger.note(
        {JobId(job.key): Claim(state=State.FOREIGN_HOLD, own=own, nice=lent, excluded=excluded)}
    )
    job.excluded, begun_s = ("n1",), bench.fake.now_s
    assert bench.release(limit_s=60.0) == {
        other.key: "",
        job.key: "it is held: its nice value can be given back only after that",
    }
    assert bench.fake.now_s - begun_s < 1.0
    assert (job.hold, job.nice, job.excluded) == ("user", 7, ())
    bench.fake.release(job)
    job.begins_s = bench.fake.now_s + 1000.0
    assert bench.release() == {job.key: ""}
    assert job.nice == 0
