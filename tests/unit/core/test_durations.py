"""What former jobs say of how long a job trains."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.durations import EDGES_S, Durations, Level, bin_of, index_s, prior, shares
from hadar_slurm.core.throughput_model import Workload
from hadar_slurm.core.type_failures import Work

HOUR_S = 3600.0
PRIOR = shares([])


def a_work(user: str = "ada", name: str = "bert", gpus: int = 1) -> Work:
    return Work(Workload(user, name), gpus)


def some_history(*ended: tuple[Work, float]) -> Durations:
    """Return what is known after jobs of these works and services."""
    known = Durations()
    for number, (work, service_s) in enumerate(ended):
        known.end(JobId(f"old{number}"), work, service_s)
    known.renew()
    return known


def index_by_hand(
    ends: tuple[float, ...], trained_s: float, limit_s: float = math.inf, *, pieces: int = 400
) -> float:
    """Return the Gittins index by its definition, of many small atoms in each bin."""
    alive, atoms = 1.0, []
    for (low_s, high_s), share in zip(pairwise(EDGES_S[:-1]), ends, strict=False):
        width_s = (high_s - low_s) / pieces
        atoms += [(low_s + (i + 1) * width_s, alive * share / pieces) for i in range(pieces)]
        alive *= 1.0 - share
    later = [(min(at_s, limit_s), mass) for at_s, mass in atoms if at_s > trained_s + 1e-6]
    later.append((min(EDGES_S[-2], limit_s), alive))
    total = left = sum(mass for _, mass in later)
    best_s, spent_s = math.inf, 0.0
    for (at_s, mass), (before_s, _) in zip(later, [(trained_s, 0.0), *later], strict=False):
        spent_s += left * (at_s - before_s)
        left -= mass
        if total - left > 0 and (at_s < EDGES_S[-2] or limit_s < EDGES_S[-2]):
            best_s = min(best_s, spent_s / (total - left))
    return best_s


@pytest.mark.parametrize("seed", range(6))
def test_the_index_is_that_of_its_definition(seed: int) -> None:
    """Whatever shares of jobs end in the bins, from any service on, and within any limit."""
    draw = Random(seed)
    ends = tuple(draw.choice((0.0, 0.05, 0.3, 0.9)) * draw.random() for _ in PRIOR)
    # Within a bin at the end of a piece.
    for trained_s in (0.0, 45.0, EDGES_S[7], 0.25 * EDGES_S[13] + 0.75 * EDGES_S[14]):
        for limit_s in (math.inf, trained_s + 100.0, 3 * trained_s + 500.0):
            expected_s = index_by_hand(ends, trained_s, limit_s)
            assert index_s(ends, trained_s, limit_s) == pytest.approx(expected_s, rel=0.02)


def test_without_any_job_a_job_trains_about_as_long_again() -> None:
    """The prior knows no scale, and a limit is the most."""
    for trained_s in EDGES_S[1:30]:
        assert 0.8 <= index_s(PRIOR, trained_s) / trained_s <= 1.25
    assert index_s(PRIOR, 0.0) <= 2 * EDGES_S[1]
    assert index_s(PRIOR, 7200.0, 7500.0) <= 300.0
    # A job that outlives its limit is treated as one without.
    assert index_s(PRIOR, 7200.0, 7000.0) == index_s(PRIOR, 7200.0)
    beyond_s = 10 * EDGES_S[-2]
    assert index_s(PRIOR, beyond_s) == beyond_s


@pytest.mark.parametrize("limit_bin", [1, 5, 12, 30])
def test_the_prior_is_half_of_any_scale_and_half_uniform_within_the_limit(limit_bin: int) -> None:
    """Recomputed from the two densities: 1/x from a minute on, and a constant."""
    limit_s, alive = EDGES_S[limit_bin + 1], 1.0
    pieces = [60.0 * (limit_s / 60.0) ** (i / 20_000) for i in range(20_001)]
    for where, share in enumerate(prior(limit_bin)[: limit_bin + 1]):
        high_s = EDGES_S[where + 1]
        of_scale = sum(piece <= high_s for piece in pieces[1:]) / 20_000
        left = 1.0 - 0.5 * of_scale - 0.5 * high_s / limit_s
        assert alive * (1.0 - share) == pytest.approx(left, abs=2e-4)
        alive = left


def test_of_jobs_that_have_not_run_the_one_with_the_shorter_limit_goes_first() -> None:
    """Where nothing is known; and a young job goes before one that has trained for an hour."""
    known = Durations()
    left_s = [known.left_s(a_work(), 0.0, hours * HOUR_S) for hours in (0.25, 2.0, 24.0, 240.0)]
    assert left_s == sorted(set(left_s))
    assert left_s[-1] < known.left_s(a_work(), HOUR_S, 240.0 * HOUR_S)


def test_a_job_that_has_trained_for_most_of_its_limit_goes_on_to_its_end() -> None:
    """What is expected to be left falls then; long before it rises."""
    known, limit_s = Durations(), 100.0 * HOUR_S
    young_s, older_s = (known.left_s(a_work(), hours * HOUR_S, limit_s) for hours in (0.5, 5.0))
    assert young_s < older_s
    late_s, later_s = (known.left_s(a_work(), hours * HOUR_S, limit_s) for hours in (60.0, 90.0))
    assert later_s < late_s < 40.0 * HOUR_S


def test_a_job_that_outlives_its_limit_is_one_without_a_limit() -> None:
    """Of it the prior says nothing."""
    known = Durations()
    assert known.left_s(a_work(), 2 * HOUR_S, HOUR_S) == known.left_s(a_work(), 2 * HOUR_S)


def test_shares_are_those_of_the_jobs_that_came_so_far() -> None:
    """Jobs that have not ended count in the bins that they have left behind."""
    draw, level, known = Random(1), Level(), []
    for _ in range(40):
        where, has_ended = draw.randrange(8), draw.random() < 0.6
        known.append((where, has_ended))
        if has_ended:
            level.end(where)
        else:
            level.going[where] += 1.0
    found = shares([(level.ended, level.passed())], prior_jobs=1e-9)
    for where in range(8):
        ended = sum(has_ended and at == where for at, has_ended in known)
        came = sum(at > where or (has_ended and at == where) for at, has_ended in known)
        assert found[where] == pytest.approx(ended / came, abs=1e-6)


@pytest.mark.parametrize("limit_s", [math.inf, 300.0 * HOUR_S, 5.0 * HOUR_S])
@pytest.mark.parametrize("trained_s", [0.0, 100.0, 0.9 * HOUR_S, 3.0 * HOUR_S])
def test_drawn_sizes_have_the_distribution_that_is_believed(
    trained_s: float, limit_s: float
) -> None:
    """Of 4,000 evenly spread draws, as many end in each bin as the shares say; at the limit all."""
    known = some_history(*[(a_work(), hours * HOUR_S) for hours in (0.5, 1.0, 2.0, 8.0, 30.0)])
    belief, number = known.belief(a_work(), 0.0, limit_s), 4000
    ends_s = [trained_s + belief.rest_s(trained_s, (i + 0.5) / number) for i in range(number)]
    assert ends_s == sorted(ends_s)
    assert trained_s < ends_s[0] <= ends_s[-1] <= limit_s
    for where in range(bin_of(trained_s) + 1, 24):
        low_s, high_s = EDGES_S[where], EDGES_S[where + 1]
        came = sum(end_s > low_s for end_s in ends_s)
        if high_s < limit_s and came > 400:
            ended = sum(low_s < end_s <= high_s for end_s in ends_s)
            assert ended / came == pytest.approx(belief.ends[where], abs=0.005)


def test_history_of_the_same_work_is_found_again() -> None:
    """Jobs of an hour are expected to take one, others of the user's as long as theirs."""
    known = some_history(
        *[(a_work(), HOUR_S)] * 20, *[(a_work(name="resnet", gpus=4), 60 * HOUR_S)] * 20
    )
    assert known.left_s(a_work(), 0.0) == pytest.approx(HOUR_S, rel=0.4)
    assert known.left_s(a_work(gpus=2), 0.0) == pytest.approx(HOUR_S, rel=0.4)
    long_s = known.left_s(a_work(name="resnet", gpus=4), 0.0)
    assert long_s == pytest.approx(60 * HOUR_S, rel=0.4)
    # Once it has outlived all others, as long again.
    assert known.left_s(a_work(), 10 * HOUR_S) > 5 * HOUR_S


