"""What former jobs say of how long a job trains."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random

import pytest

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.lengths import durations
from hadar_slurm.core.lengths.belief import index_s
from hadar_slurm.core.lengths.bins import EDGES_S, bin_of, prior
from hadar_slurm.core.lengths.calibration import CHANCES, Calibration, Coverage
from hadar_slurm.core.lengths.durations import Durations, Level, Trained, shares
from hadar_slurm.core.throughput_model import Workload
from hadar_slurm.core.type_failures import Unsized, Work

HOUR_S, DAY_S = 3600.0, 86_400.0
PRIOR = prior()


def a_job(
    user: str = "ada", name: str = "bert", gpus: int = 1, *, limit_s: float = math.inf
) -> Unsized:
    return Unsized(Work(Workload(user, name), gpus), limit_s, limit_s)


def left_s(known: Durations, job: Unsized, trained_s: float) -> float:
    """Return the size by which a job is ranked, without what it has trained."""
    return known.belief(job, trained_s).left_s(trained_s)


def some_history(*ended: tuple[Unsized, float]) -> Durations:
    """Return what is known after jobs of these works and services."""
    known = Durations()
    for number, (job, service_s) in enumerate(ended):
        known.end(JobId(f"old{number}"), job, service_s)
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
    sizes_s = [
        left_s(known, a_job(limit_s=hours * HOUR_S), 0.0) for hours in (0.25, 2.0, 24.0, 240.0)
    ]
    assert sizes_s == sorted(set(sizes_s))
    assert sizes_s[-1] < left_s(known, a_job(limit_s=240.0 * HOUR_S), HOUR_S)


def test_a_job_that_has_trained_for_most_of_its_limit_goes_on_to_its_end() -> None:
    """What is expected to be left falls then; long before it rises."""
    known, limit_s = Durations(), 100.0 * HOUR_S
    young_s, older_s = (
        left_s(known, a_job(limit_s=limit_s), hours * HOUR_S) for hours in (0.5, 5.0)
    )
    assert young_s < older_s
    late_s, later_s = (
        left_s(known, a_job(limit_s=limit_s), hours * HOUR_S) for hours in (60.0, 90.0)
    )
    assert later_s < late_s < 40.0 * HOUR_S


def test_a_job_that_outlives_its_limit_is_one_without_a_limit() -> None:
    """Of it the prior says nothing."""
    known = Durations()
    assert left_s(known, a_job(limit_s=HOUR_S), 2 * HOUR_S) == left_s(known, a_job(), 2 * HOUR_S)


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
    found = shares([(level.ended, level.passed())], PRIOR, prior_jobs=1e-9)
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
    known = some_history(*[(a_job(), hours * HOUR_S) for hours in (0.5, 1.0, 2.0, 8.0, 30.0)])
    belief, number = known.belief(a_job(limit_s=limit_s), 0.0), 4000
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
        *[(a_job(), HOUR_S)] * 20, *[(a_job(name="resnet", gpus=4), 60 * HOUR_S)] * 20
    )
    hour, as_hour, long = (
        known.belief(job, 0.0) for job in (a_job(), a_job(gpus=2), a_job(name="resnet", gpus=4))
    )
    assert hour.rest_s(0.0, 0.5) == pytest.approx(HOUR_S, rel=0.4)
    assert as_hour.rest_s(0.0, 0.5) == pytest.approx(HOUR_S, rel=0.4)
    assert long.rest_s(0.0, 0.5) == pytest.approx(60 * HOUR_S, rel=0.4)
    assert long.left_s(0.0) > 3 * hour.left_s(0.0)
    # Once it has outlived all others, as long again.
    assert left_s(known, a_job(), 10 * HOUR_S) > 5 * HOUR_S


def test_another_users_name_says_nothing_by_itself() -> None:
    """A workload counts for its own user; of another user's only the site's mean is taken."""
    known = some_history(
        *[(a_job("ada", "a"), HOUR_S)] * 20, *[(a_job("ben", "b"), 60 * HOUR_S)] * 20
    )
    assert left_s(known, a_job("eve", "a"), 0.0) == left_s(known, a_job("eve", "b"), 0.0)


def test_one_user_moves_what_is_expected_of_others_by_little() -> None:
    """Ten thousand jobs of one user say no more of others than a few dozen."""
    honest = [(a_job(f"user{number % 9}", "x"), 10 * HOUR_S) for number in range(180)]
    few = some_history(*honest, *[(a_job("eve", "y"), 30.0)] * 30)
    many = some_history(*honest, *[(a_job("eve", "y"), 30.0)] * 10_000)
    new = a_job("new", "z")
    assert left_s(many, new, 0.0) == pytest.approx(left_s(few, new, 0.0), rel=0.01)
    own = a_job("user1", "x")
    alone = some_history(*honest).belief(own, 0.0)
    for chance in (0.25, 0.5, 0.75):
        after_s = many.belief(own, 0.0).rest_s(0.0, chance)
        assert after_s == pytest.approx(alone.rest_s(0.0, chance), rel=0.2)


def test_jobs_that_go_on_are_no_short_jobs() -> None:
    """Three jobs that ended early beside 30 that train on: the next one trains on, too."""
    work = a_job()
    known = some_history(*[(work, 100.0)] * 3)
    early_s = left_s(known, work, 0.0)
    for number in range(30):
        known.see(JobId(str(number)), work, 10 * HOUR_S)
        known.see(JobId(str(number)), work, 10 * HOUR_S)
    known.renew()
    assert left_s(known, work, 0.0) > 3 * early_s
    # And they count once, when they end.
    for number in range(30):
        known.end(JobId(str(number)), work, 100.0)
    known.renew()
    assert left_s(known, work, 0.0) < early_s


def test_what_is_left_is_within_the_limit_and_above_nothing() -> None:
    """Also for a job that has outlived all jobs of its work by far."""
    known = some_history(*[(a_job(), HOUR_S)] * 50)
    for trained_s in (0.0, 10.0, HOUR_S, 1.3 * HOUR_S, 100 * HOUR_S, 1e9):
        assert left_s(known, a_job(), trained_s) > 0.0
        assert 0.0 < left_s(known, a_job(limit_s=trained_s + 5.0), trained_s) <= 5.0


def test_old_jobs_give_way_to_new_ones() -> None:
    """A user whose jobs have become ten times as long is believed so after as many jobs again."""
    known = some_history(*[(a_job(), HOUR_S)] * 2000, *[(a_job(), 10 * HOUR_S)] * 2000)
    assert left_s(known, a_job(), 0.0) == pytest.approx(10 * HOUR_S, rel=0.5)


def test_a_service_is_in_its_bin() -> None:
    """At an edge in the higher one; beyond the last edge in the last."""
    first_s = EDGES_S[1]
    assert [bin_of(s) for s in (0.0, first_s - 1, first_s, 1e12)] == [0, 0, 1, len(PRIOR) - 1]
    assert len(EDGES_S) == len(PRIOR) + 1
    assert EDGES_S[-1] == math.inf


def alike(number: int, user: str, service_s: float, *, limit_s: float = math.inf) -> list[Trained]:
    """Return jobs that ended, each a day after the one before."""
    job = a_job(user, limit_s=limit_s)
    return [
        Trained(JobId(f"{user}{n}"), job, DAY_S * n, DAY_S * n + service_s, service_s)
        for n in range(number)
    ]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("median_s", [600.0, 4 * HOUR_S, 40 * HOUR_S])
def test_beliefs_become_calibrated_on_any_site(seed: int, median_s: float) -> None:
    """Log-normal durations of 12 users, none with a limit: the prior is far off for most of them.

    Of 600 jobs, the last 400: about half outlast their median, a quarter and a tenth the others.
    """
    draw, known, jobs = Random(f"site {seed}"), Durations(), []
    for number in range(600):
        user = draw.choice([f"user{n}" for n in range(12)])
        jobs.append((a_job(user), median_s * math.exp(draw.gauss(0.0, 1.2)), JobId(str(number))))
    beyond = [0, 0, 0]
    for number, (job, service_s, job_id) in enumerate(jobs):
        belief = known.belief(job, 0.0)
        for place, chance in enumerate(CHANCES):
            beyond[place] += number >= 200 and service_s > belief.rest_s(0.0, chance)
        known.see(job_id, job, 0.0)
        known.end(job_id, job, service_s)
        known.renew()
    half, quarter, tenth = (count / 400 for count in beyond)
    assert 0.4 <= half <= 0.6
    assert 0.15 <= quarter <= 0.35
    assert 0.03 <= tenth <= 0.15


def test_a_site_whose_jobs_outlast_what_is_believed_gets_wider_beliefs() -> None:
    """Also for new users: how others' jobs outlasted beliefs corrects the beliefs of their jobs."""
    known = Durations.of([job for n in range(40) for job in alike(4, f"u{n}", 200 * HOUR_S)])
    plain = Durations.of([job for n in range(40) for job in alike(4, f"u{n}", 200 * HOUR_S)])
    plain.calibration = Calibration(10.0, 400.0)
    new = a_job("new", limit_s=1000 * HOUR_S)
    plain.renew()
    # The level of the site says part of it as well.
    for chance, factor in ((0.25, 1.2), (0.5, 1.05), (0.75, 1.05)):
        after_s = known.belief(new, 0.0).rest_s(0.0, chance)
        assert after_s > factor * plain.belief(new, 0.0).rest_s(0.0, chance)


