"""Every form of --time in sbatch's manual page, and invalid ones."""

from __future__ import annotations

import pytest

from hadar_slurm.jobspec.time_limit import format_time_limit, parse_time_limit


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
