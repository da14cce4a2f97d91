"""What one user claims stops or delays no job of another (docs/security.md), as twins.

In each twin the honest user's jobs hold all GPUs and one more waits, while the other user submits
the same three jobs: one that cannot move, one with a short time limit, and an array. In the
truthful twin all their claims are true; in each of the others one is a lie. The honest user's jobs
train until the test ends them, so the twins do not depend on how fast the machine is.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from adversary.conftest import as_root
from adversary.users import User, make_users
from builders import ROUND
from integration.site import Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.throughput_model import GUESSED_OFF, MOST_OFF
from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.journal import Line
from hadar_slurm.journal.values import snapshot_of
from hadar_slurm.policies.hadar.policy import Hadar
from hadar_slurm.resources import beside

pytestmark = pytest.mark.slurm

HADAR = (sys.executable, "-m", "hadar_slurm.cli.main")
NODES = "v100:4,k80:4"
ROUND_S = 1.0
# What hadar-sbatch, two polls and Slurm's start of a job may take longer in one twin.
POLLING_S = 10.0
TASKS = 50
LIMITS_S = {"immovable": 3600.0, "short": 900.0, "array": 3600.0, "honest": 720.0}
UNTIL = "((step < total_steps))"
TRAIN = beside("job_templates", "bash_trap.sbatch").read_text().replace(UNTIL, '[[ ! -e "$1" ]]')
TRUE_SPEED = "v100=10,k80=10"
LYING_SPEED = "v100=1e12,k80=1e12"
# The options of each job of the other user: common ones, true claims, false ones.
SUBMISSIONS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "immovable": (
        ("--gpus=4", "--time=60"),
        (f"--hadar-throughput={TRUE_SPEED}", "--hadar-steps=20000"),
        (f"--hadar-throughput={LYING_SPEED}", "--hadar-steps=1"),
    ),
    "short": (
        ("--gpus=4", "--time=15", f"--hadar-throughput={TRUE_SPEED}", "--hadar-checkpoint=yes"),
        ("--hadar-steps=8900",),
        ("--hadar-steps=1000000000000000",),
    ),
    "array": (
        ("--gpus=1", "--time=60", f"--array=1-{TASKS}", f"--hadar-throughput={TRUE_SPEED}"),
        ("--hadar-steps=20000",),
        ("--hadar-steps=1",),
    ),
}


REPORTS = """#!/bin/bash
#SBATCH --output=/dev/null
own=$HADAR_SPOOL/$SLURM_JOB_ID
mkdir -p "$own"
for ((step = 1; step < 600; step++)); do
    [[ -e "$1" ]] && exit 0
    printf '{"version":1,"restart":0,"state":"running","steps_done":%d,"steps_per_s":1e11}' \\
        "$step" > "$own/new"
    mv "$own/new" "$own/progress.json"
    sleep 0.5
done
"""


@dataclass
class Stage:
    """A local cluster with two users, and a hadard of its own for each twin."""

    site: Site
    honest: User
    liar: User

    @contextmanager
    def new_hadard(self, name: str) -> Iterator[Site]:
        """Run a hadard that knows of no earlier job; no job is left at the end of the block."""
        site, state = self.site, self.site.directory / f"{name}-state"
        site.hadard = site.new_daemon(name, state_dir=state, round_seconds=ROUND_S)
        with site.hadard.running():
            try:
                yield site
            finally:
                site.cluster.cancel_jobs()
                eventually(lambda: not site.runner.run(["squeue", "-h"]).strip(), "jobs do not end")

    def submit(self, user: User, *words: str) -> JobId:
        """Submit a job that trains until `go` exists."""
        script = user.script("until.sbatch", TRAIN)
        return JobId(user.submit(*words, script, str(self.go)))

    def submit_reports(self, *words: str) -> JobId:
        """Submit a job of the liar that reports 1e11 steps/s until `go` exists."""
        script = self.liar.script("reports.sbatch", REPORTS)
        return JobId(self.liar.submit(*words, script, str(self.go)))

    @property
    def go(self) -> Path:
        """The file that ends the training of all jobs."""
        return self.site.hadard.directory / "go"

    def explain(self, job: JobId) -> tuple[str, Mapping[str, Any]]:
        """Return the text and the JSON of `hadar explain`."""
        words = ("explain", job, "--limit=5")
        return self.hadar(*words), json.loads(self.hadar(*words, "--json"))

    def hadar(self, *words: str) -> str:
        """Return the output of a hadar command with hadard's configuration."""
        config = str(self.site.hadard.directory / "hadar.yaml")
        done = self.site.run([*HADAR, *words, "--config", config])
        assert done.returncode in (0, 1), done.stderr
        return done.stdout