def test_a_job_that_trains_on_counts_for_the_correction_as_far_as_it_has_come() -> None:
    """Jobs of twenty users that outlast what is believed widen beliefs before they end."""
    known = Durations()
    for number in range(20):
        known.see(JobId(str(number)), a_job(f"u{number}", limit_s=900 * HOUR_S), 0.0)
    new = a_job("new", limit_s=40 * HOUR_S)
    before_s = known.belief(new, 0.0).rest_s(0.0, 0.5)
    for number in range(20):
        unsized = a_job(f"u{number}", limit_s=900 * HOUR_S)
        known.see(JobId(str(number)), unsized, 300 * HOUR_S)
    known.renew()
    assert known.belief(new, 0.0).rest_s(0.0, 0.5) > 1.2 * before_s
    assert known.coverage.shares() == ()


def test_coverage_says_how_many_outlasted_what_was_believed_of_them() -> None:
    """Each is judged by the belief of before it trained."""
    known = Durations()
    job = a_job(limit_s=EDGES_S[17] - 1.0)  # above the quantile .9
    belief = known.belief(job, 0.0)
    ends_s = (0.0, *(belief.rest_s(0.0, chance) * 1.01 for chance in CHANCES))
    for number, service_s in enumerate(ends_s):
        known.see(JobId(str(number)), job, 0.0)
        known.end(JobId(str(number)), job, service_s)
    assert known.coverage.shares() == (0.75, 0.5, 0.25)


