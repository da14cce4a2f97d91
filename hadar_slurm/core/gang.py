"""GPUs that train in lock-step, and what a job holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from hadar_slurm.core.cluster import GpuType, NodeName, Slot, summed
from hadar_slurm.core.throughput import Throughputs


@dataclass(frozen=True)
class Gang:
    """GPUs in lock-step: ((node, type), count), sorted and without zero counts."""

    slots: tuple[tuple[Slot, int], ...]

    @classmethod
    def of(cls, counts: Mapping[tuple[str, str], int]) -> Gang:
        """Return the gang with `counts` GPUs of each (node, GPU type)."""
        slots = (
            (Slot(NodeName(n), GpuType(k)), count) for (n, k), count in counts.items() if count
        )
        return cls(tuple(sorted(slots)))

    @cached_property
    def num_gpus(self) -> int:
        """Return the gang's size."""
        return sum(count for _, count in self.slots)

    @cached_property
    def gpus_by_node(self) -> Mapping[NodeName, int]:
        """Return the number of GPUs on each node."""
        return dict(summed((slot.node, count) for slot, count in self.slots))

    @cached_property
    def gpus_by_type(self) -> Mapping[GpuType, int]:
        """Return the number of GPUs of each type."""
        return dict(sorted(summed((slot.gpu_type, n) for slot, n in self.slots).items()))

    @property
    def is_spread(self) -> bool:
        """Whether the gang spans nodes."""
        return len(self.gpus_by_node) > 1

    def throughput(self, throughputs: Throughputs, *, counts_spread: bool = True) -> float:
        """Return the gang's steps/s; without `counts_spread`, as if it were on one node."""
        is_spread = counts_spread and self.is_spread
        if len(self.gpus_by_type) == 1:
            return throughputs.on(self.slots[0][0].gpu_type, self.num_gpus, is_spread=is_spread)
        return throughputs.of_gang(self.gpus_by_type, self.num_gpus, is_spread=is_spread)

    def __str__(self) -> str:
        return " ".join(f"{slot.node}:{slot.gpu_type}:{count}" for slot, count in self.slots)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Copy number to gang. A rigid job has the one copy 0; a job that holds nothing has none."""

    copies: tuple[tuple[int, Gang], ...] = ()
    # The slots of all gangs with their numbers of GPUs: read for every job in every round.
    slots: tuple[tuple[Slot, int], ...] = field(init=False, repr=False, compare=False)
    # Whether it has the copy 0 and no other.
    is_rigid: bool = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        slots = [pair for _, gang in self.copies for pair in gang.slots]
        object.__setattr__(self, "slots", tuple(slots))
        object.__setattr__(self, "is_rigid", len(self.copies) == 1 and self.copies[0][0] == 0)

    @classmethod
    def of(cls, copies: Mapping[int, Gang]) -> Allocation:
        """Return the allocation with these copies."""
        return cls(tuple(sorted(copies.items())))

    @classmethod
    def rigid(cls, gang: Gang) -> Allocation:
        """Return the allocation of a job with one copy."""
        return cls(((0, gang),))

    @property
    def gangs(self) -> tuple[Gang, ...]:
        """Return the gangs of all copies."""
        return tuple(gang for _, gang in self.copies)

    def __bool__(self) -> bool:
        return bool(self.copies)

    def throughput(self, throughputs: Throughputs, *, counts_spread: bool = True) -> float:
        """Return the steps/s of all copies together under `throughputs`."""
        return sum(gang.throughput(throughputs, counts_spread=counts_spread) for gang in self.gangs)
