"""Lists of jobs that a real Slurm and the simulator both play, and what happened to them.

Times are seconds of the list; a real Slurm plays `compression` of them in one second.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

# Of the throughput on the fastest type: choice `open` leaves out slower ones.
OPEN = 0.4
# A Slurm time limit is a whole number of minutes.
MINUTE_S = 60


class Pool(NamedTuple):
    """Nodes of one GPU type; the pools of a list are in the order of their nodes' weights."""

    gpu_type: str
    nodes: int
    gpus: int


@dataclass(frozen=True, slots=True)
class ListedJob:
    """One job; `seconds` on each type within a node and over several, `limit_min` of real time."""

    number: int
    user: str
    submit_s: float
    gpus: int
    nodes: int
    seconds: Mapping[str, tuple[float, float]]
    limit_min: int
    # Of its partition or QOS; where the list preempts, jobs of a higher tier do so with those of
    # lower ones.
    tier: int = 0

    def lasts_s(self, gpu_types: Mapping[str, object] | set[str], *, is_spread: bool) -> float:
        """Return how long the job runs on these types together: the slowest sets the pace."""
        return max(self.seconds[gpu_type][is_spread] for gpu_type in gpu_types)


@dataclass(frozen=True, slots=True)
class JobList:
    """The jobs, the cluster, and how Slurm and its users are set up."""

    name: str
    about: str
    pools: tuple[Pool, ...]
    jobs: tuple[ListedJob, ...]
    # gpus: --gpus=N; nodes: -N k --gpus-per-node=g; list: the same with -C "[a|b]".
    form: str = "nodes"
    # any or open: without types below .4 of the fastest.
    choice: str = "any"
    # tree, classic or no.
    fairshare: str = "no"
    compression: int = 600
    # Minutes of real time, as bf_window is.
    bf_window_min: int = 10_080
    # PreemptMode in lower case: requeue, cancel, suspend; "" for none.
    preempts: str = ""
    # Whether tiers are QOS of a priority, and not partitions; and PriorityWeightQOS.
    has_qos: bool = False
    weight_qos: int = 0
    # Whether the rules of the simulated Slurm may be changed because of this list.
    is_for_tuning: bool = False

    def allowed(self, job: ListedJob) -> tuple[str, ...]:
        """Return the types that the job's user allows, the fastest first."""
        speeds = {pool.gpu_type: 1 / job.seconds[pool.gpu_type][0] for pool in self.pools
                  if pool.gpu_type in job.seconds}  # fmt: skip
        least = OPEN * max(speeds.values()) if self.choice == "open" else 0.0
        fastest_first = sorted(speeds, key=lambda gpu_type: -speeds[gpu_type])
        return tuple(gpu_type for gpu_type in fastest_first if speeds[gpu_type] >= least)

    def limit_s(self, job: ListedJob) -> float:
        """Return the job's time limit in seconds of the list."""
        return float(job.limit_min * MINUTE_S * self.compression)

    @property
    def may_stop(self) -> bool:
        """Whether jobs may be stopped for others."""
        return self.preempts in ("requeue", "cancel")

    def node_types(self) -> dict[str, str]:
        """Return the GPU type of each node, in the order of weight, which is that of the names.

        Slurm sorts nodes by name, and gives the first of a job's nodes most of its GPUs.
        """
        return {
            f"n{place}-{pool.gpu_type}-{i}": pool.gpu_type
            for place, pool in enumerate(self.pools, 1)
            for i in range(1, pool.nodes + 1)
        }


@dataclass(frozen=True, slots=True)
class Run:
    """What happened to a job: times since the list's begin, the GPU types of its nodes."""

    start_s: float
    end_s: float
    # Its nodes, and the GPUs on each of them.
    nodes: tuple[str, ...]
    gpus: tuple[int, ...] = ()
    state: str = "COMPLETED"
    # How often it was requeued before.
    requeued: int = 0

    @property
    def gpu_types(self) -> frozenset[str]:
        """Return the types, as the real nodes are named after theirs."""
        return frozenset(node.split("-")[1] for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Play:
    """One play of a list, and on what."""

    list: str
    slurm: str
    made: str
    runs: Mapping[int, Run]
    # How late a job was submitted at most, in real seconds, and the machine's load.
    late_s: float = 0.0
    load: float = 0.0
    # How long before the list began priorities were computed, in seconds of the list.
    first_period_s: float = 0.0
    # Seconds since 1970 when the list began.
    began_at: float = 0.0


def least_minutes(seconds: float, compression: int) -> int:
    """Return a limit in minutes within which a job of the list's `seconds` surely ends."""
    # Two seconds for a busy machine.
    return max(1, math.ceil((seconds / compression + 2.0) / MINUTE_S))


def read_lists(path: Path) -> dict[str, JobList]:
    """Return the lists of a file by name."""
    tree = json.loads(gzip.decompress(path.read_bytes()))
    return {each["name"]: _list(each) for each in tree}


def write_lists(lists: Mapping[str, JobList], path: Path) -> None:
    """Write lists into a file."""
    _write([asdict(each) for each in lists.values()], path)


def read_plays(path: Path) -> list[Play]:
    """Return the recorded plays, none where there is no file."""
    if not path.exists():
        return []
    found = []
    for tree in json.loads(gzip.decompress(path.read_bytes())):
        rows = {
            int(number): Run(row[0], row[1], tuple(row[2]), tuple(row[3]), *row[4:])
            for number, row in tree.pop("runs").items()
        }
        found.append(Play(runs=rows, **tree))
    return found


def write_plays(plays: list[Play], path: Path) -> None:
    """Write recorded plays into a file."""
    trees = []
    for play in plays:
        tree = asdict(play)
        tree["runs"] = {
            n: [r.start_s, r.end_s, r.nodes, r.gpus, r.state, *[r.requeued] * (r.requeued > 0)]
            for n, r in play.runs.items()
        }
        trees.append(tree)
    _write(trees, path)


def _write(tree: Any, path: Path) -> None:
    text = json.dumps(tree, separators=(",", ":"))
    # Without a time of its own, so that equal content is an equal file.
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def _list(tree: dict[str, Any]) -> JobList:
    jobs = tuple(
        ListedJob(**{**job, "seconds": {k: (v[0], v[1]) for k, v in job["seconds"].items()}})
        for job in tree.pop("jobs")
    )
    pools = tuple(Pool(*pool) for pool in tree.pop("pools"))
    return JobList(pools=pools, jobs=jobs, **tree)