def test_another_users_name_says_nothing_by_itself() -> None:
    """A workload counts for its own user; of another user's only the site's mean is taken."""
    known = some_history(
        *[(a_work("ada", "a"), HOUR_S)] * 20, *[(a_work("ben", "b"), 60 * HOUR_S)] * 20
    )
    assert known.left_s(a_work("eve", "a"), 0.0) == known.left_s(a_work("eve", "b"), 0.0)


def test_one_user_moves_what_is_expected_of_others_by_little() -> None:
    """Ten thousand jobs of one user say no more of others than a few dozen."""
    honest = [(a_work(f"user{number % 9}", "x"), 10 * HOUR_S) for number in range(180)]
    few = some_history(*honest, *[(a_work("eve", "y"), 30.0)] * 30)
    many = some_history(*honest, *[(a_work("eve", "y"), 30.0)] * 10_000)
    new = a_work("new", "z")
    assert many.left_s(new, 0.0) == pytest.approx(few.left_s(new, 0.0), rel=0.01)
    own = a_work("user1", "x")
    alone_s = some_history(*honest).left_s(own, 0.0)
    assert many.left_s(own, 0.0) == pytest.approx(alone_s, rel=0.2)


def test_jobs_that_go_on_are_no_short_jobs() -> None:
    """Three jobs that ended early beside 30 that train on: the next one trains on, too."""
    work = a_work()
    known = some_history(*[(work, 100.0)] * 3)
    early_s = known.left_s(work, 0.0)
    for number in range(30):
        known.see(JobId(str(number)), work, 10 * HOUR_S)
        known.see(JobId(str(number)), work, 10 * HOUR_S)
    known.renew()
    assert known.left_s(work, 0.0) > 3 * early_s
    # And they count once, when they end.
    for number in range(30):
        known.end(JobId(str(number)), work, 100.0)
    known.renew()
    assert known.left_s(work, 0.0) < early_s


