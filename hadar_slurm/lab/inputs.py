"""Inputs of commands: throughput tables, clusters, traces and generated workloads."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Annotated, NamedTuple

import typer

from hadar_slurm.core.cluster import Cluster, JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.core.snapshot import GangRules
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.errors import ConfigError, UsageError
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.lab.study.experiment import LIMIT
from hadar_slurm.lab.traces.cluster import is_cluster_file, parse_cluster, parse_cluster_file
from hadar_slurm.lab.traces.fields import TraceError
from hadar_slurm.lab.traces.limits import have_limits
from hadar_slurm.lab.traces.load import (
    DEFAULT_REFERENCE,
    Trace,
    check_fits,
    parse_trace,
    without_unfit,
)
from hadar_slurm.lab.traces.model import RecordedTimes
from hadar_slurm.lab.traces.restart import RestartCosts
from hadar_slurm.lab.traces.speeds import TypeSpeed
from hadar_slurm.lab.traces.workload import GENERATORS, generate
from hadar_slurm.resources import data_file

# Options of every command that reads traces.
_TABLE_HELP = "Throughput table in hadar's or Gavel's format (default: the shipped table)."
TableOption = Annotated[Path | None, typer.Option(help=_TABLE_HELP)]
ReferenceOption = Annotated[
    str, typer.Option(help="GPU type of the durations in a trace without GPU types.")
]
SpeedsOption = Annotated[
    str,
    typer.Option(
        help="Your own speeds of GPU types relative to the reference, in place of known ones: "
        "a100=1.5,t4=0.3."
    ),
]
UnfitOption = Annotated[
    bool, typer.Option(help="Skip jobs that can never run on the cluster, with a message.")
]
LimitsOption = Annotated[
    str,
    typer.Option(
        help="Time limits of traces that have none: the median of limit over duration, and the "
        "share of the jobs at the longest limit: 5x,40%. A run ends at its limit."
    ),
]
TimeOnOption = Annotated[
    bool,
    typer.Option(
        "--time-on",
        help="Users name the GPU type of their time limit, as with --hadar-time-on: it is longer "
        "on slower types. Plain Slurm never prolongs it.",
    ),
]
GENERATE = "generate:"
# Added to the seed of a workload for that of a history.
_BEFORE = 10_000
# The value does not matter where a load is given: all gaps are scaled.
_GAP_S = 60.0
_GENERATED = re.compile(r"([a-z]+)([0-9]+)")


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """How traces are read."""

    table: ThroughputTable
    cluster: Cluster
    costs: RestartCosts = field(default_factory=RestartCosts)
    # GPU type of the durations in a trace without GPU types.
    reference: str = DEFAULT_REFERENCE
    # Speeds of types, relative to the reference, in place of those that are known.
    gpu_speeds: Mapping[str, float] = field(default_factory=dict)
    # Whether jobs that can never run are skipped with a message, instead of an error.
    leaves_out_unfit: bool = False
    # Jobs must fit under each of these.
    rules: tuple[GangRules, ...] = (GangRules(),)


def read_text(path: Path, fault: type[UsageError]) -> str:
    """Return a file's text; raises `fault` with its name if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise fault(f"{path}: cannot be read: {error}") from error


def read_table(path: Path | None) -> ThroughputTable:
    """Return the throughput table in a file; None is the shipped one."""
    path = path or data_file("throughputs.json")
    return parse_table(read_text(path, ConfigError), str(path))


def read_cluster(text: str, *, gpus_per_node: int) -> Cluster:
    """Return the cluster of a text such as 20xV100,20xP100, or of a YAML file."""
    if is_cluster_file(text):
        return parse_cluster_file(read_text(Path(text), ConfigError), text)
    return parse_cluster(text, gpus_per_node=gpus_per_node)


def is_generated(text: str) -> bool:
    """Return whether a workload names a generator, such as generate:hadar480."""
    return text.startswith(GENERATE)


def complete_workload(incomplete: str) -> list[str]:
    """Return the generators that begin with `incomplete`; none for an empty text."""
    names = [f"{GENERATE}{name}480" for name in GENERATORS]
    return [name for name in names if incomplete and name.startswith(incomplete)]


