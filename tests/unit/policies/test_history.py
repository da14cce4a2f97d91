"""What was seen of the jobs so far."""

from __future__ import annotations

import pytest
from builders import a_job

from hadar_slurm.core.job import Job
from hadar_slurm.policies.hadar.history import History

HOUR_S = 3600.0


def came(*times_s: float) -> list[Job]:
    """Return one job submitted at each time."""
    return [a_job(str(number), submitted_s=time_s) for number, time_s in enumerate(times_s)]


def seen(*times_s: float, now_s: float) -> History:
    """Return the history of jobs that came one by one, observed from 0 s to `now_s`."""
    jobs, history = came(*times_s), History.begin([], 0.0)
    for number, time_s in enumerate(times_s, 1):
        history = history.after(jobs[:number], time_s)
    return history.after(jobs, now_s)


def test_recent_arrivals_are_expected_once_more() -> None:
    """Jobs that were there at the first sight do not count; others come again, as far apart."""
    first = History.begin([a_job("1", submitted_s=900.0)], 1000.0)
    assert first.expected() == []
    new = a_job("2", submitted_s=1100.0)
    later = first.after([a_job("1", submitted_s=900.0), new], 1400.0)
    assert later.expected() == [(100.0, new)]


def test_of_many_arrivals_those_of_two_hours_are_expected() -> None:
    """One job every 10 min: those of the last 2 h come in the next."""
    history = seen(*(600.0 * number for number in range(1, 61)), now_s=10 * HOUR_S)
    times_s = [time_s for time_s, _ in history.expected()]
    assert times_s == [600.0 * number for number in range(1, 13)]


def test_of_few_arrivals_the_last_eight_are_expected() -> None:
    """One job every 5 h: the last eight come in the next 40 h."""
    history = seen(*(5 * HOUR_S * number for number in range(1, 21)), now_s=100 * HOUR_S)
    assert [time_s / HOUR_S for time_s, _ in history.expected()] == [5.0 * n for n in range(1, 9)]


def test_after_a_silence_longer_than_ever_nothing_is_expected() -> None:
    """After gaps of up to 5 h, five hours without arrivals are as before, more are the end."""
    times_s = [HOUR_S, 6 * HOUR_S, 7 * HOUR_S]
    assert len(seen(*times_s, now_s=12 * HOUR_S).expected()) == 3
    assert seen(*times_s, now_s=12.1 * HOUR_S).expected() == []


def test_a_silence_of_two_hours_is_never_the_end() -> None:
    """Also where all arrivals so far came within minutes."""
    assert seen(60.0, 120.0, now_s=7300.0).expected() != []
    assert seen(60.0, 120.0, now_s=7400.0).expected() == []


def test_what_is_remembered_does_not_grow() -> None:
    """Of a long queue only the arrivals of 2 h, and no fewer than nine, are kept."""
    assert len(seen(*(60.0 * number for number in range(500)), now_s=30_000.0).recent) == 119
    assert len(seen(*(3600.0 * number for number in range(500)), now_s=1.8e6).recent) == 9


def test_the_mean_number_of_jobs_is_over_time() -> None:
    """One job for 100 s, three for 300 s; then, as a play foresees, two for 200 s."""
    history = History.begin(came(0.0), 0.0).after(came(0.0, 100.0, 100.0), 100.0)
    history = history.after(came(0.0), 400.0)
    assert history.mean_num_jobs(0.0, 0.0) == pytest.approx((100 + 900) / 400)
    assert history.mean_num_jobs(400.0, 200.0) == pytest.approx((100 + 900 + 400) / 600)
