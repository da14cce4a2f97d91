"""An append to the wake-up file by a hook is detected once, and can do no harm."""

from __future__ import annotations

from pathlib import Path

from hadar_slurm.state.wakeup import WakeFile, make_wake_file


def write(path: Path, text: str) -> None:
    """Append as a hook does."""
    with path.open("a") as file:
        file.write(text)


def test_every_writing_is_news_once(tmp_path: Path) -> None:
    """Text from before hadard's start is not news."""
    path = tmp_path / "wake"
    make_wake_file(path)
    write(path, "a")
    wake = WakeFile(path)
    assert not wake.has_news()
    write(path, "b")
    assert wake.has_news()
    assert not wake.has_news()


def test_a_file_that_is_not_there_is_no_news(tmp_path: Path) -> None:
    """A file that is removed or missing is no news, but a new one is."""
    path = tmp_path / "wake"
    wake = WakeFile(path)
    assert not wake.has_news()
    write(path, "a")
    assert wake.has_news()
    path.unlink()
    assert not wake.has_news()
    assert not WakeFile(None).has_news()


def test_the_file_does_not_grow_for_ever(tmp_path: Path) -> None:
    """A large file is emptied, which is not news."""
    path = tmp_path / "wake"
    wake = WakeFile(path)
    write(path, "x" * 2_000_000)
    assert wake.has_news()
    assert path.stat().st_size == 0
    assert not wake.has_news()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """A user with write access to the directory cannot have another file emptied."""
    other = tmp_path / "other"
    other.write_text("kept")
    (tmp_path / "wake").symlink_to(other)
    make_wake_file(tmp_path / "wake")
    assert other.read_text() == "kept"
