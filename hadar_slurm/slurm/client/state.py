"""Reads the state of a whole Slurm: the queue, the nodes, and the GPUs that each job holds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hadar_slurm.core.cluster import Cluster, GpuType, JobId, NodeName, Slot
from hadar_slurm.core.gang import Gang
from hadar_slurm.engine.rate_limit import MOST_ALONE
from hadar_slurm.errors import SlurmRefused
from hadar_slurm.jobspec.constraint import allows
from hadar_slurm.jobspec.description import decode_or_none
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.client import parse
from hadar_slurm.slurm.client.parse import HOLDING_STATES, NodeRow, QueueRow, asked_nodes
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.squeue import squeue

if TYPE_CHECKING:
    from hadar_slurm.jobspec.cores_memory import Sizes

Reservations = Mapping[str, frozenset[NodeName]]

SHOW_RESERVATIONS = ("scontrol", "-a", "show", "reservation", "-o")
SHOW_JOBS = ("scontrol", "-a", "show", "job", "-d", "-o")


@dataclass(frozen=True)
class SlurmState:
    """The state of Slurm at one instant."""

    queue: dict[JobId, QueueRow]
    nodes: tuple[NodeRow, ...]
    # The GPUs of jobs that hold any.
    gangs: dict[JobId, Gang]
    # Live jobs that belong to scrontab, or of which it is in doubt which nodes they exclude.
    set_apart_by_detail: frozenset[JobId] = frozenset()
    # The nodes that live jobs exclude, perhaps none, where Slurm shows that beyond doubt.
    excluded: Mapping[JobId, tuple[NodeName, ...]] = field(default_factory=dict)
    # The nice values of pending jobs, where Slurm shows them beyond doubt.
    nice: Mapping[JobId, int] = field(default_factory=dict)
    # The ranges of nodes that pending jobs ask for, where Slurm shows them.
    num_nodes: Mapping[JobId, str] = field(default_factory=dict)
    # For a job without a maximum of nodes, Slurm shows its number of tasks as the maximum.
    shows_invented_max_nodes: bool = False
    # The most tasks of an array that may run at once, by array number, where Slurm shows it.
    throttles: Mapping[str, int] = field(default_factory=dict)
    # The time limits of live jobs in seconds, 0 for none, where Slurm shows them beyond doubt.
    limits_s: Mapping[JobId, float] = field(default_factory=dict)
    # The longest time limits in seconds of live jobs whose limit depends on their GPU type.
    most_s: Mapping[JobId, float] = field(default_factory=dict)
    # The nodes of the active reservations that jobs of hadard name.
    reservations: Reservations = field(default_factory=dict)
    # The cores and memory of waiting copies of which hadard sets these, where Slurm shows them.
    sizes: Mapping[JobId, Sizes] = field(default_factory=dict)
    # The features that pending jobs prefer, where Slurm shows beyond doubt whether there are any.
    preferred: Mapping[JobId, str] = field(default_factory=dict)
    # Pending jobs of hadard of which only the queue's row is known, so that none starts them now.
    unseen: frozenset[JobId] = frozenset()
    # A cache: thousands of jobs have a few partitions and constraints.
    _nodes_of: dict[object, frozenset[NodeName] | None] = field(default_factory=dict, init=False)

    @cached_property
    def awaited(self) -> frozenset[str]:
        """Return the numbers of the jobs for which others wait."""
        waits = " ".join(row.dependency for row in self.queue.values() if row.dependency)
        return frozenset(re.findall(r"\d+", waits))

    def updated(self, jobs: Collection[JobId], now: SlurmState) -> SlurmState:
        """Return this state with `now`, a later reading of `jobs`: see `SlurmAdapter.read_jobs`."""
        queue = self.queue | now.queue
        for job in set(jobs).difference(now.queue):
            queue.pop(job, None)
        unseen = self.unseen.difference(jobs) | now.unseen
        of_jobs = ("excluded", "nice", "limits_s", "num_nodes", "preferred", "sizes")
        both: dict[str, Any] = {name: getattr(self, name) | getattr(now, name) for name in of_jobs}
        return replace(self, queue=queue, unseen=unseen, **both)

    def shown(self, job: JobId) -> dict[str, Any]:
        """Return what Slurm shows of the loans of a waiting job's claim; None: it is in doubt."""
        row = self.queue.get(job)
        # On a pin and after a run Slurm shows another number of nodes.
        is_own = row and not (row.is_held or row.restarts or row.requested_nodes)
        return {
            "excluded": self.excluded.get(job),
            "nice": self.nice.get(job),
            "limit_s": self.limits_s.get(job),
            "sized": self.num_nodes.get(job) if is_own else None,
            "preferred": self.preferred.get(job),
        }

    def nodes_of(
        self, row: QueueRow, num_nodes: int = 1, excluded: tuple[NodeName, ...] = ()
    ) -> frozenset[NodeName] | None:
        """Return the nodes that a job's owner allows; None for all.

        Those of its partitions, `a,b`, and reservations that satisfy its constraint, except those
        `excluded`. `num_nodes` is the largest number that it may have. Raises JobSpecError for a
        constraint that only Slurm can read.
        """
        key = (row.partition, row.features, row.reservation, num_nodes, excluded)
        if key not in self._nodes_of:
            wanted, is_allowed = set(row.partition.split(",")), allows(row.features, num_nodes)
            names = {
                node.node.name
                for node in self.nodes
                if wanted.intersection(node.partitions) and is_allowed(node.features)
            }
            if row.reservation:
                mine = (self.reservations.get(name) for name in row.reservation.split(","))
                names &= frozenset[NodeName]().union(*filter(None, mine))
            else:
                names -= self._reserved
            names.difference_update(excluded)
            is_all = len(names) == len(self.nodes)
            self._nodes_of[key] = None if is_all else frozenset(names)
        return self._nodes_of[key]

    def request(self, row: QueueRow) -> Request:
        """Return what a pending job asks for, in a form that may be set again unchanged."""
        given = sizes._asdict() if (sizes := self.sizes.get(row.key)) else {}
        return replace(row.request, num_nodes=self._num_nodes(row), **given)

    def _num_nodes(self, row: QueueRow) -> str:
        known, per_job = decode_or_none(row.comment), row.request.per_job
        shown = self.num_nodes.get(row.key) or asked_nodes("", row.request.num_nodes)
        least, _, most = shown.partition("-")
        is_open = most == str(parse.NO_MAXIMUM) and not per_job
        if known is not None:
            is_estimate = "-" in known.asks.get("nodes", "") or (is_open and known.shape)
            if row.restarts or is_estimate:
                # Otherwise of the last run. One task may be estimated to need 2 nodes (22.05.8).
                return known.num_nodes
        if row.restarts or is_open:
            # GPUs are counted by node or task: with a maximum Slurm uses as many nodes as are free,
            # and so more GPUs; without one, which cannot be set again, as few as it can (22.05.8).
            return f"{least}-{least}"
        # With an invented maximum, GPUs requested per job could need more nodes than allowed.
        is_invented = self.shows_invented_max_nodes and per_job and most == least
        return asked_nodes("", least) if is_invented else shown

    @cached_property
    def cluster(self) -> Cluster:
        """Return the nodes that have GPUs; reserved ones take work if a job of hadard may."""
        rows = (row for row in self.nodes if row.node.gpus)
        return Cluster.of(
            replace(row.node, is_schedulable=True)
            if row.is_reserved and row.node.name in self._reserved
            else row.node
            for row in rows
        )

    @cached_property
    def _reserved(self) -> frozenset[NodeName]:
        return frozenset[NodeName]().union(*self.reservations.values())

    @cached_property
    def shared(self) -> Counter[Slot]:
        """Return the GPUs by slot that jobs share: none can have one whole."""
        shared = ((row.node.name, *each) for row in self.nodes for each in row.shared)
        return Counter({Slot(name, GpuType(key)): count for name, key, count in shared})

    @cached_property
    def in_use(self) -> Counter[Slot]:
        """Return the GPUs that jobs hold or share by slot, completing jobs included."""
        used = self.shared.copy()
        for gang in self.gangs.values():
            used.update(dict(gang.slots))
        return used

    @property
    def free(self) -> Counter[Slot]:
        """Return the GPUs that no job holds."""
        free = Counter(self.cluster.capacity)
        free.subtract(self.in_use)
        return free

    @cached_property
    def unlisted(self) -> frozenset[JobId]:
        """Return the jobs that hold GPUs which Slurm does not list, or lists fewer of.

        A node may be hidden, removed or changed while jobs run. Such a job is not planned.
        """
        capacity, used = self.cluster.capacity, self._listed(self.gangs.values())
        over = {slot for slot, count in used.items() if count > capacity[slot]}
        return frozenset(
            job
            for job, gang in self.gangs.items()
            if any(slot not in capacity or slot in over for slot, _ in gang.slots)
        )

    def occupied(self, planned: Iterable[JobId]) -> Counter[Slot]:
        """Return the GPUs that a plan cannot use: those of all jobs but the ones `planned`.

        Nodes of which jobs have all cores are occupied: of no use are their free GPUs.
        """
        capacity, own = self.cluster.capacity, set(planned)
        used = self._listed(gang for job, gang in self.gangs.items() if job not in own)
        used.update({slot: n for slot, n in self.shared.items() if slot in capacity})
        if full := {row.node.name for row in self.nodes if row.is_full}:
            kept = self._listed(self.gangs[job] for job in own if job in self.gangs)
            used |= {slot: n - kept[slot] for slot, n in capacity.items() if slot.node in full}
        return Counter({slot: min(count, capacity[slot]) for slot, count in used.items()})

    def _listed(self, gangs: Iterable[Gang]) -> Counter[Slot]:
        """Return how many GPUs of each listed slot are held; a type not listed counts as any."""
        used: Counter[Slot] = Counter()
        for slot, count in (each for gang in gangs for each in gang.slots):
            if slot in self.cluster.capacity:
                used[slot] += count
            elif slot.node in self.cluster.by_name:
                used.update({each: count for each, _ in self.cluster.by_name[slot.node].slots})
        return used


