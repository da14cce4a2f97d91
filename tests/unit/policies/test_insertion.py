"""A job that cannot move takes the type on which wait, run time and price are least."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from builders import ROUND, a_job, a_snapshot, placed_by, reasons_of, some_rates
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.cluster import GpuType, NodeName
from hadar_slurm.core.job import Job, Shape
from hadar_slurm.core.lengths.belief import Belief
from hadar_slurm.core.lengths.bins import NUM_BINS, bin_of
from hadar_slurm.core.plan import WaitReason
from hadar_slurm.core.snapshot import Round
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.policies.hadar import insertion
from hadar_slurm.policies.hadar.arrivals import Arrivals
from hadar_slurm.policies.hadar.insertion import (
    FreedGpus,
    FreeGpus,
    FreeTimes,
    Insertion,
    non_preemptible,
)
from hadar_slurm.policies.hadar.kinds import Kinds
from hadar_slurm.policies.hadar.policy import Hadar, Memory

BOTH = some_rates(V100=10.0, K80=1.0)
# More jobs are expected.
OPEN = replace(ROUND, memory=Memory(arrivals=Arrivals(0.0, longest_gap_s=60.0)))
LATER = replace(ROUND, may_move=False)


def fixed(name: str, gpus: int = 1, *, steps: int, on: str = "", shape: Shape | None = None) -> Job:
    """Return a job that cannot be checkpointed, ten times as fast on a V100."""
    job = a_job(name, gpus, steps=steps, throughputs=BOTH, **({"on": on} if on else {}))
    shapes = (shape,) if shape else job.spec.shapes
    return replace(job, spec=replace(job.spec, can_checkpoint=False, shapes=shapes))


def plan(cluster: str, *jobs: Job, round_: Round = OPEN) -> dict[str, str]:
    return placed_by(Hadar().plan(a_snapshot(cluster, *jobs), round_))


def test_it_waits_for_a_fast_gpu_that_comes_free_soon() -> None:
    """A wait of 100 s and a run of 100 s beat 1,000 s, the wait included."""
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
    forecast = Insertion(Kinds(found), [two, three])
    assert [forecast.reserve(two), forecast.reserve(three)] == [None, None]
    slow = some_rates(V100=10.0, K80=5.0)
    three = replace(three, spec=replace(three.spec, throughputs=slow))
    found = Allocator(a_snapshot("1xV100,1xK80", runs, two, three), ROUND)
    forecast = Insertion(Kinds(found), [two, three])
    assert [forecast.reserve(two), forecast.reserve(three)] == [None, "K80"]


def test_a_gang_waits_for_the_last_of_its_gpus_and_a_shorter_job_fills_the_hole() -> None:
    """One V100 is free and another one in 100 s: job 3 ends by then, job 4 would be late."""
    runs = fixed("1", steps=1000, on="n1:V100:1")
    gang, short, longer = fixed("2", 2, steps=30_000), fixed("3", steps=999), fixed("4", steps=1010)
    board = Allocator(a_snapshot("2xV100,2xK80", runs, gang), ROUND)
    forecast = Insertion(Kinds(board), [gang, short, longer])
    assert forecast.reserve(gang) is None
    assert forecast.reserve(longer) == "K80"
    assert forecast.reserve(short) == "V100"


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
    forecast = Insertion(Kinds(board), [wide, narrow])
    assert forecast.reserve(wide) == "V100"
    assert forecast.reserve(narrow) is None


def test_where_no_nodes_are_found_single_nodes_decide() -> None:
    """A job needs two V100s on one node; two are free on two nodes, n1 is free in 100 s."""
    shape = Shape(1, 2)
    soon = fixed("1", steps=1000, on="n1:V100:1")
    late = fixed("2", steps=1_000_000, on="n2:V100:1")
    job = fixed("3", 2, steps=4000, shape=shape)
    never = fixed("1", steps=1_000_000, on="n1:V100:1")
    # Also beside a job that can move.
    for others in (
        (late,),
        (late, a_job("4", steps=10, on="n4:K80:1", throughputs=some_rates(K80=1.0))),
    ):
        assert "3" not in plan("2xV100,2xV100,2xK80,1xK80", soon, *others, job)
        placed = plan("2xV100,2xV100,2xK80,1xK80", never, *others, job)
        assert placed["3"] == "n3:K80:2"


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
    assert Insertion(Kinds(board), [job]).reserve(job) is None
    assert plan("1xV100", job) == {}


def test_gpus_cost_what_those_behind_would_wait() -> None:
    """A job alone waits 900 s for the V100 instead of running 1,200 s on the K80.

    With ten jobs behind it that would wait for the V100, it leaves it to them.
    """
    rates = some_rates(V100=10.0, K80=5.0)
    on_fast = some_rates(V100=10.0)
    runs = fixed("1", steps=4000, on="n1:V100:1")
    job = fixed("2", steps=6000)
    job = replace(job, spec=replace(job.spec, throughputs=rates))
    assert plan("1xV100,1xK80", runs, job) == {"1": "n1:V100:1"}
    behind = [fixed(str(number), steps=9000) for number in range(3, 13)]
    behind = [replace(other, spec=replace(other.spec, throughputs=on_fast)) for other in behind]
    assert plan("1xV100,1xK80", runs, job, *behind)["2"] == "n2:K80:1"


def limited(job: Job, limit_s: float) -> Job:
    """Return the job with a limit, believed to take 120 s to 170 s on its fastest type."""
    ends = tuple(1.0 if where == 1 else 0.0 for where in range(NUM_BINS + 1))
    spec = replace(job.spec, limit_s=limit_s)
    return replace(job, spec=spec, belief=Belief(ends), is_estimated=True)


def test_a_job_keeps_off_the_type_on_which_its_limit_would_end_it() -> None:
    """The V100 is free in 1,000 s; it takes 1,450 s on the K80, where its limit may end it."""
    runs, job = fixed("1", steps=10_000, on="n1:V100:1"), fixed("2", steps=1450)
    assert plan("1xV100,1xK80", runs, limited(job, 3600.0))["2"] == "n2:K80:1"
    assert "2" not in plan("1xV100,1xK80", runs, limited(job, 1200.0))
    # Where it may run on no other, it is not kept waiting.
    only = replace(limited(job, 1200.0), allowed_nodes=frozenset({NodeName("n2")}))
    found = Hadar().plan(a_snapshot("1xV100,1xK80", runs, only), OPEN)
    assert placed_by(found)["2"] == "n2:K80:1"
    assert dict(found.figures)["ended_by_limits"] == 1.0


def test_an_end_at_the_limit_costs_a_day_until_its_owner_has_noticed() -> None:
    """It keeps off the K80 where the V100 is free in 12 hours, but not where in 20."""
    job = limited(fixed("2", steps=1450), 1200.0)
    for hours, starts in ((12, False), (20, True)):
        runs = fixed("1", steps=36_000 * hours, on="n1:V100:1")
        found = Hadar().plan(a_snapshot("1xV100,1xK80", runs, job), OPEN)
        assert ("2" in placed_by(found)) is starts
        assert dict(found.figures)["ended_by_limits"] == float(starts)


def test_beyond_the_first_jobs_none_starts_where_its_limit_may_end_it() -> None:
    """Its place there is compared with no later one; but it does where it may run on no other."""
    runs, job = fixed("1", steps=10_000_000, on="n1:V100:1"), fixed("999", steps=1450)
    first = [fixed(str(number), steps=10) for number in range(10, 10 + insertion._MOST_JOBS)]
    first = [replace(each, allowed_nodes=frozenset({NodeName("n1")})) for each in first]
    only = replace(limited(job, 1200.0), allowed_nodes=frozenset({NodeName("n2")}))
    for last, starts in ((limited(job, 1200.0), False), (limited(job, 3600.0), True), (only, True)):
        assert ("999" in plan("1xV100,1xK80", runs, *first, last)) is starts


def test_what_a_job_has_trained_counts_for_its_limit() -> None:
    """It trains for 120 s to 170 s: with 115 s done a limit of 100 s suffices, and not at first."""
    job = limited(fixed("2", steps=1450), 100.0)
    for done, expected in ((0.0, 1.0), (1150.0, 0.0)):
        again = replace(job, progress=replace(job.progress, steps_done=done))
        found = Hadar().plan(a_snapshot("1xV100", again), OPEN)
        assert dict(found.figures)["ended_by_limits"] == expected


def test_the_horizon_is_that_of_jobs_where_they_are() -> None:
    """Job 1 needs ten hours on the K80 that it cannot leave, and one on a V100."""
    runs, moves = fixed("1", steps=36_000, on="n2:K80:1"), a_job("2", throughputs=BOTH)
    found = Hadar().plan(a_snapshot("1xV100,1xK80", runs, moves), ROUND)
    assert dict(found.figures)["horizon_s"] == pytest.approx(36_000.0)


def test_waits_count_more_than_run_times_where_sizes_are_estimated() -> None:
    """The V100 is free in 1,000 s, which counts once if the size is stated, by the limit twice."""
    runs = fixed("1", steps=10_000, on="n1:V100:1")
    for steps, is_estimated, starts in (
        (1450, False, False),
        (1450, True, True),
        (2150, True, True),
        (2300, True, False),
    ):
        job = replace(fixed("2", steps=steps), is_estimated=is_estimated)
        assert ("2" in plan("1xV100,1xK80", runs, job)) is starts


def test_a_wait_of_stated_size_lasts_until_half_of_the_gpus_are_free() -> None:
    """One of four V100s is free in 100 s, the second in 5,000 s; the K80 takes 4,000 s."""
    late = fixed("3", 2, steps=10**6, on="n1:V100:2")
    first, second = (fixed(name, steps=1000, on="n1:V100:1") for name in "12")
    job = fixed("9", steps=4000)
    assert "9" not in plan("4xV100,1xK80", first, second, late, job)
    second = fixed("2", steps=50_000, on="n1:V100:1")
    assert plan("4xV100,1xK80", first, second, late, job)["9"] == "n2:K80:1"
    learned = replace(job, is_estimated=True)
    assert "9" not in plan("4xV100,1xK80", first, second, late, learned)


def test_a_critical_job_of_stated_size_goes_first() -> None:
    """It needs all of the horizon; the shorter one goes before it where its size is estimated."""
    runs = fixed("3", 19, steps=1000, on="n1:V100:19", shape=Shape(1, 19))
    long, short = fixed("1", steps=100_000), fixed("2", steps=1000)
    assert plan("20xV100", long, short, runs).keys() == {"1", "3"}
    learned = [replace(job, is_estimated=True) for job in (long, short, runs)]
    assert plan("20xV100", *learned).keys() == {"2", "3"}


def uncertain(name: str) -> Job:
    """Return a job that ends within two minutes with 0.9, and else trains for hours."""
    ends = [0.0] * (NUM_BINS + 1)
    ends[0], ends[bin_of(10_000.0)] = 0.9, 1.0
    belief = Belief(tuple(ends))
    job = fixed(name, steps=round(10 * belief.mean_left_s(0.0)))
    return replace(job, belief=belief, is_estimated=True)


def test_a_wait_counts_more_for_a_job_that_probably_ends_soon() -> None:
    """Both take 980 s on the mean; the V100 is free in 5,000 s, the K80 now."""
    runs, job = fixed("1", steps=50_000, on="n1:V100:1"), uncertain("2")
    assert plan("1xV100,1xK80", runs, job)["2"] == "n2:K80:1"
    stated = replace(job, belief=None, is_estimated=False)
    assert "2" not in plan("1xV100,1xK80", runs, stated)


def test_a_job_that_probably_ends_soon_goes_before_one_of_the_same_mean() -> None:
    """Without its belief it comes second, as the later of two."""
    first, second = fixed("1", steps=uncertain("2").spec.total_steps), uncertain("2")
    assert plan("1xV100", first, second) == {"2": "n1:V100:1"}
    stated = replace(second, belief=None, is_estimated=False)
    assert plan("1xV100", first, stated) == {"1": "n1:V100:1"}


def test_beyond_the_first_jobs_a_job_starts_where_it_delays_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Job 2 has the V100 in 100 s; of those not planned any more, job 3 ends by then."""
    monkeypatch.setattr(insertion, "_MOST_JOBS", 1)
    runs = fixed("1", steps=1000, on="n1:V100:1")
    gang, late = fixed("2", 2, steps=2000, shape=Shape(1, 2)), fixed("4", steps=5000)
    board = Allocator(a_snapshot("2xV100", runs, gang, short := fixed("3", steps=900), late), ROUND)
    assert Insertion(Kinds(board), [gang, late, short]).start() == {"2", "4"}
    assert set(board.placed) == {"1", "3"}


