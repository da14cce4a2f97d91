"""The version with the commit that it was built from."""

from __future__ import annotations

import json
import re
from importlib import metadata
from pathlib import Path

from hadar_slurm import __version__

_PACKAGE = Path(__file__).resolve().parent


def version() -> str:
    """Return the version and, where it is known, the commit: `0.2.0 (1179f28c0d2e)`.

    That is what the build has written, what pip has recorded, or what is checked out.
    """
    written, checkout = _lines(_PACKAGE / "_commit")[0], _PACKAGE.parent / ".git"
    commit = _as_commit(written) or _installed_commit() or _checked_out(checkout)
    return f"{__version__} ({commit[:12]})" if commit else __version__


def _installed_commit() -> str:
    try:
        text = metadata.distribution("hadar_slurm").read_text("direct_url.json") or "{}"
        return _as_commit(str(json.loads(text)["vcs_info"]["commit_id"]))
    except (metadata.PackageNotFoundError, OSError, ValueError, KeyError, TypeError):
        return ""


def _checked_out(git: Path) -> str:
    """Return the commit of a checkout, by its files: git may not be installed."""
    if git.is_file():  # a work tree
        git = git.parent / _lines(git)[0].removeprefix("gitdir: ")
    head = _lines(git / "HEAD")[0]
    name, common = head.removeprefix("ref: "), git / (_lines(git / "commondir")[0] or ".")
    if name == head:
        return _as_commit(head)
    packed = (line.partition(" ") for line in _lines(common / "packed-refs"))
    found = next((commit for commit, _, ref in packed if ref == name), "")
    return _as_commit(_lines(common / name)[0] or found)


def _lines(path: Path) -> list[str]:
    """Return the lines of a file, and an empty one where there is none."""
    try:
        return path.read_text(encoding="utf-8").splitlines() or [""]
    except (OSError, ValueError):
        return [""]


def _as_commit(text: str) -> str:
    return text if re.fullmatch("[0-9a-f]{40,64}", text) else ""
