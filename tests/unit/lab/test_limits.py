"""Time limits as users give them."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import pytest
from builders import a_spec, some_rates

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.errors import UsageError
from hadar_slurm.lab.traces.limits import LimitHabits, parse_limits

TYPES = (GpuType("V100"), GpuType("K80"))
SPECS = [
    a_spec(str(number), steps=1000 + number, throughputs=some_rates(V100=10.0, K80=2.0))
    for number in range(2000)
] + [a_spec("long", steps=10**7, throughputs=some_rates(V100=10.0, K80=2.0))]


def test_limits_have_the_median_and_the_share_at_the_longest() -> None:
    """None is below the time on the slowest type, nor above the longest of these times."""
    drawn = LimitHabits(5.0, 0.4).drawn(SPECS, TYPES, 1)
    longest = max(spec.limit_steps for spec in drawn)
    assert longest == 10**7
    others = [s.limit_steps / s.total_steps for s in drawn if s.limit_steps < longest]
    assert median(others) == pytest.approx(5.0, rel=0.1)
    assert min(others) >= 1.0
    assert {spec.limit_type for spec in drawn} == {"K80"}
    assert 1 - len(others) / len(drawn) == pytest.approx(0.4, abs=0.03)


def test_limits_follow_from_the_seed() -> None:
    """Another seed draws others; limits that a trace has are kept."""
    limits = LimitHabits(5.0, 0.4)
    assert limits.drawn(SPECS, TYPES, 1) == limits.drawn(SPECS, TYPES, 1)
    assert limits.drawn(SPECS, TYPES, 1) != limits.drawn(SPECS, TYPES, 2)
    own = [replace(SPECS[0], limit_s=7.0), SPECS[1]]
    assert limits.drawn(own, TYPES, 1) == own


def test_limits_are_read() -> None:
    """The share may be left out."""
    assert parse_limits("5x,40%") == parse_limits(" 5X, 40% ") == LimitHabits(5.0, 0.4)
    assert parse_limits("2.5x") == LimitHabits(2.5)
    assert parse_limits("") is None
    assert str(LimitHabits(5.0, 0.4)) == "5x,40%"
    for wrong in ("5", "0x", "5x,140%", "x", "5x,40", "-1x", "5x;40%", "nanx"):
        with pytest.raises(UsageError, match="--limits"):
            parse_limits(wrong)
    assert math.isinf(SPECS[0].limit_steps)
