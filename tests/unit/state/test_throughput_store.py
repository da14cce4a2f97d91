"""What was learned survives a restart of hadard; a damaged file does not stop hadard."""

from __future__ import annotations

import logging
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from hadar_slurm.core.throughput_model import Measured, Place, Workload
from hadar_slurm.core.type_failures import TypeRecord, Work
from hadar_slurm.state.learned_changes import ProfileError, forget, read_profile
from hadar_slurm.state.learned_file import MAX_WORKLOADS_OF_USER, VERSION
from hadar_slurm.state.throughput_store import Profile

ADAS = Workload("ada", "ResNet-50 (batch size 64)")
V100 = Place("v100", 4, is_spread=True)
WORK = Work(ADAS, 4)
FAILURE = TypeRecord(failed_s=50.0, lasted_s=12.0, failing_since_s=50.0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "profile.sqlite"


def opened(path: Path, now_s: Callable[[], float] = time.time) -> Profile:
    profile = Profile(path, now_s)
    profile.sync()
    return profile


def filled(path: Path) -> None:
    profile = opened(path)
    for throughput in (10.0, 20.0):
        profile.speeds.measure(ADAS, V100, throughput)
    profile.records.failed(WORK, "v100", 50.0, 12.0)
    profile.records.ran(WORK, "a100", 60.0)
    profile.sync()


def test_what_is_measured_is_there_after_a_restart(path: Path) -> None:
    filled(path)
    found = opened(path)
    assert found.speeds.measured == {ADAS: {V100: Measured(15.0, 15.0, 2)}}
    assert found.records.of_work == {WORK: {"v100": FAILURE, "a100": TypeRecord(ran_s=60.0)}}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_only_news_is_written(path: Path) -> None:
    profile = opened(path)
    before = path.stat().st_mtime_ns
    profile.sync()
    assert path.stat().st_mtime_ns == before
    profile.speeds.measure(ADAS, V100, 1.0)
    profile.sync()
    assert not profile.speeds.news


def test_a_file_of_version_1_is_kept(path: Path) -> None:
    """It gets the table of failures, and loses nothing."""
    filled(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE type_records")
        connection.execute("DROP TABLE credits")
        connection.execute("DROP TABLE ended_jobs")
        connection.execute("PRAGMA user_version = 1")
    found = opened(path)
    assert set(found.speeds.measured) == {ADAS}
    assert not found.records.of_work
    found.records.failed(WORK, "v100", 50.0, 12.0)
    found.sync()
    assert opened(path).records.of_work == {WORK: {"v100": FAILURE}}
    assert [other.name for other in path.parent.iterdir()] == [path.name]


def test_what_another_process_forgets_is_forgotten(path: Path) -> None:
    """By a running hadard too, in its next round; what it has not yet written stays."""
    filled(path)
    profile = opened(path)
    other = Workload("ada", "other")
    profile.speeds.measure(other, V100, 3.0)
    profile.records.failed(Work(other, 1), "k80", 70.0, 1.0)
    profile.sync()
    profile.speeds.measure(Workload("ben", "A3C"), V100, 3.0)
    profile.records.ran(Work(other, 2), "k80", 80.0)
    assert forget(path, "ada", ADAS.name) == 3
    profile.sync()
    assert profile.speeds.measured.keys() == {other, Workload("ben", "A3C")}
    assert profile.records.of_work.keys() == {Work(other, 1), Work(other, 2)}
    assert forget(path, "ada") == 3
    assert forget(path, "nobody") == 0
    profile.sync()
    assert profile.speeds.measured.keys() == {Workload("ben", "A3C")}
    assert not profile.records.of_work
    speeds, records, _, _ = read_profile(path)
    assert (speeds.measured, records.of_work) == (profile.speeds.measured, {})


def test_a_file_that_is_gone_is_written_again(path: Path) -> None:
    """With all that hadard knows, whether or not it was new."""
    filled(path)
    profile = opened(path)
    path.unlink()
    profile.sync()
    assert opened(path).speeds.measured == profile.speeds.measured
    assert opened(path).records.of_work == profile.records.of_work


def test_what_cannot_be_forgotten_is_said(path: Path) -> None:
    """A newer file is left as it is, by the command as well; without a file nothing is known."""
    assert forget(path, "ada") == 0
    assert read_profile(path)[0].measured == {}
    newer(path)
    content = path.read_bytes()
    for use in (lambda: forget(path, "ada"), lambda: read_profile(path)):
        with pytest.raises(ProfileError, match="version 6, this reads 5"):
            use()
    assert path.read_bytes() == content


def corrupt(path: Path) -> None:
    path.write_bytes(b"no database at all" * 100)


def torn(path: Path) -> None:
    filled(path)
    path.write_bytes(path.read_bytes()[:5000])


def newer(path: Path) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {VERSION + 1}")


def another(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE speeds (something TEXT)")


def another_of_this_version(path: Path) -> None:
    another(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {VERSION}")


@pytest.mark.parametrize("spoil", [corrupt, torn, newer, another, another_of_this_version])
def test_a_file_that_is_of_no_use_is_put_aside(
    path: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """It is renamed unchanged, with a warning, and a new file is used."""
    spoil(path)
    content = path.read_bytes()
    with caplog.at_level(logging.WARNING):
        profile = opened(path, now_s=lambda: 5.0)
    assert profile.speeds.measured == {}
    aside = path.with_name("profile.sqlite.5.aside")
    assert aside.read_bytes() == content
    [told] = caplog.messages
    assert str(path) in told
    assert aside.name in told
    profile.speeds.measure(ADAS, V100, 10.0)
    profile.sync()
    assert set(opened(path).speeds.measured) == {ADAS}


def test_a_locked_file_is_tried_again(path: Path) -> None:
    """Neither stored nor new measurements are lost; the fault is reported until the lock ends."""
    filled(path)
    other = Workload("ben", "A3C")
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        profile = opened(path)
        profile.speeds.measure(other, V100, 3.0)
        profile.sync()
        assert set(profile.speeds.measured) == {other}
        assert "locked" in profile.fault
        holder.execute("ROLLBACK")
    profile.sync()
    assert profile.fault == ""
    assert set(profile.speeds.measured) == {ADAS, other}
    assert set(opened(path).speeds.measured) == {ADAS, other}


def test_where_nothing_can_be_written_hadard_goes_on(tmp_path: Path) -> None:
    """Measurements are kept in memory, and the fault is reported."""
    profile = opened(tmp_path / "nowhere" / "profile.sqlite")
    profile.speeds.measure(ADAS, V100, 3.0)
    profile.sync()
    assert set(profile.speeds.measured) == {ADAS}
    assert "nowhere" in profile.fault


def test_a_workload_that_cannot_be_written_ends_no_round(path: Path) -> None:
    """SQLite takes no half of a surrogate pair."""
    profile = opened(path)
    profile.speeds.measure(Workload("ada", "x\ud83d"), V100, 3.0)
    profile.sync()
    assert "surrogates not allowed" in profile.fault


@pytest.mark.parametrize(
    "row",
    [
        ("ada", "x", "v100", 0, 0, 1.0, 1.0, 1, 0.0),
        ("ada", "x", "v100", 1, 0, -1.0, 1.0, 1, 0.0),
        ("ada", "x", "v100", 1, 0, 1.0, 1e300, 1, 0.0),
        ("ada", "x", "v100", "many", 0, 1.0, 1.0, 1, 0.0),
        ("ada", "x", "v100", 1, 0, 1.0, 1.0, 0, 0.0),
    ],
)
def test_a_row_that_cannot_be_is_passed_over(path: Path, row: tuple[object, ...]) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO speeds VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    assert set(opened(path).speeds.measured) == {ADAS}


@pytest.mark.parametrize(
    "row",
    [
        ("ada", "x", 0, "v100", 0.0, 0.0, 5.0, 1.0, 5.0, 0.0),
        ("ada", "x", 1, "v100", -1.0, 0.0, 5.0, 1.0, 5.0, 0.0),
        ("ada", "x", 1, "v100", 0.0, 0.0, 1e300, 1.0, 5.0, 0.0),
        ("ada", "x", 1, "v100", 0.0, 0.0, "once", 1.0, 5.0, 0.0),
    ],
)
def test_a_record_that_cannot_be_is_passed_over(path: Path, row: tuple[object, ...]) -> None:
    filled(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO type_records VALUES (?,?,?,?,?,?,?,?,?,?)", row)
    assert opened(path).records.of_work.keys() == {WORK}


def test_a_user_has_room_for_so_many_workloads(path: Path) -> None:
    """A user with many workload names replaces only their own older ones."""
    filled(path)
    now_s = iter(range(10_000))
    profile = opened(path, now_s=lambda: float(next(now_s)))
    for number in range(MAX_WORKLOADS_OF_USER + 5):
        profile.speeds.measure(Workload("mallory", f"w{number}"), V100, 1.0)
        profile.records.failed(Work(Workload("mallory", f"w{number}"), 1), "v100", 9.0, 1.0)
        if number % 50 == 0:
            profile.sync()
    profile.sync()
    kept = opened(path).speeds.measured
    assert len(kept) == MAX_WORKLOADS_OF_USER + 1
    assert ADAS in kept
    failures = opened(path).records.of_work
    assert len(failures) == MAX_WORKLOADS_OF_USER + 1
    assert WORK in failures


def test_how_far_a_users_claims_were_off_is_kept_until_forgotten(path: Path) -> None:
    """Another hadard believes the user as little; `forget` of the user alone ends it."""
    profile = opened(path)
    profile.credits.learn("mallory", 1.0, 10.0, 100.0, speeds_off=3.0)
    profile.sync()
    assert opened(path).credits.of("mallory") == profile.credits.of("mallory")
    forget(path, "mallory", "train")
    assert opened(path).credits.of("mallory").factor(100.0) == pytest.approx(10.0)
    assert forget(path, "mallory") == 1
    profile.refresh()
    assert profile.credits.of("mallory").factor(100.0) == 1.0
