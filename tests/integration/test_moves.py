"""A migrated job resumes where it stopped, and Slurm allocates exactly what the plan says."""

from __future__ import annotations

import json
import os
import pwd
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from integration.site import ALL_FAST, GpuTree, Site, eventually, gpu_tree, gpus_in

from hadar_slurm.core.cluster import JobId
from hadar_slurm.handoff import read_report
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.lab.demo.report import plan_mismatches
from hadar_slurm.slurm.enforce.stoppable import NEVER_REQUEUED

pytestmark = pytest.mark.slurm

OTHER_USER = "daemon"  # an account of every Debian
# Steps/s of a gang: a K80 is so slow that migrating away from it always pays.
RATES = {"v100": 60.0, "p100": 30.0, "k80": 4.0}


def start_on_slow(site: Site, *jobs: JobId) -> None:
    """Wait until jobs train on the K80s of n5 and have done some steps."""
    site.until_running(*jobs)
    assert {gpu_type for job in jobs for gpu_type in site.tree(job)["n5"]} == {"k80"}
    eventually(lambda: all(site.steps(job) > 0 for job in jobs), "first steps")


def test_a_job_moves_to_faster_gpus_and_trains_every_step_once(site: Site) -> None:
    """The second run begins at the step that the first has saved, and the result is the same.

    A job beside it that cannot save stays on its GPUs to its end.
    """
    fast = site.occupy(**ALL_FAST)
    site.start()
    steps = 200
    mover = site.train(RATES, steps=steps)
    stayer = site.train(RATES, steps=20, checkpoint="no")
    start_on_slow(site, mover, stayer)
    site.free(*fast.values())
    site.until_completed(mover, stayer)
    first, second = site.check_training(mover, steps)
    assert (first["ended"], first["gpus"]) == ("saved", {"n5": {"k80": 2}})
    assert (second["ended"], list(second["gpus"].values())) == ("done", [{"v100": 2}])
    assert 0 < second["from_step"] < steps
    assert site.queue()[mover].restarts == 1
    [only] = site.check_training(stayer, 20)
    assert (only["ended"], only["gpus"]) == ("done", {"n5": {"k80": 2}})
    assert [action["do"] for action in site.actions(stayer)].count("start") == 1
    assert "stop" not in [action["do"] for action in site.actions(stayer)]
    assert plan_mismatches(site.lines()) == []


def test_a_job_that_ignores_the_signal_is_moved_after_the_grace(site: Site) -> None:
    """A job that ignores USR1 is requeued after its grace period, and trains every step once."""
    fast = site.occupy(**ALL_FAST)
    site.start(grace_seconds=1)
    deaf = site.script(
        "deaf",
        "#SBATCH --cpus-per-task=1",
        "trap '' USR1",
        # Without exec, so that a signal to the batch shell does not reach the program.
        '"$HADAR_PYTHON" "$HADAR_TEMPLATES/paced_training.py" '
        '--checkpoint-dir "checkpoints/$SLURM_JOB_ID" "$@"',
    )
    job = site.train(RATES, steps=200, script=deaf)
    start_on_slow(site, job)
    site.free(*fast.values())
    site.until_completed(job)
    [stop] = [action for action in site.actions(job) if action["do"] == "stop"]
    assert (stop["status"], stop["detail"]) == ("done", "not saved within 1 s")
    first, second = site.check_training(job, 200)
    assert first["ended"] == "terminated"
    assert list(second["gpus"].values()) == [{"v100": 2}]


def test_a_signal_that_hadard_did_not_send_loses_nothing(site: Site) -> None:
    """A job that gets USR1 from its user saves, is not migrated, and trains on in the same run."""
    site.start()
    job = site.train({"v100": 20.0}, steps=60, program=["--move-timeout-s=0.5"])
    site.until_running(job)
    eventually(lambda: site.steps(job) > 0, "first steps")
    site.run(["scancel", "--signal=USR1", "--batch", job])
    site.until_completed(job)
    first, second = site.check_training(job, 60)
    assert (first["ended"], second["ended"]) == ("saved", "done")
    assert site.queue()[job].restarts == 0
    assert "stop" not in [action["do"] for action in site.actions(job)]


# A shell program that implements the protocol with hadard, without this project's library.
SHELL_PROGRAM = """
own=${HADAR_SPOOL%/u*}/u$UID/$SLURM_JOB_ID
report() {
    mkdir -p "$own"
    printf '{"version":1,"restart":%d,"state":"%s","steps_done":7}' \\
        "${SLURM_RESTART_COUNT:-0}" "$1" > "$own/new"
    mv "$own/new" "$own/progress.json"
}
trap 'report saved' USR1
trap 'exit 1' TERM
report running
while :; do sleep 0.1; done
"""


