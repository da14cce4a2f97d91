"""hadar-sbatch holds a job only for a daemon that will place it, and reports errors in one line."""

from __future__ import annotations

import json
import re
import signal
import time
from dataclasses import replace

import pytest
from integration.invocations import Invocation
from integration.site import HADAR, HADAR_SBATCH, HADARD, Site, eventually
from integration.submissions import submit

from hadar_slurm.core.cluster import JobId
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.state.heartbeat import write_heartbeat
from hadar_slurm.state.heartbeat_reader import read_heartbeat

pytestmark = pytest.mark.slurm

OWN = ["--hadar-throughput=v100=20,p100=20,k80=20", "--hadar-steps=100"]
WRAP = "--wrap=sleep 600"


def submitted(site: Site, *words: str) -> tuple[JobId, list[str]]:
    """Submit with hadar-sbatch, and return the job and the lines on standard error."""
    done = site.hadar_sbatch(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Submitted batch job ")
    return JobId(done.stdout.split()[-1]), done.stderr.splitlines()


TAKEN = "hadar-sbatch: hadard places this job (1 GPU of any type, 100 steps)"


def check_unheld(site: Site, why: str, *words: str) -> None:
    """Fail unless a job is left to plain Slurm, which starts it, with one line that says so."""
    job, notes = submitted(site, *OWN, *words, WRAP)
    assert notes == [f"hadar-sbatch: plain Slurm places this job: {why}"]
    site.until_running(job)


IMPOSSIBLE = "#!/bin/sh\n#SBATCH --gpus=1 --time=9 --mem=900G\ntrue\n"


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        (("-G1", "-t9", "--mem=900G", WRAP), ""),
        (("-G1", "-t9", "--mem-per-gpu=900G", "-a0-3", WRAP), ""),
        (("--gres=gpu:V100:1", "-t9", WRAP), ""),  # it is called v100
        (("-G1", "-t9", "-B", "9:9", "--exclude=n[1-5]", WRAP), ""),
        (("-G1", "-t9", "--parsable", "--gpus-per-task=5", "-n1", WRAP), ""),
        ((), IMPOSSIBLE),
        (("/dev/stdin", "--hold"), IMPOSSIBLE),
    ],
    ids=str,
)
def test_what_slurm_refuses_is_refused_at_submission(
    site: Site, words: tuple[str, ...], stdin: str
) -> None:
    """With sbatch's own words and status, and without a job that would wait without end."""
    site.vouch()
    theirs, ours = (
        submit(site, command, Invocation(words, stdin=stdin))
        for command in (["sbatch"], HADAR_SBATCH)
    )
    assert ours.status == theirs.status == 1
    assert (ours.stdout, ours.stderr.splitlines()) == ("", theirs.stderr.splitlines())
    assert not any(row.is_live for row in site.queue().values())


def test_what_slurm_finds_impossible_later_is_let_go(site: Site) -> None:
    """It waits in Slurm's queue, with the owner's request, not under a hold; one line says so."""
    site.vouch()
    call = site.hadar_sbatch("--hadar-dry-run", *OWN, WRAP).stdout.splitlines()[0]
    words = call.replace(" --hold", " --hold --mem=900G")
    job = JobId(site.run(["sh", "-c", words]).stdout.split()[-1])
    site.start()

    def is_let_go() -> bool:
        row = site.queue()[job]
        claim = Ledger(site.state_dir / "ledger.json")[job]
        return row.reason == "BadConstraints" and not (row.requested_nodes or claim.holds)

    eventually(is_let_go, lambda: site.told(job))
    site.until_rounds(2)
    assert is_let_go()
    log = site.hadard.log.read_text()
    assert log.count(f"job {job} is left to Slurm, which refuses it on all nodes tried") == 1
    config = str(site.hadard.directory / "hadar.yaml")
    argv = [*HADAR, "explain", job, "--config", config]
    slurm, hadard, owner = site.run(argv).stdout.splitlines()
    assert slurm.startswith("Slurm: PENDING BadConstraints: no node has the GPUs, cores, memory")
    assert hadard == f"job {job}: hadard ends its hold and leaves it to Slurm"
    assert owner == "Its owner can cancel it, and submit it again with less, or for other nodes"


def test_a_job_that_slurm_lets_wait_is_held_all_the_same(site: Site) -> None:
    """Slurm refuses a trial of it while all nodes are drained, and accepts it: so does hadard."""
    site.run(["scontrol", "update", "NodeName=n[1-6]", "State=DRAIN", "Reason=test"])
    try:
        site.start()
        job, notes = submitted(site, *OWN, WRAP)
        assert notes == [TAKEN]
        assert site.queue()[job].is_held_by_user
        told = json.loads(site.hadar_sbatch("--hadar-json", *OWN, WRAP).stdout)
        assert (told["taken"], told["is_held"]) == (True, True)
        assert site.queue()[JobId(told["job"])].is_held_by_user
    finally:
        site.run(["scontrol", "update", "NodeName=n[1-6]", "State=RESUME"])
    site.until_running(job)
    assert site.tree(job) == site.planned(job)


