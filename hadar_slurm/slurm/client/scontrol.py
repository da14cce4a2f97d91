"""Changes as argument vectors for Slurm's own tools. Pure.

Measured on 22.05, 24.11 and 26.05. docs/slurm.md: what may change, in which state and order.
"""

from __future__ import annotations

import math
import re

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.gang import Gang
from hadar_slurm.jobspec.constraint import fold
from hadar_slurm.jobspec.request import Request, gres_prefix
from hadar_slurm.slurm.client import updates
from hadar_slurm.slurm.client.parse import UNTYPED
from hadar_slurm.slurm.client.updates import Update

# Before this version a GPU type once named in a request stays in it, as a count of zero (measured
# on 22.05.8; gone in 24.11.5; versions in between are treated as the older).
_FORGETS_TYPES_SINCE = (24, 11)


def keeps_types(version: tuple[int, int]) -> bool:
    """Return whether a job stays tied to nodes with each GPU type that its request ever named."""
    return version < _FORGETS_TYPES_SINCE


def shows_invented_max_nodes(version: tuple[int, int]) -> bool:
    """Return whether Slurm shows a node maximum for jobs without one (26.05.5, not 22.05.8)."""
    return version > (22, 5)


def requested_gpus(gang: Gang, *, names_type: bool) -> tuple[tuple[str, int], ...]:
    """Return the GPUs per node by type, untyped where the node implies it: see `keeps_types`."""
    per_node = next(iter(gang.gpus_by_node.values()))
    return ((str(next(iter(gang.gpus_by_type))) if names_type else UNTYPED, per_node),)


def request_for(gang: Gang, version: tuple[int, int], *, names_type: bool) -> Request:
    """Return the request for exactly `gang`."""
    ((gpu_type, count),) = requested_gpus(gang, names_type=names_type)
    name = "gpu" if gpu_type == UNTYPED else f"gpu:{gpu_type}"
    num_nodes = len(gang.gpus_by_node)
    return Request(
        num_nodes=f"{num_nodes}-{num_nodes}",
        per_node=f"{gres_prefix(version)}{name}:{count}",
        nodes=tuple(gang.gpus_by_node),
    )


def command(change: Update) -> list[str]:
    """Return the command that makes one change."""
    match change:
        case updates.Hold(job):
            return ["scontrol", "uhold", str(job)]
        case updates.Release(job):
            return ["scontrol", "release", str(job)]
        case updates.Requeue(job):
            return ["scontrol", "requeuehold", str(job)]
        case updates.SignalCheckpoint(job, own):
            return ["scancel", f"--signal={own.name}", *["--batch"] * own.to_batch, str(job)]
        case updates.Prefer(job, features):
            return ["scontrol", "update", f"JobId={job}", f"Prefer={features}"]
        case updates.Notify(job, text):
            # scontrol joins the words again.
            return ["scontrol", "notify", str(job), *text.split()]
        case updates.SetStartNow(job):
            return ["scontrol", "update", f"JobId={job}", "StartTime=now+1"]
        case updates.ClearRequest(job, delays_start, excluded, keeps_nodes):
            keys = ["TresPerNode", "TresPerJob", "TresPerTask", "TresPerSocket"]
            keys += [] if keeps_nodes else ["ReqNodeList"]
            # First: of an update that fails, Slurm may keep the keys before the wrong one.
            words = [f"StartTime=now+{updates.DELAY_S}"] * delays_start
            words += [f"{key}=" for key in keys]
            words += [] if excluded is None else [f"ExcNodeList={fold(excluded)}"]
            return ["scontrol", "update", f"JobId={job}", *words]
        case updates.Steer(job, excluded, num_nodes, nice, limit_s, clears_nodes, comment):
            # ExcNodeList always: with it Slurm refuses all of the update once the job has started.
            words = [
                f"ExcNodeList={fold(excluded)}",
                *([f"NumNodes={num_nodes}"] if num_nodes else []),
                *(["ReqNodeList="] if clears_nodes else []),
                *([] if nice is None else [f"Nice={nice}"]),
                *_time_limit(limit_s),
                *([] if comment is None else [f"Comment={comment}"]),
            ]
            return ["scontrol", "update", f"JobId={job}", *words]
        case updates.SetRequest(job, request, begins_in_s, limit_s):
            # Cores and memory first: where Slurm refuses them, it changes nothing else.
            given = {
                "MinCPUsNode": request.node_cores,
                "CPUsPerTask": request.task_cores,
                "MinMemoryNode": request.node_memory_mb,
                "MinMemoryCPU": request.core_memory_mb,
                "NumNodes": request.num_nodes,
                "ReqNodeList": fold(request.nodes),
                "TresPerNode": request.per_node,
                "TresPerJob": request.per_job,
                "TresPerTask": request.per_task,
                "TresPerSocket": request.per_socket,
                "StartTime": "" if begins_in_s is None else f"now+{begins_in_s}",
            }
            words = [f"{key}={value}" for key, value in given.items() if value]
            words += _time_limit(limit_s)
            return ["scontrol", "update", f"JobId={job}", *words]


def _time_limit(limit_s: int | None) -> list[str]:
    """Return the words that set a time limit, which Slurm keeps in minutes."""
    return [] if limit_s is None else [f"TimeLimit={math.ceil(limit_s / 60)}"]


def parse_version(text: str) -> tuple[int, int]:
    """Return (22, 5) from `slurm-wlm 22.05.8`; (0, 0) if there is no version in it."""
    found = re.search(r"slurm\S* (\d+)\.(\d+)(?=[.\s]|$)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def must_name_type(named: frozenset[str], gang: Gang, cluster: Cluster) -> bool:
    """Return whether the request for `gang` has to name its GPU type.

    On a node with several types Slurm cannot know it otherwise; and where Slurm keeps types, a
    request that has `named` one cannot become untyped again.
    """
    nodes = map(cluster.by_name.get, gang.gpus_by_node)
    is_ambiguous = any(node is not None and not node.has_one_type for node in nodes)
    return len(gang.gpus_by_type) == 1 and (is_ambiguous or bool(named))
