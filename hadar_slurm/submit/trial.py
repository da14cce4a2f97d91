"""Runs sbatch and reads its answer, and tries a held submission before it is made.

Slurm checks a job against its nodes only without a hold (observed with 22.05.8): an impossible one
would be accepted, and found impossible when hadard releases it. So hadar-sbatch asks first, by
`--test-only`. Slurm refuses such a trial also of jobs that it would let wait, for nodes that are
down or for a reservation. Then the job is submitted without its hold, so that sbatch itself refuses
or accepts it, and held at once where it is accepted: it could not start now.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from hadar_slurm.errors import SlurmError
from hadar_slurm.slurm.client.runner import Runner, is_unreachable
from hadar_slurm.submit.decision import Call
from hadar_slurm.submit.real_sbatch import RealSbatch, SbatchNotFound
from hadar_slurm.submit.request import SbatchRequest

# With these reasons Slurm accepts a job that it does not start as it was submitted.
_NEVER = ("PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints")
# sbatch's answer, without and with --parsable; another may be a line of a wrapper.
_SENTENCE = re.compile(r"Submitted batch job (\d+)")
_NUMBER = re.compile(r"^(?:\x1b\[[\d;]*m)*(\d+(?:;\S+)?)\s*$", re.MULTILINE)
# A trial that takes longer is given up, and the job is submitted.
_TRIAL_S = 5.0


def tried(
    request: SbatchRequest, sbatch: RealSbatch, call: Call, environment: Mapping[str, str]
) -> Call:
    """Return the call in the place of one, by what Slurm would do with it without a hold.

    One that is held, or that hadar-sbatch has limited to one GPU type.
    """
    environment = {**environment, **call.variables}
    if not is_refused(sbatch, call.unheld, environment, is_piped=request.script_name == ""):
        return call
    # With these sbatch returns when the job has ended, or prints no job id: it could not be held.
    is_final = not call.is_held or {"wait", "quiet"} & request.values.keys()
    if call.otherwise is not None and is_final:
        return call.otherwise
    return call._replace(is_held_late=True)


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


def submit(sbatch: RealSbatch, call: Call, environment: Mapping[str, str]) -> tuple[int, str, Call]:
    """Run sbatch, and return its status, what it printed, and the call as it then stands."""
    argv = call.unheld if call.is_held_late else call.argv
    done = _done(sbatch, argv, {**environment, **call.variables})
    # For a process that a signal ended, the status that a shell gives.
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode
    answer = os.fsdecode(done.stdout)
    if call.is_held_late and status == 0 and (why := _hold(answer)):
        call = call.left(why)
    return status, answer, call


def submitted(answer: str) -> str:
    """Return the `JOB` or `JOB;CLUSTER` in sbatch's answer, "" if there is none.

    A site's filter or a wrapper of sbatch may print more lines.
    """
    found = _SENTENCE.findall(answer) or _NUMBER.findall(answer)
    return str(found[-1]) if found else ""


def _hold(answer: str) -> str:
    """Hold the job that sbatch's answer names; return why it is not held, "" if it is."""
    job, runner = submitted(answer).partition(";")[0], Runner(timeout_s=10)
    if not job:
        return "Slurm did not hold it"
    try:
        reasons = set(runner.run(["squeue", "-h", "-j", job, "-o", "%r"]).split())
        if never := reasons.intersection(_NEVER):
            return f"Slurm does not start it ({', '.join(sorted(never))})"
    except SlurmError:
        pass  # it is held even so
    try:
        runner.run(["scontrol", "uhold", job])
    except SlurmError:
        # 22.05.8 has held it even where it says that it cannot.
        with suppress(SlurmError):
            runner.run(["scontrol", "release", job])
        return "Slurm did not hold it"
    return ""


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
