"""Figures of a run from its journal: completion times, duration, use of the GPUs. Pure.

JCT is the time from a job's submission to its end; TTD (total time duration) from the first
submission to the last end; utilisation of a GPU type is the share of its GPU time that jobs held,
from the first submission to the last end (of an unfinished run: to the last round). All in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.engine.actions import Renew, Start, Status, Stop
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.journal import Line
from hadar_slurm.journal.values import gang_from_tree


class Segment(NamedTuple):
    """A copy of a job on a gang, from start to end in seconds."""

    job_id: JobId
    gang: Gang
    start_s: float
    end_s: float
    copy: int = 0


@dataclass
class Segments:
    """Collects the segments of a run, round by round."""

    found: list[Segment] = field(default_factory=list)
    open: dict[JobId, dict[int, tuple[Gang, float]]] = field(default_factory=dict)
    # The jobs that have ever had another copy than 0.
    _forked: set[JobId] = field(default_factory=set)

    def start(self, job_id: JobId, copy: int, gang: Gang, start_s: float) -> None:
        """Begin a segment."""
        self.open.setdefault(job_id, {})[copy] = (gang, start_s)
        if copy:
            self._forked.add(job_id)

    def stop(self, job_id: JobId, copy: int, end_s: float) -> None:
        """End a copy's segment if it has one."""
        if copy in (copies := self.open.get(job_id, {})):
            gang, start_s = copies.pop(copy)
            self.found.append(Segment(job_id, gang=gang, start_s=start_s, end_s=end_s, copy=copy))
            if not copies:
                del self.open[job_id]

    def stop_all(self, job_id: JobId, end_s: float) -> None:
        """End the segments of all copies of a job."""
        for copy in list(self.open.get(job_id, ())):
            self.stop(job_id, copy, end_s)

    def act(self, line: Line, now_s: float) -> None:
        """Add the actions of a journal's line that were carried out."""
        for action in line["actions"]:
            job_id, copy = JobId(action["job"]), int(action["copy"])
            match action["do"], action["status"]:
                case "stop", "done":
                    self.stop(job_id, copy, now_s)
                case "start", "done":
                    self.start(job_id, copy, gang_from_tree(action["gang"]), now_s)

    def add(self, record: RoundRecord) -> None:
        """Add one round's snapshot and actions."""
        if record.snapshot is None:
            return
        now_s = record.snapshot.now_s
        for end in record.snapshot.ended:
            self.stop_all(end.job_id, end.end_s)
        running, others = record.snapshot.running, record.snapshot.others_by_id
        done = Status.DONE
        # Running jobs have the one copy 0, and so have those of `open` that were never forked.
        are_clear = not self._forked and self.open.keys() <= running.keys()
        for job_id in () if are_clear else list(self.open):
            if job_id in running and job_id not in self._forked:
                continue
            # A copy that holds its gang no longer lost it with its node.
            other = others[job_id].allocation if job_id in others else Allocation()
            held = dict(running.get(job_id, other).copies)
            for copy in [copy for copy in self.open[job_id] if copy not in held]:
                self.stop(job_id, copy, now_s)
        changes = [out for out in record.outcomes if type(out.action) is not Renew]
        for outcome in changes:
            action = outcome.action
            if outcome.status is not done:
                continue
            if isinstance(action, Stop):
                self.stop(action.job_id, action.copy, now_s)
            elif isinstance(action, Start):
                self.start(action.job_id, action.copy, action.gang, now_s)

    def all(self) -> list[Segment]:
        """Return the segments that have ended, by start."""
        return sorted(self.found, key=lambda segment: (segment.start_s, segment.job_id))


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run; times in seconds."""

    jobs: int
    finished: int
    ttd_s: float
    mean_jct_s: float
    moves: int
    utilization: Mapping[str, float]


def segments(lines: Iterable[Line]) -> list[Segment]:
    """Return the segments in a journal's rounds.

    A segment begins with an executed start and ends with the stop, the job's end, or the first
    round with the job queued again.
    """
    book = Segments()
    last_s = 0.0
    for line in lines:
        last_s = float(line["time_s"])
        for job_id, end in line.get("ended", {}).items():
            book.stop_all(JobId(job_id), float(end["end_s"]))
        for job_id, job in line.get("jobs", {}).items():
            if job["phase"] == "queued":
                book.stop_all(JobId(job_id), last_s)
        book.act(line, last_s)
    for job_id in list(book.open):
        book.stop_all(job_id, last_s)
    return book.all()


def summarize(lines: Iterable[Line]) -> Summary:
    """Return the figures of a whole journal."""
    lines = list(lines)
    submitted: dict[str, float] = {}
    ended: dict[str, float] = {}
    capacity: Counter[str] = Counter()
    for line in lines:
        for job_id, job in line.get("jobs", {}).items():
            submitted.setdefault(job_id, float(job["submitted_s"]))
        for job_id, end in line.get("ended", {}).items():
            if end["phase"] == "done":
                ended[job_id] = float(end["end_s"])
        for node in line.get("nodes", {}).values() if not capacity else ():
            capacity.update(node["gpus"])
    return figures(submitted, ended, segments(lines), capacity)


def num_moves(held: Iterable[Segment]) -> int:
    """Return the number of starts beyond the first of each job."""
    starts = Counter(segment.job_id for segment in held)
    return sum(starts.values()) - len(starts)


def figures(
    submitted: Mapping[str, float],
    ended: Mapping[str, float],
    held: Iterable[Segment],
    capacity: Mapping[str, int],
) -> Summary:
    """Return the figures of a run from submission times, end times, segments, GPUs by type."""
    held = list(held)
    done = {job: end_s - submitted[job] for job, end_s in ended.items() if job in submitted}
    first_s = min(submitted.values(), default=0.0)
    ttd_s = max((ended[job] for job in done), default=first_s) - first_s
    seen_s = max([ttd_s, *(segment.end_s - first_s for segment in held)])
    busy = dict.fromkeys(capacity, 0.0)
    for segment in held:
        for gpu_type, count in segment.gang.gpus_by_type.items():
            busy[gpu_type] = busy.get(gpu_type, 0.0) + count * (segment.end_s - segment.start_s)
    return Summary(
        jobs=len(submitted),
        finished=len(done),
        ttd_s=ttd_s,
        mean_jct_s=sum(done.values()) / len(done) if done else 0.0,
        moves=num_moves(held),
        utilization={
            gpu_type: busy[gpu_type] / (count * seen_s) if seen_s > 0 else 0.0
            for gpu_type, count in sorted(capacity.items())
        },
    )
