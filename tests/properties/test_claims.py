"""What users claim and report moves plans by no more than the stated bounds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.claims import MOST_OFF, Credit, believed_steps, bounded_throughputs
from hadar_slurm.core.throughput import GangThroughput, Throughputs
from hadar_slurm.core.throughput_model import (
    MOST_OFF as MOST_OFF_RATIO,
)
from hadar_slurm.core.throughput_model import Place, Prior, ThroughputModel, Workload
from hadar_slurm.status.claims import believed_again_s

K80, V100 = Place("k80", 1), Place("v100", 1)
MINE = Workload("ada", "mine")
ANY = st.floats(1e-12, 1e12)
NEAR = st.floats(0.1, 10.0)
ROUNDING = 1 + 1e-9
DAY_S = 86400.0


def on_both(k80: float, v100: float) -> Throughputs:
    return Throughputs.of({("k80", 1): GangThroughput(k80), ("v100", 1): GangThroughput(v100)})


PRIOR = Prior(on_both(1.0, 4.0), most_off=5.0)


def measure(speeds: ThroughputModel, user: str, reports: list[tuple[float, float]]) -> None:
    for number, (k80, v100) in enumerate(reports):
        workload = Workload(user, f"mine (batch size {number})")
        speeds.measure(workload, K80, k80)
        speeds.measure(workload, V100, v100)


@given(st.lists(st.tuples(ANY, ANY), min_size=1, max_size=8))
def test_reports_of_others_stay_near_the_prior(reports: list[tuple[float, float]]) -> None:
    """Whatever another user reports, ratios and speeds stay within the prior's ranges."""
    speeds = ThroughputModel()
    measure(speeds, "mallory", reports)
    assert 1 / 5 / ROUNDING <= speeds.estimate(MINE, K80, PRIOR).steps_per_s <= 5 * ROUNDING
    speeds.measure(Workload("mallory", MINE.name), K80, reports[0][0])
    assert 1 / 5 / ROUNDING <= speeds.estimate(MINE, K80, PRIOR).steps_per_s <= 5 * ROUNDING
    speeds.measure(MINE, K80, 7.0)
    ratio = speeds.estimate(MINE, V100, PRIOR).steps_per_s / 7.0
    assert 4.0 / MOST_OFF_RATIO / ROUNDING <= ratio <= 4.0 * MOST_OFF_RATIO * ROUNDING


@given(
    st.lists(st.tuples(NEAR, NEAR), min_size=2, max_size=5),
    st.lists(st.tuples(ANY, ANY), min_size=1, max_size=8),
)
def test_one_user_stays_within_the_votes_of_two_others(
    votes: list[tuple[float, float]], reports: list[tuple[float, float]]
) -> None:
    """Where two others have reported, a liar leaves a ratio between their votes and the prior."""
    speeds = ThroughputModel()
    for number, vote in enumerate(votes):
        measure(speeds, f"honest{number}", [vote])
    measure(speeds, "mallory", reports)
    speeds.measure(MINE, K80, 1.0)
    ratio = speeds.estimate(MINE, V100, PRIOR).steps_per_s
    ratios = [4.0, *(v100 / k80 for k80, v100 in votes)]
    assert min(ratios) / ROUNDING <= ratio <= max(ratios) * ROUNDING


def test_uncertainty_grows_as_users_disagree() -> None:
    """Three users who say the same leave less uncertainty than three who do not."""
    found = []
    for ratios in ((4.0, 4.0, 4.0), (1.0, 4.0, 16.0)):
        speeds = ThroughputModel()
        for user, ratio in zip("abc", ratios, strict=True):
            measure(speeds, user, [(1.0, ratio)])
        speeds.measure(MINE, K80, 1.0)
        found.append(speeds.estimate(MINE, V100, PRIOR).uncertainty)
    assert found[0] == pytest.approx(0.3)
    assert found[1] > 2 * found[0]


@given(st.floats(1, 1e15), st.floats(0, 1e12), st.floats(1, 1e7), st.floats(1e-9, 1e12))
def test_no_claim_lasts_longer_than_its_time_limit(
    claimed: float, done: float, limit_s: float, fastest: float
) -> None:
    """The time left is at most what is left of the limit, and above 0 while a job runs."""
    total, _ = believed_steps(claimed, done, limit_s, fastest)
    assert total <= math.ceil(done + limit_s * fastest) * ROUNDING + 1
    assert total >= min(done, 1e18) or total == 1


@given(st.floats(1, 1e6), st.floats(1, 1e9), st.floats(1, 1e9))
def test_a_job_that_outlives_its_claim_loses_rank(
    claimed: float, done: float, later: float
) -> None:
    """From the end of its claim on, what is left of a job grows with what it has done."""
    done, later = sorted((1.02 * claimed + done, 1.02 * claimed + later))
    first, why = believed_steps(claimed, done, math.inf, 1.0)
    second, _ = believed_steps(claimed, later, math.inf, 1.0)
    assert "outlives" in why
    assert first - done <= second - later + 1


