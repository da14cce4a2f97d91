"""A journal's history for the page and the metrics, of bounded size.

The GPUs of a job are those in the last round's snapshot, plus later starts and minus later stops. A
daemon with several modes writes a line for each, which counts the other modes' jobs as unmanaged;
here the lines are merged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId
from hadar_slurm.journal import VERSION, Line
from hadar_slurm.metrics import Segment, Segments
from hadar_slurm.status.jobs import Forked
from hadar_slurm.web.lines import (
    DAMAGE,
    Book,
    Holds,
    RoundRow,
    Slots,
    Tree,
    by_reach,
    forked_jobs,
    holds_of,
    limit_s,
    partition_of,
    row_of,
    slots_of,
    time_of,
)

MAX_BARS = 20_000
MAX_POINTS = 5_000
MAX_ROUNDS = 200
# A mode without a line for this many rounds is of a former configuration.
_FORGET_ROUNDS = 3.0
# The job id for all unmanaged jobs.
OTHERS = JobId("")


class Gpus(NamedTuple):
    """GPUs of one type: total, held by managed jobs, held by others, and closed to new work."""

    total: int
    held: int
    others: int
    closed: int

    @property
    def idle(self) -> int:
        """Return the number of GPUs free for new work."""
        return max(0, self.total - self.held - self.others - self.closed)


class Point(NamedTuple):
    """The GPUs and prices by type from a time on, in seconds."""

    time_s: float
    gpus: Mapping[str, Gpus]
    prices: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Now:
    """The state after the last round; `seen_s` is the time of the last snapshot.

    `jobs` are those of the journal, `waiting` has the reasons, `planned` are the jobs with GPUs in
    the plan; `copies` counts gangs held by their jobs' phase, `forked` has the copies of forked
    jobs. `number` is that of the last round.
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
    forked: Mapping[str, Forked] = field(default_factory=dict)
    number: int = 0
    gpus: Mapping[str, Gpus] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    nodes: Mapping[str, Line] = field(default_factory=dict)


