"""The running jobs with one copy, as columns of numbers, so that one step advances all of them.

Each column has one number a job. The arithmetic is that of `SimJob`, operation by operation, so
every digit is equal. Such a job ends as soon as its last step is trained: it never averages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.gang import Allocation
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress
from hadar_slurm.sim.job import SimJob, least_steps

Floats = npt.NDArray[np.float64]

# Columns that a job brings and takes back: steps, GPU-seconds, and when it trains.
_STATE = ("trained_steps", "lost_steps", "productive_gpu_s", "unsaved", "ready_s")
_TRAINED, _LOST, _PRODUCTIVE, _UNSAVED, READY = range(len(_STATE))
# Columns that stay as they are while the job runs.
_TOTAL, THROUGHPUT, _GPUS, _LEAST = range(len(_STATE), len(_STATE) + 4)
_FIRST_TYPE = len(_STATE) + 4


class _Shown(NamedTuple):
    """What a snapshot shows of a job and that stays as it is while the job runs."""

    spec: JobSpec
    restarts: int
    allocation: Allocation
    # The types on which it has received service, each with its column.
    types: tuple[tuple[GpuType, int], ...]
    # The service received on types that the cluster does not have any more.
    past: tuple[tuple[GpuType, float], ...]


@dataclass(eq=False)
class Columns:
    """The jobs put in, until they are taken out with their numbers."""

    gpu_types: Sequence[GpuType]
    _jobs: list[SimJob] = field(default_factory=list)
    _row: dict[SimJob, int] = field(default_factory=dict)
    # By row.
    _shown: list[_Shown] = field(default_factory=list)
    # Put in since the last step.
    _fresh: list[SimJob] = field(default_factory=list)
    # By column, then job; the last columns are the service received and the GPUs held, by type.
    _all: Floats = field(init=False)

    def __post_init__(self) -> None:
        self._all = np.zeros((_FIRST_TYPE + 2 * len(self.gpu_types), 16))

    @property
    def used(self) -> Floats:
        """The numbers of the jobs, by column, then job."""
        return self._all[:, : len(self._jobs)]

    def put(self, job: SimJob) -> bool:
        """Put in a job that has the copy 0 only and trains; return whether it is one."""
        copy = job.copies.get(0)
        if copy is None or len(job.copies) != 1 or copy.throughput <= 0:
            return False
        row = self._row[job] = len(self._jobs)
        self._jobs.append(job)
        self._shown.append(self._to_show(job))
        if row == self._all.shape[1]:
            self._all = np.concatenate([self._all, np.zeros_like(self._all)], axis=1)
        gpus = copy.gang.gpus_by_type
        self._all[:, row] = [
            job.trained_steps, job.lost_steps, job.productive_gpu_s, copy.unsaved, copy.ready_s,
            job.spec.total_steps, copy.throughput, copy.gang.num_gpus, least_steps(copy.throughput),
            *(job.service.get(gpu_type, 0.0) for gpu_type in self.gpu_types),
            *(gpus.get(gpu_type, 0) for gpu_type in self.gpu_types),
        ]  # fmt: skip
        self._fresh.append(job)
        return True

    def take(self, job: SimJob) -> bool:
        """Take out a job, and give it its numbers; return whether it was in."""
        row = self._row.pop(job, None)
        if row is None:
            return False
        self._give(job, self._all[:, row].tolist())
        last, shown = self._jobs.pop(), self._shown.pop()
        if last is not job:
            self._shown[row] = shown
            self._all[:, row] = self._all[:, len(self._jobs)]
            self._jobs[row], self._row[last] = last, row
        return True

    def give_all(self) -> None:
        """Give every job its numbers."""
        for job, numbers in zip(self._jobs, self.used.T.tolist(), strict=True):
            self._give(job, numbers)

    def _give(self, job: SimJob, numbers: Sequence[float]) -> None:
        (copy,) = job.copies.values()
        job.trained_steps, job.lost_steps = numbers[_TRAINED], numbers[_LOST]
        job.productive_gpu_s = numbers[_PRODUCTIVE]
        copy.unsaved, copy.ready_s = numbers[_UNSAVED], numbers[READY]
        received = dict(zip(self.gpu_types, numbers[_FIRST_TYPE:], strict=False))
        # A type that the cluster does not have any more receives nothing.
        job.service = {k: received.get(k, service) for k, service in job.service.items()}

    def reader(self) -> Callable[[], list[Job]]:
        """Return a function that makes the jobs of a snapshot as they are now, whenever called."""
        used, shown = self.used, self._shown.copy()
        done = used[_TRAINED] - used[_LOST]
        received = used[_FIRST_TYPE : _FIRST_TYPE + len(self.gpu_types)].copy()

        def read() -> list[Job]:
            running, jobs = Phase.RUNNING, []
            numbers = zip(shown, done.tolist(), received.T.tolist(), strict=True)
            for (spec, restarts, allocation, types, past), steps_done, by_column in numbers:
                service = tuple([(gpu_type, by_column[at]) for gpu_type, at in types])
                if past:
                    service = tuple(sorted(service + past))
                jobs.append(Job(spec, running, Progress(steps_done, restarts, service), allocation))
            return jobs

        return read

    def _to_show(self, job: SimJob) -> _Shown:
        column = {gpu_type: at for at, gpu_type in enumerate(self.gpu_types)}
        types = tuple([(k, column[k]) for k in sorted(job.service) if k in column])
        past = tuple([(k, service) for k, service in job.service.items() if k not in column])
        return _Shown(
            job.spec, restarts=job.restarts, allocation=job.allocation, types=types, past=past
        )

    def ends_s(self, now_s: float) -> Floats:
        """Return when each job ends if it keeps its GPUs."""
        used = self.used
        left = np.maximum(0.0, used[_TOTAL] - (used[_TRAINED] - used[_LOST]))
        ends_s: Floats = np.maximum(used[READY], now_s) + left / used[THROUGHPUT]
        return ends_s

    def advance(
        self, now_s: float, to_s: float, ends_s: Floats, trains_until_s: Floats | None = None
    ) -> list[tuple[SimJob, float]]:
        """Train from `now_s` to `to_s`, as `SimJob.advance`; return the ended jobs and their ends.

        `ends_s` are those from `now_s` on.
        """
        self._note_types()
        used, num_types = self.used, len(self.gpu_types)
        held_s = np.maximum(0.0, np.minimum(to_s, ends_s) - now_s)
        until_s = np.minimum(
            to_s if trains_until_s is None else np.minimum(to_s, trains_until_s), ends_s
        )
        trains_s = np.maximum(0.0, until_s - np.maximum(used[READY], now_s))
        steps = trains_s * used[THROUGHPUT]
        used[_UNSAVED] += steps
        used[_TRAINED] += steps
        used[_PRODUCTIVE] += trains_s * used[_GPUS]
        used[_FIRST_TYPE : _FIRST_TYPE + num_types] += held_s * used[_FIRST_TYPE + num_types :]
        left = used[_TOTAL] - (used[_TRAINED] - used[_LOST])
        ended = np.flatnonzero(left <= used[_LEAST]).tolist()
        return [(self._jobs[row], float(ends_s[row])) for row in ended]

    def _note_types(self) -> None:
        """Note on which types the jobs put in receive service from now on, as `SimJob.advance`."""
        for job in self._fresh:
            row = self._row.get(job)
            if row is not None:
                for gpu_type in job.copies[0].gang.gpus_by_type:
                    job.service.setdefault(gpu_type, 0.0)
                self._shown[row] = self._to_show(job)
        self._fresh.clear()

    def save(self, now_s: float) -> None:
        """End a round: save the steps."""
        used = self.used
        used[READY] = np.maximum(used[READY], now_s)
        used[_UNSAVED] = 0.0
