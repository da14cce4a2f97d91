"""The adapter for pyslurm, a binding of Slurm's C library; commands do what pyslurm cannot.

pyslurm 25.11 cannot place a user hold, empty a field, change a number of nodes or name an array
task, and does not show all of a job's request: docs/adr/0014-two-ways-to-slurm.md.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from itertools import groupby
from typing import Any, Protocol, cast

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.core.gang import Gang
from hadar_slurm.errors import ConfigError, SlurmError, SlurmOutputError, SlurmUnavailable
from hadar_slurm.jobspec.constraint import fold_out
from hadar_slurm.jobspec.cores_memory import Sizes
from hadar_slurm.slurm.client import parse
from hadar_slurm.slurm.client.command_line import CommandLine, Send
from hadar_slurm.slurm.client.longest import longest_limits
from hadar_slurm.slurm.client.parse import HOLDING_STATES, NodeRow, QueueRow
from hadar_slurm.slurm.client.runner import Runner, fault_of
from hadar_slurm.slurm.client.squeue import Fields, squeue
from hadar_slurm.slurm.client.state import (
    SHOW_JOBS,
    SlurmState,
    has_sizes,
    read_nodes,
    reservations_of,
    sizes_by_type,
)
from hadar_slurm.slurm.client.updates import Release, Requeue, Update

# Fields that pyslurm lacks or changes: it shows the first task of an array and a job without tasks
# alike.
_ASKED = Fields(
    "JobID JobArrayID Dependency NumNodes tres-per-node tres-per-job tres-per-task tres-per-socket "
    "exit_code QOS EligibleTime Requeue",
    "Account Licenses Feature",
)
# Slurm's library cuts lists of array tasks after 64 characters by default.
_WHOLE_LISTS = {"SLURM_BITSTR_LEN": "0"}

# The fields used of a `pyslurm.Job`. Zero is None, except in a priority or a user id.
JOB_FIELDS = (
    "id array_id array_tasks_waiting heterogeneous_id state state_reason user_id user_name "
    "partition priority allocated_nodes required_nodes excluded_nodes num_nodes max_nodes "
    "requeue_count submit_time start_time end_time time_limit reservation is_batch_job is_cronjob "
    "comment nice preferred_features"
).split()
# The fields used of a `pyslurm.Node`.
NODE_FIELDS = (
    "name state configured_gres slurmd_start_time partitions active_features total_cpus "
    "allocated_cpus"
).split()

# At most one entry: pyslurm, by the configuration that it was loaded for.
_loaded: dict[str, Library] = {}


class Library(Protocol):
    """The part of pyslurm that is used; `Job.hold` is not, as it crashes the process."""

    Jobs: Any
    Nodes: Any
    # A job to be changed, by its SLURM_JOB_ID.
    Job: Callable[[int], Any]
    RPCError: type[Exception]


_CALLS: Mapping[type[Update], Callable[[Any], None]] = {
    Release: lambda job: job.release(),
    Requeue: lambda job: job.requeue(hold=True),
}


@dataclass(frozen=True)
class PySlurm(CommandLine):
    """The adapter; calls into `library`, of the commands' version, wait at most MessageTimeout."""

    library: Library
    name = "pyslurm"

    def queue(self) -> dict[JobId, QueueRow]:
        """Return every job and array task."""
        return {row.key: row for _, row in self._jobs()}

    def nodes(self) -> tuple[NodeRow, ...]:
        """Return every node; where GPUs have shares, scontrol shows which of these are in use."""
        nodes = self._load(self.library.Nodes)
        has_shares = any(k.startswith(("shard", "mps")) for n in nodes for k in n.configured_gres)
        shared = {r.node.name: r.shared for r in (read_nodes(self.runner) if has_shares else ())}
        return tuple(replace(_node_row(n), shared=shared.get(n.name, ())) for n in nodes)

    def read(self) -> SlurmState:
        """Return the queue and the GPUs that jobs hold, both of one instant, and the nodes."""
        jobs = self._jobs()
        nodes = self.nodes()
        live = [(job, row) for job, row in jobs if row.is_live]
        pending = [(job, row) for job, row in jobs if row.state == "PENDING"]
        gangs = {
            row.key: _held_gang(job, row.nodes) for job, row in jobs if row.state in HOLDING_STATES
        }
        return SlurmState(
            {row.key: row for _, row in jobs},
            nodes,
            {key: gang for key, gang in gangs.items() if gang.slots},
            frozenset(row.key for job, row in live if job.is_cronjob),
            {row.key: fold_out(job.excluded_nodes or "") for job, row in live},
            {row.key: job.nice or 0 for job, row in pending},
            {row.key: parse.asked_nodes(_span(job), row.request.num_nodes) for job, row in pending},
            shows_invented_max_nodes=True,  # holds for all Slurm versions with such a pyslurm
            limits_s={row.key: 60.0 * (job.time_limit or 0) for job, row in live},
            most_s=longest_limits((row for _, row in jobs), self.runner),
            reservations=reservations_of((row for _, row in jobs), self.runner),
            sizes=_read_sizes(self.runner, [row for _, row in jobs]),
            preferred={row.key: ",".join(job.preferred_features or ()) for job, row in pending},
        )

    def _batches(self, changes: Sequence[Update]) -> Iterator[tuple[Send, Sequence[Update]]]:
        # The library takes plain job numbers only.
        for is_call, group in groupby(changes, lambda c: type(c) in _CALLS and c.job.isdigit()):
            if is_call:
                yield from ((self._call, [change]) for change in group)
            else:
                yield from super()._batches(list(group))

    def _call(self, changes: Sequence[Update]) -> list[SlurmError | None]:
        (change,) = changes
        try:
            _CALLS[type(change)](self.library.Job(int(change.job)))
        except self.library.RPCError as error:
            text = f"pyslurm {type(change).__name__} {change.job}: {error}"
            return [fault_of(text, str(error))]
        return [None]

    def _jobs(self) -> list[tuple[Any, QueueRow]]:
        """Return the row of each job, or a row for each pending task of an array, with its job.

        The library is read first, then squeue. A job submitted in between appears in the next read;
        a job that Slurm has forgotten in between is left out.
        """
        jobs = self._load(self.library.Jobs)
        asked = {}
        texts = _ASKED.texts(*squeue(self.runner, _ASKED, "-r", "-t", "all"))
        for field in map(_ASKED.named, texts):
            if not field["JobID"].isdigit():
                raise SlurmOutputError("squeue: expected a job's number", repr(field))
            asked[int(field["JobID"])] = field
        # The lookup of a user name takes as long as the rest of a job.
        of_users = {job.user_id: job for job in reversed(jobs)}
        users = {user_id: job.user_name for user_id, job in of_users.items()}
        return [
            (job, row)
            for job in jobs
            if job.id in asked
            for row in _rows(job, asked[job.id], users[job.user_id])
        ]

    def _load(self, records: Any) -> list[Any]:
        """Return all records of one type; raises SlurmUnavailable where the library fails."""
        try:
            return list(records.load().values())
        except self.library.RPCError as error:
            raise SlurmUnavailable(f"pyslurm: {error}") from error


