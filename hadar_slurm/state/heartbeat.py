"""The heartbeat that hadard writes for hadar-sbatch. Standard library only.

A job is submitted held only while this is fresh, so that no job waits for a daemon that is gone, or
whose rounds fail: it expires with the third failure in a row, until a round succeeds.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

RUN_DIR_VARIABLE = "HADAR_RUN_DIR"
DEFAULT_RUN_DIR = "/run/hadar"
FILE_NAME = "heartbeat.json"
# By how much the clocks of two machines may differ.
SKEW_S = 60.0
# The parts of a round that can fail.
PARTS = ("observe", "plan", "apply")
# After this number of failed rounds in a row hadard does not count as alive.
MOST_FAILED = 3
# Of a longer text the beginning and the end are kept: a command's fault follows its words.
_HEAD, _TAIL = 100, 400


@dataclass(frozen=True, slots=True)
class LastRounds:
    """The last round that succeeded, and those that have failed since; times as in a heartbeat.

    A round succeeds if Slurm was read, a valid plan was made, and the changes were attempted
    without a fault that concerns all of them; with several modes, in the first one and in each
    other that places jobs.
    """

    # When it ended; None: none since hadard started.
    succeeded_s: float | None = None
    # How many have failed in a row, when the first of them ended, and of the last one in what.
    failed: int = 0
    since_s: float | None = None
    part: str = ""
    fault: str = ""

    @property
    def are_failing(self) -> bool:
        """Whether that many have failed in a row that nothing may wait for hadard."""
        return self.failed >= MOST_FAILED

    def after(self, now_s: float, part: str, fault: str) -> LastRounds:
        """Return this after another round; an empty `part` says that it succeeded."""
        if not part:
            return LastRounds(now_s)
        since_s = now_s if self.since_s is None else self.since_s
        if len(fault) > _HEAD + _TAIL:
            fault = f"{fault[:_HEAD]} ... {fault[-_TAIL:]}"
        return replace(self, failed=self.failed + 1, since_s=since_s, part=part, fault=fault)

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> LastRounds:
        """Return what `asdict` has written; raises ValueError or TypeError for anything else."""
        succeeded_s, since_s = (
            None if tree.get(name) is None else float(tree[name])
            for name in ("succeeded_s", "since_s")
        )
        part, fault = (str(tree.get(name, "")) for name in ("part", "fault"))
        return cls(succeeded_s, int(tree.get("failed", 0)), since_s, part, fault)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The daemon's process, how long it counts as alive, and what it enforces."""

    pid: int
    cluster: str
    # In seconds since the epoch.
    good_until_s: float
    # The directory of users' directories of reports.
    spool: str
    # None: every partition; an empty name stands for the default one.
    partitions: tuple[str, ...] | None = None
    # In seconds since it was written.
    good_for_s: float = math.inf
    # Where forked jobs read their shares.
    assignments: str = ""
    # What keeps hadard from doing all of its work now, by kind (`journal`, `reports`).
    problems: Mapping[str, str] = field(default_factory=dict)
    # The partitions in which waiting jobs are not held, as in `partitions`.
    steered: tuple[str, ...] = ()
    # The site's own values of GPU types (`gpu_types` in hadar.yaml).
    gpu_types: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    # Jobs are steered that were not submitted by hadar-sbatch (`enrol` in hadar.yaml).
    enrols: bool = False
    # When the process has written it; None: by a version that does not say so.
    signed_s: float | None = None
    rounds: LastRounds = field(default_factory=LastRounds)

    def is_fresh(self, now_s: float) -> bool:
        """Return whether it has not expired; False for one from the future, by a wrong clock.

        One that is written while rounds fail has expired.
        """
        return 0 < self.good_until_s - now_s <= self.good_for_s + SKEW_S

    def is_signed(self, now_s: float) -> bool:
        """Return whether the process has written it in time, whatever comes of its rounds."""
        if self.signed_s is None:
            return self.is_fresh(now_s)
        return -SKEW_S <= now_s - self.signed_s < self.good_for_s

    def not_placed(self, partition: str | None) -> list[str]:
        """Return in which of a job's partitions hadard places none: `a,b`; None: the default."""
        placed = self.partitions
        return [] if placed is None else [n for n in _names(partition) if n not in placed]

    def steers(self, partition: str | None) -> bool:
        """Return whether waiting jobs are not held in one of a job's partitions, as hadard does."""
        return any(name in self.steered for name in _names(partition))


def _names(partition: str | None) -> list[str]:
    """Return the partitions in a job's request, "" for the default one."""
    return [name for name in (partition or "").split(",") if name] or [""]


def run_dir(environment: Mapping[str, str]) -> Path:
    """Return the directory of the heartbeat."""
    return Path(environment.get(RUN_DIR_VARIABLE) or DEFAULT_RUN_DIR)


def write_heartbeat(directory: Path, beat: Heartbeat) -> None:
    """Replace the heartbeat in one step."""
    draft = directory / f".{FILE_NAME}.{os.getpid()}"
    tree = asdict(replace(beat, problems=dict(beat.problems)))
    if not math.isfinite(beat.good_for_s):
        del tree["good_for_s"]
    draft.write_text(json.dumps(tree) + "\n", encoding="utf-8")
    os.replace(draft, directory / FILE_NAME)


def read_heartbeat(directory: Path) -> Heartbeat | None:
    """Return the heartbeat, or None if none can be read."""
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
            tuple(map(str, tree.get("steered", ()))),
            {
                str(name): {str(key): float(value) for key, value in values.items()}
                for name, values in tree.get("gpu_types", {}).items()
            },
            tree.get("enrols") is True,
            None if tree.get("signed_s") is None else float(tree["signed_s"]),
            LastRounds.of(tree.get("rounds", {})),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def remove_heartbeat(directory: Path) -> None:
    """Remove the heartbeat: from now on jobs are submitted to plain Slurm."""
    (directory / FILE_NAME).unlink(missing_ok=True)
