"""Every form of --time in sbatch's manual page, and invalid ones."""

from __future__ import annotations

import pytest
from builders import some_rates

from hadar_slurm.core.time_limit import (
    format_time_limit,
    late_types,
    limits_by_type,
    parse_time_limit,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("1:30:00", 5400),
        ("2-12", 216_000),
        ("2-12:30", 217_800),
        ("2-12:30:05", 217_805),
        (" 5 ", 300),
    ],
)
def test_a_limit_is_read_as_sbatch_reads_it(text: str, seconds: int) -> None:
    assert parse_time_limit(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "-1", "UNLIMITED", "infinite", "1:2:3:4", "1-", "\u0661", "1h", "1.5"]
)
def test_no_limit_and_no_time_at_all_are_none(text: str) -> None:
    assert parse_time_limit(text) is None


@pytest.mark.parametrize("text", ["0:00:05", "1:30:00", "23:59:59", "1-0:00:00", "20-12:30:05"])
def test_a_limit_is_printed_as_slurm_prints_it(text: str) -> None:
    limit_s = parse_time_limit(text)
    assert limit_s is not None
    assert format_time_limit(limit_s) == text


SPEEDS = some_rates(v100=10.0, p100=4.0, k80=1.0)


def test_a_slower_type_gets_more_time_up_to_the_maximum_and_none_gets_less() -> None:
    """In whole minutes; without a type on which it was measured the limit is the same on all."""
    assert limits_by_type(SPEEDS, 1, 120.0, measured_on="p100", most_s=300.0) == {
        "v100": 120.0,
        "p100": 120.0,
        "k80": 300.0,
    }
    assert limits_by_type(SPEEDS, 1, 180.0, measured_on="v100")["p100"] == 480.0
    assert set(limits_by_type(SPEEDS, 1, 120.0).values()) == {120.0}
    assert set(limits_by_type(SPEEDS, 1, 120.0, measured_on="h100").values()) == {120.0}
    # An operator may have set a limit above the partition's maximum.
    assert limits_by_type(SPEEDS, 1, 120.0, measured_on="v100", most_s=60.0)["k80"] == 120.0


def test_a_type_is_late_where_the_steps_take_longer_than_the_limit() -> None:
    """Except one that the job holds; if it would be late everywhere, no type counts as late."""
    limits_s = dict.fromkeys(("v100", "p100", "k80"), 60.0)
    types = ("V100", "p100", "k80")
    assert late_types(SPEEDS, 1, 400.0, limits_s, types) == {"p100": 100.0, "k80": 400.0}
    assert late_types(SPEEDS, 1, 400.0, limits_s, types, {"k80": 1}) == {"p100": 100.0}
    assert late_types(SPEEDS, 1, 600.0, limits_s, types).keys() == {"p100", "k80"}
    assert late_types(SPEEDS, 1, 6000.0, limits_s, types) == {}
    assert late_types(SPEEDS, 1, 400.0, limits_s, ("p100", "k80")) == {}
    # Types on which it does not run are neither late nor in time.
    with_t4 = {**limits_s, "t4": 1.0}
    assert late_types(SPEEDS, 1, 400.0, with_t4, (*types, "t4")) == {"p100": 100.0, "k80": 400.0}
    assert late_types(SPEEDS, 1, 6000.0, with_t4, (*types, "t4")) == {}
