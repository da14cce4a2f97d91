"""Every template in docs/templates.md runs on a real Slurm as its level says."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from integration.site import ALL_FAST, GpuTree, Site, eventually

import hadar_slurm
from hadar_slurm.core.cluster import JobId
from hadar_slurm.policies.registry import DEFAULT_POLICY
from hadar_slurm.resources import beside

pytestmark = pytest.mark.slurm


@pytest.fixture
def site(site: Site) -> Site:
    """Give a site with the default policy, which migrates no job without reason."""
    site.settings["policy"] = DEFAULT_POLICY
    return site


def output(site: Site, job: JobId) -> str:
    """Return what the runs of a job have printed."""
    return "".join(path.read_text() for path in site.directory.glob(f"*-{job}.out"))


def steps_in(site: Site, job: JobId) -> list[int]:
    """Return the steps that a job has printed, in order."""
    return [int(step) for step in re.findall(r"^step (\d+)$", output(site, job), re.MULTILINE)]


def until_it_trains(site: Site, job: JobId) -> None:
    eventually(lambda: len(steps_in(site, job)) > 5, lambda: output(site, job) + site.told(job))


def gangs(site: Site, job: JobId) -> list[GpuTree]:
    """Return the GPUs of each start of a job."""
    started = [action for action in site.actions(job) if action["do"] == "start"]
    return [action["gang"] for action in started if action["status"] == "done"]


def submit(
    site: Site, template: str, *options: str, steps: int, program: Sequence[str] = ()
) -> JobId:
    """Submit a template with throughputs that are highest on V100s."""
    return site.submit(
        "--hadar-throughput=v100=10,p100=5,k80=1",
        f"--hadar-steps={steps}",
        *options,
        str(beside("job_templates", template)),
        *program,
    )


def test_an_unmodified_script_is_placed_once_and_stays(site: Site) -> None:
    """A script without Hadar's options is placed, and not migrated when faster GPUs become free."""
    fast = site.occupy(**ALL_FAST)
    site.start()
    job = site.submit(str(beside("job_templates", "unmodified.sbatch")), "60")
    until_it_trains(site, job)
    assert site.tree(job) == {"n5": {"k80": 1}}
    site.free(*fast.values())
    site.until_rounds(2)
    assert site.state(job) == "RUNNING"
    site.until_completed(job)
    assert steps_in(site, job) == list(range(60))
    assert gangs(site, job) == [{"n5": {"k80": 1}}]
    assert "stop" not in [action["do"] for action in site.actions(job)]


def test_a_loop_in_bash_moves(site: Site) -> None:
    """The second run begins with the step after the last of the first."""
    fast = site.occupy(**ALL_FAST)
    site.start()
    job = submit(site, "bash_trap.sbatch", "--gpus=1", steps=120, program=["120"])
    until_it_trains(site, job)
    site.free(*fast.values())
    site.until_completed(job)
    check_moved(site, job)
    assert steps_in(site, job) == list(range(120))


def check_moved(site: Site, job: JobId) -> None:
    """Fail unless a job was migrated once, from a K80 to a V100, after it had saved."""
    [stop] = [action for action in site.actions(job) if action["do"] == "stop"]
    assert (stop["status"], stop["detail"]) == ("done", "")
    first, second = gangs(site, job)
    assert first == {"n5": {"k80": 1}}
    assert list(second.values()) == [{"v100": 1}]
    assert site.queue()[job].restarts == 1


# The Python of users' trainings; that of the tests where none is named.
PYTHON = os.environ.get("HADAR_TORCH_PYTHON") or sys.executable


# On a loaded machine, importing torch alone may take half a minute.
TRAINING_S = 300.0


@functools.cache
def imports(*modules: str) -> bool:
    """Return whether PYTHON can import modules: installed ones may still fail."""
    done = subprocess.run([PYTHON, "-c", f"import {','.join(modules)}"], capture_output=True)
    return done.returncode == 0


