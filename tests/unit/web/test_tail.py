"""Following a journal that grows, is rotated, is truncated, or is missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from hadar_slurm.core.snapshot import Round
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.journal import Journal
from hadar_slurm.web.tail import Tail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


Follow = Callable[..., Tail]


def _follow(ends: ExitStack, path: Path, **limits: int) -> Tail:
    tail = Tail(path, **limits)
    ends.callback(tail.close)
    return tail


@pytest.fixture
def follow() -> Iterator[Follow]:
    with ExitStack() as ends:
        yield partial(_follow, ends)


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def test_each_line_comes_once(path: Path, follow: Follow) -> None:
    """Lines are returned once; lines added later follow."""
    append(path, "1\n2\n")
    tail = follow(path)
    assert list(tail.lines()) == [b"1\n", b"2\n"]
    assert list(tail.lines()) == []
    append(path, "3\n")
    assert list(tail.lines()) == [b"3\n"]


def test_a_line_under_way_waits_for_its_end(path: Path, follow: Follow) -> None:
    """An incomplete line is returned once, when it is complete."""
    append(path, "1\n2")
    tail = follow(path)
    assert list(tail.lines()) == [b"1\n"]
    append(path, "2\n")
    assert list(tail.lines()) == [b"22\n"]


def test_a_torn_line_that_a_restart_has_dropped_is_forgotten(path: Path, follow: Follow) -> None:
    """A torn line that hadard cuts off at its restart is not joined to the next line."""
    append(path, "1\ntorn")
    tail = follow(path)
    assert list(tail.lines()) == [b"1\n"]
    path.write_text("1\n")
    append(path, "another\n")
    assert list(tail.lines()) == [b"another\n"]


def test_it_goes_on_when_the_journal_is_put_aside(path: Path, follow: Follow) -> None:
    """After a rotation, the rest of the old file and the new file are read."""
    append(path, "1\n")
    tail = follow(path)
    assert list(tail.lines()) == [b"1\n"]
    append(path, "2\n")
    path.replace(path.with_name("journal.jsonl.1"))
    append(path, "3\n")
    assert list(tail.lines()) == [b"2\n", b"3\n"]


def test_only_the_tail_of_a_large_journal_is_read(path: Path, follow: Follow) -> None:
    """At first, whole lines up to the limit are read."""
    append(path, "".join(f"{n:09}\n" for n in range(1000)))
    assert list(follow(path, max_bytes=25).lines()) == [b"000000998\n", b"000000999\n"]


def test_files_put_aside_fill_up_to_the_limit(path: Path, follow: Follow) -> None:
    """Rotated files are read too, up to the limit."""
    append(path.with_name("journal.jsonl.2"), "1\n2\n")
    append(path.with_name("journal.jsonl.1"), "3\n4\n")
    append(path, "5\n")
    assert b"".join(follow(path, max_bytes=100).lines()) == b"1\n2\n3\n4\n5\n"
    assert b"".join(follow(path, max_bytes=8).lines()) == b"2\n3\n4\n5\n"


def test_a_journal_that_is_not_there_is_told_and_read_when_it_comes(
    path: Path, follow: Follow
) -> None:
    """A missing journal is a fault, until it exists."""
    tail = follow(path)
    assert list(tail.lines()) == []
    assert tail.fault == "No such file or directory"
    append(path, "1\n")
    assert list(tail.lines()) == [b"1\n"]
    assert tail.fault == ""
    path.unlink()
    assert list(tail.lines()) == []
    assert tail.fault == "No such file or directory"


def test_a_directory_is_no_journal(tmp_path: Path, follow: Follow) -> None:
    """The fault is the system's error message."""
    tail = follow(tmp_path)
    assert list(tail.lines()) == []
    assert tail.fault == "Is a directory"


def test_a_journal_that_was_emptied_is_read_from_its_beginning(path: Path, follow: Follow) -> None:
    """A truncated journal, as by logrotate's copytruncate, is read from its start."""
    append(path, "1\n2\n3\n")
    tail = follow(path)
    list(tail.lines())
    path.write_text("4\n")
    assert list(tail.lines()) == [b"4\n"]


def test_a_line_without_end_is_not_kept_in_memory(path: Path, follow: Follow) -> None:
    """A line that is too long is skipped, and the next line is read."""
    append(path, "x" * 5000 + "\n1\n")
    tail = follow(path, max_line=1000)
    assert list(tail.lines()) == [b"1\n"]
    assert tail.too_long == 1


def test_no_round_of_a_busy_daemon_is_missed(path: Path, follow: Follow) -> None:
    """With frequent rotations, each round is returned once and in order."""
    tail = follow(path)
    journal = Journal(path, max_bytes=2000, keep=2)
    seen: list[int] = []
    for number in range(100):
        journal.write(RoundRecord(Round(number, float(number), 360.0), "change", "p"))
        if number % 3 == 0:
            seen += [json.loads(line)["round"] for line in tail.lines()]
    journal.close()
    seen += [json.loads(line)["round"] for line in tail.lines()]
    assert seen == list(range(100))
    assert path.with_name("journal.jsonl.2").exists()