def test_what_slurm_accepts_and_never_starts_waits_under_no_hold(site: Site) -> None:
    """It waits in Slurm's queue with Slurm's reason, as by sbatch, and the line says so."""
    site.vouch()
    site.run(["scontrol", "create", "PartitionName=short", "Nodes=n[1-3]", "MaxTime=60"])
    site.run(["scontrol", "create", "PartitionName=one", "Nodes=n[1-3]", "MaxNodes=1"])
    try:
        for words, reason, why in (
            (("-t9", "-c999"), "PartitionConfig", "Slurm does not start it (PartitionConfig)"),
            (("-t9", "-G2", "-N2", "-p", "one"), "PartitionNodeLimit", "(Partition"),
            (("-t2:00:00", "-p", "short"), "PartitionTimeLimit", "--time=2:00:00 is above"),
        ):
            job, notes = submitted(site, "-G1", *words, WRAP)
            assert [why in note for note in notes] == [True]
            assert notes[0].startswith("hadar-sbatch: plain Slurm places this job: ")
            eventually(lambda job=job, reason=reason: site.queue()[job].reason == reason, job)
            assert site.queue()[job].priority
            site.free(job)
    finally:
        for name in ("short", "one"):
            site.run(["scontrol", "delete", f"PartitionName={name}"])


def test_a_trial_of_the_user_is_one_of_plain_sbatch(site: Site) -> None:
    """`--test-only` prints when the job would start, not a job that is held."""
    site.vouch()
    for own in ((), OWN):
        done = site.hadar_sbatch(*own, "--test-only", "-G1", "-t9", WRAP)
        assert done.returncode == 0
        assert "hadar-sbatch: plain Slurm places this job: --test-only is given" in done.stderr
        found = re.search(r"to start at (\d{4})-", done.stderr)
        assert found is not None
        assert int(found[1]) <= time.gmtime().tm_year + 1


def unseen(site: Site) -> str:
    return f"hadard is not alive here (no fresh heartbeat in {site.run_dir})"


def test_a_job_is_held_for_a_living_daemon_alone(site: Site) -> None:
    """A job is held only while hadard's heartbeat is fresh."""
    check_unheld(site, unseen(site))
    daemon = site.start()
    job, notes = submitted(site, *OWN, WRAP)
    assert notes == [TAKEN]
    site.until_running(job)
    assert next(action["do"] for action in site.actions(job)) == "start"
    site.kill(daemon)
    beat = read_heartbeat(site.run_dir)
    assert beat is not None
    assert time.time() < beat.good_until_s < time.time() + 60
    write_heartbeat(site.run_dir, replace(beat, good_until_s=time.time(), signed_s=None))
    check_unheld(site, unseen(site))


def test_a_daemon_that_ends_takes_its_word_back(site: Site) -> None:
    """After SIGTERM to hadard, jobs are left to plain Slurm."""
    daemon = site.start()
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(60) == 0
    check_unheld(site, unseen(site))


def test_a_job_of_another_partition_is_not_held(site: Site) -> None:
    """A job of a partition that is not enforced is left to Slurm, as the default or by name."""
    site.start(mode="observe", partitions={"other": "hold"})
    check_unheld(site, "hadard places no jobs in the default partition")
    check_unheld(site, "hadard places no jobs in partition main", "--partition=main")


def test_a_job_of_the_partition_is_held_and_placed(site: Site) -> None:
    """A job of an enforced partition is held and placed, as the default or by name."""
    site.start(mode="observe", partitions={"main": "hold"})
    jobs = [submitted(site, *OWN, *words, WRAP) for words in ([], ["--partition=main"], ["-pmain"])]
    assert [notes for _, notes in jobs] == [[TAKEN], [TAKEN], [TAKEN]]
    site.until_running(*(job for job, _ in jobs))
    assert all(site.tree(job) == site.planned(job) for job, _ in jobs)


def test_a_job_of_several_partitions_is_placed_where_hadard_places_in_all(site: Site) -> None:
    """Beside a partition of another mode; otherwise the line names the one that it does not."""
    site.run(["scontrol", "create", "PartitionName=second", "Nodes=n[1-3]"])
    site.run(["scontrol", "create", "PartitionName=third", "Nodes=n[4-6]"])
    try:
        site.start(mode="observe", partitions={"main": "hold", "second": "hold"})
        job, notes = submitted(site, *OWN, "--partition=second,main", WRAP)
        assert notes == [TAKEN]
        site.until_running(job)
        assert site.tree(job) == site.planned(job)
        check_unheld(site, "hadard places no jobs in partition third", "-p", "main,third")
        site.free(*site.queue())
    finally:
        for name in ("second", "third"):
            site.run(["scontrol", "delete", f"PartitionName={name}"])


