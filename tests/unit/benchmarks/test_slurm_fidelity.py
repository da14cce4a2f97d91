"""The comparison of policy `slurm` with a real Slurm: requests, figures and recordings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def fidelity(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the package with its modules."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import slurm_fidelity.compare
    import slurm_fidelity.page
    import slurm_fidelity.settings
    import slurm_fidelity.simulated

    return slurm_fidelity


def a_list(fidelity: ModuleType, sizes: Sequence[int], **options: object) -> object:
    """Return a list of jobs of these sizes on two types, one submitted each second."""
    jobs = fidelity.jobs
    listed = tuple(
        jobs.ListedJob(n, "u0", float(n), size, -(-size // 8), {"a": (9, 10), "b": (30, 33)}, 1)
        for n, size in enumerate(sizes)
    )
    pools = (jobs.Pool("a", 1, 8), jobs.Pool("b", 2, 8))
    return jobs.JobList("some", "made", pools, listed, compression=1, **options)


def a_play(fidelity: ModuleType, starts: Sequence[float], node: str = "n1-a-1") -> object:
    """Return a play in which jobs start at these times, on one node, and run for 9 s."""
    runs = {
        n: fidelity.jobs.Run(start_s, start_s + 9, (node,), (1,))
        for n, start_s in enumerate(starts)
    }
    return fidelity.jobs.Play("some", "22.05", "today", runs)


@pytest.mark.parametrize(
    ("form", "choice", "words"),
    [
        ("gpus", "any", "--gpus=12"),
        ("nodes", "any", "--nodes=2 --gpus-per-node=6"),
        ("nodes", "open", "--nodes=2 --gpus-per-node=6 --constraint=a"),
        ("list", "any", "--nodes=2 --gpus-per-node=6 --constraint=[a|b]"),
    ],
)
def test_a_request_has_its_form(fidelity: ModuleType, form: str, choice: str, words: str) -> None:
    """The options are those of the form, with the types that the user allows."""
    jobs = a_list(fidelity, [12], form=form, choice=choice)
    assert fidelity.settings.sbatch_options(jobs.jobs[0], jobs) == f"--time=1 {words}".split()


def test_equal_plays_do_not_differ(fidelity: ModuleType) -> None:
    """A play beside itself has ratios of 1, the same order and the same types."""
    jobs, play = a_list(fidelity, [1, 8, 8]), a_play(fidelity, [0, 5, 9])
    found = fidelity.compare.difference(jobs, play, play)
    assert (found.jct, found.ttd, found.tau, found.same_types, found.large_wait) == (1, 1, 1, 1, 1)


def test_what_differs_is_seen(fidelity: ModuleType) -> None:
    """Another order, other types and longer waits all show, and in the means over lists."""
    jobs, measure = a_list(fidelity, [8, 8, 8]), a_play(fidelity, [0, 5, 9])
    other = a_play(fidelity, [9, 5, 0], node="n2-b-1")
    found = fidelity.compare.difference(jobs, other, measure)
    assert (found.tau, found.same_types) == (-1, 0)
    later = fidelity.compare.difference(jobs, a_play(fidelity, [11, 16, 20]), measure)
    assert later.jct > 1.5
    assert later.large_wait > 2
    means = fidelity.compare.summary({"one": [found], "two": [later]})
    assert (means.lists, means.tau, means.same_types) == (2, 0, 0.5)
    assert means.jct == pytest.approx(means.worst_jct / 2)


def test_recordings_are_read_as_written(fidelity: ModuleType, tmp_path: Path) -> None:
    """Lists and plays come back equal."""
    jobs, play = a_list(fidelity, [1, 12]), a_play(fidelity, [0, 5])
    fidelity.jobs.write_lists({"some": jobs}, tmp_path / "lists")
    fidelity.jobs.write_plays([play], tmp_path / "plays")
    assert fidelity.jobs.read_lists(tmp_path / "lists") == {"some": jobs}
    assert fidelity.jobs.read_plays(tmp_path / "plays") == [play]


def test_the_page_sets_the_lists_that_were_chosen_on_apart(fidelity: ModuleType) -> None:
    """Both halves and each version have means of their own, beside two real plays."""
    jobs, play = a_list(fidelity, [8, 8]), a_play(fidelity, [0, 5])
    figures = fidelity.compare.figures(jobs, play)
    off = fidelity.compare.difference(jobs, play, play)
    one = fidelity.judging.Judged(
        jobs, "22.05", (figures,) * 2, (figures,), off, off, 0.1, 1.0, 0.9, off
    )
    two = replace(one, jobs=replace(jobs, name="other", is_for_tuning=True))
    parts = fidelity.page.parts([one, two])
    assert {name: part.lists for name, (_, part) in parts.items()} == {
        "all lists": 2, "judged only": 1, "chosen on": 1, "Slurm 22.05": 2,
        "all lists, looks drawn": 2, "two real plays": 2
    }  # fmt: skip
    assert "| other, chosen on | 22.05 |" in fidelity.page.page([one, two], "Made today")
    kept = json.loads(json.dumps(fidelity.page.record([one, two], "Made today")))
    plays = [a_play(fidelity, [0.0]), replace(a_play(fidelity, [0.0]), list="other")]
    lists = {"some": one.jobs, "other": two.jobs}
    again = fidelity.page.recorded(kept, lists, plays)
    assert fidelity.page.parts(again) == {
        name: ([replace(each, late_s=0.0, load=0.0) for each in half], part)
        for name, (half, part) in parts.items()
    }
    assert fidelity.page.recorded(kept, {"some": one.jobs}, plays) == again[:1]


def test_the_page_says_what_two_real_plays_agree_on(fidelity: ModuleType) -> None:
    """Beside the simulation, with the lists on which they do not reach what is asked for."""
    jobs, play = a_list(fidelity, [8, 8]), a_play(fidelity, [0, 5])
    figures = fidelity.compare.figures(jobs, play)
    same = fidelity.compare.difference(jobs, play, play)
    other = replace(same, same_types=0.5, tau=0.8, jct=1.1)
    one = fidelity.judging.Judged(
        jobs, "22.05", (figures,) * 2, (figures,), replace(other, same_types=0.4), other,
        0.1, 1.0, 0.9,
    )  # fmt: skip
    text = " ".join(fidelity.page.page([one], "Made today").split())
    assert "| some | 22.05 | 2 | 50% | 40% | 0.80 | 0.80 | 0.80 | 0.095 | 0.095 |" in text
    assert "90% of the jobs on the same types cannot be asked of a simulation: on 1 of 1" in text
    assert "that is 0.80 of what a second real play does, and on 0 of 1 lists" in text
    once = replace(one, between_real=None)
    assert "What two real plays agree on" not in fidelity.page.page([once], "Made today")


def test_a_list_that_preempts_has_a_partition_for_each_tier(fidelity: ModuleType) -> None:
    """And the policy QOS of the same order, with Slurm's wait after a requeue, in list time."""
    jobs = a_list(fidelity, [1, 8], preempts="requeue")
    jobs = replace(jobs, compression=100, jobs=(jobs.jobs[0], replace(jobs.jobs[1], tier=2)))
    conf = fidelity.settings.slurm_conf(jobs)
    assert "PreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n" in conf
    assert "PartitionName=tier2 Nodes=ALL PriorityTier=3 " in conf
    options = [fidelity.settings.sbatch_options(job, jobs) for job in jobs.jobs]
    assert ["--partition=tier2" in each for each in options] == [False, True]
    name = fidelity.settings.policy_name(jobs, slurm="24.11.5")
    assert ":release=24.11:qos=tier2=2:preempt=requeue:requeue_delay=12100s:" in name
    assert fidelity.simulated.make_policy(name).requeues


