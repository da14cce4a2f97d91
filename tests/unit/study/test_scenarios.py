"""The papers' experiments by name: what they run, and that the words fit the figures."""

from __future__ import annotations

from random import Random

from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.study.scenarios import MIX_HOURS, NODE_SPEEDS, SCENARIOS, Choices, mix

EMPTY = ThroughputTable("none", {})


def test_a_mix_is_what_it_says() -> None:
    """M-k: k jobs of one GPU at once, sizes in range, with a copy on each node if need be."""
    jobs = mix(7, Random(1))
    assert [job.job_id for job in jobs] == [str(number) for number in range(7)]
    for job in jobs:
        hours = job.total_steps / job.rates.on("fast", 1) / 3600.0
        assert MIX_HOURS[0] <= hours <= MIX_HOURS[1]
        assert (job.num_gpus, job.submitted_s, job.max_copies) == (1, 0.0, 5)
        assert (job.restart_cost_s, job.aggregation_cost_s) == (10.0, 10.0)
        speeds = [job.rates.on(kind, 1) / job.rates.on("fast", 1) for kind in NODE_SPEEDS]
        assert speeds == list(NODE_SPEEDS.values())


def test_a_mix_follows_its_seed() -> None:
    """The same seed gives the same jobs, another one others."""
    assert mix(3, Random(5)) == mix(3, Random(5))
    assert mix(3, Random(5)) != mix(3, Random(6))


def test_the_mixes_run_on_five_nodes_of_one_gpu() -> None:
    """Twelve mixes, ten seeds, slots of 180 s; all policies get the same jobs."""
    cells = SCENARIOS["hadare-mixes"].cells(Choices(), EMPTY)
    policies = {cell.policy for cell in cells}
    assert len(cells) == 12 * 10 * len(policies)
    assert {len(cell.cluster.nodes) for cell in cells} == {5}
    assert {cell.settings.round_s for cell in cells} == {180.0}
    by_workload = {(cell.workload.name, cell.workload.seed): cell.workload for cell in cells}
    assert all(by_workload[c.workload.name, c.workload.seed] == c.workload for c in cells)


def test_choices_narrow_a_scenario() -> None:
    """Seeds, policies and the number of mixes."""
    choices = Choices(policies=("hadare",), seeds=(4,), first=3)
    cells = SCENARIOS["hadare-mixes"].cells(choices, EMPTY)
    assert [(cell.workload.name, cell.workload.seed, cell.policy) for cell in cells] == [
        (f"M-{k}", 4, "hadare") for k in (1, 2, 3)
    ]
