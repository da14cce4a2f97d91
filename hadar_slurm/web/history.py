"""A journal's history for the page and the metrics, of bounded size.

The GPUs of a job are those in the last round's snapshot, plus later starts and minus later stops. A
daemon with several modes writes a line for each, which counts the other modes' jobs as unmanaged;
here the lines are merged.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import add
from typing import NamedTuple

from hadar_slurm.core.claims import Credit, Judged
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.journal import VERSIONS, Line
from hadar_slurm.journal.values import credits_of, judged_of
from hadar_slurm.metrics import Segment, Segments
from hadar_slurm.status.claims import MAX_JUDGED, ClaimsSeen
from hadar_slurm.status.jobs import Forked
from hadar_slurm.status.status import prices_of
from hadar_slurm.status.use import Labels
from hadar_slurm.web.lines import (
    DAMAGE,
    Holds,
    Observed,
    RoundRow,
    Slots,
    by_reach,
    row_of,
    slots_of,
    time_of,
)

MAX_BARS = 20_000
MAX_POINTS = 5_000
MAX_ROUNDS = 200
# Clocks are set back by seconds; a larger step back means another run.
_ANOTHER_RUN_S = 3600.0
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
    """The state after the last round."""

    time_s: float = 0.0
    # The time of the last snapshot.
    seen_s: float | None = None
    length_s: float = 0.0
    policy: str = ""
    modes: tuple[str, ...] = ()
    jobs: Mapping[str, Line] = field(default_factory=dict)
    # Reasons by job.
    waiting: Mapping[str, str] = field(default_factory=dict)
    # The jobs with GPUs in the plan.
    planned: frozenset[str] = frozenset()
    # Gangs held, by their jobs' phase.
    copies: Mapping[str, int] = field(default_factory=dict)
    forked: Mapping[str, Forked] = field(default_factory=dict)
    number: int = 0
    gpus: Mapping[str, Gpus] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    nodes: Mapping[str, Line] = field(default_factory=dict)


class _Book(Segments):
    """Segments as observed in rounds."""

    def start(self, job_id: JobId, copy: int, gang: Gang, start_s: float) -> None:
        """Begin a segment, unless the copy already holds this gang."""
        held = self.open.get(job_id, {}).get(copy)
        if held is None or held[0] != gang:
            self.stop(job_id, copy, start_s)
            super().start(job_id, copy, gang, start_s)

    def stop_all(self, job_id: JobId, end_s: float) -> None:
        """End a job's segments, not before their start."""
        for copy, (_, start_s) in list(self.open.get(job_id, {}).items()):
            self.stop(job_id, copy, max(start_s, end_s))

    def hold(self, holds: Holds, now_s: float) -> None:
        """Set the gangs that all jobs hold now."""
        for job_id, copy in [(job, copy) for job, copies in self.open.items() for copy in copies]:
            if (job_id, copy) not in holds:
                self.stop(job_id, copy, now_s)
        for (job_id, copy), gang in holds.items():
            self.start(job_id, copy, gang, now_s)

    def held(self, until_s: float) -> Iterator[Segment]:
        """Yield the open segments as if they ended at `until_s`."""
        for job_id, copies in self.open.items():
            for copy, (gang, start_s) in copies.items():
                yield Segment(
                    job_id, gang=gang, start_s=start_s, end_s=max(start_s, until_s), copy=copy
                )