gpus_and_s = st.tuples(st.integers(1, 4), st.floats(1.0, 50.0))


@given(st.lists(gpus_and_s, max_size=6), st.lists(gpus_and_s, max_size=12))
def test_what_is_inserted_fits_and_has_the_first_place(
    held: list[tuple[int, float]], asked: list[tuple[int, float]]
) -> None:
    """At no time are more GPUs taken than there are, and no earlier start was free."""
    pool = FreeGpus([FreedGpus(0.0, 2), *(FreedGpus(s, gpus) for gpus, s in held)])
    total = 2 + sum(gpus for gpus, _ in held)
    for gpus, lasts_s in asked:
        start_s = pool.first_s(gpus, lasts_s, 0.0)
        assert (start_s == math.inf) == (gpus > total)
        if start_s < math.inf:
            earlier = [time_s for time_s in pool.times_s if time_s < start_s]
            assert all(pool.least(time_s, lasts_s) < gpus for time_s in earlier)
            pool.take(start_s, lasts_s, gpus)
            assert min(pool.free) >= 0


def test_a_gang_that_finds_no_nodes_is_not_passed_for_ever() -> None:
    """Two V100s are free on two nodes: a single that would take one of them waits."""
    runs = [fixed("1", steps=5000, on="n1:V100:1"), fixed("2", steps=10_000, on="n2:V100:1")]
    gang, single = fixed("3", 2, steps=1000, shape=Shape(1, 2)), fixed("4", steps=10_000)
    assert set(plan("2xV100,2xV100", *runs, gang, single)) == {"1", "2"}


