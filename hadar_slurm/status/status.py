"""The use of the GPUs and the waiting jobs, from the last lines of a journal. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from operator import add

from hadar_slurm.core.cluster import GpuType, Slot
from hadar_slurm.journal import Line, gang_from_tree
from hadar_slurm.status.jobs import state_of


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
    first = lines[0]
    managed = _held(lines)
    used = _held([first])
    used.update(dict(gang_from_tree(first.get("occupied", {})).slots))
    found: dict[GpuType, TypeUse] = {}
    for name, node in first.get("nodes", {}).items():
        for gpu_type, total in node["gpus"].items():
            slot, before = Slot(name, GpuType(gpu_type)), found.get(gpu_type, TypeUse())
            idle = total - used[slot]
            free, closed = (idle, 0) if node["open"] else (0, idle)
            here = (total, managed[slot], used[slot] - managed[slot], free, closed)
            found[slot.gpu_type] = TypeUse(*map(add, astuple(before), here))
    return dict(sorted(found.items()))


def _held(lines: Iterable[Line]) -> Counter[Slot]:
    """Return the GPUs held by the lines' jobs."""
    held: Counter[Slot] = Counter()
    for job in (job for line in lines for job in line.get("jobs", {}).values()):
        for tree in job["holds"].values():
            held.update(dict(gang_from_tree(tree).slots))
    return held