def _span(job: Any) -> str:
    return f" NumNodes={job.num_nodes}-{job.max_nodes} " if job.max_nodes else ""


def _read_sizes(runner: Runner, rows: Collection[QueueRow]) -> dict[JobId, Sizes]:
    """Return the cores and memory of waiting copies that have them by type, if there are any."""
    if not any(has_sizes(row) for row in rows):
        return {}
    known = {row.raw_id for row in rows}
    return sizes_by_type(rows, parse.split_job_details(runner.run(SHOW_JOBS), known))


def _rows(job: Any, asked: Mapping[str, str], user: str) -> list[QueueRow]:
    """Return the row of a job, or one row for each pending task that Slurm keeps as one job."""
    shown = {
        "State": job.state,
        "Reason": job.state_reason or "None",
        "UserID": str(job.user_id),
        "UserName": user,
        "Partition": job.partition,
        "PriorityLong": str(job.priority),
        "ReqNodes": job.required_nodes or "",
        "NodeList": job.allocated_nodes or "",
        "RestartCnt": str(job.requeue_count or 0),
        "SubmitTime": str(job.submit_time or 0),
        "StartTime": str(job.start_time or 0),
        "EndTime": str(job.end_time or 0),
        "Reservation": job.reservation or "",
        "HetJobID": str(job.heterogeneous_id or ""),
        "BatchFlag": "1" if job.is_batch_job else "0",
        "Comment": _comment(job),
    }
    row = parse.queue_row({**asked, **shown})
    if job.time_limit is None and row.is_live:
        row = replace(row, ended_s=0.0)
    if job.array_tasks_waiting is None:
        return [row]
    # squeue -r (22.05.8, 26.05.5) omits the last task where the task numbers have a step.
    tasks = _tasks(job.array_tasks_waiting)
    return [replace(row, key=JobId(f"{job.array_id}_{task}")) for task in tasks]


