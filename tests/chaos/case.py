"""One injected fault in a run, with its outcome."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chaos.faults import Fault

Undo = Callable[[], None]


@dataclass
class Case:
    """One injected fault: its action, its end, and the time of the recovery.

    Times in seconds since the epoch. `is_well` returns whether the affected part has recovered.
    """

    number: int
    fault: Fault
    begun_s: float
    done: str = ""
    is_skipped: bool = False
    undo: Undo | None = None
    undo_at_s: float = 0.0
    ended_s: float | None = None
    well_s: float | None = None
    is_well: Callable[[], bool] = lambda: True
    needs_plan: bool = True
