"""Who uses the GPUs: shares of their time, and the jobs, by user, account or array. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId
from hadar_slurm.journal import Line
from hadar_slurm.metrics import Segment
from hadar_slurm.status.arrays import array_of

_LARGEST = 1e18


class Labels(NamedTuple):
    """Whose a job is, and what it trains; "" where the journal does not say."""

    user: str = ""
    workload: str = ""
    account: str = ""

    @classmethod
    def of(cls, job: Line) -> Labels:
        """Return the labels of a job in a line of the journal."""
        return cls(str(job["user"]), str(job["workload"]), str(job.get("account", "")))


def number_of(value: object) -> float:
    """Return a number of a journal, 0 if it is not one."""
    return float(value) if isinstance(value, int | float) and abs(value) < _LARGEST else 0.0


# By what jobs can be grouped, and the group of a job.
GROUPS: Mapping[str, Callable[[str, Labels], str]] = {
    "user": lambda job_id, labels: labels.user,
    "account": lambda job_id, labels: labels.account,
    "array": lambda job_id, labels: array_of(job_id) or job_id,
}


@dataclass(slots=True)
class Use:
    """What the jobs of one group hold and held, `held_s` in GPU seconds, and how long they wait."""

    name: str
    held_s: float = 0.0
    share: float | None = None
    gpus: int = 0
    running: int = 0
    waiting: int = 0
    waited_s: float = 0.0


def use_by(
    group_of: Callable[[str, Labels], str],
    segments: Iterable[Segment],
    labels: Mapping[JobId, Labels],
    jobs: Mapping[str, Line],
    *,
    window: tuple[float, float],
    now_s: float,
) -> list[Use]:
    """Return the use by each group of managed jobs, the largest share first.

    `segments` are what managed jobs held, of which the part in `window` counts; `labels` are
    those of their jobs, and `jobs` the ones in the last round. A share is that of all GPU seconds
    of `segments`.
    """
    found: dict[str, Use] = {}
    from_s, to_s = window

    def use_of(job_id: str, labels: Labels) -> Use:
        name = group_of(job_id, labels)
        use = found.get(name)
        if use is None:
            use = found[name] = Use(name)
        return use

    for segment in segments:
        use = use_of(segment.job_id, labels.get(segment.job_id, Labels()))
        overlap_s = min(segment.end_s, to_s) - max(segment.start_s, from_s)
        use.held_s += max(0.0, overlap_s) * segment.gang.num_gpus
    for job_id, job in jobs.items():
        use = use_of(job_id, labels.get(JobId(job_id)) or Labels.of(job))
        if job["phase"] == "queued":
            use.waiting += 1
            use.waited_s = max(use.waited_s, now_s - number_of(job["submitted_s"]))
        else:
            use.running += 1
            use.gpus += sum(
                count for copy in job["holds"].values() for gpus in copy.values()
                for count in gpus.values()
            )  # fmt: skip
    total_s = sum(use.held_s for use in found.values())
    for use in found.values():
        use.share = use.held_s / total_s if total_s else None
    listed = [use for use in found.values() if use.held_s or use.running or use.waiting]
    return sorted(listed, key=lambda use: (-use.held_s, -use.gpus, -use.waiting, use.name))
