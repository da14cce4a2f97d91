"""How trainings differ: by their steps, seed, parameters and command line."""

from __future__ import annotations

import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REMEDY = (
    "give each job a directory of its own (HADAR_JOB_DIR), or remove this one to begin at step 0"
)
# The number of trainings that this process has begun, by directory.
_BEGUN: Counter[tuple[int, Path]] = Counter()


class OtherTrainingError(ValueError):
    """A directory holds another training; says which, what differs and the remedy."""


@dataclass(frozen=True)
class Identity:
    """One training, as each of its slot ends notes it, beside the tensors of its parameters."""

    total_steps: int
    seed: int = 0
    number: int = 1  # counts the trainings of a process: a second `Copy` is a second training
    command: tuple[str, ...] = ()  # the command line of the copy that began it

    @classmethod
    def of(cls, facts: object) -> Identity | None:
        """Return the identity in a slot end; None for one of an older release."""
        if not isinstance(facts, Mapping):
            return None
        total_steps, seed, number = (int(facts[key]) for key in ("total_steps", "seed", "number"))
        return cls(total_steps, seed, number, tuple(map(str, facts["command"])))

    @property
    def facts(self) -> dict[str, Any]:
        """Return the identity as values for JSON."""
        return {**asdict(self), "command": list(self.command)}

    def difference(self, found: Identity) -> str:
        """Return how the training `found` differs from this one, or nothing."""
        # Command lines are compared copy by copy (joining.py): those of two copies may differ.
        if found.seed != self.seed:
            return f"seed {found.seed}, not {self.seed}"
        if found.number != self.number:
            return f"training {found.number} of a process, not its training {self.number}"
        return ""


def check_same(directory: Path, mine: Identity, found: Identity, shapes: str) -> None:
    """Raise OtherTrainingError unless `found` is `mine`; `shapes` is how the parameters differ."""
    if found.total_steps != mine.total_steps:
        raise OtherTrainingError(
            f"{directory.resolve()} holds a job of {found.total_steps} steps, not "
            f"{mine.total_steps}: {REMEDY}"
        )
    if difference := mine.difference(found) or shapes:
        begun = f" It was begun by `{shlex.join(found.command)}`." if found.command else ""
        raise OtherTrainingError(
            f"{directory.resolve()} holds another training: {difference}.{begun} Remedy: {REMEDY}"
        )


def command_line() -> tuple[str, ...]:
    """Return this process's command line, from the name of the script on."""
    name, *words = sys.argv or [""]
    return (Path(name).name, *words)


def next_number(directory: Path) -> int:
    """Return which training of this process begins in a directory, counted from 1."""
    key = (os.getpid(), Path(os.path.abspath(directory)))
    _BEGUN[key] += 1
    return _BEGUN[key]
