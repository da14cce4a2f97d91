"""The contract of every Slurm adapter (slurm/client/protocol.py)."""

from __future__ import annotations

from functools import partial

import pytest
from builders import a_gang
from contract.worlds import SlurmWorld

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.errors import SlurmRefused, SlurmUnavailable
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.scontrol import request_for
from hadar_slurm.slurm.client.updates import (
    ClearRequest,
    Hold,
    Notify,
    Prefer,
    Release,
    Requeue,
    SetRequest,
    SetStartNow,
    SignalCheckpoint,
    Update,
)
from hadar_slurm.slurm.enforce.claim import Claim
from hadar_slurm.slurm.enforce.readings import is_edited

NOBODY = JobId("999999")


def row(world: SlurmWorld, job: JobId) -> QueueRow:
    """Return a job's current row in the adapter's queue."""
    return world.slurm.queue()[job]


def make(world: SlurmWorld, *changes: Update) -> None:
    """Make changes, all of which must succeed."""
    assert world.slurm.change(changes) == [None] * len(changes)


def is_held(world: SlurmWorld, job: JobId) -> bool:
    """Return whether a job is pending under a user hold."""
    return row(world, job).is_held_by_user


def until_state(world: SlurmWorld, job: JobId, state: str) -> None:
    """Let time pass until a job is in a state."""
    world.until(lambda: row(world, job).state == state, lambda: str(row(world, job)))


def asked(row: QueueRow) -> tuple[object, ...]:
    """Return the nodes and GPUs that a job requests."""
    return (set(row.requested_nodes), row.gpus_per_node, row.gpus_otherwise)


def request(world: SlurmWorld, gang: Gang, *, names_type: bool = False) -> Request:
    """Return the request with which a job gets a gang."""
    return request_for(gang, world.slurm.version, names_type=names_type)


def test_a_cluster_without_jobs(slurm_world: SlurmWorld) -> None:
    """Nodes, partitions, version and address are read, and no job holds GPUs."""
    slurm = slurm_world.slurm
    nodes = {str(each.node.name): each for each in slurm.nodes()}
    assert sorted(nodes) == ["n1", "n2", "n3", "n4", "n5", "n6"]
    assert dict(nodes["n6"].node.gpus) == {"v100": 2, "k80": 2}
    assert nodes["n6"].features == {"v100", "k80"}
    assert all("main" in each.partitions and each.node.is_schedulable for each in nodes.values())
    assert slurm.partitions().default == "main"
    assert slurm.version >= (22, 5)
    site = slurm.site()
    assert site.name
    assert site.address.rpartition(":")[2].isdigit()
    assert all(0.0 <= share <= 1.0 for share in slurm.fair_shares().values())
    assert slurm.read().gangs == {}


def test_what_jobs_hold_is_read_whole(slurm_world: SlurmWorld) -> None:
    """Gangs are read by node and GPU type, also on several nodes and on a node with two types."""
    two = slurm_world.sbatch("--nodes=2-2", "--gres=gpu:2", "--nodelist=n1,n3")
    both = slurm_world.sbatch("--nodes=1", "--gres=gpu:v100:1,gpu:k80:2", "--nodelist=n6")
    none = slurm_world.sbatch("--nodelist=n5")
    for job in (two, both, none):
        until_state(slurm_world, job, "RUNNING")
    reading = slurm_world.slurm.read()
    assert reading.gangs == {
        two: a_gang("n1:v100:2 n3:p100:2"),
        both: a_gang("n6:v100:1 n6:k80:2"),
    }
    assert sum(reading.in_use.values()) == 7
    assert set(reading.queue[two].nodes) == {"n1", "n3"}
    assert reading.cluster.capacity[next(iter(a_gang("n6:k80:2").slots))[0]] == 2


def test_some_jobs_are_read_as_all_are(slurm_world: SlurmWorld) -> None:
    """A reading of some jobs has the same as that of all; others and unknown ones are left out."""
    runs = slurm_world.sbatch("--nodes=1", "--gres=gpu:2", "--nodelist=n1")
    held = slurm_world.sbatch("--gpus=1", "--hold", "--exclude=n1,n3", "--nice=7")
    array = slurm_world.sbatch("--gpus=1", "--hold", "--array=0-2%1")
    task = JobId(f"{array}_1")
    make(slurm_world, Release(task), Hold(task))  # which makes it a record of its own
    until_state(slurm_world, runs, "RUNNING")
    whole = slurm_world.slurm.read()
    tasks = [JobId(f"{array}_0"), task]
    for jobs in ([runs], [held, NOBODY], [runs, held, *tasks], [NOBODY], []):
        part, known = slurm_world.slurm.read_jobs(jobs), set(jobs) - {NOBODY}
        assert part.queue.keys() == known
        assert {key: row.request for key, row in part.queue.items()} == {
            key: whole.queue[key].request for key in known
        }
        for name in ("gangs", "excluded", "nice", "num_nodes", "limits_s"):
            expected = {key: v for key, v in getattr(whole, name).items() if key in known}
            assert dict(getattr(part, name)) == expected, name
        now = whole.updated(jobs, part)
        assert not any(is_edited(whole, now, job, Claim()) for job in known)
    assert whole.nice[held] == 7
    assert set(whole.excluded[held]) == {"n1", "n3"}


