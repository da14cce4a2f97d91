"""hadar release and hadar leave: their effects, their output and their exit status."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Timer
from types import SimpleNamespace

import pytest
from fakes.fake_bin import on_path
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm, parse_gpus
from fakes.fake_tools import FakeRunner
from typer.testing import CliRunner, Result

from hadar_slurm.cli.main import commands
from hadar_slurm.core.cluster import JobId
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description, decode
from hadar_slurm.slurm.enforce.claim import Claim, State
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.state.heartbeat import Heartbeat, LastRounds, write_heartbeat
from hadar_slurm.state.heartbeat_reader import read_heartbeat
from hadar_slurm.state.reaper_count import FILE_NAME as EXPIRED
from hadar_slurm.state.reaper_count import read_expired

DESCRIBED = Description(steps=5, gpus=2, throughputs={"v100": 1.0}, comment="a user's own")


@dataclass
class Bench:
    """A fake cluster with its commands as programs, and a configuration of hadard."""

    fake: FakeSlurm
    runner: FakeRunner
    directory: Path

    def submit(self, *, mark: bool, tasks: tuple[int, ...] = ()) -> FakeJob:
        """Submit a held job; with `mark` the description records a hold of hadard."""
        comment = encode(replace(DESCRIBED, is_held=mark))
        return self.fake.submit(
            Asked(per_job=parse_gpus("gpu:2")), hold="user", comment=comment, tasks=tasks
        )

    def vouch(self, seconds: float) -> None:
        """Write a heartbeat that expires in `seconds`."""
        beat = Heartbeat(1, "fake", time.time() + seconds, str(self.directory))
        write_heartbeat(self.directory, beat)

    def fails(self, failed: int, part: str = "observe") -> None:
        """Write the heartbeat of a hadard that is at work, and whose rounds have failed."""
        rounds = LastRounds(failed=failed, since_s=1.0, part=part, fault="x")
        beat = Heartbeat(1, "fake", 0.0, str(self.directory), signed_s=time.time(), rounds=rounds)
        write_heartbeat(self.directory, beat)

    def run(self, *words: str) -> Result:
        """Run a command of hadar."""
        config = str(self.directory / "hadar.yaml")
        return CliRunner().invoke(commands, [*words, "--config", config])


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Return a fake cluster with its commands on PATH."""
    fake = FakeSlurm("v100:4,v100:4")
    runner = FakeRunner(slurm=fake)
    Ledger(tmp_path / FILE_NAME).adopt()
    (tmp_path / "hadar.yaml").write_text(
        f"run_dir: {tmp_path}\nstate_dir: {tmp_path}\nadapter: command-line\n"
        "command_timeout_seconds: 10\n"
    )
    monkeypatch.setattr("hadar_slurm.cli.leave._READ_BACK_S", 0.1)
    with on_path(runner, tmp_path / "bin") as path:
        monkeypatch.setenv("PATH", path)
        yield Bench(fake, runner, tmp_path)


def test_release_tells_how_many_jobs_are_slurms_again(bench: Bench) -> None:
    """`hadar release` prints the number of released jobs, and removes the heartbeat."""
    job, users = bench.submit(mark=True), bench.submit(mark=False)
    bench.vouch(60)
    done = bench.run("release")
    assert (done.exit_code, done.stdout) == (0, "1 jobs released to plain Slurm\n")
    assert (job.hold, users.hold) == ("", "user")
    assert read_heartbeat(bench.directory) is None


def test_the_reaper_leaves_a_fresh_sign_alone(bench: Bench) -> None:
    """With a fresh heartbeat --expired releases nothing, with status 0; --force overrides that."""
    job = bench.submit(mark=True)
    bench.vouch(60)
    done = bench.run("release", "--expired")
    assert (done.exit_code, done.stdout) == (
        0,
        "nothing released: hadard was alive a moment ago\n",
    )
    assert job.hold == "user"
    assert read_heartbeat(bench.directory) is not None
    forced = bench.run("release", "--expired", "--force")
    assert (forced.exit_code, forced.stdout) == (0, "1 jobs released to plain Slurm\n")
    assert not job.hold


@pytest.mark.parametrize("it_reads", [True, False])
def test_after_an_outage_hadard_has_time_for_a_round(bench: Bench, it_reads: bool) -> None:
    """Its heartbeat has expired while Slurm was away: the reaper waits for what it reads now."""
    job = bench.submit(mark=True)
    bench.fails(7)

    def answer() -> None:
        bench.fails(8)  # a round that had begun before Slurm answered
        time.sleep(0.6)
        bench.vouch(60) if it_reads else bench.fails(9)

    timer = Timer(0.5, answer)
    timer.start()
    done = bench.run("release", "--expired", "--json")
    timer.join()
    kept = "hadard was alive a moment ago" if it_reads else ""
    assert json.loads(done.stdout)["kept_for"] == kept
    assert job.hold == ("user" if it_reads else "")


