"""The adapter for pyslurm, a binding of Slurm's C library; commands do what pyslurm cannot.

pyslurm 25.11 cannot place a user hold, empty a field, change a number of nodes or name an array
task, and does not show all of a job's request: docs/adr/0014-two-ways-to-slurm.md.
"""

from __future__ import annotations

import importlib
import os
import secrets
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import metadata
from itertools import groupby
from typing import Any, Protocol, TypeVar, cast

from hadar_slurm.core.cluster import JobId, Node, NodeName
from hadar_slurm.core.gang import Gang
from hadar_slurm.errors import (
    ConfigError,
    SlurmError,
    SlurmOutputError,
    SlurmRefused,
    SlurmUnavailable,
)
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.parse import (
    HOLDING_STATES,
    NOTHING,
    UNTYPED,
    NodeRow,
    QueueRow,
    asked_gpus,
    asked_nodes,
    exit_status,
    fold_out,
    takes_work,
)
from hadar_slurm.slurm.client.protocol import Abilities, Partitions, Site, Version
from hadar_slurm.slurm.client.runner import Runner, is_unreachable
from hadar_slurm.slurm.client.squeue import Fields
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.client.updates import Release, Request, Requeue, SignalCheckpoint, Update

# Fields that pyslurm lacks or changes: it shows the first task of an array and a job without tasks
# alike.
_ASKED = Fields(
    (
        "JobID",
        "JobArrayID",
        "Dependency",
        "NumNodes",
        "tres-per-node",
        "tres-per-job",
        "tres-per-task",
        "tres-per-socket",
        "exit_code",
        "QOS",
    ),
    ("Account", "Licenses"),
)
# Slurm's library cuts lists of array tasks after 64 characters by default.
_WHOLE_LISTS = {"SLURM_BITSTR_LEN": "0"}

Loaded = TypeVar("Loaded")
# At most one entry: pyslurm, by the configuration that it was loaded for.
_loaded: dict[str, Library] = {}


