"""When simulated runs reach their time limits.

Slurm counts from the start of each run, also of a job that has been requeued, and ends the run at
its limit. What the owner wrote holds on every GPU type, unless hadard adjusts it to the type that
the job gets (`--hadar-time-on`), as in `core/time_limit.py`; no partition's limit is known here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.time_limit import limits_by_type
from hadar_slurm.sim.job import SimCopy, SimJob


def limit_on(spec: JobSpec, gang: Gang, *, is_adjusted: bool) -> float:
    """Return the seconds after which a run on a gang is ended; inf without a limit.

    Adjusted, it is that on the type for which it was written, longer on slower ones, and that of
    the slowest in a mixed gang.
    """
    if not is_adjusted or spec.limit_s == math.inf:
        return spec.limit_s
    written_for, size = spec.limit_type, spec.num_gpus
    found = limits_by_type(spec.throughputs, size, spec.limit_s, measured_on=written_for)
    limits_s = (found.get(gpu_type.lower(), spec.limit_s) for gpu_type in gang.gpus_by_type)
    return max(limits_s, default=spec.limit_s)


@dataclass
class RunLimits:
    """The limits of the runs that go on; `adjusts` says whether they are those of their types."""

    adjusts: bool = False
    # By time: when it ends, a number that differs, and what runs.
    _due: list[tuple[float, int, SimJob, int, SimCopy]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=count)
    # How many copies of each job were ended so.
    _ended: Counter[JobId] = field(default_factory=Counter)

    def begin(self, job: SimJob, number: int, now_s: float) -> None:
        """Begin to count for a copy of a job that has just started."""
        copy = job.copies[number]
        ends_s = now_s + limit_on(job.spec, copy.gang, is_adjusted=self.adjusts)
        if ends_s < math.inf:
            heappush(self._due, (ends_s, next(self._numbers), job, number, copy))

    def next_s(self) -> float:
        """Return when the next run reaches its limit; inf if none does."""
        while self._due:
            ends_s, _, job, number, copy = self._due[0]
            if job.copies.get(number) is copy:
                return ends_s
            heappop(self._due)  # that run has ended otherwise
        return math.inf

    def reached(self, now_s: float) -> Iterator[tuple[SimJob, int, bool]]:
        """Yield the jobs with the copies whose runs are at their limits, until none is left.

        And whether the job is lost: no other copy runs, or as many were ended so as it may have,
        since a task that Slurm has ended does not come back.
        """
        while self.next_s() <= now_s:
            _, _, job, number, _ = heappop(self._due)
            self._ended[job.spec.job_id] += 1
            is_last = self._ended[job.spec.job_id] >= job.spec.max_copies
            yield job, number, is_last or len(job.copies) == 1
