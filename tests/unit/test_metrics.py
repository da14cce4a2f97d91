"""The figures of a run, compared with figures computed by hand."""

from __future__ import annotations

import pytest
from builders import a_gang

from hadar_slurm.journal import Line, gang_tree
from hadar_slurm.metrics import Segment, segments, summarize

NODES = {
    "n1": {"gpus": {"V100": 2}, "open": True},
    "n2": {"gpus": {"K80": 2, "V100": 1}, "open": True},
}


def a_line(
    time_s: float,
    *,
    jobs: dict[str, tuple[float, str]] | None = None,
    ended: dict[str, tuple[str, float]] | None = None,
    actions: list[tuple[str, str, str, str]] | None = None,
) -> Line:
    """Return a journal line; jobs are (submitted_s, phase), actions (do, job, gang, status)."""
    return {
        "time_s": time_s,
        "nodes": NODES,
        "jobs": {
            key: {"submitted_s": came_s, "phase": phase}
            for key, (came_s, phase) in (jobs or {}).items()
        },
        "ended": {
            key: {"phase": how, "end_s": end_s} for key, (how, end_s) in (ended or {}).items()
        },
        "actions": [
            {"do": do, "job": key, "copy": 0, "gang": gang_tree(a_gang(gang)), "status": status}
            for do, key, gang, status in actions or []
        ],
    }


# Job 1 holds both V100s of n1 from 0 to 100; job 2 a K80 from 0 to 60, a V100 from 60 to 200.
RUN = [
    a_line(
        0.0,
        jobs={"1": (0.0, "queued"), "2": (0.0, "queued")},
        actions=[("start", "1", "n1:V100:2", "done"), ("start", "2", "n2:K80:1", "done")],
    ),
    a_line(
        60.0,
        jobs={"1": (0.0, "running"), "2": (0.0, "running"), "3": (50.0, "queued")},
        actions=[
            ("stop", "2", "n2:K80:1", "done"),
            ("renew", "1", "n1:V100:2", "done"),
            ("start", "2", "n2:V100:1", "done"),
            ("start", "3", "n2:V100:1", "deferred"),
        ],
    ),
    a_line(
        120.0,
        jobs={"2": (0.0, "running"), "3": (50.0, "queued")},
        ended={"1": ("done", 100.0)},
        actions=[("start", "3", "n1:V100:1", "done"), ("renew", "2", "n2:V100:1", "done")],
    ),
    a_line(220.0, ended={"2": ("done", 200.0), "3": ("failed", 150.0)}),
]


def test_segments_are_what_was_held() -> None:
    """A segment lasts from an executed start to the stop or the job's end."""
    assert segments(RUN) == [
        Segment("1", a_gang("n1:V100:2"), 0.0, 100.0),  # type: ignore[arg-type]
        Segment("2", a_gang("n2:K80:1"), 0.0, 60.0),  # type: ignore[arg-type]
        Segment("2", a_gang("n2:V100:1"), 60.0, 200.0),  # type: ignore[arg-type]
        Segment("3", a_gang("n1:V100:1"), 120.0, 150.0),  # type: ignore[arg-type]
    ]


def test_the_figures_of_a_run() -> None:
    """Completion times of finished jobs, duration, moves and utilisation are correct."""
    summary = summarize(RUN)
    assert (summary.jobs, summary.finished, summary.moves) == (3, 2, 1)
    assert summary.ttd_s == 200.0
    assert summary.mean_jct_s == pytest.approx((100.0 + 200.0) / 2)
    # V100: 2 * 100 + 140 + 30 of 3 * 200 GPU-seconds; K80: 60 of 2 * 200.
    assert summary.utilization == {"K80": pytest.approx(0.15), "V100": pytest.approx(370 / 600)}


def test_times_count_from_the_first_submission() -> None:
    """Times are relative to the first submission, as for times since the epoch."""
    later = [
        a_line(
            1000.0, jobs={"1": (990.0, "queued")}, actions=[("start", "1", "n1:V100:1", "done")]
        ),
        a_line(1100.0, ended={"1": ("done", 1090.0)}),
    ]
    summary = summarize(later)
    assert (summary.ttd_s, summary.mean_jct_s) == (100.0, 100.0)
    assert summary.utilization["V100"] == pytest.approx(90 / 300)


def test_a_run_under_way_has_figures_too() -> None:
    """Without an ended job there is no completion time; utilisation counts to the last round."""
    summary = summarize(RUN[:2])
    assert (summary.finished, summary.ttd_s, summary.mean_jct_s) == (0, 0.0, 0.0)
    assert summary.utilization == {"K80": pytest.approx(0.5), "V100": pytest.approx(120 / 180)}


def test_jobs_of_an_earlier_run_do_not_count() -> None:
    """An ended job that the journal never showed as queued or running is not counted."""
    summary = summarize(
        [a_line(500.0, jobs={"7": (480.0, "queued")}, ended={"1": ("done", 100.0)})]
    )
    assert (summary.jobs, summary.finished, summary.ttd_s) == (1, 0, 0.0)


def test_a_job_that_lost_its_node_held_it_until_it_was_seen_queued() -> None:
    """The round that finds the job queued again, without a stop, ends its segment."""
    lines = [
        RUN[0],
        a_line(60.0, jobs={"1": (0.0, "queued"), "2": (0.0, "running")}),
        a_line(
            120.0,
            jobs={"1": (0.0, "queued"), "2": (0.0, "running")},
            actions=[("start", "1", "n2:V100:1", "done")],
        ),
        a_line(180.0, ended={"1": ("done", 170.0)}, jobs={"2": (0.0, "running")}),
    ]
    held = [(s.job_id, s.start_s, s.end_s) for s in segments(lines)]
    assert held == [("1", 0.0, 60.0), ("2", 0.0, 180.0), ("1", 120.0, 170.0)]


def test_a_round_that_saw_nothing_changes_nothing() -> None:
    """A line without jobs and nodes does not change the figures."""
    dark: Line = {"time_s": 90.0, "actions": []}
    assert summarize([*RUN[:2], dark, *RUN[2:]]) == summarize(RUN)


def test_an_empty_journal_is_all_noughts() -> None:
    """The figures of an empty journal are zero; there is no division by zero."""
    summary = summarize([])
    assert (summary.jobs, summary.ttd_s, summary.mean_jct_s, summary.utilization) == (0, 0, 0, {})
