"""What hadard may do follows from the partition, and in doubt it is the less."""

from __future__ import annotations

import pytest

from hadar_slurm.slurm.client.protocol import Partitions
from hadar_slurm.slurm.control.modes import Mode, Modes

MIXED = Modes(Mode.OBSERVE, {"gpu": Mode.ENFORCE, "debug": Mode.ADVISE})


@pytest.mark.parametrize(
    ("partitions", "mode"),
    [
        ("gpu", Mode.ENFORCE),
        ("debug", Mode.ADVISE),
        ("other", Mode.OBSERVE),
        ("gpu,debug", Mode.ADVISE),
        ("debug,gpu", Mode.ADVISE),
        ("gpu,other", Mode.OBSERVE),
        ("", Mode.OBSERVE),
    ],
)
def test_a_job_in_several_partitions_has_the_most_careful_mode(partitions: str, mode: Mode) -> None:
    """A job may start in any of them."""
    assert MIXED.of(partitions) is mode


def test_without_a_word_all_is_observed() -> None:
    """Nobody's jobs are touched by default."""
    assert Modes().of("gpu") is Mode.OBSERVE
    assert Modes().all == (Mode.OBSERVE,)
    assert Modes().enforced(Partitions(("gpu",), "gpu")) == ()


def test_all_modes_are_listed_from_the_furthest() -> None:
    """The first one makes the plan that is written first."""
    assert MIXED.all == (Mode.ENFORCE, Mode.ADVISE, Mode.OBSERVE)


@pytest.mark.parametrize(
    ("modes", "default", "enforced"),
    [
        (Modes(Mode.ENFORCE), "main", None),
        (Modes(Mode.ENFORCE, {"gpu": Mode.ENFORCE}), "main", None),
        (MIXED, "main", ("gpu",)),
        (MIXED, "gpu", ("gpu", "")),
        (MIXED, "", ("gpu",)),
        (Modes(Mode.ENFORCE, {"debug": Mode.OBSERVE}), "debug", ("gpu", "main")),
        (Modes(Mode.ENFORCE, {"debug": Mode.OBSERVE}), "main", ("gpu", "main", "")),
        (Modes(Mode.ENFORCE, {"debug": Mode.OBSERVE}), "", ("gpu", "main")),
    ],
)
def test_partitions_whose_jobs_may_be_held(
    modes: Modes, default: str, enforced: tuple[str, ...] | None
) -> None:
    """Those that no key names too; the empty name is that of a job that names no partition."""
    assert modes.enforced(Partitions(("debug", "gpu", "main"), default)) == enforced
