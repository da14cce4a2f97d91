"""Orders of the chaos test to a running hadard, and the notes of hadard's driver.

All are small files in one directory, since the daemon may be killed at any moment. An order is
carried out at the step that it names, and its note is written first.
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
    Steer,
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
    Steer: "steer",
}


def step_of(changes: Sequence[Update]) -> str:
    """Return the purpose of a batch of changes: `pin` if any change pins."""
    steps = {_STEPS[type(change)] for change in changes}
    return "pin" if "pin" in steps else min(steps, default="none")


@dataclass(frozen=True, slots=True)
class Order:
    """What to do at which step: `do` is kill, lie, time out, blind or hang.

    `when` is before, inside, after or instead of the step; the first `skip` such steps are left
    out. `share` is the part of a batch that is made before it is cut off or times out.
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
        """Make the directory, writable for all users: hadard may run as another user."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o777)

    def give(self, order: Order) -> None:
        """Write an order, in place of the one before it."""
        (self.directory / "fired").unlink(missing_ok=True)
        self._replace("order", json.dumps(asdict(order)))

    def withdraw(self) -> None:
        """Remove the order."""
        (self.directory / "order").unlink(missing_ok=True)

    def order(self) -> Order | None:
        """Return the current order."""
        tree = self._read("order")
        return None if tree is None else Order(**tree)

    def fire(self, **facts: object) -> None:
        """Write that the order is being carried out, and remove it."""
        self._replace("fired", json.dumps({"time_s": time.time(), "pid": os.getpid(), **facts}))
        self.withdraw()

    def fired(self) -> dict[str, Any] | None:
        """Return the note on the last order, None until it is being carried out."""
        tree: dict[str, Any] | None = self._read("fired")
        return tree

    def set_clock(self, offset_s: float) -> None:
        """Set the error of hadard's clock."""
        self._replace("clock", str(offset_s))

    def clock(self) -> float:
        """Return the error of hadard's clock in seconds."""
        return float(self._read("clock") or 0.0)

    def begin(self) -> None:
        """Write the id of this process, which is hadard's."""
        self._replace("pid", str(os.getpid()))

    def pid(self) -> int:
        """Return the newest hadard's process id, in its own container if it has one."""
        return int(self._read("pid") or 0)

    def tell_plan(self) -> None:
        """Write that a plan has just been made."""
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
        """Yield the lines of `NAME.jsonl`, without lines that were cut off."""
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
