"""The choice of a way by forward plays."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import ROUND, a_job, a_snapshot, placed_by, some_rates

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.policies.hadar import look_ahead
from hadar_slurm.policies.hadar.forward_play import Resolution
from hadar_slurm.policies.hadar.history import History
from hadar_slurm.policies.hadar.kinds import Kinds
from hadar_slurm.policies.hadar.look_ahead import View, WayInUse, choose, is_due
from hadar_slurm.policies.hadar.policy import Hadar
from hadar_slurm.policies.hadar.ways import Typing, Way

V100 = some_rates(V100=10.0)
AHEAD = Hadar()
ROUND_PACE = Resolution(360.0, 0.0)


def view(cluster: str, *jobs: Job) -> View:
    """Return the view of jobs on a cluster, without expected arrivals."""
    kinds = Kinds(Allocator(a_snapshot(cluster, *jobs), ROUND))
    return View.of(kinds, jobs, History.begin(jobs, 0.0), None)


def test_short_jobs_go_before_a_long_one() -> None:
    """One long job first would save no makespan and cost every short one its time."""
    jobs = [a_job("9", steps=100_000, throughputs=V100)]
    jobs += [a_job(str(number), steps=1000, throughputs=V100) for number in range(4)]
    plan = AHEAD.plan(a_snapshot("1xV100", *jobs), ROUND)
    assert set(placed_by(plan)) <= {"0", "1", "2", "3"}
    assert dict(plan.figures)["ways"] >= 4


def test_the_job_that_ends_last_goes_first_where_that_shortens_the_whole() -> None:
    """After 80 short jobs on 16 GPUs a long job ends at 15,000 s; first, at 10,000 s."""
    long = a_job("99", steps=100_000, throughputs=V100)
    short = [a_job(str(number), steps=10_000, throughputs=V100) for number in range(80)]
    way, span_s, _ = choose(view(",".join(["4xV100"] * 4), long, *short), None, 360.0)
    assert "99" in way.promoted
    assert span_s == pytest.approx(10_000.0)


class Even:
    """Of a job of unknown size: it ends evenly within 30,000 s, and is ranked as if in 100 s."""

    def left_s(self, trained_s: float) -> float:
        return 100.0

    def rest_s(self, trained_s: float, chance: float) -> float:
        return max(1.0, chance * (30_000.0 - trained_s))


def test_sizes_that_are_only_believed_are_played_as_drawn() -> None:
    """Alone on a GPU each of 50 jobs ends when its draw does: half of 30,000 s on the mean."""
    jobs = [
        replace(a_job(str(number), steps=1000, throughputs=V100), belief=Even())
        for number in range(50)
    ]
    seen = view(",".join(["5xV100"] * 10), *jobs)
    outlook, _, _ = seen.play(Way(0.5, Typing.REGRET), ROUND_PACE)
    assert outlook is not None
    assert outlook.mean_jct_s == pytest.approx(15_000.0, rel=0.03)
    assert outlook.makespan_s == pytest.approx(30_000.0, rel=0.05)


def test_no_job_goes_first_for_a_size_that_is_not_known() -> None:
    """The long job of the test above is not promoted where its size is only believed."""
    long = replace(a_job("99", steps=100_000, throughputs=V100), belief=Even())
    short = [a_job(str(number), steps=10_000, throughputs=V100) for number in range(80)]
    way, _, num_ways = choose(view(",".join(["4xV100"] * 4), long, *short), None, 360.0)
    assert not way.promoted
    assert not way.critical_first
    assert num_ways >= 4


def test_at_the_end_of_a_workload_the_makespan_weighs_no_more_than_before() -> None:
    """The long job first saves 5,000 s of makespan, and costs 10,000 s of completion times.

    That pays where 40 jobs were there on the mean, but not where there was one; how old the jobs
    are does not count.
    """
    old_s = -1e6
    jobs = [a_job("99", steps=100_000, throughputs=V100, submitted_s=old_s)]
    jobs += [
        a_job(str(number), steps=10_000, throughputs=V100, submitted_s=old_s)
        for number in range(80)
    ]
    kinds = Kinds(Allocator(a_snapshot(",".join(["4xV100"] * 4), *jobs), ROUND))
    for num_jobs, is_promoted in ((1, False), (40, True)):
        history = History(old_s, old_s, num_jobs).after(jobs, 0.0)
        way, _, _ = choose(View.of(kinds, jobs, history, None), None, 360.0)
        assert ("99" in way.promoted) is is_promoted


def test_a_way_is_kept_while_nothing_changes() -> None:
    """It is chosen again two rounds after a job came, and after five rounds anyway."""
    jobs = (a_job("1"), a_job("2"))
    choice = WayInUse(Way(), 0.0, frozenset({JobId("1"), JobId("2")}), span_s=0.0)
    assert not is_due(choice, jobs, 720.0, 360.0, expects=False)
    assert not is_due(choice, jobs[:1], 360.0, 360.0, expects=False)
    assert is_due(choice, jobs[:1], 720.0, 360.0, expects=False)
    assert is_due(choice, jobs, 1800.0, 360.0, expects=False)


def test_a_choice_for_long_is_made_less_often() -> None:
    """Where the last end is 200 h away, a choice is kept for two hours after news."""
    choice = WayInUse(Way(), 0.0, frozenset({JobId("1")}), span_s=200 * 3600.0)
    jobs = (a_job("2"),)
    assert not is_due(choice, jobs, 1.9 * 3600.0, 360.0, expects=False)
    assert is_due(choice, jobs, 2.1 * 3600.0, 360.0, expects=False)


def test_a_way_is_chosen_again_when_arrivals_end() -> None:
    """Two rounds after the last choice, however long that one was to last."""
    choice = WayInUse(Way(), 0.0, frozenset({JobId("1")}), span_s=200 * 3600.0, expects=True)
    jobs = (a_job("1"),)
    assert not is_due(choice, jobs, 3600.0, 360.0, expects=True)
    assert not is_due(choice, jobs, 600.0, 360.0, expects=False)
    assert is_due(choice, jobs, 720.0, 360.0, expects=False)


def test_the_way_in_use_is_kept_unless_another_is_better() -> None:
    """Ways that come to the same are not exchanged."""
    jobs = [a_job(str(number), steps=1000, throughputs=V100) for number in range(3)]
    for way in (Way(0.0, Typing.REGRET), Way(0.5, Typing.FASTEST)):
        assert choose(view("1xV100", *jobs), way, 360.0)[0] == way


def test_while_no_job_comes_the_way_is_kept_unless_another_is_better_by_more() -> None:
    """The longer job first loses 0.7 % here: too little without news, enough with it."""
    jobs = [a_job("1", steps=100_000, throughputs=V100), a_job("2", steps=98_000, throughputs=V100)]
    seen = view("1xV100", *jobs)
    longest_first = Way(0.0, Typing.REGRET, promoted=frozenset({JobId("1")}))
    assert choose(seen, longest_first, 360.0, is_news=False)[0] == longest_first
    assert choose(seen, longest_first, 360.0, is_news=True)[0].promoted == frozenset()


def test_a_choice_takes_no_more_steps_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without steps the way in use stays; with some, fewer jobs are played, or fewer ways."""
    jobs = [a_job(str(number), steps=5000 + number, throughputs=V100) for number in range(50)]
    seen, incumbent = view("4xV100", *jobs), Way(critical_first=True)
    every = choose(seen, incumbent, 360.0)[2]
    monkeypatch.setattr(look_ahead, "_MOST_STEPS", 0)
    assert choose(seen, incumbent, 360.0) == (incumbent, 0.0, 0)
    monkeypatch.setattr(look_ahead, "_MOST_STEPS", 3000)
    assert look_ahead._LEAST_WAYS <= choose(seen, incumbent, 360.0)[2] < every
    monkeypatch.setattr(look_ahead, "_LEAST_WAYS", 8)
    assert choose(seen, incumbent, 360.0)[2] == every
    monkeypatch.setattr(look_ahead, "_LEAST_WAYS", 1)
    assert 0 < choose(seen, incumbent, 360.0)[2] < every


