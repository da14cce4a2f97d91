"""Policy slurm: a Slurm that is set up well, and users who write requests as they do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import EVEN, a_cluster, a_job, a_snapshot, even, placed_by, some_rates

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job, Shape
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Ended, Round, Snapshot
from hadar_slurm.errors import PolicyError
from hadar_slurm.lab.policies.slurm.policy import PlainSlurm, SlurmMemory
from hadar_slurm.lab.policies.slurm.priority import factors_of
from hadar_slurm.lab.policies.slurm.settings import FairShare, SlurmSettings, parse_settings
from hadar_slurm.lab.study.experiment import rules_for
from hadar_slurm.policies.registry import make_policy
from hadar_slurm.sim.backend import GAVEL_RULES

DAY_S = 86_400


def planned(snapshot: Snapshot, *words: str, memory: object = None) -> Plan:
    """Return the plan of `slurm:WORD:WORD`, with steps of a second."""
    policy = make_policy(":".join(("slurm", "bf_resolution=1s", *words)))
    snapshot = replace(snapshot, rules=rules_for(policy)) if "gpus" in words else snapshot
    return policy.plan(snapshot, Round(0, snapshot.now_s, 360.0, memory=memory))


def slurm(snapshot: Snapshot, *words: str) -> dict[str, str]:
    """Return where the plan places jobs."""
    return placed_by(planned(snapshot, *words))


def test_slurm_takes_the_first_nodes_in_order() -> None:
    """Node weights are those of the types in the cluster's order; users leave out what is unfit."""
    snapshot = a_snapshot("1xK80,1xK80,2xV100", a_job("1", 3, shapes=[Shape(3, 1)]), a_job("2"))
    assert slurm(snapshot) == {"1": "n1:K80:1 n2:K80:1 n3:V100:1", "2": "n3:V100:1"}
    picky = a_job("1", 2, throughputs=some_rates(V100=1.0))
    assert slurm(a_snapshot("2xK80,2xV100", picky)) == {"1": "n2:V100:2"}


def test_a_request_has_the_fewest_nodes_and_keeps_them() -> None:
    """Two GPUs are one node of two, and not two nodes of one where no node is free."""
    ones = [even("1", on="n1:V100:1"), even("3", on="n2:V100:1")]
    two = a_job("2", 2, submitted_s=2.0)
    assert slurm(a_snapshot("2xV100,2xV100", ones[0], two))["2"] == "n2:V100:2"
    assert "2" not in slurm(a_snapshot("2xV100,2xV100", *ones, two))
    assert slurm(a_snapshot("2xV100,2xV100", *ones, two), "gpus")["2"] == "n1:V100:1 n2:V100:1"


def test_a_job_goes_to_the_fullest_node_that_has_room() -> None:
    """Of one weight, the node with the fewest idle CPUs; several nodes: the run that fits best."""
    jobs = [even("1", on="n2:V100:1"), even("2"), even("3", 4)]
    snapshot = a_snapshot("4xV100,4xV100,4xV100", *jobs)
    assert slurm(snapshot) == {"1": "n2:V100:1", "2": "n2:V100:1", "3": "n1:V100:4"}
    spread = a_job("2", 4, shapes=[Shape(2, 2)], submitted_s=2.0, throughputs=EVEN)
    runs = a_snapshot(
        "2xV100,2xV100,2xV100,2xV100,2xV100,2xV100", even("1", 2, on="n4:V100:2"), spread
    )
    assert slurm(runs)["2"] == "n5:V100:2 n6:V100:2"


def test_gpus_without_nodes_take_what_is_left_by_weight() -> None:
    """--gpus=8 takes 2 and 1 GPUs of the first type and 5 of the next, on three nodes."""
    jobs = [even("1", 2, on="n1:K80:2"), even("2", 3, on="n2:K80:3"), even("3", 8)]
    snapshot = a_snapshot("4xK80,4xK80,8xV100", *jobs)
    assert slurm(snapshot, "gpus")["3"] == "n1:K80:2 n2:K80:1 n3:V100:5"
    assert slurm(snapshot)["3"] == "n3:V100:8"


def test_a_list_in_brackets_never_mixes_and_goes_by_its_order() -> None:
    """-C "[v100|k80]": the first type that can start, else the one that can soonest."""
    rates = some_rates(V100=2.0, K80=1.0)
    gang = a_job("3", 2, steps=100, shapes=[Shape(2, 1)], throughputs=rates, submitted_s=3.0)
    one = even("1", on="n1:V100:1")
    snapshot = a_snapshot("1xV100,1xV100,1xK80,1xK80", one, gang)
    assert slurm(snapshot)["3"] == "n2:V100:1 n3:K80:1"
    assert slurm(snapshot, "list")["3"] == "n3:K80:1 n4:K80:1"
    both = [one, even("2", on="n3:K80:1", seconds=50), gang, even("4", seconds=60)]
    # The K80 nodes are held, from 50 s on.
    assert slurm(a_snapshot("1xV100,1xV100,1xK80,1xK80", *both), "list")["4"] == "n2:V100:1"


