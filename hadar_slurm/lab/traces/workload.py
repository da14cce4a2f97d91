"""Random workloads: the mixes of Hadar's simulation and of Gavel's generator, and two of our own.

`draw` returns numbers in [0, 1), such as `random.Random(seed).random`, whose sequence is equal in
every version of Python. Sizes are drawn as time on the reference type and converted to steps by the
throughput table. Only workloads with a row for gangs get a gang; others have one GPU. Arrivals are
in whole seconds, the first at 0: with exponential gaps, or in sweeps or bursts; with a mean gap of
0 all jobs arrive at 0. For a load in per cent of a cluster, scale the gaps
(`study.compare.scale_to_load`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, TypeVar

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.throughput import Throughputs, ThroughputTable
from hadar_slurm.errors import UsageError
from hadar_slurm.lab.traces.speeds import DEFAULT_REFERENCE

T = TypeVar("T")
Draw = Callable[[], float]

_HOUR_S, _DAY_S = 3600.0, 86400.0
# The mean gap between sessions by which days are counted, before the gaps are scaled.
_SESSION_S = 600.0

# Hadar's mix: size classes with GPU-hours from and to, and the models of the class. Class, model
# and batch size are drawn uniformly. Source: secondary reports of the papers' simulation (arXiv
# 2503.10918, IPDPS 2024), not a quotation. Two choices are our own: the uniform classes, and the
# lower bound of S of 0.1 GPU-hours, which is reported as 0.
HADAR_SIZES: Mapping[str, tuple[float, float, tuple[str, ...]]] = {
    "S": (0.1, 1.0, ("ResNet-18",)),
    "M": (1.0, 10.0, ("CycleGAN",)),
    "L": (10.0, 50.0, ("LM", "Transformer")),
    "XL": (60.0, 100.0, ("ResNet-50",)),
}

# Gavel's (OSDI'20, scheduler/utils.py at c4fa400): probabilities of gang sizes, and of the ranges
# of the base-10 logarithm of a job's minutes.
GAVEL_GANGS = ((0.70, 1), (0.10, 2), (0.15, 4), (0.05, 8))
GAVEL_MINUTES = ((0.8, (1.5, 3.0)), (0.2, (3.0, 4.0)))

# Sweeps, of our own making. The share of sessions that are a sweep, the least and the most jobs of
# one, and the factors of its shortest and its longest job.
SWEEP_SHARE, SWEEP_JOBS, SWEEP_SPREAD = 0.25, (5, 40), (0.7, 1.4)
# Lengths are log-normal: median, deviation of the logarithm, and the longest.
SWEEP_MEDIAN_S, SWEEP_SIGMA, SWEEP_LONGEST_S = 1200.0, 1.7, 14 * 86400.0
# By how much the rate of sessions rises by day and falls by night.
SWEEP_DAY = 0.8

# Bursts, of our own making: gang sizes, the mean number of jobs in a burst, and the mean gap within
# one relative to that between two.
BURST_GANGS = ((0.4, 1), (0.2, 2), (0.2, 4), (0.2, 8))
BURST_JOBS, BURST_GAP = 12, 0.01
# Lengths have a Pareto distribution: the shortest, the exponent, and the longest.
BURST_SHORTEST_S, BURST_ALPHA, BURST_LONGEST_S = 120.0, 0.8, 5 * 86400.0


def hadar_jobs(
    number: int,
    draw: Draw,
    table: ThroughputTable,
    *,
    mean_gap_s: float = 0.0,
    max_gang: int = 4,
    reference: str = DEFAULT_REFERENCE,
) -> list[JobSpec]:
    """Return jobs in the mix reported for Hadar, in `HADAR_SIZES`.

    A size in GPU-hours is uniform within its class. Gang sizes have the probabilities of Gavel's
    generator, up to `max_gang`. Raises UsageError if the table lacks a model of the mix.
    """
    classes = list(HADAR_SIZES.values())

    def one() -> tuple[str, int, float]:
        least, most, models = classes[_below(draw, len(classes))]
        names = _workloads(models[_below(draw, len(models))], table, reference)
        name = names[_below(draw, len(names))]
        gang = _gang(draw, name=name, table=table, reference=reference, max_gang=max_gang)
        return name, gang, (least + (most - least) * draw()) * _HOUR_S / gang

    return _jobs(_arrivals(number, draw, mean_gap_s), one, table, reference)


class GavelMost(NamedTuple):
    """The largest gang, and the longest run time in whole hours (None: times are no such)."""

    gang: int = 8
    whole_hours: int | None = None


def gavel_jobs(
    number: int,
    draw: Draw,
    table: ThroughputTable,
    *,
    mean_gap_s: float = 0.0,
    most: GavelMost | None = None,
    reference: str = DEFAULT_REFERENCE,
) -> list[JobSpec]:
    """Return jobs drawn as by Gavel's generator (OSDI'20), workloads uniformly.

    The minutes on the gang are 10 to a power drawn from `GAVEL_MINUTES`; with `most.whole_hours`
    the run time is uniform in 1 to that many hours (published traces use 24). Gangs larger than
    `most.gang` have so many GPUs. Raises UsageError if no workload has a rate on one GPU.
    """
    names = _names_alone(table, reference)
    max_gang, whole_hours = most or GavelMost()

    def one() -> tuple[str, int, float]:
        name = names[_below(draw, len(names))]
        gang = _gang(draw, name=name, table=table, reference=reference, max_gang=max_gang)
        if whole_hours is not None:
            return name, gang, _HOUR_S * (1 + _below(draw, whole_hours))
        low, high = _pick(draw, GAVEL_MINUTES)
        return name, gang, 60.0 * 10.0 ** (low + (high - low) * draw())

    return _jobs(_arrivals(number, draw, mean_gap_s), one, table, reference)


def sweep_jobs(
    number: int,
    draw: Draw,
    table: ThroughputTable,
    *,
    mean_gap_s: float = 0.0,
    reference: str = DEFAULT_REFERENCE,
) -> list[JobSpec]:
    """Return the jobs of a site with hyper-parameter sweeps, short jobs, day and night.

    A session submits one job, with Gavel's probabilities of gang sizes, or a sweep of one workload
    on one GPU each. `mean_gap_s` is the mean gap between jobs, not sessions.
    """
    _check(number, mean_gap_s)
    names = _names_alone(table, reference)
    arrivals_s, drawn, at_s = list[float](), list[tuple[str, int, float]](), 0.0
    while len(drawn) < number:
        # Sessions come more often by day: the gap is longer where the rate is lower.
        rate = 1.0 + SWEEP_DAY * math.sin(2.0 * math.pi * at_s / _DAY_S)
        at_s += -math.log(1.0 - draw()) * _SESSION_S / rate
        name = names[_below(draw, len(names))]
        run_s = min(SWEEP_LONGEST_S, SWEEP_MEDIAN_S * math.exp(SWEEP_SIGMA * _normal(draw)))
        if draw() < SWEEP_SHARE:
            least, most = SWEEP_JOBS
            low, high = SWEEP_SPREAD
            size = least + _below(draw, most - least + 1)
            drawn += [(name, 1, run_s * (low + (high - low) * draw())) for _ in range(size)]
            arrivals_s += [at_s] * size
        else:
            drawn.append(
                (name, _gang(draw, name=name, table=table, reference=reference, max_gang=8), run_s)
            )
            arrivals_s.append(at_s)
    each = iter(drawn)
    return _jobs(_scaled(arrivals_s[:number], mean_gap_s), lambda: next(each), table, reference)


def burst_jobs(
    number: int,
    draw: Draw,
    table: ThroughputTable,
    *,
    mean_gap_s: float = 0.0,
    reference: str = DEFAULT_REFERENCE,
) -> list[JobSpec]:
    """Return jobs that arrive in bursts, most of them gangs, with a heavy tail of lengths.

    `mean_gap_s` is the mean gap between jobs, not bursts.
    """
    _check(number, mean_gap_s)
    names = _names_alone(table, reference)
    arrivals_s, at_s = list[float](), 0.0
    for _ in range(number):
        arrivals_s.append(at_s)
        is_last = draw() < 1.0 / BURST_JOBS
        at_s += -math.log(1.0 - draw()) * (1.0 if is_last else BURST_GAP)

    def one() -> tuple[str, int, float]:
        wanted = _pick(draw, BURST_GANGS)
        able = [name for name in names if _runs(table, name, reference, wanted)] or names
        name = able[_below(draw, len(able))]
        gang = wanted if _runs(table, name, reference, wanted) else 1
        run_s = BURST_SHORTEST_S * (1.0 - draw()) ** (-1.0 / BURST_ALPHA)
        return name, gang, min(BURST_LONGEST_S, run_s)

    return _jobs(_scaled(arrivals_s, mean_gap_s), one, table, reference)


GENERATORS: Mapping[str, Callable[..., list[JobSpec]]] = {
    "hadar": hadar_jobs,
    "gavel": gavel_jobs,
    "sweeps": sweep_jobs,
    "bursts": burst_jobs,
}


def generate(
    name: str, number: int, draw: Draw, table: ThroughputTable, *, mean_gap_s: float = 0.0
) -> list[JobSpec]:
    """Return jobs of a generator in `GENERATORS`; raises UsageError for an unknown name."""
    if name not in GENERATORS:
        raise UsageError(f"generator {name!r}: expected one of {', '.join(GENERATORS)}")
    return GENERATORS[name](number, draw, table, mean_gap_s=mean_gap_s)


def _check(number: int, mean_gap_s: float) -> None:
    if number < 1:
        raise UsageError(f"{number} jobs: expected 1 or more")
    if not 0 <= mean_gap_s < math.inf:
        raise UsageError(f"a mean gap of {mean_gap_s:g} s: expected seconds, 0 or more")


def _arrivals(number: int, draw: Draw, mean_gap_s: float) -> Sequence[float]:
    """Return arrivals with exponential gaps."""
    _check(number, mean_gap_s)
    gaps_s = (-math.log(1.0 - draw()) * mean_gap_s if mean_gap_s else 0.0 for _ in range(1, number))
    return [float(math.floor(arrival_s)) for arrival_s in accumulate(gaps_s, initial=0.0)]


def _scaled(arrivals_s: Sequence[float], mean_gap_s: float) -> list[float]:
    """Return the arrivals from 0 on with this mean gap, in whole seconds."""
    span_s = arrivals_s[-1] - arrivals_s[0]
    factor = mean_gap_s * (len(arrivals_s) - 1) / span_s if span_s else 0.0
    return [float(math.floor((at_s - arrivals_s[0]) * factor)) for at_s in arrivals_s]


def _normal(draw: Draw) -> float:
    """Return a standard normal number (Box and Muller, 1958)."""
    return math.sqrt(-2.0 * math.log(1.0 - draw())) * math.cos(2.0 * math.pi * draw())


def _names_alone(table: ThroughputTable, reference: str) -> list[str]:
    """Return the workloads with a throughput on one GPU; raises UsageError if there are none."""
    names = [name for name in table.workloads if _runs(table, name, reference)]
    if not names:
        raise UsageError(f"no workload of the throughput table has a rate on one {reference}")
    return names


def _below(draw: Draw, number: int) -> int:
    return min(int(draw() * number), number - 1)


def _pick(draw: Draw, shares: Sequence[tuple[float, T]]) -> T:
    at = draw() * math.fsum(share for share, _ in shares)
    for share, value in shares:
        at -= share
        if at < 0:
            return value
    return shares[-1][1]


def _workloads(model: str, table: ThroughputTable, reference: str) -> list[str]:
    """Return the table's workloads of a model, one a batch size."""
    listed = [name for name in table.workloads if name.partition(" (batch size")[0] == model]
    names = [name for name in listed if _runs(table, name, reference)]
    if not names:
        raise UsageError(
            f"the throughput table has no {model} with a rate on one {reference}; generate the mix "
            "with the shipped table"
        )
    return names


