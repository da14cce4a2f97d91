"""Opens the partition of a slurmctld that has just started, once its nodes have reported to it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from chaos.records import node_states
from chaos.world import Ran

_COMMAND_LIMIT_S = 5.0


@dataclass
class Opening:
    """The opening of one slurmctld's partition; `run` runs a command with a time limit."""

    run: Callable[[Sequence[str], float], Ran]
    # The time limit for nodes to report, from slurmctld's first answer on; one that cannot be
    # reached never does.
    report_within_s: float = 10.0
    ask_every_s: float = 0.2
    _is_over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self.wait_and_open, daemon=True)

    def begin(self) -> None:
        """Wait and open in a thread."""
        self._thread.start()

    def end(self) -> None:
        """End it before another slurmctld takes over, to which no node has reported."""
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join(2 * _COMMAND_LIMIT_S)

    def wait_and_open(self) -> None:
        """Open the partition once all nodes have reported, or are set DOWN for not reporting.

        A node that was set DOWN returns as soon as it reports.
        """
        for name in self._silent():
            if not self._is_over.is_set():
                self._ask("update", f"NodeName={name}", "State=DOWN", "Reason=has-not-reported")
        while not self._is_over.is_set():
            if self._ask("update", "PartitionName=main", "State=UP").status == 0:
                return
            self._is_over.wait(self.ask_every_s)

    def _silent(self) -> list[str]:
        """Wait until all nodes have reported, or should have; return those that have not."""
        silent: list[str] = []
        deadline_s = math.inf
        while time.monotonic() < deadline_s and not self._is_over.wait(self.ask_every_s):
            shown = self._ask("show", "node", "-o")
            if shown.status != 0:
                continue
            deadline_s = min(deadline_s, time.monotonic() + self.report_within_s)
            states = node_states(shown.out)
            silent = [name for name, state in states.items() if state == "UNREPORTED"]
            if not silent:
                break
        return silent

    def _ask(self, *words: str) -> Ran:
        return self.run(["scontrol", *words], _COMMAND_LIMIT_S)
