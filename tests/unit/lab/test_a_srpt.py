"""Policy a-srpt: the imaginary machine, worked out by hand, and the resulting order of jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import ROUND, a_job, a_snapshot, placed_by

from hadar_slurm.core.cluster import JobId
from hadar_slurm.lab.policies.a_srpt import AdaptiveSrpt, Machine
from hadar_slurm.lab.policies.greedy import srsf
from hadar_slurm.lab.policies.predicting import Predicting, factor, predicted

A, B, C = map(JobId, "abc")


def test_the_machine_serves_the_shortest_left() -> None:
    """Jobs: a needs 10 s from 0 s on, b 3 s from 2 s on, c 6 s from 4 s on.

    0-2 a (8 s left), 2-5 b ends, 5-11 c (6 s left, a 8 s) ends, then a until 19.
    """
    machine = Machine().run([(0.0, A, 10.0), (2.0, B, 3.0), (4.0, C, 6.0)], 12.0)
    assert machine.ended_s == {B: 5.0, C: 11.0}
    assert machine.left_s == {A: 7.0}
    assert sorted((A, B, C), key=machine.place) == [B, C, A]


@pytest.mark.parametrize("stops", [(3.0, 12.0), (4.5, 6.0, 12.0)])
def test_it_goes_on_where_it_was(stops: tuple[float, ...]) -> None:
    """Several calls of `run` give the same result as one call."""
    arrivals = [(0.0, A, 10.0), (2.0, B, 3.0), (4.0, C, 6.0)]
    machine = Machine()
    for before, until_s in zip((-1.0, *stops), stops, strict=False):
        machine = machine.run([x for x in arrivals if before < x[0] <= until_s], until_s)
    assert machine.ended_s == {B: 5.0, C: 11.0}
    assert machine.left_s == {A: 7.0}


def test_jobs_start_in_the_order_of_the_machine_and_nobody_is_stopped() -> None:
    """Of jobs of 100 s and 50 s the shorter starts; a running job is not stopped for one of 1 s."""
    jobs = [a_job("1", steps=1000), a_job("2", steps=500)]
    plan = AdaptiveSrpt().plan(a_snapshot("1xV100", *jobs), ROUND)
    assert placed_by(plan) == {"2": "n1:V100:1"}
    runs = a_job("3", on="n1:V100:1", steps=1000)
    plan = AdaptiveSrpt().plan(a_snapshot("1xV100", runs, a_job("4", steps=10)), ROUND)
    assert placed_by(plan) == {"3": "n1:V100:1"}


def test_who_has_ended_on_the_machine_goes_before_a_shorter_newcomer() -> None:
    """Unlike shortest first, a job that has ended on the machine precedes a shorter new job."""
    old, new = a_job("1", steps=1000), a_job("2", steps=10, submitted_s=500.0)
    snapshot = a_snapshot("1xV100", old, new, now_s=500.0)
    assert placed_by(AdaptiveSrpt().plan(snapshot, ROUND)) == {"1": "n1:V100:1"}
    assert placed_by(srsf().plan(snapshot, ROUND)) == {"2": "n1:V100:1"}


def test_what_ended_in_the_cluster_still_counts_on_the_machine() -> None:
    """The machine still serves job 1 although job 1 is no longer in the snapshot."""
    first = AdaptiveSrpt().plan(a_snapshot("4xV100", a_job("1", steps=4000)), ROUND)
    later = a_snapshot("4xV100", a_job("2", steps=8000, submitted_s=50.0), now_s=100.0)
    memory = AdaptiveSrpt().plan(later, replace(ROUND, memory=first.memory)).memory
    assert isinstance(memory, Machine)
    # Job 1 needs 400 / 4 = 100 s: it uses the whole machine and ends before job 2 starts.
    assert memory.left_s == {JobId("2"): 200.0}


def test_predictions_are_off_by_at_most_the_error_and_always_the_same() -> None:
    """Factors are uniform in 1 +/- error and fixed per job id; with error 0 they are 1."""
    drawn = [factor(JobId(str(number)), 0.5) for number in range(1000)]
    assert 0.5 <= min(drawn) < 0.52
    assert 1.48 < max(drawn) <= 1.5
    assert abs(sum(drawn) / 1000 - 1.0) < 0.03
    assert drawn[7] == factor(JobId("7"), 0.5)
    assert factor(JobId("7"), 0.0) == 1.0


def test_who_has_done_more_than_predicted_needs_twice_as_much() -> None:
    """A predicted total below the steps done is doubled until it exceeds them."""
    job = a_job("7", steps=1000, done=900.0)
    total = predicted(job, 1.0).spec.total_steps
    first = round(1000 * factor(JobId("7"), 1.0))
    assert total > 900
    assert total in [first * 2**n for n in range(10)]


def test_a_policy_is_told_predictions_only() -> None:
    """With an error of 1 the order of two nearly equal jobs is reversed for some ids."""
    turned = 0
    for number in range(10, 30):
        jobs = [a_job(str(number), steps=1000), a_job(str(number + 50), steps=1010)]
        snapshot = a_snapshot("1xV100", *jobs)
        assert placed_by(Predicting(srsf(), 0.0).plan(snapshot, ROUND)) == {
            str(number): "n1:V100:1"
        }
        turned += str(number) not in placed_by(Predicting(srsf(), 1.0).plan(snapshot, ROUND))
    assert 3 <= turned <= 17
