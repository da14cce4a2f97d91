"""Who loses beside plain Slurm: how many users, which one most, and why."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from studies import a_cell, some_jobs

from hadar_slurm.lab.study.compare import run_cell
from hadar_slurm.lab.study.gains.losers import changes_of
from hadar_slurm.lab.study.gains.pairs import Pair
from hadar_slurm.lab.study.gains.verdict import gains_tree, judged, verdict
from hadar_slurm.lab.study.report import Comparison, json_text
from hadar_slurm.lab.study.summary import groups

USERS = ["ann", "bob", "bob", "cat"]


def a_run(jcts_s: list[float], policy: str = "hadar", **more: Any) -> dict[str, Any]:
    """Return the record of a run of four jobs of three users."""
    return {
        "policy": policy, "bare_policy": policy, "speeds": "oracle", "sizes": "oracle",
        "status": "done", "trace": "t", "mean_jct_s": sum(jcts_s) / 4,
        "jcts_s": jcts_s, "users": USERS, "killed_jobs": [], "queued_s": [0.0] * 4,
        "gpus": [1, 2, 4, 1], "gpu_types": ["V100"] * 4, **more,
    }  # fmt: skip


BEFORE = a_run([7200.0, 36_000.0, 36_000.0, 60.0], "slurm")


def test_a_user_loses_by_more_than_a_tenth_and_ten_minutes() -> None:
    """Ten times as long for a job of a minute is no loss, nor are nine per cent of ten hours."""
    pair = Pair(a_run([7200.0 + 721, 36_000.0 * 1.09, 36_000.0 * 1.09, 600.0]), BEFORE)
    number, losers = pair.losers
    assert (number, [each.user for each in losers]) == (3, ["ann"])
    assert Pair(BEFORE, BEFORE).losers == (3, ())


def test_a_user_loses_whose_jobs_time_limits_end() -> None:
    """Though an ended job is done sooner; a job that was ended before as well is none."""
    pair = Pair(a_run([1.0, 1.0, 1.0, 1.0], killed_jobs=[1, 3]), {**BEFORE, "killed_jobs": [3]})
    _, (bob,) = pair.losers
    assert (bob.user, bob.why) == ("bob", "time limits end 1 of the jobs, before 0")


def test_the_gain_of_jobs_that_limits_end_under_neither_is_said() -> None:
    """A policy that ends many jobs looks fast, since these count as done."""
    ours = a_run([3600.0, 36_000.0, 39_600.0, 60.0], killed_jobs=[0], killed=1)
    theirs = {**BEFORE, "killed_jobs": [3], "killed": 1}
    number, ratio = Pair(ours, theirs).whole
    assert (number, ratio) == (2, pytest.approx(75_600 / 72_000))
    assert (
        "Time limits end 1 job, under plain Slurm 1; these count as done at their limits. The 2 "
        "that they end under neither take 5 % more time on the mean."
    ) in "\n".join(verdict(judged(groups([theirs, ours]))))
    none = {**theirs, "killed_jobs": [0, 1, 2, 3]}
    assert Pair(ours, none).whole == (0, 1.0)
    assert "under neither" not in "\n".join(verdict(judged(groups([none, ours]))))


def test_what_is_worse_is_split_into_waiting_and_running() -> None:
    """The greater part first, and the type that is another one."""
    ours = a_run(
        [7200.0, 50_400.0, 50_400.0, 60.0],
        queued_s=[0.0, 3600.0, 0.0, 0.0],
        gpu_types=["V100", "K80", "K80", "V100"],
    )
    _, (bob,) = Pair(ours, BEFORE).losers
    assert bob.why == (
        "3.50 h more from then on, mostly on K80 instead of V100; 0.50 h more until the first GPU"
    )
    assert (bob.jobs, bob.gpus) == (2, 3.0)


def test_the_sentences_and_the_json_say_who_loses() -> None:
    """The share in the first sentence, the worst by name, and what counts as a loss."""
    ours = a_run([3600.0, 39_600.0, 43_200.0, 60.0], queued_s=[0.0, 3600.0, 7200.0, 0.0])
    found = groups([BEFORE, ours])
    first, *others = verdict(judged(found))
    assert first.endswith("(slurm), and the jobs of 1 of 3 users would take longer.")
    assert (
        "bob loses most (2 jobs of 3 GPUs): 11.50 h instead of 10.00 h on the mean "
        "(1.50 h more until the first GPU)." in others
    )
    assert any("take more than 10 % and 10 minutes longer on the mean" in text for text in others)
    tree = json.loads(
        json_text(Comparison("", "", (), found, tree={"gains": gains_tree(judged(found))}))
    )
    (gain,) = tree["gains"]
    assert gain["users"]["number"] == 3
    assert gain["users"]["share"] == pytest.approx(1 / 3)
    assert gain["users"]["worst"]["user"] == "bob"
    (better, *_) = verdict(judged(groups([BEFORE, a_run([60.0] * 4)])))
    assert better.endswith("and the jobs of none of 3 users would take longer.")


def test_a_run_has_what_is_needed_and_jobs_without_users_count_for_none() -> None:
    """Places of each job in the order of the workload; in the cells only, not in the tables."""
    jobs = tuple(
        replace(job, user=user) for job, user in zip(some_jobs(), ("a", "b", "a", "b"), strict=True)
    )
    one, two = (run_cell(a_cell(policy, specs=jobs)) for policy in ("srsf", "slurm"))
    changes = changes_of(one, two)
    assert [(each.user, each.jobs, each.gpus) for each in changes] == [("a", 2, 1), ("b", 2, 2)]
    for each in changes:
        assert 0 <= each.mean_queueing_s < each.mean_jct_s
        assert each.gpu_type in ("V100", "K80")
    (run,) = json.loads(json_text(Comparison("", "", [one], groups([one]))))["runs"]
    assert not {"queued_s", "gpus", "gpu_types"} & set(run)
    unknown = run_cell(a_cell())
    assert changes_of(unknown, unknown) == []
