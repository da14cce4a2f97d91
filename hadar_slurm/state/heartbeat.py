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
    # `moves` of hadar.yaml.
    moves: Mapping[str, str] = field(default_factory=dict)
    # What Slurm preempts by requeue, where `moves` asks for that: GraceTime and PreemptExemptTime
    # in seconds by `partition=NAME` and `qos=NAME`.
    preemptible: Mapping[str, tuple[float, float]] = field(default_factory=dict)
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


def remove_heartbeat(directory: Path) -> None:
    """Remove the heartbeat: from now on jobs are submitted to plain Slurm."""
    (directory / FILE_NAME).unlink(missing_ok=True)
