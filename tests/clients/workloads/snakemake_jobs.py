"""A user's program with snakemake: runs the Snakefile of this directory with its Slurm plugin."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

shutil.copy(Path(__file__).with_name("Snakefile"), "Snakefile")
argv = [
    *(sys.executable, "-m", "snakemake", "--executor", "slurm", "--jobs", "4", "--keep-going"),
    *("--slurm-array-jobs", "train", "--slurm-init-seconds-before-status-checks", "12"),
    *("--seconds-between-status-checks", "1", "--latency-wait", "20"),
    "--default-resources",
    *("slurm_account=local", "slurm_partition=main", "runtime=5", "mem_mb=100"),
]
done = subprocess.run(argv, capture_output=True, text=True, check=False)
Path("snakemake.log").write_text(done.stdout + done.stderr, encoding="utf-8")
said = {
    "status": done.returncode,
    "summary": Path("summary.txt").read_text(encoding="utf-8").splitlines(),
    "broken": Path("broken.txt").exists(),
    "failed rules": sorted(set(re.findall(r"Error in rule (\w+)", done.stderr))),
    "steps": re.findall(r"\d+ of \d+ steps \(\d+%\) done", done.stderr)[-1:],
}
json.dump(said, sys.stdout)