class PyslurmJob(Protocol):
    """The fields used of a `pyslurm.Job`. Zero is None, except in a priority or a user id."""

    id: int
    array_id: int | None
    array_tasks_waiting: str | None
    heterogeneous_id: int | None
    state: str
    state_reason: str | None
    user_id: int
    user_name: str
    partition: str
    priority: int
    allocated_nodes: str | None
    required_nodes: str | None
    excluded_nodes: str | None
    num_nodes: int | None
    max_nodes: int | None
    requeue_count: int | None
    submit_time: int | None
    start_time: int | None
    end_time: int | None
    time_limit: int | None
    reservation: str | None
    is_batch_job: bool
    is_cronjob: bool
    comment: str | None

    def get_resource_layout_per_node(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the job's allocation by node."""
        ...


class NodeRecord(Protocol):
    """The fields used of a `pyslurm.Node`."""

    name: str
    state: str
    configured_gres: Mapping[str, int]
    slurmd_start_time: int | None
    partitions: Sequence[str]
    active_features: Sequence[str]


class JobHandle(Protocol):
    """A `pyslurm.Job` to be changed, by its SLURM_JOB_ID."""

    def release(self) -> None:
        """Release it."""
        ...

    def requeue(self, *, hold: bool) -> None:
        """Requeue it."""
        ...

    def send_signal(self, signal: str, *, steps: str) -> None:
        """Signal it."""
        ...


class Jobs(Protocol):
    """`pyslurm.Jobs`."""

    def load(self) -> Mapping[int, PyslurmJob]:
        """Return all jobs."""
        ...


class Nodes(Protocol):
    """`pyslurm.Nodes`."""

    def load(self) -> Mapping[str, NodeRecord]:
        """Return all nodes."""
        ...


class Library(Protocol):
    """The part of pyslurm that is used; `Job.hold` is not, as it crashes the process."""

    Jobs: Jobs
    Nodes: Nodes
    Job: Callable[[int], JobHandle]
    RPCError: type[Exception]


_CALLS: Mapping[type[Update], Callable[[JobHandle], None]] = {
    Release: lambda job: job.release(),
    Requeue: lambda job: job.requeue(hold=True),
    SignalCheckpoint: lambda job: job.send_signal("SIGUSR1", steps="batch"),
}


@dataclass(frozen=True)
class PySlurm:
    """The adapter. A call into `library` waits at most MessageTimeout for slurmctld."""

    library: Library
    commands: CommandLine

    @property
    def name(self) -> str:
        """Return the adapter's name."""
        return "pyslurm"

    @property
    def version(self) -> Version:
        """Return the version of Slurm's commands, which is that of its library."""
        return self.commands.version

    @property
    def abilities(self) -> Abilities:
        """Return what the commands can express."""
        return self.commands.abilities

    def site(self) -> Site:
        """Return the Slurm that the commands reach."""
        return self.commands.site()

    def queue(self) -> dict[JobId, QueueRow]:
        """Return every job and array task."""
        return {row.key: row for _, rows in self._jobs() for row in rows}

    def nodes(self) -> tuple[NodeRow, ...]:
        """Return every node."""
        return tuple(_node_row(node) for node in self._load(self.library.Nodes.load).values())

    def read(self) -> SlurmState:
        """Return the queue and the GPUs that jobs hold, both of one instant, and the nodes."""
        jobs = self._jobs()
        nodes = self.nodes()
        gangs = {
            row.key: _held_gang(job, row.nodes)
            for job, rows in jobs
            for row in rows
            if row.state in HOLDING_STATES
        }
        return SlurmState(
            {row.key: row for _, rows in jobs for row in rows},
            nodes,
            {key: gang for key, gang in gangs.items() if gang.slots},
            frozenset(
                row.key
                for job, rows in jobs
                if job.excluded_nodes or job.is_cronjob
                for row in rows
                if _is_live(row.state)
            ),
            {
                row.key: _asked_nodes(job, row)
                for job, rows in jobs
                for row in rows
                if row.state == "PENDING"
            },
            invents_the_most=True,  # holds for all Slurm versions with such a pyslurm
        )

    def change(self, changes: Sequence[Update]) -> list[SlurmError | None]:
        """Attempt every change in order, by the library or the commands.

        After slurmctld has not answered, no further change is tried: each would wait as long.
        """
        faults: list[SlurmError | None] = []
        for is_call, group in groupby(changes, _is_call):
            batch = list(group)
            if any(isinstance(fault, SlurmUnavailable) for fault in faults):
                faults += [_not_tried()] * len(batch)
            else:
                faults += self._call(batch) if is_call else self.commands.change(batch)
        return faults

    def fair_shares(self) -> Mapping[str, float]:
        """Return the fair-share factor by user."""
        return self.commands.fair_shares()

    def partitions(self) -> Partitions:
        """Return the names of all partitions, and the default one."""
        return self.commands.partitions()

    def _call(self, changes: Sequence[Update]) -> list[SlurmError | None]:
        """Make changes by the library, one call for each."""
        faults: list[SlurmError | None] = []
        for change in changes:
            try:
                _CALLS[type(change)](self.library.Job(int(change.job)))
            except self.library.RPCError as error:
                faults.append(_fault(error, f"{type(change).__name__} {change.job}"))
                if isinstance(faults[-1], SlurmUnavailable):
                    return faults + [_not_tried()] * (len(changes) - len(faults))
            else:
                faults.append(None)
        return faults

    def _jobs(self) -> list[tuple[PyslurmJob, list[QueueRow]]]:
        """Return each job with its rows: one, or one for each pending task of an array.

        The library is read first, then squeue. A job submitted in between appears in the next read;
        a job that Slurm has forgotten in between is left out.
        """
        jobs = self._load(self.library.Jobs.load).values()
        argv = ["squeue", "-a", "-h", "-r", "-t", "all", "-O"]
        mark = f"#{secrets.token_hex(16)}"
        asked = _parse_asked(self.commands.runner.run([*argv, _ASKED.argument(mark)]), mark)
        # The lookup of a user name takes as long as the rest of a job.
        users: dict[int, str] = {}
        for job in jobs:
            if job.user_id not in users:
                users[job.user_id] = job.user_name
        return [
            (job, _rows(job, asked[job.id], users[job.user_id])) for job in jobs if job.id in asked
        ]

    def _load(self, load: Callable[[], Loaded]) -> Loaded:
        """Return the result of a call of the library; raises SlurmUnavailable where it fails."""
        try:
            return load()
        except self.library.RPCError as error:
            raise SlurmUnavailable(f"pyslurm: {error}") from error


def _is_call(change: Update) -> bool:
    """Return whether the library can make a change; it takes plain job numbers only."""
    return type(change) in _CALLS and change.job.isdigit()


def _fault(error: Exception, what: str) -> SlurmError:
    words = str(error)
    message = f"pyslurm {what}: {words}"
    return SlurmUnavailable(message) if is_unreachable(words) else SlurmRefused(message)


def _not_tried() -> SlurmUnavailable:
    return SlurmUnavailable("not tried: slurmctld did not answer to the change before")


def _is_live(state: str) -> bool:
    return state == "PENDING" or state in HOLDING_STATES


def _parse_asked(text: str, mark: str) -> dict[int, dict[str, str]]:
    """Return squeue's output for _ASKED by SLURM_JOB_ID."""
    asked: dict[int, dict[str, str]] = {}
    for field in _ASKED.records(text, mark):
        if not field["JobID"].isdigit():
            raise SlurmOutputError("squeue: expected a job's number", repr(field))
        known = {name: "" if word in NOTHING else word for name, word in field.items()}
        asked[int(field["JobID"])] = known
    return asked


def _rows(job: PyslurmJob, asked: Mapping[str, str], user: str) -> list[QueueRow]:
    """Return the row of a job, or one row for each pending task that Slurm keeps as one job."""
    per_node, per_job = asked["tres-per-node"], asked["tres-per-job"]
    per_task, per_socket = asked["tres-per-task"], asked["tres-per-socket"]
    is_open_ended = job.time_limit is None and _is_live(job.state)
    row = QueueRow(
        key=JobId(asked["JobArrayID"]),
        raw_id=str(job.id),
        state=job.state,
        reason=job.state_reason or "None",
        user_id=job.user_id,
        user=user,
        partition=job.partition,
        priority=job.priority,
        dependency=asked["Dependency"],
        nodes=_nodes(job.allocated_nodes),
        request=Request(
            num_nodes=asked["NumNodes"],
            per_node=per_node,
            per_job=per_job,
            per_task=per_task,
            per_socket=per_socket,
            nodes=_nodes(job.required_nodes),
        ),
        gpus_per_node=_asked_gpus(per_node),
        gpus_otherwise=(
            *_asked_gpus(per_job),
            *_asked_gpus(per_task),
            *_asked_gpus(per_socket),
        ),
        restarts=job.requeue_count or 0,
        submitted_s=float(job.submit_time or 0),
        started_s=float(job.start_time or 0),
        ended_s=0.0 if is_open_ended else float(job.end_time or 0),
        is_set_apart=bool(job.reservation or job.heterogeneous_id or not job.is_batch_job),
        comment=_comment(job),
        exit_status=exit_status(asked["exit_code"]),
        qos=asked["QOS"],
        account=asked["Account"],
        licenses=asked["Licenses"],
    )
    if job.array_tasks_waiting is None:
        return [row]
    # squeue -r (22.05.8, 26.05.5) omits the last task where the task numbers have a step.
    tasks = _tasks(job.array_tasks_waiting)
    return [replace(row, key=JobId(f"{job.array_id}_{task}")) for task in tasks]


def _asked_nodes(job: PyslurmJob, row: QueueRow) -> str:
    """Return the number of nodes that a pending job asks for, such as `2-4`."""
    detail = f" NumNodes={job.num_nodes}-{job.max_nodes} " if job.max_nodes else ""
    return asked_nodes(detail, row.request.num_nodes)


def _tasks(text: str) -> Iterator[int]:
    """Yield the numbers in Slurm's list of array tasks, such as `2,5-9:2`."""
    try:
        for part in text.split(","):
            span, _, step = part.partition(":")
            first, _, last = span.partition("-")
            yield from range(int(first), int(last or first) + 1, int(step or 1))
    except ValueError as error:
        raise SlurmOutputError(f"array tasks: {error}", text) from error


def _comment(job: PyslurmJob) -> str:
    """Return a job's comment; bytes that are not UTF-8 are replaced, as in squeue's output."""
    try:
        comment = job.comment
    except UnicodeDecodeError as error:
        comment = error.object.decode(errors="replace")
    return "" if comment is None or comment in NOTHING else comment


# Thousands of jobs have a few distinct values.
@lru_cache(maxsize=4096)
def _nodes(text: str | None) -> tuple[NodeName, ...]:
    return fold_out(text or "")


@lru_cache(maxsize=4096)
def _asked_gpus(text: str) -> tuple[tuple[str, int], ...]:
    return asked_gpus(text)


def _held_gang(job: PyslurmJob, nodes: Sequence[NodeName]) -> Gang:
    """Return the GPUs that a job holds on `nodes`; nodes that it has left are not among them."""
    layout = job.get_resource_layout_per_node()
    return Gang.of(
        {
            (name, gpu_type): count
            for name in nodes
            if name in layout
            for gpu_type, count in _gpus(layout[name]["gres"]).items()
        }
    )


def _node_row(node: NodeRecord) -> NodeRow:
    # None after a restart of slurmctld: see _NODE_UNREPORTED in parse.py.
    has_reported = node.slurmd_start_time is not None
    is_schedulable = has_reported and takes_work(node.state)
    return NodeRow(
        Node.of(node.name, _gpus(node.configured_gres), is_schedulable=is_schedulable),
        node.state,
        tuple(node.partitions),
        frozenset(node.active_features),
        has_reported,
    )


def _gpus(gres: Mapping[str, Any]) -> dict[str, int]:
    """Return GPUs by type from pyslurm's form of `gpu:v100:2` or `gpu:v100:2(IDX:0-1)`."""
    found: dict[str, int] = {}
    for name, given in gres.items():
        gpu_type = name.partition(":")[2] or UNTYPED
        count = given["count"] if isinstance(given, Mapping) else given
        if name.partition(":")[0] == "gpu" and count:
            found[gpu_type] = count
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
    yield from ("Job.release", "Job.requeue", "Job.send_signal", "Job.get_resource_layout_per_node")
    yield from (f"Job.{name}" for name in PyslurmJob.__annotations__)
    yield from (f"Node.{name}" for name in NodeRecord.__annotations__)


def _has(module: object, path: str) -> bool:
    first, _, second = path.partition(".")
    part = getattr(module, first, None)
    return part is not None and (not second or hasattr(part, second))
