"""What a consolidation costs: the time in which copies do not train."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median_low

# The number of newest ones that count: a single one that a slow disk delayed changes nothing.
_COUNTED = 3
_newest = partial(deque[float], maxlen=_COUNTED)


@dataclass
class Costs:
    """How long each part of the newest consolidations took, without waiting for other copies."""

    save_s: deque[float] = field(default_factory=_newest)  # to write a contribution
    read_s: deque[float] = field(default_factory=_newest)  # to read and check the average
    load_s: deque[float] = field(default_factory=_newest)
    made_s: dict[int, float] = field(default_factory=dict)  # to average, by interval

    @property
    def total_s(self) -> float:
        """Return what a whole consolidation usually costs a copy; 0 before the first."""
        parts_s = self.save_s, list(self.made_s.values()), self.read_s, self.load_s
        return sum(map(usual, parts_s)) if self.made_s else 0.0

    def make(self, slot: int, made_s: float) -> None:
        """Record how long averaging the parameters of an interval's end took."""
        self.made_s = dict(sorted({**self.made_s, slot: made_s}.items())[-_COUNTED:])

    def take_over(self, slot: int, made_s: float) -> None:
        """Record the time that the end of an interval notes, unless it was measured here."""
        if made_s > 0 and slot not in self.made_s:
            self.make(slot, made_s)

    @contextmanager
    def measure(self, took_s: deque[float]) -> Iterator[None]:
        """Measure how long the body takes, for one of the parts; nothing if it fails."""
        begun_s = time.monotonic()
        yield
        took_s.append(time.monotonic() - begun_s)


def usual(took_s: Sequence[float]) -> float:
    """Return the median, the lower of two; 0 of none."""
    return median_low(took_s) if took_s else 0.0
