"""The allocator: type reservations, node assignment, moves, and reasons to wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import ROUND, a_cluster, a_gang, a_job, a_snapshot, a_spec, placed_by, reasons_of
from builders import some_rates as steps_per_s

from hadar_slurm.core.cluster import Cluster, GpuType
from hadar_slurm.core.gang import Allocation
from hadar_slurm.core.job import Job, Phase, Shape
from hadar_slurm.core.plan import WaitReason
from hadar_slurm.core.snapshot import GangRules
from hadar_slurm.core.throughput import GangThroughput, Throughputs
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.placement.node_assignment import assign_nodes
from hadar_slurm.sim.backend import GAVEL_RULES

V100, P100, K80 = GpuType("V100"), GpuType("P100"), GpuType("K80")
# 10 steps/s within a node, 4 across nodes.
SLOW_WHEN_SPREAD = Throughputs.of(
    {("V100", 1): GangThroughput(10.0), ("V100", 2): GangThroughput(10.0, 4.0)}
)


def a_board(
    cluster: Cluster | str, *jobs: Job, may_move: bool = True, rules: GangRules | None = None
) -> Allocator:
    return Allocator(a_snapshot(cluster, *jobs, rules=rules), replace(ROUND, may_move=may_move))


def choose_all(board: Allocator, gpu_type: GpuType = V100) -> list[str]:
    """Reserve a type for every job and assign nodes; return the jobs without nodes."""
    assert all(board.choose(job, gpu_type) for job in board.jobs)
    return [str(job.job_id) for job in assign_nodes(board)]


def test_what_may_not_move_is_placed_first() -> None:
    """Pinned jobs, and within a round running jobs, are placed at once and reduce the room."""
    pinned = a_job("1", on="n1:V100:1", can_checkpoint=False)
    running = a_job("2", on="n1:V100:1")
    board = a_board("4xV100", pinned, running, a_job("3"))
    assert [job.job_id for job in board.jobs] == ["2", "3"]
    assert board.room(V100) == 3
    board = a_board("4xV100", pinned, running, a_job("3"), may_move=False)
    assert [job.job_id for job in board.jobs] == ["3"]
    assert board.room(V100) == 2


def test_a_type_is_reserved_where_a_job_can_run_only() -> None:
    """A type is refused without room, speed or suitable nodes, or against the requested type."""
    board = a_board("2xV100,2xV100,2xP100", a_job())
    assert not board.choose(a_job("1", 3, shapes=[Shape(1, 3)]), V100)
    assert not board.choose(a_job("2", throughputs=steps_per_s(P100=1.0)), V100)
    assert not board.choose(a_job("3", bound_type="P100"), V100)
    assert not board.choose(a_job("4", allowed=["n3"]), V100)
    assert not board.choose(a_job("5", 5), V100)
    assert board.choose(a_job("6", 4, shapes=[Shape(2, 2)]), V100)
    assert board.room(V100) == 0
    assert board.has_room
    assert not board.choose(a_job("7"), V100)


def test_who_keeps_its_type_keeps_its_place() -> None:
    """A running job keeps its node even if an earlier job would fit there most tightly."""
    board = a_board("2xV100,4xV100", a_job("1", 2), a_job("2", 2, on="n1:V100:2"))
    assert choose_all(board) == []
    assert placed_by(board.plan()) == {"1": "n2:V100:2", "2": "n1:V100:2"}


def test_large_gangs_find_nodes_first() -> None:
    """Large gangs get nodes first; small ones take the tightest fits."""
    board = a_board("2xV100,4xV100", a_job("1", 1), a_job("2", 4), a_job("3", 1))
    assert choose_all(board) == []
    assert placed_by(board.plan()) == {"1": "n1:V100:1", "2": "n2:V100:4", "3": "n1:V100:1"}


def test_a_spread_gang_comes_together_when_a_node_is_free() -> None:
    """A slow spread gang moves to a single node that is free."""
    job = a_job("1", 2, on="n1:V100:1 n2:V100:1", throughputs=SLOW_WHEN_SPREAD, restart_cost_s=30.0)
    board = a_board("2xV100,2xV100,2xV100", job, a_job("2", on="n1:V100:1"))
    assert choose_all(board) == []
    assert placed_by(board.plan())["1"] == "n2:V100:2"


@pytest.mark.parametrize(("steps", "place"), [(100, "n1:V100:1 n2:V100:1"), (10_000, "n1:V100:2")])
def test_a_smaller_job_makes_room_if_that_pays(steps: int, place: str) -> None:
    """Two restarts of 30 s cost more than a job of 100 steps gains on one node."""
    slow = a_job(
        "1",
        2,
        steps=steps,
        on="n1:V100:1 n2:V100:1",
        throughputs=SLOW_WHEN_SPREAD,
        restart_cost_s=30.0,
    )
    others = [a_job(str(n), on=f"n{n - 1}:V100:1", restart_cost_s=30.0) for n in (2, 3)]
    board = a_board("2xV100,2xV100", slow, *others)
    assert choose_all(board) == []
    placed = placed_by(board.plan())
    assert placed["1"] == place
    assert placed["3"] == "n2:V100:1"
    assert placed["2"] == ("n1:V100:1" if steps == 100 else "n2:V100:1")


def test_a_gang_that_can_start_nowhere_else_is_made_room_for() -> None:
    """Jobs of one GPU move together so that a gang can start on one node."""
    small = [a_job(str(n), on=f"n{n}:V100:1", restart_cost_s=30.0) for n in (1, 2)]
    board = a_board("2xV100,2xV100", *small, a_job("3", 2, shapes=[Shape(1, 2)]))
    assert choose_all(board) == []
    assert placed_by(board.plan()) == {"1": "n2:V100:1", "2": "n2:V100:1", "3": "n1:V100:2"}


def test_nobody_makes_room_who_may_not_move() -> None:
    """Pinned jobs are not displaced, and the gang waits."""
    pinned = [a_job(str(n), on=f"n{n}:V100:1", can_checkpoint=False) for n in (1, 2)]
    board = a_board("2xV100,2xV100", *pinned, a_job("3", 2, shapes=[Shape(1, 2)]))
    assert choose_all(board) == ["3"]


def test_of_those_who_could_make_room_the_fewest_gpus_do() -> None:
    """If one more GPU is needed, the job of one GPU moves, not the job of two."""
    two = a_job("1", 2, on="n1:V100:2", restart_cost_s=30.0)
    one = a_job("2", 1, on="n1:V100:1", restart_cost_s=30.0)
    pinned = a_job("3", 3, on="n2:V100:3", can_checkpoint=False)
    board = a_board("5xV100,4xV100", two, one, pinned, a_job("4", 3, shapes=[Shape(1, 3)]))
    assert choose_all(board) == []
    assert placed_by(board.plan()) == {
        "1": "n1:V100:2",
        "2": "n2:V100:1",
        "3": "n2:V100:3",
        "4": "n1:V100:3",
    }


def test_where_spreading_is_free_nobody_moves_for_it() -> None:
    """Under Gavel's rules a spread gang is as fast as one on a single node."""
    spread = a_job("1", 2, on="n1:V100:1 n2:V100:1", throughputs=SLOW_WHEN_SPREAD)
    board = a_board("2xV100,2xV100,2xV100", spread, a_job("2", 3), rules=GAVEL_RULES)
    assert choose_all(board) == []
    assert placed_by(board.plan())["1"] == "n1:V100:1 n2:V100:1"


