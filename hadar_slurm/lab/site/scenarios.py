"""The scenarios: situations of a shared site in which the wait of one user's jobs is judged.

Each is a function that brings the situation about and names the judged jobs. Those jobs, and all
of `Play.submit`, are hadard's in one play and plain in its twin; all others are plain in both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from hadar_slurm.core.cluster import JobId
from hadar_slurm.errors import SlurmError
from hadar_slurm.lab.site.jobs import NODES, NUM_GPUS, UserJob
from hadar_slurm.lab.site.play import SitePlay
from hadar_slurm.lab.site.testbed import HIGH_QOS, LIMITED_QOS, PREEMPTING_QOS

# Work that does not end during a play.
_LONG = UserJob(600.0)
_SETUP_S = 25.0
# How long after slurmctld's look at nodes that power up a job is submitted. Before, nodes that
# have been up must power down.
_AFTER_LOOK_S = 20.0


def make_way(play: SitePlay) -> None:
    """Run movable jobs on all GPUs, let plain jobs wait, then submit short jobs."""
    movable = play.submit(play.ann, *[UserJob(30.0, is_movable=True)] * NUM_GPUS)
    play.until(lambda: play.num_running(movable) == NUM_GPUS, _SETUP_S, "all movable jobs run")
    for _ in range(10):
        play.submit_plain(play.bob, UserJob(10.0))
    play.judge("", play.submit(play.ann, *[UserJob(3.0)] * 4))


def stream(play: SitePlay) -> None:
    """Keep three plain jobs waiting for 60 s, and submit a job of one GPU and one of four."""
    waiting = [play.submit_plain(play.bob, UserJob(1.0 + step % 5)) for step in range(NUM_GPUS + 3)]
    ends_s = time.monotonic() + 60.0

    def refill() -> None:
        queued = sum(job not in play.started_s for job in waiting)
        missing = 3 - queued if time.monotonic() < ends_s else 0
        work = UserJob(4.0, time_limit_min=1)
        waiting.extend(play.submit_plain(play.bob, work) for _ in range(missing))

    play.on_look.append(refill)
    play.until(lambda: play.num_running(waiting) == NUM_GPUS, _SETUP_S, "a full cluster")
    play.judge("1-gpu", play.submit(play.ann, UserJob(4.0, time_limit_min=1)))
    four = UserJob(4.0, num_gpus=4, time_limit_min=1, is_on_one_node=True)
    play.judge("4-gpus", play.submit(play.ann, four))


def high_qos(play: SitePlay) -> None:
    """Let another user's array of 96 tasks wait, and submit a job of two GPUs with a high QOS."""
    _array(play, tasks=96)
    job = UserJob(4.0, num_gpus=2, is_on_one_node=True, options=(f"--qos={HIGH_QOS}",))
    play.judge("", play.submit(play.ann, job))


def preempting_qos(play: SitePlay) -> None:
    """Fill the cluster with long jobs, and submit a job of a QOS that may preempt them."""
    jobs = [play.submit_plain(play.bob, _LONG) for _ in range(NUM_GPUS)]
    play.until(lambda: play.num_running(jobs) == NUM_GPUS, _SETUP_S, "a full cluster")
    job = UserJob(4.0, options=(f"--qos={PREEMPTING_QOS}",))
    play.judge("", play.submit(play.ann, job))


def age(play: SitePlay) -> None:
    """Submit a job to a full cluster, and plain jobs of another user behind it.

    The first GPU is free after more than a minute: Slurm updates ages once a minute.
    """
    for place in range(NUM_GPUS):
        play.submit_command(play.bob, f"sleep {65 + place / 2}", "--gpus=1", "--time=5")
    play.until(lambda: len(play.started_s) == NUM_GPUS, _SETUP_S, "a full cluster")
    judged = play.submit(play.ann, UserJob(4.0))
    play.submit_command(play.cat, "sleep 10", "--gpus=1", "--time=5", "--array=1-32")
    play.judge("", judged)

    def note() -> None:
        seen = play.jobs.get(judged[0])
        if seen is not None and seen.has_started:
            play.on_look.remove(note)
            counted_s = seen.started_s - seen.accrue_s if seen.accrue_s else 0.0
            play.notes.append(f"age that Slurm counts at the start: {counted_s:.0f} s")

    play.on_look.append(note)


def qos_limit(play: SitePlay) -> None:
    """Submit 20 jobs of a QOS that allows a user two GPUs, then another user's job of four."""
    jobs = play.submit(play.ann, *[UserJob(600.0, options=(f"--qos={LIMITED_QOS}",))] * 20)
    play.until(lambda: play.num_running(jobs) == 2, _SETUP_S, "two jobs of the QOS run")
    play.judge("", play.submit(play.bob, UserJob(4.0, num_gpus=4, is_on_one_node=True)))


