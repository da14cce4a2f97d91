"""Whether further jobs are to be expected."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from builders import ROUND, a_job, a_snapshot

from hadar_slurm.core.job import Job, Progress
from hadar_slurm.policies.hadar import tuning
from hadar_slurm.policies.hadar.arrivals import Arrivals
from hadar_slurm.policies.hadar.policy import Hadar

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


def test_critical_jobs_go_first_on_more_gpus_once_none_is_expected() -> None:
    """On all of them where every job came at one time."""
    share = partial(Arrivals().after(came(0.0, HOUR_S)).critical_share, can_move=True)
    assert share(2 * HOUR_S) == tuning.CRITICAL_SHARE < share(9 * HOUR_S) == tuning.LAST_SHARE < 1
    batch = Arrivals().after(came(0.0, 0.0))
    assert batch.critical_share(9 * HOUR_S, can_move=True) == 1.0
    assert batch.critical_share(9 * HOUR_S, can_move=False) == tuning.LAST_SHARE


def test_a_job_that_is_requeued_has_not_come_again() -> None:
    """Slurm shows the time of the requeue as that of the submission."""
    first, second = came(0.0, 0.0)
    moved = replace(second, spec=replace(second.spec, submitted_s=600.0))
    again = replace(moved, progress=Progress(10.0, restarts=1))
    assert Arrivals().after([first, second]).after([first, moved]).are_expected(900.0)
    assert not Arrivals().after([first, second]).after([first, again]).are_expected(900.0)


def test_a_policy_knows_when_jobs_came_from_round_to_round() -> None:
    """Also from rounds in which no job can move."""
    for can_move in (False, True):
        early = a_job("1", submitted_s=0.0, can_checkpoint=can_move)
        late = a_job("2", submitted_s=5 * HOUR_S, can_checkpoint=can_move)
        first = Hadar().plan(a_snapshot("2xV100", early), ROUND)
        round_ = replace(ROUND, memory=first.memory)
        second = Hadar().plan(a_snapshot("2xV100", late, now_s=5 * HOUR_S), round_)
        assert second.memory.arrivals == Arrivals(5 * HOUR_S, 5 * HOUR_S)


def test_after_a_silence_longer_than_ever_nothing_is_expected() -> None:
    """After gaps of up to 5 h, five hours without arrivals are as before, more are the end."""
    arrivals = seen(HOUR_S, 6 * HOUR_S, 7 * HOUR_S)
    assert arrivals.are_expected(12 * HOUR_S)
    assert not arrivals.are_expected(12.1 * HOUR_S)


def test_a_silence_of_two_hours_is_never_the_end() -> None:
    """Also where all arrivals so far came within minutes."""
    assert seen(60.0, 120.0).are_expected(7300.0)
    assert not seen(60.0, 120.0).are_expected(7400.0)
