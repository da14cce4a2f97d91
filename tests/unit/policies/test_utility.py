"""Utilities: values by hand, and properties of all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import a_job, a_snapshot, some_rates
from hypothesis import given
from hypothesis import strategies as st
from strategies import snapshots

from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.policies.hadar_paper.utility import (
    UTILITIES,
    Appraisal,
    FinishTimes,
    effective_throughput,
    finish_time_fairness,
    shortest_remaining,
)

seconds = st.floats(0, 1e7)
worths = st.builds(FinishTimes, seconds, seconds, seconds, seconds, seconds)
positive = st.floats(1e-2, 1e7)
real_worths = st.builds(FinishTimes, seconds, positive, positive, positive, positive)


def test_effective_throughput_is_ideal_over_actual_time() -> None:
    """A job that takes twice its ideal time, waiting included, has utility 1/2."""
    # Age 30 s, 70 s left, ideal 50 s on its best type: 50 / (30 + 70).
    assert effective_throughput(FinishTimes(30, 70, 50, 200, 5)) == pytest.approx(0.5)


def test_shortest_remaining_compares_with_the_shortest() -> None:
    """The job with the least time left has utility 1, one with ten times as much 0.1."""
    assert shortest_remaining(FinishTimes(30, 50, 50, 200, 5)) == pytest.approx(0.1)
    assert shortest_remaining(FinishTimes(30, 5, 50, 200, 5)) == 1.0


def test_finish_time_fairness_compares_with_a_fair_share() -> None:
    """A finish at the time of a 1/n share has utility 1/2."""
    # rho = (30 + 70) / 100 = 1, so 1/rho = 1 and 1 - 1/(1 + 1) = 1/2.
    assert finish_time_fairness(FinishTimes(30, 70, 50, 100, 5)) == pytest.approx(0.5)
    # rho = 100 / 300, 1/rho = 3, 1 - 1/4.
    assert finish_time_fairness(FinishTimes(30, 70, 50, 300, 5)) == pytest.approx(0.75)


@pytest.mark.parametrize("name", UTILITIES)
@given(worth=worths, later_s=seconds)
def test_a_later_finish_is_never_worth_more(name: str, worth: FinishTimes, later_s: float) -> None:
    """Utilities are in [0, 1] and never rise with the time of the finish."""
    value = UTILITIES[name](worth)
    assert 0 <= value <= 1
    assert UTILITIES[name](replace(worth, left_s=worth.left_s + later_s)) <= value


@pytest.mark.parametrize("name", UTILITIES)
@given(worth=real_worths)
def test_the_unit_of_time_is_of_no_account(name: str, worth: FinishTimes) -> None:
    """Utilities are dimensionless: minutes give the same values as seconds."""
    scaled = FinishTimes(*(60 * getattr(worth, field) for field in FinishTimes.__slots__))
    assert UTILITIES[name](scaled) == pytest.approx(UTILITIES[name](worth))


def test_an_appraisal_takes_its_times_from_the_snapshot() -> None:
    """Age, ideal time, fair-share time and shortest time are those of the snapshot."""
    # Job 1: 1000 steps at 10/s on a V100; its fastest type, the A100, is not in the cluster.
    # Job 2: 600 of 1000 steps done, 400 left at 4/s on a P100.
    one = a_job("1", throughputs=some_rates(V100=10.0, A100=50.0), submitted_s=80.0)
    two = a_job("2", throughputs=some_rates(P100=4.0), done=600.0)
    seen: list[FinishTimes] = []

    def note(worth: FinishTimes) -> float:
        seen.append(worth)
        return 0.25

    snapshot = a_snapshot("1xV100,1xP100", one, two, now_s=100.0)
    appraisal = Appraisal.of(snapshot, note)
    assert appraisal.value(one, 7.0) == 0.25
    assert seen == [
        FinishTimes(age_s=20.0, left_s=7.0, ideal_s=100.0, share_s=200.0, shortest_s=100.0)
    ]


def test_the_shortest_time_is_of_what_is_left() -> None:
    """Steps already done do not count."""
    one, two = a_job("1"), a_job("2", done=950.0)
    appraisal = Appraisal.of(a_snapshot("1xV100", one, two), shortest_remaining)
    # 50 steps at 10/s: 5 s.
    assert appraisal.shortest_s == pytest.approx(5.0)
    assert appraisal.value(one, 100.0) == pytest.approx(0.05)


def test_a_job_that_only_has_to_end_counts_as_a_second_of_work() -> None:
    """The shortest time is at least 1 s, so that long jobs do not appear worthless."""
    ending, long = a_job("1", done=1000.0), a_job("2")
    appraisal = Appraisal.of(a_snapshot("1xV100", ending, long), shortest_remaining)
    assert appraisal.shortest_s == 1.0
    assert appraisal.value(ending, 0.0) == 1.0
    assert appraisal.value(long, 100.0) == pytest.approx(0.01)


def test_a_job_without_a_rate_is_worth_nothing() -> None:
    """A job that trains on no type has utility 0."""
    job = a_job("1", throughputs=some_rates(A100=1.0))
    appraisal = Appraisal.of(a_snapshot("1xV100", job), effective_throughput)
    assert appraisal.value(job, 10.0) == 0.0


def test_a_clock_that_runs_behind_makes_nobody_younger_than_new() -> None:
    """A submission time in the future counts as now."""
    job = a_job("1", submitted_s=50.0)
    appraisal = Appraisal.of(a_snapshot("1xV100", job, now_s=0.0), effective_throughput)
    assert appraisal.value(job, 200.0) == pytest.approx(0.5)


@pytest.mark.parametrize("name", UTILITIES)
@given(snapshot=snapshots(), left_s=positive)
def test_every_job_of_a_snapshot_can_be_appraised(
    name: str, snapshot: Snapshot, left_s: float
) -> None:
    """For any snapshot, utilities are in [0, 1]."""
    appraisal = Appraisal.of(snapshot, UTILITIES[name])
    for job in snapshot.plannable:
        assert 0 <= appraisal.value(job, left_s) <= 1
