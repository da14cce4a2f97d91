"""hadar config: invalid configurations are refused; likely mistakes give warnings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from hadar_slurm.cli import config as command
from hadar_slurm.cli.main import commands
from hadar_slurm.config import Config, parse_config
from hadar_slurm.errors import UsageError
from hadar_slurm.resources import beside


def hadar(*words: str) -> Result:
    return CliRunner().invoke(commands, ["config", *words])


@pytest.fixture
def places(tmp_path: Path) -> str:
    """Create usable directories, and return the keys that name them."""
    for name in ("run", "state", "log", "spool"):
        (tmp_path / name).mkdir()
    (tmp_path / "spool").chmod(0o1777)
    return (
        f"run_dir: {tmp_path}/run\nstate_dir: {tmp_path}/state\njournal: {tmp_path}/log/j.jsonl\n"
        f"spool_dir: {tmp_path}/spool\ndisable_file: {tmp_path}/off\n"
    )


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "hadar.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_what_is_right_is_called_right(tmp_path: Path, places: str) -> None:
    path = written(tmp_path, places + "mode: hold\n")
    done = hadar("check", path)
    assert (done.exit_code, done.output) == (0, f"{path}: valid\n")


def test_what_hadard_would_refuse_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "round_secs: 60\n")
    done = hadar("check", path, "--json")
    assert done.exit_code == 1
    assert json.loads(done.output)["error"].startswith(f"{path}:1: unknown key 'round_secs'")
    for wrong in (path, str(tmp_path / "none.yaml")):
        done = hadar("check", wrong)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith(f"hadar: {wrong}:")


@pytest.mark.parametrize(
    ("change", "key", "said"),
    [
        ("mode: observe\n", "mode", "changes no jobs"),
        ("slurm_conf: /no/slurm.conf\n", "slurm_conf", "cannot be read"),
    ],
)
def test_what_may_surprise_is_told(
    tmp_path: Path, places: str, change: str, key: str, said: str
) -> None:
    mode = "" if change.startswith("mode") else "mode: hold\n"
    done = hadar("check", written(tmp_path, places + mode + change), "--json")
    (told,) = json.loads(done.output)["surprises"]
    assert done.exit_code == 0
    assert told["key"] == key
    assert said in told["message"]


def test_a_directory_that_jobs_cannot_report_in_is_told(tmp_path: Path, places: str) -> None:
    (tmp_path / "spool" / "reports").mkdir(mode=0o755)
    done = hadar("check", written(tmp_path, places + "mode: hold\n"))
    assert f"spool_dir: jobs cannot report: chmod 1777 {tmp_path}/spool/reports" in done.output


def test_the_switch_that_is_on_is_told(tmp_path: Path, places: str) -> None:
    (tmp_path / "off").touch()
    done = hadar("check", written(tmp_path, places + "mode: hold\n"))
    assert f"{tmp_path}/off exists: remove it to enforce" in done.output


def test_places_are_judged_for_who_asks(
    tmp_path: Path, places: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directories that the caller cannot write to give warnings; os.access is faked for root."""
    config = parse_config(places + "mode: hold\n", "hadar.yaml")
    monkeypatch.setattr(command.os, "access", lambda _path, _how: False)
    told = dict(command.surprises(config))
    assert told["run_dir"] == f"{tmp_path}/run cannot be written to by this user"
    moved = config.model_copy(update={"state_dir": tmp_path / "far" / "away"})
    told = dict(command.surprises(moved))
    assert told["state_dir"].endswith(
        f"does not exist, and this user cannot create it in {tmp_path}"
    )


def test_a_table_that_cannot_be_used_is_refused(tmp_path: Path, places: str) -> None:
    (tmp_path / "table.json").write_text("{", encoding="utf-8")
    for table in ("table.json", "none.json"):
        path = written(tmp_path, places + f"throughputs: {tmp_path}/{table}\n")
        done = hadar("check", path, "--json")
        assert done.exit_code == 1, table
        assert table in json.loads(done.output)["error"]


def test_every_key_is_shown_with_its_value(tmp_path: Path, places: str) -> None:
    path = written(tmp_path, places + "round_seconds: 42\n")
    shown = hadar("show", path).output
    assert parse_config(shown, "shown") == parse_config(Path(path).read_text(), path)
    assert set(yaml.safe_load(shown)) == set(Config.model_fields)
    assert json.loads(hadar("show", path, "--json").output) == yaml.safe_load(shown)


def test_the_default_is_the_file_that_ships() -> None:
    printed = hadar("print-default").output
    assert printed == beside("slurm_conf", "hadar.yaml").read_text(encoding="utf-8")
    assert parse_config(printed, "printed") == Config()


def test_the_file_is_named_as_for_every_other_command(tmp_path: Path, places: str) -> None:
    path = written(tmp_path, places + "mode: hold\nround_seconds: 42\n")
    done = hadar("check", "--config", path)
    assert (done.exit_code, done.output) == (0, f"{path}: valid\n")
    assert "round_seconds: 42" in hadar("show", "--config", path).output
    assert hadar("check", path, "--config", path).exit_code == 0
    fault = hadar("check", path, "--config", f"{path}.other").exception
    assert isinstance(fault, UsageError)
    assert "two files are named" in str(fault)


SCONTROL = """#!/bin/sh
echo "SlurmUser               = slurm(64030)"
echo "SlurmctldParameters     = rl_enable"
"""


@pytest.mark.parametrize(("uid", "is_limited"), [(64_031, True), (64_030, False), (0, False)])
def test_a_limit_of_slurm_that_slows_hadard_is_told(
    tmp_path: Path, places: str, monkeypatch: pytest.MonkeyPatch, uid: int, *, is_limited: bool
) -> None:
    """It names what follows and the remedy, for the account that asks."""
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(SCONTROL, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    monkeypatch.setattr("os.geteuid", lambda: uid)
    told = dict(command.surprises(parse_config(places + "mode: hold\n", "hadar.yaml")))
    assert ("rl_refill_rate" in told.get("mode", "")) is is_limited
