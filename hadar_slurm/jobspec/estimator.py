"""Estimates a job's throughput on each GPU type. Standard library only.

A throughput given by the user counts until the job is measured, and within a factor of the
throughput table's (`core/claims.py`). Otherwise `core.throughput_model` starts from
the throughput table, and for what the table lacks from the ratios of GPU types
(`core/type_ratios.py`); measurements of this workload and of similar ones on this cluster replace
both.

A job does not get GPU types on which its workload has failed (`core/type_failures.py`), unless its
user names types or throughputs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import NamedTuple

from hadar_slurm.core import throughput_model as model
from hadar_slurm.core.claims import Credits, Judged, bounded_throughputs
from hadar_slurm.core.cluster import GpuType, JobId, Node
from hadar_slurm.core.gpu_types import (
    NO_TYPES,
    NOT_MEASURED,
    KnownTypes,
    MeasuredRatios,
    OwnTypes,
    facts_of,
    parse_gpu_types,
    parse_measured,
    with_own,
)
from hadar_slurm.core.job import Shape
from hadar_slurm.core.throughput import GangThroughput, Throughputs, ThroughputTable
from hadar_slurm.core.throughput_model import Estimate, Origin, ThroughputModel, Workload
from hadar_slurm.core.type_failures import Bar, Records, TypeRecords, Work
from hadar_slurm.core.type_ratios import TypeRatios
from hadar_slurm.jobspec.description import Description
from hadar_slurm.resources import data_file

# Steps per second on the slowest GPU type, for a job whose number of steps is unknown.
_STEPS_A_SECOND = 1000.0
# Entries in the cache before it is cleared.
_MOST_KNOWN = 20_000


class Known(NamedTuple):
    """What is known of one kind of job."""

    # In steps/s of the whole gang.
    throughputs: Throughputs
    # Within a node, with their uncertainty, by GPU type in lower case.
    estimates: Mapping[str, Estimate]
    # Which of its user's own throughputs are not used as given, and why.
    doubts: tuple[str, ...] = ()


@dataclass
class Estimator:
    """Estimates throughputs from a description.

    `speeds` has the measurements so far, `records` the failures, `credits` how far users' claims
    were off, `measured` the ratios of GPU types that were measured elsewhere.
    """

    table: ThroughputTable
    known_types: KnownTypes
    speeds: ThroughputModel = field(default_factory=ThroughputModel)
    records: TypeRecords = field(default_factory=TypeRecords)
    credits: Credits = field(default_factory=Credits)
    measured: MeasuredRatios = NOT_MEASURED
    _known: dict[object, Known] = field(default_factory=dict)
    _version: int = 0

    @classmethod
    def shipped(
        cls,
        table: ThroughputTable,
        speeds: ThroughputModel | None = None,
        own_types: OwnTypes = NO_TYPES,
        records: TypeRecords | None = None,
        credits: Credits | None = None,
    ) -> Estimator:
        """Return an estimator with the GPU types that the package knows, a site's own over them."""
        ratios = shipped_ratios(table, own_types)
        return cls(
            table,
            ratios.known_types,
            speeds or ThroughputModel(),
            records or TypeRecords(),
            credits or Credits(),
            ratios.measured,
        )

    @cached_property
    def ratios(self) -> TypeRatios:
        """Return how fast GPU types are relative to each other before any measurement."""
        return TypeRatios(self.table, self.known_types, self.measured)

    def why_not(self, description: Description, gpu_type: str) -> str:
        """Return why a job may not have GPUs of a type; "" if it may.

        A throughput given for a slice of a GPU names it.
        """
        needs = description.needs
        if description.gangs and gpu_type.lower() not in description.gangs:
            return "no gang of a copy is given for it"
        if gpu_type.lower() in map(str.lower, description.throughputs):
            needs = needs.naming(gpu_type)
        return needs.why_not(gpu_type, self.known_types)

    def has_failed(self, description: Description, user: str) -> bool:
        """Return whether `barred` may return any type."""
        work = work_of(description, user)
        return work is not None and not description.needs.types and self.records.is_failing(work)

    def barred(
        self, description: Description, user: str, gpu_types: Iterable[str]
    ) -> dict[str, Bar]:
        """Return the types, in lower case, of which failures deprive a user's job.

        Of `gpu_types`, those on which its gang fits. Types that the user names are not barred.
        """
        work = work_of(description, user)
        if work is None or not self.has_failed(description, user):
            return {}
        could = [name.lower() for name in gpu_types if not self.why_not(description, name)]
        return self.records.barred(work, could, self.memory_gb)

    def heed(self, work: Work, records: Records) -> None:
        """Take over what is known of some work."""
        self.records.of_work[work] = dict(records)

    def memory_gb(self, gpu_type: str) -> float | None:
        """Return the memory of a GPU type; None if it is not known."""
        return facts_of(gpu_type, self.known_types).memory_gb

    def throughputs(
        self,
        description: Description,
        user: str,
        gpu_types: Iterable[str],
        *,
        without: Collection[str] = (),
    ) -> Throughputs:
        """Return the throughputs of a user's job on GPU types, in steps/s of the whole gang.

        Those on types `without`, in lower case, are left out.
        """
        return self.known(description, user, gpu_types, without=without).throughputs

    def total_steps(self, description: Description, throughputs: Throughputs) -> int:
        """Return a job's total steps; if unknown, those of its time limit.

        On the type where that was measured, else on the slowest.
        """
        if description.steps:
            return description.steps
        if (speed := throughputs.on(description.time_on, description.gpus)) > 0:
            return max(1, round(description.limit_s * speed))
        # The limit must allow the job to run on every type.
        speeds = [throughputs.on(gpu_type, description.gpus) for gpu_type in throughputs.gpu_types]
        slowest = min((speed for speed in speeds if speed > 0), default=_STEPS_A_SECOND)
        return max(1, round(description.limit_s * slowest))

    def judged(self, asks: Description, user: str, job_id: JobId, gpu_type: str) -> Judged | None:
        """Return a run on a type with the time claimed for it; None if that is unknown."""
        if not (gpu_type and asks.steps):
            return None
        steps_per_s = self.throughputs(asks, user, [gpu_type]).on(gpu_type, asks.gpus)
        if steps_per_s <= 0:
            return None
        given = {name.lower(): value for name, value in asks.throughputs.items()}
        said = given.get(gpu_type, 0.0)
        off = max(said / steps_per_s, steps_per_s / said) if said > 0 else 1.0
        claimed_s = max(1.0, asks.steps / steps_per_s)
        return Judged(job_id, user, asks.workload, claimed_s, 0.0, off)

    def counts_real_steps(self, description: Description, user: str) -> bool:
        """Return whether steps are those that a job reports, not a measure of time."""
        return bool(description.steps) or workload_of(description, user) in self.speeds.measured

    def known(
        self,
        description: Description,
        user: str,
        gpu_types: Iterable[str],
        *,
        without: Collection[str] = (),
    ) -> Known:
        """Return what is known of a user's job on GPU types, without some (see `throughputs`)."""
        # A measurement has come, or the cache is large.
        if self._version != self.speeds.version or len(self._known) > _MOST_KNOWN:
            self._known.clear()
            self._version = self.speeds.version
        here, time_on = tuple(gpu_types), description.time_on
        if time_on and time_on not in map(str.lower, here):
            here = (*here, time_on)
        workload, gpus = workload_of(description, user), description.gpus
        given = description.throughputs
        barred, most_off = frozenset(without), self.credits.most_off(user)
        key: tuple[object, ...] = (workload, gpus, description.needs, barred, most_off)
        key = (*key, tuple(given.items()), tuple(description.gangs.items()))
        if not given:
            key = (*key, here, description.steps, description.limit_s)
        if key not in self._known:
            if given:
                found = self._as_given(description, user)
            else:
                found = self._estimated(description, workload, here)
            self._known[key] = self._suitable(description, found, barred)
        return self._known[key]

    def _estimated(
        self, description: Description, workload: Workload, gpu_types: tuple[str, ...]
    ) -> Known:
        """Return the estimates for the gang of each type."""
        prior = self._prior(description, gpu_types)
        rows: dict[tuple[str, int], GangThroughput] = {}
        estimates: dict[str, Estimate] = {}
        for size in sorted({description.gpus_on(gpu_type) for gpu_type in gpu_types}):
            here = [name for name in gpu_types if description.gpus_on(name) == size]
            found = model.estimated_throughputs(
                self.speeds, workload=workload, num_gpus=size, gpu_types=here, prior=prior
            )
            rows |= dict(found[0].rows)
            estimates |= found[1]
        return Known(Throughputs.of(rows), estimates)

    def _as_given(self, description: Description, user: str) -> Known:
        """Return the user's own figures, bounded, with those measured in their place."""
        throughputs, doubts = self._bounded(description, user)
        seen = _within_nodes(self._measured(description, user))
        estimates = {}
        for name in throughputs.gpu_types:
            origin = Origin.MEASURED if name in seen else Origin.GIVEN
            value = throughputs.on(name, description.gpus_on(name))
            estimates[name] = Estimate(value, origin, model.UNCERTAINTIES[origin])
        return Known(throughputs, estimates, doubts)

    def _bounded(self, description: Description, user: str) -> tuple[Throughputs, tuple[str, ...]]:
        speeds, size_on = description.throughputs.items(), description.gpus_on
        given = Throughputs.of({(k, size_on(k)): GangThroughput(float(v)) for k, v in speeds})
        known = self.table.throughputs(description.workload) or Throughputs()
        measured, most_off = self._measured(description, user), self.credits.most_off(user)
        return bounded_throughputs(given, known, measured, most_off=most_off)

    def _measured(self, description: Description, user: str) -> Throughputs:
        """Return what the user's jobs of the same workload and gang have done, by type."""
        found = self.speeds.measured.get(workload_of(description, user), {})
        places = {
            place: seen.steps_per_s
            for place, seen in found.items()
            if place.num_gpus == description.gpus_on(place.gpu_type)
        }
        return model.rows_of(places if description.workload else {})

    def _suitable(self, description: Description, found: Known, without: frozenset[str]) -> Known:
        """Return the estimates without those of types that the job may not have."""
        throughputs, estimates, doubts = found
        names = {*throughputs.gpu_types, *estimates}
        barred = {name for name in names if name in without or self.why_not(description, name)}
        if not barred:
            return found
        allowed = {name: value for name, value in estimates.items() if name not in barred}
        return Known(throughputs.without({name.lower() for name in barred}), allowed, doubts)

    def _prior(self, description: Description, gpu_types: tuple[str, ...]) -> model.Prior:
        """Return the throughputs assumed before any measurement."""
        gpus, slowest = description.gpus, _STEPS_A_SECOND
        if description.steps:
            slowest = description.steps / (description.limit_s or model.EXPECTED_S)
        family = self.ratios.family(description.workload)
        general = model.relative_prior(self.ratios.speeds(gpu_types, family), gpus, slowest)
        rows = self.table.throughputs(description.workload)
        if rows is None:
            return general
        # Types that the table lacks are scaled by the mean ratio of table to published speeds, over
        # the cluster's types, or over all types of the table where the cluster has none of them.
        names = [gpu_type.lower() for gpu_type in gpu_types]
        both = [name for name in names if rows.on(name, gpus) > 0]
        if not both:
            both = [name for name in rows.gpu_types if rows.on(name, gpus) > 0]
            everywhere = (*names, *both)
            general = model.relative_prior(self.ratios.speeds(everywhere, family), gpus, slowest)
        if not both:
            return general
        factor = sum(rows.on(k, gpus) / general.throughputs.on(k, gpus) for k in both) / len(both)
        others = {
            (name, gpus): GangThroughput(factor * general.throughputs.on(name, gpus))
            for name in names
            if name not in rows.gpu_types
        }
        found = Throughputs.of({**dict(rows.rows), **others})
        return model.Prior(found, most_off=model.MOST_OFF)


