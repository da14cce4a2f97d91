"""How many samples of a batch each copy trains, so that all need the same time.

A step lasts as long as its slowest copy, so a share may be 0: such a copy would delay the others by
more than it takes from them. Every copy computes the shares, from the same numbers; they must not
depend on anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

# Shares are replaced where a step is expected to be shorter by this part.
_WORTH = 0.05
# Steps after which shares are compared with what was measured; later, every `_EVERY`.
_EARLY = frozenset((3, 6, 12, 24, 48))
_EVERY = 64
# Steps after which a copy may be left out: what fewer took says too little of its speed.
_LEFT_OUT_AFTER = 24
# The number of steps by which the cost of an exchange is judged, at the least.
_JUDGED_BY = 4


def split(batch_size: int, rates: Mapping[int, float], least: int = 1) -> dict[int, int]:
    """Return the samples of each copy, in all `batch_size`, by `rates` in samples/s.

    The slowest copy is as early as it can be, with whole samples; a share is 0 or `least` at the
    least. Of equal shares, copies with lower numbers have the larger. Copies without a known rate
    (0) count as average ones. Where the batch is smaller than `least`, one copy has all of it.
    """
    speeds = _known(rates)
    ordered = sorted(speeds, key=lambda copy: (-speeds[copy], copy))
    chosen: dict[int, int] = {}
    for count in range(1, len(ordered) + 1):
        if count > 1 and count * least > batch_size:
            break
        found = _filled(batch_size, {copy: speeds[copy] for copy in ordered[:count]}, least)
        if not chosen or longest_s(found, speeds) < longest_s(chosen, speeds):
            chosen = found
    return {copy: chosen.get(copy, 0) for copy in sorted(rates)}


def split_among_all(batch_size: int, rates: Mapping[int, float], least: int = 1) -> dict[int, int]:
    """Return shares as `split` does, without 0 as far as the batch is large enough for that."""
    speeds = _known(rates)
    ordered = sorted(speeds, key=lambda copy: (-speeds[copy], copy))
    count = max(1, min(len(ordered), batch_size // max(1, least)))
    found = _filled(batch_size, {copy: speeds[copy] for copy in ordered[:count]}, least)
    return {copy: found.get(copy, 0) for copy in sorted(rates)}


def longest_s(shares: Mapping[int, int], rates: Mapping[int, float]) -> float:
    """Return how long a step takes, without communication."""
    speeds = _known(rates)
    return max((count / speeds[copy] for copy, count in shares.items() if count), default=0.0)


def ranges(shares: Mapping[int, int]) -> dict[int, range]:
    """Return which samples of a batch each copy trains, counted from 0 within the batch."""
    found, first = {}, 0
    for copy, count in sorted(shares.items()):
        found[copy] = range(first, first + count)
        first += count
    return found


def _known(rates: Mapping[int, float]) -> dict[int, float]:
    measured = [rate for rate in rates.values() if rate > 0]
    usual = sum(measured) / len(measured) if measured else 1.0
    return {copy: rate if rate > 0 else usual for copy, rate in rates.items()}


def _filled(batch_size: int, speeds: Mapping[int, float], least: int) -> dict[int, int]:
    """Deal samples one after the other to the copy that would end earliest."""
    found = {copy: min(least, batch_size) for copy in speeds}
    if sum(found.values()) > batch_size:
        found = dict.fromkeys(speeds, 0)
    # All but the last few at once: a batch may have a million samples (tokens).
    left, total = batch_size - sum(found.values()), sum(speeds.values())
    for copy, speed in speeds.items():
        more = max(0, int(batch_size * speed / total) - 1 - found[copy])
        more = min(more, left)
        found[copy] += more
        left -= more
    for _ in range(left):
        first = min(speeds, key=lambda copy: ((found[copy] + 1) / speeds[copy], copy))
        found[first] += 1
    return found


@dataclass
class Pace:
    """What the copies of a group measured, and the shares of a batch that follow from it.

    Each copy has the same pace: `note` gets what all copies have measured.
    """

    rates: dict[int, float]  # samples/s by copy, 0: not measured yet
    least: int = 1
    _shares: dict[int, int] = field(default_factory=dict)
    _batch_size: int = 0
    _parts: int = 0
    _steps: int = 0
    _samples: dict[int, int] = field(default_factory=dict)
    _seconds: dict[int, float] = field(default_factory=dict)
    _reduce_s: list[float] = field(default_factory=list)
    _train_s: list[float] = field(default_factory=list)
    _slow: set[int] = field(default_factory=set)  # better left out, by the last measurement

    def shares(self, batch_size: int, parts: int = 1) -> dict[int, int]:
        """Return the samples of each copy, who trains them in `parts` parts.

        Those of the step before, unless the batch has another size or they were replaced.
        """
        if (batch_size, parts) != (self._batch_size, self._parts):
            self._batch_size, self._parts = batch_size, parts
            self._shares = self._cut(split_among_all)
        return self._shares

    def part(self, copy: int, batch_size: int, parts: int = 1) -> tuple[slice, int]:
        """Return which samples of a batch a copy trains, and how many of them count.

        A batch with too few samples for all copies leaves none for some. These train the first
        ones, which do not count.
        """
        mine = ranges(self.shares(batch_size, parts))[copy]
        if len(mine):
            return slice(mine.start, mine.stop), len(mine)
        return slice(min(batch_size, parts * self.least)), 0

    def _cut(self, by: Callable[[int, Mapping[int, float], int], dict[int, int]]) -> dict[int, int]:
        """Return shares whose parts have equal sizes, as their means are to have equal weights."""
        parts, size = self._parts, self._batch_size
        if size % parts:
            return by(size, self.rates, self.least * parts)
        return {
            copy: count * parts for copy, count in by(size // parts, self.rates, self.least).items()
        }

    def steps_per_s(self) -> dict[int, float]:
        """Return how many steps each copy would train alone in a second, 0 where not measured."""
        size = max(1, self._batch_size)
        return {copy: rate / size for copy, rate in self.rates.items()}

    def note(
        self, counts: Mapping[int, int], train_s: Mapping[int, float], reduce_s: Sequence[float]
    ) -> bool:
        """Note a step: samples and seconds by copy, and each copy's time in the reduction.

        Return whether shares and costs are due to be looked at. The last copy to come does not
        wait, so the shortest time in the reduction is what that costs.
        """
        self._steps += 1
        if self._steps == 1:  # may take a hundred times as long as the others
            return False
        for copy, count in counts.items():
            if count and train_s[copy] > 0:
                self._samples[copy] = self._samples.get(copy, 0) + count
                self._seconds[copy] = self._seconds.get(copy, 0.0) + train_s[copy]
        if self._steps > 2:  # each copy adds that of its step before
            self._reduce_s.append(min(reduce_s))
        self._train_s.append(max(train_s.values(), default=0.0))
        return self._steps in _EARLY or self._steps % _EVERY == 0

    def replace(self) -> list[int]:
        """Replace the shares where that pays; return the copies that are better left out.

        Only those that two measurements in a row find too slow: a single delay is not a speed.
        """
        for copy, seconds in self._seconds.items():
            self.rates[copy] = self._samples[copy] / seconds
        self._samples, self._seconds = {}, {}
        if not self._shares:
            return []
        best, kept = self._cut(split), self._cut(split_among_all)
        is_shorter = longest_s(best, self.rates) < (1 - 2 * _WORTH) * longest_s(kept, self.rates)
        slow = {copy for copy, count in best.items() if not count} if is_shorter else set()
        left_out, self._slow = slow & self._slow, slow
        if left_out and self._steps >= _LEFT_OUT_AFTER:
            return sorted(left_out)
        if longest_s(kept, self.rates) < (1 - _WORTH) * longest_s(self._shares, self.rates):
            self._shares = kept
        return []

    def costs_s(self) -> tuple[float, float]:
        """Return the median seconds of reduction and of training since the last call.

        0 where there were too few steps: a single one that was delayed says nothing.
        """
        if len(self._reduce_s) < _JUDGED_BY:
            return 0.0, 0.0
        found = _median(self._reduce_s), _median(self._train_s)
        self._reduce_s, self._train_s = [], []
        return found


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2] if values else 0.0
