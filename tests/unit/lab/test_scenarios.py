"""The papers' experiments by name: their runs, and the texts on their results."""

from __future__ import annotations

from random import Random

from studies import a_record

from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.lab.study.scenarios import NODE_SPEEDS, SCENARIOS, Overrides, even_mix, mix
from hadar_slurm.lab.study.summary import groups
from hadar_slurm.resources import data_file

EMPTY = ThroughputTable("none", {})


def test_a_mix_is_what_it_says() -> None:
    """M-k has k jobs of one GPU that arrive together, in the size range, with up to 5 copies."""
    jobs = mix(7, Random(1))
    assert [job.job_id for job in jobs] == [str(number) for number in range(7)]
    for job in jobs:
        hours = job.total_steps / job.throughputs.on("fast", 1) / 3600.0
        assert 0.52 <= hours <= 16.67
        assert (job.num_gpus, job.submitted_s, job.max_copies) == (1, 0.0, 5)
        assert (job.restart_cost_s, job.aggregation_cost_s) == (10.0, 10.0)
        speeds = [
            job.throughputs.on(gpu_type, 1) / job.throughputs.on("fast", 1)
            for gpu_type in NODE_SPEEDS
        ]
        assert speeds == list(NODE_SPEEDS.values())


def test_a_mix_follows_its_seed() -> None:
    """The same seed gives the same jobs, another seed gives others."""
    assert mix(3, Random(5)) == mix(3, Random(5))
    assert mix(3, Random(5)) != mix(3, Random(6))


def test_an_even_mix_is_of_jobs_more_alike() -> None:
    """The longest job is at most four times as long as the shortest."""
    steps = [job.total_steps for job in even_mix(50, Random(1))]
    assert max(steps) <= 4 * min(steps)


def test_the_mixes_run_on_five_nodes_of_one_gpu() -> None:
    """Twelve mixes, ten seeds, rounds of 180 s; all policies get the same jobs."""
    cells = SCENARIOS["hadare-mixes"].cells(Overrides(), EMPTY)
    policies = {cell.policy for cell in cells}
    assert len(cells) == 12 * 10 * len(policies)
    assert {len(cell.cluster.nodes) for cell in cells} == {5}
    assert {cell.settings.round_s for cell in cells} == {180.0}
    by_workload = {(cell.workload.name, cell.workload.seed): cell.workload for cell in cells}
    assert all(by_workload[c.workload.name, c.workload.seed] == c.workload for c in cells)


def test_choices_narrow_a_scenario() -> None:
    """Options restrict the seeds, the policies and the number of mixes."""
    choices = Overrides(policies=("hadare",), seeds=(4,), first=3)
    cells = SCENARIOS["hadare-mixes"].cells(choices, EMPTY)
    assert [(cell.workload.name, cell.workload.seed, cell.policy) for cell in cells] == [
        (f"M-{k}", 4, "hadare") for k in (1, 2, 3)
    ]


def test_the_mixes_are_told_beside_the_paper() -> None:
    """CRU ratio, TTD reduction and its bound agree with values computed by hand."""
    records = []
    for name, before_h, after_h, cru in (("M-1", 4.0, 1.6, 0.2), ("M-5", 4.0, 3.2, 0.6)):
        same = {"trace": name, "restart": "10"}
        records += [
            a_record("gavel-max-min", ttd_h=before_h, cru=cru, ttd_over_bound=1.0, **same),
            a_record("hadare", ttd_h=after_h, cru=1.0, ttd_over_bound=1.25, **same),
        ]
    scenario = SCENARIOS["hadare-mixes"]
    (note,) = scenario.notes(groups(records))
    said = " ".join(note.paragraphs)
    # CRU (1 + 1) / (.2 + .6); TTD 2.5x and 1.25x, down by 60 % and 20 %; bounds 1.28 and 2.56 h.
    assert "utilisation x1.45" in said
    assert "CRU x2.50" in said
    assert "down by 40 % on average, from 2.50x faster on M-1 to 1.25x on M-5" in said
    assert "by more than 52 % on average" in said
    assert note.table[1][:4] == ("M-1", "0.200", "1.000", "5.00x")
    (series,) = scenario.series(groups(records))
    assert [k for k, _ in series.points] == [1.0, 5.0]


def test_hadar480_is_told_beside_the_paper() -> None:
    """The note has the gains over Gavel, and the largest gain any schedule could reach."""
    same = {"restart": "10", "ttd_over_bound": 1.1, "mean_ftf": 1.0, "mean_queueing_s": 100.0}
    records = [
        a_record("hadar", ttd_h=10.0, mean_jct_s=3600.0, **same),
        a_record("hadar-paper", ttd_h=12.0, mean_jct_s=7200.0, **same),
        a_record("gavel-max-min", ttd_h=11.0, mean_jct_s=7200.0, **same),
    ]
    (note,) = SCENARIOS["hadar480"].notes(groups(records))
    said = " ".join(note.paragraphs)
    assert "TTD 1.20x better than Gavel" in said
    assert "1.20x is more than any schedule can reach in 1 of 1 settings" in said
    assert note.table[1] == (
        "t", "0.92x", "1.10x", "1.10x", "1.00x", "2.00x", "-", "+0 %", "+0 %",
    )  # fmt: skip


def test_a_scenario_without_its_policies_says_what_is_missing() -> None:
    """Without the policies to compare, the note says which are needed."""
    records = [a_record("srsf", trace="M-1")]
    for scenario in SCENARIOS.values():
        (note,) = scenario.notes(groups(records))
        assert "to compare them" in note.paragraphs[0]


def test_hadar480_runs_at_once_and_at_several_loads() -> None:
    """120, 240 and 480 jobs at once, then four loads, with the same jobs for every policy."""
    table_file = data_file("throughputs.json")
    table = parse_table(table_file.read_text(encoding="utf-8"), str(table_file))
    cells = SCENARIOS["hadar480"].cells(Overrides(policies=("hadar", "srsf")), table)
    workloads = [cell.workload for cell in cells if cell.policy == "hadar"]
    assert [(len(w.specs), w.load) for w in workloads] == [
        (120, None), (240, None), (480, None), (480, 50.0), (480, 70.0), (480, 90.0), (480, 110.0),
    ]  # fmt: skip
    assert {spec.restart_cost_s for w in workloads for spec in w.specs} == {10.0}
    assert {cell.workload.name for cell in cells} == {w.name for w in workloads}
