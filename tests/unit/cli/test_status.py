"""hadar status: whether hadard is alive, and the last round of the journal."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest
from builders import a_job, a_snapshot
from typer.testing import CliRunner, Result

from hadar_slurm.cli.main import commands
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.snapshot import Round
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.journal import Journal
from hadar_slurm.state.heartbeat import Heartbeat, LastRounds, write_heartbeat


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "hadar.yaml"
    path.write_text(
        f"run_dir: {tmp_path}\njournal: {tmp_path}/j.jsonl\ndisable_file: {tmp_path}/off\n"
    )
    return path


def status(config: Path, *words: str) -> Result:
    return CliRunner().invoke(commands, ["status", "--config", str(config), *words])


def vouch(
    directory: Path, seconds: float, partitions: tuple[str, ...] | None = ("gpu", "")
) -> None:
    good_until_s = time.time() + seconds
    write_heartbeat(directory, Heartbeat(7, "toy", good_until_s, str(directory), partitions))


def write_round(path: Path) -> None:
    snapshot = a_snapshot("2xV100", a_job("1", on="n1:V100:1"), now_s=1e9)
    journal = Journal(path)
    journal.write(RoundRecord(Round(3, 1e9, 360.0), "round end", "hadar", snapshot), mode="hold")
    journal.close()


def test_who_is_alive_is_told_with_its_last_round(config: Path, tmp_path: Path) -> None:
    vouch(tmp_path, 30)
    write_round(tmp_path / "j.jsonl")
    done = status(config)
    assert done.exit_code == 0, done.output
    assert "process 7, cluster toy, places jobs in gpu\n" in done.output
    assert re.search(r"\nround 3, \d+\.\d days ago, at 2001-09-09", done.output)
    assert "policy hadar, hold" in done.output
    assert "1 running" in done.output
    tree = json.loads(status(config, "--json").output)
    assert tree["alive"] is True
    assert tree["last"]["gpus"]["V100"]["free"] == 1


@pytest.mark.parametrize("seconds", [None, -1])
def test_who_is_not_has_another_status(config: Path, tmp_path: Path, seconds: float | None) -> None:
    if seconds is not None:
        vouch(tmp_path, seconds)
    done = status(config)
    assert done.exit_code == 1
    assert f"no fresh heartbeat in {tmp_path}" in done.output
    assert "j.jsonl: no round has been written yet" in done.output


def test_jobs_that_are_left_out_of_the_plan_are_named(config: Path, tmp_path: Path) -> None:
    vouch(tmp_path, 30)
    why = {JobId(str(n)): "KeyError: 'gtx1080'" for n in range(1, 13)}
    snapshot = a_snapshot("2xV100", a_job("1", on="n1:V100:1"), now_s=1e9)
    journal = Journal(tmp_path / "j.jsonl")
    round_ = Round(3, 1e9, 360.0)
    journal.write(RoundRecord(round_, "start", "hadar", snapshot, left_out=why), mode="hold")
    journal.close()
    found = status(config).output
    assert "\n  job 1 is left out: KeyError: 'gtx1080'\n" in found
    assert "and 2 more jobs are left out" in found
    assert json.loads(status(config, "--json").output)["last"]["left_out"] == why


def test_since_when_and_why_rounds_fail_is_told(config: Path, tmp_path: Path) -> None:
    """A hadard that runs and whose rounds fail is not alive."""
    now_s = time.time()
    rounds = LastRounds(now_s - 800, 7, now_s - 720, "plan", "KeyError: 'gtx1080'")
    beat = Heartbeat(7, "toy", 0.0, str(tmp_path), None, 30.0, signed_s=now_s, rounds=rounds)
    write_heartbeat(tmp_path, replace(beat, problems={"journal": "full"}))
    done = status(config)
    assert done.exit_code == 1
    assert re.search(
        r"the last 7 rounds of hadard failed, since \d+-\d+-\d+ \d+:\d+:\d+ \S+, 12 min ago: "
        r"KeyError: 'gtx1080'; the last one that succeeded ended 13 min ago, at .*"
        r"jobs go to plain Slurm and the reaper releases the held ones",
        done.output,
    )
    assert "hadard is alive" not in done.output
    assert "problem: journal: full" in done.output
    assert "last known problem" not in done.output
    tree = json.loads(status(config, "--json").output)
    assert (tree["alive"], tree["running"], tree["rounds"]["failed"]) == (False, True, 7)
    write_heartbeat(tmp_path, replace(beat, rounds=LastRounds(now_s - 800)))
    assert (
        "its round does not end; the last one that succeeded ended 13 min" in status(config).output
    )
    write_heartbeat(tmp_path, replace(beat, signed_s=now_s - 31))
    assert "hadard is not alive: no fresh heartbeat" in status(config).output


def test_a_journal_that_may_not_be_read_is_no_fault(config: Path, tmp_path: Path) -> None:
    vouch(tmp_path, 30, partitions=None)
    (tmp_path / "j.jsonl").mkdir()
    done = status(config)
    assert done.exit_code == 0
    assert "places jobs in (all)" in done.output
    assert "j.jsonl: Is a directory" in done.output


@pytest.mark.parametrize("content", ["no journal\n", '{"version":99}\n', "[" * 100_000 + "\n"])
def test_a_damaged_journal_is_no_fault(config: Path, tmp_path: Path, content: str) -> None:
    """A damaged journal is named, and hadard is still shown as alive."""
    vouch(tmp_path, 30)
    (tmp_path / "j.jsonl").write_text(content)
    done = status(config)
    assert done.exit_code == 0, done.output
    assert "process 7, cluster toy" in done.output
    assert f"{tmp_path}/j.jsonl: " in done.output


def test_the_off_switch_is_told(config: Path, tmp_path: Path) -> None:
    (tmp_path / "off").touch()
    assert "nothing is enforced" in status(config).output