def test_a_job_of_another_user_in_another_language_moves(site: Site) -> None:
    """A job of another user and language only needs a file and two signals to be migrated."""
    if os.geteuid() != 0:
        pytest.skip("only root submits for others")
    fast = site.occupy(**ALL_FAST)
    site.start()
    description = Description(steps=1000, gpus=2, throughputs=RATES, checkpoint=True, is_held=True)
    script = site.script("shell", SHELL_PROGRAM)
    job = site.submit(
        *("--hold", "--requeue", "--gpus=2", f"--uid={OTHER_USER}", "--chdir=/"),
        *("--output=/dev/null", f"--comment={encode(description)}"),
        script,
        command=["sbatch"],
    )
    site.until_running(job)
    assert site.tree(job) == {"n5": {"k80": 2}}
    user_id = pwd.getpwnam(OTHER_USER).pw_uid
    eventually(lambda: read_report(site.reports, job, owner_uid=user_id) is not None, "its report")
    site.free(*fast.values())
    eventually(lambda: site.queue()[job].restarts == 1, lambda: site.told(job))
    site.until_running(job)
    assert list(site.tree(job).values()) == [{"v100": 2}]
    [stop] = [action for action in site.actions(job) if action["do"] == "stop"]
    assert (stop["status"], stop["detail"]) == ("done", "")
    assert site.seen(job)["steps_done"] == 7


# An unmodified script that saves each second and resumes: USR1 would end it, TERM does.
SAVES_AT_TIMES = """
kept=kept-$SLURM_JOB_ID
step=$(cat "$kept" 2>/dev/null || echo 0)
echo "$SLURM_JOB_NODELIST $step" >> "runs-$SLURM_JOB_ID"
while ((step < 14)); do
    sleep 1
    ((++step))
    echo $step > "$kept.new" && mv "$kept.new" "$kept"
done
"""


def test_a_job_without_handlers_is_requeued_when_it_loses_little(site: Site) -> None:
    """It migrates to faster GPUs without a signal or a report, and resumes from its last save.

    Before it has run for twice what it may lose, it stays.
    """
    fast = site.occupy(**ALL_FAST)
    site.start()
    throughputs = ",".join(f"{name}={speed}" for name, speed in RATES.items())
    job = site.submit(
        *(f"--hadar-throughput={throughputs}", "--hadar-steps=400", "--gpus=2"),
        *("--hadar-checkpoint=restart:3s", "--cpus-per-task=1", "--time=5"),
        site.script("saves", SAVES_AT_TIMES),
    )
    site.until_running(job)
    began_s = site.queue()[job].started_s
    assert site.tree(job) == {"n5": {"k80": 2}}
    site.free(*fast.values())
    site.until_completed(job)
    (first_node, first_step), (second_node, second_step) = (
        line.split() for line in (site.directory / f"runs-{job}").read_text().splitlines()
    )
    assert (first_node, first_step) == ("n5", "0")
    assert second_node != "n5"
    assert 3 <= int(second_step) < 14
    row = site.queue()[job]
    assert (row.restarts, row.exit_status) == (1, 0)
    assert row.started_s - began_s >= 6
    stops = [action for action in site.actions(job) if action["do"] == "stop"]
    done = [(stop["status"], stop["detail"]) for stop in stops if stop["status"] == "done"]
    assert done == [("done", "requeued without a signal")]
    assert "USR1" not in site.hadard.log.read_text()
    assert plan_mismatches(site.lines()) == []


def test_jobs_of_a_dead_node_go_on_elsewhere(site: Site) -> None:
    """Jobs of a failed node are requeued and placed elsewhere; only unsaved steps are repeated.

    One job runs on the failed node only, the other is a gang across it and another node.
    """
    site.start()
    throughputs = {"p100": 20.0, "v100": 10.0}
    saving = ["--checkpoint-every-s=0.3"]
    gang = site.train(throughputs, "--hadar-gang=2x2", gpus=4, steps=150, program=saving)
    site.until_running(gang)
    alone = site.train(throughputs, gpus=2, steps=150, program=saving)
    site.until_running(alone)
    [node] = site.tree(alone)
    assert set(site.tree(gang)) == {"n3", "n4"}
    saved = [site.directory / "checkpoints" / job for job in (gang, alone)]
    eventually(lambda: all(any(path.glob("checkpoint-*")) for path in saved), "checkpoints")
    site.cluster.kill_node(node)
    site.until_completed(gang, alone)
    for job in (gang, alone):
        first, *others = site.check_training(job, 150)
        assert node in first["gpus"]
        assert others
        assert all(node not in segment["gpus"] for segment in others)
    assert plan_mismatches(site.lines()) == []


