"""Whether beliefs of how long jobs train are calibrated: coverage, and what the longest jobs got.

    python benchmarks/beliefs.py [TRACE...] [--data ../shared/data] [--load 85] [--json]

A belief is made as each job arrives, of what has ended and what runs then; every job starts at once
on its fastest GPU type, so that no policy has a part in the figures. Traces are those of `dayone`
and the clusters of ElasticFlow, whose users (runs of jobs, Zipf's law) and time limits (`3x,35%`)
are drawn from a seed. With `--load` arrivals are scaled (`hadar compare --load`).

A trace has its figures over all jobs, and over those that arrive after the first week, or after
half of its jobs where it is shorter than two weeks: the share of jobs beyond the median and the
quantiles .75 and .9, which should be .5, .25 and .1; the mean belief over the mean; the same of the
tenth of the jobs that trained longest and of the tenth believed longest; and the mean negative
logarithm of the probability of the bin in which a job ended. The tenth that trained longest is
chosen by the outcome, so its mean belief is below the truth however good beliefs are: `hindsight`
has what the mean of all other jobs of the trace with the same limit, user or work would have said.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.lengths.belief import Belief
from hadar_slurm.core.lengths.bins import EDGES_S, bin_of
from hadar_slurm.core.lengths.calibration import Coverage
from hadar_slurm.core.lengths.durations import Durations
from hadar_slurm.core.type_failures import Unsized
from hadar_slurm.lab.inputs import TraceOptions, read_cluster, read_table, read_workload
from hadar_slurm.lab.study.compare import scale_to_load
from hadar_slurm.lab.traces.limits import parse_limits
from hadar_slurm.sim.sizes import work_of

MODERN = "32xH100,64xA100,64xL40S,96xT4", "generality/modern_throughputs.json", "A100"
OLDER = "64xA100,64xV100,96xRTX2080Ti", "dayone/older_throughputs.json", "V100"
PLAIN = "80xV100,80xP100,80xK80", "", "V100"
TRACES = {
    "ef01": ("dayone/ef01.sacct", *MODERN),
    "ef06": ("dayone/ef06.sacct", *OLDER),
    "philly1": ("dayone/philly1.sacct", *OLDER),
    "openb": ("dayone/openb.sacct", *MODERN),
    "cluster03": ("elasticflow_cluster03.csv", *PLAIN),
    "cluster10": ("elasticflow_cluster10.csv", *PLAIN),
}
WEEK_S, RENEW_S, HOUR_S = 7 * 86_400.0, 1800.0, 3600.0
# Of traces without users.
USERS, NEW_USER, LIMITS = 30, 0.2, "3x,35%"


@dataclass(frozen=True, slots=True)
class Played:
    """A job: its arrival, what is known of it then, and its service, in s on its fastest type."""

    spec: JobSpec
    arrives_s: float
    unsized: Unsized
    service_s: float


def with_users(specs: Iterable[JobSpec], seed: int) -> list[JobSpec]:
    """Return the jobs with users, who submit in runs; the n-th has 1/n of the first one's runs."""
    draw, user, found = Random(f"users {seed}"), "", list[JobSpec]()
    names = [f"user{number}" for number in range(1, USERS + 1)]
    weights = [1.0 / number for number in range(1, USERS + 1)]
    for spec in specs:
        if not user or draw.random() < NEW_USER:
            (user,) = draw.choices(names, weights)
        found.append(replace(spec, user=user))
    return found


def read(name: str, data: Path, load: float, seed: int) -> list[Played]:
    """Return the jobs of a trace."""
    path, cluster_text, table, reference = TRACES[name]
    cluster = read_cluster(cluster_text, gpus_per_node=8)
    rows = read_table(data / table if table else None)
    options = TraceOptions(rows, cluster, reference=reference, leaves_out_unfit=True)
    specs = list(read_workload(str(data / path), options).specs)
    if not any(spec.user for spec in specs):
        specs = with_users(specs, seed)
        if habits := parse_limits(LIMITS):
            specs = habits.drawn(specs, cluster.gpus_by_type, seed)
    if load:
        specs = scale_to_load(specs, cluster, load)
    return [_played(spec, cluster) for spec in specs]


def _played(spec: JobSpec, cluster: Cluster) -> Played:
    best = spec.throughputs.best(cluster.gpus_by_type, spec.num_gpus)
    unsized = Unsized(work_of(spec), spec.limit_s, spec.limit_steps / best)
    return Played(spec, spec.submitted_s, unsized, spec.total_steps / best)