@given(ANY, ANY, NEAR, NEAR)
def test_given_throughputs_stay_near_what_is_known(
    k80: float, v100: float, known: float, measured: float
) -> None:
    """A given throughput is within `MOST_OFF` of the known one, and a measured one replaces it."""
    given_, around = on_both(k80, v100), on_both(known, 3 * known)
    found, reasons = bounded_throughputs(given_, around)
    for gpu_type, true in (("k80", known), ("v100", 3 * known)):
        ratio = found.on(gpu_type, 1) / true
        assert 1 / MOST_OFF / ROUNDING <= ratio <= MOST_OFF * ROUNDING
    assert bool(reasons) == (found.rows != given_.rows)
    seen = Throughputs.of({("v100", 1): GangThroughput(measured)})
    assert bounded_throughputs(given_, around, seen)[0].on("v100", 1) == measured


def test_what_is_not_known_or_does_not_fit_is_left_as_given() -> None:
    """Without anything known a given figure stays, and so does a 0."""
    given_ = on_both(0.0, 1e9)
    assert bounded_throughputs(given_, Throughputs()) == (given_, ())
    assert bounded_throughputs(given_, on_both(1.0, 1.0))[0].on("k80", 1) == 0.0


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=20))
def test_credit_makes_no_claim_smaller(offs: list[float]) -> None:
    """No history lowers a user's claims, or raises them by more than the worst was off."""
    credit = Credit()
    for off in offs:
        credit = credit.after(1.0, off, 0.0)
    assert 1.0 <= credit.factor(0.0) <= max(1.0, *offs) * ROUNDING


@given(st.lists(st.booleans(), max_size=12))
def test_claims_are_proven_by_true_jobs_and_not_after_a_lie(history: list[bool]) -> None:
    """Until then a time limit counts, that of a job without one as very long."""
    credit = Credit()
    for is_true in history:
        credit = credit.after(1.0, 1.0 if is_true else 100.0, 0.0)
    found = credit.limit_left_s(60.0, 0.0)
    if not history or not history[-1]:
        assert found == 60.0
        assert credit.limit_left_s(math.inf, 0.0) == pytest.approx(1e9, rel=1 / 16)
    elif all(history):
        assert found is None


@given(st.floats(0.0, 1e9))
def test_what_is_left_of_a_limit_is_rounded_up_by_little(left_s: float) -> None:
    """It is never less, so no rank is gained by it."""
    found = Credit().limit_left_s(left_s, 0.0)
    assert found is not None
    assert left_s <= found <= left_s * (1 + 1 / 16) + 1.0


def test_credit_is_won_back() -> None:
    """After twenty true claims, or a year, a liar is believed; what is nearly true always is."""
    liar = Credit().after(1.0, 100.0, 0.0)
    assert liar.factor(0.0) == pytest.approx(100.0)
    assert liar.factor(365 * 86400.0) == 1.0
    for _ in range(20):
        liar = liar.after(1.0, 1.0, 0.0)
    assert liar.factor(0.0) == 1.0
    assert Credit().after(1.0, 1.2, 0.0).factor(0.0) == 1.0


@given(st.floats(1.3, 1e4), st.floats(1.3, 1e4), st.floats(0, 1e9))
def test_credit_says_when_it_has_faded(off: float, speeds_off: float, now_s: float) -> None:
    """Within a day nothing changes; on the day that it names claims count as they are, not before.

    Wrong throughputs fade as wrong times do.
    """
    liar = Credit().after(1.0, off, now_s, speeds_off=speeds_off)
    assert liar.factor(now_s + 0.99 * DAY_S) == liar.factor(now_s) > 1.0
    until_s = believed_again_s(liar.at_s, liar.log_off)
    speeds_until_s = believed_again_s(liar.at_s, liar.speeds_off)
    assert liar.factor(until_s + 1.0) == 1.0 < liar.factor(until_s - DAY_S + 1.0)
    assert liar.most_off(speeds_until_s - DAY_S + 1.0) == 1.0
    assert liar.most_off(speeds_until_s + 1.0) == MOST_OFF


@given(st.floats(1, 1e6), st.floats(1, 100), st.floats(1, 1e6), st.floats(1e-3, 1e3))
def test_the_reason_names_the_claim_as_it_was_made(
    claimed: float, times: float, limit_s: float, fastest: float
) -> None:
    """Not what a user's claims are multiplied by; and it is the same as the job trains."""
    most = limit_s * fastest
    reasons = set()
    for part in (0.0, 0.25, 0.5):
        left_s = limit_s * (1 - part)
        steps, why = believed_steps(claimed, part * most, left_s, fastest, times=times)
        if part * most < claimed:
            reasons.add(why)
        assert steps == math.ceil(claimed) or why
    assert len(reasons) <= 1 or abs(claimed / most - 1) < 1e-6
    if claimed > most * ROUNDING:
        assert reasons == {
            f"the {claimed:g} steps claimed do not fit its time limit: planned to end with it"
        }
