"""What a consolidation costs: the time in which copies do not train."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median_low

# This number of the newest count: one that a disk held up changes nothing, two in three do.
_COUNTED = 3


_newest = partial(deque[float], maxlen=_COUNTED)


@dataclass(slots=True)
class Costs:
    """How long each part of the newest consolidations took this copy, in seconds.

    `save_s` is writing a contribution, `read_s` reading and checking the average, `load_s` loading
    it; `made_s` is computing it, on whichever copy did, by interval. Waiting for other copies is
    not counted.
    """

    save_s: deque[float] = field(default_factory=_newest)
    read_s: deque[float] = field(default_factory=_newest)
    load_s: deque[float] = field(default_factory=_newest)
    made_s: dict[int, float] = field(default_factory=dict)

    @property
    def total_s(self) -> float:
        """Return what a whole consolidation usually costs a copy; 0 before the first."""
        if not self.made_s:
            return 0.0
        made_s = list(self.made_s.values())
        return sum(map(usual, (self.save_s, made_s, self.read_s, self.load_s)))

    def make(self, slot: int, made_s: float) -> None:
        """Record how long averaging the parameters of an interval's end took."""
        self.made_s[slot] = made_s
        for older in sorted(self.made_s)[:-_COUNTED]:
            del self.made_s[older]

    def take_over(self, slot: int, made_s: float) -> None:
        """Record what the end of an interval notes of its making, unless it was measured here."""
        if made_s > 0 and slot not in self.made_s:
            self.make(slot, made_s)

    @contextmanager
    def measure(self, took_s: deque[float]) -> Iterator[None]:
        """Take how long the body lasts for one of the parts; nothing if it fails."""
        begun_s = time.monotonic()
        yield
        took_s.append(time.monotonic() - begun_s)


def usual(took_s: Sequence[float]) -> float:
    """Return the median, of two the lower; 0 of none."""
    return median_low(took_s) if took_s else 0.0
