"""Lists of workloads with their clusters: `workloads.yaml`, which a user writes for own traces.

A list has an entry for each set of traces that are played alike:

    - traces: [monday.trace, friday.trace]
      family: ours
      cluster: nodes.yaml
      gpus_per_node: 8
      throughputs: speeds.json
      restart_seconds: 30,bert=120
      load: 90

Files are relative to the list. Only `traces`, `family` and `cluster` have to be given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, RootModel

from hadar_slurm.errors import ConfigError, UsageError
from hadar_slurm.lab.inputs import (
    ReadJobs,
    TraceOptions,
    read_cluster,
    read_table,
    read_text,
    read_workload,
    workload_label,
)
from hadar_slurm.lab.study.compare import ClusterWorkload, StudyWorkload, scale_to_load
from hadar_slurm.lab.traces.cluster import is_cluster_file
from hadar_slurm.lab.traces.restart import parse_restart_costs
from hadar_slurm.lab.traces.yaml_file import Section, YamlFile, parse_yaml

LIST_NAME = "workloads.yaml"
_Name = Annotated[str, Field(min_length=1)]


class WorkloadEntry(Section):
    """Traces that are played on one cluster, with one throughput table and one restart cost."""

    traces: list[_Name] = Field(min_length=1)
    family: _Name
    # As the options of `hadar compare`.
    cluster: _Name
    gpus_per_node: int = Field(default=4, ge=1)
    throughputs: _Name | None = None
    restart_seconds: _Name = "30"
    # Per cent to which the arrivals are scaled; None keeps them.
    load: float | None = Field(default=None, ge=1, allow_inf_nan=False)


class WorkloadList(RootModel[list[WorkloadEntry]]):
    """A list of workloads."""


_Read = Callable[[str, TraceOptions], ReadJobs]


def read_workload_lists(
    paths: Sequence[str],
    reading: TraceOptions,
    *,
    first: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[ClusterWorkload, ...]:
    """Return the workloads of lists, each a YAML file or a directory with `workloads.yaml`.

    Table, cluster and restart costs are those of the list, all else of `reading`. Only the `first`
    jobs of each trace are read (None: all); `say` gets the notes on the traces. Raises UsageError
    with the list's file and line, the value, and what is accepted.
    """

    def read(text: str, options: TraceOptions) -> ReadJobs:
        found = read_workload(text, options, first=first)
        for note in found.notes:
            say(note)
        return found

    found: dict[tuple[str, str, float | None], str] = {}
    workloads: list[ClusterWorkload] = []
    for file in map(_parse, map(_list_path, paths)):
        for index in range(len(file.value.root)):
            for place, each in _workloads(file, index, reading, read):
                jobs = each.workload
                before = found.setdefault((jobs.family, jobs.name, jobs.load), place)
                if before is not place:
                    fault = f"trace {jobs.name} of family {jobs.family} is already in {before}"
                    raise ConfigError(f"{place}: {fault}; rename the file or the family")
                workloads.append(each)
    return tuple(workloads)


def _list_path(text: str) -> Path:
    """Return the list's file."""
    path = Path(text)
    if path.is_dir():
        if not (path / LIST_NAME).exists():
            raise ConfigError(
                f"{text}: the directory has no {LIST_NAME}; write one (docs/compare.md), or give "
                "the path of a list elsewhere"
            )
        return path / LIST_NAME
    if not is_cluster_file(text):
        raise UsageError(
            f"{text!r}: expected a list of workloads: a YAML file, or a directory with {LIST_NAME}"
        )
    return path


def _parse(path: Path) -> YamlFile[WorkloadList]:
    example = "`- {traces: [a.trace], family: ours, cluster: 20xV100}`"
    return parse_yaml(
        read_text(path, ConfigError),
        str(path),
        WorkloadList,
        WorkloadEntry,
        what="list of workloads",
        expected=f"a list of workloads, such as {example}",
    )


def _workloads(
    file: YamlFile[WorkloadList], index: int, reading: TraceOptions, read: _Read
) -> Iterator[tuple[str, ClusterWorkload]]:
    """Yield the workloads of an entry, each with its place in the list."""
    entry, folder = file.value.root[index], Path(file.origin).parent
    with _in_errors(file.place(index)):
        options = _options(entry, folder, reading)
    for number, trace in enumerate(entry.traces):
        place = file.place(index, "traces", number)
        with _in_errors(place):
            found = read(str(folder / trace), options)
            specs = found.specs
            if entry.load is not None:
                specs = scale_to_load(specs, options.cluster, entry.load)
        jobs = StudyWorkload(
            name=workload_label(trace),
            specs=tuple(specs),
            load=entry.load,
            restart=entry.restart_seconds,
            family=entry.family,
            speeds=found.speeds,
        )
        yield (
            place,
            ClusterWorkload(workload=jobs, cluster=options.cluster, cluster_name=entry.cluster),
        )


def _options(entry: WorkloadEntry, folder: Path, reading: TraceOptions) -> TraceOptions:
    name = str(folder / entry.cluster) if is_cluster_file(entry.cluster) else entry.cluster
    return replace(
        reading,
        table=read_table(folder / entry.throughputs if entry.throughputs else None),
        cluster=read_cluster(name, gpus_per_node=entry.gpus_per_node),
        costs=parse_restart_costs(entry.restart_seconds, "restart_seconds"),
    )


@contextmanager
def _in_errors(place: str) -> Iterator[None]:
    """Put the place in the list before the message of a UsageError."""
    try:
        yield
    except UsageError as error:
        raise ConfigError(f"{place}: {error}") from error