def test_users_leave_out_types_that_are_slow_for_them() -> None:
    """`open`: below .4 of the best; `half`: a third of the users names the best."""
    job = a_job("1", throughputs=some_rates(V100=1.0, K80=0.3))
    snapshot = a_snapshot("1xK80,1xV100", job)
    assert slurm(snapshot) == {"1": "n1:K80:1"}
    assert slurm(snapshot, "open") == {"1": "n2:V100:1"}
    users = [replace(job, spec=replace(job.spec, user=f"u{n}")) for n in range(300)]
    named = [
        slurm(a_snapshot("1xK80,1xV100", each), "half") == {"1": "n2:V100:1"} for each in users
    ]
    assert 0.25 < sum(named) / 300 < 0.42


def test_users_who_look_take_the_type_on_which_they_end_first() -> None:
    """The fast type is taken for 1,000 s: 100 s on the slow one are sooner; 2,000 s are not."""
    rates = some_rates(V100=10.0, K80=1.0)
    busy = even("1", on="n1:V100:1", seconds=1000)
    for steps, placed in ((100, {"2": "n2:K80:1"}), (2000, {})):
        job = a_job("2", steps=steps, throughputs=rates, submitted_s=2.0)
        found = planned(a_snapshot("1xV100,1xK80", busy), "look")
        later = replace(a_snapshot("1xV100,1xK80", busy, job), now_s=1.0)
        plan = planned(later, "look", memory=found.memory)
        assert {k: v for k, v in placed_by(plan).items() if k != "1"} == placed


def test_slurm_under_gavels_rules_takes_a_single_type() -> None:
    """Types are not mixed where the simulator cannot."""
    gang = a_job("1", 2, shapes=[Shape(2, 1)])
    assert slurm(a_snapshot("1xK80,1xV100", gang, rules=GAVEL_RULES)) == {}
    assert slurm(a_snapshot("1xK80,1xV100,1xV100", gang, rules=GAVEL_RULES)) == {
        "1": "n2:V100:1 n3:V100:1"
    }


def test_the_time_limit_is_for_the_slowest_type_that_the_user_allows() -> None:
    """Types without speed, and those left out, do not count; a written limit scales alike."""
    job = a_job("1", steps=1000, throughputs=some_rates(V100=4.0, K80=1.0))
    limited = replace(job, spec=replace(job.spec, job_id=JobId("2"), limit_s=3000.0))
    snapshot = a_snapshot("2xV100,2xK80,2xP100", job, limited)
    for words, limits in (((), (1000.0, 3000.0)), (("open",), (250.0, 750.0))):
        memory = planned(snapshot, *words).memory
        assert isinstance(memory, SlurmMemory)
        assert tuple(memory.requests[JobId(n)].limit_s for n in "12") == limits


def test_a_limit_that_was_written_for_a_type_is_kept() -> None:
    """Whatever types its user allows; `recorded` takes that type."""
    job = a_job("1", steps=1000, throughputs=some_rates(V100=4.0, K80=1.0))
    job = replace(job, spec=replace(job.spec, limit_s=400.0, limit_type="k80"))
    for words, placed in (((), "n1:V100:1"), (("recorded",), "n2:K80:1")):
        plan = planned(a_snapshot("2xV100,2xK80", job), *words)
        assert isinstance(plan.memory, SlurmMemory)
        assert plan.memory.requests[JobId("1")].limit_s == 400.0
        assert placed_by(plan) == {"1": placed}


def test_a_later_job_starts_if_it_ends_before_the_first_could() -> None:
    """Job 1 has 60 s left: a job of 59 s is backfilled before job 2, a job of 60 s is not."""
    one = even("1", on="n1:V100:1", ran_s=40.0)
    for seconds, goes in ((59, True), (60, False)):
        placed = slurm(a_snapshot("2xV100", one, even("2", 2), even("3", seconds=seconds)))
        assert ("3" in placed) == goes
        assert "2" not in placed


def test_a_planned_job_holds_whole_nodes() -> None:
    """A long job does not take the GPU of a node that the planned job will leave free."""
    one = even("1", on="n1:V100:2", ran_s=40.0)
    jobs = [one, even("2", 3), even("3", seconds=10**6)]
    assert slurm(a_snapshot("4xV100", *jobs)) == {"1": "n1:V100:2"}
    assert slurm(a_snapshot("4xV100,1xV100", *jobs))["3"] == "n2:V100:1"


def test_the_place_is_held_from_the_earliest_time() -> None:
    """Node 2, free in 50 s, is held; long jobs are backfilled on node 1 only."""
    jobs = [
        even("1", on="n1:V100:1", seconds=100),
        even("2", on="n2:V100:1", seconds=50),
        even("3", 2),
        even("4", seconds=1000),
        even("5", seconds=1000),
        even("6", seconds=49),
    ]
    assert slurm(a_snapshot("2xV100,2xV100", *jobs)) == {
        "1": "n1:V100:1",
        "2": "n2:V100:1",
        "4": "n1:V100:1",
        "6": "n2:V100:1",
    }