def test_jobs_that_cannot_move_wait_for_the_type_on_which_they_end_first() -> None:
    """A V100 is free in 1,000 s. On it the job takes 1,000 s, on the free K80 2,500 s."""
    both = some_rates(V100=10.0, K80=4.0)
    runs = a_job("1", on="n1:V100:1", steps=10_000, throughputs=both, can_checkpoint=False)
    waits = a_job("2", steps=10_000, throughputs=both, can_checkpoint=False)
    seen = view("1xV100,1xK80", runs, waits)
    ends = [round(job.end_s) for job in seen.play(Way(1.0, Typing.REGRET), ROUND_PACE)[1]]
    assert ends == [1000, 2000]


def test_without_any_outlook_the_first_way_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also among jobs that cannot move, for which more ways are made of those played."""
    monkeypatch.setattr(look_ahead, "_MOST_STEPS", 0)
    job = a_job("1", throughputs=V100, can_checkpoint=False)
    assert choose(view("1xV100", job), None, 360.0) == (Way(0.5, Typing.REGRET), 0.0, 0)


def test_the_choice_is_remembered_and_may_be_lost() -> None:
    """With its memory a policy plays nothing again at once; without, it chooses again."""
    jobs = [a_job(str(number), steps=5000 + number, throughputs=V100) for number in range(3)]
    snapshot = a_snapshot("2xV100", *jobs)
    plan = AHEAD.plan(snapshot, ROUND)
    again = AHEAD.plan(snapshot, replace(ROUND, memory=plan.memory))
    assert (dict(plan.figures)["ways"] > 0, dict(again.figures)["ways"]) == (True, 0.0)
    assert again.allocations == plan.allocations
    assert AHEAD.plan(snapshot, replace(ROUND, memory="lost")).allocations == plan.allocations


def test_many_jobs_are_thinned() -> None:
    """Of 2,500 jobs every fifth is played, on a fifth of the GPUs."""
    jobs = [a_job(str(number), steps=1000 + number, throughputs=V100) for number in range(2500)]
    thin = view(",".join(["4xV100"] * 30), *jobs)
    assert (len(thin.jobs), thin.nodes) == (500, [[4] * 6])
    assert (len(thin.thinned(5).jobs), thin.thinned(5).nodes) == (100, [[4, 1]])


@pytest.mark.parametrize(
    ("cluster", "step", "kept"),
    [
        ("4xV100,4xV100,4xV100,4xV100,4xV100", 2, [4, 4, 2]),
        ("8xV100,2xV100,2xV100", 2, [8]),
        ("2xV100,2xV100,8xV100", 2, [2, 6]),
        ("4xV100", 8, [4]),
        ("1xV100,1xV100,1xV100", 2, [1, 1]),
    ],
)
def test_a_thinned_view_has_its_share_of_gpus(cluster: str, step: int, kept: list[int]) -> None:
    """Every second of five nodes would be three fifths of the GPUs for half of the jobs."""
    jobs = [a_job(str(number), throughputs=V100) for number in range(8)]
    thin = view(cluster, *jobs).thinned(step)
    assert thin.nodes == [kept]


def test_jobs_that_hold_gpus_are_played_from_there() -> None:
    """A running job that cannot move keeps its GPUs in every play."""
    fixed = a_job("1", on="n1:V100:1", steps=100_000, throughputs=V100, can_checkpoint=False)
    found = view("1xV100", fixed, a_job("2", steps=1000, throughputs=V100))
    outlook, jobs, _ = found.play(Way(0.5, Typing.REGRET), ROUND_PACE)
    assert outlook is not None
    assert sorted(job.end_s for job in jobs) == [10_000.0, 10_100.0]


def test_a_user_above_the_share_waits_a_little_in_the_play_too() -> None:
    """The fair share weighs the order of a way."""
    heavy = replace(a_job("1", steps=1000, throughputs=V100), fair_share=0.05)
    other = replace(a_job("2", steps=2000, throughputs=V100), fair_share=0.5)
    way = Way(1.0)
    assert way.rank(100.0, way.weight(heavy), 0.0) > way.rank(200.0, way.weight(other), 0.0)


def test_a_former_job_that_runs_nowhere_any_more_is_not_expected_again() -> None:
    """Its nodes are closed, or were open to a reservation only."""
    jobs = (a_job("1", throughputs=V100), a_job("2", throughputs=V100))
    former = a_job("3", throughputs=some_rates(K80=1.0))
    seen = replace(view("1xV100", *jobs), expected=[(10.0, former), (20.0, jobs[0])])
    outlook, played, _ = seen.play(Way(), Resolution(360.0, 0.0))
    assert outlook is not None
    assert len(played) == 3