def shipped_ratios(table: ThroughputTable, own_types: OwnTypes = NO_TYPES) -> TypeRatios:
    """Return the ratios of the GPU types that the package knows, a site's own values over them."""
    text = data_file("gpu_types.json").read_text(encoding="utf-8")
    # A site's own bandwidth goes before what was measured elsewhere.
    own = {name.lower() for name, values in own_types.items() if "bandwidth_gb_s" in values}
    measured = parse_measured(text).without(own)
    return TypeRatios(table, with_own(parse_gpu_types(text), own_types), measured)


def workload_of(description: Description, user: str) -> Workload:
    """Return the workload, by which jobs share measurements."""
    return Workload(user, description.workload)


def work_of(description: Description, user: str) -> Work | None:
    """Return the work, by which jobs share failures; None where the user gives throughputs."""
    if description.throughputs or not description.workload:
        return None
    return Work(workload_of(description, user), description.gpus)


def fitting_types(nodes: Collection[Node], shapes: Iterable[Shape]) -> list[GpuType]:
    """Return the GPU types of which nodes, open or not, can hold a gang of one of these shapes."""
    on_nodes = defaultdict[GpuType, list[int]](list)
    for node in nodes:
        for gpu_type, count in node.gpus:
            on_nodes[gpu_type].append(count)
    layouts = list(shapes)
    return [
        gpu_type
        for gpu_type, counts in on_nodes.items()
        if any(sum(n >= s.gpus_per_node for n in counts) >= s.nodes for s in layouts)
    ]


def words(bar: Bar) -> str:
    """Return the reason of a bar, with the local time of the failure."""
    return bar.words(f"{datetime.fromtimestamp(bar.failed_s).astimezone():%Y-%m-%d %H:%M}")


def _within_nodes(measured: Throughputs) -> set[str]:
    return {gpu_type for (gpu_type, _), row in measured.rows if row.together > 0}
