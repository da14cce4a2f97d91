"""Write two histories of a site as sacct prints them: of jobs that have ended, and later ones.

    python benchmarks/site_history.py OUTPUT [--jobs 240] [--before 480] [--seed 0]

They are drawn, since public traces lack what the study needs together: users, job names, time
limits and the GPU types that jobs held. Each user has a few workloads, and the jobs of one last
about as long as each other: log-normal, two thirds within a factor of 2.2, with log-normal medians.
Limits are five times too long (log-normal, s = 0.8), and 40 % are the longest.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from random import Random

HEADING = "JobID|User|JobName|Submit|Start|ElapsedRaw|Timelimit|AllocTRES|ReqTRES|State"
MODELS = ("resnet50", "bert-base", "lstm", "vgg16", "gpt2", "deepspeech")
TYPES = {"v100": 0.4, "p100": 0.35, "k80": 0.25}
GANGS = {1: 0.7, 2: 0.15, 4: 0.15}
USERS, LONGEST_S, DAY_S = 14, 2 * 86_400, 86_400.0
# Of a user's workloads, and of the jobs of one.
MEDIAN_S, SIGMA_OF_WORKLOADS, SIGMA_OF_JOBS = 4000.0, 1.5, 0.8
_FIRST_S = 1_750_000_000.0


def histories(jobs: int, before: int, seed: int) -> tuple[str, str]:
    """Return the jobs that have ended before, and those to play."""
    draw = Random(f"site {seed}")
    workloads = []
    for number in range(USERS):
        for model in draw.sample(MODELS, draw.randint(1, 3)):
            median_s = MEDIAN_S * math.exp(draw.gauss(0.0, SIGMA_OF_WORKLOADS))
            workloads.append((f"user{number}", f"train-{model}", median_s))
    lines, at_s = list[str](), _FIRST_S
    for number in range(1, before + jobs + 1):
        # More by day than by night.
        rate = 1.0 + 0.8 * math.sin(2.0 * math.pi * at_s / DAY_S)
        at_s += draw.expovariate(rate / 900.0)
        user, name, median_s = draw.choice(workloads)
        elapsed_s = round(median_s * math.exp(draw.gauss(0.0, SIGMA_OF_JOBS)))
        elapsed_s = min(max(elapsed_s, 60), LONGEST_S)
        (gpu_type,) = draw.choices(list(TYPES), list(TYPES.values()))
        (gpus,) = draw.choices(list(GANGS), list(GANGS.values()))
        ratio = max(1.0, draw.lognormvariate(math.log(5.0), 0.8))
        limit_s = LONGEST_S if draw.random() < 0.4 else min(ratio * elapsed_s, LONGEST_S)
        lines.append(
            f"{number}|{user}|{name}|{at_s:.0f}|{at_s + 60:.0f}|{elapsed_s}|"
            f"{math.ceil(limit_s / 60)}|"
            f"cpu=8,gres/gpu={gpus},gres/gpu:{gpu_type}={gpus},node=1|gres/gpu={gpus}|COMPLETED"
        )
    former, later = lines[:before], lines[before:]
    return "\n".join([HEADING, *former]) + "\n", "\n".join([HEADING, *later]) + "\n"


def write(folder: Path, *, jobs: int, before: int, seed: int) -> tuple[Path, Path]:
    """Write before.sacct and site.sacct into a directory."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "before.sacct", folder / "site.sacct"
    for path, text in zip(paths, histories(jobs, before, seed), strict=True):
        path.write_text(text, encoding="utf-8")
    return paths


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--jobs", type=int, default=240)
    parser.add_argument("--before", type=int, default=480)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    for path in write(given.output, jobs=given.jobs, before=given.before, seed=given.seed):
        print(path)


if __name__ == "__main__":
    main()
