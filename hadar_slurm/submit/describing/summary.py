"""A job in a few words, for its user. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from hadar_slurm.core.moves import in_words
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.core.time_limit import format_time_limit
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.identity import OF_A_JOB
from hadar_slurm.submit.request import SbatchRequest


def gangs_in_words(gangs: Mapping[str, int]) -> str:
    """Return the gangs as text: `1 v100 or 4 k80`."""
    return " or ".join(f"{size} {gpu_type}" for gpu_type, size in gangs.items())


def unknown_model(description: Description, table: ThroughputTable) -> str | None:
    """Return a note for the user if the model's throughput is not known."""
    name = description.workload
    if not name or name.startswith(OF_A_JOB) or table.throughputs(name) is not None:
        return None
    known = {workload.lower(): workload for workload in table.workloads}
    near = [known[n] for n in difflib.get_close_matches(name.lower(), known, n=5, cutoff=0.3)]
    similar = f"; similar names: {', '.join(near)}" if near else ""
    return f"{name!r} is not in the throughput table: its throughput will be measured{similar}"


def summary(description: Description, request: SbatchRequest, table: ThroughputTable) -> str:
    """Return a short description of the job for the user."""
    needs = description.needs
    of_type = f"type {' or '.join(needs.types)}" if needs.types else "any type"
    parts = [f"{_counted(description.gpus, 'GPU')} of {of_type}"]
    if description.gangs:
        parts = [gangs_in_words(description.gangs)]
    if needs.memory_gb:
        parts[0] += f" with {needs.memory_gb:g} GB"
    if needs.compute_capability:
        parts[0] += f" and compute capability {needs.compute_capability:g}"
    if description.shape and description.shape.nodes > 1:
        parts[0] += f" on {description.shape.nodes} nodes"
    if description.copies > 1:
        parts.append(f"in up to {description.copies} copies")
    elif "copies" in request.hadar_options:
        parts.append("in one copy (only one node suits)")
    if description.steps:
        parts.append(_counted(description.steps, "step"))
    if description.limit_s:
        parts.append(f"up to {format_time_limit(description.limit_s)}")
    if description.exempt_s is not None:
        parts.append(_may_be_requeued(description))
    elif description.signal:
        parts.append(f"may be moved by its --signal={description.signal}; not with --no-requeue")
    if unknown_model(description, table):
        parts.append(f"no throughput is known for {description.workload}")
    return ", ".join(parts)


def _may_be_requeued(description: Description) -> str:
    """Return that a job may be moved as Slurm may preempt it, and how to forbid that."""
    first = f", after {description.signal.replace('@', ' and ')} s" if description.signal else ""
    most = f"losing at most {in_words(description.restart_loss_s)} of work in a day"
    by = "may be requeued to move, as Slurm may preempt it"
    return f"{by}{first}, {most}; not with --hadar-checkpoint=no"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def told(
    description: Description,
    request: SbatchRequest,
    table: ThroughputTable,
    bars: Mapping[str, str],
) -> tuple[str, tuple[str, ...]]:
    """Return the job in a few words, and details; `bars`: why failures deprive it of GPU types."""
    unknown = unknown_model(description, table)
    notes = [unknown] if unknown else []
    notes += [f"not on {name}: {why}" for name, why in bars.items()]
    if "copies" in request.hadar_options and description.copies == 1:
        notes.append("only one node suits a copy: submitted as an ordinary job")
    return summary(description, request, table), tuple(notes)
