"""Enrolment: jobs that were not submitted by hadar-sbatch, and that hadard steers nevertheless.

The operator's lists in hadar.yaml choose them; their description comes from what Slurm shows. They
are never held, never migrated, and nothing of them changes but what mode `steer` limits
(docs/adr/0029-enrolment.md).
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hadar_slurm.core.cluster import JobId, natural_key
from hadar_slurm.core.gpu_types import Needs
from hadar_slurm.core.job import Shape
from hadar_slurm.engine.modes import Mode, Modes
from hadar_slurm.engine.notices import Notices
from hadar_slurm.errors import JobSpecError, SlurmError
from hadar_slurm.jobspec.description import Description, decode
from hadar_slurm.jobspec.gres import asked_gpus
from hadar_slurm.jobspec.identity import Shown, workload_of_shown
from hadar_slurm.jobspec.opting_out import is_opted_out
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.client.parse import NO_MAXIMUM, QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter

if TYPE_CHECKING:
    from hadar_slurm.slurm.client.submission import Submission

log = logging.getLogger(__name__)

# How many of an array's waiting tasks are steered, the first ones. Each change splits a task from
# its array and takes some milliseconds; Slurm places the tasks behind them.
MOST_TASKS = 64
# The parts of a request for generic resources that are GPUs.
_GPU = re.compile(r"(gres[:/])?gpu(?=$|[:=])")
_NODES = re.compile("([0-9]+)(?:-([0-9]+))?")

# The names that are enrolled: any of `partitions`, `qos`, `accounts`, `users`.
Lists = Mapping[str, Collection[str]]
_NAMES_OF: Mapping[str, Callable[[QueueRow], Collection[str]]] = {
    "partitions": lambda row: row.partition.split(","),
    "qos": lambda row: (row.qos,),
    "accounts": lambda row: (row.account,),
    "users": lambda row: (row.user,),
}


def is_listed(row: QueueRow, lists: Lists) -> bool:
    """Return whether every list that the operator gives has the job, with all its partitions."""
    return bool(lists) and all(
        all(name in names for name in _NAMES_OF[kind](row)) for kind, names in lists.items()
    )


def may_enrol(row: QueueRow, lists: Lists) -> bool:
    """Return whether a job with GPUs is listed, has no description, and its owner agrees."""
    if not ((row.gpus_per_node or row.gpus_otherwise) and is_listed(row, lists)):
        return False
    try:
        return decode(row.comment) is None and not is_opted_out(row.comment)
    except JobSpecError:
        return False


def describe(row: QueueRow, asked: Submission, num_nodes: str) -> Description:
    """Return the description of an enrolled job; raises JobSpecError why it is left to Slurm.

    `num_nodes` is the range of nodes that its owner asked for, or the number that it has.
    """
    if why := _why_left(row, asked):
        raise JobSpecError(why)
    nodes = _fixed_nodes(num_nodes, asked, is_pending=row.state == "PENDING")
    request = row.request
    number = {key: sum(count for _, count in asked_gpus(text)) for key, text in _texts(request)}
    gpus = nodes * number["per_node"]
    shape: Shape | None = Shape(nodes, number["per_node"])
    if not gpus:
        gpus = number["per_job"] or number["per_task"] * asked.num_tasks
        if gpus % nodes:
            raise JobSpecError(f"{gpus} GPUs do not divide evenly over {nodes} nodes")
        is_open = num_nodes.partition("-")[2] not in ("", str(nodes)) and nodes == 1
        # More nodes than tasks would change the number of tasks, for good.
        is_free = is_open and not (number["per_task"] or asked.tasks_per_node)
        shape = None if is_free and asked.num_tasks >= gpus else Shape(nodes, gpus // nodes)
    return Description(
        limit_s=asked.limit_s,
        gpus=gpus,
        shape=shape,
        workload=workload_of_shown(
            Shown(asked.name, asked.command, asked.directory, asked.container, row.comment)
        ),
        needs=Needs(types=tuple(sorted(name.lower() for name in row.named_types))),
    )


def _texts(request: Request) -> tuple[tuple[str, str], ...]:
    """Return the requests for GPUs by their form."""
    forms = ("per_node", "per_job", "per_task", "per_socket")
    return tuple((form, getattr(request, form)) for form in forms)


def _why_left(row: QueueRow, asked: Submission) -> str:
    """Return why a job is left to Slurm, as hadar-sbatch would leave it; "" if it is not."""
    given = {form: text for form, text in _texts(row.request) if text}
    if not row.is_batch and not asked.command:
        return "it is an allocation by salloc"
    if row.is_set_apart:
        return "it is part of a heterogeneous job"
    if row.reservation:
        return "it has a reservation"
    if row.state == "PENDING" and row.restarts:
        return "it has run before, so that Slurm no longer shows its number of nodes"
    if "per_socket" in given:
        return "--gpus-per-socket is given"
    if any(not _GPU.match(part) for text in given.values() for part in text.split(",")):
        return "it requests other resources too"
    if len(row.named_types) > 1:
        return f"GPUs of several types are requested ({', '.join(sorted(row.named_types))})"
    if len(given) > 1 and set(given) != {"per_job", "per_task"}:
        return "GPUs are requested twice"
    if not asked.limit_s:
        return "no time limit is given (--time), and the partition sets none"
    return "--exclusive is given; hadard counts GPUs, not nodes" if asked.is_exclusive else ""


def _fixed_nodes(num_nodes: str, asked: Submission, *, is_pending: bool) -> int:
    """Return the number of nodes, the least where the most is no bound; raises JobSpecError.

    A job that asks for one node or more gets no more nodes than it has tasks.
    """
    found = _NODES.fullmatch(num_nodes)
    least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    is_bound = most < (asked.num_tasks if least == 1 else NO_MAXIMUM)
    is_estimate = is_pending and least != asked.least_nodes
    if not least or (least != most and is_bound) or is_estimate:
        raise JobSpecError("its number of nodes is not certain; give one with --nodes")
    return least


def _behind_in_array(jobs: Iterable[JobId]) -> Iterator[JobId]:
    """Yield the tasks of arrays behind the first MOST_TASKS of each among these jobs."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for job in jobs:
        array, _, task = job.partition("_")
        if task.isdecimal():
            numbers[array].append(int(task))
    for array, tasks in numbers.items():
        yield from (JobId(f"{array}_{task}") for task in sorted(tasks)[MOST_TASKS:])


