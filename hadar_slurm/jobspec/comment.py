"""Writes a job's description into its comment, for `decode`. Standard library only."""

from __future__ import annotations

import json

from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.description import MAX_COMMENT, VERSION, Description

# What `hadar leave` adds; room for it is always kept.
_LEAVE = ',"leave":true'


def encode(description: Description) -> str:
    """Return the comment that carries `description`; raises JobSpecError if it is too long."""
    tree: dict[str, object] = {
        "hadar": VERSION,
        "workload": description.workload,
        "rates": dict(description.throughputs),
        "steps": description.steps or None,
        "limit_s": description.limit_s or None,
        "gpus": description.gpus,
        "asks": dict(description.asks),
        "shape": str(description.shape) if description.shape else "",
        "copies": description.copies if description.copies > 1 else None,
        "gangs": dict(description.gangs),
        "cores": dict(description.cores),
        "mem_mb": dict(description.memory_mb),
        "checkpoint": description.checkpoint,
        "restart_loss_s": description.restart_loss_s or None,
        "restart_cost_s": description.restart_cost_s,
        "signal": description.signal,
        "exempt_s": description.exempt_s,
        "held": description.is_held or None,
        "steered": description.steered or None,
        "leave": description.leaves or None,
        "types": list(description.needs.types) or None,
        "memory_gb": description.needs.memory_gb or None,
        "capability": description.needs.compute_capability or None,
        "excludes": description.excludes,
        "time_on": description.time_on,
        "comment": description.comment,
    }
    given = {key: value for key, value in tree.items() if value not in ("", None, {})}
    text = json.dumps(given, separators=(",", ":"))
    most = MAX_COMMENT if description.leaves else MAX_COMMENT - len(_LEAVE)
    if len(text) > most:
        raise JobSpecError(
            f"the job's description takes {len(text)} of the {most} characters that there is room "
            "for in Slurm's comment; shorten --comment"
        )
    return text