HistoryOption = Annotated[
    str,
    typer.Option(
        help="Jobs that have ended before, for learned sizes: a workload as TRACE; a generated "
        "one is drawn from another seed.",
        autocompletion=complete_workload,
    ),
]


def workload_label(text: str) -> str:
    """Return the name of a workload in tables."""
    return text.removeprefix(GENERATE) if is_generated(text) else Path(text).stem


class ReadJobs(NamedTuple):
    """The jobs of a workload, and what has to be said of them."""

    specs: list[JobSpec]
    notes: Sequence[str] = ()
    # The speeds of GPU types that were assumed, as the trace has none.
    speeds: tuple[TypeSpeed, ...] = ()
    # The GPU types that each job held, in lower case; empty where that is not known.
    held: Mapping[JobId, frozenset[str]] = {}
    # What was recorded of each job; empty where that is not known.
    recorded: Mapping[JobId, RecordedTimes] = {}


def read_workload(
    text: str,
    reading: TraceOptions,
    *,
    seed: int = 0,
    first: int | None = None,
    has_arrivals: bool = False,
) -> ReadJobs:
    """Return the first N (all for None) jobs of a workload, and what has to be said of them.

    A generated workload is drawn from `seed`; all jobs arrive at time 0 without `has_arrivals`.
    Raises UsageError with file, line, value and remedy.
    """
    if is_generated(text):
        match = _GENERATED.fullmatch(text.removeprefix(GENERATE))
        if match is None or match[1] not in GENERATORS:
            names = ", ".join(complete_workload(GENERATE))
            raise UsageError(f"{text!r}: expected a generator and a number of jobs: {names}")
        gap_s, draw = _GAP_S if has_arrivals else 0.0, Random(seed).random
        specs = generate(match[1], int(match[2]), draw, reading.table, mean_gap_s=gap_s)
        return ReadJobs(_with_costs(specs[:first], reading.costs))
    table, cluster, reference = reading.table, reading.cluster, reading.reference
    found, speeds = read_text(Path(text), TraceError), reading.gpu_speeds
    trace = parse_trace(found, text, table, cluster, reference=reference, gpu_speeds=speeds)
    trace = trace.first(first)
    for rules in reading.rules:
        trace = _fitting(trace, reading, rules)
    notes = [f"{text}: {part}" for part in (*trace.skipped, *trace.notes)]
    specs = _with_costs(trace.jobs, reading.costs)
    return ReadJobs(specs, notes, trace.speeds, held=trace.held, recorded=trace.recorded)


def _fitting(trace: Trace, reading: TraceOptions, rules: GangRules) -> Trace:
    """Return the trace if all its jobs fit the cluster, or without those that do not."""
    if not reading.leaves_out_unfit:
        check_fits(trace, reading.cluster, rules)
        return trace
    return without_unfit(trace, reading.cluster, rules)


def read_history(text: str, reading: TraceOptions, seed: int) -> list[JobSpec]:
    """Return the jobs of a workload that has ended before ("": none); without their limits.

    A generated one is drawn from another seed than a workload of `seed`.
    """
    if not text:
        return []
    reading = replace(reading, leaves_out_unfit=True)
    found = read_workload(text, reading, seed=_BEFORE + seed)
    return [replace(spec, limit_s=math.inf) for spec in found.specs]


def check_limits(sizes: str, name: str, specs: Sequence[JobSpec], *, time_on: bool = False) -> None:
    """Raise UsageError if an option concerns time limits, and no job of a workload has one."""
    option = f"--sizes {LIMIT}" if sizes == LIMIT else "--time-on" if time_on else ""
    if option and not have_limits(specs):
        raise UsageError(f"{option}: {name} has no time limits; give --limits, such as 5x,40%")


def _with_costs(specs: Sequence[JobSpec], costs: RestartCosts) -> list[JobSpec]:
    return [replace(spec, restart_cost_s=costs.of(spec.workload)) for spec in specs]