def _behind_in_account(rows: Iterable[QueueRow], most: Mapping[str, int]) -> set[JobId]:
    """Return the jobs behind the first ones of each account, those that have started before all."""
    of_account: defaultdict[str, list[QueueRow]] = defaultdict(list)
    for row in rows:
        if row.account in most:
            of_account[row.account].append(row)
    return {
        row.key
        for account, own in of_account.items()
        for row in sorted(own, key=lambda row: (row.state == "PENDING", natural_key(row.key)))[
            most[account] :
        ]
    }


@dataclass
class Enrolment:
    """The enrolled jobs of one Slurm."""

    slurm: SlurmAdapter
    lists: Lists
    modes: Modes
    # The most jobs of an account that are enrolled at once, where there is such a limit.
    most_of_account: Mapping[str, int]
    notices: Notices
    _submissions: Mapping[JobId, Submission] = field(default_factory=dict)
    # Jobs that are left to Slurm for now, behind the first ones of their arrays and accounts.
    _behind: frozenset[JobId] = frozenset()
    # The last answer for each job, and what it was for.
    _known: dict[JobId, tuple[object, Description | None]] = field(default_factory=dict)

    def read(self, rows: Iterable[QueueRow]) -> None:
        """Read what the enrolled jobs among these asked for; keep the last answer on a fault."""
        if not self.lists:
            return
        shown = list(rows)
        found = [row for row in shown if row.is_live and self.may_include(row)]
        candidates = {row.key for row in found}
        behind = {*_behind_in_array(row.key for row in found if row.state == "PENDING")}
        behind |= _behind_in_account(
            [row for row in found if row.key not in behind], self.most_of_account
        )
        self._behind = frozenset(behind)
        known = {row.key for row in shown}
        self._known = {job: found for job, found in self._known.items() if job in known}
        try:
            self._submissions = self.slurm.submissions() if candidates else {}
        except SlurmError as error:
            log.warning("enrolled jobs: %s", error)

    def may_include(self, row: QueueRow) -> bool:
        """Return whether a job is enrolled, unless it asks for what hadard cannot steer."""
        # A preference, which mode `advise` sets, is taken back only from waiting jobs.
        return may_enrol(row, self.lists) and self.modes.of(row.partition) is not Mode.ADVISE

    def is_new(self, row: QueueRow) -> bool:
        """Return whether a job may be enrolled once what it asked for has been read."""
        return bool(self.lists) and row.key not in self._submissions and self.may_include(row)

    def description(self, row: QueueRow, own: Request | None, shown: str) -> Description | None:
        """Return the description of a job that is enrolled; None for any other.

        `own` is the owner's request if hadard has changed it, `shown` the nodes that Slurm shows.
        """
        asked = self._submissions.get(row.key)
        if asked is None or row.key in self._behind or not self.may_include(row):
            return None
        is_changed = own is not None and row.state == "PENDING"
        nodes = own.num_nodes if own is not None and is_changed else shown
        key = (row.state, row.restarts, row.is_set_apart, nodes, is_changed, row.request, asked)
        known = self._known.get(row.key)
        if known is None or known[0] != key:
            if is_changed:
                asked = replace(asked, least_nodes=int(nodes.partition("-")[0]))
            known = self._known[row.key] = (key, self._described(row, asked, nodes))
        return known[1]

    def _described(self, row: QueueRow, asked: Submission, nodes: str) -> Description | None:
        """Return a job's description; None where it has none, and of a live job say why."""
        try:
            return describe(row, asked, nodes)
        except JobSpecError as error:
            if row.is_live:
                self.notices.say(row.key, f"is enrolled, but left to Slurm: {error}")
            return None