class JournalView:
    """Collects lines and gives the present and past state; `strange` counts lines left out."""

    def __init__(self, *, max_bars: int = MAX_BARS) -> None:
        self.strange = 0
        self._max_bars = max_bars
        self._reset()

    def _reset(self) -> None:
        self.now = Now()
        self.begins_s = 0.0
        self.is_epoch = True
        self.labels: dict[JobId, Labels] = {}
        self.claims = ClaimsSeen(MAX_JUDGED)
        self.points: deque[Point] = deque(maxlen=MAX_POINTS)
        self.rounds: deque[RoundRow] = deque(maxlen=MAX_ROUNDS)
        self.partitions: set[str] = set()
        self._lines: dict[str, Line] = {}
        self._seen: dict[str, Observed] = {}
        self._last_s: dict[str, float] = {}
        self._books: dict[str, _Book] = {}
        # GPUs of unmanaged jobs count as copies of one job, one copy per slot.
        self._others = _Book()
        self._lane_of: dict[tuple[str, str], int] = {}

    @property
    def is_empty(self) -> bool:
        """Whether no round has been read."""
        return not self._last_s

    def add(self, line: Line) -> bool:
        """Add a round; return whether the line was valid."""
        try:
            if line["version"] not in VERSIONS:
                raise ValueError(f"journal version {line['version']!r}")
            seen = self._seen.get(str(line.get("mode", "")), Observed())
            claims = judged_of(line), credits_of(line)
            self._add_valid(line, row_of(line), Observed.of(line, seen), claims)
        except DAMAGE:
            self.strange += 1
            return False
        return True

    def bars(self, until_s: float | None = None) -> Iterator[Segment]:
        """Yield all segments; open ones end at `until_s`, by default at the last round."""
        until_s = self.now.time_s if until_s is None else until_s
        for book in (*self._books.values(), self._others):
            yield from book.found
            yield from book.held(until_s)

    def places(self) -> dict[str, list[Segment]]:
        """Return the segments that every job holds now."""
        held: defaultdict[str, list[Segment]] = defaultdict(list)
        for segment in sorted(self.held(), key=lambda each: each.copy):
            held[segment.job_id].append(segment)
        return held

    def held(self) -> list[Segment]:
        """Return the segments of managed jobs that are open now."""
        return [bar for book in self._books.values() for bar in book.held(self.now.time_s)]

    def held_share(self, gpu_type: str, from_s: float, to_s: float) -> float | None:
        """Return the share of a type's GPU time held by managed jobs, None if there was none."""
        held = total = 0.0
        for point, until_s in self.spans(from_s, to_s):
            if gpus := point.gpus.get(gpu_type):
                lasts_s = until_s - max(point.time_s, from_s)
                held += gpus.held * lasts_s
                total += gpus.total * lasts_s
        return held / total if total else None

    def spans(self, from_s: float, to_s: float) -> Iterator[tuple[Point, float]]:
        """Yield the points in effect between two times, each with its end."""
        points = list(self.points)
        first = max(0, bisect_right(points, from_s, key=lambda point: point.time_s) - 1)
        for point, after in zip_longest(points[first:], points[first + 1 :]):
            if point.time_s >= to_s:
                return
            yield point, to_s if after is None else min(after.time_s, to_s)

    def _add_valid(
        self,
        line: Line,
        row: RoundRow,
        seen: Observed,
        claims: tuple[list[Judged], Mapping[str, Credit]],
    ) -> None:
        mode, now_s = row.mode, row.time_s
        may_step_s = _ANOTHER_RUN_S if line.get("mode") else 0.0
        if not self.is_empty and now_s < self.now.time_s - may_step_s:
            self._reset()
        if self.is_empty:
            self.begins_s = now_s
            self.is_epoch = bool(mode)
        self._last_s[mode] = now_s
        self._forget(now_s, float(line["length_s"]))
        self.rounds.append(row)
        self.claims.see(*claims)
        if "nodes" in line:
            self._lines[mode], self._seen[mode] = line, seen
            book = self._books.setdefault(mode, _Book())
            for name, end in line["ended"].items():
                book.stop_all(JobId(name), time_of(end["end_s"]))
            book.hold(seen.holds, now_s)
            book.act(line, now_s)
            for job_id in book.open.keys() & line["jobs"].keys():
                self.labels[job_id] = Labels.of(line["jobs"][job_id])
        self.now = self._summary(line, now_s)
        self.partitions |= seen.partitions
        if "nodes" in line:
            others: Holds = {}
            for slot, count in self._others_now().items():
                lane = self._lane_of.setdefault(slot, len(self._lane_of))
                others[OTHERS, lane] = Gang.of({slot: count})
            self._others.hold(others, now_s)
            self._prune()
            point = Point(now_s, self.now.gpus, self.now.prices)
            if self.points and self.points[-1].time_s >= now_s:
                self.points.pop()
            self.points.append(point)

    def _forget(self, now_s: float, length_s: float) -> None:
        for mode, last_s in list(self._last_s.items()):
            if now_s - last_s > _FORGET_ROUNDS * length_s:
                book = self._books.pop(mode, _Book())
                for job_id in list(book.open):
                    book.stop_all(job_id, last_s)
                self._others.found += book.found
                self._lines.pop(mode, None)
                self._seen.pop(mode, None)
                self._last_s.pop(mode)

    def _summary(self, line: Line, now_s: float) -> Now:
        lines = self._lines
        jobs: dict[str, Line] = {}
        waiting: dict[str, str] = {}
        prices: dict[str, float] = {}
        for mode in reversed(by_reach(lines)):
            jobs |= lines[mode]["jobs"]
            waiting |= lines[mode]["waiting"]
            prices |= prices_of(lines[mode]["figures"])
        held = self.held()
        lost = {"phase": "running"}
        phases = Counter(jobs.get(bar.job_id, lost)["phase"] for bar in held)
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
            copies=dict(phases),
            forked={k: v for seen in self._seen.values() for k, v in seen.forked.items()},
            number=int(line["round"]),
            gpus=self._gpus(nodes, held),
            prices=prices,
            nodes=nodes,
        )

    def _others_now(self) -> Slots:
        """Return the GPUs held by jobs that no mode manages.

        Each mode counts the other modes' jobs as unmanaged, by its snapshot before its own actions.
        """
        if not self._lines:
            return {}
        mode = by_reach(self._lines)[0]
        others = Counter(slots_of(self._lines[mode]["occupied"]))
        for line in (line for name, line in self._lines.items() if name != mode):
            for job in line["jobs"].values():
                for tree in job["holds"].values():
                    others.subtract(slots_of(tree))
        return dict(+others)

    def _gpus(self, nodes: Mapping[str, Line], bars: Iterable[Segment]) -> dict[str, Gpus]:
        others = self._others_now()
        held: defaultdict[tuple[str, str], int] = defaultdict(int)
        for bar in bars:
            for slot, count in bar.gang.slots:
                held[slot] += count
        found: dict[str, Gpus] = {}
        for name, node in nodes.items():
            for gpu_type, total in node["gpus"].items():
                managed = min(total, held[name, gpu_type])
                unmanaged = min(total - managed, others.get((name, gpu_type), 0))
                closed = 0 if node["open"] else total - managed - unmanaged
                here = (total, managed, unmanaged, closed)
                found[gpu_type] = Gpus(*map(add, found.get(gpu_type, (0, 0, 0, 0)), here))
        return dict(sorted(found.items()))

    def _prune(self) -> None:
        """Drop the oldest bars when there are too many, and unused labels."""
        books = [*self._books.values(), self._others]
        if sum(len(book.found) for book in books) < self._max_bars:
            return
        ends = sorted(bar.end_s for book in books for bar in book.found)
        self.begins_s = ends[len(ends) // 2]
        for book in books:
            book.found = [bar for bar in book.found if bar.end_s > self.begins_s]
        needed = {bar.job_id for bar in self.bars()}
        self.labels = {job_id: own for job_id, own in self.labels.items() if job_id in needed}
