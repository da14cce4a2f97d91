"""hadar report: figures as text and JSON, and a replay under plain Slurm."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from builders import a_job, a_snapshot
from typer.testing import CliRunner, Result

from hadar_slurm.cli.main import commands
from hadar_slurm.cli.report import _time_s
from hadar_slurm.core.claims import Credit, Judged
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Phase
from hadar_slurm.core.snapshot import Ended, Round
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.errors import ConfigError, UsageError
from hadar_slurm.journal import Journal, claim_facts
from hadar_slurm.lab.study.gains.pairs import PLAIN_SLURMS


def report(*words: str) -> Result:
    return CliRunner().invoke(commands, ["report", *words])


def write_rounds(path: Path, *times_s: float, policy: str = "hadar") -> None:
    """Write rounds with two waiting jobs, one free V100 and one free K80."""
    journal = Journal(path)
    for time_s in times_s:
        jobs = [a_job("1", steps=4000), a_job("2", steps=4000)]
        snapshot = a_snapshot("1xV100,1xK80", *jobs, now_s=time_s)
        journal.write(RoundRecord(Round(0, time_s, 360.0), "round end", policy, snapshot))
    journal.close()


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "j.jsonl"
    write_rounds(path.with_name("j.jsonl.1"), 0.0, 360.0)
    write_rounds(path, 720.0)
    return path


def test_a_journal_is_told_with_what_was_put_aside(journal: Path) -> None:
    done = report("--journal", str(journal), "--no-replay")
    assert done.exit_code == 0, done.output
    assert "3 rounds, 0 incomplete" in done.output
    assert "2 jobs; ended: none" in done.output
    assert "simulated" not in done.output


def test_the_replay_is_under_the_policy_used_last(tmp_path: Path) -> None:
    """Also where it had been in use before another."""
    path = tmp_path / "j.jsonl"
    for time_s, policy in ((0.0, "hadar"), (360.0, "srsf"), (720.0, "hadar")):
        write_rounds(path, time_s, policy=policy)
    done = report("--journal", str(path), "--json")
    assert done.exit_code == 0, done.output
    tree = json.loads(done.output)
    assert (tree["policies"], next(iter(tree["replay"]))) == (["srsf", "hadar"], "hadar")


def test_the_replay_stands_beside_plain_slurm(journal: Path) -> None:
    """hadar migrates the second job to the V100 and ends before 1,100 s; plain Slurm at 4,000 s.

    The opponents are those of hadar compare.
    """
    done = report("--journal", str(journal))
    assert "the same jobs, simulated" in done.output
    assert "no gain is stated: 0 of the jobs ended in the period, too few" in done.output
    tree = json.loads(
        CliRunner().invoke(commands, ["report", "--journal", str(journal), "--json"]).stdout
    )
    assert tree["replay"]["slurm"]["ttd_s"] == pytest.approx(4000.0)
    assert tree["replay"]["hadar"]["ttd_s"] < 1100.0
    assert [*tree["replay"]] == ["hadar", *PLAIN_SLURMS]
    assert (tree["replay_gain"], tree["replay_check"]["jobs"]) == (None, 0)
    assert tree["gpu_hours"]["V100"]["idle"] == pytest.approx(0.2)


@pytest.mark.parametrize("policy", ["slurm", "slurm:list:open"])
def test_plain_slurm_is_compared_with_nothing(tmp_path: Path, policy: str) -> None:
    """Where hadard's own policy is plain Slurm, whatever its words."""
    path = tmp_path / "j.jsonl"
    write_rounds(path, 0.0, 360.0, policy=policy)
    text = report("--journal", str(path)).output
    assert "this policy is plain Slurm, there is nothing to compare" in text
    assert "beside" not in text
    tree = json.loads(
        CliRunner().invoke(commands, ["report", "--journal", str(path), "--json"]).stdout
    )
    assert sorted(tree["replay"]) == sorted(PLAIN_SLURMS)
    assert [tree[f"replay_{name}"] for name in ("gain", "opponent", "users")] == [None] * 3


def ended_journal(path: Path, took_s: float) -> None:
    """Write rounds of 60 s with twelve jobs that run on a V100 one after the other."""
    journal = Journal(path)
    jobs = [a_job(str(n), steps=10_000) for n in range(1, 13)]
    for at in range(14):
        ended = tuple(Ended(JobId(str(n)), Phase.DONE, n * took_s) for n in range(1, at))
        waiting = jobs[max(0, at - 1) :]
        snapshot = a_snapshot("1xV100", *waiting, now_s=at * took_s)
        snapshot = replace(snapshot, ended=ended)
        journal.write(RoundRecord(Round(at, at * took_s, 60.0), "round end", "hadar", snapshot))
    journal.close()


def test_a_gain_is_stated_where_the_simulation_is_right(tmp_path: Path) -> None:
    """Each job takes 1,000 s on the V100: so it does in the simulation, and not 1,500."""
    for took_s, is_right in ((1000.0, True), (1500.0, False)):
        ended_journal(tmp_path / f"{took_s}", took_s)
        text = report("--journal", str(tmp_path / f"{took_s}")).output
        assert ("beside the strongest plain Slurm (slurm" in text) is is_right
        assert ("no gain is stated: the 12 jobs that ended took 2.71 h" in text) is not is_right