def test_what_jobs_ask_for_beside_gpus(slurm_world: SlurmWorld) -> None:
    """Name, time limit, least number of nodes and whether it has whole nodes are read."""
    job = slurm_world.sbatch("--gpus=1", "--time=60", "--hold")
    found = slurm_world.slurm.submissions()[job]
    assert found.name
    assert (found.limit_s, found.num_tasks, found.least_nodes) == (3600.0, 1, 1)
    assert not found.is_exclusive
    whole = slurm_world.sbatch("--gpus=1", "--time=60", "--hold", "--exclusive")
    assert slurm_world.slurm.submissions()[whole].is_exclusive


def test_jobs_that_are_set_apart(slurm_world: SlurmWorld) -> None:
    """Node lists, excluded nodes, dependencies and begin times of jobs are read."""
    named = slurm_world.sbatch("--gpus=1", "--nodelist=n3", "--hold")
    without = slurm_world.sbatch("--gpus=1", "--exclude=n1,n2", "--hold")
    after = slurm_world.sbatch("--gpus=1", f"--dependency=afterok:{named}")
    later = slurm_world.sbatch("--gpus=1", "--begin=now+1000")
    reading = slurm_world.slurm.read()
    assert reading.queue[named].requested_nodes == ("n3",)
    assert reading.set_apart_by_detail == set()
    assert {job for job, nodes in reading.excluded.items() if nodes} == {without}
    assert reading.queue[after].dependency == f"afterok:{named}(unfulfilled)"
    assert reading.queue[later].started_s >= reading.queue[later].submitted_s + 999
    assert [reading.queue[job].is_held_by_user for job in (named, after, later)] == [
        True,
        False,
        False,
    ]


@pytest.mark.parametrize(
    ("options", "per_node", "otherwise"),
    [
        (("--gpus=2",), (), (("gpu", 2),)),
        (("--gpus=v100:2",), (), (("v100", 2),)),
        (("--gres=gpu:1",), (("gpu", 1),), ()),
        (("--nodes=1", "--gpus-per-node=k80:2"), (("k80", 2),), ()),
        (("--nodes=1", "--gres=gpu:v100:1,gpu:k80:2"), (("k80", 2), ("v100", 1)), ()),
        (("--ntasks=1", "--gpus-per-task=1"), (), (("gpu", 1),)),
    ],
)
def test_requests_are_read_as_they_were_made(
    slurm_world: SlurmWorld,
    options: tuple[str, ...],
    per_node: tuple[tuple[str, int], ...],
    otherwise: tuple[tuple[str, int], ...],
) -> None:
    """GPUs are read per node or otherwise, for every option of sbatch that requests them."""
    job = slurm_world.sbatch(*options, "--hold")
    assert (row(slurm_world, job).gpus_per_node, row(slurm_world, job).gpus_otherwise) == (
        per_node,
        otherwise,
    )


def test_hold_and_release(slurm_world: SlurmWorld) -> None:
    """A hold is a user hold; a released job starts."""
    job = slurm_world.sbatch("--gpus=1", "--begin=now+2")
    make(slurm_world, Hold(job))
    assert row(slurm_world, job).is_held_by_user
    assert row(slurm_world, job).reason == "JobHeldUser"
    make(slurm_world, Release(job))
    assert not row(slurm_world, job).is_held_by_user
    until_state(slurm_world, job, "RUNNING")


