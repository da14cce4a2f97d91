"""What the page and the metrics remember of a journal's rounds; its size is bounded.

What a job holds is what the last round saw, and what has been started and stopped since. A daemon
with several modes writes a line for each, which sees the other modes' jobs as others'; here they
are put together again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hadar_slurm.core.cluster import JobId
from hadar_slurm.journal import VERSION, Line, gang_from_tree
from hadar_slurm.metrics import Segment, Segments

MAX_BARS = 20_000
MAX_POINTS = 5_000
MAX_ROUNDS = 200
# A mode without a line for so many rounds is one of a former configuration.
_FORGET_ROUNDS = 3.0
# Clocks are set back by seconds; by so much it is another run.
_ANOTHER_RUN_S = 3600.0
# The year 9000, which a calendar still knows.
_LAST_S = 2.2e11
# What taking in a line raises that is not as it should be.
DAMAGE = (KeyError, TypeError, ValueError, AttributeError)
# Others' jobs are one job each slot to us.
OTHERS = JobId("")

_Tree = Mapping[str, Mapping[str, int]]
_Slots = dict[tuple[str, str], int]


class Gpus(NamedTuple):
    """GPUs of one type: in all, held by Hadar's jobs, held by others, and closed to new work."""

    total: int
    held: int
    others: int
    closed: int

    @property
    def idle(self) -> int:
        """Return how many could take work now."""
        return max(0, self.total - self.held - self.others - self.closed)


