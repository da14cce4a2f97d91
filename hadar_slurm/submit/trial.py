"""Runs sbatch and reads its answer, and tries a held submission before it is made.

Slurm checks a job against its nodes only without a hold (observed with 22.05.8): an impossible one
would be accepted, and found impossible when hadard releases it. So hadar-sbatch asks first, by
`--test-only`. Slurm refuses such a trial also of jobs that it would let wait, for nodes that are
down or for a reservation. Then the job is submitted without its hold, so that sbatch itself refuses
or accepts it, and held at once where it is accepted: it could not start now.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence

from hadar_slurm.errors import SbatchNotFound, SlurmError
from hadar_slurm.slurm.client.runner import Runner, is_unreachable
from hadar_slurm.submit.decision import Call
from hadar_slurm.submit.real_sbatch import RealSbatch

# A trial that takes longer is given up, and the job is submitted.
_TRIAL_S = 5.0


def is_refused(
    sbatch: RealSbatch, argv: Sequence[str], environment: Mapping[str, str], *, is_piped: bool
) -> bool:
    """Return whether Slurm refuses a trial of this call; False where it does not answer in time.

    `is_piped`: the script is on standard input, which is put back to its beginning.
    """
    name, *words = argv
    trial = (name, "--test-only", *words)
    try:
        done = _done(sbatch, trial, environment, timeout_s=_TRIAL_S, stderr=subprocess.PIPE)
    except subprocess.TimeoutExpired:
        return False
    finally:
        if is_piped:
            os.lseek(0, 0, os.SEEK_SET)
    return done.returncode != 0 and not is_unreachable(done.stderr.decode(errors="replace"))


def submit(
    sbatch: RealSbatch, call: Call, environment: Mapping[str, str], *, is_refused: bool
) -> tuple[int, str, Call]:
    """Run sbatch, and return its status, what it printed, and the call as it then stands.

    A job that `is_refused` is submitted without its hold, and held once Slurm has accepted it.
    """
    done = _done(sbatch, call.unheld if is_refused else call.argv, environment)
    # For a process that a signal ended, the status that a shell gives.
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode
    answer = os.fsdecode(done.stdout)
    if is_refused and status == 0 and not _hold(answer):
        call = call.left("Slurm did not hold it")
    return status, answer, call


def _hold(answer: str) -> bool:
    """Hold the job that sbatch's answer names; return whether Slurm has."""
    job = (answer.split() or [""])[-1].partition(";")[0]
    if not job.isdigit():
        return False
    try:
        Runner(timeout_s=10).run(["scontrol", "uhold", job])
    except SlurmError:
        return False
    return True


def _done(
    sbatch: RealSbatch,
    argv: Sequence[str],
    environment: Mapping[str, str],
    *,
    timeout_s: float | None = None,
    stderr: int | None = None,
) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            argv,
            executable=sbatch.path,
            env={**environment, **sbatch.variables},
            stdout=subprocess.PIPE,
            stderr=stderr,
            timeout=timeout_s,
            close_fds=False,  # the script may be /dev/fd/63
            check=False,
        )
    except OSError as error:
        raise SbatchNotFound(f"cannot execute {sbatch.path}: {error.strerror}") from error
