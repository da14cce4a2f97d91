"""Policy slurm where the times are known at which Slurm's schedulers look at the queue."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from builders import EVEN, a_cluster, a_snapshot, a_spec, even, placed_by

from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.lab.policies.slurm.looks import Look, Looks
from hadar_slurm.lab.policies.slurm.policy import PlainSlurm
from hadar_slurm.lab.policies.slurm.settings import parse_settings
from hadar_slurm.lab.study.experiment import ExperimentSettings, rules_for, run_experiment

LOOKS = Looks(main_s=(1.0, 2.0, 3.0), backfill_s=(1.5, 2.5, 3.5), gone_after_s=0.2)
PREEMPTS = ("qos=urgent=10", "preempt=requeue", "requeue_delay=121s")


def looking(looks: Looks, *words: str) -> PlainSlurm:
    """Return the policy with these looks."""
    return PlainSlurm(parse_settings(("bf_resolution=1s", "fairshare=no", *words)), looks=looks)


def planned(snapshot: Snapshot, policy: PlainSlurm, at_s: float, memory: object = None) -> Plan:
    """Return the plan at a time."""
    snapshot = replace(snapshot, now_s=at_s, rules=rules_for(policy))
    return policy.plan(snapshot, Round(0, at_s, 1e9, memory=memory))


@pytest.mark.parametrize(
    ("since_s", "now_s", "has_ended", "expected"),
    [
        (-math.inf, 0.5, False, Look.NONE),
        (0.5, 1.0, False, Look.MAIN),
        (1.0, 1.5, False, Look.BACKFILL),
        (0.5, 1.6, False, Look.BACKFILL),
        (1.5, 1.7, False, Look.NONE),
        (1.5, 1.7, True, Look.MAIN),
    ],
)
def test_each_scheduler_looks_at_its_times(
    since_s: float, now_s: float, has_ended: bool, expected: Look
) -> None:
    """Main also where a job has ended; an arrival alone is not looked at."""
    found = LOOKS.look(since_s, now_s, has_ended=has_ended, stopped_s=-math.inf)
    assert found is expected


def test_no_scheduler_looks_while_requeued_jobs_go_and_main_does_then() -> None:
    """Also where a look was due in between; the next look is then when they are gone."""
    assert LOOKS.look(1.0, 1.1, has_ended=True, stopped_s=1.0) is Look.NONE
    assert LOOKS.look(1.1, 1.2, has_ended=False, stopped_s=1.0) is Look.MAIN
    assert LOOKS.look(1.2, 1.3, has_ended=False, stopped_s=1.0) is Look.NONE
    assert [LOOKS.next_s(at_s, 1.0) for at_s in (1.0, 1.2, 3.0, 3.5)] == [1.2, 1.5, 3.5, None]


def test_main_stops_at_the_first_that_has_to_wait_and_backfill_goes_on() -> None:
    """Job 3 could start beside job 2, which waits for the GPU of job 1."""
    running, gang = even("1", on="n1:V100:1", seconds=50), even("2", 2)
    short = even("3", seconds=20)
    snapshot = a_snapshot("2xV100", running, gang, short)
    policy = looking(LOOKS)
    main = planned(snapshot, policy, 1.0)
    assert placed_by(main) == {"1": "n1:V100:1"}
    assert main.next_round_s == 1.5
    later = planned(snapshot, policy, 1.5, main.memory)
    assert placed_by(later) == {"1": "n1:V100:1", "3": "n1:V100:1"}


def test_a_job_starts_at_a_look_after_those_that_it_has_requeued_are_gone() -> None:
    """Their GPUs go to no other job before."""
    specs = [
        replace(
            a_spec(name, steps=100, throughputs=EVEN, submitted_s=at_s),
            can_checkpoint=False, restart_cost_s=0.0, qos=qos,
        )
        for name, at_s, qos in (("1", 0.0, ""), ("2", 1.7, ""), ("3", 1.8, "urgent"))
    ]  # fmt: skip
    found = run_experiment(
        specs, a_cluster("1xV100"), looking(LOOKS, *PREEMPTS), ExperimentSettings(round_s=1e9)
    )
    starts = sorted((segment.start_s, str(segment.job_id)) for segment in found.segments)
    # Job 2 is looked at when job 3 has ended, job 1 from 121 s after its stop on.
    assert starts == [
        (1.0, "1"), (pytest.approx(2.2), "3"), (pytest.approx(102.2), "2"),
        (pytest.approx(202.2), "1"),
    ]  # fmt: skip
