"""The daemon is killed, stopped, started twice or left without Slurm, and no job suffers."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import policy_page
from integration.site import LIMIT_S, Site, eventually, gpu_tree

from hadar_slurm.core.cluster import JobId
from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.handoff import user_reports
from hadar_slurm.lab.demo.report import plan_mismatches
from hadar_slurm.lab.demo.runs import Daemon
from hadar_slurm.policies.registry import DEFAULT_POLICY
from hadar_slurm.slurm.client import scontrol
from hadar_slurm.slurm.client.updates import ClearRequest, Requeue
from hadar_slurm.slurm.enforce.claim import State
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.state.heartbeat_reader import read_heartbeat

pytestmark = pytest.mark.slurm

RATES = {"v100": 40.0, "p100": 20.0, "k80": 4.0}
# No reason to migrate.
EQUAL = {"v100": 20.0, "p100": 20.0, "k80": 20.0}
# With this cost a migration never pays.
DEAR = "--hadar-restart-cost=600"


def ended(daemon: Daemon) -> int:
    """Return a daemon's exit status, once it has ended."""
    assert daemon.process is not None
    return daemon.process.wait(LIMIT_S)


def test_after_a_kill_a_new_daemon_goes_on_from_what_slurm_shows(site: Site) -> None:
    """A new daemon leaves running jobs alone and places held ones; all train every step once."""
    daemon = site.start()
    running = [site.train(EQUAL, DEAR, steps=steps, gpus=4) for steps in (300, 200, 250)]
    site.until_running(*running)
    before = {job: site.gpus(job) for job in running}
    site.kill(daemon)
    waiting = [site.train(EQUAL, DEAR, steps=60, gpus=2) for _ in range(3)]
    assert all(site.queue()[job].is_held_by_user for job in waiting)
    assert {job: site.gpus(job) for job in running} == before
    site.start()
    site.until_completed(*running, *waiting)
    for job, steps in zip((*running, *waiting), (300, 200, 250, 60, 60, 60), strict=True):
        [only] = site.check_training(job, steps)
        assert site.queue()[job].restarts == 0
        if job in before:
            assert only["gpus"] == gpu_tree(before[job])
    assert plan_mismatches(site.lines()) == []


