"""hadard beside plain jobs, drained nodes, begin times and dependencies."""

from __future__ import annotations

import pytest
from integration.site import Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.devcluster.processes import wait_until
from hadar_slurm.slurm.client.parse import detail_of

pytestmark = pytest.mark.slurm

EQUAL = {"v100": 20.0, "p100": 20.0, "k80": 20.0}
V100_ONLY = {"v100": 20.0}
# Every V100 of the cluster.
ALL_V100 = {"n1": "gpu:4", "n2": "gpu:4", "n6": "gpu:v100:2"}
LONG = 10**6  # steps of a job that outlasts its test


def test_no_gpu_is_ever_given_twice(site: Site) -> None:
    """With plain and managed jobs at once, every observation shows at most one job on each GPU."""
    site.start(round_seconds=1)
    ours, theirs = [], []
    for number in range(5):
        theirs.append(
            site.submit(f"--gpus={number % 4 + 1}", "--wrap=sleep 1.5", command=["sbatch"])
        )
        ours.append(site.train(EQUAL, gpus=(2, 4)[number % 2], steps=30))
    looks = 0

    def all_done() -> bool:
        nonlocal looks
        looks += 1
        site.check_gpus_are_apart()
        rows = site.queue()
        return all(rows[job].state == "COMPLETED" for job in (*ours, *theirs))

    eventually(all_done, lambda: site.told(*ours, *theirs))
    assert looks > 5
    for job in ours:
        site.check_training(job, 30)


def test_gpus_of_plain_jobs_are_respected(site: Site) -> None:
    """GPUs of plain jobs are in no plan; a job waits with a reason until they are free."""
    plain = site.occupy(**ALL_V100)
    before = {job: site.gpus(job) for job in plain.values()}
    site.start(round_seconds=1)
    job = site.train(V100_ONLY, steps=20)
    site.until_rounds(3)
    assert site.queue()[job].is_held_by_user
    assert site.newest()["plan"] == {}
    assert site.newest()["waiting"][job] == "no free GPUs fit its gang now"
    assert {job: site.gpus(job) for job in plain.values()} == before
    site.free(plain["n2"])
    site.until_running(job)
    assert site.tree(job) == {"n2": {"v100": 2}}
    site.until_completed(job)


def test_a_job_that_its_user_releases_runs_under_plain_slurm(site: Site) -> None:
    """The owner can release hadard's hold; the job then starts on any free GPUs."""
    site.occupy(**ALL_V100)
    site.start(round_seconds=1)
    script = site.script("any", "sleep 600")
    job = site.train(V100_ONLY, steps=LONG, script=script)
    site.until_rounds(2)
    assert site.queue()[job].is_held_by_user
    site.run(["scontrol", "release", job])
    site.until_running(job)
    [gpus] = site.tree(job).values()
    assert gpus in ({"p100": 2}, {"k80": 2})
    held = site.gpus(job)
    site.until_rounds(3)
    assert (site.gpus(job), site.queue()[job].restarts) == (held, 0)
    assert list(site.actions(job)) == [] or {a["do"] for a in site.actions(job)} == {"renew"}


WRONG = {
    '{"hadar":1,"steps":-5,"rates":{"v100":1}}': "steps",
    '{"hadar":7,"steps":5,"rates":{"v100":1}}': "version 7",
    '{"hadar":1,"steps":5,"rates":{"v100":1},"colour":"red"}': "colour",
    '{"hadar":1,"steps":5,"rates":{"v100":"fast"}}': "'fast'",
    '{"hadar":1,"steps":5,"rates":{"v100":1},"gpus":1000000}': "1000000",
}


def test_jobs_with_wrong_descriptions_are_left_alone(site: Site) -> None:
    """An invalid description is logged once, and its job stays unchanged; others are placed."""
    plain = ["--hold", "--gpus=1", "--wrap=sleep 600"]
    faults = {
        site.submit(f"--comment={comment}", *plain, command=["sbatch"]): fault
        for comment, fault in WRONG.items()
    }
    site.start(round_seconds=1)
    site.until_completed(site.train(EQUAL, steps=20))
    log = site.hadard.log.read_text().splitlines()
    for wrong, fault in faults.items():
        [told] = [line for line in log if f"job {wrong} " in line]
        assert fault in told
        assert site.queue()[wrong].is_held_by_user
        assert all(wrong not in line["jobs"] for line in site.lines())


def test_a_node_that_lacks_something_else_is_given_up(site: Site) -> None:
    """A pinned job that cannot start for lack of cores on its node is pinned to another node."""
    site.submit("--nodelist=n1", "--cpus-per-task=16", "--wrap=sleep 600", command=["sbatch"])
    site.start(pin_timeout_seconds=2)
    job = site.train(V100_ONLY, steps=20)
    site.until_completed(job)
    [only] = site.check_training(job, 20)
    assert list(only["gpus"]) == ["n2"]


