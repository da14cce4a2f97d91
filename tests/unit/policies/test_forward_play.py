"""Forward plays on nodes and jobs small enough to work out by hand."""

from __future__ import annotations

import math

import pytest

from hadar_slurm.core.job import Shape, uniform_shapes
from hadar_slurm.policies.hadar.forward_play import Play, PlayedJob, Pools, Resolution
from hadar_slurm.policies.hadar.kinds import JobKind
from hadar_slurm.policies.hadar.ways import BY_WORK

EXACT = Resolution(round_s=100.0, growth=0.0)


def kind(gpus: int = 1, speeds: tuple[float, ...] = (1.0,)) -> JobKind:
    """Return jobs of one kind with a throughput of a step/s on the fastest type."""
    order = tuple(sorted((i for i, v in enumerate(speeds) if v), key=lambda i: -speeds[i]))
    return JobKind(gpus, speeds, order, 1.0, speeds, speeds, order, uniform_shapes(gpus))


def job(
    left_s: float,
    of: JobKind | None = None,
    *,
    at_s: float = 0.0,
    restart_s: float = 0.0,
    can_move: bool = True,
) -> PlayedJob:
    found = of or kind()
    return PlayedJob(found, at_s, left_s, restart_s, can_move, own_types=found.by_speed)


def shortest(job: PlayedJob, _: float) -> None:
    """Rank by the time left."""
    job.types, job.rank, job.key = job.own_types, BY_WORK, job.left_s


def ends(nodes: list[list[int]], *jobs: PlayedJob, urgency: float | None = None) -> list[float]:
    """Return the ends of the jobs, the shortest first, on nodes by type."""
    play = Play(jobs, Pools(nodes), shortest, EXACT, urgency=urgency)
    assert play.run()
    return [each.end_s for each in jobs]


def test_jobs_follow_each_other_in_order() -> None:
    """On one GPU the shorter job goes first, and the other starts when it ends."""
    assert ends([[1]], job(300.0), job(250.0)) == [550.0, 250.0]


def test_arrivals_preempt_at_the_next_round() -> None:
    """A short job that arrives at 150 s starts at 200 s; the other then has to restart."""
    long, short = job(1000.0, restart_s=30.0), job(100.0, at_s=150.0)
    assert ends([[1]], long, short) == [1130.0, 300.0]


def test_free_gpus_are_used_within_a_round() -> None:
    """A job that arrives while a GPU is free starts at once."""
    assert ends([[2]], job(1000.0), job(100.0, at_s=150.0)) == [1000.0, 250.0]


def test_a_gang_needs_its_shape_on_the_nodes() -> None:
    """A gang of 12 takes two nodes of eight with six GPUs each; a second one has to wait."""
    gang = kind(12)
    assert ends([[8, 8, 8]], job(100.0, gang), job(200.0, gang)) == [100.0, 300.0]
    assert ends([[8, 8, 8]], job(100.0, gang), job(200.0, kind(8))) == [100.0, 200.0]


def test_a_gang_that_never_fits_has_no_end() -> None:
    """The play ends although a job cannot run."""
    assert ends([[4]], job(100.0, kind(8)), job(50.0)) == [math.inf, 50.0]


def test_a_play_ends_though_a_job_never_starts_again() -> None:
    """A restart without end keeps the job from ending, not the play."""
    never = job(100.0, restart_s=math.inf)
    never.has_run = True
    assert ends([[1]], never) == [math.inf]


def test_a_job_moves_to_a_faster_type_when_that_saves_more_than_a_restart() -> None:
    """The second job begins at half the speed, and moves when the first has ended."""
    both = kind(speeds=(1.0, 0.5))
    assert ends([[1], [1]], job(100.0, both), job(1000.0, both, restart_s=30.0)) == [100.0, 1080.0]
    # With a restart of 2000 s it stays where it is.
    assert ends([[1], [1]], job(100.0, both), job(1000.0, both, restart_s=2000.0))[1] == 2000.0


def test_a_job_that_cannot_move_stays() -> None:
    """A non-preemptible job keeps its type to the end, also when a shorter job arrives."""
    both = kind(speeds=(1.0, 0.5))
    fixed = job(1000.0, both, can_move=False)
    assert ends([[1], [1]], fixed, job(100.0, both, at_s=10.0)) == [1000.0, 210.0]


def test_jobs_that_cannot_move_are_placed_once_where_they_end_first() -> None:
    """The second job waits 100 s for the fast type; the third finds the slow one sooner.

    It would begin on the fast type at 600 s. A job that comes later and is shorter goes before it.
    """
    both = kind(speeds=(1.0, 0.5))
    fixed = [job(each, both, can_move=False) for each in (100.0, 500.0, 550.0)]
    assert ends([[1], [1]], *fixed) == [100.0, 600.0, 1100.0]
    fixed = [job(each, both, can_move=False) for each in (100.0, 500.0)]
    comes = job(300.0, both, at_s=50.0, can_move=False)
    # The second would end at 1,050 s on the slow type, which it could have at 50 s.
    assert ends([[1], [1]], *fixed, comes) == [100.0, 900.0, 400.0]


def test_types_by_regret() -> None:
    """The job that gains more from the fast type gets it, though the other is shorter."""
    gains, hardly = kind(speeds=(1.0, 0.1)), kind(speeds=(1.0, 0.9))
    jobs = job(200.0, gains), job(90.0, hardly)
    assert ends([[1], [1]], *jobs, urgency=0.5) == [200.0, 100.0]
    jobs = job(200.0, gains), job(90.0, hardly)
    assert ends([[1], [1]], *jobs) == [pytest.approx(290.0, abs=10.0), 90.0]


def test_a_gang_mixes_types_at_the_speed_of_the_slowest() -> None:
    """Two nodes of different types hold a gang of two that neither type could hold."""
    assert ends([[1], [1]], job(100.0, kind(2, speeds=(1.0, 0.5)))) == [200.0]


def test_a_play_with_too_few_steps_is_given_up() -> None:
    """The number of jobs considered is bounded."""
    jobs = [job(100.0 + number) for number in range(50)]
    assert not Play(jobs, Pools([[1]]), shortest, Resolution(100.0, 0.0, most_steps=100)).run()


def test_later_rounds_are_longer() -> None:
    """With growth the same play takes fewer steps, and nearly the same time."""
    found = []
    for growth in (0.0, 0.05):
        jobs = [job(1000.0 + 10 * number) for number in range(40)]
        play = Play(jobs, Pools([[2]]), shortest, Resolution(100.0, growth))
        assert play.run()
        found.append((play.steps, max(each.end_s for each in jobs)))
    (exact, ends_s), (coarse, about_s) = found
    assert coarse < 0.6 * exact
    assert about_s == pytest.approx(ends_s, rel=0.05)


def test_pools_give_back_what_they_gave() -> None:
    """Gangs take the fullest nodes that hold them, and return their GPUs."""
    pools = Pools([[4, 4, 2], [8]])
    small, wide = pools.take(0, [Shape(1, 2)]), pools.take(0, [Shape(1, 8), Shape(2, 4)])
    assert (small, wide) == (((0, 1, 2),), ((0, 2, 4),))
    assert pools.room == [0, 8]
    assert pools.take(0, [Shape(1, 1)]) == ()
    pools.give_back(wide)
    pools.give_back(small)
    assert pools.room == [10, 8]
    assert pools.take(0, [Shape(2, 4)]) == ((0, 2, 4),)
