"""Facts of jobs are shared by jobs that are alike, over all rounds, and by no others."""

from __future__ import annotations

from dataclasses import replace

from builders import a_cluster, a_job, some_rates

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.core.snapshot import GangRules
from hadar_slurm.placement import job_facts
from hadar_slurm.placement.job_facts import JobFacts

CLUSTER = a_cluster("2xV100,2xK80")


def test_jobs_that_are_alike_share_their_facts_in_all_rounds() -> None:
    """Also where the cluster was read again."""
    facts = JobFacts.about(CLUSTER, GangRules())
    again = JobFacts.about(a_cluster("2xV100,2xK80"), GangRules())
    assert facts.of(a_job("1")) is again.of(a_job("2"))
    assert facts.of(a_job("1")).by_speed == ("V100", "K80")


def test_a_job_that_changes_has_other_facts() -> None:
    """A job that is known is found again only if all that the facts depend on is the same."""
    facts, job = JobFacts.about(CLUSTER, GangRules()), a_job("1")
    first = facts.of(job)
    slower = replace(job, spec=replace(job.spec, throughputs=some_rates(K80=1.0)))
    assert facts.of(slower).by_speed == ("K80",)
    assert facts.of(replace(job, allowed_nodes=frozenset({NodeName("n1")}))) is not first
    assert facts.of(job) is first


def test_another_cluster_or_other_rules_have_other_facts() -> None:
    """A closed node or another rule may change every fact."""
    first = JobFacts.about(CLUSTER, GangRules()).of(a_job("1"))
    closed = a_cluster("2xV100,2xK80", closed=["n1"])
    assert JobFacts.about(closed, GangRules()).of(a_job("1")) is not first
    assert JobFacts.about(CLUSTER, GangRules(naming_binds=True)).of(a_job("1")) is not first


def test_facts_of_many_jobs_are_forgotten() -> None:
    """A daemon that runs for months does not remember every job."""
    rules, job = GangRules(counts_spread=False), a_job("1")
    for number in range(job_facts.MOST + 2):
        again = replace(job, spec=replace(job.spec, job_id=JobId(str(number))))
        JobFacts.about(CLUSTER, rules).of(again)
    assert JobFacts.about(CLUSTER, rules).num_jobs <= 2
