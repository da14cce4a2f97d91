"""One look at a whole Slurm: the queue, the nodes, and which GPUs every job holds."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from hadar_slurm.core.cluster import Cluster, JobId, NodeName, Slot
from hadar_slurm.core.gang import Gang
from hadar_slurm.errors import SlurmRefused
from hadar_slurm.slurm.client.parse import (
    HOLDING_STATES,
    NodeRow,
    QueueRow,
    array_throttles,
    asked_nodes,
    held_gang,
    is_set_apart,
    parse_nodes,
    parse_queue,
    queue_format,
    split_job_details,
    takes_work,
)
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.updates import Request


@dataclass(frozen=True)
class SlurmState:
    """What Slurm showed at one instant.

    `gangs` are the GPUs of jobs that hold any, `set_apart` the pending jobs that squeue alone does
    not tell apart from others: those that exclude nodes, and those of scrontab. `num_nodes` are
    the ranges that pending jobs ask for, as far as they are told; `invents_the_most` says that
    Slurm shows the number of tasks as the most nodes of a job that gave none. `throttles` are how
    many tasks of an array may run at once, by its number, where Slurm shows it.
    """

    queue: dict[JobId, QueueRow]
    nodes: tuple[NodeRow, ...]
    gangs: dict[JobId, Gang]
    set_apart: frozenset[JobId] = frozenset()
    num_nodes: Mapping[JobId, str] = field(default_factory=dict)
    invents_the_most: bool = False
    throttles: Mapping[str, int] = field(default_factory=dict)

    def nodes_of(self, partition: str) -> frozenset[NodeName] | None:
        """Return the nodes of a job's partitions, `a,b`; None where those are all."""
        if partition not in self._nodes_of:
            wanted = set(partition.split(","))
            names = {row.node.name for row in self.nodes if wanted.intersection(row.partitions)}
            is_all = len(names) == len(self.nodes)
            self._nodes_of[partition] = None if is_all else frozenset(names)
        return self._nodes_of[partition]

    @cached_property
    def _nodes_of(self) -> dict[str, frozenset[NodeName] | None]:
        """Answers so far: thousands of jobs are in a few partitions."""
        return {}

    def request(self, row: QueueRow) -> Request:
        """Return what a pending job asks for, such that asking for it again gives the same."""
        if row.restarts > 0:
            # What Slurm shows is the number of its last run, whatever it asked for.
            least = row.request.num_nodes.partition("-")[0]
            return replace(row.request, num_nodes=f"{least}-{least}")
        least, _, most = self.num_nodes.get(row.key, "").partition("-")
        if self.invents_the_most and row.request.per_job and least and most == least:
            # Taken at its word, GPUs asked for in all could be on too few nodes to be had.
            return replace(row.request, num_nodes=asked_nodes("", least))
        told = self.num_nodes.get(row.key) or asked_nodes("", row.request.num_nodes)
        return replace(row.request, num_nodes=told)

    @cached_property
    def cluster(self) -> Cluster:
        """Return the nodes that have GPUs."""
        return Cluster.of(row.node for row in self.nodes if row.node.gpus)

    @property
    def waits_for_nodes(self) -> bool:
        """Whether slurmctld, just started, has not yet heard of a node that it counts on."""
        return waits_for_nodes(self.nodes)

    @property
    def in_use(self) -> Counter[Slot]:
        """Return the GPUs that jobs hold in every slot; a job that is still ending holds them."""
        used: Counter[Slot] = Counter()
        for gang in self.gangs.values():
            used.update(dict(gang.slots))
        return used


def waits_for_nodes(nodes: Iterable[NodeRow]) -> bool:
    """Return whether slurmctld, just started, has not yet heard of a node that it counts on."""
    return any(not row.has_reported and takes_work(row.state) for row in nodes)


def read_queue(runner: Runner) -> dict[JobId, QueueRow]:
    """Return every job and array task that Slurm remembers, ended ones included."""
    mark = f"#{secrets.token_hex(16)}"
    # -a: what runs in a hidden partition holds its GPUs too.
    text = runner.run(["squeue", "-a", "-h", "-r", "-t", "all", "-O", queue_format(mark)])
    return {row.key: row for row in parse_queue(text, mark)}


def read_nodes(runner: Runner) -> tuple[NodeRow, ...]:
    """Return every node."""
    return tuple(parse_nodes(runner.run(["scontrol", "-a", "show", "node", "-o"])))


def read_all(runner: Runner) -> SlurmState:
    """Return the queue, the nodes and what squeue does not tell of jobs, in three calls.

    The calls are not one instant. The queue is read first: a job that starts right after it is
    not in the reading at all and is seen by the next; one that ends after it still counts.
    """
    queue = read_queue(runner)
    nodes = read_nodes(runner)
    live = [row for row in queue.values() if row.is_live]
    if not live:
        return SlurmState(queue, nodes, {})
    known = {row.raw_id for row in queue.values()}
    details = split_job_details(_shown_jobs(runner), known)
    gangs = {
        row.key: held_gang(details.get(row.raw_id) or _detail(runner, row.raw_id), row.nodes)
        for row in live
        if row.state in HOLDING_STATES
    }
    return SlurmState(
        queue,
        nodes,
        {key: gang for key, gang in gangs.items() if gang.slots},
        # A job whose line is in doubt is not asked for alone: should it exclude a node, Slurm
        # itself keeps it from there.
        frozenset(row.key for row in live if is_set_apart(details.get(row.raw_id, ""))),
        {
            row.key: asked_nodes(details.get(row.raw_id, ""), row.request.num_nodes)
            for row in live
            if row.state == "PENDING"
        },
        throttles=array_throttles(details.get(row.raw_id, "") for row in live),
    )


def _shown_jobs(runner: Runner, *raw_ids: str) -> str:
    return runner.run(["scontrol", "-a", "show", "job", "-d", "-o", *raw_ids])


def _detail(runner: Runner, raw_id: str) -> str:
    """Return what Slurm tells of one job; nothing of a job that is gone by now."""
    try:
        return _shown_jobs(runner, raw_id)
    except SlurmRefused:
        return ""