def test_idle_gpus_are_used_however_many_wait_for_others() -> None:
    """The first 200 can use V100s only; those behind them start on the K80s."""
    fast = some_rates(V100=10.0)
    first = [fixed(str(number), steps=100) for number in range(200)]
    first = [replace(job, spec=replace(job.spec, throughputs=fast)) for job in first]
    later = [fixed(str(number), steps=100_000) for number in range(200, 220)]
    snapshot = a_snapshot("1xV100,10xK80", *first, *later)
    found = Hadar().plan(snapshot, ROUND)
    assert len(found.allocations) == 11
    last = [job.job_id for job in later if job.job_id not in found.by_id]
    assert {dict(found.waiting)[job] for job in last} == {WaitReason.INSUFFICIENT}


def test_jobs_that_wait_for_other_nodes_raise_no_price() -> None:
    """Fifty jobs wait for n1 alone; the job that may use the others takes the fast one."""
    busy = fixed("1", steps=1_000_000, on="n1:V100:1")
    one, others = frozenset({NodeName("n1")}), frozenset({NodeName("n2"), NodeName("n3")})
    behind = [replace(fixed(str(n), steps=50_000), allowed_nodes=one) for n in range(10, 60)]
    job = replace(fixed("2", steps=10_000), allowed_nodes=others)
    assert plan("1xV100,1xV100,1xK80", busy, job, *behind)["2"] == "n2:V100:1"