def test_what_is_left_is_within_the_limit_and_above_nothing() -> None:
    """Also for a job that has outlived all jobs of its work by far."""
    known = some_history(*[(a_work(), HOUR_S)] * 50)
    for trained_s in (0.0, 10.0, HOUR_S, 1.3 * HOUR_S, 100 * HOUR_S, 1e9):
        assert known.left_s(a_work(), trained_s) > 0.0
        assert 0.0 < known.left_s(a_work(), trained_s, trained_s + 5.0) <= 5.0


def test_old_jobs_give_way_to_new_ones() -> None:
    """A user whose jobs have become ten times as long is believed so after as many jobs again."""
    known = some_history(*[(a_work(), HOUR_S)] * 2000, *[(a_work(), 10 * HOUR_S)] * 2000)
    assert known.left_s(a_work(), 0.0) == pytest.approx(10 * HOUR_S, rel=0.5)


def test_a_service_is_in_its_bin() -> None:
    """At an edge in the higher one; beyond the last edge in the last."""
    first_s = EDGES_S[1]
    assert [bin_of(s) for s in (0.0, first_s - 1, first_s, 1e12)] == [0, 0, 1, len(PRIOR) - 1]
    assert len(EDGES_S) == len(PRIOR) + 1
    assert EDGES_S[-1] == math.inf
