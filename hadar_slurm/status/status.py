"""The use of the GPUs and the waiting jobs, from the last lines of a journal. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.journal import Line, changed_rows
from hadar_slurm.status.jobs import state_of

_NO_GANGS: Line = {}
# A node and a GPU type.
SlotKey = tuple[str, str]


@dataclass(frozen=True, slots=True)
class TypeUse:
    """The GPUs of one type: with managed jobs, with others, free, and free on closed nodes."""

    total: int = 0
    managed: int = 0
    others: int = 0
    free: int = 0
    closed: int = 0


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The last round of every mode in use; times in seconds since the epoch."""

    round: int
    time_s: float
    length_s: float
    took_s: float
    policy: str
    modes: tuple[str, ...]
    gpus: Mapping[GpuType, TypeUse]
    # Jobs by phase, or `pinned`.
    jobs: Mapping[str, int]
    # Jobs without GPUs by reason.
    waiting: Mapping[str, int]
    # By GPU type, in the policy's unit.
    prices: Mapping[str, float]
    # Why the round is incomplete.
    errors: tuple[str, ...] = ()
    # Jobs by remark, such as why a job is not migrated.
    remarks: Mapping[str, int] = field(default_factory=dict)


def json_names(pairs: Iterable[tuple[str, object]]) -> dict[str, object]:
    """Return fields by their names in JSON, where `managed` is `ours`; a `dict_factory`."""
    return {"ours" if name == "managed" else name: value for name, value in pairs}


def status_of(lines: Sequence[Line]) -> ClusterStatus | None:
    """Return the status in the last lines of a journal, at the newest one's time; None if none."""
    found = current(lines)
    if not found:
        return None
    last_s = max(float(line["time_s"]) for line in found)
    jobs = [job for line in found for job in line.get("jobs", {}).values()]
    waiting = Counter(why for line in found for why in line.get("waiting", {}).values())
    # The remark of a pinned job names its nodes; pinned jobs are counted by state.
    remarks = Counter(r for job in jobs if not job.get("pinned") for r in job.get("remarks", ()))
    # The first line of a round is of the furthest mode, whose prices count.
    first = found[0]
    return ClusterStatus(
        round=int(first["round"]),
        time_s=last_s,
        length_s=float(first["length_s"]),
        took_s=sum(sum(line["durations_s"].values()) for line in found),
        policy=str(first["policy"]),
        modes=tuple(str(line["mode"]) for line in found if line.get("mode")),
        gpus=use_of(found),
        jobs=dict(sorted(Counter(map(state_of, jobs)).items())),
        waiting=dict(sorted(waiting.items())),
        prices=prices_of(first.get("figures", {})),
        errors=tuple(error for line in found for error in line["errors"]),
        remarks=dict(remarks.most_common()),
    )


def prices_of(figures: Mapping[str, float]) -> dict[str, float]:
    """Return the prices by GPU type among a policy's figures."""
    prices = {name: price for name, price in figures.items() if name.startswith("price.")}
    return {name.removeprefix("price."): float(price) for name, price in prices.items()}


def current(lines: Sequence[Line]) -> list[Line]:
    """Return the newest line of each mode in use: one that wrote a line in the last round."""
    newest = {str(line.get("mode", "")): line for line in lines}
    last_s = max((float(line["time_s"]) for line in newest.values()), default=0.0)
    return [line for line in newest.values() if last_s - line["time_s"] <= line["length_s"]]


def use_of(lines: Sequence[Line]) -> dict[GpuType, TypeUse]:
    """Return the use of each GPU type by the lines of one round.

    GPUs that one mode's line counts as occupied may be held by a job of another mode.
    """
    return use_by([HeldGpus().at(line) for line in lines], lines[0])


def use_by(held: Sequence[Mapping[SlotKey, int]], first: Line) -> dict[GpuType, TypeUse]:
    """Return the use of each GPU type, from the GPUs held in each line of a round and the first."""
    managed = reduce(_added, held)
    occupied = _slots(first.get("occupied", {}))
    used = _added(held[0], occupied) if occupied else held[0]
    found: dict[str, list[int]] = {}
    for name, node in first.get("nodes", {}).items():
        is_open = node["open"]
        for gpu_type, total in node["gpus"].items():
            slot = (name, gpu_type)
            ours, busy = managed.get(slot, 0), used.get(slot, 0)
            sums = found.setdefault(gpu_type, [0, 0, 0, 0, 0])
            sums[0] += total
            sums[1] += ours
            sums[2] += busy - ours
            sums[3 if is_open else 4] += total - busy
    return {GpuType(name): TypeUse(*sums) for name, sums in sorted(found.items())}


@dataclass
class HeldGpus:
    """The GPUs held by the jobs of one mode, line by line; unchanged jobs cost almost nothing."""

    _jobs: Mapping[str, Line] = field(default_factory=dict)
    _gangs: dict[str, Line] = field(default_factory=dict)
    _held: Counter[SlotKey] = field(default_factory=Counter)

    def at(self, line: Line) -> Mapping[SlotKey, int]:
        """Return the GPUs held by a line's jobs; not to be changed."""
        jobs: Mapping[str, Line] = line.get("jobs", {})
        gangs, held = self._gangs, self._held.copy()
        changes = [(name, _NO_GANGS) for name in gangs if name not in jobs]
        changes += [(name, jobs[name]["holds"]) for name in changed_rows(self._jobs, jobs)]
        for name, new in changes:
            old = gangs.get(name, _NO_GANGS)
            if new is old or not (new or old):
                continue
            gangs[name] = new
            if not new:
                del gangs[name]
            for tree in old.values():
                held.subtract(_slots(tree))
            for tree in new.values():
                held.update(_slots(tree))
        self._jobs, self._held = jobs, held
        return held


def _added(one: Mapping[SlotKey, int], other: Mapping[SlotKey, int]) -> Mapping[SlotKey, int]:
    total = Counter(one)
    total.update(other)
    return total


def _slots(tree: Mapping[str, Mapping[str, int]]) -> dict[SlotKey, int]:
    return {(node, name): gpus for node, types in tree.items() for name, gpus in types.items()}
