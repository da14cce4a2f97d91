"""What finishing a job at some time is worth. Dimensionless, in (0, 1], never rising with time.

Hadar (IPDPS'24, section III; the form follows OASiS, arXiv 1801.00936) leaves the utility
U_j(f_j - a_j) open. Raw effective throughput E_j N_j / (f_j - a_j) is in steps/s, which an LSTM
and a ResNet-50 do not share; ours divide by a time of the same job or of the same snapshot, so
that doubling all throughputs changes nobody's place in line.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hadar_slurm.core.job import Job
from hadar_slurm.core.snapshot import Snapshot

# Times below this are taken as this, so that a job at its very end has a finite worth.
_SHORTEST_S = 1e-3
# The shortest time of all is taken as this at least: next to a job that only has to end, what all
# others are worth would drown in the tolerances of a solver.
_LEAST_LEFT_S = 1.0

Utility = Callable[["Worth"], float]


@dataclass(frozen=True, slots=True)
class Worth:
    """The times a utility may look at, in seconds.

    `age_s` since submission; `left_s` until the finish under the candidate; `ideal_s` for the
    whole job alone on its best type; `share_s` for the whole job with a 1/n share of it, n being
    the jobs in the snapshot; `shortest_s` the least time any job of the snapshot needs to finish.
    """

    age_s: float
    left_s: float
    ideal_s: float
    share_s: float
    shortest_s: float


def effective_throughput(worth: Worth) -> float:
    """Return ideal time over completion time: rewards total time duration (TTD).

    Hadar's effective throughput E_j N_j / (f_j - a_j), divided by the job's best rate.
    """
    return min(1.0, worth.ideal_s / max(_SHORTEST_S, worth.age_s + worth.left_s))


def shortest_remaining(worth: Worth) -> float:
    """Return the shortest time left of all over the time left: rewards mean JCT (ours)."""
    return min(1.0, worth.shortest_s / max(_SHORTEST_S, worth.left_s))


def finish_time_fairness(worth: Worth) -> float:
    """Return 1 - 1/(1 + time on a fair share over completion time).

    Grows with 1/rho of Themis (NSDI'20), rho being completion time over the time on a 1/n share;
    bounded, so that one starved job does not outweigh all others (the bound is ours).
    """
    ratio = worth.share_s / max(_SHORTEST_S, worth.age_s + worth.left_s)
    return ratio / (1.0 + ratio)


UTILITIES: Mapping[str, Utility] = {
    "throughput": effective_throughput,
    "jct": shortest_remaining,
    "ftf": finish_time_fairness,
}


@dataclass(frozen=True, slots=True)
class Appraisal:
    """Turns "job j is done in x seconds" into a worth, for one snapshot."""

    utility: Utility
    now_s: float
    num_jobs: int
    shortest_s: float
    ideal_throughputs: Mapping[str, float]

    @classmethod
    def of(cls, snapshot: Snapshot, utility: Utility) -> Appraisal:
        """Return the appraisal of a snapshot's plannable jobs."""
        gpu_types = [str(gpu_type) for gpu_type in snapshot.cluster.gpus_by_type]
        ideal = {
            job.job_id: job.spec.throughputs.best(gpu_types, job.spec.num_gpus)
            for job in snapshot.plannable
        }
        left = [
            job.steps_left / ideal[job.job_id]
            for job in snapshot.plannable
            if ideal[job.job_id] > 0
        ]
        return cls(
            utility,
            snapshot.now_s,
            len(snapshot.plannable),
            max(_LEAST_LEFT_S, min(left, default=_LEAST_LEFT_S)),
            {str(job_id): throughput for job_id, throughput in ideal.items()},
        )

    def value(self, job: Job, left_s: float) -> float:
        """Return what it is worth that `job` finishes `left_s` seconds from now."""
        ideal_throughput = self.ideal_throughputs[job.job_id]
        if ideal_throughput <= 0:
            return 0.0
        ideal_s = max(_SHORTEST_S, job.spec.total_steps / ideal_throughput)
        age_s = max(0.0, self.now_s - job.spec.submitted_s)
        return self.utility(
            Worth(age_s, left_s, ideal_s, ideal_s * max(1, self.num_jobs), self.shortest_s)
        )
