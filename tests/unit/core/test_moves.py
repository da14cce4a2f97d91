"""By which words jobs may be moved."""

from __future__ import annotations

import math

import pytest

from hadar_slurm.core.moves import (
    MovedBy,
    MoveLevel,
    OwnSignal,
    level_of,
    parse_level,
    parse_signal,
    why_not_preempted,
    why_not_requeued,
    why_not_signalled,
)


@pytest.mark.parametrize(
    ("text", "signal"),
    [
        ("B:USR1@120", OwnSignal("USR1", True, 120)),
        ("SIGUSR2", OwnSignal("USR2", False, 60)),
        ("RB:usr1@90", OwnSignal("USR1", True, 90)),
        ("R:10@300", OwnSignal("USR1", False, 300)),
        ("b:15", OwnSignal("TERM", True, 60)),
        ("USR1@301", None),
        ("USR1@0", None),
        ("KILL@60", None),
        ("9@60", None),
        ("B:", None),
        ("USR1@soon", None),
        ("", None),
    ],
)
def test_a_signal_is_read_as_sbatch_does(text: str, signal: OwnSignal | None) -> None:
    """What is written of it is read back alike; those by which nothing saves are none."""
    assert parse_signal(text) == signal
    assert signal is None or parse_signal(str(signal)) == signal


def test_a_script_that_a_signal_ends_is_known_by_its_status() -> None:
    """Slurm shows status of wait(2): by the signal itself, or as a shell reports it of a child."""
    assert OwnSignal("USR1", True, 1).deaths == (10, 138 << 8)
    assert OwnSignal("TERM", True, 1).deaths == (15, 143 << 8)


LEVELS = {
    "default": "signals",
    "partition=long": "none",
    "qos=urgent": "stated",
    "account=bio": "signals",
}


@pytest.mark.parametrize(
    ("partitions", "qos", "account", "level"),
    [
        ("main", "normal", "physics", MovedBy.SIGNALS),
        ("main,long", "normal", "bio", MovedBy.NONE),
        ("main", "urgent", "bio", MovedBy.STATED),
        ("", "", "", MovedBy.SIGNALS),
    ],
)
def test_the_least_level_that_applies_counts(
    partitions: str, qos: str, account: str, level: MovedBy
) -> None:
    """Of those given for partitions, QOS and account; else the default."""
    assert level_of(LEVELS, partitions, qos, account).by is level
    assert level_of({}, partitions, qos, account).by is MovedBy.STATED


def test_a_level_may_say_how_much_work_a_job_may_lose_in_a_day() -> None:
    """An hour unless it does; of two the least counts, and no other level has one."""
    assert parse_level("preemptible") == MoveLevel(MovedBy.PREEMPTIBLE, 3_600.0)
    assert parse_level("preemptible:30m") == MoveLevel(MovedBy.PREEMPTIBLE, 1_800.0)
    both = {"partition=low": "preemptible:2h", "qos=cheap": "preemptible:90s"}
    assert level_of(both, "low", "cheap", "").most_s == 90.0
    for wrong in ("preemptible:", "preemptible:0s", "preemptible:2d", "signals:1h", "often"):
        with pytest.raises(ValueError, match="expected none"):
            parse_level(wrong)


@pytest.mark.parametrize(
    ("loses_s", "since_s", "why"),
    [
        (1_800.0, math.inf, ""),
        (3_600.0, math.inf, ""),
        (3_601.0, math.inf, "it would lose 1 h, and may 1 h in a day"),
        # Half of a day's work, so not again for half a day.
        (1_800.0, 43_200.0, ""),
        (1_800.0, 43_199.0, "it was requeued 12 h ago, would lose 30 min"),
        # A restart takes a minute even where nothing is lost.
        (0.0, 1_440.0, ""),
        (0.0, 1_439.0, "it was requeued 24 min ago"),
    ],
)
def test_a_run_may_be_requeued_as_slurm_would_within_a_days_loss(
    loses_s: float, since_s: float, why: str
) -> None:
    """At most an hour of work in a day here."""
    found = why_not_preempted(loses_s, 3_600.0, since_s=since_s)
    assert found.startswith(why) if why else found == ""


def test_a_run_gets_its_own_signal_once_it_has_lasted_and_until_one_fails() -> None:
    """It has to last twice as long as leaving may take."""
    own = OwnSignal("USR1", True, 120)
    assert why_not_signalled(own, 240.0, 0) == ""
    assert why_not_signalled(own, 239.0, 0) == "not migrated now: it has run for less than 4 min"
    assert "its run 2 did not save on B:USR1@120" in why_not_signalled(own, 1e6, 2)


@pytest.mark.parametrize(
    ("loses_s", "ran_s", "why"),
    [
        (None, 1199.0, "it has run for less than 20 min, twice what it may lose"),
        (None, 1200.0, ""),
        (601.0, 9000.0, "it would lose 10 min since its last checkpoint, and may 10 min"),
        (500.0, 999.0, "it has kept less in this run than it would lose"),
        (500.0, 1000.0, ""),
    ],
)
def test_a_run_keeps_at_least_what_it_loses(loses_s: float | None, ran_s: float, why: str) -> None:
    """Of a job that may lose ten minutes."""
    assert why_not_requeued(600.0, loses_s, ran_s) == why
