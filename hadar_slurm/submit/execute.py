"""Executes sbatch with the signals and the environment of the user's shell. Imports little."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import NoReturn

from hadar_slurm.submit.real_sbatch import (
    TRIED_VARIABLE,
    RealSbatch,
    SbatchNotFound,
    is_second_call,
)

# Equal to job_files.COPIES_VARIABLE, which takes longer to import.
_COPIES_VARIABLE = "HADAR_COPIES"


def become(sbatch: RealSbatch, argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by sbatch; raises SbatchNotFound if it cannot be executed."""
    # Python ignores these two, and an exec keeps ignored signals ignored.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(sbatch.path, sbatch.words(argv), {**environment, **sbatch.variables})
    except OSError as error:
        raise SbatchNotFound(f"cannot execute {sbatch.path}: {error.strerror}") from error


def user_environment() -> dict[str, str]:
    """Return the user's environment, which sbatch may pass on to the job."""
    environment = dict(os.environ)
    if not is_second_call(environment):
        # A job submitted from within a copy is not a copy.
        environment.pop(_COPIES_VARIABLE, None)
    environment.pop(TRIED_VARIABLE, None)
    # Python changes this at its start if the locale is C (PEP 538).
    if "LC_CTYPE" in environment:
        try:
            with open("/proc/self/environ", "rb") as file:
                pairs = os.fsdecode(file.read()).split("\0")
        except OSError:
            return environment
        del environment["LC_CTYPE"]
        environment |= dict(pair.split("=", 1) for pair in pairs if pair.startswith("LC_CTYPE="))
    return environment
