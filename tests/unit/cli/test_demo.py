"""The demo: its configuration of hadard, its submissions and its results."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from builders import a_cluster, a_gang
from rich.console import Console
from typer.testing import CliRunner

from hadar_slurm.cli.main import commands
from hadar_slurm.cli.trials.demo import show_results
from hadar_slurm.config import Config
from hadar_slurm.core.cluster import JobId
from hadar_slurm.errors import HadarError, UsageError
from hadar_slurm.lab.demo.both_runs import CONFIG, WAYS
from hadar_slurm.lab.demo.runs import JobRun, submission
from hadar_slurm.lab.demo.workload import load_workload
from hadar_slurm.metrics import Segment


def test_the_demos_hadard_places_jobs() -> None:
    """Each way is a mode of hadard; with the default mode hadard would only observe."""
    assert [Config.model_validate({**CONFIG, "mode": way}).mode for way in WAYS] == [
        "steer",
        "hold",
    ]


def test_jobs_may_keep_their_length_to_themselves() -> None:
    """With tells_steps=False a submission has a time limit, but no --hadar-steps."""
    job = load_workload().jobs[0]
    told, untold = (submission(job, ["hadar-sbatch"], tells_steps=tells) for tells in (True, False))
    assert [word for word in told if word not in untold] == [f"--hadar-steps={job.total_steps}"]
    assert "--time=30" in untold
    assert f"--total-steps={job.total_steps}" in untold


def test_a_policy_that_is_not_there_is_refused_before_anything_starts() -> None:
    done = CliRunner().invoke(commands, ["demo", "--policy", "no-such"])
    assert isinstance(done.exception, UsageError)
    assert "--policy 'no-such': expected one of hadar, hadar-paper" in str(done.exception)


@pytest.mark.parametrize("has_matplotlib", [True, False])
def test_without_matplotlib_the_figures_come_without_a_picture(
    has_matplotlib: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without matplotlib there is no picture, and one line says how to install it."""
    if not has_matplotlib:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
    job = load_workload().jobs[0]
    held = (Segment(JobId("7"), a_gang("n1:V100:2"), 1.0, 9.0),)
    run = JobRun(job, JobId("7"), "COMPLETED", 0.0, 9.0, held, job.total_steps, True)
    (tmp_path / "journal.jsonl").touch()
    console = Console(record=True, width=200)
    show_results(tmp_path, a_cluster("2xV100,2xK80"), [run], [run], console, as_json=False)
    said = console.export_text()
    assert json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["jobs"] == 1
    assert (tmp_path / "gantt.png").exists() == ("gantt.png: " in said) == has_matplotlib
    needed = "pictures need matplotlib: pip install 'hadar_slurm[plots]'"
    assert said.count(needed) == (not has_matplotlib)


def test_jobs_that_slurm_ended_at_their_limits_are_told(tmp_path: Path) -> None:
    """In the table and in the JSON, with the share of the GPU time that was lost."""
    jobs = load_workload().jobs[:2]
    held = (Segment(JobId("7"), a_gang("n1:V100:2"), 1.0, 9.0),)
    whole, other = (
        JobRun(job, JobId("7"), "COMPLETED", 0.0, 9.0, held, job.total_steps, True) for job in jobs
    )
    ended = replace(other, state="TIMEOUT", steps_trained=1)
    (tmp_path / "journal.jsonl").touch()
    console = Console(record=True, width=80)
    cluster = a_cluster("2xV100")
    with pytest.raises(HadarError, match="unfinished jobs: demo-02"):
        show_results(tmp_path, cluster, [whole, ended], [whole, other], console, as_json=False)
    row = next(line for line in console.export_text().splitlines() if "by their time" in line)
    assert "1, 50% of GPU time" in row
    tree = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert (tree["plain_slurm"]["killed"], tree["plain_slurm"]["killed_gpu_s"]) == (1, 16.0)
    assert (tree["hadar"]["killed"], tree["hadar"]["killed_gpu_s"]) == (0, 0)
