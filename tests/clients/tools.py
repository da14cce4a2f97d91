"""The tools, and the outcome of their runs: their output, and their jobs as Slurm has them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from integration.site import Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.jobspec.description import Description, decode

ENVIRONMENTS = Path(__file__).parents[2] / "build" / "clients"
WORKLOADS = Path(__file__).parent / "workloads"
# The model that each workload names for one of its jobs by an option of hadar-sbatch.
MODEL = "a-model-of-my-own"
# snakemake takes half a minute here, mostly between two polls of its jobs.
LIMIT_S = 240.0


@dataclass(frozen=True)
class Tool:
    """A tool, and how many jobs with and without GPUs its workload submits.

    With `cancels` the tool ends its jobs by scancel, and some may end by themselves just before.
    """

    name: str
    num_gpu_jobs: int
    num_other_jobs: int
    cancels: bool = False

    @property
    def python(self) -> Path:
        """Return the Python of its environment."""
        return ENVIRONMENTS / self.name / "bin" / "python"


TOOLS = (
    Tool("submitit", num_gpu_jobs=5, num_other_jobs=1),
    Tool("dask", num_gpu_jobs=6, num_other_jobs=0, cancels=True),
    Tool("parsl", num_gpu_jobs=2, num_other_jobs=0, cancels=True),
    Tool("snakemake", num_gpu_jobs=3, num_other_jobs=1),
    Tool("reframe", num_gpu_jobs=6, num_other_jobs=1),
)


@dataclass(frozen=True)
class ClientJob:
    """A job of a tool, as Slurm shows it after the tool has ended."""

    id: JobId
    state: str
    num_gpus: int
    has_started: bool
    comment: str

    @property
    def description(self) -> Description | None:
        """Return the description that hadar-sbatch added, None without one."""
        return decode(self.comment)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a tool's run; `said` is the output of its workload."""

    said: Mapping[str, Any]
    jobs: tuple[ClientJob, ...]


class Workplace:
    """A login node of the cluster, where tools run with Slurm's sbatch or with the site's own."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._programs = site.directory / "programs"
        self._programs.mkdir()
        # snakemake starts srun without SLURM_CONF, and this slurm.conf is not in the default place.
        srun = self._programs / "srun"
        conf = site.cluster.slurm_conf
        srun.write_text(f'#!/bin/sh\nSLURM_CONF={conf} exec /usr/bin/srun "$@"\n')
        srun.chmod(0o755)
        self._site_wide = site.directory / "site-wide"
        self._site_wide.mkdir()
        (self._site_wide / "sbatch").symlink_to(Path(sys.executable).with_name("hadar-sbatch"))

    def run(self, tool: Tool, *, by: str, workload: str = "jobs") -> Outcome:
        """Run a tool's workload to its end, with the sbatch of the "site", else with Slurm's."""
        known = self._jobs()
        directory = self.site.directory / by
        directory.mkdir()
        places = [str(tool.python.parent), str(self._programs), self.site.environment["PATH"]]
        if by == "site":
            places.insert(0, str(self._site_wide))
        variables = {
            "PATH": os.pathsep.join(places),
            "HOME": str(directory),
            "HADAR_OPTIONS": f"--hadar-model={MODEL}" if by == "site" else "",
        }
        # The paths of unix sockets have at most 107 characters, and those of pytest may be longer.
        with (
            tempfile.TemporaryDirectory(prefix="hadar-test-") as temporary,
            (directory / "errors").open("wb") as errors,
        ):
            done = subprocess.run(
                [tool.python, WORKLOADS / f"{tool.name}_{workload}.py"],
                cwd=directory,
                env={**_without_python(self.site.environment), **variables, "TMPDIR": temporary},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                timeout=LIMIT_S,
                check=False,
            )
        assert done.returncode == 0, (directory / "errors").read_text()[-5000:]
        self._until_all_have_ended()
        jobs = self._jobs()
        new = tuple(jobs[job] for job in sorted(jobs.keys() - known.keys()))
        return Outcome(json.loads(done.stdout), new)

    def placed(self) -> set[JobId]:
        """Return the jobs that hadard has placed and released."""
        return {
            JobId(action["job"])
            for line in self.site.lines()
            for action in line["actions"]
            if action["do"] == "start" and action["status"] == "done"
        }

    def _until_all_have_ended(self) -> None:
        """Wait until the jobs that the tool cancelled at its end have ended."""
        eventually(
            lambda: not any(row.is_live for row in self.site.queue().values()),
            lambda: self.site.told(*self.site.queue()),
        )

    def _jobs(self) -> dict[JobId, ClientJob]:
        details = self.site.details()
        return {
            key: ClientJob(
                key,
                row.state,
                int((re.search(r"gres/gpu=(\d+)", details[JobId(row.raw_id)]) or "00")[1]),
                bool(row.nodes),
                row.comment,
            )
            for key, row in self.site.queue().items()
        }


def _without_python(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables that let Python find the tests' packages."""
    return {k: v for k, v in environment.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
