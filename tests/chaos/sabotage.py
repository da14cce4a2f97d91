"""Orders that the chaos test leaves for a running hadard, and what hadard's driver notes for it.

Everything is a small file in one directory, since the daemon is killed at any moment: an order is
carried out at the step that it names, and what was done is written down before it is done.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hadar_slurm.slurm.client.updates import (
    ClearRequest,
    Hold,
    Prefer,
    Release,
    Requeue,
    SetRequest,
    SetStartNow,
    SignalCheckpoint,
    Update,
)

_STEPS = {
    SignalCheckpoint: "ask",
    Requeue: "requeue",
    ClearRequest: "pin",
    SetRequest: "pin",
    Hold: "hold",
    SetStartNow: "release",
    Release: "release",
    Prefer: "prefer",
}


def step_of(changes: Sequence[Update]) -> str:
    """Return what a batch of changes is for; a hold in one that pins is part of the pinning."""
    steps = {_STEPS[type(change)] for change in changes}
    return "pin" if "pin" in steps else min(steps, default="none")


@dataclass(frozen=True, slots=True)
class Order:
    """What to do at which step: `do` is kill, lie, time out, blind or hang.

    `when` is before, inside, after or instead of the step, once `skip` of its like have passed.
    `share` of a batch is carried out first where it is cut off or times out.
    """

    do: str
    step: str
    when: str
    skip: int = 0
    share: float = 0.0
    lasts_s: float = 0.0


@dataclass(frozen=True)
class Control:
    """The directory of orders and notes."""

    directory: Path

    def prepare(self) -> None:
        """Make the directory, for any user to write to: hadard may be another's process."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o777)

    def give(self, order: Order) -> None:
        """Leave an order; the one before it is forgotten."""
        (self.directory / "fired").unlink(missing_ok=True)
        self._replace("order", json.dumps(asdict(order)))

    def withdraw(self) -> None:
        """Take an order back."""
        (self.directory / "order").unlink(missing_ok=True)

    def order(self) -> Order | None:
        """Return the order that is there."""
        tree = self._read("order")
        return None if tree is None else Order(**tree)

    def fire(self, **facts: object) -> None:
        """Note that an order is being carried out, and take it away."""
        self._replace("fired", json.dumps({"time_s": time.time(), "pid": os.getpid(), **facts}))
        self.withdraw()

    def fired(self) -> dict[str, Any] | None:
        """Return what was noted of the last order once it is being carried out."""
        tree: dict[str, Any] | None = self._read("fired")
        return tree

    def set_clock(self, offset_s: float) -> None:
        """Set hadard's clock wrong by so much."""
        self._replace("clock", str(offset_s))

    def clock(self) -> float:
        """Return by how much hadard's clock is wrong."""
        return float(self._read("clock") or 0.0)

    def begin(self) -> None:
        """Note which process hadard is."""
        self._replace("pid", str(os.getpid()))

    def pid(self) -> int:
        """Return the process number of the newest hadard, as it sees itself."""
        return int(self._read("pid") or 0)

    def tell_plan(self) -> None:
        """Note that a plan has just been made."""
        self._replace("newest-plan", f"{time.time()} {os.getpid()}")

    def newest_plan(self) -> tuple[float, int]:
        """Return when the newest plan was made, and by which process."""
        try:
            time_s, pid = (self.directory / "newest-plan").read_text().split()
        except (OSError, ValueError):
            return 0.0, 0
        return float(time_s), int(pid)

    def note(self, name: str, **facts: object) -> None:
        """Add a line to `NAME.jsonl` in one write."""
        line = json.dumps({"time_s": time.time(), "pid": os.getpid(), **facts}) + "\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        descriptor = os.open(self.directory / f"{name}.jsonl", flags, 0o666)
        try:
            os.write(descriptor, line.encode())
        finally:
            os.close(descriptor)

    def notes(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the lines of `NAME.jsonl`; one cut short is left out."""
        path = self.directory / f"{name}.jsonl"
        for text in path.read_text().splitlines() if path.exists() else ():
            try:
                yield json.loads(text)
            except ValueError:
                continue

    def _read(self, name: str) -> Any:
        try:
            return json.loads((self.directory / name).read_text())
        except (OSError, ValueError):
            return None

    def _replace(self, name: str, text: str) -> None:
        draft = self.directory / f".{name}.{os.getpid()}"
        draft.write_text(text)
        draft.chmod(0o666)
        os.replace(draft, self.directory / name)
