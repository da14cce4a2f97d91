"""What hadard borrows of a job: a value that it sets, and gives back. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Generic, TypeVar

from hadar_slurm.core.cluster import NodeName


# Thousands of jobs exclude the same hundreds of nodes.
@lru_cache(maxsize=1024)
def as_set(nodes: tuple[NodeName, ...]) -> frozenset[NodeName]:
    """Return nodes in no order."""
    return frozenset(nodes)


@lru_cache(maxsize=1024)
def joined(one: tuple[NodeName, ...], other: tuple[NodeName, ...]) -> tuple[NodeName, ...]:
    """Return the names of both, sorted; a claim is written with them in this order."""
    return tuple(sorted({*one, *other}))


def _is_same(one: object, other: object) -> bool:
    """Compare values; node lists in any order."""
    if one is not other and isinstance(one, tuple) and isinstance(other, tuple) and one and other:
        return as_set(one) == as_set(other)
    return one == other


T = TypeVar("T")
# The number of its earlier values that hadard knows: slurmctld, restarted, may have lost the last.
_MOST_PAST = 3


@dataclass(frozen=True, slots=True)
class Loan(Generic[T]):
    """A value of a job that hadard borrows from its owner: nodes, a nice value, a time limit.

    A value that Slurm shows while it is lent, and that hadard has not set, is its owner's from then
    on (`is_kept`): hadard never writes it again, nor gives an earlier one back.
    """

    # As hadard has set it, as it was before that until Slurm has answered, and the owner's.
    ours: T
    former: T
    owners: T
    is_kept: bool = False
    past: tuple[T, ...] = field(default=(), compare=False)

    @property
    def is_lent(self) -> bool:
        """Whether Slurm may show another value than the owner's."""
        if self.is_kept or self.ours is self.owners is self.former:
            return False
        return not (_is_same(self.ours, self.owners) and _is_same(self.former, self.owners))

    @property
    def is_set(self) -> bool:
        """Whether hadard's last value is another one than the owner's."""
        return not (self.is_kept or _is_same(self.ours, self.owners))

    def is_ours(self, shown: T) -> bool:
        """Return whether a value that Slurm shows is the last of hadard's, or the one before."""
        return any(_is_same(shown, value) for value in (self.ours, self.former, *self.past))

    def owner_of(self, shown: T) -> T:
        """Return the owner's value where Slurm shows `shown`."""
        return self.owners if self.is_ours(shown) else shown

    def seen(self, shown: T | None) -> Loan[T]:
        """Return the loan after a reading; None: the value is in doubt."""
        if shown is None or not self.is_lent or self.is_ours(shown):
            return self
        return Loan(shown, shown, shown, is_kept=True)

    def lent(self, shown: T, ours: T, owners: T | None = None) -> Loan[T]:
        """Return the loan once hadard is about to set `ours` where Slurm shows `shown`."""
        if self.is_kept:
            return self
        owners = self.owner_of(shown) if owners is None else owners
        past = (self.ours, *self.past) if self.is_lent else ()
        past = tuple(value for value in past if not _is_same(value, owners))
        return Loan(ours, shown, owners, past=past[:_MOST_PAST])

    @property
    def refused(self) -> Loan[T]:
        """The loan once Slurm has refused a change, of which it may have made a part (22.05.8)."""
        return replace(self, ours=self.former, former=self.ours)

    @property
    def settled(self) -> Loan[T]:
        """The loan once Slurm has said that it has set the value."""
        return replace(self, former=self.ours)