def _gang(draw: Draw, name: str, table: ThroughputTable, reference: str, max_gang: int) -> int:
    """Return a gang size for a workload: 1 unless the table has a row for the size drawn."""
    gang = min(_pick(draw, GAVEL_GANGS), max_gang)
    throughputs = table.throughputs(name) or Throughputs()
    sizes = {size for (_, size), _ in throughputs.rows}
    return gang if gang in sizes and throughputs.on(reference, gang) > 0 else 1


def _runs(table: ThroughputTable, name: str, reference: str, num_gpus: int = 1) -> bool:
    return (table.throughputs(name) or Throughputs()).on(reference, num_gpus) > 0


def _jobs(
    arrivals_s: Iterable[float],
    draw_job: Callable[[], tuple[str, int, float]],
    table: ThroughputTable,
    reference: str,
) -> list[JobSpec]:
    """Return a job for each arrival; `draw_job` returns workload, gang size and run time."""
    jobs: list[JobSpec] = []
    for arrival_s in arrivals_s:
        name, gang, run_s = draw_job()
        throughputs = table.throughputs(name) or Throughputs()
        jobs.append(
            JobSpec(
                job_id=JobId(str(len(jobs))),
                num_gpus=gang,
                total_steps=max(1, round(run_s * throughputs.on(reference, gang))),
                throughputs=throughputs,
                submitted_s=arrival_s,
                workload=name,
            )
        )
    return jobs
