"""The scenario `generality`: its runs, the ratios to the best peer, and what is said of them."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf

import pytest
from studies import CLUSTER, a_record, some_jobs

from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.lab.comparison import comparison_of
from hadar_slurm.lab.study import generality
from hadar_slurm.lab.study.compare import ClusterWorkload, Record, StudyWorkload
from hadar_slurm.lab.study.gains.pairs import PLAIN_SLURMS
from hadar_slurm.lab.study.generality import all_ratios, judged_policies, notes, tree
from hadar_slurm.lab.study.scenarios import SCENARIOS, Overrides
from hadar_slurm.lab.study.summary import groups
from hadar_slurm.lab.traces.limits import LimitHabits
from hadar_slurm.lab.traces.workload import GENERATORS
from hadar_slurm.resources import data_file


def a_table() -> ThroughputTable:
    return parse_table(data_file("throughputs.json").read_text(encoding="utf-8"), "throughputs")


def a_run(
    policy: str,
    trace: str,
    jct_h: float,
    *,
    ttd_h: float = 10.0,
    p99: float = 5.0,
    **others: object,
) -> Record:
    figures = {"mean_jct_s": 3600.0 * jct_h, "p99_slowdown": p99, **others}
    return a_record(policy, ttd_h=ttd_h, **{"family": "ours", "trace": trace, **figures})


def some_records() -> list[Record]:
    """Return runs in which the best peer differs: srsf on a, las on b."""
    return [
        a_run("hadar", "a", 3.0, p99=4.0),
        a_run("srsf", "a", 2.0),
        a_run("las", "a", 4.0),
        a_run("slurm", "a", 8.0),
        a_run("hadar", "b", 1.2),
        a_run("srsf", "b", 6.0),
        a_run("las", "b", 3.0),
        a_run("slurm", "b", 12.0),
    ]


def test_a_ratio_is_to_the_best_peer_of_the_workload() -> None:
    """3 h over srsf's 2 h, and 1.2 h over las' 3 h; slurm is no peer; the mean is geometric."""
    jct = all_ratios(groups(some_records()))[0]
    assert jct.column.name == "mean_jct_h"
    assert [row.best_peer for row in jct.rows] == ["srsf", "las"]
    assert [row.ratio("hadar") for row in jct.rows] == pytest.approx([1.5, 0.4])
    assert jct.mean("hadar") == pytest.approx((1.5 * 0.4) ** 0.5)
    worst = jct.worst("hadar")
    assert worst is not None
    assert (worst[0], worst[1].group.labels["trace"]) == (1.5, "a")
    assert jct.worst("slurm") == (4.0, jct.rows[0])


def test_seeds_are_averaged_before_the_division() -> None:
    """Means 3 h and 2 h give 1.5; the mean of the seeds' ratios would be 1.75."""
    records = [
        a_run("hadar", "a", 2.0, seed=0),
        a_run("hadar", "a", 4.0, seed=1),
        a_run("srsf", "a", 3.0, seed=1),
        a_run("srsf", "a", 1.0, seed=0),
    ]
    (row,) = all_ratios(groups(records))[0].rows
    assert row.ratio("hadar") == 1.5


def test_a_failed_run_leaves_no_figure() -> None:
    """A policy with a failed seed has no ratio there and no mean, and is no best peer."""
    records = [
        *some_records(),
        a_run("hadar", "a", 3.0, seed=1),
        a_run("srsf", "a", 1.0, seed=1) | {"status": "failed"},
    ]
    jct = all_ratios(groups(records))[0]
    assert jct.rows[0].best_peer == "las"
    assert jct.rows[0].ratio("srsf") is None
    assert (jct.mean("srsf"), jct.worst("srsf")) == (None, None)
    assert jct.mean("hadar") is not None


