"""The first lines of a comparison: the gain over the strongest plain Slurm, and its assumptions."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from builders import a_cluster
from histories import HEADING, MODERN, modern_history

from hadar_slurm.lab.inputs import read_table
from hadar_slurm.lab.study.compare import Cell, StudyWorkload, run_cell
from hadar_slurm.lab.study.experiment import run_experiment
from hadar_slurm.lab.study.gains.verdict import gains_tree, verdict
from hadar_slurm.lab.study.gains.verdict import judged as judgement_of
from hadar_slurm.lab.study.summary import groups
from hadar_slurm.lab.traces.load import parse_trace
from hadar_slurm.policies.registry import make_policy

CLUSTER = a_cluster(",".join(f"4x{name},4x{name}" for name in MODERN))


def a_run(policy: str, jct_s: float, **more: Any) -> dict[str, Any]:
    """Return the record of a run."""
    known = {"bare_policy": policy, "speeds": "oracle", "sizes": "oracle"}
    return {
        "policy": policy, "status": "done", "mean_jct_s": jct_s, "trace": "t", **known, **more
    }  # fmt: skip


def said(*records: dict[str, Any]) -> str:
    return "\n".join(verdict(judgement_of(groups(records))))


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
        "With all sizes known and every job movable, hadar would shorten the mean completion time "
        "by 6 % (between 10 % longer and 20 % shorter in 2 runs) beside the strongest plain Slurm "
        "(slurm:list:open in 1, slurm in 1)."
    )
    assert "is the best case: --sizes learned --movable 0" in second
    assert "Nothing recorded of these jobs at this load shows how near" in second


def test_the_first_day_is_not_called_the_best_case() -> None:
    text = said(
        a_run("slurm", 100.0, sizes="learned", movable=0.0, max_user_slowdown=8.0, killed=0),
        a_run("hadar", 125.0, sizes="learned", movable=0.0, max_user_slowdown=12.0, killed=1),
    )
    assert text.startswith(
        "With sizes learned from the jobs that end and no job movable, hadar would lengthen the "
        "mean completion time by 25 % beside the strongest plain Slurm (slurm)."
    )
    assert "over their time alone, is 12.0, under plain Slurm 8.0." in text
    assert (
        "Time limits end 1 job, under plain Slurm 0; these count as done at their limits." in text
    )
    assert "It is one run of few jobs, in which single ones decide" in text
    assert "best case" not in text


def some_times(factor: float, *, movable: float = 0.0, policy: str = "hadar") -> dict[str, Any]:
    """Return a run of 200 jobs of 20 users; jobs are `factor` times as long, give or take."""
    times = [100.0 + 7 * (n * 37 % 50) for n in range(200)]
    ours = [time * (factor + (n % 20 - 9.5) / 30) for n, time in enumerate(times)]
    users = [f"user{n % 20}" for n in range(200)]
    shown = times if policy == "slurm" else ours
    mean_s = sum(shown) / len(shown)
    moves = {} if policy == "slurm" else {"movable": movable}
    return a_run(policy, mean_s, jcts_s=shown, users=users, **moves)


def test_the_gain_of_one_run_has_an_interval() -> None:
    """In the sentence, with what it is; and the same in the tree for programs."""
    records = [some_times(1.0, policy="slurm"), some_times(0.8)]
    text = said(*records)
    (found,) = gains_tree(judgement_of(groups(records)))
    low, high = found["interval"]
    assert found["gain"] == pytest.approx(0.2, abs=0.01)
    assert 0 < low < found["gain"] < high < 0.4
    assert (found["policy"], found["opponent"], found["movable"]) == ("hadar", "slurm", 0.0)
    assert (
        f"by {found['gain']:.0%} (between {low * 100:.0f} and {high:.0%}) beside".replace("%", " %")
        in text
    )
    assert "The interval is made to have the gain in 90 % of cases" in text
    assert "one run of few jobs" not in text
    even = said(some_times(1.0, policy="slurm"), some_times(0.99))
    assert re.search(r"by 1 % \(between \d+ % longer and \d+ % shorter\)", even)


def test_each_kind_of_hadar_is_in_the_first_sentence() -> None:
    """The first day comes before what is movable later, and nothing is said twice."""
    text = said(
        some_times(1.0, policy="slurm"),
        some_times(0.8),
        some_times(0.6, movable=50.0),
    )
    assert re.match(
        r"With all sizes known and no job movable, hadar would shorten the mean completion time by "
        r"20 % \(between .*\) beside the strongest plain Slurm \(slurm\); with all sizes known and "
        r"50 % of the jobs movable, by 40 % \(between \d+ and \d+ %\)\.",
        text,
    )


def test_a_plain_slurm_that_stops_jobs_counts_where_as_many_can_move() -> None:
    """It has a run for each share of movable jobs."""
    preempting = "slurm:preempt=requeue"
    records = [
        some_times(0.8),
        some_times(0.7, movable=100.0),
        {
            **some_times(1.0, policy="slurm"),
            "policy": preempting,
            "bare_policy": preempting,
            "movable": 0.0,
        },
        {
            **some_times(1.0, policy="slurm"),
            "policy": preempting,
            "bare_policy": preempting,
            "movable": 100.0,
        },
    ]
    records[3] |= {"mean_jct_s": records[3]["mean_jct_s"] / 2}
    gains = [round(each["gain"], 2) for each in gains_tree(judgement_of(groups(records)))]
    assert gains == [0.2, -0.4]


def test_a_policy_slurm_of_adopters_is_no_plain_slurm() -> None:
    """It is neither the opponent nor what happened."""
    records = [
        {**some_times(1.0, policy="slurm"), "adoption": 0.0},
        {**some_times(0.8), "adoption": 50.0},
        {
            **some_times(1.0, policy="slurm"),
            "bare_policy": "slurm:list",
            "policy": "p",
            "adoption": 50.0,
        },
    ]
    records[2] |= {"mean_jct_s": 1.0}
    (gain,) = gains_tree(judgement_of(groups(records)))
    assert (gain["opponent"], gain["adoption"], round(gain["gain"], 2)) == ("slurm", 50.0, 0.2)


def test_kinds_that_know_other_speeds_are_told_apart() -> None:
    """And no source of throughputs is said of a kind that has another one."""
    records = [
        some_times(1.0, policy="slurm"),
        some_times(0.8),
        {**some_times(0.9), "policy": "hadar (learned)", "speeds": "learned"},
    ]
    text = said(*records)
    assert "all sizes known, throughputs as with --speeds learned and no job movable, by" in text
    assert "Assumed: throughputs are known where no source is named, and all users" in text


def test_the_share_of_users_who_take_part_is_said() -> None:
    """Beside plain Slurm with no user under hadar."""
    text = said(
        {**some_times(1.0, policy="slurm"), "adoption": 0.0},
        {**some_times(0.9), "adoption": 30.0, "policy": "hadar (30 % of users)"},
    )
    assert re.match(
        r"With all sizes known, no job movable and 30 % of the users taking part, hadar would "
        r"shorten the mean completion time by 10 % \(between .*\) beside the strongest plain Slurm "
        r"\(slurm\)",
        text,
    )
    assert "all users take part" not in text


def recorded(simulated_s: float) -> dict[str, Any]:
    return {"jobs": 40, "mean_jct_s": 36_000.0, "simulated_jct_s": simulated_s}


def test_what_happened_comes_first_and_a_gain_only_if_plain_slurm_is_near() -> None:
    """The nearest plain Slurm within 15 %; the gain is still over the strongest."""
    near = [
        a_run("slurm", 300.0, recorded=recorded(38_000.0)),
        a_run("slurm:list:open", 100.0, recorded=recorded(20_000.0)),
        a_run("hadar", 80.0, recorded=recorded(15_000.0)),
    ]
    first, second, *_ = said(*near).splitlines()
    assert second == (
        "t: what happened is a mean completion time of 10.00 h (40 jobs); the nearest plain Slurm "
        "(slurm) has 10.56 h, 6 % more."
    )
    assert "by 20 % beside the strongest plain Slurm (slurm:list:open)" in first
    assert "Nothing recorded" not in said(*near)
    far = said(*near[1:])
    assert "44 % less. That is too far to state a gain: Slurm was set up otherwise" in far
    assert "shorten" not in far


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([a_run("hadar", 1.0)], "No plain Slurm is among the policies"),
        ([a_run("srsf", 1.0), a_run("slurm", 1.0)], ""),
        ([{"policy": "hadar", "status": "failed", "trace": "t"}, a_run("slurm", 1.0)], ""),
    ],
)
def test_without_an_opponent_nothing_is_said_of_a_gain(
    records: list[dict[str, Any]], expected: str
) -> None:
    assert said(*records).startswith(expected)
    assert bool(said(*records)) is bool(expected)


def history_of(policy: str, *, late_s: float = 0.0) -> str:
    """Return the history of a Slurm as a policy simulates it; with `late_s` all begin later."""
    text = modern_history(90, users=5, gap_s=200.0)
    jobs = parse_trace(text, "modern", read_table(None), CLUSTER).jobs
    jobs = tuple(replace(job, limit_s=job.limit_s * 4) for job in jobs)
    result = run_experiment(jobs, CLUSTER, make_policy(policy))
    by_id = {job.job_id: job for job in jobs}
    lines = [HEADING]
    for ran in result.segments:
        job, (gpu_type, *_) = by_id[ran.job_id], ran.gang.gpus_by_type
        start_s, nodes = ran.start_s + late_s, len(ran.gang.gpus_by_node)
        lines.append(
            f"{job.job_id}|{job.user}|{job.submitted_s:.0f}|{start_s:.0f}|"
            f"{round(ran.end_s - ran.start_s)}|{job.limit_s / 60:.0f}|gres/gpu={job.num_gpus},"
            f"gres/gpu:{gpu_type}={job.num_gpus},node={nodes}|gres/gpu={job.num_gpus}|COMPLETED"
        )
    return "\n".join(lines) + "\n"


def judged(text: str, *policies: str) -> str:
    trace = parse_trace(text, "made", read_table(None), CLUSTER)
    jobs = StudyWorkload(name="made", specs=trace.jobs, recorded=trace.recorded)
    cell = Cell(workload=jobs, cluster=CLUSTER, cluster_name="modern", policy="hadar")
    records = [run_cell(replace(cell, policy=name)) for name in policies]
    return "\n".join(verdict(judgement_of(groups(records))))


def test_a_history_of_a_slurm_is_near_that_slurm_alone() -> None:
    """Within a tenth of itself; jobs that waited six hours more cannot be judged."""
    near = judged(history_of("slurm:list"), "slurm:list")
    assert "(90 jobs); the nearest plain Slurm (slurm:list) has" in near
    assert "too far" not in near
    assert int(near.rpartition(" %")[0].rpartition(" ")[2]) <= 10
    far = judged(history_of("slurm:list", late_s=6 * 3600.0), "slurm:list", "srsf")
    assert "That is too far to state a gain" in far
