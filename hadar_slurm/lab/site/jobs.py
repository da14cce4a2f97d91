"""The jobs of the test-bed: work that takes longer on slower GPU types, and its submission."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from hadar_slurm.devcluster.config import NodeShape

# Time of a step on each type, relative to the fastest.
PACES = {"v100": 1, "p100": 2, "k80": 4}
_STEPS_PER_S = 2
# Names of nodes say their type, which the jobs' script reads.
NODES = (
    NodeShape("v100-1", {"v100": 4}),
    NodeShape("v100-2", {"v100": 4}),
    NodeShape("p100-1", {"p100": 2}),
    NodeShape("p100-2", {"p100": 2}),
    NodeShape("k80-1", {"k80": 2}),
    NodeShape("k80-2", {"k80": 2}),
)
NUM_GPUS = sum(node.num_gpus for node in NODES)

# A gang is as fast as its slowest GPU. A movable job keeps its step in a file and reports as
# job_templates/bash_trap.sbatch does; it waits on a descriptor, which needs no process for a step.
_SCRIPT = r"""#!/bin/bash
#SBATCH --output=/dev/null
#SBATCH --open-mode=append
steps=$1
pace=1
case $SLURM_JOB_NODELIST in *k80*) pace=4 ;; *p100*) pace=2 ;; esac
if [[ $2 != movable ]]; then
    [[ $2 != even ]] || pace=1
    tenths=$((steps * pace * 5))
    exec sleep $((tenths / 10)).$((tenths % 10))
fi
asked=
trap 'asked=${asked:-save}' USR1
trap 'asked=end' TERM
kept=step-$SLURM_JOB_ID
step=$(cat "$kept" 2>/dev/null || echo 0)
report() (
    umask 022
    own=${HADAR_SPOOL:-/nonexistent}/$SLURM_JOB_ID
    words='{"version":1,"restart":%d,"state":"%s","steps_done":%d,"listens":true}\n'
    mkdir -p "$own" && printf "$words" "${SLURM_RESTART_COUNT:-0}" "$1" "$step" >"$own/new" &&
        mv "$own/new" "$own/progress.json"
) 2>/dev/null
report running
exec 9<> <(:)
while ((step < steps)); do
    read -r -t $((pace / 2)).$((pace % 2 * 5)) -u 9
    ((++step))
    ((step % 10)) || report running
    [[ $asked ]] || continue
    echo "$step" >"$kept"
    report saved
    for ((wait = 0; wait < 100; wait++)); do
        [[ $asked == end ]] && exit 143
        read -r -t 0.1 -u 9
    done
    asked=
    report running
done
trap '' USR1
report done
"""


@dataclass(frozen=True, slots=True)
class UserJob:
    """One job of a user: GPUs, and its seconds on the fastest GPU type."""

    work_s: float
    num_gpus: int = 1
    is_movable: bool = False
    is_on_one_node: bool = False
    # It takes the same time on each type.
    is_even: bool = False
    time_limit_min: int = 10
    # Further options of sbatch.
    options: tuple[str, ...] = ()

    @property
    def steps(self) -> int:
        """Return the steps of the job, at least one."""
        return max(1, math.ceil(self.work_s * _STEPS_PER_S))

    def words(self, script: Path, *, with_hadar: bool) -> list[str]:
        """Return the options, script and arguments with which the job is submitted.

        Both ways request the same of Slurm; with hadar-sbatch the job also states its throughput
        on each GPU type, its steps and whether it may be migrated.
        """
        described = []
        if with_hadar:
            paces = dict.fromkeys(PACES, 1) if self.is_even else PACES
            told = ",".join(f"{name}={_STEPS_PER_S / pace:g}" for name, pace in paces.items())
            movable = "yes" if self.is_movable else "no"
            described = [
                f"--hadar-throughput={told}",
                f"--hadar-steps={self.steps}",
                f"--hadar-checkpoint={movable}",
            ]
        gpus = f"--gpus={self.num_gpus}"
        if self.is_on_one_node:
            gpus = f"--gpus-per-node={self.num_gpus}"
        return [
            *described,
            gpus,
            *(["--nodes=1"] if self.is_on_one_node else []),
            f"--time={self.time_limit_min}",
            *self.options,
            str(script),
            str(self.steps),
            "movable" if self.is_movable else "even" if self.is_even else "",
        ]


def write_script(directory: Path) -> Path:
    """Write the jobs' batch script into a directory and return its path."""
    path = directory / "work.sh"
    path.write_text(_SCRIPT, encoding="utf-8")
    path.chmod(0o755)
    return path