@dataclass
class Samples:
    """Samples of `scontrol show job -d`: start, end, and the GPUs of every running job."""

    site: Site
    seen: list[tuple[float, float, dict[JobId, GpuTree]]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Take samples during a block."""
        has_ended = threading.Event()
        thread = threading.Thread(target=self._take, args=(has_ended,))
        thread.start()
        try:
            yield
        finally:
            has_ended.set()
            thread.join()

    def _take(self, has_ended: threading.Event) -> None:
        while not has_ended.wait(0.1):
            before_s = time.time()
            try:
                details = self.site.details()
                self.site.check_gpus_are_apart()
            except Exception as error:
                self.faults.append(repr(error))
                return
            running = {
                job: gpu_tree(gpus_in(line))
                for job, line in details.items()
                if " JobState=RUNNING " in line and '"hadar"' in line
            }
            self.seen.append((before_s, time.time(), running))

    def against_plans(self) -> tuple[int, list[str]]:
        """Return the number of comparisons of a running job with its plan, and the differences.

        A sample taken while a round was carried out may show the plan before or the one after.
        """
        compared, wrong = 0, []
        rounds = [
            (line["time_s"], line["time_s"] + sum(line["durations_s"].values()), line["plan"])
            for line in self.site.lines()
        ]
        for before_s, after_s, running in self.seen:
            done = [plan for _, end_s, plan in rounds if end_s <= before_s][-1:]
            during = [plan for at_s, end_s, plan in rounds if end_s > before_s and at_s <= after_s]
            for job, held in running.items():
                compared += not during
                if held not in [plan.get(job, {}).get("0") for plan in (*done, *during)]:
                    wrong.append(f"{before_s}: {job} holds {held}, planned {done} or {during}")
        return compared, wrong


def test_what_slurm_shows_is_the_plan_at_every_moment(site: Site) -> None:
    """Jobs migrate to faster GPUs as others end, and every sample agrees with the journal."""
    # Rounds far longer than a sample, also on a loaded machine: most are taken between rounds.
    fast = site.occupy(**ALL_FAST)
    site.start(round_seconds=8)
    samples = Samples(site)
    with samples.taken():
        # It would train there for longer than all others.
        slow = site.train(RATES, steps=300)
        start_on_slow(site, slow)
        site.free(*fast.values())
        short = [site.train(RATES, steps=150 + 10 * n) for n in range(5)]
        long = [site.train(RATES, steps=300 + 10 * n, gpus=4) for n in range(3)]
        site.until_completed(slow, *short, *long)
    assert samples.faults == []
    compared, wrong = samples.against_plans()
    assert wrong == []
    # On a loaded machine fewer samples are taken.
    assert compared >= len(short) + len(long)
    assert plan_mismatches(site.lines()) == []
    # How many others are worth it depends on how soon jobs end, and so on the machine.
    assert [a for a in site.actions(slow) if a["do"] == "stop"]
    site.check_training(slow, 300)
    for number, job in enumerate(short):
        site.check_training(job, 150 + 10 * number)
    for number, job in enumerate(long):
        site.check_training(job, 300 + 10 * number)


def test_a_job_that_slurm_may_not_requeue_is_not_asked_to_save(site: Site) -> None:
    """Its owner has forbidden it as the job ran: it trains on, and another job gets the GPUs."""
    fast = site.occupy(**ALL_FAST)
    site.start()
    stayer, mover = site.train(RATES, steps=100), site.train(RATES, steps=200)
    start_on_slow(site, stayer, mover)
    done = site.run(["scontrol", "update", f"JobId={stayer}", "Requeue=0"])
    assert done.returncode == 0, done.stderr
    site.free(*fast.values())
    site.until_completed(stayer, mover)
    [only] = site.check_training(stayer, 100)
    assert (only["ended"], only["gpus"]) == ("done", {"n5": {"k80": 2}})
    # One that was planned just before is deferred as Slurm is asked again, before any signal.
    ends = {(a["status"], a["detail"]) for a in site.actions(stayer) if a["do"] == "stop"}
    assert ends <= {("deferred", f"not migrated: {NEVER_REQUEUED}")}
    assert site.queue()[mover].restarts == 1
    assert any("(Requeue=0)" in json.dumps(line) for line in site.lines())