def test_nothing_is_held_beyond_bf_window() -> None:
    """A gang that could start in two days at the soonest is passed by a long job."""
    one = even("1", on="n1:V100:1", seconds=2 * DAY_S)
    snapshot = a_snapshot("2xV100", one, even("2", 2), even("3", seconds=10 * DAY_S))
    assert "3" not in slurm(snapshot)
    assert "3" in slurm(snapshot, "bf_window=1-0")
    assert "3" not in slurm(snapshot, "bf_max_job_test=1", "bf_window=1-0")


def test_a_job_over_its_limit_is_expected_to_end_at_once() -> None:
    """No job is backfilled on held nodes beside a job over its time limit."""
    jobs = [even("1", on="n1:V100:1", ran_s=500.0), even("2", 2), even("3", seconds=2)]
    assert slurm(a_snapshot("2xV100", *jobs)) == {"1": "n1:V100:1"}


def test_who_has_used_less_comes_first() -> None:
    """Fair tree and the classic factor; priorities change once in PriorityCalcPeriod."""
    used = {"ada": 300.0, "ben": 100.0, "eve": 0.0, "tom": 100.0}
    tree = factors_of(used, FairShare.TREE)
    assert tree == {"ada": 0.25, "ben": 0.5, "eve": 1.0, "tom": 0.5}
    assert factors_of(used, FairShare.CLASSIC)["ada"] == pytest.approx(0.5 ** (300 / 125))
    assert factors_of(used, FairShare.NO) == {}

    def by(user: str, job: Job) -> Job:
        return replace(job, spec=replace(job.spec, user=user))

    runs = by("ada", even("1", on="n1:V100:1", seconds=1000))
    first = planned(a_snapshot("2xV100", runs))
    waits = [by("ada", even("2", 2)), by("ben", even("3", 2))]
    for now_s, order in ((290.0, "2"), (310.0, "3")):
        ended = (Ended(JobId("1"), runs.phase, now_s),)
        snapshot = replace(a_snapshot("2xV100", *waits), now_s=now_s, ended=ended)
        assert placed_by(planned(snapshot, memory=first.memory)).keys() == {order}
    alike = replace(a_snapshot("2xV100", *waits), now_s=310.0)
    assert slurm(alike, "fairshare=no").keys() == {"2"}


@pytest.mark.parametrize(("kind", "first"), [("tree", "3"), ("classic", "2")])
def test_classic_factors_are_a_period_behind_for_running_jobs(kind: str, first: str) -> None:
    """Slurm computes them before it adds what jobs have used that run; those of fair tree after."""

    def by(user: str, job: Job) -> Job:
        return replace(job, spec=replace(job.spec, user=user))

    runs = by("ada", even("1", on="n1:V100:1", seconds=1000))
    words = f"fairshare={kind}"
    before = planned(a_snapshot("1xV100,2xV100", runs), words)
    waits = [by("ada", even("2", 2)), by("ben", even("3", 2))]
    snapshot = replace(a_snapshot("1xV100,2xV100", runs, *waits), now_s=310.0)
    assert placed_by(planned(snapshot, words, memory=before.memory)).keys() == {"1", first}


def test_usage_decays_and_counts_jobs_to_their_end() -> None:
    """A GPU for 100 s, then a half-life: 50 GPU-seconds are left."""
    job = even("1", on="n1:V100:1")
    user = replace(job, spec=replace(job.spec, user="ada"))
    words = ("half_life=100s",)
    plan = planned(a_snapshot("1xV100", user), *words)
    ended = (Ended(JobId("1"), job.phase, 100.0),)
    plan = planned(
        Snapshot(100.0, a_cluster("1xV100"), (), ended=ended), *words, memory=plan.memory
    )
    plan = planned(Snapshot(200.0, a_cluster("1xV100"), ()), *words, memory=plan.memory)
    assert isinstance(plan.memory, SlurmMemory)
    assert plan.memory.priorities.usage == {"ada": pytest.approx(50.0)}


def test_settings_are_read_and_wrong_ones_named() -> None:
    """A wrong word, number or time names the words there are, or what is expected."""
    found = parse_settings(["LIST", "open", "bf_window=2-0", "weight_size=5", "fairshare=classic"])
    assert found == replace(
        SlurmSettings(), form="list", types="open", bf_window=2 * DAY_S, weight_size=5,
        fairshare="classic",
    )  # fmt: skip
    for word, expected in (
        ("best", "'best' is not one of gpus, nodes"),
        ("bf_window=long", "expected a time such as"),
        ("weight_age=-1", "expected a number"),
        ("form=list", "is not one of"),
    ):
        with pytest.raises(PolicyError, match=expected):
            make_policy(f"slurm:{word}")
    with pytest.raises(PolicyError, match="takes no such words"):
        make_policy("srsf:open")
    assert make_policy("slurm:list:open").name == "slurm:list:open"
    assert isinstance(make_policy("slurm"), PlainSlurm)
