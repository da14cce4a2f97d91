"""Has `hadar compare` judge real plays as a site's history: what it says, and how far it is off."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hadar_slurm.lab.comparison import FIRST_DAY
from hadar_slurm.lab.study.gains.near import FAR
from slurm_fidelity.history import cluster_text, history
from slurm_fidelity.jobs import MINUTE_S, JobList, Play
from slurm_fidelity.settings import qos_words

# The plain Slurms of a site's history, where nothing is said of the site.
USUAL = tuple(name for name in FIRST_DAY if name.startswith("slurm"))
# How far ahead the usual plain Slurms look.
_WEEK_S = 7 * 86_400
_FIRST_IN_FIRST_OUT = "fairshare=no:weight_age=0"


@dataclass(frozen=True, slots=True)
class Nearest:
    """The plain Slurm whose mean JCT is nearest to the recorded one, over which it is `off`."""

    policy: str
    mean_jct_s: float
    # Simulated over recorded, minus 1.
    off: float

    @property
    def may_judge(self) -> bool:
        """Whether `hadar compare` states a gain beside it."""
        return abs(self.off) <= FAR


@dataclass(frozen=True, slots=True)
class History:
    """One play as a history: the nearest of the usual plain Slurms, and with the Slurm's words."""

    jobs: JobList
    recorded_s: float
    usual: Nearest
    # None where the words of the list's Slurm are the usual ones.
    described: Nearest | None


def described(jobs: JobList) -> str:
    """Return the plain Slurm as which an operator would describe a list's; "" for a usual one."""
    words = ["gpus"] * (jobs.form == "gpus" and any(job.gpus > 1 for job in jobs.jobs))
    words += [_FIRST_IN_FIRST_OUT] * (jobs.fairshare == "no")
    window_s = jobs.bf_window_min * MINUTE_S * jobs.compression
    words += [f"bf_window={window_s}s"] * (window_s < _WEEK_S)
    words += qos_words(jobs)
    words += [f"weight_qos={jobs.weight_qos}"] * (jobs.weight_qos > 0)
    if words and jobs.form == "list":
        words.insert(0, "list")
    return ":".join(["slurm", *words]) if words else ""


def judged(jobs: JobList, play: Play, directory: Path) -> History:
    """Return what `hadar compare` makes of a play; its files are in a directory of its own."""
    own = described(jobs)
    runs = compared(jobs, play, [*USUAL, *([own] if own else [])], directory)
    found = [_nearest(run) for run in runs]
    usual = [each for each in found if each.policy in USUAL]
    return History(
        jobs,
        float(runs[0]["recorded"]["mean_jct_s"]),
        min(usual, key=lambda each: abs(each.off)),
        next((each for each in found if each.policy == own), None),
    )


def compared(
    jobs: JobList, play: Play, policies: Sequence[str], directory: Path
) -> list[dict[str, dict[str, float]]]:
    """Return the runs that `hadar compare` makes of a play's history."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{jobs.name}.sacct"
    path.write_text(history(jobs, play), encoding="utf-8")
    words = [str(path), *cluster_options(jobs), "--policy", ",".join(policies), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "hadar_slurm.cli.main", "compare", *words,
         "--output", str(directory / jobs.name)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return list(json.loads(done.stdout)["runs"])


def cluster_options(jobs: JobList) -> list[str]:
    """Return the options for a list's cluster."""
    return ["--cluster", cluster_text(jobs), "--gpus-per-node", str(jobs.pools[0].gpus)]


def _nearest(run: dict[str, dict[str, float]]) -> Nearest:
    was_s, is_s = run["recorded"]["mean_jct_s"], run["recorded"]["simulated_jct_s"]
    return Nearest(str(run["policy"]).partition(" ")[0], is_s, is_s / was_s - 1.0)


def record(found: Sequence[History]) -> list[dict[str, Any]]:
    """Return the histories for programs, those on which nothing may be said first."""
    trees = []
    for each in sorted(found, key=lambda each: (each.usual.may_judge, each.jobs.name)):
        tree: dict[str, Any] = {"list": each.jobs.name, "recorded_s": each.recorded_s}
        for kind, nearest in (("usual", each.usual), ("described", each.described)):
            said = asdict(nearest) | {"may_judge": nearest.may_judge} if nearest else None
            tree[kind] = said
        trees.append(tree)
    return trees
