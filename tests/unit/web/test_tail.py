"""A journal is followed as it grows, is put aside, is cut short, or is not there."""

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
    """What was read is not read again; what was added since is."""
    append(path, "1\n2\n")
    tail = follow(path)
    assert list(tail.lines()) == [b"1\n", b"2\n"]
    assert list(tail.lines()) == []
    append(path, "3\n")
    assert list(tail.lines()) == [b"3\n"]


def test_a_line_under_way_waits_for_its_end(path: Path, follow: Follow) -> None:
    """Half a line is no line, and neither is lost nor doubled."""
    append(path, "1\n2")
    tail = follow(path)
    assert list(tail.lines()) == [b"1\n"]
    append(path, "2\n")
    assert list(tail.lines()) == [b"22\n"]


def test_a_torn_line_that_a_restart_has_dropped_is_forgotten(path: Path, follow: Follow) -> None:
    """hadard cuts off what a crash left and writes on; the two are not mixed up."""
    append(path, "1\ntorn")
    tail = follow(path)
    assert list(tail.lines()) == [b"1\n"]
    path.write_text("1\n")
    append(path, "another\n")
    assert list(tail.lines()) == [b"another\n"]


def test_it_goes_on_when_the_journal_is_put_aside(path: Path, follow: Follow) -> None:
    """Lines at the end of the old file and at the beginning of the new one all come."""
    append(path, "1\n")
    tail = follow(path)
    assert list(tail.lines()) == [b"1\n"]
    append(path, "2\n")
    path.replace(path.with_name("journal.jsonl.1"))
    append(path, "3\n")
    assert list(tail.lines()) == [b"2\n", b"3\n"]


def test_only_the_tail_of_a_large_journal_is_read(path: Path, follow: Follow) -> None:
    """No more than the limit is read at first, in whole lines."""
    append(path, "".join(f"{n:09}\n" for n in range(1000)))
    assert list(follow(path, max_bytes=25).lines()) == [b"000000998\n", b"000000999\n"]


def test_files_put_aside_fill_up_to_the_limit(path: Path, follow: Follow) -> None:
    """Right after a journal was put aside there is still something to see."""
    append(path.with_name("journal.jsonl.2"), "1\n2\n")
    append(path.with_name("journal.jsonl.1"), "3\n4\n")
    append(path, "5\n")
    assert b"".join(follow(path, max_bytes=100).lines()) == b"1\n2\n3\n4\n5\n"
    assert b"".join(follow(path, max_bytes=8).lines()) == b"2\n3\n4\n5\n"


def test_a_journal_that_is_not_there_is_told_and_read_when_it_comes(
    path: Path, follow: Follow
) -> None:
    """Whoever starts the page before hadard has run sees why it is empty."""
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
    """Whatever cannot be read is told in the system's words."""
    tail = follow(tmp_path)
    assert list(tail.lines()) == []
    assert tail.fault == "Is a directory"


def test_a_journal_that_was_emptied_is_read_from_its_beginning(path: Path, follow: Follow) -> None:
    """Some sites' logrotate copies and truncates."""
    append(path, "1\n2\n3\n")
    tail = follow(path)
    list(tail.lines())
    path.write_text("4\n")
    assert list(tail.lines()) == [b"4\n"]


def test_a_line_without_end_is_not_kept_in_memory(path: Path, follow: Follow) -> None:
    """A file that is no journal cannot fill the memory; what follows is read."""
    append(path, "x" * 5000 + "\n1\n")
    tail = follow(path, max_line=1000)
    assert list(tail.lines()) == [b"1\n"]
    assert tail.too_long == 1


def test_no_round_of_a_busy_daemon_is_missed(path: Path, follow: Follow) -> None:
    """hadard's own journal, put aside every few rounds: each round comes once and in order."""
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