def test_a_request_is_cleared_then_made_anew(slurm_world: SlurmWorld) -> None:
    """A cleared request is empty, and a new one gives the job exactly its gang."""
    job = slurm_world.sbatch("--gpus=2", "--hold")
    make(slurm_world, ClearRequest(job))
    assert asked(row(slurm_world, job)) == (set(), (), ())
    gang = a_gang("n2:v100:1 n4:p100:1")
    make(slurm_world, SetRequest(job, request(slurm_world, gang)))
    assert asked(row(slurm_world, job)) == ({"n2", "n4"}, (("gpu", 1),), ())
    make(slurm_world, ClearRequest(job))
    gang = a_gang("n6:k80:2")
    make(slurm_world, SetRequest(job, request(slurm_world, gang, names_type=True)))
    assert asked(row(slurm_world, job)) == ({"n6"}, (("k80", 2),), ())
    make(slurm_world, Release(job))
    until_state(slurm_world, job, "RUNNING")
    assert slurm_world.slurm.read().gangs[job] == gang


def test_a_request_goes_back_to_what_it_was(slurm_world: SlurmWorld) -> None:
    """Setting the request read before a pin restores a job's number of GPUs and nodes."""
    alone = slurm_world.sbatch("--gpus=6", "--hold")
    pair = slurm_world.sbatch("--gpus=4", "--nodes=2", "--hold")
    reading = slurm_world.slurm.read()
    for job, gang in ((alone, a_gang("n1:v100:4")), (pair, a_gang("n2:v100:4"))):
        make(slurm_world, ClearRequest(job), SetRequest(job, request(slurm_world, gang)))
        make(slurm_world, ClearRequest(job), SetRequest(job, reading.request(reading.queue[job])))
        make(slurm_world, Release(job))
    for job in (alone, pair):
        until_state(slurm_world, job, "RUNNING")
    gangs = slurm_world.slurm.read().gangs
    assert gangs[alone].num_gpus == 6
    assert (gangs[pair].num_gpus, len(gangs[pair].gpus_by_node)) == (4, 2)


def test_a_running_job_is_asked_to_save_requeued_and_begins_soon(slurm_world: SlurmWorld) -> None:
    """A requeued job has a user hold; `begins_in_s` removes Slurm's delay of two minutes."""
    job = slurm_world.submit()
    reading = slurm_world.slurm.read()
    own = reading.request(reading.queue[job])
    make(slurm_world, Release(job))
    until_state(slurm_world, job, "RUNNING")
    slurm_world.settle()
    make(slurm_world, SignalCheckpoint(job), Requeue(job))
    slurm_world.until(lambda: row(slurm_world, job).is_held_by_user, "requeued and held")
    assert row(slurm_world, job).restarts == 1
    now_s = slurm_world.now_s()
    assert row(slurm_world, job).started_s > now_s + 60
    make(slurm_world, ClearRequest(job), SetRequest(job, own, begins_in_s=1))
    assert row(slurm_world, job).started_s <= now_s + 10
    make(slurm_world, Release(job))
    until_state(slurm_world, job, "RUNNING")


def test_how_a_job_has_ended_is_read(slurm_world: SlurmWorld) -> None:
    """A batch script killed by USR1 is FAILED with signal 10, and runs again after a requeue."""
    job = slurm_world.sbatch("--gpus=1", "--requeue")
    until_state(slurm_world, job, "RUNNING")
    slurm_world.settle()

    def has_failed() -> bool:
        state = row(slurm_world, job).state
        if state == "RUNNING":  # a signal that arrives before the script begins is lost
            slurm_world.slurm.change([SignalCheckpoint(job)])
        return state == "FAILED"

    slurm_world.until(has_failed, lambda: str(row(slurm_world, job)))
    assert row(slurm_world, job).exit_status == 10
    make(slurm_world, Requeue(job))
    slurm_world.until(lambda: row(slurm_world, job).is_held_by_user, "requeued and held")
    assert row(slurm_world, job).restarts == 1
    make(slurm_world, SetStartNow(job), Release(job))
    until_state(slurm_world, job, "RUNNING")


def test_a_job_that_waits_takes_no_message(slurm_world: SlurmWorld) -> None:
    """A message to a pending job is refused, and the next change is made."""
    job = slurm_world.sbatch("--gpus=1", "--hold")
    faults = slurm_world.slurm.change([Notify(job, "a few words"), Release(job)])
    assert isinstance(faults[0], SlurmRefused)
    assert faults[1] is None
    until_state(slurm_world, job, "RUNNING")


def test_the_throttle_of_an_array_is_read(slurm_world: SlurmWorld) -> None:
    """The throttle is read for arrays that have one and have not ended."""
    job = slurm_world.sbatch("--gpus=1", "--array=1-6%2")
    slurm_world.sbatch("--gpus=1", "--array=1-2")
    slurm_world.until(
        lambda: (
            [
                each.state for key, each in slurm_world.slurm.queue().items() if key.startswith(job)
            ].count("RUNNING")
            == 2
        ),
        "two run",
    )
    # Arrays of other tests may still have tasks that are completing.
    assert slurm_world.slurm.read().throttles.get(job) == 2
    assert str(int(job) + 1) not in slurm_world.slurm.read().throttles
    slurm_world.run("scancel", job)
    slurm_world.until(lambda: job not in slurm_world.slurm.read().throttles, "none left")


