"""A non-preemptible job takes the type on which it ends first, the wait included."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import ROUND, a_job, a_snapshot, placed_by, reasons_of, some_rates

from hadar_slurm.core.cluster import NodeName
from hadar_slurm.core.job import Job, Shape
from hadar_slurm.core.plan import WaitReason
from hadar_slurm.core.snapshot import Round
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.policies.hadar.completion_forecast import (
    Forecast,
    first_on_nodes,
    non_preemptible,
)
from hadar_slurm.policies.hadar.policy import Hadar

BOTH = some_rates(V100=10.0, K80=1.0)
LATER = replace(ROUND, may_move=False)


def fixed(name: str, gpus: int = 1, *, steps: int, on: str = "", shape: Shape | None = None) -> Job:
    """Return a job that cannot be checkpointed, ten times as fast on a V100."""
    job = a_job(name, gpus, steps=steps, throughputs=BOTH, **({"on": on} if on else {}))
    shapes = (shape,) if shape else job.spec.shapes
    return replace(job, spec=replace(job.spec, can_checkpoint=False, shapes=shapes))


def plan(cluster: str, *jobs: Job, round_: Round = ROUND) -> dict[str, str]:
    return placed_by(Hadar().plan(a_snapshot(cluster, *jobs), round_))


def test_it_waits_for_a_fast_gpu_that_comes_free_soon() -> None:
    """A wait of 100 s and a run of 100 s beat 1,000 s, even if the wait counts twice."""
    runs, waits = fixed("1", steps=1000, on="n1:V100:1"), fixed("2", steps=1000)
    assert plan("1xV100,1xK80", runs, waits) == {"1": "n1:V100:1"}
    found = Hadar().plan(a_snapshot("1xV100,1xK80", runs, waits), ROUND)
    assert reasons_of(found) == {"2": WaitReason.BETTER_LATER}
    found = Hadar().plan(a_snapshot("1xV100,1xK80", runs, waits, occupied="n2:K80:1"), ROUND)
    assert reasons_of(found) == {"2": WaitReason.INSUFFICIENT}


def test_it_begins_on_a_slow_gpu_where_the_fast_one_is_long_in_use() -> None:
    runs = fixed("1", steps=10_000, on="n1:V100:1")
    placed = plan("1xV100,1xK80", runs, fixed("2", steps=1000))
    assert placed == {"1": "n1:V100:1", "2": "n2:K80:1"}


def test_a_job_that_can_be_moved_does_not_wait_beyond_the_round() -> None:
    runs = fixed("1", steps=4000, on="n1:V100:1")
    other = a_job("2", steps=1000, throughputs=BOTH)
    assert plan("1xV100,1xK80", runs, other)["2"] == "n2:K80:1"


def test_who_is_ahead_in_the_queue_is_waited_for_as_well() -> None:
    """Job 3, the longest, would be third on the V100; on a faster K80 it ends sooner."""
    runs = fixed("1", steps=1000, on="n1:V100:1")
    two, three = fixed("2", steps=3000), fixed("3", steps=3001)
    found = Allocator(a_snapshot("1xV100,1xK80", runs, two, three), ROUND)
    forecast = Forecast(found, [two, three], 2.0)
    assert [forecast.first_end(two), forecast.first_end(three)] == [None, None]
    slow = some_rates(V100=10.0, K80=4.0)
    three = replace(three, spec=replace(three.spec, throughputs=slow))
    forecast = Forecast(
        Allocator(a_snapshot("1xV100,1xK80", runs, two, three), ROUND), [two, three], 2.0
    )
    assert [forecast.first_end(two), forecast.first_end(three)] == [None, "K80"]


def test_a_gang_waits_for_the_last_of_its_gpus() -> None:
    """One V100 is free and another one in 100 s: both are reserved for the gang."""
    runs = fixed("1", steps=1000, on="n1:V100:1")
    gang = fixed("2", 2, steps=10_000)
    board = Allocator(a_snapshot("2xV100,2xK80", runs, gang), ROUND)
    forecast = Forecast(board, [gang, one := fixed("3", steps=1000)], 2.0)
    assert forecast.first_end(gang) is None
    # Job 3 would start after the gang; twice that wait exceeds the extra run time on the K80.
    assert forecast.first_end(one) == "K80"


def test_within_a_round_who_can_be_moved_is_no_reason_for_a_slow_gpu() -> None:
    """Within a round, a job waits for a V100 that it may get in the next round."""
    runs = a_job("1", steps=1_000_000, on="n1:V100:1", throughputs=BOTH)
    other = fixed("2", steps=20_000)
    # So long that neither of the other jobs is critical.
    longest = fixed("3", steps=10_000_000, on="n3:K80:1")
    assert "2" not in plan("1xV100,1xK80,1xK80", runs, other, longest, round_=LATER)
    assert plan("1xV100,1xK80,1xK80", runs, other, longest)["2"] == "n1:V100:1"


def test_gpus_elsewhere_are_no_reason_to_wait() -> None:
    """The V100 that becomes free is on a node that the job may not use."""
    runs = fixed("1", steps=100, on="n1:V100:1")
    here = frozenset({NodeName("n2"), NodeName("n3")})
    job = replace(fixed("2", steps=1000), allowed_nodes=here)
    busy = fixed("3", steps=1_000_000, on="n2:V100:1")
    placed = plan("1xV100,1xV100,1xK80", runs, job, busy)
    assert placed["2"] == "n3:K80:1"
    free = replace(job, allowed_nodes=None)
    assert "2" not in plan("1xV100,1xV100,1xK80", runs, free, busy)


def test_pools_of_several_groups_of_nodes_are_drawn_from_together() -> None:
    """Job 1 may use all nodes, job 2 one of them: GPUs reserved for job 1 are taken there too."""
    wide = fixed("1", 2, steps=1000)
    narrow = replace(fixed("2", steps=1000), allowed_nodes=frozenset({NodeName("n2")}))
    board = Allocator(a_snapshot("1xV100,1xV100,4xK80", wide, narrow), ROUND)
    forecast = Forecast(board, [wide, narrow], 2.0)
    assert forecast.first_end(wide) == "V100"
    assert forecast.first_end(narrow) is None


def test_where_no_nodes_are_found_single_nodes_decide() -> None:
    """A job needs two V100s on one node; two are free on two nodes, n1 is free in 100 s."""
    shape = Shape(1, 2)
    soon = fixed("1", steps=1000, on="n1:V100:1")
    late = fixed("2", steps=1_000_000, on="n2:V100:1")
    job = fixed("3", 2, steps=4000, shape=shape)
    placed = plan("2xV100,2xV100,2xK80", soon, late, job)
    assert "3" not in placed
    never = fixed("1", steps=1_000_000, on="n1:V100:1")
    assert plan("2xV100,2xV100,2xK80", never, late, job)["3"] == "n3:K80:2"
    board = Allocator(a_snapshot("2xV100,2xV100,2xK80", never, late, job), ROUND)
    assert first_on_nodes(board, job, 2.0) == "K80"


def test_a_gang_that_no_type_could_hold_has_no_choice() -> None:
    gang = fixed("1", 4, steps=100, shape=Shape(2, 2))
    board = Allocator(a_snapshot("2xV100,2xK80", gang), ROUND)
    assert not non_preemptible(board, gang)
    assert set(plan("2xV100,2xK80", gang)) == {"1"}


@pytest.mark.parametrize("job", [a_job("1", throughputs=BOTH), fixed("1", steps=9, on="n1:V100:1")])
def test_who_can_be_moved_or_runs_does_not_settle(job: Job) -> None:
    board = Allocator(a_snapshot("1xV100,1xK80", job), ROUND)
    assert not non_preemptible(board, job)


def test_a_cluster_without_what_it_needs_lets_it_wait() -> None:
    job = replace(fixed("1", steps=9), allowed_nodes=frozenset())
    board = Allocator(a_snapshot("1xV100", job), ROUND)
    assert Forecast(board, [job], 2.0).first_end(job) is None
    assert first_on_nodes(board, job, 2.0) is None
    assert plan("1xV100", job) == {}
