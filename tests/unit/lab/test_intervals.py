"""The interval of a gain, from one run: how often it has the true ratio, and when there is none."""

from __future__ import annotations

from random import Random

import pytest

from hadar_slurm.lab.study.gains.intervals import ratio_interval

Jobs = tuple[list[float], list[float], list[str]]


def a_site(seed: int, *, by_user: float, by_day: float) -> Jobs:
    """Return jobs whose ratio varies by user and by day, and is 0.8 on the mean of all such."""
    draw = Random(f"site {seed}")
    of_user = {f"user{n}": draw.uniform(-by_user, by_user) for n in range(20)}
    ours, theirs, users = [], [], []
    for _ in range(20):
        of_day = draw.uniform(-by_day, by_day)
        for _ in range(20):
            user = draw.choice(list(of_user))
            theirs.append(draw.expovariate(1 / 3600.0))
            ours.append(theirs[-1] * (0.8 + of_user[user] + of_day))
            users.append(user)
    return ours, theirs, users


@pytest.mark.parametrize(("by_user", "by_day"), [(0.5, 0.0), (0.0, 0.5), (0.3, 0.3)])
def test_the_interval_has_the_ratio_of_all_sites_as_often_as_it_says(
    by_user: float, by_day: float
) -> None:
    """With differences by user, by day, or both, in 90 % of 200 sites, give or take 6 %."""
    num_hit, widths = 0, []
    for seed in range(200):
        found = ratio_interval(*a_site(seed, by_user=by_user, by_day=by_day))
        assert found
        num_hit += found.low <= 0.8 <= found.high
        widths.append(found.high - found.low)
    assert 0.84 <= num_hit / 200 <= 0.96
    assert 0.05 < sum(widths) / len(widths) < 0.5


def test_equal_jobs_leave_no_doubt() -> None:
    """Where each job takes half as long, the interval is one point."""
    theirs = [float(n + 1) for n in range(400)]
    ours = [each / 2 for each in theirs]
    found = ratio_interval(ours, theirs, [""] * 400)
    assert found == pytest.approx((0.5, 0.5))


def test_few_users_and_few_jobs_give_no_interval() -> None:
    """Ten users suffice, or a hundred jobs; a job without a user may be that of any."""
    times = [float(n + 1) for n in range(60)]
    assert ratio_interval(times, times, [f"u{n % 9}" for n in range(60)]) is None
    assert ratio_interval(times, times, [f"u{n % 10}" for n in range(60)])
    assert ratio_interval(times, times, ["", *(f"u{n}" for n in range(59))]) is None
    times = [float(n + 1) for n in range(100)]
    assert ratio_interval(times, times, [""] * 100)
    for number in (73, 80, 99):
        assert ratio_interval(times[:number], times[:number], [""] * number) is None


def test_times_of_other_jobs_and_no_times_are_refused() -> None:
    with pytest.raises(ValueError, match="of the same jobs"):
        ratio_interval([1.0], [1.0, 2.0], ["a"])
    with pytest.raises(ValueError, match="above 0"):
        ratio_interval([0.0], [0.0], ["a"])
