"""What running jobs report: their progress, and the speeds that are learned from it."""

from __future__ import annotations

import logging
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path

from hadar_slurm.core.cluster import GpuType, JobId
from hadar_slurm.core.job import JobSpec, Progress
from hadar_slurm.core.throughput_model import Place
from hadar_slurm.engine.notices import Notices
from hadar_slurm.job_files import ProgressReport, ReportError, SquattedError, read_report
from hadar_slurm.jobspec.description import MAX_THROUGHPUT, MIN_THROUGHPUT
from hadar_slurm.jobspec.estimator import Estimator, workload_of
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.jobs.seen import SeenJob


@dataclass
class Reports:
    """The reports of jobs, in the directory `spool`."""

    spool: Path
    estimator: Estimator
    notices: Notices
    # Report directories that another user has made, so that no report can come, since `begin`.
    squatted: set[str] = field(default_factory=set)
    # The time of the last report of each job from which its speed was learned.
    _reported_s: dict[JobId, float] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin a round of reading."""
        self.squatted.clear()

    def keep(self, alive: Container[JobId]) -> None:
        """Forget all other jobs."""
        self._reported_s = {k: time_s for k, time_s in self._reported_s.items() if k in alive}

    def read(self, row: QueueRow) -> ProgressReport | None:
        """Return the last report of a job; None where there is none that can be trusted."""
        if row.state == "PENDING" and row.restarts == 0:
            return None
        try:
            return read_report(self.spool, row.raw_id, owner_uid=row.user_id)
        except SquattedError as error:
            self.squatted.add(str(error))
        except ReportError as error:
            self.notices.say(row.key, f"has a report that is ignored: {error}", logging.WARNING)
        return None

    def measure(self, seen: SeenJob) -> None:
        """Record the reported steps/s of a run, for the job and for jobs of the same workload."""
        row, report = seen.row, seen.report
        place = Place.of(seen.gang) if seen.gang is not None else None
        # Without a workload, there is no other job that these figures are of.
        is_of_work = bool(seen.description.workload) and row.state == "RUNNING"
        if not is_of_work or report is None or place is None:
            return
        is_new = seen.reports_run and self._reported_s.get(row.key) != report.time_s
        if is_new and MIN_THROUGHPUT <= report.steps_per_s <= MAX_THROUGHPUT:
            self._reported_s[row.key] = report.time_s
            workload = workload_of(seen.description, row.user)
            self.estimator.speeds.measure(workload, place, report.steps_per_s)

    def progress(self, seen: SeenJob, spec: JobSpec) -> Progress:
        """Return a job's progress: by its report, or else by how long it has been running.

        The latter only where its steps are a measure of time, and from what its earlier runs have
        kept: of a job that saved when asked and does not report, nothing.
        """
        row, report, gang = seen.row, seen.report, seen.gang
        if report is not None and self.estimator.counts_real_steps(seen.description, row.user):
            is_lost = report.restart < row.restarts and report.saved_s > 0
            steps = float(report.saved_steps if is_lost else report.steps_done)
        elif not seen.description.steps:
            steps = seen.claim.kept_part * spec.total_steps
            if gang is not None:
                steps += seen.ran_s * gang.throughput(spec.throughputs)
        else:
            steps = 0.0
        steps = min(steps, float(spec.total_steps))
        # The GPU-seconds are an estimate: Slurm forgets how long a requeued job ran before. All
        # steps count as trained on the type that the job holds now, or else on its fastest.
        gpu_type = spec.fastest_of(gang.gpus_by_type if gang else spec.throughputs.gpu_types)
        throughput = spec.throughput_on(gpu_type)
        service_s = steps / throughput if throughput > 0 else 0.0
        service_s = spec.gpus_on(gpu_type) * max(service_s, seen.ran_s if gang else 0.0)
        had = ((GpuType(gpu_type), service_s),) if service_s else ()
        return Progress(steps, row.restarts, had)