def test_a_best_value_of_0_gives_no_ratio() -> None:
    """Where the best peer's jobs never wait, the workload does not count for that figure."""
    waits = {("hadar", "a"): 7.0, ("srsf", "a"): 0.0, ("hadar", "b"): 0.0, ("srsf", "b"): 2.0}
    records = [a_run(p, trace, 1.0, max_wait_s=wait) for (p, trace), wait in waits.items()]
    wait = next(r for r in all_ratios(groups(records)) if r.column.name == "max_wait_h")
    assert [row.ratio("hadar") for row in wait.rows] == [None, 0.0]
    assert (wait.mean("hadar"), wait.mean("srsf")) == (None, 1.0)


def test_losses_come_worst_first() -> None:
    """The judged policy's ratios above 1 are listed by size, and those below 1 are not."""
    records = [
        *some_records(),
        a_run("hadar", "c", 1.0, ttd_h=30.0),
        a_run("srsf", "c", 1.001, ttd_h=10.0),
        a_run("las", "c", 2.0, ttd_h=12.0),
        a_run("slurm", "c", 1.0),
    ]
    losses, whole, *tables = notes(groups(records))
    assert losses.heading == "Where hadar loses"
    assert losses.table[1:] == (
        ("ours: c", "TTD h", "30.00", "srsf", "10.00", "3.00"),
        ("ours: a", "mean JCT h", "3.00", "srsf", "2.00", "1.50"),
    )
    assert whole.table[1] == ("mean JCT h", "3", "1", "0.84", "1.50", "ours: a")
    assert [note.heading for note in tables] == [
        "mean JCT h: beside the best peer",
        "TTD h: beside the best peer",
        "p99 slow-down: beside the best peer",
    ]


def test_a_table_has_values_and_ratios() -> None:
    """A row per workload, a column per policy, then the mean and the worst of the ratios."""
    table = notes(groups(some_records()))[2].table
    assert table == (
        ("workload", "hadar", "srsf", "las", "slurm"),
        ("ours: a", "3.00 (1.50)", "2.00 (1.00)", "4.00 (2.00)", "8.00 (4.00)"),
        ("ours: b", "1.20 (0.40)", "6.00 (2.00)", "3.00 (1.00)", "12.00 (4.00)"),
        ("mean ratio", "0.77", "1.41", "1.41", "4.00"),
        ("worst ratio", "1.50", "2.00", "2.00", "4.00"),
    )


def test_a_family_stays_together() -> None:
    """Workloads of a family are rows beside each other, also when another came between."""
    traces = [("x", "a"), ("y", "b"), ("x", "c")]
    records = [
        a_run(policy, trace, 1.0, family=family)
        for family, trace in traces
        for policy in ("hadar", "las")
    ]
    rows = all_ratios(groups(records))[0].rows
    assert [row.group.labels["trace"] for row in rows] == ["a", "c", "b"]


def test_three_figures_have_a_picture() -> None:
    """Mean JCT, TTD and p99 slow-down have the ratios of their tables as a matrix."""
    matrices = {note.heading: note.matrix for note in notes(groups(some_records())) if note.matrix}
    assert [heading.partition(":")[0] for heading in matrices] == [
        "mean JCT h", "TTD h", "p99 slow-down",
    ]  # fmt: skip
    jct = matrices["mean JCT h: beside the best peer"]
    assert jct is not None
    assert (jct.rows, jct.columns) == (("ours: a", "ours: b"), ("hadar", "srsf", "las", "slurm"))
    assert jct.values[0] == (1.5, 1.0, 2.0, 4.0)


def test_slow_downs_of_users_are_compared_where_users_are_known() -> None:
    """A workload without users has no row in the tables of users."""
    users = {"mean_user_slowdown": 2.0, "max_user_slowdown": 3.0}
    records = [
        a_run("hadar", "a", 1.0, **users),
        a_run("las", "a", 1.0, **users | {"max_user_slowdown": 6.0}),
        a_run("hadar", "b", 1.0, mean_user_slowdown=None, max_user_slowdown=None),
        a_run("las", "b", 1.0, mean_user_slowdown=None, max_user_slowdown=None),
    ]
    found = {each.column.name: each for each in all_ratios(groups(records))}
    assert [row.ratio("hadar") for row in found["max_user_slowdown"].rows] == [0.5]
    assert [row.ratio("hadar") for row in found["mean_user_slowdown"].rows] == [1.0]
    assert len(found["mean_jct_h"].rows) == 2