def test_a_hold_may_come_when_the_job_runs(slurm_world: SlurmWorld) -> None:
    """A hold on a running job is read and can be released; the job's request cannot be cleared."""
    first, second = (slurm_world.sbatch("--gpus=1") for _ in range(2))
    for job in (first, second):
        until_state(slurm_world, job, "RUNNING")
        assert not row(slurm_world, job).is_held_as_it_runs
    faults = slurm_world.slurm.change(
        [Hold(first), ClearRequest(first), Hold(second), Release(second)]
    )
    assert [fault is None for fault in faults] == [True, False, True, True]
    assert row(slurm_world, first).is_held_as_it_runs
    assert row(slurm_world, first).reason == "JobHeldUser"
    assert row(slurm_world, first).gpus_otherwise == (("gpu", 1),)
    assert not row(slurm_world, second).is_held_as_it_runs


def test_a_job_that_is_put_off_does_not_start_for_a_minute(slurm_world: SlurmWorld) -> None:
    """A job with a delayed start stays pending after its release; `begins_in_s` ends the delay."""
    job = slurm_world.sbatch("--gpus=1", "--hold")
    own = slurm_world.slurm.read().request(row(slurm_world, job))
    now_s = slurm_world.now_s()
    make(slurm_world, ClearRequest(job, delays_start=True), Release(job))
    assert now_s + 50 < row(slurm_world, job).started_s < now_s + 90
    slurm_world.until(lambda: row(slurm_world, job).reason == "BeginTime", "Slurm has looked at it")
    assert row(slurm_world, job).state == "PENDING"
    make(slurm_world, SetRequest(job, own, begins_in_s=1))
    until_state(slurm_world, job, "RUNNING")


def test_features_may_be_preferred(slurm_world: SlurmWorld) -> None:
    """A preferred feature can be set and removed."""
    if slurm_world.slurm.version < (22, 5):
        pytest.skip("this Slurm has no Prefer")
    job = slurm_world.sbatch("--gpus=1", "--hold")
    make(slurm_world, Prefer(job, "v100"))
    make(slurm_world, Prefer(job, ""))
    assert row(slurm_world, job).is_held_by_user


def test_a_task_of_an_array_is_changed_alone(slurm_world: SlurmWorld) -> None:
    """A change of one array task does not change the others."""
    array = slurm_world.sbatch("--gpus=1", "--array=0-3", "--hold")
    tasks = [JobId(f"{array}_{number}") for number in range(4)]
    gang = a_gang("n3:p100:2")
    make(
        slurm_world,
        ClearRequest(tasks[1]),
        SetRequest(tasks[1], request(slurm_world, gang)),
        Release(tasks[1]),
    )
    until_state(slurm_world, tasks[1], "RUNNING")
    make(slurm_world, Release(tasks[3]))
    until_state(slurm_world, tasks[3], "RUNNING")
    make(slurm_world, Requeue(tasks[1]))
    slurm_world.until(lambda: row(slurm_world, tasks[1]).is_held_by_user, "requeued")
    queue = slurm_world.slurm.queue()
    assert [queue[task].state for task in tasks] == ["PENDING", "PENDING", "PENDING", "RUNNING"]
    assert [queue[task].gpus_otherwise for task in tasks] == [
        (("gpu", 1),),
        (),
        (("gpu", 1),),
        (("gpu", 1),),
    ]
    assert len({queue[task].raw_id for task in tasks}) >= 3


