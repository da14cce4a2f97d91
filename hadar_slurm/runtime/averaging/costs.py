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
# What a consolidation with the state of Adam costs, before it was measured: by its bytes.
_WITH_STATE = 4.0
_newest = partial(deque[float], maxlen=_COUNTED)


@dataclass
class Parts:
    """How long each part of the newest consolidations took, without waiting for other copies."""

    keep_s: deque[float] = field(default_factory=_newest)  # to keep it while training goes on
    pack_s: deque[float] = field(default_factory=_newest)  # to make a contribution
    save_s: deque[float] = field(default_factory=_newest)  # to write it
    read_s: deque[float] = field(default_factory=_newest)  # to find the average
    load_s: deque[float] = field(default_factory=_newest)  # to read, check and load it
    take_s: deque[float] = field(default_factory=_newest)  # to add it to what was trained ahead
    made_s: dict[int, float] = field(default_factory=dict)  # to average, by interval

    @property
    def total_s(self) -> float:
        """Return what a whole consolidation usually costs a copy; 0 before the first."""
        made_s = list(self.made_s.values())
        parts_s = self.pack_s, self.save_s, made_s, self.read_s, self.load_s
        return self.blocked_s + sum(map(usual, parts_s)) if self.made_s else 0.0

    @property
    def blocked_s(self) -> float:
        """Return how long one stops the training of a copy that trains ahead."""
        return usual(self.keep_s) + usual(self.take_s)


@dataclass
class Costs:
    """What consolidations cost, with the optimiser's state and without it."""

    without_state: Parts = field(default_factory=Parts)
    with_state: Parts = field(default_factory=Parts)
    is_with_state: bool = False  # of the running interval

    @property
    def now(self) -> Parts:
        """Return the costs of such intervals as the running one."""
        return self.with_state if self.is_with_state else self.without_state

    @property
    def total_s(self) -> float:
        """Return what a consolidation usually costs a copy; 0 before the first."""
        return self.without_state.total_s or self.with_state.total_s

    @property
    def blocked_s(self) -> float:
        """Return how long one usually stops a copy that trains ahead; 0 before the first."""
        return self.without_state.blocked_s

    @property
    def with_state_s(self) -> float:
        """Return what one with the optimiser's state costs; estimated before it was measured."""
        return self.with_state.total_s or _WITH_STATE * self.without_state.total_s

    def make(self, slot: int, made_s: float) -> None:
        """Record how long averaging the parameters of an interval's end took."""
        self.now.made_s = dict(sorted({**self.now.made_s, slot: made_s}.items())[-_COUNTED:])

    def take_over(self, slot: int, made_s: float) -> None:
        """Record the time that the end of an interval notes, unless it was measured here."""
        if made_s > 0 and slot not in self.now.made_s:
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
