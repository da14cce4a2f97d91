"""Finds the real sbatch, which is not hadar-sbatch itself under any name.

A site may install hadar-sbatch as `sbatch`, first in PATH. A link to it, a copy and another
installation are recognised by their file. A wrapper script that executes hadar-sbatch is not: it is
executed once, with its file in HADAR_SBATCH_TRIED, and skipped in the second call. Imports little.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hadar_slurm.errors import HadarError

SBATCH_VARIABLE = "HADAR_SBATCH"
TRIED_VARIABLE = "HADAR_SBATCH_TRIED"
_REMEDY = f"set {SBATCH_VARIABLE} to the path of Slurm's sbatch"
# Occurs in the script that installers such as pip write for the command hadar-sbatch.
_ENTRY_POINT = b"hadar_slurm.cli.sbatch"
# Larger than any sbatch.
_MOST_BYTES = 1 << 20


class SbatchNotFound(HadarError):
    """There is no sbatch to execute but hadar-sbatch itself: gives reason and remedy."""


class RealSbatch(NamedTuple):
    """The program to execute, and the environment variables to add."""

    path: str
    variables: Mapping[str, str]
    # A script without `#!`, which `path`, a shell, executes as every shell does; "": none.
    script: str = ""

    def words(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return the words with which the program is called instead of `argv`."""
        return (self.path, self.script, *argv[1:]) if self.script else tuple(argv)


def is_second_call(environment: Mapping[str, str]) -> bool:
    """Return whether hadar-sbatch executed a wrapper which executed hadar-sbatch again."""
    return bool(_tried(environment))


def find_sbatch(environment: Mapping[str, str], own_path: str) -> RealSbatch:
    """Return the real sbatch: the one that HADAR_SBATCH names, else the first on PATH.

    `own_path` is the file of this program. Raises SbatchNotFound with the reason and the remedy.
    """
    named = environment.get(SBATCH_VARIABLE, "")
    candidates = _candidates(named or "sbatch", environment, own_path)
    path = _named(named, environment, own_path) if "/" in named else next(candidates, "")
    if not path:
        setting = f"{SBATCH_VARIABLE}={named} is not on PATH, or is hadar-sbatch itself"
        fault = setting if named else "no sbatch on PATH but hadar-sbatch itself"
        raise SbatchNotFound(f"{fault}: {_REMEDY}")
    variables, content = {}, _content(path)
    # A script, or a program that names hadar-sbatch, could execute it.
    is_script = bool(content) and not content.startswith(b"\x7fELF")
    if is_script or b"hadar-sbatch" in content:
        tried = [*_tried(environment), _identity(path)]
        variables[TRIED_VARIABLE] = f"{environment.get('SLURM_JOB_ID', '')}/{':'.join(tried)}"
    has_shell = is_script and not content.startswith(b"#!")
    return RealSbatch("/bin/sh", variables, path) if has_shell else RealSbatch(path, variables)


def _named(named: str, environment: Mapping[str, str], own_path: str) -> str:
    """Return the path that HADAR_SBATCH names, checked."""
    setting = f"{SBATCH_VARIABLE}={named}"
    if not named.startswith("/"):
        raise SbatchNotFound(f"{setting} is a relative path: {_REMEDY}")
    if not os.path.exists(named):
        raise SbatchNotFound(f"{setting} does not exist: {_REMEDY}")
    if not _is_program(named):
        raise SbatchNotFound(f"{setting} is not an executable file: {_REMEDY}")
    if _is_hadar_sbatch(named, own_path):
        raise SbatchNotFound(f"{setting} is hadar-sbatch itself: {_REMEDY}")
    if _identity(named) in _tried(environment):
        raise SbatchNotFound(f"{setting} executes hadar-sbatch again: {_REMEDY}")
    return named


def _candidates(name: str, environment: Mapping[str, str], own_path: str) -> Iterator[str]:
    """Yield the programs called `name` on PATH that are not hadar-sbatch and were not tried."""
    tried = _tried(environment)
    for place in environment.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(place, name)
        is_other = _is_program(path) and not _is_hadar_sbatch(path, own_path)
        if is_other and _identity(path) not in tried:
            yield path


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _is_hadar_sbatch(path: str, own_path: str) -> bool:
    """Return whether a program is this one, or the command of another installation."""
    if os.path.exists(own_path) and os.path.samefile(path, own_path):
        return True
    text = _content(path)
    return text.startswith(b"#!") and _ENTRY_POINT in text


def _content(path: str) -> bytes:
    """Return a program's bytes, b"" if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return b""


def _identity(path: str) -> str:
    facts = os.stat(path)
    return f"{facts.st_dev}-{facts.st_ino}"


def _tried(environment: Mapping[str, str]) -> list[str]:
    """Return the files tried in this submission.

    A wrapper that executes Slurm's sbatch passes the variable on to its job, where it is ignored.
    """
    job, _, tried = environment.get(TRIED_VARIABLE, "").partition("/")
    return tried.split(":") if tried and job == environment.get("SLURM_JOB_ID", "") else []