def _tasks(text: str) -> Iterator[int]:
    """Yield the numbers in Slurm's list of array tasks, such as `2,5-9:2`."""
    try:
        for part in text.split(","):
            span, _, step = part.partition(":")
            first, _, last = span.partition("-")
            yield from range(int(first), int(last or first) + 1, int(step or 1))
    except ValueError as error:
        raise SlurmOutputError(f"array tasks: {error}", text) from error


def _comment(job: Any) -> str:
    """Return a job's comment; bytes that are not UTF-8 are replaced, as in squeue's output."""
    try:
        return job.comment or ""
    except UnicodeDecodeError as error:
        return str(error.object.decode(errors="replace"))


def _held_gang(job: Any, nodes: Sequence[NodeName]) -> Gang:
    """Return the GPUs that a job holds on `nodes`; nodes that it has left are not among them."""
    layout = job.get_resource_layout_per_node()
    gpus = {name: _gpus(layout[name]["gres"]) for name in nodes if name in layout}
    return Gang.of({(name, key): count for name in gpus for key, count in gpus[name].items()})


def _node_row(node: Any) -> NodeRow:
    return parse.node_row(
        node.name,
        _gpus(node.configured_gres),
        node.state,
        node.partitions,
        node.active_features,
        # None after a restart of slurmctld: see node_row.
        has_reported=node.slurmd_start_time is not None,
        num_cpus=node.total_cpus or 0,
        used_cpus=node.allocated_cpus or 0,
    )


def _gpus(gres: Mapping[str, Any]) -> dict[str, int]:
    """Return GPUs by type from pyslurm's form of `gpu:v100:2` or `gpu:v100:2(IDX:0-1)`."""
    found: dict[str, int] = {}
    for name, given in gres.items():
        first, _, gpu_type = name.partition(":")
        count = given["count"] if isinstance(given, Mapping) else given
        if first == "gpu" and count:
            found[gpu_type or parse.UNTYPED] = count
    return found


@dataclass(frozen=True, slots=True)
class Installed:
    """An installed pyslurm: its version, and a function that loads it for one Slurm."""

    version: str
    load: Callable[[Runner], Library]


def find_pyslurm() -> Installed | None:
    """Return pyslurm if it is installed for this Python, without importing it."""
    try:
        return Installed(metadata.version("pyslurm"), load)
    except metadata.PackageNotFoundError:
        return None


def load(runner: Runner) -> Library:
    """Return pyslurm, loaded for the Slurm that `runner` reaches; raises ConfigError with a reason.

    Slurm's library ends its process where Slurm's configuration is wrong, so another process
    imports it first. It reads the configuration once: a process can reach only one Slurm with it.
    """
    conf = runner.variables().get("SLURM_CONF", "")
    if conf in _loaded:
        return _loaded[conf]
    if _loaded:
        raise ConfigError(f"pyslurm stays with {next(iter(_loaded))!r} until hadard is restarted")
    try:
        # -P: not from the working directory.
        runner.run([sys.executable, "-P", "-c", "import pyslurm"])
    except SlurmError as error:
        raise ConfigError(f"pyslurm cannot be loaded: {error}") from error
    with _loading(conf):
        module = importlib.import_module("pyslurm")
    lacking = [name for name in _needed() if not _has(module, name)]
    if lacking:
        raise ConfigError(f"pyslurm lacks {', '.join(lacking)}")
    _loaded[conf] = cast(Library, module)
    return _loaded[conf]


@contextmanager
def _loading(conf: str) -> Iterator[None]:
    """Make Slurm's library read `conf`, and restore this process's settings afterwards."""
    before = os.environ.get("SLURM_CONF")
    flags = sys.getdlopenflags()
    os.environ |= _WHOLE_LISTS
    if conf:
        os.environ["SLURM_CONF"] = conf
    try:
        yield
    finally:
        # pyslurm sets RTLD_GLOBAL for all later libraries, which may not support it.
        sys.setdlopenflags(flags)
        if before is not None:
            os.environ["SLURM_CONF"] = before
        elif conf:
            del os.environ["SLURM_CONF"]


def _needed() -> Iterator[str]:
    """Yield the names used of pyslurm, which have changed between its versions."""
    yield from ("RPCError", "Jobs.load", "Nodes.load")
    methods = ("release", "requeue", "get_resource_layout_per_node")
    yield from (f"Job.{name}" for name in (*methods, *JOB_FIELDS))
    yield from (f"Node.{name}" for name in NODE_FIELDS)


def _has(module: object, path: str) -> bool:
    first, _, second = path.partition(".")
    return hasattr(module, first) and (not second or hasattr(getattr(module, first), second))
