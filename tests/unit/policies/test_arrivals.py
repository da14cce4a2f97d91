"""Whether further jobs are to be expected."""

from __future__ import annotations

from builders import a_job

from hadar_slurm.core.job import Job
from hadar_slurm.policies.hadar.arrivals import Arrivals

HOUR_S = 3600.0


def came(*times_s: float) -> list[Job]:
    """Return one job submitted at each time."""
    return [a_job(str(number), submitted_s=time_s) for number, time_s in enumerate(times_s)]


def seen(*times_s: float) -> Arrivals:
    """Return what is known of jobs that came one by one, each gone as the next came."""
    arrivals = Arrivals()
    for job in came(*times_s):
        arrivals = arrivals.after([job])
    return arrivals


def test_of_a_queue_that_is_worked_off_nothing_is_expected() -> None:
    """All its jobs were there at the first sight, submitted at one time, perhaps long before."""
    assert not Arrivals().are_expected(0.0)
    assert not Arrivals().after(came(0.0, 0.0, 0.0)).are_expected(0.0)
    assert not Arrivals().after(came(0.0, 0.0)).after(came(0.0)).are_expected(60.0)


def test_where_jobs_came_at_several_times_more_are_expected() -> None:
    """Also at the first sight, as after a restart; then for two hours, whatever lies between."""
    arrivals = Arrivals().after(came(0.0, 50 * HOUR_S))
    assert arrivals.are_expected(52 * HOUR_S)
    assert not arrivals.are_expected(52 * HOUR_S + 1.0)


def test_after_a_silence_longer_than_ever_nothing_is_expected() -> None:
    """After gaps of up to 5 h, five hours without arrivals are as before, more are the end."""
    arrivals = seen(HOUR_S, 6 * HOUR_S, 7 * HOUR_S)
    assert arrivals.are_expected(12 * HOUR_S)
    assert not arrivals.are_expected(12.1 * HOUR_S)


def test_a_silence_of_two_hours_is_never_the_end() -> None:
    """Also where all arrivals so far came within minutes."""
    assert seen(60.0, 120.0).are_expected(7300.0)
    assert not seen(60.0, 120.0).are_expected(7400.0)
