"""`hadar compare --on-slurm`: a study as job arrays of a real Slurm, interrupted and resumed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from integration.site import eventually

from hadar_slurm.devcluster.cluster import LocalCluster

pytest.importorskip("submitit")
pytestmark = pytest.mark.slurm

# Each command starts a Python with all solvers, and each task too.
LIMIT_S = 600.0
POLICIES = ("srsf", "las", "yarn-cs")
JOB = "LM (batch size 80)\t\t\t\t0\t{steps}\t1\t1\t-1.0\t{arrival}\n"


@pytest.fixture(scope="module")
def cluster(local_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    """A cluster of two nodes for this module."""
    cluster = local_cluster("v100:1,v100:1")
    yield cluster
    cluster.cancel_jobs()


class Study:
    """A small study, whose command may be repeated."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self.cluster, self.output = cluster, directory / "out"
        self._trace = directory / "few.trace"
        jobs = [JOB.format(steps=9000 * (n + 1), arrival=60 * n) for n in range(4)]
        self._trace.write_text("".join(jobs), encoding="utf-8")
        self._environment = {**os.environ, **cluster.environment()}
        self.book = self.output / "slurm" / "tasks.json"

    @contextmanager
    def begin(
        self, *options: str, policies: tuple[str, ...] = POLICIES
    ) -> Iterator[subprocess.Popen[str]]:
        """Start the command, and kill it at the end if it still runs."""
        words = [str(self._trace), "--cluster", "2xV100", "--policy", ",".join(policies)]
        words += ["--output", str(self.output), "--json", "--on-slurm", *options]
        with subprocess.Popen(
            [sys.executable, "-m", "hadar_slurm.cli.main", "compare", *words],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def tasks(self) -> dict[str, str]:
        """Return the task of each run."""
        return json.loads(self.book.read_text()) if self.book.exists() else {}

    def states(self) -> dict[str, str]:
        """Return the state of each task by its id."""
        text = self.cluster.runner().run(["squeue", "-h", "-r", "-t", "all", "-o", "%i %T"])
        return dict(line.split() for line in text.splitlines())

    def is_pending(self, task: str) -> bool:
        """Return whether a task waits; this Slurm soon forgets those that have ended."""
        return self.states().get(task) == "PENDING"


def test_a_study_outlives_its_command_and_runs_only_what_lacks_a_result(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """The command is killed, a task is cancelled, and each repetition does what is left to do."""
    study, runner = Study(cluster, tmp_path), cluster.runner()
    # Pending until the test lets them start.
    with study.begin("--slurm-options", "begin=now+7200") as killed:
        eventually(lambda: len(study.tasks()) == len(POLICIES), limit_s=LIMIT_S)
        killed.kill()
        killed.communicate(timeout=LIMIT_S)
    before = study.tasks()
    (array,) = {task.partition("_")[0] for task in before.values()}
    assert {study.states()[task] for task in before.values()} == {"PENDING"}

    lost, *others = sorted(before.values())
    with study.begin() as second:
        runner.run(["scancel", lost])
        eventually(lambda: not study.is_pending(lost), study.states)
        for task in others:
            runner.run(["scontrol", "update", f"JobId={task}", "StartTime=now"])
        out, said = second.communicate(timeout=LIMIT_S)
    cancelled = study.tasks()
    # Whether the task was cancelled before the command asked for its state is chance.
    if cancelled == before:
        assert second.returncode == 1
        assert f"task {lost} " in said
        assert "without a result" in said
    assert {key: task for key, task in cancelled.items() if task != before[key]}.keys() <= {
        key for key, task in before.items() if task == lost
    }

    with study.begin() as third:
        out, said = third.communicate(timeout=LIMIT_S)
    assert third.returncode == 0, said
    runs = json.loads(out)["runs"]
    assert [(run["policy"], run["status"]) for run in runs] == [(p, "done") for p in POLICIES]
    after = study.tasks()
    assert [key for key in after if after[key] != before[key]] == [
        key for key in before if before[key] == lost
    ]
    # The jobs of tasks with a result are gone.
    left = {path.name for path in study.book.parent.glob("*_submitted.pkl")}
    assert left <= {f"{lost}_submitted.pkl"}
    assert array not in {after[key].partition("_")[0] for key in before if before[key] == lost}


def test_a_study_that_slurm_refuses_names_the_options(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """A partition that does not exist, and a Slurm that does not answer, end the command."""
    study = Study(cluster, tmp_path)
    with study.begin("--slurm-partition", "nowhere", policies=("srsf",)) as refused:
        _, said = refused.communicate(timeout=LIMIT_S)
    assert refused.returncode not in (0, 130)
    assert "nowhere" in said or "invalid partition" in said
    assert "--slurm-partition" in said
    assert not study.tasks()


def test_ctrl_c_cancels_the_tasks(cluster: LocalCluster, tmp_path: Path) -> None:
    """After Ctrl-C no task is left, and the command says how to go on."""
    study = Study(cluster, tmp_path)
    with study.begin("--slurm-options", "begin=now+7200") as stopped:
        eventually(lambda: len(study.tasks()) == len(POLICIES), limit_s=LIMIT_S)
        stopped.send_signal(2)
        _, said = stopped.communicate(timeout=LIMIT_S)
    assert stopped.returncode == 130
    assert f"0 of {len(POLICIES)} runs are in" in said
    eventually(lambda: not any(map(study.is_pending, study.tasks().values())), study.states)
