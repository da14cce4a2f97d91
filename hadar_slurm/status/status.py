"""The use of the GPUs and the waiting jobs, from the last lines of a journal. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.journal import Line
from hadar_slurm.journal.decoder import Changed
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
    # Jobs with which no valid plan can be made, and why.
    left_out: Mapping[str, str] = field(default_factory=dict)


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
        left_out={job: why for line in found for job, why in line.get("left_out", {}).items()},
    )


def prices_of(figures: Mapping[str, float]) -> dict[str, float]:
    """Return the prices by GPU type among a policy's figures."""
    prices = {name: price for name, price in figures.items() if name.startswith("price.")}
    return {name.removeprefix("price."): float(price) for name, price in prices.items()}


def current(lines: Sequence[Line]) -> list[Line]:
    """Return the newest line of each mode in use: one that wrote a line in the last round."""
    newest = {mode_of(line): line for line in lines}
    last_s = max((float(line["time_s"]) for line in newest.values()), default=0.0)
    return [line for line in newest.values() if last_s - line["time_s"] <= line["length_s"]]


def use_of(lines: Sequence[Line]) -> dict[GpuType, TypeUse]:
    """Return the use of each GPU type by the lines of one round, one of each mode."""
    use = GpuUse()
    for line in lines:
        use.add(line)
    return use.of([mode_of(line) for line in lines])


@dataclass(slots=True)
class _Observed:
    """What the last line of a mode says of GPUs."""

    nodes: Line = field(default_factory=dict)
    occupied: Line = field(default_factory=dict)
    gangs: dict[str, Line] = field(default_factory=dict)
    held: Counter[SlotKey] = field(default_factory=Counter)


@dataclass
class GpuUse:
    """The use of each GPU type, line by line; what has not changed costs almost nothing."""

    _modes: dict[str, _Observed] = field(default_factory=dict)
    # Nodes to sum again, and the modes that were summed.
    _changed: set[str] = field(default_factory=set)
    _summed: Sequence[str] = ()
    # For each GPU type of a node, and of all nodes, the numbers of a `TypeUse` and of nodes.
    _of_nodes: dict[str, dict[str, Sequence[int]]] = field(default_factory=dict)
    _sums: dict[str, list[int]] = field(default_factory=dict)

    def add(self, line: Line, changed: Changed = None) -> None:
        """Read a line; `changed` is what may differ from the line before of its mode."""
        mode = self._modes.setdefault(mode_of(line), _Observed())
        nodes, occupied, jobs = (line.get(name, {}) for name in ("nodes", "occupied", "jobs"))
        if changed is None:
            changed = {
                "nodes": {**mode.nodes, **nodes},
                "occupied": {**mode.occupied, **occupied},
                "jobs": {**mode.gangs, **jobs},
            }
        self._changed.update(changed.get("nodes", ()), changed.get("occupied", ()))
        # A line's tables may change with the next line.
        mode.nodes, mode.occupied = dict(nodes), dict(occupied)
        for name in changed.get("jobs", ()):
            old = mode.gangs.get(name, _NO_GANGS)
            new = jobs[name]["holds"] if name in jobs else _NO_GANGS
            if new is old or not (new or old):
                continue
            mode.gangs[name] = new
            if not new:
                del mode.gangs[name]
            for gangs, sign in ((old, -1), (new, 1)):
                for tree in gangs.values():
                    self._changed.update(tree)
                    mode.held.update({slot: sign * gpus for slot, gpus in _slots(tree).items()})

    def of(self, modes: Sequence[str]) -> dict[GpuType, TypeUse]:
        """Return the use by the last lines of some modes, by the first one's nodes.

        GPUs that one mode's line counts as occupied may be held by a job of another mode.
        """
        first, *others = (self._modes[mode] for mode in modes)
        if modes != self._summed:
            self._summed = modes
            self._changed.update(self._of_nodes, first.nodes)
        for name in self._changed:
            self._count(self._of_nodes.pop(name, {}), -1)
            if name in first.nodes:
                self._of_nodes[name] = _use_of_node(name, first, others)
                self._count(self._of_nodes[name], 1)
        self._changed.clear()
        found = ((name, sums) for name, (*sums, nodes) in sorted(self._sums.items()) if nodes)
        return {GpuType(name): TypeUse(*sums) for name, sums in found}

    def _count(self, use: Mapping[str, Sequence[int]], sign: int) -> None:
        for gpu_type, numbers in use.items():
            sums = self._sums.setdefault(gpu_type, [0] * len(numbers))
            sums[:] = [a + sign * b for a, b in zip(sums, numbers, strict=True)]


def _use_of_node(
    name: str, first: _Observed, others: Iterable[_Observed]
) -> dict[str, Sequence[int]]:
    node, occupied = first.nodes[name], first.occupied.get(name, {})
    found: dict[str, Sequence[int]] = {}
    for gpu_type, total in node["gpus"].items():
        slot = (name, gpu_type)
        busy = first.held[slot] + occupied.get(gpu_type, 0)
        managed = first.held[slot] + sum(other.held[slot] for other in others)
        free = (total - busy, 0) if node["open"] else (0, total - busy)
        found[gpu_type] = (total, managed, busy - managed, *free, 1)
    return found


def mode_of(line: Line) -> str:
    """Return a line's mode, "" for that of a simulation."""
    return str(line.get("mode", ""))


def _slots(tree: Mapping[str, Mapping[str, int]]) -> dict[SlotKey, int]:
    return {(node, name): gpus for node, types in tree.items() for name, gpus in types.items()}