def test_a_job_stays_only_on_what_nobody_was_promised() -> None:
    """`keep` takes no reserved GPUs; GPUs of a closed node cannot be reserved."""
    mixed = a_job("1", 2, on="n1:V100:1 n2:P100:1")
    board = a_board("1xV100,1xP100", mixed, a_job("2"))
    assert board.choose(board.jobs[1], V100)
    assert not board.keep(board.jobs[0])
    board = a_board(a_cluster("1xV100,1xP100", closed=["n1"]), mixed, a_job("2"))
    assert board.room(V100) == 0
    assert board.keep(board.jobs[0])


def test_a_forked_job_stays_with_the_copies_it_can_keep() -> None:
    """A job keeps its other copies if the GPUs of one copy are taken."""
    copies = {0: a_gang("n1:V100:1"), 2: a_gang("n2:V100:1")}
    forked = Job(a_spec("1", max_copies=3), Phase.RUNNING, allocation=Allocation.of(copies))
    board = a_board("1xV100,1xV100", forked, a_job("2", allowed=["n1"]))
    assert board.start(board.jobs[1], [V100])
    assert board.stay(board.jobs[0])
    assert board.placed[forked.job_id].copies == ((2, copies[2]),)


def test_the_last_copy_of_a_forked_job_keeps_its_number() -> None:
    """A copy that stays keeps its number, otherwise it would be restarted."""
    held = Allocation.of({2: a_gang("n1:V100:1 n2:V100:1")})
    spec = a_spec("1", 2, max_copies=3, throughputs=SLOW_WHEN_SPREAD)
    board = a_board("1xV100,1xV100", Job(spec, Phase.RUNNING, allocation=held))
    assert choose_all(board) == []
    assert board.placed[spec.job_id] == held


