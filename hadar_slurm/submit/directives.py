"""Reads the #SBATCH and #HADAR lines of a batch script by sbatch's rules."""

from __future__ import annotations

from collections.abc import Iterator

from hadar_slurm.errors import JobSpecError

# The characters of C's isspace() within a line.
_SPACE = " \t\r\v\f"


def read_directives(text: str, mark: str) -> list[str]:
    """Return the words on all `mark` lines (`#SBATCH`, `#HADAR`) of a script.

    As sbatch does, reading ends at the first line that is neither empty nor a comment. Raises
    JobSpecError for a line whose quotes do not close.
    """
    words: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip(_SPACE)
        if stripped and not stripped.startswith("#"):
            break
        if not (line.startswith(mark) and line[len(mark) :][:1] in (" ", "\t", "-")):
            continue
        try:
            words += _words(line[len(mark) :])
        except ValueError as error:
            raise JobSpecError(f"line {number} of the script: {mark}: {error}") from error
    return words


def _words(line: str) -> Iterator[str]:
    """Yield the words that sbatch finds: a shell's, but a backslash escapes within any quotes."""
    word, quote, is_escaped = "", "", False
    for letter in line:
        if is_escaped:
            word += letter
            is_escaped = False
        elif letter == "\\":
            is_escaped = True
        elif letter == quote:
            quote = ""
        elif quote:
            word += letter
        elif letter in "\"'":
            quote = letter
        elif letter == "#":
            break
        elif letter not in _SPACE:
            word += letter
        elif word:
            yield word
            word = ""
    if quote:
        raise ValueError(f"no closing {quote}")
    if word:
        yield word
