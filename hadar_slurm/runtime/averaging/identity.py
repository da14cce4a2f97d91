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

_REMEDY = (
    "give each job a directory of its own (HADAR_JOB_DIR), or remove this one to begin at step 0"
)
# How many trainings this process has begun, by the directory that they asked for.
_BEGUN: Counter[tuple[int, Path]] = Counter()


class OtherTrainingError(ValueError):
    """A directory holds another training; says which, what differs and the remedy."""


@dataclass(frozen=True, slots=True)
class Identity:
    """One training, as it is noted in each of its slot ends.

    `number` counts the trainings of one process, from 1: a second `Copy` is a second training.
    `command` is the command line of the copy that began it. The names and shapes of its parameters
    are those of the tensors in the same file.
    """

    total_steps: int
    seed: int = 0
    number: int = 1
    command: tuple[str, ...] = ()

    @classmethod
    def of(cls, facts: object) -> Identity | None:
        """Return what a slot end notes; None for one of an older release."""
        if not isinstance(facts, Mapping):
            return None
        total_steps, seed, number = (int(facts[key]) for key in ("total_steps", "seed", "number"))
        return cls(total_steps, seed, number, tuple(map(str, facts["command"])))

    @property
    def facts(self) -> dict[str, Any]:
        """Return what a slot end is to note."""
        return {**asdict(self), "command": list(self.command)}

    def difference(self, found: Identity) -> str:
        """Return how the training `found` differs from this one, or nothing.

        Command lines are compared copy by copy (claim.py): those of two copies may differ.
        """
        if found.seed != self.seed:
            return f"seed {found.seed}, not {self.seed}"
        if found.number != self.number:
            return f"training {found.number} of a process, not its training {self.number}"
        return ""


def check_same(directory: Path, mine: Identity, found: Identity, shapes: str) -> None:
    """Raise OtherTrainingError unless the training `found` in a directory is `mine`.

    `shapes` says how its parameters differ from ours, or nothing.
    """
    if found.total_steps != mine.total_steps:
        raise OtherTrainingError(
            f"{directory.resolve()} holds a job of {found.total_steps} steps, not "
            f"{mine.total_steps}: {_REMEDY}"
        )
    if difference := mine.difference(found) or shapes:
        begun = f" It was begun by `{text(found.command)}`." if found.command else ""
        raise OtherTrainingError(
            f"{directory.resolve()} holds another training: {difference}.{begun} Remedy: {_REMEDY}"
        )


def check_command(path: Path, mine: tuple[str, ...], found: tuple[str, ...]) -> None:
    """Raise OtherTrainingError unless a copy was last run with the command line `mine`.

    `path` is the note of that run.
    """
    if mine != found:
        raise OtherTrainingError(
            f"{path.resolve().parents[1]} holds a training of another command line: "
            f"`{text(found)}`, not `{text(mine)}`. Remedy: {_REMEDY}; to go on with it by the new "
            f"command line, remove {path.resolve()}"
        )


def command_line() -> tuple[str, ...]:
    """Return this process's command line, from the name of the script on."""
    name, *words = sys.argv or [""]
    return (Path(name).name, *words)


def text(command: tuple[str, ...]) -> str:
    """Return a command line as it is typed."""
    return shlex.join(command)


def next_number(directory: Path) -> int:
    """Return which training of this process begins in a directory, counted from 1."""
    key = (os.getpid(), Path(os.path.abspath(directory)))
    _BEGUN[key] += 1
    return _BEGUN[key]
