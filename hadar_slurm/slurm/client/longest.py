"""The longest time limits that hadard may give jobs: those that Slurm would let their owners have.

An operator's change of a time limit passes by the limits of partitions, QOS and associations. So
hadard reads them, where a job's limit depends on its GPU type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.time_limit import parse_time_limit
from hadar_slurm.errors import SlurmError
from hadar_slurm.jobspec.description import decode_or_none
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.runner import Runner

_PARTITION = re.compile(r"^PartitionName=(\S+) .*? QoS=(\S+) .* MaxTime=(\S+)", re.MULTILINE)


def longest_limits(queue: Iterable[QueueRow], runner: Runner) -> dict[JobId, float]:
    """Return the longest time limit in seconds of each live job that gives the type of its limit.

    0 where Slurm does not answer what QOS and associations allow: such a job keeps its own limit.
    """
    found = ((row, decode_or_none(row.comment)) for row in queue if row.is_live)
    rows = [row for row, description in found if description is not None and description.time_on]
    if not rows:
        return {}
    shown = runner.run(["scontrol", "-a", "show", "partition", "-o"])
    partitions = {name: (_seconds(limit), qos) for name, qos, limit in _PARTITION.findall(shown)}
    if not any(row.qos or row.account for row in rows):  # a Slurm without accounting
        return {row.key: _of_partitions(row, partitions, {}) for row in rows}
    users = ",".join(sorted({row.user for row in rows}))
    try:
        qos = _walls(runner.run(["sacctmgr", "-nP", "show", "qos", "format=Name,MaxWall"]))
        show = ["sacctmgr", "-nP", "show", "assoc", f"user={users}", "format=User,Account,MaxWall"]
        associations = _walls(runner.run(show))
    except SlurmError:
        return {row.key: 0.0 for row in rows}
    return {
        row.key: min(
            _of_partitions(row, partitions, qos),
            qos.get((row.qos,), math.inf),
            associations.get((row.user, row.account), math.inf),
        )
        for row in rows
    }


def _of_partitions(
    row: QueueRow,
    partitions: Mapping[str, tuple[float, str]],
    qos: Mapping[tuple[str, ...], float],
) -> float:
    """Return the shortest of the limits of a job's partitions and of their QOS."""
    known = [partitions[name] for name in row.partition.split(",") if name in partitions]
    return min((min(limit_s, qos.get((of,), math.inf)) for limit_s, of in known), default=0.0)


def _walls(text: str) -> dict[tuple[str, ...], float]:
    """Return the shortest limit for each name in lines such as `alice|physics|1-00:00:00`."""
    found: dict[tuple[str, ...], float] = {}
    for line in text.splitlines():
        *names, limit = line.split("|")
        found[tuple(names)] = min(_seconds(limit), found.get(tuple(names), math.inf))
    return found


def _seconds(text: str) -> float:
    """Return a limit in seconds; infinite where there is none."""
    return parse_time_limit(text) or math.inf
