"""If what was trained cannot be read, training does not restart without notice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes.alone import Alone  # noqa: E402
from fakes.trainings import until  # noqa: E402

JOB = {"SLURM_JOB_ID": "42"}
AGAIN = {**JOB, "SLURM_RESTART_COUNT": "1"}


@pytest.fixture
def killed(alone: Alone) -> Alone:
    """Return a training of job 42 that was killed in its first run."""
    first = alone.start("a", 400, "--step-s=0.005", **JOB)
    until(lambda: (alone.place / "hadar-42" / "slots" / "slot-00000003.safetensors").exists())
    alone.kill(first)
    return alone


def slots(alone: Alone) -> list[Path]:
    return sorted((alone.place / "hadar-42" / "slots").glob("slot-????????.safetensors"))


@pytest.mark.slow
@pytest.mark.parametrize("again", [JOB, AGAIN])
def test_ends_that_are_all_broken_are_refused(killed: Alone, again: dict[str, str]) -> None:
    """The error names the files at each start; with the files restored, training is resumed."""
    kept = {path: path.read_bytes() for path in slots(killed)}
    assert len(kept) >= 2
    for path in kept:
        path.write_bytes(b"nonsense")
    before = len(killed.steps("a"))
    for _ in range(2):
        said = killed.run("a", 400, "--step-s=0.005", status=1, **again)
        assert f"{killed.place / 'hadar-42'}: this training has begun before" in said
        assert all(path.with_suffix(".broken").name in said for path in kept)
        assert "or remove" in said
    assert len(killed.steps("a")) == before
    for path, contents in kept.items():
        path.write_bytes(contents)
    assert "resumed, " in killed.run("a", 400, "--step-s=0.005", **again)


@pytest.mark.slow
def test_an_older_end_is_gone_on_from(killed: Alone) -> None:
    """An older slot end is used if the newest is broken."""
    slots(killed)[-1].write_bytes(b"nonsense")
    assert "resumed, " in killed.run("a", 400, "--step-s=0.005", **JOB)


def test_slots_that_are_missing_are_refused(killed: Alone) -> None:
    """`begun.json` shows that there were slot ends."""
    shutil.rmtree(killed.place / "hadar-42" / "slots")
    said = killed.run("a", 400, status=1, **AGAIN)
    assert "begun.json is there, and no slot end" in said
    (killed.place / "hadar-42" / "slots").write_text("no directory")
    assert "Not a directory" in killed.run("a", 400, status=1, **AGAIN)


def test_a_directory_that_is_missing_is_refused_after_a_report(killed: Alone) -> None:
    """A node may not have mounted it; a report of the run before shows that training had begun."""
    (killed.place / "hadar-42").rename(killed.place / "elsewhere")
    said = killed.run("a", 400, status=1, **AGAIN)
    assert "job 42 has reported" in said
    assert killed.place.joinpath("hadar-42", "slots").exists() is False
    shutil.rmtree(killed.place / "hadar-42")
    (killed.place / "elsewhere").rename(killed.place / "hadar-42")
    assert "resumed, " in killed.run("a", 400, "--step-s=0.005", **AGAIN)


def test_a_parent_that_is_missing_is_refused(alone: Alone) -> None:
    """A later run does not create it, but a first run does."""
    named = {"HADAR_JOB_DIR": str(alone.place / "disk" / "mine")}
    said = alone.run("a", 10, status=1, **named, **AGAIN)
    assert f"{alone.place / 'disk'} does not exist" in said
    alone.run("a", 10, **named, **JOB)


def test_a_job_that_was_killed_before_slot_0_begins(alone: Alone) -> None:
    """The second run trains from step 0, with a warning."""
    said = alone.run("a", 10, **AGAIN)
    assert alone.steps("a") == list(range(10))
    assert "there is no sign of an earlier training in" in said


def test_a_job_that_had_joined_and_not_begun_begins(alone: Alone) -> None:
    """The first run was killed after it had joined, before it wrote slot 0."""
    alone.run("a", 10, **JOB)
    directory = alone.place / "hadar-42"
    for name in ("begun.json", "done"):
        (directory / name).unlink()
    shutil.rmtree(directory / "slots")
    shutil.rmtree(alone.place / "spool")
    alone.run("a", 10, **AGAIN)
    assert alone.steps("a") == [*range(10), *range(10)]