class History:
    """Collects lines and gives the present and past state; `strange` counts lines left out."""

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
        self.partitions: set[str] = set()
        self._lines: dict[str, Line] = {}
        self._last_s: dict[str, float] = {}
        self._books: dict[str, Book] = {}
        # GPUs of unmanaged jobs count as copies of one job, one copy per slot.
        self._others = Book(Segments())
        self._lane_of: dict[tuple[str, str], int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no round has been read."""
        return not self._last_s

    def add(self, line: Line) -> bool:
        """Add a round; return whether the line was valid."""
        try:
            if line["version"] != VERSION:
                raise ValueError(f"journal version {line['version']!r}")
            row = row_of(line)
            holds = holds_of(line)
            self._take_in(line, row, holds)
        except DAMAGE:
            self.strange += 1
            return False
        return True

    def bars(self, until_s: float | None = None) -> Iterator[Segment]:
        """Yield the segments; unmanaged jobs have the id `OTHERS`.

        Open segments end at `until_s`, by default at the last round.
        """
        until_s = self.now.time_s if until_s is None else until_s
        for book in (*self._books.values(), self._others):
            yield from book.segments.found
            for job_id, copies in book.segments.open.items():
                for copy, (gang, start_s) in copies.items():
                    yield Segment(job_id, gang, start_s, max(start_s, until_s), copy)

    def places(self) -> dict[str, list[Segment]]:
        """Return the segments that every job holds now."""
        held: dict[str, list[Segment]] = {}
        for book in self._books.values():
            for job_id, copies in book.segments.open.items():
                held.setdefault(job_id, []).extend(
                    Segment(job_id, gang, start_s, self.now.time_s, copy)
                    for copy, (gang, start_s) in sorted(copies.items())
                )
        return held

    def gangs(self) -> Iterator[tuple[JobId, Tree]]:
        """Yield every gang held now, with its job."""
        for book in self._books.values():
            for (job_id, _), tree in book.trees.items():
                yield job_id, tree

    def held_share(self, gpu_type: str, from_s: float, to_s: float) -> float | None:
        """Return the share of a type's GPU time held by managed jobs, None if there was none."""
        held = total = 0.0
        for point, until_s in self.spans(from_s, to_s):
            gpus = point.gpus.get(gpu_type)
            if gpus:
                lasts_s = until_s - max(point.time_s, from_s)
                held += gpus.held * lasts_s
                total += gpus.total * lasts_s
        return held / total if total else None

    def spans(self, from_s: float, to_s: float) -> Iterator[tuple[Point, float]]:
        """Yield the points in effect between two times, each with its end."""
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

    def _take_in(self, line: Line, row: RoundRow, holds: Holds) -> None:
        mode, now_s = row.mode, row.time_s
        if not self.is_empty and now_s < self.now.time_s - limit_s(line):
            self._begin_anew()
        if self.is_empty:
            self.begins_s = now_s
            self.is_epoch = bool(mode)
        self._last_s[mode] = now_s
        self._forget(now_s, float(line["length_s"]))
        self.rounds.append(row)
        if "nodes" in line:
            self._lines[mode] = line
            book = self._books.setdefault(mode, Book(Segments()))
            self._book(book, line, holds, now_s)
        self.now = self._stand(line, now_s)
        self.partitions.update(map(partition_of, self.now.jobs.values()))
        if "nodes" in line:
            self._note_others(now_s)
            self._prune()
            point = Point(now_s, self.now.gpus, self.now.prices)
            if self.points and self.points[-1].time_s >= now_s:
                self.points.pop()
            self.points.append(point)

    def _book(self, book: Book, line: Line, holds: Holds, now_s: float) -> None:
        for job_id, end in line["ended"].items():
            book.end(JobId(job_id), time_of(end["end_s"]))
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
        for mode in reversed(by_reach(lines)):
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
        nodes = lines[by_reach(lines)[0]]["nodes"] if lines else {}
        return Now(
            time_s=now_s,
            seen_s=max((float(seen["time_s"]) for seen in lines.values()), default=None),
            length_s=float(line["length_s"]),
            policy=str(line["policy"]),
            modes=tuple(mode for mode in by_reach(self._last_s) if mode),
            jobs=jobs,
            waiting=waiting,
            planned=frozenset(job for seen in lines.values() for job in seen["plan"] or ()),
            copies=dict(copies),
            forked={k: v for seen in lines.values() for k, v in forked_jobs(seen).items()},
            number=int(line["round"]),
            gpus=self._gpus(nodes),
            prices=prices,
            nodes=nodes,
        )

    def _held(self) -> Counter[tuple[str, str]]:
        held: Counter[tuple[str, str]] = Counter()
        for book in self._books.values():
            held.update(book.slots())
        return held

    def _others_now(self) -> Slots:
        """Return the GPUs held by jobs that no mode manages.

        Each mode counts the other modes' jobs as unmanaged, by its snapshot before its own actions.
        """
        if not self._lines:
            return {}
        mode = by_reach(self._lines)[0]
        others = Counter(slots_of(self._lines[mode]["occupied"]))
        for name, line in self._lines.items():
            if name != mode:
                for job in line["jobs"].values():
                    for tree in job["holds"].values():
                        others.subtract(slots_of(tree))
        return {slot: count for slot, count in others.items() if count > 0}

    def _gpus(self, nodes: Mapping[str, Line]) -> dict[str, Gpus]:
        held, others = self._held(), self._others_now()
        counts: dict[str, list[int]] = {}
        for name, node in nodes.items():
            for gpu_type, total in node["gpus"].items():
                slot = (name, gpu_type)
                used = min(total, held[slot])
                theirs = min(total - used, others.get(slot, 0))
                closed = 0 if node["open"] else total - used - theirs
                sums = counts.setdefault(gpu_type, [0, 0, 0, 0])
                for index, value in enumerate((total, used, theirs, closed)):
                    sums[index] += value
        return {gpu_type: Gpus(*counts[gpu_type]) for gpu_type in sorted(counts)}

    def _note_others(self, now_s: float) -> None:
        holds: dict[tuple[JobId, int], Tree] = {}
        for (node, gpu_type), count in self._others_now().items():
            lane = self._lane_of.setdefault((node, gpu_type), len(self._lane_of))
            holds[OTHERS, lane] = {node: {gpu_type: count}}
        self._others.hold(holds, now_s)

    def _prune(self) -> None:
        """Drop the oldest bars when there are too many, and unused names."""
        books = [*self._books.values(), self._others]
        if sum(len(book.segments.found) for book in books) < self._max_bars:
            return
        ends = sorted(bar.end_s for book in books for bar in book.segments.found)
        self.begins_s = ends[len(ends) // 2]
        for book in books:
            book.segments.found = [b for b in book.segments.found if b.end_s > self.begins_s]
        needed = {bar.job_id for bar in self.bars()}
        self.names = {job_id: name for job_id, name in self.names.items() if job_id in needed}