def test_limits_tell_apart_who_gives_them_with_care_and_who_does_not() -> None:
    """A user's jobs with a short limit are believed short, those at the partition's are not."""
    careful = alike(40, "ada", 0.4 * HOUR_S, limit_s=HOUR_S)
    at_longest = alike(40, "ben", 20 * HOUR_S, limit_s=240 * HOUR_S)
    known = Durations.of([*careful, *at_longest])
    short, long = (
        known.belief(a_job("ada", "new", limit_s=hours * HOUR_S), 0.0) for hours in (1.0, 240.0)
    )
    assert short.mean_left_s(0.0) < 0.7 * HOUR_S
    assert long.mean_left_s(0.0) > 10 * HOUR_S


def test_jobs_of_a_user_that_often_fail_at_once_are_known_as_such() -> None:
    """The next one probably fails as well; one that has trained for an hour is as others' are."""
    fails = [*alike(60, "eve", 20.0, limit_s=24 * HOUR_S), *alike(20, "eve", 9 * HOUR_S)]
    others = [job for n in range(12) for job in alike(8, f"u{n}", 9 * HOUR_S, limit_s=24 * HOUR_S)]
    known = Durations.of([*fails, *others])
    eve, other = (known.belief(a_job(u, "x", limit_s=24 * HOUR_S), 0.0) for u in ("eve", "u1"))
    assert eve.rest_s(0.0, 0.5) < EDGES_S[1]
    assert other.rest_s(0.0, 0.5) > HOUR_S
    assert eve.rest_s(HOUR_S, 0.5) == pytest.approx(other.rest_s(HOUR_S, 0.5), rel=0.3)