def reservations_of(queue: Iterable[QueueRow], runner: Runner) -> Reservations:
    """Return the nodes of the active reservations that live jobs with a description name."""
    named = {
        name
        for row in queue
        if row.is_live and row.reservation and decode_or_none(row.comment) is not None
        for name in row.reservation.split(",")
    }
    if not named:
        return {}
    found = parse.parse_reservations(runner.run(SHOW_RESERVATIONS))
    return {one.name: one.nodes for one in found if one.is_active and one.name in named}


def waits_for_nodes(nodes: Iterable[NodeRow]) -> bool:
    """Return whether a node that takes work and is awake has not reported to slurmctld."""
    return any(parse.takes_work(r.state) for r in nodes if not (r.has_reported or r.node.is_asleep))


def read_queue(
    runner: Runner, *options: str, known: parse.RowsByTexts | None = None
) -> dict[JobId, QueueRow]:
    """Return each job and array task that Slurm remembers, ended ones included."""
    rows = parse.parse_queue(*squeue(runner, parse.QUEUE, "-r", "-t", "all", *options), known)
    return {row.key: row for row in rows}


def read_nodes(runner: Runner) -> tuple[NodeRow, ...]:
    """Return every node."""
    return tuple(parse.parse_nodes(runner.run(["scontrol", "-a", "show", "node", "-d", "-o"])))