class Point(NamedTuple):
    """The GPUs and prices by type from a time on, in seconds."""

    time_s: float
    gpus: Mapping[str, Gpus]
    prices: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One round in short; `did` counts its actions by (what, status), times are seconds."""

    number: int
    time_s: float
    mode: str
    wake: str
    jobs: int
    waiting: int
    did: Mapping[tuple[str, str], int]
    work_s: float
    plan_s: float
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Now:
    """How things stand after the last round; `seen_s` is when the cluster was last seen.

    `jobs` are as the journal tells them, `waiting` has the reasons, `planned` are those that are to
    have GPUs; `copies` counts gangs held by their jobs' phase.
    """

    time_s: float = 0.0
    seen_s: float | None = None
    length_s: float = 0.0
    policy: str = ""
    modes: tuple[str, ...] = ()
    jobs: Mapping[str, Line] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)
    planned: frozenset[str] = frozenset()
    copies: Mapping[str, int] = field(default_factory=dict)
    gpus: Mapping[str, Gpus] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    nodes: Mapping[str, Line] = field(default_factory=dict)


@dataclass
class _Book:
    """Who holds what in one mode, with the gangs as the journal has them."""

    segments: Segments
    trees: dict[tuple[JobId, int], _Tree] = field(default_factory=dict)

    def start(self, job_id: JobId, copy: int, tree: _Tree, now_s: float) -> None:
        key = (job_id, copy)
        if self.trees.get(key) == tree:
            return
        self.stop(job_id, copy, now_s)
        self.trees[key] = tree
        gang = gang_from_tree({node: dict(gpus) for node, gpus in tree.items()})
        self.segments.start(job_id, copy, gang, now_s)

    def stop(self, job_id: JobId, copy: int, now_s: float) -> None:
        if self.trees.pop((job_id, copy), None) is not None:
            self.segments.stop(job_id, copy, now_s)

    def hold(self, holds: Mapping[tuple[JobId, int], _Tree], now_s: float) -> None:
        """Take in what all jobs hold now."""
        for job_id, copy in [key for key in self.trees if key not in holds]:
            self.stop(job_id, copy, now_s)
        for (job_id, copy), tree in holds.items():
            self.start(job_id, copy, tree, now_s)

    def end(self, job_id: JobId, end_s: float) -> None:
        for copy, (_, start_s) in list(self.segments.open.get(job_id, {}).items()):
            self.stop(job_id, copy, max(start_s, end_s))

    def slots(self) -> Counter[tuple[str, str]]:
        """Return how many GPUs are held by (node, type)."""
        held: Counter[tuple[str, str]] = Counter()
        for tree in self.trees.values():
            held.update(_slots(tree))
        return held


class History:
    """Takes in lines and tells how things stand and stood; `strange` counts lines left out."""

    def __init__(self, *, max_bars: int = MAX_BARS) -> None:
        self.strange = 0
        self._max_bars = max_bars
        self._begin_anew()

    def _begin_anew(self) -> None:
        self.now = Now()
        self.begins_s = 0.0
        self.is_epoch = True
        self.names: dict[JobId, tuple[str, str]] = {}
        self.points: deque[Point] = deque(maxlen=MAX_POINTS)
        self.rounds: deque[RoundRow] = deque(maxlen=MAX_ROUNDS)
        self._lines: dict[str, Line] = {}
        self._last_s: dict[str, float] = {}
        self._books: dict[str, _Book] = {}
        # Others' GPUs count as copies of one job, a copy for each slot.
        self._others = _Book(Segments())
        self._lane_of: dict[tuple[str, str], int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no round has been read."""
        return not self._last_s

    def add(self, line: Line) -> bool:
        """Take in a round; return whether it was one."""
        try:
            if line["version"] != VERSION:
                raise ValueError(f"journal version {line['version']!r}")
            row = _row(line)
            checked = _checked(line)
            self._take_in(line, row, checked)
        except DAMAGE:
            self.strange += 1
            return False
        return True

    def bars(self, until_s: float | None = None) -> Iterator[Segment]:
        """Yield who held what; `OTHERS` for jobs that are not Hadar's.

        What is held still ends at `until_s`, by default at the last round.
        """
        until_s = self.now.time_s if until_s is None else until_s
        for book in (*self._books.values(), self._others):
            yield from book.segments.found
            for job_id, copies in book.segments.open.items():
                for copy, (gang, start_s) in copies.items():
                    yield Segment(job_id, gang, start_s, max(start_s, until_s), copy)

    def places(self) -> dict[str, list[Segment]]:
        """Return what every job holds now."""
        held: dict[str, list[Segment]] = {}
        for book in self._books.values():
            for job_id, copies in book.segments.open.items():
                held.setdefault(job_id, []).extend(
                    Segment(job_id, gang, start_s, self.now.time_s, copy)
                    for copy, (gang, start_s) in sorted(copies.items())
                )
        return held

    def held_share(self, kind: str, from_s: float, to_s: float) -> float | None:
        """Return what share of a type's GPU-time Hadar's jobs held, None if there was none."""
        held = total = 0.0
        for point, until_s in self.spans(from_s, to_s):
            gpus = point.gpus.get(kind)
            if gpus:
                lasts_s = until_s - max(point.time_s, from_s)
                held += gpus.held * lasts_s
                total += gpus.total * lasts_s
        return held / total if total else None

    def spans(self, from_s: float, to_s: float) -> Iterator[tuple[Point, float]]:
        """Yield the points that count between two times, each with when it ceases to."""
        times = [point.time_s for point in self.points]
        first = max(0, bisect_right(times, from_s) - 1)
        for index in range(first, len(times)):
            if times[index] >= to_s:
                return
            yield (
                self.points[index],
                min(times[index + 1] if index + 1 < len(times) else to_s, to_s),
            )

    # Taking in a line.

    def _take_in(self, line: Line, row: RoundRow, holds: _Holds) -> None:
        mode, now_s = row.mode, row.time_s
        if not self.is_empty and now_s < self.now.time_s - _limit_s(line):
            self._begin_anew()
        if self.is_empty:
            self.begins_s = now_s
            self.is_epoch = bool(mode)
        self._last_s[mode] = now_s
        self._forget(now_s, float(line["length_s"]))
        self.rounds.append(row)
        if "nodes" in line:
            self._lines[mode] = line
            book = self._books.setdefault(mode, _Book(Segments()))
            self._book(book, line, holds, now_s)
        self.now = self._stand(line, now_s)
        if "nodes" in line:
            self._note_others(now_s)
            self._prune()
            point = Point(now_s, self.now.gpus, self.now.prices)
            if self.points and self.points[-1].time_s >= now_s:
                self.points.pop()
            self.points.append(point)

    def _book(self, book: _Book, line: Line, holds: _Holds, now_s: float) -> None:
        for job_id, end in line["ended"].items():
            book.end(JobId(job_id), _time(end["end_s"]))
        book.hold(holds, now_s)
        for action in line["actions"]:
            if action["status"] == "done":
                job_id, copy = JobId(action["job"]), int(action["copy"])
                if action["do"] == "stop":
                    book.stop(job_id, copy, now_s)
                elif action["do"] == "start":
                    book.start(job_id, copy, action["gang"], now_s)
        for job_id, _ in book.trees:
            job = line["jobs"].get(job_id)
            if job is not None:
                self.names[job_id] = (str(job["user"]), str(job["workload"]))

    def _forget(self, now_s: float, length_s: float) -> None:
        for mode, last_s in list(self._last_s.items()):
            if now_s - last_s <= _FORGET_ROUNDS * length_s:
                continue
            if mode in self._books:
                for job_id in list(self._books[mode].segments.open):
                    self._books[mode].end(job_id, last_s)
                self._others.segments.found += self._books.pop(mode).segments.found
            self._lines.pop(mode, None)
            self._last_s.pop(mode)

    def _stand(self, line: Line, now_s: float) -> Now:
        lines = self._lines
        jobs: dict[str, Line] = {}
        waiting: dict[str, str] = {}
        prices: dict[str, float] = {}
        for mode in reversed(_by_reach(lines)):
            jobs |= lines[mode]["jobs"]
            waiting |= lines[mode]["waiting"]
            prices |= {
                name.removeprefix("price."): float(value)
                for name, value in lines[mode]["figures"].items()
                if name.startswith("price.")
            }
        copies: Counter[str] = Counter()
        for book in self._books.values():
            for job_id, _ in book.trees:
                copies[jobs[job_id]["phase"] if job_id in jobs else "running"] += 1
        nodes = lines[_by_reach(lines)[0]]["nodes"] if lines else {}
        return Now(
            time_s=now_s,
            seen_s=max((float(seen["time_s"]) for seen in lines.values()), default=None),
            length_s=float(line["length_s"]),
            policy=str(line["policy"]),
            modes=tuple(mode for mode in _by_reach(self._last_s) if mode),
            jobs=jobs,
            waiting=waiting,
            planned=frozenset(job for seen in lines.values() for job in seen["plan"] or ()),
            copies=dict(copies),
            gpus=self._gpus(nodes),
            prices=prices,
            nodes=nodes,
        )

    def _held(self) -> Counter[tuple[str, str]]:
        held: Counter[tuple[str, str]] = Counter()
        for book in self._books.values():
            held.update(book.slots())
        return held

    def _others_now(self) -> _Slots:
        """Return the GPUs held by jobs that no mode cares for.

        Each mode counts the other modes' jobs as others', by what it saw: none of its own actions.
        """
        if not self._lines:
            return {}
        mode = _by_reach(self._lines)[0]
        others = Counter(_slots(self._lines[mode]["occupied"]))
        for name, line in self._lines.items():
            if name != mode:
                for job in line["jobs"].values():
                    for tree in job["holds"].values():
                        others.subtract(_slots(tree))
        return {slot: count for slot, count in others.items() if count > 0}

    def _gpus(self, nodes: Mapping[str, Line]) -> dict[str, Gpus]:
        held, others = self._held(), self._others_now()
        counts: dict[str, list[int]] = {}
        for name, node in nodes.items():
            for kind, total in node["gpus"].items():
                slot = (name, kind)
                used = min(total, held[slot])
                theirs = min(total - used, others.get(slot, 0))
                closed = 0 if node["open"] else total - used - theirs
                sums = counts.setdefault(kind, [0, 0, 0, 0])
                for index, value in enumerate((total, used, theirs, closed)):
                    sums[index] += value
        return {kind: Gpus(*counts[kind]) for kind in sorted(counts)}

    def _note_others(self, now_s: float) -> None:
        holds: dict[tuple[JobId, int], _Tree] = {}
        for (node, kind), count in self._others_now().items():
            lane = self._lane_of.setdefault((node, kind), len(self._lane_of))
            holds[OTHERS, lane] = {node: {kind: count}}
        self._others.hold(holds, now_s)

    def _prune(self) -> None:
        """Drop the oldest bars when there are too many, and the names nobody needs any more."""
        books = [*self._books.values(), self._others]
        if sum(len(book.segments.found) for book in books) < self._max_bars:
            return
        ends = sorted(bar.end_s for book in books for bar in book.segments.found)
        self.begins_s = ends[len(ends) // 2]
        for book in books:
            book.segments.found = [b for b in book.segments.found if b.end_s > self.begins_s]
        needed = {bar.job_id for bar in self.bars()}
        self.names = {job_id: name for job_id, name in self.names.items() if job_id in needed}


_Holds = dict[tuple[JobId, int], _Tree]
_JOB_KEYS = frozenset(
    ("phase", "user", "workload", "gpus", "submitted_s", "steps", "steps_done", "restarts")
)
_REACH = ("enforce", "advise", "observe", "")


def _by_reach(modes: Mapping[str, Any]) -> list[str]:
    """Return modes from the one that goes furthest."""
    return sorted(modes, key=lambda mode: _REACH.index(mode) if mode in _REACH else len(_REACH))


def _limit_s(line: Line) -> float:
    return _ANOTHER_RUN_S if line.get("mode") else 0.0


def _slots(tree: _Tree) -> _Slots:
    return {(node, kind): int(count) for node, gpus in tree.items() for kind, count in gpus.items()}


def _time(value: float) -> float:
    if not 0 <= value <= _LAST_S:
        raise ValueError(f"{value!r} is no time")
    return float(value)


def _row(line: Line) -> RoundRow:
    parts = {name: float(value) for name, value in line["durations_s"].items()}
    return RoundRow(
        number=int(line["round"]),
        time_s=_time(line["time_s"]),
        mode=str(line.get("mode", "")),
        wake=str(line["wake"]),
        jobs=len(line.get("jobs", {})),
        waiting=len(line["waiting"]),
        did=Counter((str(a["do"]), str(a["status"])) for a in line["actions"]),
        work_s=sum(parts.values()),
        plan_s=parts.get("plan", 0.0),
        errors=tuple(str(error) for error in line["errors"]),
    )


def _checked(line: Line) -> _Holds:
    """Return what jobs hold by (job, copy); raises where a line is not as it should be."""
    if "nodes" not in line:
        return {}
    for node in line["nodes"].values():
        if not all(isinstance(count, int) for count in node["gpus"].values()):
            raise ValueError("a node's GPUs are not counted")
    _slots(line["occupied"])
    holds: _Holds = {}
    for job_id, job in line["jobs"].items():
        if not job.keys() >= _JOB_KEYS:
            raise ValueError(f"job {job_id} is told of by half")
        for copy, tree in job["holds"].items():
            _slots(tree)
            holds[JobId(job_id), int(copy)] = tree
    return holds
