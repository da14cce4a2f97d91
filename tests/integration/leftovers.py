"""Finds processes that a cluster has left behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def lives(pid: int) -> bool:
    """Return whether a process runs and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def mentions(directory: Path) -> list[str]:
    """Return every running process with `directory` in its arguments, environment or cwd."""
    return list(_mentions(os.fsencode(directory)))


def _mentions(directory: bytes) -> Iterator[str]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            arguments = (entry / "cmdline").read_bytes()
            seen = (
                arguments
                + (entry / "environ").read_bytes()
                + os.fsencode(os.readlink(entry / "cwd"))
            )
        except OSError:
            continue
        if directory in seen and int(entry.name) != os.getpid() and lives(int(entry.name)):
            yield f"{entry.name}: {os.fsdecode(arguments)}"