def read_all(
    runner: Runner, most_alone: int = MOST_ALONE, known: parse.RowsByTexts | None = None
) -> SlurmState:
    """Return queue, nodes and jobs' details, in three or more calls: see `SlurmAdapter.read`."""
    queue, nodes = read_queue(runner, known=known), read_nodes(runner)
    rows, state = queue.values(), _state(queue, queue.values(), runner, most_alone=most_alone)
    most_s, reservations = _longest_limits(rows, runner), reservations_of(rows, runner)
    return replace(state, nodes=nodes, most_s=most_s, reservations=reservations)


def read_jobs(runner: Runner, jobs: Collection[JobId], most_alone: int = MOST_ALONE) -> SlurmState:
    """Return the queue and details of these jobs: see `SlurmAdapter.read_jobs`."""
    is_few = len(jobs) <= most_alone
    # Of an array all tasks: a number alone means the same to every squeue.
    numbers = ",".join(dict.fromkeys(re.split("[_+]", job)[0] for job in jobs))
    try:
        shown = read_queue(runner, *(("-j", numbers) if is_few else ())) if jobs else {}
    except SlurmRefused:  # so squeue answers to a single number that it no longer knows
        shown = read_queue(runner)
    queue = {key: row for key, row in shown.items() if key in jobs}
    return _state(queue, shown.values(), runner, most_alone=most_alone, is_few=is_few)