@dataclass(frozen=True)
class Twin:
    """What became of the honest user's jobs in one twin, and what `hadar explain` said."""

    # Of running jobs of the honest user.
    stops: int
    # From the end of the running jobs to the start of the waiting one.
    wait_s: float
    # Whether no job of the other user was started in an earlier round than that one.
    is_first: bool
    # By job: the time limit, the text of `hadar explain`, and its JSON.
    told: Mapping[JobId, tuple[float, str, Mapping[str, Any]]]
    # The journal's last line while all waited, and the job that did.
    line: Line
    waiting: JobId


@pytest.fixture(scope="module")
def stage(
    local_cluster: Callable[..., LocalCluster], new_directory: Callable[[], Path]
) -> Iterator[Stage]:
    """Give the stage of this file's tests."""
    as_root()
    cluster, directory = local_cluster(NODES), new_directory()
    directory.mkdir(mode=0o755)
    site = Site(cluster, directory)
    site.settings["policy"] = "hadar"
    yield Stage(site, *make_users(site.directory, site.environment))
    site.close()
    cluster.down()
    shutil.rmtree(directory)


@pytest.fixture(scope="module")
def truth(stage: Stage) -> Twin:
    """Give the twin in which all claims are true."""
    return play(stage, "")


def play(stage: Stage, lie: str) -> Twin:
    """Play one twin; `lie`: the submission with false claims."""
    with stage.new_hadard(f"lie-{lie or 'none'}") as site:
        own = (
            "--gpus=4",
            "--time=12",
            f"--hadar-throughput={TRUE_SPEED}",
            "--hadar-checkpoint=yes",
        )
        own = (*own, "--hadar-steps=6900")
        honest = [stage.submit(stage.honest, *own) for _ in range(2)]
        site.until_running(*honest)
        eventually(lambda: all(_may_move(site, job) for job in honest), lambda: site.told(*honest))
        others = {
            stage.submit(stage.liar, *common, *(false if name == lie else true)): name
            for name, (common, true, false) in SUBMISSIONS.items()
        }
        waiting = stage.submit(stage.honest, *own)
        eventually(lambda: waiting in _jobs(site), lambda: site.told(waiting))
        # Enough rounds for running jobs to be stopped, and for others to start in their places.
        site.until_rounds(6)
        line = site.newest()
        explained = [honest[0], waiting, *(job for job, name in others.items() if name == lie)]
        told = {job: stage.explain(_seen(site, job)) for job in explained}
        stage.go.touch()
        site.until_completed(*honest, waiting)
        rows = site.queue()
        stops = sum(
            action["do"] == "stop" and action["status"] == "done"
            for job in (*honest, waiting)
            for action in site.actions(job)
        )
        starts = [_started(line) for line in site.lines()]
    wait_s = rows[waiting].started_s - min(rows[job].ended_s for job in honest)
    first = next(number for number, jobs in enumerate(starts) if waiting in jobs)
    is_first = not any(job.partition("_")[0] in others for jobs in starts[:first] for job in jobs)
    limit_s = {job: LIMITS_S[others.get(job, "honest")] for job in told}
    told_of = {job: (limit_s[job], *found) for job, found in told.items()}
    return Twin(stops, max(0.0, wait_s), is_first, told_of, line, waiting)


def _started(line: Line) -> set[str]:
    """Return the jobs that a round has started."""
    done = (action for action in line["actions"] if action["status"] == "done")
    return {action["job"] for action in done if action["do"] == "start"}


def _jobs(site: Site) -> Mapping[str, Mapping[str, Any]]:
    lines = site.lines()
    return lines[-1]["jobs"] if lines else {}


def _may_move(site: Site, job: JobId) -> bool:
    seen = _jobs(site).get(job, {})
    return seen.get("phase") == "running" and seen["steps_done"] > 0 and not seen.get("stays")


def _seen(site: Site, job: JobId) -> JobId:
    """Return a job's id in the journal, of an array that of its last task."""
    return job if job in _jobs(site) else JobId(f"{job}_{TASKS}")


@pytest.mark.parametrize("lie", SUBMISSIONS)
def test_a_lie_neither_stops_nor_delays_another_users_job(
    stage: Stage, truth: Twin, lie: str
) -> None:
    """No running job of another user is stopped for a lie, and the next starts as soon as without;
    no time that `hadar explain` shows is beyond the time limits."""
    assert (truth.stops, truth.is_first) == (0, True)
    found = play(stage, lie)
    print(f"{lie}: {found.stops} stops, wait {found.wait_s:.1f} s; truth {truth.wait_s:.1f} s")
    assert found.stops == truth.stops
    assert found.is_first
    assert found.wait_s <= 1.1 * truth.wait_s + ROUND_S + POLLING_S
    for job, (limit_s, text, tree) in found.told.items():
        check_told(job, limit_s, text, tree)
    check_guard(found)