@pytest.mark.parametrize("limit_s", [math.inf, 20.0 * HOUR_S])
@pytest.mark.parametrize("trained_s", [0.0, 100.0, 3.0 * HOUR_S])
def test_the_mean_is_that_of_the_distribution(trained_s: float, limit_s: float) -> None:
    """Of 4,000 evenly spread draws; the last bin, of more than a year, has almost no job."""
    ended = [(a_job(), hours * HOUR_S) for hours in (0.5, 1.0, 2.0, 8.0, 30.0)] * 20
    belief, number = some_history(*ended).belief(a_job(limit_s=limit_s), 0.0), 4000
    draws_s = [belief.rest_s(trained_s, (n + 0.5) / number) for n in range(number)]
    assert belief.mean_left_s(trained_s) == pytest.approx(sum(draws_s) / number, rel=0.05)


def test_another_limit_and_a_new_name_do_not_hide_what_a_user_has_run() -> None:
    """A hundred jobs of 22 hours at a limit of a day: the next one, an hour longer, is as long."""
    long = alike(100, "eve", 22 * HOUR_S, limit_s=24 * HOUR_S)
    others = [job for n in range(9) for job in alike(9, f"u{n}", HOUR_S, limit_s=24 * HOUR_S)]
    known = Durations.of([*long, *others])
    as_before_s, else_s = (
        left_s(known, a_job("eve", "new", limit_s=hours * HOUR_S), 0.0) for hours in (24.0, 25.0)
    )
    assert else_s > 0.5 * as_before_s > 4 * HOUR_S


@pytest.mark.parametrize("user", ["u1", "new"])
def test_jobs_whose_limits_are_not_known_tell(user: str) -> None:
    """They were kept by a version without limits: they say how long jobs with any limit train."""
    known = Durations.of([job for n in range(12) for job in alike(9, f"u{n}", 5 * HOUR_S)])
    median_s = known.belief(a_job(user, "x", limit_s=240 * HOUR_S), 0.0).rest_s(0.0, 0.5)
    assert 2.5 * HOUR_S < median_s < 10 * HOUR_S


@pytest.mark.parametrize("seed", range(3))
def test_jobs_that_leave_without_an_end_change_nothing(seed: int) -> None:
    """Six of ten are requeued, say, at any time: a new user's jobs are believed as long as else."""
    medians_s = []
    for leaves in (0.0, 0.6):
        draw, known = Random(f"leave {seed}"), Durations()
        for number in range(900):
            user, job_id = f"u{number % 30}", JobId(str(number))
            service_s = 5 * HOUR_S * math.exp(draw.gauss(0.0, 1.2))
            known.see(job_id, a_job(user), 0.0)
            for part in (0.3, 0.6, 0.99):
                known.see(job_id, a_job(user), part * service_s)
            if draw.random() < leaves:
                known.forget(job_id)
            else:
                known.end(job_id, a_job(user), service_s)
            if number % 30 == 29:
                known.renew()
        medians_s.append(known.belief(a_job("new"), 0.0).rest_s(0.0, 0.5))
    assert medians_s[1] == pytest.approx(medians_s[0], rel=0.2)
    assert medians_s[1] == pytest.approx(5 * HOUR_S, rel=0.3)