def test_a_job_with_nodes_of_its_own_choice_is_left_alone(site: Site) -> None:
    """A job whose user names the nodes runs there, without a description, and is in no plan."""
    site.start()
    job, notes = submitted(site, *OWN, "-w", "n4", "--gpus=1", WRAP)
    assert notes == ["hadar-sbatch: plain Slurm places this job: --nodelist is given"]
    site.until_running(job)
    site.until_rounds(1)
    assert site.tree(job) == {"n4": {"p100": 1}}
    assert site.queue()[job].comment == ""
    assert all(job not in line["jobs"] for line in site.lines())
    assert site.newest()["occupied"] == site.tree(job)


@pytest.mark.parametrize(
    ("words", "types"),
    [
        (["-Cp100"], {"p100"}),
        (["-C", "p100|k80"], {"p100"}),
        (["--gpus=k80:1"], {"k80"}),
        (["--hadar-types=p100,k80"], {"p100"}),
        (["--hadar-gpu-memory=14G"], {"v100"}),
        (["--hadar-types=k80", "-C", "(k80|v100)"], {"k80"}),
        (["-x", "n[1-2,6]"], {"p100"}),
        (["-C", "p100|k80", "-xn3,n4"], {"k80"}),
        (["--reservation=lab"], {"p100", "k80"}),
        (["--reservation=lab", "-x", "n4"], {"k80"}),
    ],
)
@pytest.mark.parametrize("mode", ["hold", "steer"])
def test_a_job_gets_the_types_that_its_user_allows(
    site: Site, mode: str, words: list[str], types: set[str]
) -> None:
    """The fastest of them, though others are faster: in both modes, and managed."""
    if is_reserved := "--reservation=lab" in words:
        new = "ReservationName=lab Nodes=n[4-5] StartTime=now Duration=60 Users=root"
        site.run(["scontrol", "create", "reservation", *new.split()])
    try:
        site.start(mode=mode)
        job, notes = submitted(site, *OWN, "--gpus=1", *words, WRAP)
        assert [note for note in notes if not note.startswith("hadar-sbatch: hadard places")] == []
        site.until_running(job)
        assert {name for gpus in site.tree(job).values() for name in gpus} <= types
        # In mode steer Slurm may start it before hadard's next round.
        site.until_rounds(1)
        assert any(job in line["jobs"] for line in site.lines())
    finally:
        if is_reserved:
            site.hadard.stop()
            site.run(["scancel", "--reservation=lab"])
            delete = ["scontrol", "delete", "ReservationName=lab"]
            eventually(lambda: site.run(delete).returncode == 0, "reservation deleted")


@pytest.mark.parametrize("mode", ["hold", "steer"])
def test_a_job_ends_within_its_time_limit_or_gets_the_limit_of_the_type(
    site: Site, mode: str
) -> None:
    """40 s of work on a V100, 120 s on a P100, one minute allowed, and all V100s are busy."""
    site.start(mode=mode)
    busy = site.occupy(n1="gpu:4", n2="gpu:4", n6="gpu:v100:2")
    words = ("--hadar-throughput=v100=20,p100=6.7", "--hadar-steps=800", "--time=1", "--gpus=1")
    waits, notes = submitted(site, *words, WRAP)
    assert notes[0].startswith("hadar-sbatch: hadard places this job (1 GPU"), notes
    prolonged, _ = submitted(site, *words, "--hadar-time-on=v100", WRAP)
    site.until_running(prolonged)
    assert {name for gpus in site.tree(prolonged).values() for name in gpus} == {"p100"}
    assert "TimeLimit=00:03:00" in site.details()[prolonged]
    site.until_rounds(2)
    assert site.state(waits) == "PENDING", site.told(waits)
    reason = "what is left takes 0:01:59 on p100, where its time limit is 0:01:00"
    assert reason in site.seen(waits)["remarks"]
    site.free(busy["n1"])
    site.until_running(waits)
    assert site.tree(waits) == {"n1": {"v100": 1}}
    assert "TimeLimit=00:01:00" in site.details()[waits]


def test_a_job_that_no_type_suits_is_told_why(site: Site) -> None:
    """With the reason for each type."""
    site.start()
    done = site.hadar_sbatch(*OWN, "--gpus=1", "--hadar-gpu-memory=40G", WRAP)
    assert done.returncode == 2
    assert "v100: its memory is 16 GB, 40 GB is needed" in done.stderr


