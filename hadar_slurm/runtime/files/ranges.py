"""Sets of step numbers, as ranges: the steps of a training that are done, or to do.

A forked job's steps are numbered 0 to `total_steps` - 1, and the number of a step alone decides
which samples it sees. So dealing out only undone steps repeats no sample and skips none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Ranges:
    """A set of step numbers as half-open ranges: sorted, apart, none empty."""

    pairs: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, pairs: Iterable[Iterable[int]]) -> Ranges:
        """Return the union of ranges; raises ValueError for an impossible one."""
        merged: list[tuple[int, int]] = []
        for first, end in sorted((int(first), int(end)) for first, end in pairs):
            if not 0 <= first <= end:
                raise ValueError(f"[{first}, {end}) is no range of step numbers")
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            elif first < end:
                merged.append((first, end))
        return cls(tuple(merged))

    def __len__(self) -> int:
        return sum(end - first for first, end in self.pairs)

    def __iter__(self) -> Iterator[int]:
        for first, end in self.pairs:
            yield from range(first, end)

    def __or__(self, other: Ranges) -> Ranges:
        return Ranges.of((*self.pairs, *other.pairs))

    def __sub__(self, other: Ranges) -> Ranges:
        left: list[tuple[int, int]] = []
        for first, end in self.pairs:
            for gone, gone_end in other.pairs:
                if gone < end and gone_end > first:
                    left += [(first, gone)] if first < gone else []
                    first = gone_end
            left += [(first, end)] if first < end else []
        return Ranges(tuple(left))

    def __and__(self, other: Ranges) -> Ranges:
        return self - (self - other)

    def first(self, count: int) -> Ranges:
        """Return the lowest `count` steps, or all of them where there are no more."""
        taken: list[tuple[int, int]] = []
        for first, end in self.pairs:
            if count > 0:
                taken.append((first, min(end, first + count)))
            count -= end - first
        return Ranges(tuple(taken))


def deal(
    todo: Ranges, quotas: Mapping[int, int], ahead: Mapping[int, Ranges] | None = None
) -> dict[int, Ranges]:
    """Deal every copy its number of steps, the earliest of `todo` first.

    Steps lost in earlier intervals so come before new ones. The steps of `todo` that a copy may
    have trained `ahead`, no two copies the same, come first. Copies are served by number, and get
    fewer where no more are left.
    """
    dealt = {
        copy: ((ahead or {}).get(copy, Ranges()) & todo).first(quota)
        for copy, quota in sorted(quotas.items())
    }
    for steps in dealt.values():
        todo -= steps
    for copy, own in dealt.items():
        more = todo.first(quotas[copy] - len(own))
        dealt[copy] = own | more
        todo -= more
    return dealt