def test_the_json_has_values_in_the_units_of_the_runs() -> None:
    """Values are in seconds, beside ratios, best peers, means and the worst workload."""
    found = json.loads(json.dumps(tree(groups(some_records()))))["generality"]
    assert (found["peers"], found["judged"]) == (["srsf", "las"], ["hadar"])
    first = found["workloads"][0]
    assert (first["family"], first["trace"], first["load"], first["seeds"]) == (
        "ours",
        "a",
        None,
        1,
    )
    assert first["figures"]["mean_jct_s"] == {
        "best_peer": "srsf",
        "values": {"hadar": 10800.0, "srsf": 7200.0, "las": 14400.0, "slurm": 28800.0},
        "ratios": {"hadar": 1.5, "srsf": 1.0, "las": 2.0, "slurm": 4.0},
    }
    assert found["overall"]["p99_slowdown"]["hadar"] == {
        "mean_ratio": pytest.approx(0.8**0.5),
        "worst_ratio": 1.0,
        "worst_workload": "ours: b",
    }


def test_who_is_judged() -> None:
    """hadar where it ran, otherwise every policy that is no peer."""
    names = [("srsf", "hadar", "slurm"), ("slurm", "srsf", "e-las"), ("srsf",)]
    found = [judged_policies(groups([a_run(p, "a", 1.0) for p in some])) for some in names]
    assert found == [("hadar",), ("slurm", "e-las"), ()]


def test_policies_with_other_sizes_are_judged_and_peers_too() -> None:
    """What a policy knows stands in brackets behind its name."""
    found = groups([a_run(f"{p} (sizes limit)", "a", 1.0) for p in ("las", "hadar", "srsf")])
    assert judged_policies(found) == ("hadar (sizes limit)",)
    assert tree(found)["generality"]["peers"] == [  # type: ignore[index]
        "srsf (sizes limit)",
        "las (sizes limit)",
    ]


def test_sizes_and_limits_are_those_chosen() -> None:
    """Each workload is played with every source of sizes, and has limits from its seed."""
    choices = Overrides(("srsf",), (7,), (80.0,), 60, ("limit", "learned"), LimitHabits(5.0, 0.4))
    jobs = StudyWorkload(name="mine", specs=some_jobs(), family="ours")
    mine = ClusterWorkload(workload=jobs, cluster=CLUSTER, cluster_name="c")
    cells = SCENARIOS["generality"].cells(replace(choices, workloads=(mine,)), a_table())
    assert len(cells) == (len(GENERATORS) + 1) * 2
    assert {cell.settings.sizes for cell in cells} == {"limit", "learned"}
    assert {cell.labels["seed"] for cell in cells} == {7}
    assert all(spec.limit_steps < inf for cell in cells for spec in cell.workload.specs)


def test_without_a_peer_the_note_says_what_is_missing() -> None:
    """Neither a policy alone nor two judged ones can be compared with a peer."""
    (note,) = notes(groups([a_run("hadar", "a", 1.0), a_run("hadar-paper", "a", 1.0)]))
    assert "one of srsf, hlas, las, gavel-max-min, to compare them" in note.paragraphs[0]