def test_a_job_has_the_time_limit_of_its_partition(site: Site) -> None:
    """A job without --time and without Hadar's options is managed by that of the partition."""
    site.start()
    _, notes = submitted(site, "--gpus=1", WRAP)
    assert notes == [
        "hadar-sbatch: plain Slurm places this job: no time limit is given (--time), and the "
        "partition sets none"
    ]
    site.set_partition("DefaultTime=90", "MaxTime=1-0")
    try:
        job, notes = submitted(site, "--gpus-per-task=1", "--ntasks=2", WRAP)
        assert notes == ["hadar-sbatch: hadard places this job (2 GPUs of any type, up to 1:30:00)"]
        site.until_running(job)
        [(node, gpus)] = site.tree(job).items()
        assert (node, gpus) == (site.queue()[job].nodes[0], {"v100": 2})
    finally:
        # No update sets DefaultTime=NONE again (22.05.8).
        site.set_partition("DefaultTime=INFINITE", "MaxTime=INFINITE")


MODEL = "--hadar-model=ResNet-50"


@pytest.mark.parametrize(
    ("words", "wrong", "accepted"),
    [
        (["--hadar-stepps=5"], "--hadar-stepps", "--hadar-steps"),
        (["--hadar-throughput=h200=5", "--hadar-steps=5"], "'h200'", "v100"),
        (["--hadar-throughput=v100=fast", "--hadar-steps=5"], "'fast'", "a number, 0 or more"),
        (["--hadar-throughput=v100", "--hadar-steps=5"], "'v100'", "TYPE=STEPS_PER_S"),
        (["--hadar-throughput=v100=5"], "--hadar-steps", "is missing"),
        (["--hadar-throughput=v100=5", "--hadar-steps=-5"], "'-5'", "a whole number, 1 or more"),
        (["--hadar-throughput=v100=5", "--hadar-steps=0"], "'0'", "a whole number, 1 or more"),
        (["--hadar-throughput=v100=5", "--hadar-steps=1.5"], "'1.5'", "a whole number"),
        ([MODEL], "--hadar-steps", "or --time"),
        ([*OWN, "--hadar-gang=4x7"], "4x7", "on 6 nodes"),
        ([*OWN, "--hadar-gang=999"], "999", "on 6 nodes"),
        ([*OWN, "--hadar-gang=4by2"], "'4by2'", "a whole number"),
        ([*OWN, "--hadar-gang=2x"], "'2x'", "4x2"),
        ([*OWN, "--hadar-checkpoint=maybe"], "'maybe'", "expected yes, no"),
        ([*OWN, "--hadar-restart-cost=-1"], "'-1'", "a number, 0 or more"),
        ([*OWN, f"--comment={'x' * 1100}"], "1011", "shorten --comment"),
    ],
)
def test_wrong_words_are_told_in_one_line_and_nothing_is_submitted(
    site: Site, words: list[str], wrong: str, accepted: str
) -> None:
    """hadar-sbatch ends with status 2, and names the value and what is accepted."""
    before = set(site.queue())
    done = site.hadar_sbatch(*words, WRAP)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    [line] = done.stderr.splitlines()
    assert line.startswith("hadar-sbatch: ")
    assert wrong in line
    assert accepted in line
    assert set(site.queue()) <= before  # Slurm may forget old ones meanwhile


@pytest.mark.parametrize(
    ("text", "wrong", "accepted"),
    [
        ("round_secondz: 5\n", ":1: unknown key 'round_secondz'", "'round_seconds'"),
        ("round_seconds: 5\npoll_seconds: -1\n", ":2: poll_seconds", "from 0.05 to 3600, not -1"),
        ("policy: best\n", ":1: policy", "hadar-paper"),
        ("round_seconds: [\n", "not YAML", "line 3"),
        ("- round_seconds\n", "expected keys and values", "round_seconds: 360"),
        ("throughputs: /nonexistent/table.json\n", "/nonexistent/table.json", "No such file"),
    ],
)
def test_a_wrong_configuration_is_told_in_one_line(
    site: Site, text: str, wrong: str, accepted: str
) -> None:
    """hadard ends with status 2 before it does anything, and names file, line and key."""
    path = site.directory / "hadar.yaml"
    places = f"slurm_conf: {site.cluster.slurm_conf}\nrun_dir: {site.run_dir}\n"
    path.write_text(text if text.startswith("-") else text + places)
    done = site.run([*HADARD, "--config", str(path)])
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("hadard: ")
    assert str(path) in line or "throughputs" in line
    assert wrong in line
    assert accepted in line
    assert list(site.run_dir.iterdir()) == []


def test_a_daemon_without_slurm_says_so_and_ends(site: Site) -> None:
    """The status is 1, and the line names the command that failed."""
    site.cluster.stop_controller()
    done = site.run_hadard("--once", command_timeout_seconds=2)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "scontrol" in line
    site.cluster.start_controller()
    eventually(lambda: site.cluster.status().running == 0, "Slurm is back")
