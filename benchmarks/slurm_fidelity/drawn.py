"""Draws lists: windows of production traces, and workloads of single kinds, from fixed seeds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hadar_slurm.core.job import JobSpec
from hadar_slurm.lab.inputs import TraceOptions, read_cluster, read_table, read_workload
from hadar_slurm.lab.study.compare import scale_to_load
from slurm_fidelity.jobs import JobList, ListedJob, Pool, least_minutes

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
HOUR_S = 3600.0
PER_NODE = 8
# Seconds of the list in one of real time.
COMPRESSION = 600

Seconds = Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Site:
    """The cluster of a trace, its table of throughputs, and the type of untyped records."""

    cluster: str
    table: str
    reference: str


MODERN = Site("32xH100,64xA100,64xL40S,96xT4", "generality/modern_throughputs.json", "A100")
OLDER = Site("64xA100,64xV100,96xRTX2080Ti", "dayone/older_throughputs.json", "V100")


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive jobs of a trace, on a part of its cluster, with arrivals scaled to a load."""

    trace: str
    site: Site
    first: int
    number: int
    load: float
    # Of this number of nodes of a type, the cluster has one.
    fewer: int
    # Longer jobs are cut, so that a play lasts minutes.
    longest_h: float = 8.0
    users: int = 5
    compression: int = COMPRESSION


