"""hadard's command line: errors are one line; a single round writes its journal line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from hadar_slurm.built_from import version
from hadar_slurm.cli.release import add_expired
from hadar_slurm.config import load_config
from hadar_slurm.daemon.main import main
from hadar_slurm.daemon.signs_of_life import good_for_s
from hadar_slurm.daemon.world import World, adapter_of
from hadar_slurm.journal.reader import read_journal
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.state.locks import only_daemon
from hadar_slurm.state.reaper_count import FILE_NAME as EXPIRED


def ended_with(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Return status, output and errors of a run."""
    try:
        status = main(words)
    except SystemExit as end:  # argparse ends the program itself
        status = int(end.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--no-such"], "unrecognized arguments: --no-such"),
        (["now"], "unrecognized arguments: now"),
        (["--config"], "argument --config: expected one argument"),
        (["--round-seconds", "soon"], "argument --round-seconds: invalid float value: 'soon'"),
        (["--log-level", "loud"], "invalid choice: 'loud'"),
        (["--config", "GOOD", "--round-seconds", "0"], "--round-seconds 0: expected a number of"),
        (["--config", "GOOD", "--round-seconds", "-5"], "--round-seconds -5: expected a number"),
        (["--config", "GOOD", "--round-seconds", "nan"], "--round-seconds nan: expected a num"),
        (["--config", "GOOD", "--round-seconds", "inf"], "--round-seconds inf: expected a num"),
        (["--config", "missing.yaml"], "missing.yaml: cannot be read"),
        (
            ["--config", "BAD"],
            "bad.yaml:2: unknown key 'policies'; the nearest known one is 'policy'",
        ),
        (["--config", "TABLE"], "throughputs: "),
    ],
)
def test_a_fault_is_one_line_and_status_2(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line names the option or the file, with the wrong value or key."""
    files = {
        "GOOD": ("good.yaml", "sizes: limit\n"),
        "BAD": ("bad.yaml", "sizes: limit\npolicies: x\n"),
        "TABLE": ("table.yaml", f"throughputs: {tmp_path}/nowhere.json\n"),
    }
    for name, text in files.values():
        (tmp_path / name).write_text(text, encoding="utf-8")
    named = [str(tmp_path / files[word][0]) if word in files else word for word in words]
    status, out, err = ended_with(named, capsys)
    assert (status, out) == (2, "")
    assert err.startswith("hadard: ")
    assert said in err
    assert err.count("\n") == 1


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints the package's version, and --help lists the options."""
    assert ended_with(["--version"], capsys) == (0, f"hadard {version()}\n", "")
    status, out, _ = ended_with(["--help"], capsys)
    assert status == 0
    assert all(option in out for option in ("--config", "--once", "--dry-run", "--round-seconds"))


SCONTROL = """
import os, sys
if sys.argv[1:] == ["show", "config"]:
    print("ClusterName             = toy")
    print("SlurmctldHost[0]        = " + os.environ["TOY_HOST"])
elif sys.argv[1:] == ["--version"]:
    print("slurm 24.11.5")
elif sys.argv[1:] == ["-a", "show", "node", "-d", "-o"]:
    print("NodeName=n1 Arch=x86_64 Gres=gpu:v100:2 State=IDLE Partitions=all")
else:
    sys.exit(f"scontrol: {sys.argv[1:]} is not for a toy")
"""

SINFO = "print('all*')"


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fake a Slurm with one idle node and no jobs, and return the path of hadar.yaml."""
    for name, text in (("scontrol", SCONTROL), ("squeue", ""), ("sinfo", SINFO)):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!{sys.executable}\n{text}", encoding="utf-8")
        program.chmod(0o755)
    (tmp_path / "slurm.conf").touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    # Concurrent runs of these tests on one machine must not share a cluster's lock.
    monkeypatch.setenv("TOY_HOST", f"toy-{uuid4()}")
    config = tmp_path / "hadar.yaml"
    config.write_text(
        f"run_dir: {tmp_path}/run\nspool_dir: {tmp_path}/spool\njournal: {tmp_path}/log/j.jsonl\n"
        f"state_dir: {tmp_path}/state\n",
        encoding="utf-8",
    )
    return config


def test_one_round_is_written_and_leaves_no_heartbeat(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """hadard --once writes one journal line and leaves no heartbeat, so no job waits for it."""
    assert ended_with(["--config", str(toy), "--once"], capsys)[0] == 0
    (line,) = read_journal(toy.parent / "log" / "j.jsonl")
    assert line["nodes"] == {"n1": {"gpus": {"v100": 2}, "open": True}}
    assert line["errors"] == []
    assert line["held"] == 0
    assert line["averages"] == 0
    assert line["commands"].keys() == {"scontrol", "squeue"}
    assert all(answers.keys() == {"done"} for answers in line["commands"].values())
    assert not (toy.parent / "run" / "heartbeat.json").exists()


def test_the_journal_tells_what_the_reaper_has_given_back(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """hadard journals the number of jobs that the reaper released, if that number is readable."""
    state = toy.parent / "state"
    state.mkdir()
    add_expired(state, 3)
    assert ended_with(["--config", str(toy), "--once"], capsys)[0] == 0
    (state / EXPIRED).write_text("?")
    assert ended_with(["--config", str(toy), "--once"], capsys)[0] == 0
    first, second = read_journal(toy.parent / "log" / "j.jsonl")
    assert first["expired"] == 3
    assert "expired" not in second


def test_a_single_round_that_failed_has_another_status(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """hadard --once ends with status 1 if Slurm cannot be read, and journals the error."""
    (toy.parent / "bin" / "squeue").unlink()
    assert ended_with(["--config", str(toy), "--once"], capsys)[0] == 1
    (line,) = read_journal(toy.parent / "log" / "j.jsonl")
    assert line["errors"] == ["squeue is not installed or not on PATH"]
    assert line["commands"]["squeue"] == {"unavailable": 1}


def test_a_dry_run_prints_the_round_and_writes_nothing(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--dry-run prints the journal line to standard output and creates no file."""
    before = set(toy.parent.rglob("*"))
    status, out, _ = ended_with(["--config", str(toy), "--dry-run"], capsys)
    assert status == 0
    assert json.loads(out)["nodes"]["n1"]["open"]
    assert set(toy.parent.rglob("*")) == before


def test_two_daemons_do_not_serve_one_cluster(
    toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A second hadard ends at once with an error; after the first has ended one can start."""
    state = toy.parent / "state"
    state.mkdir()
    here = CommandLine(Runner()).site()
    with only_daemon(here.name, here.address, state):
        status, _, err = ended_with(["--config", str(toy), "--once"], capsys)
        assert status == 1
        assert "another hadard is at work on cluster toy" in err
    assert ended_with(["--config", str(toy), "--once"], capsys)[0] == 0


@pytest.mark.parametrize("mode", ["--once", "--dry-run"])
def test_without_slurm_it_says_so(mode: str, toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without Slurm's commands the status is 1, and the output names the missing command."""
    (toy.parent / "bin" / "scontrol").unlink()
    (toy.parent / "bin" / "squeue").unlink()
    status, out, err = ended_with(["--config", str(toy), mode], capsys)
    assert status == 1
    assert "is not installed or not on PATH" in out + err


def test_a_journal_that_cannot_be_written_keeps_no_job_waiting(
    toy: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """If the journal cannot be written, hadard logs that and still runs the round."""
    (toy.parent / "log" / "j.jsonl").mkdir(parents=True)
    assert ended_with(["--config", str(toy), "--once"], capsys)[0] == 0
    assert f"journal: {toy.parent}/log/j.jsonl: rounds are not recorded: Is a directory" in (
        caplog.text
    )


def test_a_sign_of_life_is_given_before_each_command(toy: Path) -> None:
    """A heartbeat precedes each Slurm command, so that waiting for slurmctld is not a hang."""
    world = World()
    signs: list[int] = []
    slurm = adapter_of(load_config(toy), world)
    world.life.sign = lambda: signs.append(1)
    slurm.queue()
    slurm.nodes()
    assert len(signs) == 2


@pytest.mark.parametrize(
    ("keys", "expected_s"),
    [
        ("", 30.0),
        ("alive_seconds: 60\n", 60.0),
        ("poll_seconds: 20\n", 80.0),
        ("command_timeout_seconds: 50\n", 55.0),
    ],
)
def test_a_sign_of_life_outlasts_a_command_that_is_not_answered(
    toy: Path, keys: str, expected_s: float
) -> None:
    """A heartbeat is valid for longer than a command's timeout and for at least four polls."""
    with toy.open("a", encoding="utf-8") as file:
        file.write(keys)
    assert good_for_s(load_config(toy)) == expected_s


def test_a_service_manager_hears_of_its_life(toy: Path, tmp_path: Path) -> None:
    """systemd gets WATCHDOG=1 and READY=1 at the start, then WATCHDOG=1, at last STOPPING=1."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(30)
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        argv = [sys.executable, "-m", "hadar_slurm.daemon.main", "--config", str(toy)]
        daemon = subprocess.Popen(argv, env=environment, stderr=subprocess.PIPE)
        try:
            heard = [manager.recv(100) for _ in range(3)]
            daemon.terminate()
            _, log = daemon.communicate(timeout=120)
        finally:
            daemon.kill()
        heard += iter(lambda: manager.recv(100), b"STOPPING=1")
    assert daemon.returncode == 0, log
    assert heard[:3] == [b"WATCHDOG=1", b"READY=1", b"WATCHDOG=1"]
    assert set(heard[3:]) <= {b"WATCHDOG=1"}