def test_tiers_may_be_qos_in_place_of_partitions(fidelity: ModuleType) -> None:
    """They preempt, or count for the priority, in both spellings of the configuration."""
    jobs = a_list(fidelity, [1, 8], preempts="requeue", has_qos=True)
    jobs = replace(jobs, compression=100, jobs=(jobs.jobs[0], replace(jobs.jobs[1], tier=2)))
    conf, named = fidelity.settings.slurm_conf(jobs), fidelity.settings.policy_name(jobs)
    assert "PreemptType=preempt/qos\nPreemptMode=REQUEUE\n" in conf
    assert "PartitionName" not in conf
    assert ":qos=tier2=2:preempt=requeue:" in named
    options = [fidelity.settings.sbatch_options(job, jobs) for job in jobs.jobs]
    assert ["--qos=tier2" in each for each in options] == [False, True]
    counted = replace(jobs, preempts="", fairshare="tree", weight_qos=5000)
    conf, named = fidelity.settings.slurm_conf(counted), fidelity.settings.policy_name(counted)
    assert "Preempt" not in conf
    assert "PriorityWeightQOS=5000\n" in conf
    # One user, and two associations without jobs.
    assert ":qos=tier2=2:weight_qos=5000:weight_fairshare=3333:" in named
    assert (
        fidelity.simulated.spec_of(
            jobs.jobs[1], jobs, jobs.jobs[1].seconds, submitted_s=0.0, limit_s=60.0
        ).qos
        == "tier2"
    )