def test_what_is_left_goes_to_whoever_can_use_it() -> None:
    """`fill` serves jobs in order, by speed or the given order of types; a running job may stay."""
    jobs = [a_job("1"), a_job("2", on="n3:K80:1"), a_job("3")]
    board = a_board("1xV100,1xP100,1xK80", *jobs)
    board.fill(board.jobs)
    assert placed_by(board.plan()) == {"1": "n1:V100:1", "2": "n3:K80:1", "3": "n2:P100:1"}
    board = a_board("1xV100,1xP100,1xK80", *jobs)
    board.fill(board.jobs, lambda job: list(reversed(board.by_speed(job))))
    assert placed_by(board.plan()) == {"1": "n3:K80:1", "2": "n2:P100:1", "3": "n1:V100:1"}


def test_a_start_that_failed_is_not_tried_for_jobs_alike_but_for_all_others() -> None:
    """Of jobs in line behind one that finds no room, each that fits on what is left starts."""
    jobs = [a_job("1", 4), a_job("2", 4), a_job("3", 2), a_job("4", 2), a_job("5")]
    board = a_board("3xV100", *jobs)
    board.fill(board.jobs)
    assert placed_by(board.plan()) == {"3": "n1:V100:2", "5": "n1:V100:1"}
    board = a_board("3xV100", *jobs)
    board.fill(board.jobs, lambda job: [] if job.job_id == "3" else board.by_speed(job))
    assert placed_by(board.plan()) == {"4": "n1:V100:2", "5": "n1:V100:1"}


def test_a_gang_mixes_types_where_no_single_one_has_room() -> None:
    """A gang mixes the first types of its list, if gangs may mix types."""
    job = a_job("1", 2)
    board = a_board("1xV100,1xP100,1xK80", job)
    assert board.start(job, board.by_speed(job))
    assert placed_by(board.plan()) == {"1": "n1:V100:1 n2:P100:1"}
    board = a_board("1xV100,1xP100,1xK80", job, rules=GangRules(may_mix_types=False))
    assert not board.start(job, board.by_speed(job))


def test_types_by_room_are_by_what_is_left_of_them() -> None:
    """Reservations reduce the room; ties are by name; types without speed are omitted."""
    board = a_board("3xV100,2xP100,2xK80", a_job("1", 2), a_job("2"))
    assert board.by_room(board.jobs[1]) == [V100, K80, P100]
    assert board.choose(board.jobs[0], V100)
    assert board.by_room(board.jobs[1]) == [K80, P100, V100]
    assert board.by_room(a_job("3", throughputs=steps_per_s(P100=1.0))) == [P100]


def test_a_job_is_told_why_it_waits() -> None:
    """Reasons distinguish jobs that can never start, unknown throughput, and lack of GPUs."""
    board = a_board(
        a_cluster("2xV100,2xV100", closed=["n2"]),
        a_job("1", 2, on="n1:V100:2"),
        a_job("2", 4),
        a_job("3", 5),
        a_job("4", throughputs=steps_per_s(A100=1.0)),
        a_job("5", on="n2:V100:1", phase=Phase.STOPPING),
    )
    assert board.stay(board.jobs[0])
    assert reasons_of(board.plan()) == {
        "2": WaitReason.INSUFFICIENT,
        "3": WaitReason.INFEASIBLE,
        "4": WaitReason.NO_THROUGHPUT,
        "5": WaitReason.STOPPING,
    }
    assert not board.could_start(board.jobs[1])
    assert board.could_start(board.jobs[0])


def test_two_jobs_alike_but_for_their_checkpoints_may_differ_in_what_they_can_do() -> None:
    """Where naming a type binds, a preemptible job may not start beside a faster type."""
    rules = GangRules(naming_binds=True, may_mix_types=False)
    jobs = [
        a_job(name, allowed=["n1"], shapes=[Shape(1, 1)], bound_type=None, can_checkpoint=moves)
        for name, moves in (("1", True), ("2", False))
    ]
    # Unmanaged jobs occupy all V100s; the K80 of the same node is free.
    snapshot = a_snapshot("1xV100+1xK80", *jobs, occupied="n1:V100:1", rules=rules)
    board = Allocator(snapshot, ROUND)
    assert not board.choose(board.jobs[0], K80)
    assert board.choose(board.jobs[1], K80)


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (a_job("1"), WaitReason.WOULD_TIE),
        (a_job("1", allowed=["n1"]), WaitReason.WOULD_TIE),
        (a_job("1", bound_type="V100"), WaitReason.INSUFFICIENT),
        (a_job("1", 2), WaitReason.INSUFFICIENT),
    ],
    ids=["free to move", "on some nodes", "tied already", "too large in any case"],
)
def test_who_waits_so_as_not_to_be_tied_is_told_so(job: Job, why: WaitReason) -> None:
    """The only free GPU is a slow one beside fast ones, where a type must be named."""
    rules = GangRules(naming_binds=True)
    snapshot = a_snapshot("2xV100+1xK80", job, occupied="n1:V100:2", rules=rules)
    board = Allocator(snapshot, ROUND)
    board.fill(board.jobs)
    assert dict(board.plan().waiting) == {"1": why}