def test_it_has_no_more_time_than_the_limit_nor_when_it_fails_otherwise(bench: Bench) -> None:
    """A hadard whose policy fails, and one that does not read Slurm, keep no job."""
    for part, limit in (("plan", "60"), ("observe", "1")):
        job = bench.submit(mark=True)
        bench.fails(7, part)
        told = json.loads(bench.run("release", "--expired", "--limit", limit, "--json").stdout)
        assert told == {"released": [job.key], "failed": [], "kept_for": ""}


def test_who_is_back_when_the_nodes_have_reported_keeps_its_jobs(bench: Bench) -> None:
    """The reaper looks at the heartbeat again after its wait for nodes."""
    job = bench.submit(mark=True)
    bench.fake.nodes["n1"].has_reported = False

    def back(argv: Sequence[str]) -> None:
        if "node" in argv:
            bench.vouch(60)
            bench.fake.nodes["n1"].has_reported = True

    bench.runner.before.append(back)
    bench.vouch(-1)
    told = json.loads(bench.run("release", "--expired", "--json").stdout)
    assert told["kept_for"] == "hadard was alive a moment ago"
    assert job.hold == "user"
    assert read_heartbeat(bench.directory) is not None


def test_release_for_programs(bench: Bench) -> None:
    """--json prints one object, which always has the same keys."""
    job = bench.submit(mark=True)
    bench.vouch(60)
    kept = json.loads(bench.run("release", "--expired", "--json").stdout)
    assert kept == {
        "released": [],
        "failed": [],
        "kept_for": "hadard was alive a moment ago",
    }
    bench.vouch(-1)
    told = json.loads(bench.run("release", "--expired", "--json").stdout)
    assert told == {"released": [job.key], "failed": [], "kept_for": ""}


def test_what_the_reaper_gives_back_is_counted(bench: Bench) -> None:
    """Jobs released by `hadar release --expired` are counted for the journal; others are not."""
    bench.submit(mark=True)
    bench.run("release")
    assert read_expired(bench.directory) == 0
    stuck, _ = bench.submit(mark=True), bench.submit(mark=True)
    bench.runner.before.append(
        lambda argv: "no mood" if list(argv)[1:] == ["release", stuck.key] else None
    )
    bench.vouch(60)
    bench.run("release", "--expired")
    assert read_expired(bench.directory) == 0
    bench.vouch(-1)
    assert bench.run("release", "--expired", "--limit", "0").exit_code == 1
    assert read_expired(bench.directory) == 1


def test_jobs_are_given_back_though_nobody_can_count_them(bench: Bench) -> None:
    """A count that cannot be written gives a warning, and the jobs are released."""
    job = bench.submit(mark=True)
    (bench.directory / EXPIRED).mkdir()
    done = bench.run("release", "--expired", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["released"] == [job.key]
    assert "cannot be counted" in done.stderr
    assert not job.hold


def test_a_job_that_stays_held_is_named_and_the_status_is_1(bench: Bench) -> None:
    """The error has Slurm's message, and the other jobs are released."""
    stuck, other = bench.submit(mark=True), bench.submit(mark=True)
    bench.runner.before.append(
        lambda argv: "no mood" if list(argv)[1:] == ["release", stuck.key] else None
    )
    done = bench.run("release", "--limit", "0")
    assert done.exit_code == 1
    assert done.stdout == "1 jobs released to plain Slurm\n"
    assert done.stderr.startswith(f"hadar: job {stuck.key} is not released: ")
    assert "no mood" in done.stderr
    assert (stuck.hold, other.hold) == ("user", "")
    told = json.loads(bench.run("release", "--limit", "0", "--json").stdout)
    assert [failed["job"] for failed in told["failed"]] == [stuck.key]


def test_leaving_releases_a_job_and_tells_hadard(bench: Bench) -> None:
    """The rest of the description, with the user's own comment, is unchanged."""
    job = bench.submit(mark=True)
    done = bench.run("leave", str(job.number))
    assert (done.exit_code, done.stdout) == (0, f"job {job.key} is left to Slurm\n")
    left = decode(job.comment)
    assert left is not None
    assert left.leaves
    assert (left.steps, left.gpus, left.comment) == (5, 2, "a user's own")
    assert not job.hold


@pytest.mark.parametrize(("times", "status"), [(1, 0), (99, 1)])
def test_leaving_again_where_hadard_has_just_replaced_the_comment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, times: int, status: int
) -> None:
    """hadard may have read the comment before it was changed, and marks what it has read."""
    job = bench.submit(mark=True)
    former, writes = job.comment, [f"{job.comment}[hadar:ExcNodeList=]"] * times

    def pause(_: float) -> None:
        if writes:
            job.comment = writes.pop()

    monkeypatch.setattr("hadar_slurm.cli.leave.time", SimpleNamespace(sleep=pause))
    done = bench.run("leave", str(job.number))
    assert done.exit_code == status, done.stderr
    left = decode(job.comment.partition("[")[0])
    assert left is not None
    if status:
        assert not done.stdout
        assert "its comment was replaced each time; try again" in done.stderr
        assert decode(former) == left
    else:
        assert done.stdout == f"job {job.key} is left to Slurm\n"
        assert left.leaves