def test_each_fault_is_told_of_its_own_change(slurm_world: SlurmWorld) -> None:
    """Each fault of a batch is returned at its own change, and all other changes are made."""
    held = [slurm_world.sbatch("--gpus=1", "--hold") for _ in range(5)]
    runs, *_ = jobs = [slurm_world.sbatch("--gpus=1") for _ in range(2)]
    for job in jobs:
        until_state(slurm_world, job, "RUNNING")
    there = request(slurm_world, a_gang("n1:v100:1"))
    nowhere = request(slurm_world, a_gang("n77:v100:1"))
    batch: list[tuple[Update, bool]] = [
        (Release(NOBODY), False),
        (ClearRequest(held[0]), True),
        (SetRequest(held[0], there), True),
        (Hold(NOBODY), False),
        (SetRequest(NOBODY, there), False),
        (ClearRequest(held[1]), True),
        (SetRequest(held[1], nowhere), False),
        (Requeue(held[2]), False),
        (Requeue(runs), True),
        (Requeue(NOBODY), False),
        (SignalCheckpoint(NOBODY), False),
        (SignalCheckpoint(jobs[1]), True),
        (Release(JobId(f"{NOBODY}_3")), False),
        (Release(held[3]), True),
        (ClearRequest(NOBODY), False),
        (Hold(held[4]), True),
    ]
    faults = slurm_world.slurm.change([change for change, _ in batch])
    told = [(change, fault is None) for (change, _), fault in zip(batch, faults, strict=True)]
    assert told == batch
    assert all(fault is None or isinstance(fault, SlurmRefused) for fault in faults)
    queue = slurm_world.slurm.queue()
    assert queue[held[0]].requested_nodes == ("n1",)
    assert queue[held[1]].requested_nodes == ()
    assert not queue[held[3]].is_held_by_user
    assert queue[held[4]].is_held_by_user
    slurm_world.until(lambda: row(slurm_world, runs).is_held_by_user, "requeued")


def test_no_answer_is_not_a_refusal(slurm_world: SlurmWorld) -> None:
    """Without slurmctld, reads and changes fail with SlurmUnavailable, not SlurmRefused."""
    job = slurm_world.sbatch("--gpus=1", "--hold")
    assert slurm_world.slurm.change([]) == []
    with slurm_world.away():
        for look in (slurm_world.slurm.read, slurm_world.slurm.queue, slurm_world.slurm.nodes):
            with pytest.raises(SlurmUnavailable):
                look()
        faults = slurm_world.slurm.change([Hold(job), SignalCheckpoint(job), Release(job)])
        assert [type(fault) for fault in (faults[0], faults[2])] == [SlurmUnavailable] * 2
    assert row(slurm_world, job).is_held_by_user


HOSTILE = {
    "blanks": "two  words ",
    "quotes": 'it\'s "quoted" `so`',
    "shell": "$(touch /tmp/harm); ${HOME} | tee & \\",
    "line breaks": "first\nsecond",
    "a job": "x\nJobId=1 JobName=y JobState=RUNNING\n Nodes=n[1-6] CPU_IDs=0 Mem=1 GRES=gpu:v100:4",
    "a field": "x Nodes=n1 CPU_IDs=0 Mem=1 GRES=gpu:v100:4(IDX:0-3) ExcNodeList=n1 NumNodes=7-9 ",
    "separators": "a|b|c,d=e:f;g%i",
    "a state": "PENDING|None|0|root|main",
    "other letters": "Übergröße ✓ 训练",
    "long": "n" * 1000,
}


def test_hostile_names_and_comments_harm_nothing(slurm_world: SlurmWorld) -> None:
    """Comments are read unchanged, and a name that imitates Slurm affects its own job at most."""
    jobs = {
        slurm_world.sbatch("--gres=gpu:1", f"--job-name={text}", f"--comment={text}"): text
        for text in HOSTILE.values()
    }
    plain = slurm_world.sbatch("--gres=gpu:1", "--nodelist=n5")
    for job in (*jobs, plain):
        until_state(slurm_world, job, "RUNNING")
    waits = slurm_world.sbatch("--gpus=1", f"--job-name={HOSTILE['a field']}", "--hold")
    reading = slurm_world.slurm.read()
    assert {job: reading.queue[job].comment for job in jobs} == jobs
    assert reading.gangs.keys() == {*jobs, plain}
    # GPUs that a name claims on the job's own node may really be allocated, so they count as used.
    claims = {job for job, text in jobs.items() if "GRES=" in text}
    for job, gang in reading.gangs.items():
        assert set(gang.gpus_by_node) == set(reading.queue[job].nodes)
        assert gang.num_gpus == 1 or job in claims
    # A name that imitates ExcNodeList makes its own job unmanaged.
    assert reading.set_apart_by_detail <= {waits, *claims}
    assert reading.queue[waits].request.num_nodes == "1"
    before = {job: reading.queue[job].raw_id for job in jobs}
    faults = slurm_world.slurm.change([Requeue(job) for job in jobs])
    assert faults == [None] * len(jobs)
    for job in jobs:
        slurm_world.until(partial(is_held, slurm_world, job), "requeued and held")
    assert {job: row(slurm_world, job).raw_id for job in jobs} == before
    assert row(slurm_world, plain).state == "RUNNING"
