"""How fast a job is to train on each GPU type, by all that is known of it. Standard library only.

What its user gave counts as it is. Else the throughput table, and for what it does not have the
published speeds of the GPU types, are where `core.speeds` begins; what jobs of this workload and of
similar ones were seen to do on this cluster takes their place as it comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hadar_slurm.core.throughput import GangThroughput, Throughputs, ThroughputTable
from hadar_slurm.core.throughput_model import (
    EXPECTED_S,
    SPREADS,
    Estimate,
    Origin,
    Prior,
    ThroughputModel,
    Workload,
    estimated_throughputs,
    parse_published,
    published_prior,
)
from hadar_slurm.jobspec.description import Description
from hadar_slurm.resources import data_file

# Steps per second on the slowest GPU type, for a job whose number of steps is unknown.
_STEPS_A_SECOND = 1000.0
# Entries in the cache before it is cleared.
_MOST_KNOWN = 20_000

Known = tuple[Throughputs, Mapping[str, Estimate]]


@dataclass
class Estimator:
    """Turns what a description says into rates; `speeds` is what has been measured so far."""

    table: ThroughputTable
    published: Mapping[str, float]
    speeds: ThroughputModel = field(default_factory=ThroughputModel)
    _known: dict[object, Known] = field(default_factory=dict)
    _version: int = 0

    @classmethod
    def shipped(cls, table: ThroughputTable, speeds: ThroughputModel | None = None) -> Estimator:
        """Return one that begins with the published speeds that come with the package."""
        path = data_file("gpu_speeds.json")
        return cls(
            table, parse_published(path.read_text(encoding="utf-8")), speeds or ThroughputModel()
        )

    def throughputs(
        self, description: Description, user: str, gpu_types: Iterable[str]
    ) -> Throughputs:
        """Return the rates of a user's job on GPU types, in steps/s of the whole gang."""
        return self._of(description, user, gpu_types)[0]

    def estimates(
        self, description: Description, user: str, gpu_types: Iterable[str]
    ) -> Mapping[str, Estimate]:
        """Return, by GPU type in lower case, what is believed within a node, and how surely."""
        return self._of(description, user, gpu_types)[1]

    def total_steps(self, description: Description, throughputs: Throughputs) -> int:
        """Return the steps that a job has in all.

        If they are unknown: the steps that fit its time limit on the slowest type, since the limit
        must allow the job to run there.
        """
        if description.steps:
            return description.steps
        speeds = [throughputs.on(gpu_type, description.gpus) for gpu_type in throughputs.gpu_types]
        slowest = min((speed for speed in speeds if speed > 0), default=_STEPS_A_SECOND)
        return max(1, round(description.limit_s * slowest))

    def counts_real_steps(self, description: Description, user: str) -> bool:
        """Return whether steps are those that a job reports, and not a measure of time."""
        return bool(description.steps) or workload_of(description, user) in self.speeds.measured

    def _of(self, description: Description, user: str, gpu_types: Iterable[str]) -> Known:
        if self._version != self.speeds.version or len(self._known) > _MOST_KNOWN:
            self._known.clear()
            self._version = self.speeds.version
        here = tuple(gpu_types)
        workload, gpus = workload_of(description, user), description.gpus
        key: tuple[object, ...] = (gpus, *description.throughputs.items())
        if not description.throughputs:
            key = (workload, gpus, here, description.steps, description.limit_s)
        if key not in self._known:
            self._known[key] = (
                _as_given(description)
                if description.throughputs
                else estimated_throughputs(
                    self.speeds, workload, gpus, here, self._prior(description, here)
                )
            )
        return self._known[key]

    def _prior(self, description: Description, gpu_types: tuple[str, ...]) -> Prior:
        """Return what is believed of a job before any measurement."""
        gpus = description.gpus
        slowest = _STEPS_A_SECOND
        if description.steps:
            slowest = description.steps / (description.limit_s or EXPECTED_S)
        general = published_prior(self.published, gpu_types, gpus, slowest)
        rows = self.table.throughputs(description.workload)
        if rows is None:
            return general
        # The types that the table lacks are to those that it has as their published speeds are.
        names = [gpu_type.lower() for gpu_type in gpu_types]
        listed = {name: rows.on(name, gpus) for name in names if name in rows.gpu_types}
        factors = [
            throughput / general.throughputs.on(name, gpus)
            for name, throughput in listed.items()
            if throughput > 0
        ]
        factor = sum(factors) / len(factors) if factors else 0.0
        others = {
            (name, gpus): GangThroughput(factor * general.throughputs.on(name, gpus))
            for name in names
            if name not in listed
        }
        return Prior(Throughputs.of({**dict(rows.rows), **others}), Origin.PUBLISHED)


def workload_of(description: Description, user: str) -> Workload:
    """Return what counts as the same work."""
    return Workload(user, description.workload)


def _as_given(description: Description) -> Known:
    throughputs = {
        gpu_type.lower(): float(throughput)
        for gpu_type, throughput in description.throughputs.items()
    }
    return (
        Throughputs.of(
            {
                (gpu_type, description.gpus): GangThroughput(throughput)
                for gpu_type, throughput in throughputs.items()
            }
        ),
        {
            gpu_type: Estimate(throughput, Origin.GIVEN, SPREADS[Origin.GIVEN])
            for gpu_type, throughput in throughputs.items()
        },
    )
