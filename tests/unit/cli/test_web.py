"""hadar web: its output, its end, and wrong options."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner
from web_journals import a_job, a_line, write

from hadar_slurm.cli.main import commands
from hadar_slurm.config import Config
from hadar_slurm.errors import UsageError
from hadar_slurm.state.heartbeat import Heartbeat, write_heartbeat

ROOT = Path(__file__).parents[3]
_END_S = 30


@contextmanager
def started(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run hadar web on a free port until the end of the block; yield it and its first line."""
    command = [sys.executable, "-m", "hadar_slurm.cli.main", "web", "--address", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_it_is_told_to_end(tmp_path: Path, number: signal.Signals) -> None:
    """It prints its address, answers there, and a signal ends it with status 0."""
    journal = write(tmp_path / "journal.jsonl", a_line(0, {"77": a_job()}))
    with started("--journal", str(journal)) as (process, said):
        name, _, url = said.rpartition(": ")
        assert name == str(journal)
        with urllib.request.urlopen(url, timeout=_END_S) as answer:
            assert "77" in answer.read().decode()
        process.send_signal(number)
        assert process.communicate(timeout=_END_S) == ("", "")
        assert process.returncode == 0


def test_without_a_journal_it_takes_the_daemons(tmp_path: Path) -> None:
    """Without --journal the journal that hadard's configuration names is served."""
    journal = write(tmp_path / "elsewhere.jsonl", a_line(0, {"77": a_job()}))
    config = tmp_path / "hadar.yaml"
    config.write_text(f"journal: {journal}\n", encoding="utf-8")
    with started("--config", str(config)) as (_, said):
        assert said.startswith(f"{journal}: http://127.0.0.1:")


def test_metrics_tell_of_the_daemon_where_its_run_dir_is_known(tmp_path: Path) -> None:
    """Metrics show hadard as up by the configuration's run_dir, but not with --journal alone."""
    journal = tmp_path / "none.jsonl"
    config = tmp_path / "hadar.yaml"
    config.write_text(f"journal: {journal}\nrun_dir: {tmp_path}\n", encoding="utf-8")
    beat = Heartbeat(7, "toy", time.time() + 600.0, "", problems={"journal": "it is full"})
    write_heartbeat(tmp_path, beat)
    known, alone = ["--config", str(config)], ["--journal", str(journal)]
    for words in (known, [*known, *alone], alone):
        with started(*words) as (_, said):
            url = said.rpartition(": ")[2]
            with urllib.request.urlopen(f"{url}metrics", timeout=_END_S) as answer:
                text = answer.read().decode()
        assert ("\nhadar_daemon_up 1.0\n" in text) == (words != alone)
        assert ('\nhadar_problem{kind="journal"} 1.0\n' in text) == (words != alone)
        assert "\nhadar_journal_readable 0.0\n" in text


@pytest.mark.parametrize(
    "words",
    [["--address", "everywhere"], ["--megabytes", "0"], ["--megabytes", "nan"]],
)
def test_wrong_words_are_told(tmp_path: Path, words: list[str]) -> None:
    """The message names the option."""
    journal = str(tmp_path / "journal.jsonl")
    answer = CliRunner().invoke(commands, ["web", "--journal", journal, *words])
    assert isinstance(answer.exception, UsageError)
    assert words[0] in str(answer.exception)


def test_every_option_and_metric_is_documented() -> None:
    """docs/web.md names the options, the default address, and each metric."""
    from hadar_slurm.web.exposition import exposition
    from hadar_slurm.web.follower import Follower
    from hadar_slurm.web.pulse import Pulse
    from hadar_slurm.web.server import DEFAULT_ADDRESS

    page = (ROOT / "docs" / "web.md").read_text(encoding="utf-8")
    for option in ("--journal", "--config", "--address", "--host", "--megabytes"):
        assert f"`{option}" in page
    assert DEFAULT_ADDRESS in page
    assert str(Config().journal) in page
    follower = Follower(Path("there-is-none.jsonl"))
    text = exposition(follower, "", 0.0, Pulse(Path("there-is-none")))[0].decode()
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    ages = [
        "last_round_timestamp_seconds",
        "last_round_age_seconds",
        "round_length_seconds",
        "snapshot_age_seconds",
    ]
    for name in [*names, *(f"hadar_{age}" for age in ages)]:
        assert f"`{name}" in page, name