def _state(
    queue: dict[JobId, QueueRow],
    rows: Collection[QueueRow],
    runner: Runner,
    *,
    most_alone: int,
    is_few: bool = False,
) -> SlurmState:
    """Return the state of the jobs in `queue`, a part of all `rows`, by their detail lines."""
    from hadar_slurm.slurm.client.doubts import resolved

    live = [row for row in queue.values() if row.is_live]
    if not live:
        return SlurmState(queue, (), {})
    # Without a text all are in doubt, and so asked for alone.
    text = "" if is_few else runner.run(SHOW_JOBS)
    details, unseen = resolved(text, rows, live, runner, most=most_alone)
    of_row = {row.key: details.get(row.raw_id, "") for row in live}
    shown = {key: parse.detail_of(line) for key, line in of_row.items()}
    pending = [row.key for row in live if row.state == "PENDING"]
    gangs = {
        row.key: parse.held_gang(of_row[row.key], row.nodes)
        for row in live
        if row.state in HOLDING_STATES
    }
    return SlurmState(
        queue,
        (),
        {key: gang for key, gang in gangs.items() if gang.slots},
        frozenset(key for key, detail in shown.items() if detail.is_set_apart),
        {key: detail.excluded for key, detail in shown.items() if of_row[key]},
        nice={key: nice for key in pending if (nice := shown[key].nice) is not None},
        preferred={k: p for k in pending if (p := shown[k].preferred) is not None},
        num_nodes={key: asked_nodes(of_row[key], queue[key].request.num_nodes) for key in pending},
        throttles=parse.array_throttles(of_row.values()),
        limits_s={key: s for key, detail in shown.items() if (s := detail.limit_s) is not None},
        sizes=sizes_by_type(live, details),
        unseen=unseen,
    )


def _longest_limits(rows: Iterable[QueueRow], runner: Runner) -> dict[JobId, float]:
    found = (decode_or_none(row.comment) for row in rows if row.is_live)
    if not any(each is not None and each.time_on for each in found):
        return {}
    from hadar_slurm.slurm.client.longest import longest_limits

    return longest_limits(rows, runner)


def has_sizes(row: QueueRow) -> bool:
    """Return whether a job waits that has cores or memory by GPU type."""
    description = decode_or_none(row.comment) if row.state == "PENDING" else None
    return description is not None and bool(description.cores or description.memory_mb)


def sizes_by_type(rows: Iterable[QueueRow], details: Mapping[str, str]) -> dict[JobId, Sizes]:
    """Return what hadard is to change and put back of these, by the jobs' detail lines."""
    found: dict[JobId, Sizes] = {}
    for row in filter(has_sizes, rows):
        from hadar_slurm.jobspec.cores_memory import shown_sizes

        description = decode_or_none(row.comment)
        sizes = shown_sizes(details.get(row.raw_id, ""))
        if sizes is None or description is None:
            continue
        # Where the memory is that of a GPU, a memory set beside it would replace it (22.05.8).
        if not description.memory_mb:
            sizes = sizes._replace(node_memory_mb="", core_memory_mb="")
        if not description.cores:
            sizes = sizes._replace(node_cores="", task_cores="")
        found[row.key] = sizes
    return found
