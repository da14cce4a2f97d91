"""Finding and reading a script: sbatch finds the same file and the same bytes."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hadar_slurm.submit.script import find_script, read_script

BYTES = b"#!/bin/sh\n#HADAR --hadar-steps=1\n\xff\x00 tail without end"
TEXT = BYTES.decode("utf-8", "surrogateescape")


@pytest.fixture
def pipe() -> Iterator[int]:
    """Yield the reading end of a pipe with many copies of BYTES, more than its buffer holds."""
    ours, theirs = os.pipe()

    def write() -> None:
        with open(theirs, "wb") as file:
            file.write(BYTES * 5000)

    writer = threading.Thread(target=write)
    writer.start()
    yield ours
    writer.join()
    os.close(ours)


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd"])
def test_what_comes_through_a_pipe_can_be_read_again(pipe: int, folder: str) -> None:
    """The same bytes can be read again by descriptor and by name, also in an executed program."""
    assert read_script(f"{folder}/{pipe}", "") == TEXT * 5000
    assert stat.S_ISREG(os.fstat(pipe).st_mode)
    assert Path(f"/dev/fd/{pipe}").read_bytes() == BYTES * 5000
    assert os.get_inheritable(pipe)
    with open(pipe, "rb", closefd=False) as file:
        assert file.read() == BYTES * 5000


def test_a_file_that_is_half_read_is_read_from_there(tmp_path: Path) -> None:
    """Reading starts at the descriptor's position, as in sbatch, and keeps it."""
    path = tmp_path / "script"
    path.write_bytes(BYTES)
    with open(path, "rb", buffering=0) as file:
        file.read(10)
        assert read_script(f"/dev/fd/{file.fileno()}", "") == TEXT[10:]
        assert file.read() == BYTES[10:]


@pytest.mark.parametrize(
    "name", ["none", "/none", "/dev/fd/999", "/dev/fd/x", "/", f"/dev/fd/{10**30}"]
)
def test_what_cannot_be_read_is_empty(name: str) -> None:
    """The text is empty; sbatch reports the error."""
    assert read_script(name, "") == ""


def test_a_named_pipe_is_left_for_sbatch(tmp_path: Path) -> None:
    """A named pipe is not read, because it can be read only once."""
    os.mkfifo(tmp_path / "pipe")
    assert read_script(str(tmp_path / "pipe"), "") is None


def test_a_script_is_found_as_sbatch_finds_it(tmp_path: Path) -> None:
    """In the job's directory, then on PATH; names that start with a dot or slash stay as given."""
    for path in ("job/a", "bin/a", "bin/b"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(path)
    job, search = str(tmp_path / "job"), f"/nowhere:{tmp_path / 'bin'}"
    assert find_script("a", job, search) == f"{job}/a"
    assert find_script("b", job, search) == f"{tmp_path}/bin/b"
    for name in ("c", "./a", "../job/a", "/a"):
        assert find_script(name, job, search) == name