def test_leaving_with_a_whole_array(bench: Bench) -> None:
    """`hadar leave` with the id of an array releases all of its tasks."""
    job = bench.submit(mark=True, tasks=(0, 1, 2))
    done = bench.run("leave", str(job.array))
    assert done.exit_code == 0
    left = [decode(task.comment) for task in bench.fake.jobs]
    assert all(description is not None and description.leaves for description in left)
    assert all(not task.hold for task in bench.fake.jobs)


def test_a_comment_that_cannot_be_read_back_is_said(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs have left, and are named."""
    job = bench.submit(mark=True)

    def pause(_: float) -> None:
        (bench.directory / "bin" / "squeue").unlink()

    monkeypatch.setattr("hadar_slurm.cli.leave.time", SimpleNamespace(sleep=pause))
    done = bench.run("leave", str(job.number))
    assert (done.exit_code, done.stdout) == (0, f"job {job.key} is left to Slurm\n")
    assert done.stderr.startswith("hadar: the comments are not read back: squeue")


def test_a_job_that_has_left_before_is_left_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its comment is written in another way, as by hadard's mark."""
    job = bench.submit(mark=True)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        job.comment = job.comment.replace(" ", "\\u0020") + "[hadar:Nice=5]"

    monkeypatch.setattr("hadar_slurm.cli.leave.time", SimpleNamespace(sleep=pause))
    assert bench.run("leave", str(job.number)).exit_code == 0
    assert len(pauses) == 1
    assert job.comment.endswith("[hadar:Nice=5]")


def test_leaving_with_one_task_of_an_array(bench: Bench) -> None:
    """`hadar leave` with one task of an array leaves the other tasks held."""
    job = bench.submit(mark=True, tasks=(0, 1, 2))
    assert bench.run("leave", f"{job.array}_1").exit_code == 0
    assert [task.hold for task in bench.fake.jobs] == ["user", "", "user"]


def test_a_job_that_cannot_leave_is_told_and_the_others_do(bench: Bench) -> None:
    """A missing job is named; others leave, also one that hadar-sbatch did not submit."""
    job = bench.submit(mark=True)
    plain = bench.fake.submit(Asked(per_job=parse_gpus("gpu:1")), hold="user")
    done = bench.run("leave", "99", str(plain.number), str(job.number))
    assert done.exit_code == 1
    jobs = (plain.number, job.key)
    assert done.stdout == "".join(f"job {key} is left to Slurm\n" for key in jobs)
    assert done.stderr.splitlines() == ["hadar: job 99 does not exist"]
    assert (plain.hold, plain.comment) == ("user", "no-hadar")


def test_a_description_with_no_room_left_can_still_leave(bench: Bench) -> None:
    """hadar-sbatch leaves room in the comment for the key that `hadar leave` adds."""
    room = 1011 - len(encode(DESCRIBED)) - len(',"held":true')
    described = Description(
        steps=5,
        gpus=2,
        throughputs={"v100": 1.0},
        is_held=True,
        comment="a user's own" + "x" * room,
    )
    job = bench.fake.submit(
        Asked(per_job=parse_gpus("gpu:2")), hold="user", comment=encode(described)
    )
    assert len(job.comment) == 1011
    done = bench.run("leave", str(job.number))
    assert done.exit_code == 0, done.stderr
    assert not job.hold


def test_without_a_slurm_it_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without Slurm's commands `hadar release` ends with status 1 and an error."""
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "hadar.yaml").write_text(f"run_dir: {tmp_path}\nadapter: command-line\n")
    done = CliRunner().invoke(commands, ["release", "--config", str(tmp_path / "hadar.yaml")])
    assert done.exit_code == 1
    assert "scontrol is not installed" in str(done.exception)


def test_keys_of_the_ledger_are_those_of_slurm(bench: Bench) -> None:
    """An array task with a hold in the ledger is released by the id of the task."""
    bench.submit(mark=False, tasks=(0, 1))
    Ledger(bench.directory / FILE_NAME).note({JobId("1_1"): Claim(state=State.HOLDING)})
    assert json.loads(bench.run("release", "--json").stdout)["released"] == ["1_1"]
    assert [task.hold for task in bench.fake.jobs] == ["user", ""]
