"""Runs sbatch and reads its answer, and tries a held submission before it is made.

Slurm checks a job against its nodes only without a hold (observed with 22.05.8): an impossible one
would be accepted, and found impossible when hadard releases it. So hadar-sbatch asks first, by
`--test-only`. Slurm refuses such a trial also of jobs that it would let wait, for nodes that are
down or for a reservation. Then the job is submitted without its hold, so that sbatch itself refuses
or accepts it, and held at once where it is accepted: it could not start now.

A site's filter or a wrapper of sbatch may print more, and change the exit status. So the words of a
trial count before its status, and where the answer has more than the number of the job, Slurm is
asked which of the numbers in it is a job of this user, described as in the call.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from hadar_slurm.errors import SlurmError
from hadar_slurm.slurm.client.runner import Runner, is_unreachable
from hadar_slurm.submit.decision import Call
from hadar_slurm.submit.real_sbatch import RealSbatch, SbatchNotFound
from hadar_slurm.submit.request import SbatchRequest

# With these reasons Slurm accepts a job that it does not start as it was submitted.
_NEVER = ("PartitionConfig", "PartitionNodeLimit", "PartitionTimeLimit", "BadConstraints")
# sbatch's answer, without and with --parsable.
_SENTENCE = re.compile(r"Submitted batch job (\d+)")
_COLOUR = r"\x1b\[[\d;]*m"
_NUMBER = re.compile(rf"^(?:{_COLOUR})*(\d+(?:;[^\s\x1b]+)?)(?:{_COLOUR}|\s)*$", re.MULTILINE)
_SQUEUE = ("squeue", "--me", "-h", "-t", "all", "-o", "%F|%r|%k")
_ROW = re.compile(r"^(\d+)\|([^|\n]*)\|(.*)$", re.MULTILINE)
# What a trial says of a job that could start, and of one that is refused.
_ACCEPTED, _REFUSED = " to start at ", "allocation failure: "
# A trial of Slurm's own sbatch that takes longer is given up, and the job is submitted.
_TRIAL_S = 5.0


class SbatchAnswer(NamedTuple):
    """sbatch's status and output, the call as it then stands, and `JOB` or `JOB;CLUSTER`."""

    status: int
    answer: str
    call: Call
    # "": there is none, or it is not known.
    job: str


def tried(
    request: SbatchRequest, sbatch: RealSbatch, call: Call, environment: Mapping[str, str]
) -> tuple[Call, SbatchAnswer | None]:
    """Return the call in the place of one, by what Slurm would do with it without a hold.

    One that is held, or that hadar-sbatch has limited to one GPU type. The second value is None but
    where a wrapper of sbatch does not pass `--test-only` on: then the trial has submitted the job.
    """
    environment = {**environment, **call.variables}
    done = trial_of(sbatch, call.unheld, environment, is_piped=request.script_name == "")
    if done is None:
        return call, None
    if _has_submitted(done, call):
        sys.stderr.write(done.stderr.decode(errors="replace"))
        submitted = _answer(done, call._replace(is_held_late=call.is_held))
        return submitted.call, submitted
    if not is_refused(done):
        return call, None
    # With these sbatch returns when the job has ended, or prints no job id: it could not be held.
    is_final = not call.is_held or {"wait", "quiet"} & request.values.keys()
    if call.otherwise is not None and is_final:
        return call.otherwise, None
    return call._replace(is_held_late=True), None


def trial_of(
    sbatch: RealSbatch, argv: Sequence[str], environment: Mapping[str, str], *, is_piped: bool
) -> subprocess.CompletedProcess[bytes] | None:
    """Try a call; return None where Slurm's sbatch has no answer in time.

    A wrapper of sbatch, which may submit, has as long as it takes. `is_piped`: the script is on
    standard input, which is put back to its beginning.
    """
    name, *words = argv
    words, limit_s = [name, "--test-only", *words], None if sbatch.variables else _TRIAL_S
    try:
        return _done(sbatch, words, environment, timeout_s=limit_s, stderr=subprocess.PIPE)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if is_piped:
            os.lseek(0, 0, os.SEEK_SET)


def _has_submitted(done: subprocess.CompletedProcess[bytes], call: Call) -> bool:
    """Return whether what was to be a trial has submitted the job, by what it alone prints.

    A number alone only where it is that of a job with this description.
    """
    answer, said = os.fsdecode(done.stdout), _words(done)
    if _ACCEPTED in said or _REFUSED in said:
        return False
    seen = _seen(_numbers(done), call) if _NUMBER.fullmatch(answer) else None
    return bool(_SENTENCE.search(answer) or (seen and seen.number))


def is_refused(done: subprocess.CompletedProcess[bytes]) -> bool:
    """Return whether Slurm refuses what was tried."""
    said = _words(done)
    is_failed = _REFUSED in said or (done.returncode != 0 and _ACCEPTED not in said)
    return is_failed and not is_unreachable(said)


def _words(done: subprocess.CompletedProcess[bytes]) -> str:
    return (done.stdout + done.stderr).decode(errors="replace")


def submit(sbatch: RealSbatch, call: Call, environment: Mapping[str, str]) -> SbatchAnswer:
    """Run sbatch, and hold the job that it names if that is to be held late."""
    argv = call.unheld if call.is_held_late else call.argv
    return _answer(_done(sbatch, argv, {**environment, **call.variables}), call)


def _numbers(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    """Return what may be the job in sbatch's answer, each `JOB` or `JOB;CLUSTER`."""
    answer = os.fsdecode(done.stdout)
    return [*_NUMBER.findall(answer), *_SENTENCE.findall(answer)]


def _answer(done: subprocess.CompletedProcess[bytes], call: Call) -> SbatchAnswer:
    # For a process that a signal ended, the status that a shell gives.
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode
    answer, texts = os.fsdecode(done.stdout), _numbers(done)
    # No wrapper prints the name of another cluster, whose jobs are not seen here.
    job = next((text for text in reversed(texts) if ";" in text), texts[-1] if texts else "")
    is_clear = ";" in job or (status == 0 and _NUMBER.fullmatch(answer) is not None)
    job = job if is_clear or status == 0 else ""
    if call.is_held_late or not is_clear:
        seen = _seen(texts, call)
        job = job if seen is None else seen.text
        if call.is_held_late and (job or status == 0) and (why := _hold(seen)):
            call = call.left(why)
    return SbatchAnswer(status, answer, call, job)


class _Seen(NamedTuple):
    """The job of this user that sbatch's answer names; the defaults if it names none."""

    number: int = 0
    text: str = ""
    reason: str = ""


def _seen(numbers: Sequence[str], call: Call) -> _Seen | None:
    """Return the newest of the jobs with these numbers that the call may have submitted.

    None where Slurm does not say.
    """
    if not (texts := {text.partition(";")[0]: text for text in numbers}):
        return _Seen()
    try:
        rows = _ROW.findall(Runner(timeout_s=10).run(_SQUEUE))
    except SlurmError:
        return None
    own = {word for word in call.argv if word.startswith("--comment=")}
    seen = [
        _Seen(int(job), texts[job], reason)
        for job, reason, comment in rows
        if job in texts and (call.description is None or f"--comment={comment}" in own)
    ]
    return max(seen, default=_Seen()) if rows else None


def _hold(seen: _Seen | None) -> str:
    """Hold a job; return why it is not held, "" if it is."""
    if seen is None or not seen.number:
        return "Slurm did not hold it"
    if seen.reason in _NEVER:
        return f"Slurm does not start it ({seen.reason})"
    runner, job = Runner(timeout_s=10), str(seen.number)
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
            sbatch.words(argv),
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
