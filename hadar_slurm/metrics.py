"""What a run was worth, from its journal: completion times, duration, use of the GPUs. Pure.

JCT is the time from a job's submission to its end; TTD (total time duration) from the first
submission to the last end; utilisation of a GPU type is the share of its GPU-time that jobs held,
from the first submission to the last end or, in a run under way, to the last round. All in seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.journal import Line, gang_from_tree


class Segment(NamedTuple):
    """A job on a gang, from start to end in seconds."""

    job_id: JobId
    gang: Gang
    start_s: float
    end_s: float


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
    """Return who held what, from the jobs that each round of a journal saw.

    A gang's segment begins with the start that was carried out and ends with its stop, the job's
    end, or the first round that saw the job queued again.
    """
    found: list[Segment] = []
    running: dict[JobId, tuple[Gang, float]] = {}

    def close(job_id: JobId, end_s: float) -> None:
        if job_id in running:
            gang, start_s = running.pop(job_id)
            found.append(Segment(job_id, gang, start_s, end_s))

    last_s = 0.0
    for line in lines:
        last_s = float(line["time_s"])
        for job_id, end in line.get("ended", {}).items():
            close(JobId(job_id), float(end["end_s"]))
        for job_id, job in line.get("jobs", {}).items():
            if job["phase"] == "queued":
                close(JobId(job_id), last_s)
        for action in line["actions"]:
            if action["status"] != "done":
                continue
            job_id = JobId(action["job"])
            if action["do"] == "stop":
                close(job_id, last_s)
            elif action["do"] == "start":
                running[job_id] = (gang_from_tree(action["gang"]), last_s)
    for job_id in list(running):
        close(job_id, last_s)
    return sorted(found, key=lambda segment: (segment.start_s, segment.job_id))


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


def figures(
    submitted: Mapping[str, float],
    ended: Mapping[str, float],
    held: Iterable[Segment],
    capacity: Mapping[str, int],
) -> Summary:
    """Return the figures of a run from when jobs came, ended, and what they held."""
    held = list(held)
    done = {job: end_s - submitted[job] for job, end_s in ended.items() if job in submitted}
    first_s = min(submitted.values(), default=0.0)
    ttd_s = max((ended[job] for job in done), default=first_s) - first_s
    seen_s = max([ttd_s, *(segment.end_s - first_s for segment in held)])
    busy = dict.fromkeys(capacity, 0.0)
    for segment in held:
        for kind, count in segment.gang.gpus_by_type.items():
            busy[kind] = busy.get(kind, 0.0) + count * (segment.end_s - segment.start_s)
    return Summary(
        jobs=len(submitted),
        finished=len(done),
        ttd_s=ttd_s,
        mean_jct_s=sum(done.values()) / len(done) if done else 0.0,
        moves=len(held) - len({segment.job_id for segment in held}),
        utilization={
            kind: busy[kind] / (count * seen_s) if seen_s > 0 else 0.0
            for kind, count in sorted(capacity.items())
        },
    )
