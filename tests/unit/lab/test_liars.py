"""The scenario `liars`: its populations, its runs, and what is made of them."""

from __future__ import annotations

import json

import pytest
from studies import a_record

from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.lab.comparison import comparison_of
from hadar_slurm.lab.inputs import read_table
from hadar_slurm.lab.study import liars
from hadar_slurm.lab.study.compare import Record
from hadar_slurm.lab.study.report import json_text
from hadar_slurm.lab.study.scenarios import SCENARIOS, Overrides
from hadar_slurm.lab.study.summary import groups

NUM_JOBS = liars.USERS * liars.JOBS_EACH


def a_table() -> ThroughputTable:
    return read_table(None)


def a_run(
    lie: str, seed: int, *, policy: str = "hadar", ttd_h: float = 1.0, **jct_s: float
) -> Record:
    """Return a run in which all jobs take 100 s, but for those of the users that are named."""
    users = [f"user{number % liars.USERS}" for number in range(NUM_JOBS)]
    return a_record(
        policy,
        family="liars",
        trace=lie,
        seed=seed,
        users=users,
        jcts_s=[jct_s.get(user, 100.0) for user in users],
        mean_jct_s=100.0,
        ttd_h=ttd_h,
    )


def test_a_population_has_users_of_equal_numbers_of_jobs_and_one_liar() -> None:
    """Ten users have twelve jobs each; the seed decides what these are, and who lies."""
    jobs = liars.population(3, a_table())
    assert jobs == liars.population(3, a_table())
    by_user = {user: [job for job in jobs if job.user == user] for user in {j.user for j in jobs}}
    assert {len(own) for own in by_user.values()} == {liars.JOBS_EACH}
    assert len(by_user) == liars.USERS
    assert [liars.liar(seed) for seed in (0, 9, 10)] == ["user0", "user9", "user0"]
    assert jobs != liars.population(4, a_table())


@pytest.mark.parametrize("lie", liars.LIES)
def test_only_the_liar_claims_what_is_not_true(lie: str) -> None:
    """A lie changes claims of one user, and no job; a flood adds tasks, which come last."""
    table = a_table()
    honest, played = liars.workload(liars.HONEST, 1, table), liars.workload(lie, 1, table)
    assert honest.claims == ()
    assert played.specs[:NUM_JOBS] == honest.specs
    assert {spec.user for spec in played.specs[NUM_JOBS:]} <= {liars.liar(1)}
    claimed = dict(played.claims)
    assert {spec.user for spec in played.specs if spec.job_id in claimed} == {liars.liar(1)}


def test_each_policy_plays_each_lie_and_hadar_without_shares_too() -> None:
    """The cost of shares needs honest runs without them."""
    cells = SCENARIOS["liars"].cells(Overrides(policies=("hadar", "srsf"), seeds=(5,)), a_table())
    names = [(cell.workload.name, cell.policy_name) for cell in cells]
    assert names[:3] == [
        (liars.HONEST, "hadar"),
        (liars.HONEST, "srsf"),
        (liars.HONEST, "hadar (user_shares 0)"),
    ]
    assert len(cells) == 2 * (1 + len(liars.LIES)) + 1
    assert len({cell.key for cell in cells}) == len(cells)


def test_gains_and_losses_are_means_over_populations() -> None:
    """The liar of seed 0 gains 2, that of seed 1 nothing; user 5 loses most, 1.5 and 1.2."""
    records = [
        a_run(liars.HONEST, 0),
        a_run(liars.HONEST, 1),
        a_run("down", 0, user0=50.0, user5=150.0),
        a_run("down", 1, user5=120.0),
        a_run("slightly", 0, user0=10.0),
        a_run(liars.HONEST, 0, policy="hadar (user_shares 0)", ttd_h=0.5),
    ]
    tree = liars.tree(groups(records))
    assert tree["best_liar_gain"] == pytest.approx(2**0.5)
    assert tree["worst_honest_loss"] == pytest.approx((1.5 * 1.2) ** 0.5)
    assert tree["cost_of_fairness"] == {"mean_jct_s": pytest.approx(0.0), "ttd_s": pytest.approx(1)}
    (down,) = [each for each in liars.effects(groups(records), "hadar") if each.lie == "down"]
    assert down.largest == pytest.approx((2.0, 1.5))


def test_the_report_says_what_lies_do_and_what_fairness_costs() -> None:
    """Notes and JSON have the figures; without an honest run there are none."""
    scenario = SCENARIOS["liars"]
    records = [
        a_run(liars.HONEST, 0),
        a_run("down", 0, user0=50.0),
        a_run(liars.HONEST, 0, policy="hadar (user_shares 0)"),
    ]
    comparison = comparison_of(records, scenario, "hadar", has_pictures=False)
    assert [note.heading for note in comparison.notes] == [
        "What lies do under hadar",
        "What fairness costs",
    ]
    assert json.loads(json_text(comparison))["best_liar_gain"] == pytest.approx(2.0)
    alone = comparison_of(records[1:2], scenario, "hadar", has_pictures=False)
    assert alone.tree["best_liar_gain"] is None