def of_trace(name: str, window: Window, data: Path, **options: object) -> JobList:
    """Return a list of a window; raises FileNotFoundError where the data is not there."""
    path, site = data / "dayone" / f"{window.trace}.sacct", window.site
    for needed in (path, data / site.table):
        needed.stat()
    cluster = read_cluster(site.cluster, gpus_per_node=PER_NODE)
    reading = TraceOptions(
        read_table(data / site.table), cluster, reference=site.reference, leaves_out_unfit=True
    )
    specs = sorted(read_workload(str(path), reading).specs, key=lambda spec: spec.submitted_s)
    specs = scale_to_load(specs[window.first :], cluster, window.load / window.fewer)
    counts = {t.lower(): n // PER_NODE for t, n in cluster.gpus_by_type.items()}
    pools = [Pool(t, max(1, n // window.fewer), PER_NODE) for t, n in counts.items()]
    draw = random.Random(f"limits {name}")
    jobs: list[tuple[str, float, int, Seconds]] = []
    users: dict[str, str] = {}
    for spec in specs:
        seconds = _seconds(spec, pools, window.longest_h * HOUR_S)
        if len(jobs) < window.number and _fits(spec.num_gpus, pools, seconds):
            user = users.setdefault(spec.user, f"u{len(users) % window.users}")
            jobs.append((user, spec.submitted_s, spec.num_gpus, seconds))
    ordered = tuple(sorted(pools, key=lambda pool: -_speed(pool.gpu_type, jobs)))
    base = JobList(name, "", ordered, (), compression=window.compression, **options)  # type: ignore[arg-type]
    about = f"jobs of {window.trace} from number {window.first} on, arrivals closer together"
    begin_s = jobs[0][1]
    return _listed(
        replace(base, about=about), [(u, s - begin_s, g, t) for u, s, g, t in jobs], draw
    )


def _seconds(spec: JobSpec, pools: Iterable[Pool], longest_s: float) -> Seconds:
    found: dict[str, tuple[float, float]] = {}
    for pool in pools:
        speeds = [
            spec.throughputs.on(pool.gpu_type, spec.num_gpus, is_spread=x) for x in (False, True)
        ]
        if min(speeds) > 0:
            alone, spread = (round(min(spec.total_steps / v, longest_s), 1) for v in speeds)
            found[pool.gpu_type] = alone, spread
    return found


def _fits(gpus: int, pools: Iterable[Pool], seconds: Seconds) -> bool:
    """Return whether every allowed type alone has the nodes, so that all forms may be asked."""
    nodes = math.ceil(gpus / PER_NODE)
    enough = [pool for pool in pools if pool.gpu_type in seconds and pool.nodes >= nodes]
    return bool(seconds) and len(enough) == len(seconds)


def _speed(gpu_type: str, jobs: Sequence[tuple[str, float, int, Seconds]]) -> float:
    ratios = [
        min(a for a, _ in seconds.values()) / seconds[gpu_type][0]
        for _, _, _, seconds in jobs
        if gpu_type in seconds
    ]
    return sum(ratios) / max(1, len(jobs))


def _listed(
    base: JobList,
    jobs: Iterable[tuple[str, float, int, Seconds]],
    draw: random.Random,
    *,
    limit: Callable[[JobList, ListedJob, random.Random], int] | None = None,
) -> JobList:
    """Return the list with limits as users write them: often far longer than the job."""
    listed = []
    for number, (user, submit_s, gpus, seconds) in enumerate(jobs):
        nodes = math.ceil(gpus / PER_NODE)
        if base.form != "gpus" and gpus % nodes:
            gpus = nodes * math.ceil(gpus / nodes)
        one = ListedJob(number, user, round(submit_s, 1), gpus, nodes, seconds, 1)
        listed.append(replace(one, limit_min=(limit or generous)(base, one, draw)))
    return replace(base, jobs=tuple(listed))


def generous(base: JobList, job: ListedJob, draw: random.Random) -> int:
    """Return a limit that never ends the job: three times as long in the median."""
    slowest_s = max(job.seconds[gpu_type][1] for gpu_type in base.allowed(job))
    least = least_minutes(slowest_s, base.compression)
    if draw.random() < 0.35:
        return max(least, 10)
    times = max(1.0, draw.lognormvariate(math.log(3.0), 0.9))
    return max(least, min(10, least_minutes(times * slowest_s, base.compression)))


def of_fastest(base: JobList, job: ListedJob, draw: random.Random) -> int:
    """Return a limit for the fastest type, which may end the job on a slower one."""
    fastest_s = min(alone_s for alone_s, _ in job.seconds.values())
    return least_minutes(fastest_s * draw.uniform(1.0, 1.6), base.compression)


@dataclass(frozen=True, slots=True)
class Kind:
    """A workload drawn from a seed: gangs with their shares, hours, and the gap of arrivals."""

    gangs: Mapping[int, float]
    median_h: float
    longest_h: float
    gap_h: float
    number: int
    pools: tuple[Pool, ...]
    # Speeds by type within a node, and what a gang keeps of its speed over several nodes.
    speeds: Mapping[str, float]
    spread: float = 0.85
    users: int = 5
    compression: int = COMPRESSION
    # The share of the jobs of a higher tier.
    urgent: float = 0.0


def of_kind(
    name: str,
    about: str,
    kind: Kind,
    *,
    limit: Callable[[JobList, ListedJob, random.Random], int] | None = None,
    **options: object,
) -> JobList:
    """Return a drawn list."""
    draw = random.Random(f"jobs {name}")
    base = JobList(name, about, kind.pools, (), compression=kind.compression, **options)  # type: ignore[arg-type]
    jobs: list[tuple[str, float, int, Seconds]] = []
    at_s = 0.0
    for _ in range(kind.number):
        (gpus,) = draw.choices(list(kind.gangs), list(kind.gangs.values()))
        hours = min(kind.longest_h, draw.lognormvariate(math.log(kind.median_h), 0.8))
        # Workloads differ in what a faster GPU gives them.
        power = draw.uniform(0.6, 1.2)
        seconds = {
            t: (
                round(hours * HOUR_S / v**power, 1),
                round(hours * HOUR_S / v**power / kind.spread, 1),
            )
            for t, v in kind.speeds.items()
        }
        # A few users submit most jobs.
        user = f"u{min(int(draw.expovariate(0.6)), kind.users - 1)}"
        jobs.append((user, at_s, gpus, seconds))
        at_s += draw.expovariate(1 / (kind.gap_h * HOUR_S))
    listed = _listed(base, jobs, draw, limit=limit)
    tiers = random.Random(f"tiers {name}")
    jobs_of_tiers = [replace(job, tier=int(tiers.random() < kind.urgent)) for job in listed.jobs]
    return replace(listed, jobs=tuple(jobs_of_tiers))
