"""Reads the batch script of sbatch, also from a pipe, and its directives. Imports little."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from hadar_slurm.errors import JobSpecError

# Above sbatch's limit (`max_script_size`, 4 MiB).
_MOST_BYTES = 1 << 26
# The characters of C's isspace() within a line.
_SPACE = " \t\r\v\f"


def read_script(name: str, directory: str) -> str | None:
    """Return the text of the script `name` ("" means standard input); "" if it cannot be read.

    sbatch will report the error. A pipe is replaced by a file of its bytes, for sbatch to read;
    None for a named pipe, which has no descriptor to replace: only one process can read it.
    """
    descriptor = _descriptor(name)
    try:
        if descriptor is not None:
            content = _replayed(descriptor)
        else:
            path = find_script(name, directory, os.environ.get("PATH", ""))
            if not stat.S_ISREG(mode := os.stat(path).st_mode):
                return None if stat.S_ISFIFO(mode) else ""
            with open(path, "rb") as file:
                content = file.read(_MOST_BYTES)
    except OSError:
        return ""
    return content.decode("utf-8", errors="surrogateescape")


def find_script(name: str, directory: str, search: str) -> str:
    """Return the path that sbatch opens: in the job's directory, then on PATH, else `name`.

    sbatch does not search for a name that begins with a dot or a slash. Observed with 22.05.8.
    """
    if not name.startswith((".", "/")):
        for place in (directory or ".", *search.split(":")):
            path = os.path.join(place, name)
            if os.path.isfile(path) and os.access(path, os.R_OK):
                return path
    return name


def _descriptor(name: str) -> int | None:
    if name in ("", "/dev/stdin"):
        return 0
    for folder in ("/dev/fd/", "/proc/self/fd/"):
        number = name.removeprefix(folder)
        if number != name and number.isascii() and number.isdigit() and len(number) < 9:
            return int(number)
    return None


def _replayed(descriptor: int) -> bytes:
    """Return the rest of a descriptor's input, and replace it by a file with the same bytes."""
    with open(descriptor, "rb", closefd=False) as file:
        content = file.read()
    copy = os.memfd_create("script")
    with open(copy, "wb") as file:
        file.write(content)
        file.flush()
        file.seek(0)
        os.dup2(copy, descriptor)
    return content


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
