"""Shares of GPU time and jobs by group."""

from __future__ import annotations

from builders import a_gang
from web_journals import a_job as a_line_of

from hadar_slurm.core.cluster import JobId
from hadar_slurm.metrics import Segment
from hadar_slurm.status.use import GROUPS, Labels, use_by

LABELS = {
    JobId("1"): Labels("alice", "", "physics"),
    JobId("7_1"): Labels("bob", "", "physics"),
    JobId("7_2"): Labels("bob", "", "chemistry"),
}
SEGMENTS = [
    Segment(JobId("1"), a_gang("n1:v100:2"), 0.0, 100.0),
    Segment(JobId("7_1"), a_gang("n2:v100:1"), 50.0, 150.0),
    Segment(JobId("7_2"), a_gang("n2:v100:1"), 90.0, 190.0),
]


def shares(group: str) -> dict[str, tuple[float, float | None]]:
    """Return GPU seconds and share by group, from 50 to 150."""
    found = use_by(GROUPS[group], SEGMENTS, LABELS, {}, window=(50.0, 150.0), now_s=150.0)
    return {use.name: (use.held_s, use.share) for use in found}


def test_gpu_time_counts_within_the_time_shown() -> None:
    """By user, account or array; the shares make one."""
    assert shares("user") == {"bob": (160.0, 160 / 260), "alice": (100.0, 100 / 260)}
    assert shares("account") == {"physics": (200.0, 200 / 260), "chemistry": (60.0, 60 / 260)}
    assert shares("array") == {"7": (160.0, 160 / 260), "1": (100.0, 100 / 260)}


def test_jobs_of_the_last_round_count_with_their_gpus_and_waits() -> None:
    """A user who only waits is there, too."""
    jobs = {
        "1": a_line_of("n1:V100:2", user="alice", submitted_s=0.0),
        "2": a_line_of(user="eve", submitted_s=40.0),
        "3": a_line_of(user="eve", submitted_s=90.0),
    }
    found = use_by(GROUPS["user"], [], {}, jobs, window=(0.0, 1.0), now_s=100.0)
    assert [(u.name, u.gpus, u.running, u.waiting, u.waited_s, u.share) for u in found] == [
        ("alice", 2, 1, 0, 0.0, None),
        ("eve", 0, 0, 2, 60.0, None),
    ]
