"""A preemptible job waits within a round for GPUs of a faster type that are soon free."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter

import pytest
from builders import ROUND, a_cluster, a_job, a_snapshot, placed_by, reasons_of, some_rates

from hadar_slurm.core.job import Job, Shape
from hadar_slurm.core.plan import Plan, WaitReason
from hadar_slurm.core.snapshot import Round
from hadar_slurm.engine.loop import RoundRecord, run_rounds
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.policies.hadar.arrivals import Arrivals
from hadar_slurm.policies.hadar.policy import Hadar, Memory
from hadar_slurm.policies.hadar.short_waits import take_back_slow_starts
from hadar_slurm.sim.backend import SimBackend

BOTH = some_rates(V100=10.0, K80=1.0)
CLUSTER = "1xV100,1xK80"
# Started 200 s ago: jobs may migrate in 160 s.
WITHIN = replace(ROUND, start_s=200.0, ends_s=360.0, may_move=False)


def job(name: str, steps: int, on: str = "", **changes: object) -> Job:
    """Return a job of one GPU, ten times as fast on a V100."""
    return a_job(name, steps=steps, throughputs=BOTH, **({"on": on} if on else {}), **changes)  # type: ignore[arg-type]


def planned(cluster: str, *jobs: Job, round_: Round = WITHIN) -> Plan:
    """Return the plan while more jobs are expected."""
    round_ = replace(round_, memory=Memory(arrivals=Arrivals(round_.start_s, longest_gap_s=60.0)))
    return Hadar().plan(a_snapshot(cluster, *jobs, now_s=round_.start_s), round_)


def test_a_short_job_waits_for_the_end_of_another() -> None:
    """100 s on the K80, or a wait of 50 s and 10 s on the V100."""
    found = planned(CLUSTER, job("1", 500, "n1:V100:1"), job("2", 100))
    assert placed_by(found) == {"1": "n1:V100:1"}
    assert reasons_of(found) == {"2": WaitReason.BETTER_LATER}


def test_it_starts_where_the_wait_is_too_long() -> None:
    """100 s on the K80 now, or a wait of 95 s and 10 s on the V100."""
    found = planned(CLUSTER, job("1", 950, "n1:V100:1"), job("2", 100))
    assert placed_by(found)["2"] == "n2:K80:1"


def test_it_does_not_wait_for_more_than_the_round() -> None:
    """A job of 300 s on the K80 migrates after 160 s, and ends after 174 s."""
    found = planned(CLUSTER, job("1", 1650, "n1:V100:1"), job("2", 300))
    assert placed_by(found)["2"] == "n2:K80:1"
    found = planned(CLUSTER, job("1", 1430, "n1:V100:1"), job("2", 300))
    assert "2" not in placed_by(found)
    found = planned(CLUSTER, job("1", 1450, "n1:V100:1"), job("2", 300))
    assert placed_by(found)["2"] == "n2:K80:1"


def test_restarts_make_a_longer_wait_worth_while() -> None:
    found = planned(CLUSTER, job("1", 1450, "n1:V100:1"), job("2", 300, restart_cost_s=5.0))
    assert "2" not in placed_by(found)


def test_gpus_that_become_free_are_given_once() -> None:
    """The second would end after 50 + 6.1 + 6.2 s, later than on the K80."""
    found = planned("1xV100,2xK80", job("1", 500, "n1:V100:1"), job("2", 61), job("3", 62))
    assert placed_by(found) == {"1": "n1:V100:1", "3": "n2:K80:1"}


def test_a_job_ahead_without_gpus_takes_them_first() -> None:
    """Job 2 runs on a V100 only, for 60 s."""
    only = a_job("2", steps=600, throughputs=some_rates(V100=10.0))
    snapshot = a_snapshot(CLUSTER, job("1", 500, "n1:V100:1"), only, job("3", 100), now_s=200.0)
    for queue, waits in (((only, job("3", 100)), False), ((job("3", 100), only), True)):
        allocator = Allocator(snapshot, WITHIN)
        assert allocator.start(job("3", 100), ["K80"])
        late = take_back_slow_starts(allocator, queue)
        assert late == (frozenset("3") if waits else frozenset())
        assert ("3" in allocator.placed) is not waits


def test_a_gang_counts_the_nodes() -> None:
    """Two V100s on one node become free, or one on each of two nodes and another is in use."""
    gang = a_job("9", 2, steps=200, throughputs=BOTH, shapes=[Shape(1, 2)])
    near = [job("1", 500, "n1:V100:1"), job("2", 500, "n1:V100:1")]
    assert "9" not in placed_by(planned("2xV100,2xK80", *near, gang))
    apart = [
        job("1", 500, "n1:V100:1"),
        job("2", 50_000, "n1:V100:1"),
        job("3", 500, "n2:V100:1"),
        job("4", 50_000, "n2:V100:1"),
    ]
    assert placed_by(planned("2xV100,2xV100,2xK80", *apart, gang))["9"].startswith("n3:K80")


def test_the_gpus_left_go_to_another_job() -> None:
    """Of two jobs the longer one has the K80."""
    found = planned(CLUSTER, job("1", 500, "n1:V100:1"), job("2", 100), job("3", 3000))
    assert placed_by(found) == {"1": "n1:V100:1", "3": "n2:K80:1"}


def asked(steps: int, *, submitted_s: float, round_: Round, **changes: bool) -> float | None:
    """Return when the next round is asked for, with a job that waits for the only V100."""
    runs, waits = job("1", 9000, "n1:V100:1"), job("2", steps, submitted_s=submitted_s, **changes)
    return planned("1xV100", runs, waits, round_=round_).next_round_s


def test_a_round_ends_early_for_a_short_job_that_waits() -> None:
    """160 s are left: four times the time of a job of 40 s."""
    assert asked(390, submitted_s=190.0, round_=WITHIN) == 200.0
    assert asked(410, submitted_s=190.0, round_=WITHIN) is None


def test_a_round_has_at_least_a_third_of_its_length() -> None:
    soon = replace(WITHIN, start_s=30.0)
    assert asked(100, submitted_s=20.0, round_=soon) == pytest.approx(120.0)


def test_a_job_that_was_there_at_the_start_ends_no_round() -> None:
    assert asked(100, submitted_s=-10.0, round_=WITHIN) is None
    assert asked(100, submitted_s=0.0, round_=replace(ROUND, ends_s=360.0)) is None


def test_a_node_that_the_job_may_not_use_does_not_count() -> None:
    barred = job("2", 100, allowed=["n2"])
    found = planned(CLUSTER, job("1", 500, "n1:V100:1"), barred)
    assert placed_by(found)["2"] == "n2:K80:1"


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