def test_a_history_has_qos_and_the_slurm_is_described_with_them(fidelity: ModuleType) -> None:
    """So that hadar compare plays the Slurm that was recorded."""
    import slurm_fidelity.histories as histories
    import slurm_fidelity.history as history

    jobs = a_list(fidelity, [1, 1], preempts="cancel", has_qos=True)
    jobs = replace(jobs, jobs=(jobs.jobs[0], replace(jobs.jobs[1], tier=1)))
    assert histories.described(jobs).endswith(":qos=tier1=1:preempt=cancel")
    heading, *rows = history.history(jobs, a_play(fidelity, [0, 5])).splitlines()
    at = heading.split("|").index("QOS")
    assert [row.split("|")[at] for row in rows] == ["normal", "tier1"]


@pytest.mark.parametrize(
    ("preempts", "mode", "ends"), [("cancel", "CANCEL", 1), ("suspend", "SUSPEND,GANG", 0)]
)
def test_jobs_may_be_ended_or_kept_for_others(
    fidelity: ModuleType, preempts: str, mode: str, ends: int
) -> None:
    """An ended job counts as preempted, not as one at its limit."""
    jobs = a_list(fidelity, [8, 8], preempts=preempts, has_qos=True)
    jobs = replace(
        jobs,
        pools=jobs.pools[:1],
        jobs=(jobs.jobs[0], replace(jobs.jobs[1], tier=1, submit_s=jobs.compression * 5.0)),
    )
    conf, named = fidelity.settings.slurm_conf(jobs), fidelity.settings.policy_name(jobs)
    assert f"PreemptType=preempt/qos\nPreemptMode={mode}\n" in conf
    assert f":preempt={preempts}" in named
    assert "requeue_delay" not in named
    looks = fidelity.passes.Passes(range(60), range(60), 0.0)
    found = fidelity.compare.figures(jobs, fidelity.simulated.simulate(jobs, looks))
    assert (found.preempted, found.ended_by_limit) == (ends, 0)


def test_a_play_in_a_container_says_what_is_missing(
    fidelity: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an engine, and without the image of that version, which docker/up makes."""
    from slurm_fidelity.contained import ContainerError, play_in_container

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ContainerError, match="docker does not run"):
        play_in_container("24.11", ["killed"], tmp_path)
    engine = tmp_path / "docker"
    engine.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    engine.chmod(0o755)
    with pytest.raises(ContainerError, match=r"docker/up --slurm 24\.11"):
        play_in_container("24.11", ["killed"], tmp_path)