@pytest.mark.parametrize("late_s", [0.0, 1.0, 45.0])
def test_a_job_that_its_limit_ends_is_judged_alike_however_late_slurm_is(late_s: float) -> None:
    """Where all jobs are believed to reach their limits, none outlasts a quantile."""
    limit_s = 10 * HOUR_S
    known = Durations.of(alike(60, "ada", limit_s, limit_s=limit_s))
    before = known.belief(a_job("ada", limit_s=limit_s), 0.0)
    assert [before.rest_s(0.0, chance) for chance in CHANCES] == [limit_s] * len(CHANCES)
    coverage = Coverage()
    coverage.add(before, limit_s + late_s)
    assert coverage.shares() == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("limit_s", [math.inf, 3e7])
def test_a_job_beyond_the_last_edge_trains_as_long_again(limit_s: float) -> None:
    """By the mean as by each quantile, and no longer than its limit."""
    belief, trained_s = Durations().belief(a_job(limit_s=limit_s), 0.0), 2.3e7
    expected_s = min(trained_s, limit_s - trained_s)
    assert belief.mean_left_s(trained_s) == expected_s
    assert belief.rest_s(trained_s, 0.5) == expected_s


def test_of_many_jobs_the_newest_are_judged_and_all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a user whose jobs are all older count as well, to the user and to others."""
    monkeypatch.setattr(durations, "MOST_REPLAYED", 50)
    known = Durations.of([*later(alike(50, "ben", HOUR_S)), *alike(30, "ada", 100 * HOUR_S)])
    assert known.coverage.jobs == 50
    for user, hours in (("ada", 100.0), ("ben", 1.0)):
        median_s = known.belief(a_job(user, "x"), 0.0).rest_s(0.0, 0.5)
        assert median_s == pytest.approx(hours * HOUR_S, rel=0.5)
    without = Durations.of(later(alike(50, "ben", HOUR_S)))
    new, chance = a_job("new"), 0.75
    median_s = known.belief(new, 0.0).rest_s(0.0, chance)
    assert median_s > 2.0 * without.belief(new, 0.0).rest_s(0.0, chance)


def later(jobs: list[Trained]) -> list[Trained]:
    """Return the jobs a year later."""
    return [
        job._replace(began_s=job.began_s + 365 * DAY_S, ended_s=job.ended_s + 365 * DAY_S)
        for job in jobs
    ]


@pytest.mark.parametrize("seed", range(3))
def test_the_jobs_of_the_site_are_the_sum_over_its_users(seed: int) -> None:
    """However often it is renewed between: each user counts as ten jobs at most."""
    draw, often, once = Random(seed), Durations(), Durations()
    for number in range(600):
        job = a_job(f"u{draw.randrange(7)}", limit_s=draw.choice((10.0, 100.0)) * HOUR_S)
        service_s = HOUR_S * math.exp(draw.gauss(0.0, 1.5))
        for known in (often, once):
            known.see(JobId(str(number)), job, service_s / 2)
            if number % 3:
                known.end(JobId(str(number)), job, service_s)
        often.renew()
        often.belief(job, 0.0)
    once.renew()
    for limit_s in (10.0 * HOUR_S, 100.0 * HOUR_S):
        ended, passed = often._sites[bin_of(limit_s)].counts()
        assert passed[0] == pytest.approx(70.0)
        again = once._sites[bin_of(limit_s)].counts()
        assert ended == pytest.approx(again[0])
        assert passed == pytest.approx(again[1])