def long_journal(path: Path) -> None:
    """Write 120 jobs of twelve users, an hour apart, that run on one of two V100s at once."""
    journal = Journal(path)
    jobs = [a_job(str(n), steps=10_000 + 50 * n, submitted_s=0.0) for n in range(120)]
    jobs = [
        replace(job, spec=replace(job.spec, user=f"user{n % 12}", submitted_s=3600.0 * n))
        for n, job in enumerate(jobs)
    ]
    for at in range(121):
        ended = tuple(
            Ended(job.job_id, Phase.DONE, job.spec.submitted_s + job.spec.total_steps / 10.0)
            for job in jobs[:at]
        )
        snapshot = a_snapshot("2xV100", *jobs[at : at + 1], now_s=3600.0 * at)
        snapshot = replace(snapshot, ended=ended)
        journal.write(RoundRecord(Round(at, 3600.0 * at, 60.0), "round end", "hadar", snapshot))
    journal.close()


def test_the_gain_has_an_interval_and_the_users_who_lose(tmp_path: Path) -> None:
    """As in hadar compare, from its own functions; here nothing waits, so that there is no gain."""
    path = tmp_path / "j.jsonl"
    long_journal(path)
    text = report("--journal", str(path)).output
    assert (
        "with all sizes known, mean JCT 0 % less (between 0 and 0 %, made to have it in 90 % of "
        "cases) beside the strongest plain Slurm (slurm), and the jobs of none of 12 users would "
        "take longer" in text.replace("\n", " ")
    )
    tree = json.loads(report("--journal", str(path), "--json").stdout)
    assert tree["replay_interval"] == pytest.approx([0.0, 0.0], abs=1e-3)
    assert (tree["replay_users"]["number"], tree["replay_users"]["lose"]) == (12, 0)
    assert tree["replay_opponent"] == "slurm"


def test_only_the_time_asked_for_counts(tmp_path: Path) -> None:
    now_s = time.time()
    write_rounds(tmp_path / "j.jsonl", now_s - 90_000, now_s - 7200, now_s - 60)
    config = tmp_path / "hadar.yaml"
    config.write_text(f"journal: {tmp_path}/j.jsonl\n")
    counts = {
        words: json.loads(report("--config", str(config), "--no-replay", "--json", *words).output)
        for words in ((), ("--since", "2d"), ("--since", "1h"), ("--since", "3h", "--until", "1h"))
    }
    assert [tree["rounds"] for tree in counts.values()] == [2, 3, 1, 1]
    fault = report("--config", str(config), "--since", "1m", "--until", "30m").exception
    assert isinstance(fault, UsageError)
    assert "has no round in that period" in str(fault)


def test_claims_stand_against_what_was_measured(tmp_path: Path) -> None:
    """By user and workload, the worst first, who is believed less and which jobs; else nothing."""
    path = tmp_path / "j.jsonl"
    write_rounds(path, 0.0)
    assert "claimed" not in report("--journal", str(path), "--no-replay").output
    credit = Credit().after(1000.0, 5000.0, 1e9)
    facts = claim_facts(
        [
            Judged(JobId("7"), "ada", "job:[red]train.sh", 1000.0, 1100.0),
            Judged(JobId("8"), "eve", "gan", 1000.0, 4000.0, 2.0),
            Judged(JobId("9"), "eve", "lm", 1000.0, 6000.0),
        ],
        {"eve": credit},
    )
    job = a_job("1", on="n1:V100:1", steps=4000)
    job = replace(job, spec=replace(job.spec, user="eve", claimed_steps=800))
    journal = Journal(path)
    snapshot = a_snapshot("1xV100,1xK80", job, now_s=1e9)
    record = RoundRecord(Round(0, 1e9, 360.0), "round end", "hadar", snapshot)
    journal.write(record, more=facts)
    journal.close()
    text = report("--journal", str(path), "--no-replay").output
    assert "claimed against measured, 3 jobs" in text
    rows = [line.split() for line in text.splitlines() if line.startswith(("eve ", "ada "))]
    assert rows == [
        ["eve", "all", "2", "5", "6", "1.5", "2"],
        ["eve", "lm", "1", "6", "6", "1", "1"],
        ["eve", "gan", "1", "4", "4", "2", "2"],
        ["ada", "job:[red]train.sh", "1", "1.1", "1.1", "1", "1"],
    ]
    assert "eve: steps claimed count 5 times after 1 job, until 2001-12-0" in text
    assert "1 running job is planned with other steps than claimed: 1 of eve with 4,000" in text
    tree = json.loads(report("--journal", str(path), "--no-replay", "--json").stdout)["claims"]
    assert [each["user"] for each in tree["by_user"]] == ["eve", "ada"]
    assert tree["believed_less"][0]["steps_times"] == pytest.approx(5.0)
    assert tree["replanned"][0]["claimed_steps"] == 800


@pytest.mark.parametrize(
    ("text", "time_s"), [("30m", 8200.0), ("2h", 2800.0), ("1970-01-01T00:00:50+00:00", 50.0)]
)
def test_times_are_ago_or_dates(text: str, time_s: float) -> None:
    assert _time_s(text, 10_000.0, "--since") == time_s


@pytest.mark.parametrize("text", ["yesterday", "5", "-3h", "2026-13-01"])
def test_other_times_are_refused_with_what_would_do(text: str) -> None:
    with pytest.raises(UsageError, match=r"--since '.*': expected 30m, 24h, 7d, 4w or a date"):
        _time_s(text, 0.0, "--since")


def test_what_is_no_journal_is_told(tmp_path: Path) -> None:
    fault = report("--journal", str(tmp_path / "none")).exception
    assert isinstance(fault, UsageError)
    assert "cannot be read: No such file" in str(fault)
    (tmp_path / "text").write_text("no journal\n")
    assert isinstance(report("--journal", str(tmp_path / "text")).exception, ConfigError)
