"""The dual price of a GPU type as a function of the GPUs taken.

Hadar's price (IPDPS'24, the dual variable k_h^r; form as in OASiS, arXiv 1801.00936, eq. for
k_h^r): k(g) = U_min (U_max / U_min)^(g / c), g GPUs of capacity c being taken. It is U_min on an
empty type and U_max on a full one, where no job can still gain.

Three differences, all because a plan here covers one round: prices are per GPU type, not per node,
since nodes are packed after the selection by type; U_min is not divided by the job's duration; and
each GPU is charged the price at its own place (the integral of k, in steps), as an ILP can do,
instead of one price for all. `exponential_prices` says how U_min and U_max differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.job import Job
from hadar_slurm.policies.hadar_paper.utility import Appraisal

# Lower bound of U_min / U_max: the exponential needs U_min > 0.
_LEAST_RATIO = 1e-9


class PriceSegment(NamedTuple):
    """`gpus` GPUs that cost `price` each, in units of utility."""

    gpus: float
    price: float


@dataclass(frozen=True, slots=True)
class ExponentialPrice:
    """k(g) = u_min (u_max / u_min)^(g / capacity), for 0 <= g <= capacity."""

    u_min: float
    u_max: float
    capacity: int

    def at(self, taken: float) -> float:
        """Return the price of the next GPU when `taken` are taken."""
        share = min(1.0, max(0.0, taken / self.capacity))
        return self.u_min * math.exp(share * math.log(self.u_max / self.u_min))

    def segments(self, most: int) -> Iterator[PriceSegment]:
        """Yield the price as at most `most` steps of rising cost that cover the capacity."""
        count = min(most, self.capacity)
        for index in range(count):
            start = self.capacity * index / count
            end = self.capacity * (index + 1) / count
            yield PriceSegment(end - start, self.at((start + end) / 2))


def exponential_prices(
    jobs: Sequence[Job], appraisal: Appraisal, capacity: Mapping[GpuType, int]
) -> dict[GpuType, ExponentialPrice]:
    """Return each type's price from U_min and U_max over `jobs`.

    Over the jobs j that run on type r, with t_j the time left there, W_j the gang size and C all
    GPUs: U_max = max_j U_j(t_j) / W_j and U_min = (1 / 4 eta) min_j U_j(T) / W_j, but at least
    `_LEAST_RATIO` U_max; 1 / eta = min_j t_j W_j / (T C); T = max(max_j t_j, sum_j t_j W_j / C).
    The paper has t_j^min, the job's shortest time on any type, for t_j in U_max; t_j^max, its
    longest, for t_j in 1 / eta; and the end of its planning period for T. The factor 1/4 follows
    its proof that the initial dual is at most half of the optimum.
    """
    prices = {}
    total = sum(capacity.values())
    for gpu_type, units in capacity.items():
        spans = {
            job.job_id: job.steps_left / throughput
            for job in jobs
            if (throughput := job.spec.throughputs.on(gpu_type, job.spec.num_gpus)) > 0
        }
        able = [job for job in jobs if job.job_id in spans]
        if not able or units <= 0:
            continue
        horizon = max(sum(spans[j.job_id] * j.spec.num_gpus for j in able) / total, 1e-3)
        horizon = max(horizon, *spans.values())
        least_share = min(spans[j.job_id] * j.spec.num_gpus for j in able) / (horizon * total)
        u_max = max(appraisal.value(j, spans[j.job_id]) / j.spec.num_gpus for j in able)
        u_min = min(appraisal.value(j, horizon) / j.spec.num_gpus for j in able) * least_share / 4
        if u_max > 0:
            prices[gpu_type] = ExponentialPrice(max(u_min, u_max * _LEAST_RATIO), u_max, units)
    return prices
