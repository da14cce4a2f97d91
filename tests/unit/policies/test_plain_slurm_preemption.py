"""Policy slurm where QOS count: by priority, and by having other jobs requeued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from builders import EVEN, a_cluster, a_snapshot, a_spec, even, placed_by

from hadar_slurm.core.broken_plan import check_plan
from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.core.job import Job, JobSpec
from hadar_slurm.core.lengths.durations import Durations
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import GangRules, Round, Snapshot
from hadar_slurm.core.type_failures import Unsized
from hadar_slurm.engine.loop import run_rounds
from hadar_slurm.errors import InvalidPlan, PolicyError
from hadar_slurm.lab.policies.slurm.preemption import Preemptible, room_by_stops
from hadar_slurm.lab.policies.slurm.settings import parse_settings
from hadar_slurm.lab.policies.slurm.timeline import LimitEnd
from hadar_slurm.lab.study.experiment import ExperimentSettings, rules_for, run_experiment
from hadar_slurm.lab.study.figures import Result
from hadar_slurm.policies.registry import make_policy
from hadar_slurm.sim.backend import Failure
from hadar_slurm.sim.cancelling import CancellingBackend
from hadar_slurm.sim.sizes import SizesBackend

PREEMPTS = ("qos=urgent=10+high=5", "preempt=requeue", "requeue_delay=121s")


def of_qos(job: Job, qos: str, *, can_checkpoint: bool = False) -> Job:
    """Return a job of a QOS."""
    return replace(job, spec=replace(job.spec, qos=qos, can_checkpoint=can_checkpoint))


def planned(snapshot: Snapshot, *words: str, memory: object = None) -> Plan:
    """Return the plan of `slurm:WORD:WORD`, which breaks no rule."""
    policy = make_policy(":".join(("slurm", "bf_resolution=1s", *words)))
    snapshot = replace(snapshot, rules=rules_for(policy))
    plan = policy.plan(snapshot, Round(0, snapshot.now_s, 360.0, memory=memory))
    check_plan(snapshot, plan)
    return plan


def test_a_job_of_a_higher_qos_has_others_requeued_where_it_could_not_start() -> None:
    """Only where it has to, only of QOS with less priority, and only where QOS preempt."""
    low, high = even("1", on="n1:V100:1"), of_qos(even("2", on="n2:V100:1"), "high")
    low, urgent = of_qos(low, ""), of_qos(even("3"), "urgent")
    full = a_snapshot("1xV100,1xV100", low, high, urgent)
    assert placed_by(planned(full, *PREEMPTS)) == {"2": "n2:V100:1", "3": "n1:V100:1"}
    assert placed_by(planned(full)) == {"1": "n1:V100:1", "2": "n2:V100:1"}
    alike = a_snapshot("1xV100", of_qos(even("1", on="n1:V100:1"), "urgent"), urgent)
    assert placed_by(planned(alike, *PREEMPTS)) == {"1": "n1:V100:1"}
    roomy = a_snapshot("1xV100,1xV100", low, urgent)
    assert placed_by(planned(roomy, *PREEMPTS)) == {"1": "n1:V100:1", "3": "n2:V100:1"}


def test_a_requeued_job_waits_for_its_begin_time() -> None:
    """Two minutes, also where there is room."""
    low, urgent = of_qos(even("1", on="n1:V100:1"), ""), of_qos(even("2"), "urgent")
    first = planned(a_snapshot("1xV100", low, urgent), *PREEMPTS)
    waits = of_qos(even("1"), "")
    for later_s, expected in ((120.0, {}), (121.0, {"1": "n1:V100:1"})):
        again = replace(a_snapshot("1xV100", waits), now_s=later_s)
        assert placed_by(planned(again, *PREEMPTS, memory=first.memory)) == expected


def test_without_preemption_no_plan_may_stop_a_job_that_cannot_be_checkpointed() -> None:
    """The rules allow it to a Slurm that preempts, and to no other policy."""
    low = of_qos(even("1", on="n1:V100:1"), "")
    plan = planned(a_snapshot("1xV100", low, of_qos(even("2"), "urgent")), *PREEMPTS)
    with pytest.raises(InvalidPlan, match="job 1 cannot be moved now"):
        check_plan(replace(a_snapshot("1xV100", low, even("2")), rules=GangRules()), plan)


def specs_of_qos(*, can_checkpoint: bool) -> list[JobSpec]:
    """Return a job of 100 s, and after 40 s an urgent one of 50 s."""
    return [
        replace(
            a_spec(name, steps=steps, throughputs=EVEN, submitted_s=at_s),
            can_checkpoint=can_checkpoint, restart_cost_s=0.0, qos=qos,
        )
        for name, steps, at_s, qos in (("1", 100, 0.0, ""), ("2", 50, 40.0, "urgent"))
    ]  # fmt: skip


def two_jobs_of_qos(
    *words: str, can_checkpoint: bool, settings: ExperimentSettings | None = None
) -> Result:
    """Return what becomes of both jobs on one GPU."""
    specs = specs_of_qos(can_checkpoint=can_checkpoint)
    policy = make_policy(":".join(("slurm", "bf_resolution=1s", *words)))
    settings = settings or ExperimentSettings(round_s=1.0)
    return run_experiment(specs, a_cluster("1xV100"), policy, settings)


def test_a_requeued_job_begins_anew() -> None:
    """40 s of its 100 are lost where it cannot be checkpointed, else kept."""
    for can_checkpoint, end_s in ((False, 261.0), (True, 221.0)):
        found = two_jobs_of_qos(*PREEMPTS, can_checkpoint=can_checkpoint)
        ends = {done.job_id: done.end_s for done in found.jcts}
        assert ends == pytest.approx({"1": end_s, "2": 90.0})


@pytest.mark.parametrize("can_checkpoint", [False, True])
def test_a_cancelled_job_is_lost_with_its_gpu_time(can_checkpoint: bool) -> None:
    """It ends when the other starts, and counts as those that limits end."""
    words = ("qos=urgent=10", "preempt=cancel")
    found = two_jobs_of_qos(*words, can_checkpoint=can_checkpoint)
    ends = {done.job_id: (done.end_s, done.is_killed) for done in found.jcts}
    assert ends == {"1": (40.0, True), "2": (90.0, False)}
    assert (found.killed, found.killed_gpu_s, found.completed) == (1, 40.0, 1)


def test_a_cancelling_slurm_loses_no_job_to_a_failed_node() -> None:
    """Slurm requeues it then; 40 s later it is cancelled for the urgent one, and lost."""
    failure = Failure(10.0, 20.0, NodeName("n1"))
    settings = ExperimentSettings(round_s=1.0, failures=(failure,))
    words = ("qos=urgent=10", "preempt=cancel")
    found = two_jobs_of_qos(*words, can_checkpoint=False, settings=settings)
    ends = {done.job_id: (done.end_s, done.is_killed) for done in found.jcts}
    assert ends == {"1": (40.0, True), "2": (90.0, False)}
    assert found.killed_gpu_s == pytest.approx(30.0)


@pytest.mark.parametrize("mode", ["requeue", "cancel"])
def test_under_gavels_rules_no_job_is_stopped_for_another(mode: str) -> None:
    """Its simulator knows of neither, so that the figures would be of another Slurm."""
    settings = ExperimentSettings(rules="gavel")
    with pytest.raises(PolicyError, match=r"Gavel's rules stop no job .*; leave out .* preempt="):
        two_jobs_of_qos(f"preempt={mode}", can_checkpoint=True, settings=settings)


def test_a_cancelled_job_is_not_learned_as_a_whole_one() -> None:
    """Of 40 s trained it is only known that such jobs take longer."""
    seen = []

    class Noted(Durations):
        def end(self, job_id: JobId, unsized: Unsized, service_s: float) -> None:
            seen.append(("end", str(job_id), service_s))
            super().end(job_id, unsized, service_s)

    policy = make_policy("slurm:bf_resolution=1s:qos=urgent=10:preempt=cancel")
    specs = specs_of_qos(can_checkpoint=False)
    world = CancellingBackend(a_cluster("1xV100"), specs, rules=rules_for(policy))
    known = SizesBackend(world, world, Noted())
    run_rounds(
        known, policy, lambda record: None, length_s=1.0, now_s=lambda: world.now_s,
        clock=lambda: 0.0,
    )  # fmt: skip
    assert seen == [("end", "2", 50.0)]


def test_a_suspended_job_makes_no_room() -> None:
    """It would keep its GPUs; of those that wait the urgent one goes first."""
    words = ("qos=urgent=10", "preempt=suspend")
    ends = {done.job_id: done.end_s for done in two_jobs_of_qos(*words, can_checkpoint=False).jcts}
    assert ends == {"1": 100.0, "2": 150.0}
    waiting = a_snapshot("1xV100", even("1"), of_qos(even("2"), "urgent"))
    assert placed_by(planned(waiting, *words)) == {"2": "n1:V100:1"}


def test_qos_add_to_the_priority() -> None:
    """PriorityWeightQOS times the priority of the QOS over that of the highest."""
    snapshot = a_snapshot("1xV100", even("1"), of_qos(even("2"), "high"))
    words = ("qos=urgent=10+high=5", "fairshare=no", "weight_age=0")
    assert placed_by(planned(snapshot, *words)) == {"1": "n1:V100:1"}
    assert placed_by(planned(snapshot, *words, "weight_qos=100")) == {"2": "n1:V100:1"}
    settings = parse_settings(words)
    assert [settings.qos_factor(name) for name in ("Urgent", "high", "")] == [1.0, 0.5, 0.0]
    with pytest.raises(PolicyError, match="expected priorities"):
        make_policy("slurm:qos=urgent")


def a_candidate(number: int, priority: float, *nodes: int) -> Preemptible:
    """Return a running job with one GPU on each of these nodes."""
    mask = sum(1 << node for node in nodes)
    ending = LimitEnd(100.0, mask, dict.fromkeys(nodes, 1))
    return Preemptible(JobId(str(number)), priority, ending)


def stopped_for(candidates: Sequence[Preemptible], *wanted: int) -> list[str]:
    """Return the jobs that are stopped for one that needs these nodes, which are all in use."""
    needed = sum(1 << node for node in wanted)

    def find(stopped: Sequence[Preemptible]) -> tuple[dict[int, int], int] | None:
        free = {node for each in stopped for node in each.ending.taken}
        return (dict.fromkeys(wanted, 1), needed) if free.issuperset(wanted) else None

    room = room_by_stops(candidates, find)
    return [str(each.job_id) for each in room.stopped] if room else []


def test_as_few_jobs_as_possible_are_stopped_and_the_lowest_first() -> None:
    """Lower priority first, then fewer nodes; those that hold none of the nodes are left."""
    jobs = [a_candidate(1, 5.0, 0), a_candidate(2, 0.0, 0, 1), a_candidate(3, 0.0, 2)]
    assert stopped_for(jobs, 0) == ["2"]
    assert stopped_for(jobs, 2) == ["3"]
    assert stopped_for([a_candidate(1, 0.0, 0), a_candidate(2, 0.0, 0, 1)], 0, 1) == ["2"]
    assert stopped_for(jobs, 3) == []
