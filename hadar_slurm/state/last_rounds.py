"""What came of hadard's last rounds, which its heartbeat carries. Standard library only.

A process that writes its heartbeat and fails in each round is no help to a held job: the heartbeat
expires with the third failure in a row, until a round succeeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

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