def check_told(job: JobId, limit_s: float, text: str, tree: Mapping[str, Any]) -> None:
    """Fail if `hadar explain` names a time that the job's and the others' limits exclude."""
    told, limits_s = tree["found"], sum(LIMITS_S.values()) + TASKS * LIMITS_S["array"]
    assert told is not None, (job, tree)
    lasts_s = [choice["lasts_s"] for choice in told["choices"]]
    lasts_s += [] if told["ends_in_s"] is None else [told["ends_in_s"]]
    assert max(lasts_s) <= limit_s + 1, (job, told)
    for expected in filter(None, (told["expected"], told["if_moved"])):
        assert expected["ends_in_s"] - expected["begins_in_s"] <= limit_s + 1, (job, told)
        assert expected["begins_in_s"] <= limits_s, (job, told)
    units = {"s": 1.0, "min": 60.0, "h": 3600.0, "days": 86400.0}
    spans = re.findall(r"\b(\d[\d.e+]*) (s|min|h|days)\b", text)
    assert spans, text
    assert all(float(number) * units[unit] <= limits_s for number, unit in spans), text


def check_guard(twin: Twin) -> None:
    """Fail unless the waiting job, had it waited as long as the guard promises, is next.

    The horizon, by which claims once moved the guard, is bounded by the time limits as well.
    """
    limits_s = sum(LIMITS_S.values()) + TASKS * LIMITS_S["array"]
    assert 0 < twin.line["figures"]["horizon_s"] <= limits_s
    snapshot = snapshot_of(dict(twin.line))
    job = snapshot.by_id[twin.waiting]
    alone_s = job.spec.total_steps / 10.0
    submitted_s = snapshot.now_s - 2 * 86400 - 20 * alone_s - 60
    overdue = replace(job, spec=replace(job.spec, submitted_s=submitted_s))
    jobs = tuple(overdue if other is job else other for other in snapshot.jobs)
    round_ = replace(ROUND, start_s=snapshot.now_s)
    plan = Hadar().plan(replace(snapshot, jobs=jobs), round_)
    assert job.job_id in dict(plan.allocations)


def test_reports_of_one_user_hardly_move_what_is_known_for_another(stage: Stage) -> None:
    """Six jobs that report 1e11 steps/s on K80s leave another user's ratios within a factor of 4,
    speeds within a factor of 100 of the first guess, and count as the liar's measurements only."""
    with stage.new_hadard("reports") as site:
        options = ("--time=10", "--hadar-steps=6000")
        job = JobId(stage.honest.submit("--gpus=4", *options, "-Jnet", "--wrap=sleep 300"))
        eventually(lambda: job in _jobs(site), lambda: site.told(job))
        before = _speeds(stage, job)
        names = ("net", "net", "a", "b", "c", "d")
        liars = [
            stage.submit_reports("--gpus=1", *options, "--hadar-types=k80", f"-J{name}")
            for name in names
        ]
        # The K80s hold four of them at once.
        eventually(lambda: len(_measured(stage, stage.liar)) >= 3, lambda: site.told(*liars))
        stage.go.touch()
        site.until_completed(*liars)
        site.until_rounds(2)
        after, measured = _speeds(stage, job), _measured(stage, stage.liar)
    print(f"before {before}, after {after}")
    assert set(measured) <= {f"job:{name}" for name in names}
    assert max(measured.values()) == pytest.approx(1e11)
    assert not _measured(stage, stage.honest)
    for gpu_type, speed in after.items():
        off = (speed / after["k80"]) / (before[gpu_type] / before["k80"])
        assert abs(math.log(off)) <= math.log(MOST_OFF) + 1e-3, (before, after)
        assert abs(math.log(speed / before[gpu_type])) <= math.log(GUESSED_OFF) + 1e-3


def _speeds(stage: Stage, job: JobId) -> dict[str, float]:
    told = json.loads(stage.hadar("explain", job, "--json"))["found"]
    return {choice["gpu_type"]: choice["steps_per_s"] for choice in told["choices"]}


def _measured(stage: Stage, user: User) -> dict[str, float]:
    tree = json.loads(stage.hadar("speeds", "show", user.name, "--json"))
    return {row["workload"]: row["steps_per_s"] for row in tree["speeds"]}
