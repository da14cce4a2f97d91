"""hadar-sbatch as `sbatch` on a real cluster, for users and for jobs that submit jobs."""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from integration.site import Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.jobspec.description import decode

pytestmark = pytest.mark.slurm

GPU_JOB = "--gpus=1 --time=5 --wrap=true"


@pytest.fixture
def shared(site: Site) -> Site:
    """A site where `sbatch` is a link to the installed hadar-sbatch, first in PATH."""
    places = site.directory / "first"
    places.mkdir()
    (places / "sbatch").symlink_to(Path(sys.executable).with_name("hadar-sbatch"))
    site.environment["PATH"] = f"{places}{os.pathsep}{site.environment['PATH']}"
    return site


def sbatch(site: Site, *words: str) -> JobId:
    """Submit a job by `sbatch`, as the shell finds it, and return its id."""
    found = shutil.which("sbatch", path=site.environment["PATH"])
    assert found is not None
    assert Path(found).parent == site.directory / "first"
    done = site.run([found, *words])
    match = re.fullmatch(r"Submitted batch job (\d+)\n", done.stdout)
    assert match is not None, done.stderr
    return JobId(match[1])


def is_held_for_hadard(site: Site, job: str) -> bool:
    row = site.queue()[JobId(job)]
    description = decode(row.comment)
    return row.is_held_by_user and description is not None and description.is_held


def test_sbatch_submits_for_hadard_and_for_slurm(shared: Site) -> None:
    """A job with GPUs is held for hadard; one without GPUs starts without a description."""
    shared.vouch()
    assert is_held_for_hadard(shared, sbatch(shared, *GPU_JOB.split()))
    plain = sbatch(shared, "--wrap=exec sleep 600")
    shared.until_running(plain)
    assert shared.queue()[plain].comment == ""


def test_hadard_places_what_sbatch_submits(shared: Site) -> None:
    """hadard places a job without Hadar's options, and one that it submits on its node."""
    shared.start()
    told = shared.directory / "inner"
    inner = "sbatch --parsable --gpus=1 --time=5 --wrap='exec sleep 600'"
    outer = sbatch(shared, "--gpus=2", "--time=5", f"--wrap={inner} > {told}; exec sleep 600")
    shared.until_running(outer)
    eventually(lambda: told.exists() and told.read_text().endswith("\n"), "the job has submitted")
    job = JobId(told.read_text().strip())
    shared.until_running(job)
    for each in (outer, job):
        assert shared.tree(each) == shared.planned(each)


@pytest.mark.parametrize("option", ["--version", "--help", "--usage"])
def test_sbatch_answers_as_slurms(shared: Site, option: str) -> None:
    """--version, --help and --usage print exactly what Slurm's sbatch prints."""
    ours = shared.run([str(shared.directory / "first" / "sbatch"), option])
    theirs = shared.run(["/usr/bin/env", f"PATH={os.environ['PATH']}", "sbatch", option])
    assert (ours.returncode, ours.stdout, ours.stderr) == (
        theirs.returncode,
        theirs.stdout,
        theirs.stderr,
    )


def test_a_job_submits_a_job(shared: Site) -> None:
    """A job that a job submits is held for hadard; HADAR_SBATCH is not left in the environment."""
    shared.vouch()
    told = shared.directory / "inner"
    command = f"sbatch --parsable {GPU_JOB} > {told}; env > {told}.env"
    job = sbatch(shared, f"--wrap={command}")
    shared.until_completed(job)
    assert is_held_for_hadard(shared, told.read_text().strip())
    assert "HADAR_SBATCH" not in Path(f"{told}.env").read_text()


@pytest.mark.parametrize("around", [["salloc", "-N1"], ["srun", "-N1"]])
def test_an_allocation_submits_a_job(shared: Site, around: list[str]) -> None:
    """A job that is submitted within salloc or srun is held for hadard."""
    shared.vouch()
    done = shared.run([*around, "sbatch", "--parsable", *GPU_JOB.split()])
    assert done.returncode == 0, done.stderr
    assert is_held_for_hadard(shared, done.stdout.strip())