def needs(*modules: str) -> None:
    """Skip a test whose template cannot run here."""
    if not imports(*modules):
        pytest.skip(f"{PYTHON} cannot import {', '.join(modules)} (HADAR_TORCH_PYTHON)")


def exports() -> str:
    """Return the option that passes the paths of Python and of hadar_slurm to templates."""
    ours = Path(hadar_slurm.__file__).parents[1]
    return f"--export=ALL,HADAR_PYTHON={PYTHON},PYTHONPATH={ours},OMP_NUM_THREADS=1"


@pytest.mark.torch
def test_a_loop_of_pytorch_moves(site: Site) -> None:
    """The second run begins at the step that the first has saved."""
    needs("torch")
    job = move(site, "pytorch_loop.sbatch", steps=150)
    check_saved(site, job, 150)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("template", "modules"),
    [
        ("lightning_trainer.sbatch", ("torch", "safetensors", "lightning")),
        ("hf_trainer.sbatch", ("torch", "safetensors", "transformers", "accelerate")),
    ],
)
def test_a_trainer_s_loop_moves(site: Site, template: str, modules: tuple[str, ...]) -> None:
    """A job of a trainer library is migrated with each step trained once, in order."""
    needs(*modules)
    job = move(site, template, "--print-every=1", steps=150)
    printed = output(site, job)
    assert re.findall(r"^step (\d+)", printed, re.MULTILINE) == [str(step) for step in range(150)]
    assert re.search(r"^done: 150 steps", printed, re.MULTILINE)


def check_saved(site: Site, job: JobId, steps: int) -> int:
    """Fail unless a job's second run began at the step that the first saved; return the step."""
    printed = output(site, job)
    [saved] = re.findall(r"^saved at step (\d+)$", printed, re.MULTILINE)
    assert re.findall(r"^from step (\d+)", printed, re.MULTILINE) == ["0", saved]
    assert re.search(f"^done: {steps} steps", printed, re.MULTILINE)
    assert 0 < int(saved) < steps
    return int(saved)


def move(site: Site, template: str, *words: str, steps: int) -> JobId:
    """Run a training template to its end, with a migration on the way."""
    fast = site.occupy(**ALL_FAST)
    site.start()
    job = train(site, template, "--gpus=1", steps=steps, program=words)
    site.free(*fast.values())
    site.until_completed(job, limit_s=TRAINING_S)
    check_moved(site, job)
    return job


def train(
    site: Site, template: str, *options: str, steps: int, program: Sequence[str] = ()
) -> JobId:
    """Submit a training of ten steps a second that may be migrated, and wait until it trains."""
    job = submit(
        *(site, template, "--hadar-checkpoint=yes", exports(), *options),
        steps=steps,
        program=["--step-seconds=0.1", f"--total-steps={steps}", *program],
    )
    eventually(
        lambda: site.steps(job) > 0,
        lambda: output(site, job) + site.told(job),
        limit_s=TRAINING_S,
    )
    return job


@pytest.mark.torch
@pytest.mark.parametrize(
    "asked", ["--gpus=2", pytest.param("--gpus-per-node=2", marks=pytest.mark.slow)]
)
def test_torchrun_starts_on_other_nodes_each_time(site: Site, asked: str) -> None:
    """A gang runs on two nodes, then on one; torchrun gets the shape of each run."""
    needs("torch")
    fast = site.occupy(**ALL_FAST | {"n3": "gpu:3", "n4": "gpu:3", "n5": "gpu:4"})
    site.start()
    job = train(site, "torchrun_nodes.sbatch", "--hadar-gang=2", asked, steps=150)
    site.free(fast["n1"])
    site.until_completed(job, limit_s=TRAINING_S)
    saved = check_saved(site, job, 150)
    assert "from step 0: 2 processes on 2 nodes\n" in output(site, job)
    assert f"from step {saved}: 2 processes on 1 nodes\n" in output(site, job)
    assert gangs(site, job) == [{"n3": {"p100": 1}, "n4": {"p100": 1}}, {"n1": {"v100": 2}}]
