"""The nodes and GPUs that a job asks for, in Slurm's syntax. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from hadar_slurm.core.cluster import NodeName
from hadar_slurm.jobspec.description import Description

# Slurm writes gres/gpu:2 from this version on, gres:gpu:2 before it.
_SLASH_SINCE = (23, 2)
# The part of a request that each of sbatch's options sets.
_KEYS = {
    "gpus": "per_job",
    "gpus-per-node": "per_node",
    "gres": "per_node",
    "gpus-per-task": "per_task",
    "gpus-per-socket": "per_socket",
}
# The fields of `Request` that are no GPUs and no nodes.
SIZES = ("node_cores", "task_cores", "node_memory_mb", "core_memory_mb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The nodes and GPUs that a job asks for, in Slurm's syntax."""

    # A number or a range such as `1-4`.
    num_nodes: str = "1"
    # GPUs such as `gres/gpu:v100:2`; empty for none.
    per_node: str = ""
    per_job: str = ""
    per_task: str = ""
    per_socket: str = ""
    nodes: tuple[NodeName, ...] = ()
    # Cores of the node and of a task, and MB of memory of the node or of a core; empty: not changed
    # by hadard. Known for copies with cores or memory by GPU type only.
    node_cores: str = ""
    task_cores: str = ""
    node_memory_mb: str = ""
    core_memory_mb: str = ""

    @property
    def sizes(self) -> tuple[str, str, str, str]:
        """The cores and the memory, in the order of the fields."""
        return self.node_cores, self.task_cores, self.node_memory_mb, self.core_memory_mb

    @property
    def without_sizes(self) -> Request:
        """The request without cores and memory, as the queue shows it."""
        if not any(self.sizes):
            return self
        return replace(self, node_cores="", task_cores="", node_memory_mb="", core_memory_mb="")

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs per node, job, task and socket."""
        return self.per_node, self.per_job, self.per_task, self.per_socket

    @property
    def is_cleared(self) -> bool:
        """Whether it asks for no GPU, as between the two halves of a change."""
        return not any(self.gpus)


def gres_prefix(version: tuple[int, int]) -> str:
    """Return the prefix of `gpu:2` in a request."""
    return "gres/" if version >= _SLASH_SINCE else "gres:"


def described_request(description: Description, version: tuple[int, int]) -> Request:
    """Return the request that a description stands for, where the original is not known."""
    gpu, shape, asks = f"{gres_prefix(version)}gpu", description.shape, description.asks
    given: dict[str, Any] = {
        _KEYS[name]: _gres(gpu, name, text) for name, text in asks.items() if name in _KEYS
    }
    if not given and shape is not None:
        given = {"per_node": f"{gpu}:{shape.gpus_per_node}"}
    elif not given:
        given = {"per_job": f"{gpu}:{description.gpus}"}
    return Request(num_nodes=description.num_nodes, **given)


def _gres(gpu: str, option: str, text: str) -> str:
    """Return `gres/gpu:v100:2,gres/gpu` for the value `v100:2,gpu` of one of sbatch's options."""
    parts = [part.partition(":") for part in text.split(",")]
    prefix = gpu.removesuffix("gpu")
    return ",".join(
        f"{prefix}{name}{colon}{rest}"
        if name == "gpu" or option == "gres"
        else f"{gpu}:{name}{colon}{rest}"
        for name, colon, rest in parts
    )
