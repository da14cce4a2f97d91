"""How long hadar-sbatch takes until it has become sbatch: whole processes, beside a bare Python.

    python benchmarks/sbatch_startup.py [--runs 41]

Prints the median of wall time and of processor time, in milliseconds. An sbatch and a sinfo that
end at once stand in for Slurm's: what Slurm takes is not included, also for a held job's trial.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from hadar_slurm.state.heartbeat import Heartbeat, write_heartbeat

OURS = ("--hadar-model=A3C", "--hadar-steps=100")
# hadard is alive: the job is tried by `sbatch --test-only`, and held.
HELD = "a managed job"
CASES = {
    "bare Python": ("-c", "pass"),
    "hadar-sbatch --help": ("-m", "hadar_slurm.cli.sbatch", "--help"),
    "a plain job": ("-m", "hadar_slurm.cli.sbatch", "--wrap=true"),
    "no hadard is seen": ("-m", "hadar_slurm.cli.sbatch", "--gpus=1", "--time=5", "--wrap=true"),
    "described, not held": ("-m", "hadar_slurm.cli.sbatch", *OURS, "--wrap=true"),
    HELD: ("-m", "hadar_slurm.cli.sbatch", *OURS, "--wrap=true"),
}


def run_once(words: Sequence[str], environment: dict[str, str]) -> tuple[float, float]:
    """Return the wall and processor time of one process, in seconds."""
    start_s = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - start_s
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(words)}: status {process.returncode}")
    return wall_s, used.ru_utime + used.ru_stime


def main() -> None:
    """Time each case in turns, so that a busy moment of the machine meets all alike."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=41)
    runs: int = parser.parse_args().runs
    times: dict[str, list[tuple[float, float]]] = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as directory:
        for name in ("sbatch", "sinfo"):
            path = Path(directory) / name
            path.write_text("#!/bin/sh\n")
            path.chmod(0o755)
        environment = {**os.environ, "PATH": f"{directory}:/usr/bin:/bin"}
        # Modules are compiled once, as they are where the package is installed.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        beat = Heartbeat(1, "cluster", time.time() + 86_400.0, f"{directory}/spool", None)
        write_heartbeat(Path(directory), beat)
        for turn in range(runs + 1):
            for case, words in CASES.items():
                place = directory if case == HELD else f"{directory}/none"
                took = run_once(words, {**environment, "HADAR_RUN_DIR": place})
                if turn:
                    times[case].append(took)
    for case, found in times.items():
        wall, used = (median(column) * 1e3 for column in zip(*found, strict=True))
        print(f"{case:20}  {wall:6.0f} ms wall  {used:6.0f} ms of a core")


if __name__ == "__main__":
    main()
