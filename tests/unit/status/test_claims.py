"""Claimed against measured: figures by user and workload, who is believed less, and which jobs."""

from __future__ import annotations

import pytest
from web_journals import NOW_S, Tree, a_job, a_line

from hadar_slurm.core.claims import Credit, Judged
from hadar_slurm.core.cluster import JobId
from hadar_slurm.journal import claim_facts
from hadar_slurm.status.claims import BelievedLess, Claims, ClaimsSeen

DAY_S = 86400.0


def judged(job: str, user: str, workload: str, times: float, off: float = 1.0) -> Judged:
    """Return a job of which 1,000 s are claimed, and that took `times` as long."""
    return Judged(JobId(job), user, workload, 1000.0, 1000.0 * times, off)


HISTORY = [
    judged("1", "ada", "bert", 1.0),
    judged("2", "ada", "bert", 1.2),
    judged("3", "eve", "gan", 8.0, 3.0),
    judged("4", "eve", "gan", 2.0),
    judged("5", "eve", "lm", 4.0),
    judged("6", "bob", "", 0.1, 5.0),
]


def read(*lines: Tree, most: int | None = None) -> ClaimsSeen:
    seen = ClaimsSeen(most)
    for line in lines:
        seen.add(line)
    return seen


def found(*lines: Tree) -> Claims:
    return read(*lines).found(NOW_S)


def test_the_worst_are_first() -> None:
    """By the median of times or throughputs, whichever is further off."""
    claims = found(a_line(0, **claim_facts(HISTORY, {})))
    assert claims.judged == 6
    assert [(o.user, o.jobs, o.time_median, o.time_worst) for o in claims.by_user] == [
        ("bob", 1, 0.1, 0.1),
        ("eve", 3, 4.0, 8.0),
        ("ada", 2, 1.1, 1.2),
    ]
    assert [(o.throughput_median, o.throughput_worst) for o in claims.by_user] == [
        (5.0, 5.0),
        (1.0, 3.0),
        (1.0, 1.0),
    ]
    assert [(o.user, o.workload) for o in claims.rows()] == [
        ("bob", ""),
        ("eve", None),
        ("eve", "gan"),
        ("eve", "lm"),
        ("ada", "bert"),
    ]


def test_a_job_counts_once() -> None:
    """A restarted hadard, or a line of another mode, may name it again."""
    line = a_line(0, **claim_facts(HISTORY, {}))
    seen = read(line, a_line(1, **claim_facts([judged("7", "ada", "bert", 1.0)], {})))
    assert [job.job_id for job in seen.news] == ["7"]
    seen.add(line)
    assert seen.news == []
    assert seen.found(NOW_S).judged == 7


def test_old_jobs_are_dropped_where_the_number_is_bounded() -> None:
    claims = read(a_line(0, **claim_facts(HISTORY, {})), most=2).found(NOW_S)
    assert (claims.judged, [off.user for off in claims.by_user]) == (2, ["bob", "eve"])


def test_who_is_believed_less_is_told_until_when() -> None:
    """What is learned fades: the factor is that of the time asked for, and then nothing is left."""
    credit = Credit().after(1000.0, 5000.0, NOW_S, speeds_off=2.0)
    line = a_line(0, **claim_facts([], {"eve": credit}))
    [less] = found(line).believed_less
    assert (less.steps_times, less.throughputs_off) == pytest.approx((5.0, 2.0), rel=1e-3)
    assert less.words(lambda time_s: f"day {(time_s - NOW_S) / DAY_S:.0f}") == [
        "steps claimed count 5 times after 1 job, until day 86 unless other jobs are judged",
        "throughputs given do not count (off by a factor of 2 after 1 job), "
        "until day 50 unless other jobs are judged",
    ]
    seen = read(line)
    [later] = seen.believed_less(NOW_S + 60 * DAY_S)
    assert 1 < later.steps_times < 2
    assert later.throughputs_off == 1
    assert later.words(str) == [each for each in later.words(str) if each.startswith("steps")]
    assert seen.believed_less(less.steps_until_s) == ()
    seen.add(a_line(1))
    assert seen.believed_less(NOW_S) == ()


def test_jobs_that_run_with_other_steps_are_named() -> None:
    """Those of all modes in use; not the ones that wait, nor those as claimed."""
    odd: Tree = {"claimed_steps": 10, "user": "eve"}
    lines = [
        a_line(0, {"1": a_job("n1:V100:1", **odd)}),
        a_line(1, {"2": a_job("n1:V100:1", **odd), "3": a_job(**odd), "4": a_job("n2:K80:1")}),
        a_line(1, {"5": a_job("n2:K80:1", **odd)}, mode="observe"),
    ]
    jobs = found(*lines).replanned
    assert [(job.job, job.user, job.claimed_steps, job.steps) for job in jobs] == [
        ("2", "eve", 10, 1000),
        ("5", "eve", 10, 1000),
    ]


@pytest.mark.parametrize(
    "damage",
    [
        {"judged": {"eve": {"gan": {"9": ["x", 1]}}}},
        {"judged": {"eve": {"gan": {"9": [1.0]}}}},
        {"judged": {"eve": {"gan": {"9": [1.0, float("nan")]}}}},
        {"credits": {"eve": {"times": -1, "speeds_off": 1, "jobs": 1, "at_s": 1}}},
        {"credits": {"eve": {"times": 2, "speeds_off": 1, "jobs": 1, "at_s": 1e300}}},
    ],
)
def test_damage_is_told_and_leaves_what_was_known(damage: Tree) -> None:
    seen = read(a_line(0, **claim_facts(HISTORY, {})))
    before = seen.found(NOW_S)
    with pytest.raises((TypeError, ValueError)):
        seen.add(a_line(1, **damage))
    assert seen.found(NOW_S) == before


def test_a_user_who_is_believed_has_nothing_to_be_told() -> None:
    true = BelievedLess.of("ada", Credit().after(1000.0, 1000.0, NOW_S), NOW_S)
    assert true.words(str) == []