def array_throttle(play: SitePlay) -> None:
    """Submit an array of which two tasks may run at once, then another user's job of four GPUs."""
    play.submit(play.ann, UserJob(600.0, options=("--array=1-20%2",)))
    play.until(lambda: len(play.started_s) == 2, _SETUP_S, "two tasks of the array run")
    play.judge("", play.submit(play.bob, UserJob(4.0, num_gpus=4, is_on_one_node=True)))


def maintenance(play: SitePlay) -> None:
    """Reserve all nodes but a slow one from in ten minutes, and submit a job of 30 minutes."""
    run = play.site.runner.run
    nodes = ",".join(node.name for node in NODES[:-1])
    words = ["starttime=now+600", "duration=60", "users=root", "flags=maint", f"nodes={nodes}"]
    run(["scontrol", "create", "reservation=repair", *words])
    play.at_end.append(lambda: _delete_reservation(play))
    play.judge("", play.submit(play.ann, UserJob(4.0, time_limit_min=30)))


def _delete_reservation(play: SitePlay) -> None:
    try:
        play.site.runner.run(["scontrol", "delete", "reservation=repair"])
    except SlurmError as error:
        play.say(f"{play.title}: {error}")


def busy_cores(play: SitePlay) -> None:
    """Occupy all cores of all nodes but a slow one with jobs without GPUs, and submit a job."""
    jobs = [
        play.submit_command(play.bob, "sleep 600", "--cpus-per-task=16", f"--nodelist={node.name}")
        for node in NODES[:-1]
    ]
    play.until(lambda: play.num_running(jobs) == len(jobs), _SETUP_S, "all jobs on cores run")
    play.judge("", play.submit(play.ann, UserJob(4.0)))


def power_saving(play: SitePlay) -> None:
    """Power down the only nodes that can run a job of four GPUs, and submit it.

    slurmctld looks every 30 s whether a node is up (`job_time_limit`). A plain job shows when, so
    that the judged job of both twins is submitted as long before the next look.
    """
    nodes = ",".join(node.name for node in NODES if node.num_gpus >= 4)
    play.at_end.append(lambda: play.site.power_up(nodes))
    play.site.power_down(nodes)
    first = play.submit_plain(play.bob, UserJob(0.1, num_gpus=4, is_on_one_node=True))
    play.until(lambda: play.num_running([first]) == 1 or _has_ended(play, first), 75.0, "power up")
    submit_s = time.monotonic() + _AFTER_LOOK_S
    play.until(lambda: _has_ended(play, first), _SETUP_S, "the end of the first job")
    play.site.power_down(nodes)
    play.until(lambda: time.monotonic() >= submit_s, _AFTER_LOOK_S, "the time of the submission")
    play.judge("", play.submit(play.ann, UserJob(4.0, num_gpus=4, is_on_one_node=True)))


def _has_ended(play: SitePlay, job: JobId) -> bool:
    return job in play.jobs and play.jobs[job].has_ended


def dependency(play: SitePlay) -> None:
    """Submit a job, and one that may start once it has ended."""
    [first] = play.submit(play.ann, UserJob(6.0, is_even=True))
    second = UserJob(4.0, options=(f"--dependency=afterok:{first}",))
    play.judge("", play.submit(play.ann, second))


def _array(play: SitePlay, *, tasks: int) -> None:
    """Submit an array of plain jobs of 6 to 10 s, and wait until it fills the cluster."""
    # Few tasks end at the same time.
    command = "sleep $((6 + SLURM_ARRAY_TASK_ID % 4)).$((SLURM_ARRAY_TASK_ID * 37 % 90 + 10))"
    play.submit_command(play.bob, command, "--gpus=1", "--time=5", f"--array=1-{tasks}")
    play.until(lambda: len(play.started_s) >= NUM_GPUS, _SETUP_S, "a full cluster")


@dataclass(frozen=True)
class SiteScenario:
    """One row of the table; `limit_s` is how long judged jobs may wait, in seconds."""

    name: str
    prepare: Callable[[SitePlay], None]
    limit_s: float
    # The groups of judged jobs: more than one makes a row of results each.
    groups: tuple[str, ...] = ("",)
    # How long GPUs are watched after the last judged job has started, in seconds.
    settle_s: float = 0.0

    def row_name(self, group: str) -> str:
        """Return the name of a group's row of results."""
        return f"{self.name}-{group}" if group else self.name


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        SiteScenario("make-way", make_way, 75.0, settle_s=5.0),
        SiteScenario("stream", stream, 90.0, groups=("1-gpu", "4-gpus")),
        SiteScenario("high-qos", high_qos, 75.0),
        SiteScenario("preempting-qos", preempting_qos, 45.0),
        SiteScenario("age", age, 120.0),
        SiteScenario("qos-limit", qos_limit, 60.0),
        SiteScenario("array-throttle", array_throttle, 60.0),
        SiteScenario("maintenance", maintenance, 45.0),
        SiteScenario("busy-cores", busy_cores, 75.0),
        SiteScenario("power-saving", power_saving, 45.0),
        SiteScenario("dependency", dependency, 90.0),
    )
}
