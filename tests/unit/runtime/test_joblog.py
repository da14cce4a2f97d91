"""All copies of a job write one log, line by line."""

from __future__ import annotations

import logging
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes.trainings import Training, until  # noqa: E402

from hadar_slurm.runtime.files.records import SlotEnd  # noqa: E402
from hadar_slurm.runtime.files.slots import Slots  # noqa: E402
from hadar_slurm.runtime.files.writing import write_tensors  # noqa: E402
from hadar_slurm.runtime.membership.joblog import LOGGER, job_log  # noqa: E402

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z copy (\d+): (.+)")


def events(directory: Path) -> list[tuple[int, str]]:
    """Return the copy and the text of each line."""
    lines = (directory / "job.log").read_text().splitlines()
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found)
    return [(int(match[1]), match[2]) for match in found if match]


def test_a_job_tells_its_story(training: Callable[..., Training]) -> None:
    """The log has the copies that joined and left, and the result of each interval."""
    job = training(300, "--step-s=0.02", "--slot-s=1")
    job.start_together(0, 1)
    until(lambda: len(job.steps(1)) > 20)
    job.kill(1, signal.SIGUSR1)
    until(lambda: any("asked to save" in words for _, words in events(job.directory)))
    job.kill(1, signal.SIGTERM)
    job.end(1, 128 + signal.SIGTERM)
    job.end(0)
    told = events(job.directory)
    for copy, words in (
        (0, r"joined"),
        (1, r"joined"),
        (1, r"asked to save, and saved \d+ steps of slot \d+"),
        (1, r"left: SystemExit\(143\)"),
        (0, r"done after slot \d+"),
        (0, r"left"),
    ):
        assert [who for who, what in told if re.fullmatch(words, what)].count(copy) == 1
    ended = [
        int(match[1])
        for _, what in told
        if (match := re.fullmatch(r"slot (\d+) ended with \d copies in \d+\.\d{3} s", what))
    ]
    assert ended == list(range(1, job.newest().slot + 1))


def test_lines_of_many_writers_stay_whole(tmp_path: Path) -> None:
    """Each line is appended in one write."""
    program = (
        "import logging, sys, pathlib\n"
        "from hadar_slurm.runtime.membership.joblog import job_log\n"
        "with job_log(pathlib.Path(sys.argv[1]), int(sys.argv[2])):\n"
        "    for number in range(300):\n"
        "        logging.getLogger('hadar_slurm.runtime.x').info('%d %s', number, 'x' * 200)\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    writers = [subprocess.Popen([*words, str(copy)]) for copy in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    told = events(tmp_path)
    for copy in range(3):
        mine = [what.split()[0] for who, what in told if who == copy]
        assert mine == [str(number) for number in range(300)]


def test_a_log_that_cannot_be_written_is_no_reason_to_stop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The program's own handlers get the messages, and are not changed."""
    logger = logging.getLogger(LOGGER)
    before = (logger.level, list(logger.handlers))
    with job_log(tmp_path / "nowhere", 0):
        logging.getLogger(f"{LOGGER}.copy").warning("two\nlines")
    assert "two" in caplog.text
    assert (logger.level, list(logger.handlers)) == before
    with job_log(tmp_path, 4):
        logger.warning("two\nlines")
    assert events(tmp_path) == [(4, "two lines")]


@pytest.mark.slow
def test_copies_that_begin_together_log_no_error(training: Callable[..., Training]) -> None:
    """All copies write slot 0, each to its own draft, and the first one succeeds."""
    for turn in range(3):
        job = training(40, "--step-s=0.005", "--width=1500", name=f"job-{turn}")
        job.start_together(0, 1, 2, 3)
        for copy in range(4):
            job.end(copy)
        wrong = [words for _, words in events(job.directory) if "tried again" in words]
        assert wrong == []


def test_the_draft_of_another_copy_is_left_alone(tmp_path: Path) -> None:
    """It stays while its interval is the newest that has ended, and is removed later."""
    slots = Slots(tmp_path)
    draft = tmp_path / "slots" / ".slot-00000000.safetensors.away.7"
    draft.parent.mkdir()
    draft.write_bytes(b"half")
    slots.end(SlotEnd(slot=0, total_steps=9), {"model/a": torch.zeros(1)}, {})
    assert draft.exists()
    slots.end(SlotEnd(slot=1, total_steps=9), {"model/a": torch.zeros(1)}, {})
    assert not draft.exists()


def test_a_draft_that_was_cleared_away_has_come_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another copy was first and has removed the draft, which is no error."""

    def write_and_lose(file: FileIO, *more: object) -> None:
        Path(str(file.name)).unlink()

    monkeypatch.setattr("hadar_slurm.runtime.files.writing._write", write_and_lose)
    path = tmp_path / "slot-00000000.safetensors"
    assert not write_tensors(path, {"a": torch.zeros(1)}, {}, is_first=True)
    with pytest.raises(FileNotFoundError):
        write_tensors(path, {"a": torch.zeros(1)}, {})