def test_a_longer_job_alike_starts_where_a_shorter_one_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Job 4 fits before the gang has both V100s, and job 5 does not."""
    monkeypatch.setattr(insertion, "_MOST_JOBS", 1)
    runs = fixed("1", steps=1000, on="n1:V100:1")
    gang = fixed("2", 2, steps=2000, shape=Shape(1, 2))
    short, longer = fixed("4", steps=900), fixed("5", steps=1100)
    board = Allocator(a_snapshot("2xV100,1xK80", runs, gang, short, longer), ROUND)
    assert Insertion(Kinds(board), [gang, short, longer]).start() == {"2"}


def test_nodes_that_a_job_has_just_got_are_not_free() -> None:
    """Jobs 1 and 2 take three V100s of each node: job 3 takes the K80s."""
    nearly = some_rates(V100=10.0, K80=9.0)
    first = [fixed(name, 3, steps=100, shape=Shape(1, 3)) for name in ("1", "2")]
    first = [
        replace(job, spec=replace(job.spec, throughputs=some_rates(V100=10.0))) for job in first
    ]
    job = fixed("3", 2, steps=100_000, shape=Shape(1, 2))
    job = replace(job, spec=replace(job.spec, throughputs=nearly))
    slow = [
        replace(j, spec=replace(j.spec, total_steps=1_000_000, submitted_s=-1e9)) for j in first
    ]
    assert plan("4xV100,4xV100,2xK80", *slow, job)["3"] == "n3:K80:2"


@given(
    st.lists(gpus_and_s, min_size=1, max_size=6),
    st.lists(gpus_and_s, min_size=1, max_size=6),
    st.lists(st.tuples(st.integers(1, 3), st.integers(1, 50), st.booleans()), max_size=8),
)
def test_gpus_of_several_pools_are_given_once(
    here: list[tuple[int, float]],
    there: list[tuple[int, float]],
    asked: list[tuple[int, int, bool]],
) -> None:
    """Some jobs may use n1 alone: what the others have is not promised twice."""
    one = frozenset({NodeName("n1")})
    jobs = [
        replace(fixed(str(n), gpus, steps=steps), allowed_nodes=one if narrow else None)
        for n, (gpus, steps, narrow) in enumerate(asked)
    ]
    board = Allocator(a_snapshot("4xV100,4xV100", *jobs), ROUND)
    times = FreeTimes(board, jobs)
    for pools, releases in zip(times._pools.values(), (here, there), strict=False):
        for gpus, in_s in releases:
            pools[0].take(0.0, in_s, min(gpus, pools[0].least(0.0, in_s)))
    for job in jobs:
        lasts_s = float(job.spec.total_steps)
        start_s = times.first_s(job, GpuType("V100"), lasts_s)
        times.take(job, GpuType("V100"), start_s, lasts_s)
        assert all(min(pool.free) >= 0 for pools in times._pools.values() for pool in pools)
