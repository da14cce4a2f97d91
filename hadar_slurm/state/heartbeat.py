"""The sign of life that hadard leaves for hadar-sbatch. Standard library only.

A job is submitted held only while this is fresh, so that no job waits for a daemon that is gone.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

RUN_DIR_VARIABLE = "HADAR_RUN_DIR"
DEFAULT_RUN_DIR = "/run/hadar"
FILE_NAME = "heartbeat.json"
# By how much the clocks of two machines may differ.
SKEW_S = 60.0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Until when the daemon vouches for itself, and what it enforces.

    `good_until_s` is in seconds since the epoch, `good_for_s` in seconds since it was signed.
    `partitions` of None means every partition; an empty name among them stands for the default one.
    `spool` is where users' directories of reports lie, `assignments` where forked jobs read
    their shares.
    `problems` are what keeps hadard from doing all of its work now, by kind (`journal`, `reports`).
    """

    pid: int
    cluster: str
    good_until_s: float
    spool: str
    partitions: tuple[str, ...] | None = None
    good_for_s: float = math.inf
    assignments: str = ""
    problems: Mapping[str, str] = field(default_factory=dict)

    def is_fresh(self, now_s: float) -> bool:
        """Return whether the daemon has signed in time; a sign from the future is not believed.

        It comes from a clock that was wrong, and would hold for as long as that was ahead.
        """
        return 0 < self.good_until_s - now_s <= self.good_for_s + SKEW_S

    def covers(self, partition: str | None, now_s: float) -> bool:
        """Return whether a job in `partition` (None: the default one) would be placed."""
        if not self.is_fresh(now_s):
            return False
        return self.partitions is None or (partition or "") in self.partitions


def run_dir(environment: Mapping[str, str]) -> Path:
    """Return where the heartbeat lies."""
    return Path(environment.get(RUN_DIR_VARIABLE) or DEFAULT_RUN_DIR)


def write_heartbeat(directory: Path, beat: Heartbeat) -> None:
    """Replace the heartbeat in one step."""
    draft = directory / f".{FILE_NAME}.{os.getpid()}"
    tree = {
        "pid": beat.pid,
        "cluster": beat.cluster,
        "good_until_s": beat.good_until_s,
        "spool": beat.spool,
        "partitions": beat.partitions,
        "assignments": beat.assignments,
        "problems": dict(beat.problems),
    }
    if math.isfinite(beat.good_for_s):
        tree["good_for_s"] = beat.good_for_s
    draft.write_text(json.dumps(tree) + "\n", encoding="utf-8")
    os.replace(draft, directory / FILE_NAME)


def read_heartbeat(directory: Path) -> Heartbeat | None:
    """Return the heartbeat, or None where there is none that can be read."""
    try:
        tree = json.loads((directory / FILE_NAME).read_text(encoding="utf-8"))
        partitions = tree["partitions"]
        return Heartbeat(
            int(tree["pid"]),
            str(tree["cluster"]),
            float(tree["good_until_s"]),
            str(tree["spool"]),
            None if partitions is None else tuple(map(str, partitions)),
            float(tree.get("good_for_s", math.inf)),
            str(tree.get("assignments", "")),
            {str(kind): str(text) for kind, text in tree.get("problems", {}).items()},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def remove_heartbeat(directory: Path) -> None:
    """Remove the heartbeat: from now on jobs are submitted to plain Slurm."""
    (directory / FILE_NAME).unlink(missing_ok=True)
