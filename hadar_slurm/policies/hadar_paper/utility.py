"""The utility of a job's finish at some time: dimensionless, in (0, 1], never rising with time.

Hadar (IPDPS'24, section III; the form follows OASiS, arXiv 1801.00936) leaves the utility
U_j(f_j - a_j) open. Raw effective throughput E_j N_j / (f_j - a_j) is in steps/s, which differ in
meaning between an LSTM and a ResNet-50; these divide by a time of the same job or snapshot, so that
doubling all throughputs does not change the order of jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job
from hadar_slurm.core.snapshot import Snapshot

# Lower bound of times, so that a job at its very end has a finite worth.
_SHORTEST_S = 1e-3
# Lower bound of the shortest time left: beside a job that is almost done, the worth of all other
# jobs would be below a solver's tolerances.
_LEAST_LEFT_S = 1.0

Utility = Callable[["FinishTimes"], float]


@dataclass(frozen=True, slots=True)
class FinishTimes:
    """The times from which the utility of a finish is computed, in seconds."""

    # Since submission.
    age_s: float
    # Until the finish under the candidate.
    left_s: float
    # For the whole job alone on its best type.
    ideal_s: float
    # For the whole job with a 1/n share of it, n being the jobs in the snapshot.
    share_s: float
    # The least time that any job of the snapshot needs to finish.
    shortest_s: float


def effective_throughput(times: FinishTimes) -> float:
    """Return ideal time over completion time: rewards total time duration (TTD).

    Hadar's effective throughput E_j N_j / (f_j - a_j), divided by the job's best throughput.
    """
    return min(1.0, times.ideal_s / max(_SHORTEST_S, times.age_s + times.left_s))


def shortest_remaining(times: FinishTimes) -> float:
    """Return the shortest time left of all jobs over the time left: rewards mean JCT (ours)."""
    return min(1.0, times.shortest_s / max(_SHORTEST_S, times.left_s))


def finish_time_fairness(times: FinishTimes) -> float:
    """Return 1 - 1/(1 + time on a fair share over completion time).

    Grows with 1/rho of Themis (NSDI'20), rho being completion time over the time on a 1/n share;
    bounded (our addition), so that one starved job does not outweigh all others.
    """
    ratio = times.share_s / max(_SHORTEST_S, times.age_s + times.left_s)
    return ratio / (1.0 + ratio)


UTILITIES: Mapping[str, Utility] = {
    "throughput": effective_throughput,
    "jct": shortest_remaining,
    "ftf": finish_time_fairness,
}


@dataclass(frozen=True, slots=True)
class Appraisal:
    """Values "job j is done in x seconds", for one snapshot."""

    utility: Utility
    now_s: float
    num_jobs: int
    shortest_s: float
    ideal_throughputs: Mapping[JobId, float]

    @classmethod
    def of(cls, snapshot: Snapshot, utility: Utility) -> Appraisal:
        """Return the appraisal of a snapshot's plannable jobs."""
        jobs, gpu_types = snapshot.plannable, tuple(snapshot.cluster.gpus_by_type)
        ideal = {j.job_id: j.spec.throughputs.best(gpu_types, j.spec.num_gpus) for j in jobs}
        left_s = [j.steps_left / ideal[j.job_id] for j in jobs if ideal[j.job_id] > 0]
        shortest_s = max(_LEAST_LEFT_S, min(left_s, default=_LEAST_LEFT_S))
        return cls(utility, snapshot.now_s, len(jobs), shortest_s, ideal)

    def value(self, job: Job, left_s: float) -> float:
        """Return what it is worth that `job` finishes `left_s` seconds from now."""
        ideal_throughput = self.ideal_throughputs[job.job_id]
        if ideal_throughput <= 0:
            return 0.0
        ideal_s = max(_SHORTEST_S, job.spec.total_steps / ideal_throughput)
        age_s = max(0.0, self.now_s - job.spec.submitted_s)
        share_s = ideal_s * max(1, self.num_jobs)
        return self.utility(FinishTimes(age_s, left_s, ideal_s, share_s, self.shortest_s))
