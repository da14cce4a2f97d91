"""Actions as argument vectors for Slurm's own tools. Pure.

Everything here was measured on 22.05, 24.11 and 26.05; what may be changed on a job, in which
state and in which order, is in docs/slurm.md.
"""

from __future__ import annotations

from ClusterShell.NodeSet import NodeSet

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Gang
from hadar_slurm.slurm.parse import UNTYPED

Argv = list[str]

_REQUEST_KEYS = ("TresPerNode", "TresPerJob", "TresPerTask", "TresPerSocket")

# From this version on, Slurm writes gres/gpu:2 where it wrote gres:gpu:2.
_SLASH_SINCE = (23, 2)
# Before this version a GPU type once named in a request stays in it, as a count of zero (measured
# on 22.05.8; gone in 24.11.5; versions in between count as the older).
_FORGETS_TYPES_SINCE = (24, 11)


def node_list(gang: Gang) -> str:
    """Return the gang's nodes as a folded host list."""
    return str(NodeSet.fromlist(list(gang.gpus_by_node)))


def requested_gpus(gang: Gang, *, names_type: bool) -> tuple[tuple[str, int], ...]:
    """Return what each node of the gang is asked for, by type.

    Untyped wherever possible, the type following from the node: see `keeps_types`.
    """
    per_node = next(iter(gang.gpus_by_node.values()))
    return ((str(next(iter(gang.gpus_by_type))) if names_type else UNTYPED, per_node),)


def keeps_types(version: tuple[int, int]) -> bool:
    """Return whether a job stays tied to nodes that have every type its request ever named."""
    return version < _FORGETS_TYPES_SINCE


def clear_request(job: JobId) -> Argv:
    """Return the first half of changing a request; the job then asks for no GPU at all."""
    return ["scontrol", "update", f"JobId={job}", *(f"{key}=" for key in _REQUEST_KEYS)]


def set_request(
    job: JobId, gang: Gang, version: tuple[int, int], *, names_type: bool, is_restart: bool
) -> Argv:
    """Return the second half: nodes, their number, and GPUs of each node.

    A requeued job may not begin for two minutes unless told otherwise, and must not begin in the
    second in which it ended ("Job credential revoked"): now+1.
    """
    ((kind, count),) = requested_gpus(gang, names_type=names_type)
    name = "gpu" if kind == UNTYPED else f"gpu:{kind}"
    prefix = "gres/" if version >= _SLASH_SINCE else "gres:"
    num_nodes = len(gang.gpus_by_node)
    return [
        "scontrol",
        "update",
        f"JobId={job}",
        f"NumNodes={num_nodes}-{num_nodes}",
        f"ReqNodeList={node_list(gang)}",
        f"TresPerNode={prefix}{name}:{count}",
        *(["StartTime=now+1"] if is_restart else []),
    ]


def release(job: JobId) -> Argv:
    """Return the command that lets a held job start."""
    return ["scontrol", "release", str(job)]


def hold(job: JobId) -> Argv:
    """Return the command that holds a pending job so that its owner could release it."""
    return ["scontrol", "uhold", str(job)]


def ask_to_save(job: JobId) -> Argv:
    """Return the command that asks the batch script to save and wait."""
    return ["scancel", "--signal=USR1", "--batch", str(job)]


def requeue_held(job: JobId) -> Argv:
    """Return the command that takes a running job off its GPUs and holds it."""
    return ["scontrol", "requeuehold", str(job)]


def parse_version(text: str) -> tuple[int, int]:
    """Return (22, 5) from `slurm-wlm 22.05.8`; (0, 0) if there is no version in it."""
    for word in text.split():
        major, _, rest = word.partition(".")
        minor = rest.partition(".")[0]
        if major.isdigit() and minor.isdigit():
            return int(major), int(minor)
    return 0, 0
