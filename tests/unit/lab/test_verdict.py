"""The first lines of a comparison: the gain over the strongest plain Slurm, and its assumptions."""

from __future__ import annotations

from typing import Any

import pytest

from hadar_slurm.lab.study.summary import groups
from hadar_slurm.lab.study.verdict import verdict


def a_run(policy: str, jct_s: float, **more: Any) -> dict[str, Any]:
    """Return the record of a run."""
    return {"policy": policy, "status": "done", "mean_jct_s": jct_s, "trace": "t", **more}


def said(*records: dict[str, Any]) -> str:
    return "\n".join(verdict(groups(records)))


def test_the_gain_is_that_over_the_strongest_plain_slurm() -> None:
    """By run: two seeds have other strongest opponents, and the range is said."""
    text = said(
        a_run("slurm", 300.0, seed=0),
        a_run("slurm:list:open", 100.0, seed=0),
        a_run("slurm", 100.0, seed=1),
        a_run("slurm:list:open", 400.0, seed=1),
        a_run("hadar", 80.0, seed=0),
        a_run("hadar", 110.0, seed=1),
        a_run("srsf", 1.0, seed=1),
    )
    first, second = text.splitlines()
    assert first == (
        "hadar: the mean completion time is 6% shorter than under the strongest plain Slurm "
        "(slurm:list:open in 1, slurm in 1), 10% longer to 20% shorter in 2 runs."
    )
    assert "the sizes of all jobs are known" in second
    assert "That is the best case: --sizes learned --movable 0" in second


def test_the_first_day_is_not_called_the_best_case() -> None:
    text = said(
        a_run("slurm (sizes learned)", 100.0, movable=0.0, max_user_slowdown=8.0, killed=0),
        a_run("hadar (sizes learned)", 125.0, movable=0.0, max_user_slowdown=12.0, killed=3),
    )
    assert "the mean completion time is 25% longer than" in text
    assert "The worst user's jobs take 12.0 times as long as alone, there 8.0." in text
    assert "Time limits end 3 jobs, there 0, and these count as done." in text
    assert "It is one run, in which single jobs decide" in text
    assert "sizes are learned from the jobs that end" in text
    assert "0 % of the jobs may be migrated" in text
    assert "best case" not in text


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([a_run("hadar", 1.0)], "No plain Slurm is among the policies"),
        ([a_run("srsf", 1.0), a_run("slurm", 1.0)], ""),
        ([a_run("hadar", 1.0, adopted="hadar"), a_run("slurm", 2.0, adopted="")], ""),
        ([{"policy": "hadar", "status": "failed", "trace": "t"}, a_run("slurm", 1.0)], ""),
    ],
)
def test_without_an_opponent_nothing_is_said_of_a_gain(
    records: list[dict[str, Any]], expected: str
) -> None:
    assert said(*records).startswith(expected)
    assert bool(said(*records)) is bool(expected)