def test_nodes_that_are_soon_reserved_are_given_up(site: Site) -> None:
    """A job that would meet a reservation is pinned elsewhere long before its pin times out."""
    words = ["starttime=now+600", "duration=60", "users=root", "flags=maint", "nodes=n1,n2"]
    site.run(["scontrol", "create", "reservation=repair", *words])
    try:
        site.start(round_seconds=60, pin_timeout_seconds=600)
        job = site.train({"v100": 20.0, "p100": 19.0}, "--time=30", steps=20)
        site.until_completed(job)
    finally:
        site.run(["scontrol", "delete", "reservation=repair"])
    [only] = site.check_training(job, 20)
    assert set(only["gpus"]) <= {"n3", "n4"}


def test_a_feature_that_the_job_needs_is_found(site: Site) -> None:
    """A job that Slurm does not start for a missing feature is placed on other nodes."""
    job = site.train({"v100": 20.0, "p100": 19.0}, held=True, steps=20)
    site.run(["scontrol", "update", f"JobId={job}", "Features=p100"])
    site.start(round_seconds=1)
    site.until_completed(job)
    [only] = site.check_training(job, 20)
    assert set(only["gpus"]) <= {"n3", "n4"}


def test_a_job_that_got_whole_nodes_is_not_moved(site: Site) -> None:
    """A job with --exclusive gets every GPU of its node, and is not restarted for that."""
    site.start(round_seconds=1)
    job = site.train(EQUAL, "--exclusive", steps=60)
    site.until_completed(job)
    [only] = site.check_training(job, 60)
    assert [count for gpus in only["gpus"].values() for count in gpus.values()] == [4]


@pytest.mark.parametrize("mode", ["hold", "steer"])
def test_a_job_takes_no_gpus_before_its_begin_time(site: Site, mode: str) -> None:
    """A job with a begin time is in no plan before it, and starts after it, also within a round."""
    site.start(round_seconds=600, mode=mode)
    later = site.train(EQUAL, "--begin=now+6", steps=20)
    now = site.train(EQUAL, steps=LONG)
    site.until_running(now)
    assert site.queue()[later].is_held_by_user == (mode == "hold")
    assert all(later not in (line["plan"] or {}) for line in site.lines())
    site.until_completed(later)
    row = site.queue()[later]
    assert row.started_s >= row.submitted_s + 6


def test_a_job_that_depends_on_another_is_in_no_plan(site: Site) -> None:
    """It waits in Slurm's queue, not held, on its types; it is placed once the dependency is gone.

    Slurm looks at dependencies of held jobs once a minute.
    """
    site.start(round_seconds=600)
    first = site.train(EQUAL, steps=LONG)
    second = site.train(EQUAL, f"--dependency=afterok:{first}", steps=20)
    site.until_running(first)
    eventually(lambda: not site.queue()[second].is_held, lambda: site.told(second))
    assert site.state(second) == "PENDING"
    assert detail_of(site.details()[second]).excluded
    assert all(second not in line["jobs"] for line in site.lines())
    site.run(["scontrol", "update", f"JobId={second}", "Dependency="])
    site.until_completed(second)
    assert site.state(first) == "RUNNING"


def test_a_name_that_looks_like_another_job_deceives_nobody(site: Site) -> None:
    """A job name that imitates scontrol's output changes nothing about other jobs and nodes."""
    [plain] = site.occupy(n5="gpu:1").values()
    forged = f"x\nJobId={plain} JobName=x\n  Nodes=n[1-6] CPU_IDs=0 Mem=1 GRES=gpu:v100:4"
    named = ["--nodelist=n3", f"--job-name={forged}", "--wrap=sleep 600"]
    site.until_running(site.submit(*named, command=["sbatch"]))
    site.start()
    # The demo's training reads its GPUs from the lines of its record, which this name breaks.
    rest = site.script("rest", "exec sleep 600")
    job = site.train(V100_ONLY, f"--job-name={forged}", gpus=4, steps=LONG, script=rest)
    site.until_running(job)
    # The round's line is written after its starts.
    eventually(lambda: site.planned(job) == {"n1": {"v100": 4}}, lambda: site.newest())
    occupied = site.newest()["occupied"]
    assert occupied["n5"] == {"k80": 1}
    assert set(occupied) <= {"n3", "n5"}


def test_a_drained_node_keeps_its_job_and_gets_no_other(site: Site) -> None:
    """A job on a drained node runs to its end; new jobs are placed elsewhere, or wait."""
    site.start()
    staying = site.train({"k80": 20.0}, gpus=4, steps=60)
    site.until_running(staying)
    assert site.tree(staying) == {"n5": {"k80": 4}}
    site.run(["scontrol", "update", "NodeName=n5", "State=DRAIN", "Reason=test"])
    other = site.train({"k80": 20.0}, steps=20)
    waiting = JobId(site.train({"k80": 20.0}, gpus=4, steps=20))
    site.until_completed(staying, other)
    assert [set(segment["gpus"]) for segment in site.check_training(staying, 60)] == [{"n5"}]
    assert [set(segment["gpus"]) for segment in site.check_training(other, 20)] == [{"n6"}]
    assert not wait_until(lambda: site.state(waiting) != "PENDING", 1)
    site.run(["scontrol", "update", "NodeName=n5", "State=RESUME"])
    site.until_completed(waiting)
