"""The sbatch call of a job that is described to hadard. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hadar_slurm.core.cluster import NodeName
from hadar_slurm.core.moves import MovedBy
from hadar_slurm.errors import JobSpecError
from hadar_slurm.job_files import (
    ASSIGNMENTS_VARIABLE,
    COPIES_VARIABLE,
    SPOOL_VARIABLE,
    user_reports,
)
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description, digest
from hadar_slurm.state.heartbeat import Heartbeat
from hadar_slurm.submit.decision import HOLD
from hadar_slurm.submit.request import SbatchRequest


def compose(
    request: SbatchRequest,
    description: Description,
    *,
    is_held: bool,
    excluded: Sequence[NodeName] = (),
) -> tuple[str, ...]:
    """Return the sbatch call: hadar-sbatch's options first, then all of the user's.

    `excluded`: nodes that a job which is not held must not get, beside those of the user. Such a
    job has one copy: plain Slurm would not place the copies on separate nodes.
    """
    marked = replace(description, is_held=is_held, steered=digest(excluded))
    added = [f"--comment={encode(marked)}"]
    own = ["comment"]
    nodes = ",".join(filter(None, (*excluded, description.excludes)))
    if nodes != request.values.get("exclude", ""):
        added.append(f"--exclude={nodes}")
        own.append("exclude")
    if is_held:
        added.append(HOLD)
    if description.copies > 1:
        added.append(f"--array=0-{description.copies - 1}")
    if not request.gpus:
        if (shape := description.shape) is None:
            added.append(f"--gpus={description.gpus}")
        else:
            added += [f"--nodes={shape.nodes}", f"--gpus-per-node={shape.gpus_per_node}"]
    elif description.copies > 1:
        added.append("--nodes=1")
    if description.checkpoint:
        added.append("--requeue")
    if description.moved_by is not MovedBy.NONE and "open-mode" not in request.values:
        # Otherwise each restart would empty the output file.
        added.append("--open-mode=append")
    kept = [word for option in request.options if option.name not in own for word in option.words]
    return ("sbatch", *added, *kept, *request.script)


def variables(
    request: SbatchRequest, beat: Heartbeat | None, copies: int, environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables to add to the environment of a job in a number of `copies`."""
    found = {}
    if beat is not None:
        # The directories that the job shares with hadard.
        found[SPOOL_VARIABLE] = str(user_reports(Path(beat.spool), os.getuid()))
        if beat.assignments:
            found[ASSIGNMENTS_VARIABLE] = beat.assignments
    found = {name: text for name, text in found.items() if name not in environment}
    if copies > 1:
        check_exports(request)
        found[COPIES_VARIABLE] = str(copies)
    return found


def check_exports(request: SbatchRequest) -> None:
    """Raise JobSpecError if --export hides the copies' variables: each would train all steps."""
    exported = request.values.get("export") or "ALL"
    names = {part.partition("=")[0].strip() for part in exported.split(",")}
    missing = {COPIES_VARIABLE, SPOOL_VARIABLE, ASSIGNMENTS_VARIABLE} - names
    if missing and "ALL" not in {name.upper() for name in names}:
        hidden = ", ".join(sorted(missing))
        raise JobSpecError(f"--export={exported} hides {hidden}: add that, or ALL")
