"""Occupancy: the job on each GPU over time."""

from __future__ import annotations

import numpy as np
from builders import a_cluster, a_gang

from hadar_slurm.core.cluster import JobId
from hadar_slurm.lab.study.occupancy import MAX_GPUS, NUM_BINS, from_tree, occupancy, to_tree
from hadar_slurm.lab.traces.cluster import parse_cluster
from hadar_slurm.metrics import Segment

NUMBERS = {JobId("a"): 0, JobId("b"): 1}


def a_segment(job: str, gang: str, start_s: float, end_s: float) -> Segment:
    return Segment(JobId(job), a_gang(gang), start_s, end_s)


def test_a_chart_shows_each_gpu_over_time() -> None:
    """A gang of two runs in the first half, another job on one of its GPUs in the second."""
    seen = occupancy(
        [a_segment("a", "n1:V100:2", 0, 50), a_segment("b", "n1:V100:1", 50, 100)],
        a_cluster("2xV100,1xK80"),
        NUMBERS,
        start_s=0,
        end_s=100,
    )
    assert seen is not None
    half = NUM_BINS // 2
    assert seen.slots == (("n1", "V100", 2), ("n2", "K80", 1))
    assert (seen.jobs[:2, :half] == 0).all()
    assert (seen.jobs[0, half:] == 1).all()
    assert (seen.jobs[1, half:] == -1).all()
    assert (seen.jobs[2] == -1).all()


def test_what_clocks_let_overlap_is_drawn_in_full() -> None:
    """A segment that overlaps the previous one on the same GPU is still drawn."""
    seen = occupancy(
        [a_segment("a", "n1:V100:1", 0, 52), a_segment("b", "n1:V100:1", 50, 100)],
        a_cluster("1xV100"),
        NUMBERS,
        start_s=0,
        end_s=100,
    )
    assert seen is not None
    half = NUM_BINS // 2
    assert (seen.jobs[0, :half] == 0).all()
    assert (seen.jobs[0, half:] == 1).all()


def test_a_chart_survives_its_file() -> None:
    """A chart converted to a tree and back is the same."""
    seen = occupancy(
        [a_segment("b", "n1:V100:1", 10, 90)], a_cluster("2xV100"), NUMBERS, start_s=0, end_s=100
    )
    assert seen is not None
    again = from_tree(to_tree(seen))
    assert again.slots == seen.slots
    assert again.bin_s == seen.bin_s
    assert np.array_equal(again.jobs, seen.jobs)


def test_a_cluster_too_large_to_draw_has_no_chart() -> None:
    """A cluster with more than MAX_GPUS has no chart."""
    large = parse_cluster(f"{MAX_GPUS + 8}xV100", gpus_per_node=8)
    assert occupancy([], large, NUMBERS, start_s=0, end_s=100) is None
