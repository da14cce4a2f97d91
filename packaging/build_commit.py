"""Puts the commit that a package is built from into it, for `--version`; without git, nothing."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    """Adds `hadar_slurm/_commit`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file, except to an editable installation, whose checkout may change."""
        root = Path(self.root)
        if version == "editable" or (root / "hadar_slurm" / "_commit").exists():
            return
        if not (root / ".git").exists():  # a repository around it is another project's
            return
        try:
            done = subprocess.run(
                ["git", "-C", str(root), "rev-parse", "--verify", "HEAD"],
                capture_output=True,
                check=True,
                timeout=30,
            )
        except (OSError, subprocess.SubprocessError):
            return
        place = tempfile.TemporaryDirectory(prefix="hadar-commit-")
        self._place = place
        path = Path(place.name, "_commit")
        path.write_bytes(done.stdout)
        build_data["force_include"][str(path)] = "hadar_slurm/_commit"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary file."""
        if (place := getattr(self, "_place", None)) is not None:
            place.cleanup()