def beliefs(jobs: Sequence[Played]) -> list[Belief]:
    """Return what is believed of each job as it arrives."""
    known, going, renewed_s = Durations(), dict[int, Played](), -math.inf
    arrivals = [(job.arrives_s, 1, number) for number, job in enumerate(jobs)]
    ends = [(job.arrives_s + job.service_s, 0, number) for number, job in enumerate(jobs)]
    found: dict[int, Belief] = {}
    for now_s, is_arrival, number in sorted(arrivals + ends):
        job, job_id = jobs[number], jobs[number].spec.job_id
        if now_s >= renewed_s + RENEW_S:
            renewed_s = now_s
            for other in going.values():
                known.see(other.spec.job_id, other.unsized, now_s - other.arrives_s)
            known.renew()
        if is_arrival:
            found[number] = known.belief(job.unsized, 0.0)
            going[number] = job
        else:
            del going[number]
            known.end(job_id, job.unsized, job.service_s)
    return [found[number] for number in range(len(jobs))]


def surprise(belief: Belief, service_s: float) -> float:
    """Return -log of the probability of the bin in which a job ended, its limit's for the last."""
    alive = 1.0
    for where, (_, high_s) in enumerate(pairwise(EDGES_S)):
        is_last = high_s >= belief.limit_s or high_s == math.inf
        if is_last or where == bin_of(service_s):
            chance = alive if is_last else alive * belief.ends[where]
            return -math.log(max(chance, 1e-9))
        alive *= 1.0 - belief.ends[where]
    return 0.0


def hindsight(jobs: Sequence[Played], tenth: Sequence[int]) -> float:
    """Return what other jobs of a like would say of these, over the truth; the best likeness.

    The mean of all jobs counts as one of them.
    """
    likes: tuple[Callable[[Played], Hashable], ...] = (
        lambda job: bin_of(job.unsized.asked_s),
        lambda job: (job.spec.user, bin_of(job.unsized.asked_s)),
        lambda job: job.spec.user,
        lambda job: job.unsized.work,
    )
    truth = sum(jobs[number].service_s for number in tenth)
    mean, best = sum(job.service_s for job in jobs) / len(jobs), 0.0
    for like in likes:
        groups: defaultdict[Hashable, list[float]] = defaultdict(list)
        for job in jobs:
            groups[like(job)].append(job.service_s)
        said = 0.0
        for number in tenth:
            group = groups[like(jobs[number])]
            said += (sum(group) - jobs[number].service_s + mean) / len(group)
        best = max(best, said / truth)
    return best


def figures(jobs: Sequence[Played], held: Sequence[Belief]) -> dict[str, float]:
    """Return the figures of these jobs."""
    numbers = range(len(jobs))
    true_s, means_s = [job.service_s for job in jobs], [belief.mean_left_s(0.0) for belief in held]
    few = max(1, len(jobs) // 10)
    longest = sorted(numbers, key=lambda n: -true_s[n])[:few]
    believed = sorted(numbers, key=lambda n: -means_s[n])[:few]

    def over(chosen: Iterable[int]) -> float:
        chosen = list(chosen)
        return sum(means_s[n] for n in chosen) / sum(true_s[n] for n in chosen)

    pairs = list(zip(held, true_s, strict=True))
    coverage = Coverage()
    for belief, service_s in pairs:
        coverage.add(belief, service_s)
    return {
        "jobs": len(jobs),
        **coverage.by_name(),
        "mean": over(numbers),
        "longest": over(longest),
        "hindsight": hindsight(jobs, longest),
        "believed_longest": over(believed),
        "surprise": sum(surprise(b, t) for b, t in pairs) / len(jobs),
    }


def measured(names: Sequence[str], given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield two rows a trace: of all jobs, and of the later ones."""
    for name in track(names, disable=not sys.stderr.isatty(), console=Console(stderr=True)):
        jobs = read(name, given.data, given.load, given.seed)
        held = beliefs(jobs)
        days = jobs[-1].arrives_s / 86_400
        from_s = WEEK_S if days >= 14 else jobs[len(jobs) // 2].arrives_s
        for what, since_s in (("all", 0.0), ("later", from_s)):
            pairs = [(j, b) for j, b in zip(jobs, held, strict=True) if j.arrives_s >= since_s]
            row = figures([job for job, _ in pairs], [belief for _, belief in pairs])
            yield {"trace": name, "days": days, "of": what, **row}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("traces", nargs="*", metavar="TRACE", help=", ".join(TRACES))
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--load", type=float, default=0.0, help="per cent; default: as recorded")
    parser.add_argument("--seed", type=int, default=0, help="of users and limits of ElasticFlow's")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if unknown := set(given.traces) - set(TRACES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; expected {', '.join(TRACES)}")
    rows = list(measured(given.traces or list(TRACES), given))
    if given.json:
        print(json.dumps(rows))
        return
    table = Table(*rows[0], box=None)
    for row in rows:
        table.add_row(*(f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