def test_reports_are_closed_where_slurm_hides_jobs(
    local_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    """With `PrivateData=jobs`; hadard goes by them nevertheless."""
    cluster = local_cluster("v100:2", settings="PrivateData=jobs\n")
    site = Site(cluster, tmp_path)
    try:
        site.start()
        job = site.train({"v100": 40.0}, steps=10_000)
        eventually(lambda: site.steps(job) > 0, "the job reports")
        assert site.reports.stat().st_mode & 0o777 == 0o733
        assert user_reports(site.reports, os.geteuid()).stat().st_mode & 0o077 == 0
        eventually(lambda: site.seen(job).get("steps_done", 0) > 0, site.lines)
    finally:
        site.close()
        cluster.down()


def test_a_job_left_half_moved_is_placed_by_the_next_daemon(site: Site) -> None:
    """A job that a killed daemon left held, without GPUs in its request, is placed."""
    job = site.train(EQUAL, held=True, steps=60)
    site.once()
    site.until_running(job)
    eventually(lambda: site.steps(job) > 0, "first steps")
    ledger = Ledger(site.state_dir / "ledger.json")
    ledger.note({job: replace(ledger[job], state=State.REQUEUING, requeued=1)})
    site.run(scontrol.command(Requeue(job)))
    eventually(lambda: site.queue()[job].is_held_by_user, lambda: site.told(job))
    site.run(scontrol.command(ClearRequest(job)))
    assert site.queue()[job].gpus_per_node == ()
    site.start()
    site.until_completed(job)
    assert [segment["restart"] for segment in site.check_training(job, 60)] == [0, 1]


def test_one_daemon_a_cluster(site: Site) -> None:
    """A second daemon ends at once, whatever its files, and can start when the first is gone."""
    first = site.start()
    elsewhere = site.directory / "elsewhere"
    for changes in ({}, {"run_dir": elsewhere, "journal": elsewhere / "journal"}):
        for options in ([], ["--once"]):
            check_refused(site, *options, **changes)
    assert not elsewhere.exists()
    beat = read_heartbeat(site.run_dir)
    assert beat is not None
    assert first.process is not None
    assert beat.pid == first.process.pid
    site.kill(first)
    second = site.new_daemon("second")
    second.start()
    assert second.process is not None
    assert second.process.poll() is None


def check_refused(site: Site, *options: str, **changes: object) -> None:
    """Fail unless hadard ends with status 1 and one line that names the cluster."""
    done = site.run_hadard(*options, **changes)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert f"cluster {site.cluster.name} " in line


def test_one_daemon_a_cluster_though_slurm_conf_was_replaced(site: Site) -> None:
    """A second daemon is refused also with a copy of slurm.conf, or after its replacement."""
    site.start()
    new = site.cluster.slurm_conf.with_suffix(".new")
    shutil.copy(site.cluster.slurm_conf, new)
    new.replace(site.cluster.slurm_conf)
    check_refused(site)
    copy = site.directory / "slurm.conf"
    shutil.copy(site.cluster.slurm_conf, copy)
    check_refused(site, "--once", slurm_conf=copy)


def deaf_job(site: Site, name: str) -> JobId:
    """Submit a job that does not train, and on USR1 only creates a file."""
    script = site.script(
        name,
        f"trap 'touch {site.directory / name}.asked' USR1",
        # hadard does not signal a job without a report.
        'mkdir -p "$HADAR_SPOOL/$SLURM_JOB_ID" && cd "$HADAR_SPOOL/$SLURM_JOB_ID"',
        """echo '{"version":1,"restart":0,"state":"running","steps_done":0}' > progress.json""",
        "while :; do sleep 0.1; done",
    )
    return site.train(RATES, steps=200, script=script)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_told_to_end_finishes_what_it_is_doing(site: Site, number: int) -> None:
    """At SIGTERM or SIGINT in a migration it completes it, leaves the jobs to Slurm, and ends."""
    busy = site.occupy(n1="gpu:4", n2="gpu:4", n3="gpu:4", n4="gpu:4", n6="gpu:v100:2,gpu:k80:2")
    daemon = site.start(grace_seconds=3)
    jobs = [deaf_job(site, name) for name in ("one", "other")]
    site.until_running(*jobs)
    site.free(*busy.values())
    eventually((site.directory / "one.asked").exists, "asked to save")
    assert daemon.process is not None
    daemon.process.send_signal(number)
    asked_s = time.monotonic()
    assert ended(daemon) == 0
    assert time.monotonic() - asked_s < 3 + LIMIT_S / 2
    site.until_running(*jobs)
    last = site.newest()
    assert {a["status"] for a in last["actions"]} == {"done"}
    # They may be moved in two rounds.
    assert {a["do"] for a in last["actions"]} - {"renew"} == {"stop", "start"}
    # A job that had not started yet has asked for GPUs as its owner did since.
    assert [len(site.gpus(job)) for job in jobs] == [2, 2]
    assert read_heartbeat(site.run_dir) is None


def test_control_c_does_not_reach_the_commands_of_the_daemon(site: Site) -> None:
    """Commands of the daemon are not in its process group, which a terminal would signal."""
    group = site.runner.run([sys.executable, "-c", "import os; print(os.getpgrp())"])
    assert int(group) != os.getpgrp()


def test_while_slurm_is_away_nothing_is_done(site: Site) -> None:
    """Without slurmctld rounds do nothing and jobs run on; afterwards jobs are placed again."""
    site.start(command_timeout_seconds=1)
    running = site.train(RATES, steps=300)
    site.until_running(running)
    before = site.gpus(running)
    site.cluster.stop_controller()
    try:
        eventually(lambda: bool(site.newest()["errors"]), "a round without Slurm")
        assert site.newest()["plan"] is None
    finally:
        site.cluster.start_controller()
    waiting = site.train(RATES, steps=20)
    site.until_completed(running, waiting)
    [only] = site.check_training(running, 300)
    assert only["restart"] == 0
    assert only["gpus"] == {gpu.node: {gpu.gpu_type: 2} for gpu in before}
    site.check_training(waiting, 20)


def test_no_job_starts_before_its_node_has_reported_to_slurm(site: Site) -> None:
    """A job is not started after a restart of slurmctld before its node has reported.

    If another job of the node has ended meanwhile, 22.05.8 may start it without GPUs.
    """
    site.occupy(n1="gpu:2", n2="gpu:4", n6="gpu:v100:2")
    site.start(round_seconds=1, command_timeout_seconds=1)
    first = site.train({"v100": 20.0}, steps=60)
    site.until_running(first)
    second = site.train({"v100": 20.0}, steps=20)
    site.cluster.stop_controller()
    site.cluster.start_controller()
    site.until_completed(first, second)
    assert site.segments(second)[0]["gpus"] == {"n1": {"v100": 2}}


def test_a_policy_of_a_separate_wheel_runs_under_hadard(site: Site, tmp_path: Path) -> None:
    """A policy that is installed as a separate package is selected in the configuration."""
    site.environment["PYTHONPATH"] = str(policy_page.install(tmp_path))
    site.start(policy=policy_page.NAME)
    job = site.train({"v100": 20.0}, steps=20)
    site.until_completed(job)
    site.check_training(job, 20)
    assert {line["policy"] for line in site.lines()} == {policy_page.NAME}


def test_the_default_policy_moves_jobs_and_loses_nothing(site: Site) -> None:
    """With the default policy short jobs overtake long ones, and all train every step once."""
    site.start(policy=DEFAULT_POLICY)
    long = [site.train({"v100": 20.0, "k80": 4.0}, steps=300, gpus=4) for _ in range(2)]
    site.until_running(*long)
    short = [site.train({"v100": 20.0, "k80": 4.0}, steps=steps, gpus=2) for steps in (40, 60, 80)]
    site.until_completed(*long, *short)
    for job, steps in zip((*long, *short), (300, 300, 40, 60, 80), strict=True):
        site.check_training(job, steps)
    assert plan_mismatches(site.lines()) == []
    assert {line["policy"] for line in site.lines()} == {DEFAULT_POLICY}
