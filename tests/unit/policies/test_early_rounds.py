"""A round ends early for a new short job that waits for GPUs."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import pytest
from builders import ROUND, a_cluster, a_job, a_snapshot, some_rates

from hadar_slurm.core.job import Job
from hadar_slurm.core.snapshot import Round
from hadar_slurm.engine.loop import RoundRecord, run_rounds
from hadar_slurm.policies.hadar.arrivals import Arrivals
from hadar_slurm.policies.hadar.policy import Hadar, Memory
from hadar_slurm.sim.backend import SimBackend

BOTH = some_rates(V100=10.0, K80=1.0)
# Started 200 s ago: jobs may migrate in 160 s.
WITHIN = replace(ROUND, start_s=200.0, ends_s=360.0, may_move=False)


def job(name: str, steps: int, on: str = "", submitted_s: float = 0.0) -> Job:
    """Return a job of one GPU, ten times as fast on a V100."""
    return a_job(name, steps=steps, throughputs=BOTH, on=on, submitted_s=submitted_s)


def asked(steps: int, *, submitted_s: float, round_: Round) -> float | None:
    """Return when the next round is asked for, with a job that waits for the only V100."""
    runs, waits = job("1", 9000, "n1:V100:1"), job("2", steps, submitted_s=submitted_s)
    round_ = replace(round_, memory=Memory(arrivals=Arrivals(round_.start_s, longest_gap_s=60.0)))
    snapshot = a_snapshot("1xV100", runs, waits, now_s=round_.start_s)
    return Hadar().plan(snapshot, round_).next_round_s


def test_a_round_ends_early_for_a_short_job_that_waits() -> None:
    """160 s are left: three times the time of a job of 53.3 s."""
    assert asked(530, submitted_s=190.0, round_=WITHIN) == 200.0
    assert asked(540, submitted_s=190.0, round_=WITHIN) is None


def test_a_round_has_at_least_a_third_of_its_length() -> None:
    soon = replace(WITHIN, start_s=30.0)
    assert asked(100, submitted_s=20.0, round_=soon) == pytest.approx(120.0)


def test_a_job_that_was_there_at_the_start_ends_no_round() -> None:
    assert asked(100, submitted_s=-10.0, round_=WITHIN) is None
    assert asked(100, submitted_s=0.0, round_=replace(ROUND, ends_s=360.0)) is None


def test_the_loop_ends_the_round() -> None:
    """A job of 10 s comes after 30 s of a round; the long job gives way after 120 s."""
    long, short = job("1", 90_000), job("2", 100, submitted_s=30.0)
    world = SimBackend(a_cluster("1xV100"), [long.spec, short.spec])
    records: list[RoundRecord] = []
    run_rounds(
        world,
        Hadar(),
        records.append,
        length_s=360.0,
        now_s=lambda: world.now_s,
        clock=perf_counter,
        max_rounds=5,
    )
    began = [(record.round.start_s, record.round.may_move) for record in records]
    assert began == [(0.0, True), (30.0, False), (120.0, True), (130.0, False), (480.0, True)]
    assert [record.round.left_s for record in records] == [360.0, 330.0, 360.0, 350.0, 360.0]
