"""A job's mode follows from its partitions; of several modes, the least invasive one applies."""

from __future__ import annotations

import pytest

from hadar_slurm.engine.modes import Mode, Modes, Partitions

MIXED = Modes(Mode.OBSERVE, {"gpu": Mode.HOLD, "debug": Mode.ADVISE})


@pytest.mark.parametrize(
    ("partitions", "mode"),
    [
        ("gpu", Mode.HOLD),
        ("debug", Mode.ADVISE),
        ("other", Mode.OBSERVE),
        ("gpu,debug", Mode.ADVISE),
        ("debug,gpu", Mode.ADVISE),
        ("gpu,other", Mode.OBSERVE),
        ("", Mode.OBSERVE),
    ],
)
def test_a_job_in_several_partitions_has_the_most_careful_mode(partitions: str, mode: Mode) -> None:
    """The job may start in any of its partitions."""
    assert MIXED.of(partitions) is mode


def test_without_a_word_all_is_observed() -> None:
    """By default hadard changes no jobs."""
    assert Modes().of("gpu") is Mode.OBSERVE
    assert Modes().all == (Mode.OBSERVE,)
    assert Modes().places_in(Partitions(("gpu",), "gpu")) == ()


def test_all_modes_are_listed_from_the_furthest() -> None:
    """The plan of the most invasive mode is written first."""
    assert MIXED.all == (Mode.HOLD, Mode.ADVISE, Mode.OBSERVE)


@pytest.mark.parametrize(
    ("modes", "default", "enforced"),
    [
        (Modes(Mode.HOLD), "main", None),
        (Modes(Mode.HOLD, {"gpu": Mode.HOLD}), "main", None),
        (MIXED, "main", ("gpu",)),
        (MIXED, "gpu", ("gpu", "")),
        (MIXED, "", ("gpu",)),
        (Modes(Mode.HOLD, {"debug": Mode.OBSERVE}), "debug", ("gpu", "main")),
        (Modes(Mode.HOLD, {"debug": Mode.OBSERVE}), "main", ("gpu", "main", "")),
        (Modes(Mode.HOLD, {"debug": Mode.OBSERVE}), "", ("gpu", "main")),
    ],
)
def test_partitions_whose_jobs_may_be_held(
    modes: Modes, default: str, enforced: tuple[str, ...] | None
) -> None:
    """Partitions without a mode of their own count, too; '' stands for jobs without a partition."""
    assert modes.places_in(Partitions(("debug", "gpu", "main"), default)) == enforced
