"""A login node with fake sbatch and sinfo on PATH, on which hadar-sbatch runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hadar_slurm.state.heartbeat import Heartbeat, write_heartbeat

# Prints its arguments, script and variables. The script is the file in the last argument, or
# standard input; the comment is put into a file, for SQUEUE. Ends with the status in
# STATUS_OF_SBATCH; a trial, with that in STATUS_OF_TRIAL.
SBATCH = """
import json, os, sys
last = sys.argv[-1]
text = open(last).read() if os.path.exists(last) else sys.stdin.read()
if "--test-only" in sys.argv[:3]:
    status = int(os.environ.get("STATUS_OF_TRIAL", "0"))
    word = "allocation failure" if status else "sbatch: Job 17 to start at 2026-11-29T15:38:01"
    print(f"{word}: {text}", file=sys.stderr)
    sys.exit(status)
comment = next((word for word in sys.argv if word.startswith("--comment=")), "")
print(comment.removeprefix("--comment="), end="", file=open("comment", "w"))
spool, copies = os.environ.get("HADAR_SPOOL"), os.environ.get("HADAR_COPIES")
if "--parsable" in sys.argv:
    print("17;cluster")
    sys.exit(int(os.environ.get("STATUS_OF_SBATCH", "0")))
print(json.dumps({"argv": sys.argv[1:], "script": text, "spool": spool, "copies": copies}))
print("sbatch: a word of its own", file=sys.stderr)
sys.exit(int(os.environ.get("STATUS_OF_SBATCH", "0")))
"""
# Shows the job that was submitted last, 17 or 9, and others of the same user.
SQUEUE = """
import os
comment = open("comment").read() if os.path.exists("comment") else "(null)"
print(f"Welcome\\n9|None|{comment}\\n17|Resources|{comment}")
print("7|JobHeldUser|(null)\\n2026|None|(null)\\n2027;c|PartitionConfig|x")
"""
# Each line of GPUS is `node|GPUs|partition`; nodes have features named after them, and partitions
# the time limits of LIMITS, `default|maximum`.
SINFO = """
import os, sys
for line in os.environ["GPUS"].splitlines():
    print(line + "|" + os.environ.get("LIMITS", "n/a|infinite") + "|" + line.split("|")[0])
sys.exit(int(os.environ.get("STATUS_OF_SINFO", "0")))
"""


@dataclass
class Site:
    """A directory with commands and a heartbeat, in which hadar-sbatch is run."""

    root: Path

    def command(self, name: str, text: str) -> None:
        """Put a Python program on PATH."""
        path = self.root / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!{sys.executable}\n{text}", encoding="utf-8")
        path.chmod(0o755)

    def beat(
        self,
        *,
        good_for_s: float = 600.0,
        partitions: tuple[str, ...] | None = None,
        steered: tuple[str, ...] = (),
        enrols: bool = False,
    ) -> None:
        """Write a heartbeat."""
        until_s, spool = time.time() + good_for_s, "/spool/hadar"
        beat = Heartbeat(1, "cluster", until_s, spool, partitions, steered=steered, enrols=enrols)
        write_heartbeat(self.root, beat)

    def run(
        self,
        *words: str,
        stdin: str = "",
        program: tuple[str, ...] = ("-m", "hadar_slurm.cli.sbatch"),
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run hadar-sbatch in this directory."""
        return subprocess.run(
            [sys.executable, *program, *words],
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            check=False,
            timeout=60,
            cwd=self.root,
            env={**self.environment(), **environment},
        )

    def environment(self) -> dict[str, str]:
        """Return an environment without variables of Slurm and Hadar, except this directory's."""
        plain = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("SBATCH_", "SLURM_", "HADAR_", "COV_"))
        }
        return {
            **plain,
            "PATH": str(self.root / "bin"),
            "HADAR_RUN_DIR": str(self.root),
            "GPUS": "n1|gpu:V100:4(S:0-1)|main*\nn2|gpu:K80:2|main*\nn3|gpu:K80:2|other",
        }


def call_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the call of sbatch that a run has printed; fail without one."""
    assert done.stdout, done.stderr
    call: dict[str, Any] = json.loads(done.stdout)
    return call