def test_every_generator_is_a_family() -> None:
    """Two loads and two seeds of each generator, under all policies, scaled to the load."""
    cells = SCENARIOS["generality"].cells(Overrides(first=60), a_table())
    policies = list(dict.fromkeys(cell.policy for cell in cells))
    assert policies == ["hadar", "srsf", "hlas", "las", "gavel-max-min", *PLAIN_SLURMS]
    labels = [cell.labels for cell in cells if cell.policy == "srsf"]
    assert [(label["family"], label["load"], label["seed"]) for label in labels] == [
        (family, load, seed) for family in GENERATORS for load in (70.0, 90.0) for seed in (0, 1)
    ]
    assert {label["trace"] for label in labels} == {f"{family}60" for family in GENERATORS}
    by_load = {cell.workload.load: cell.workload.specs for cell in cells if cell.policy == "srsf"}
    shortened = by_load[90.0][-1].submitted_s / by_load[70.0][-1].submitted_s
    assert shortened == pytest.approx(70 / 90)
    assert len(SCENARIOS["generality"].cells(Overrides(), a_table())[0].workload.specs) == 480


def test_choices_narrow_the_families_and_lists_add_to_them() -> None:
    """A list's workload has its own jobs and cluster, and is played under the chosen policies."""
    jobs = StudyWorkload(name="mine", specs=some_jobs(), family="ours")
    mine = ClusterWorkload(workload=jobs, cluster=CLUSTER, cluster_name="c")
    choices = Overrides(("srsf", "e-las"), (7,), (80.0,), 60, workloads=(mine,))
    cells = SCENARIOS["generality"].cells(choices, a_table())
    assert len(cells) == (len(GENERATORS) + 1) * 2
    assert {cell.labels["seed"] for cell in cells[:-2]} == {7}
    assert [(c.policy, c.workload, c.cluster) for c in cells[-2:]] == [
        ("srsf", jobs, CLUSTER),
        ("e-las", jobs, CLUSTER),
    ]


def test_peers_and_judged_policies_are_all_played() -> None:
    """No judged policy is its own peer, and the default policies have all of both."""
    assert not set(generality.PEERS) & set(generality.JUDGED)
    assert {*generality.PEERS, *generality.JUDGED} <= set(generality.POLICIES)


def test_without_matplotlib_there_are_tables_only() -> None:
    """The notes keep their tables and lose their pictures; the JSON has the ratios."""
    records, scenario = some_records(), SCENARIOS["generality"]
    drawn, plain = (
        comparison_of(records, scenario, "hadar compare", has_pictures=has) for has in (True, False)
    )
    assert sum(note.matrix is not None for note in drawn.notes) == 3
    assert sum(note.matrix is not None for note in plain.notes) == 0
    assert [note.table for note in plain.notes] == [note.table for note in drawn.notes]
    assert "generality" in plain.tree


def test_jobs_ended_by_their_limits_are_told_first_and_by_workload() -> None:
    """A policy that ends jobs looks quicker than it is."""
    records = [
        a_run("hadar", "a", 1.0, killed=2, killed_share=0.5),
        a_run("srsf", "a", 2.0, killed=0, killed_share=0.0),
    ]
    comparison = comparison_of(records, SCENARIOS["generality"], "c", has_pictures=False)
    assert comparison.notes[0].table[1][1:] == ("2.0 (50.0 %)", "0.0 (0.0 %)")
    found = json.loads(json.dumps(comparison.tree))["generality"]["workloads"]
    assert [each["killed"] for each in found] == [{"hadar": 2.0, "srsf": 0.0}]


def test_the_gain_over_plain_slurm_is_said_first() -> None:
    """Of all workloads together, and of each in the JSON; without plain Slurm nothing is said."""
    scenario = SCENARIOS["generality"]
    comparison = comparison_of(some_records(), scenario, "c", has_pictures=False)
    first = comparison.verdict[0]
    assert first.startswith("With all sizes known and every job movable, hadar would shorten")
    assert "between 62 and 90 % in 2 runs" in first
    found = json.loads(json.dumps(comparison.tree))["gains"]
    assert [round(each["gain"], 3) for each in found] == [0.625, 0.9]
    others = [record for record in some_records() if record["policy"] != "slurm"]
    alone = comparison_of(others, scenario, "c", has_pictures=False)
    assert (alone.verdict, "gains" in alone.tree) == ((), False)
