"""The lines of a batch script that are meant for sbatch and for hadar-sbatch."""

from __future__ import annotations

import shlex

from hadar_slurm.errors import JobSpecError


def read_directives(text: str, mark: str) -> list[str]:
    """Return the words on all `mark` lines (`#SBATCH`, `#HADAR`) of a script.

    As sbatch does, reading ends at the first line that is neither empty nor a comment. Raises
    JobSpecError for a line whose quotes do not close.
    """
    words: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break
        if not (line.startswith(mark) and line[len(mark) :][:1] in (" ", "\t")):
            continue
        try:
            words += shlex.split(line[len(mark) :], comments=True)
        except ValueError as error:
            raise JobSpecError(f"line {number} of the script: {mark}: {error}") from error
    return words
