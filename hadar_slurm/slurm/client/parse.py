"""Parses the output of squeue, `scontrol show node` and `scontrol show job -d`. Pure.

Users choose names, comments and accounts freely: `squeue.py` separates them from other fields.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId, Node, NodeName
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.time_limit import parse_time_limit
from hadar_slurm.errors import SlurmOutputError
from hadar_slurm.jobspec.constraint import fold_out
from hadar_slurm.jobspec.gres import asked_gpus, parse_gpu_detail, parse_gpus, parse_shared_gpus
from hadar_slurm.jobspec.mark import split
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.client.squeue import Fields, Texts

# The type of GPUs to which the site has given none.
UNTYPED = "gpu"

QUEUE = Fields(
    "JobArrayID JobID State Reason UserID UserName Partition PriorityLong Dependency ReqNodes "
    "NodeList NumNodes tres-per-node tres-per-job tres-per-task tres-per-socket RestartCnt "
    "SubmitTime StartTime EndTime Reservation HetJobID BatchFlag exit_code QOS EligibleTime "
    "Requeue",
    "Account Licenses Feature Comment",
)
_OTHERWISE = ("tres-per-job", "tres-per-task", "tres-per-socket")
NOTHING = ("", "N/A", "(null)", "NONE", "None")

# States in which a job holds GPUs, by squeue's long names.
HOLDING_STATES = frozenset(
    "RUNNING CONFIGURING COMPLETING SUSPENDED STOPPED SIGNALING STAGE_OUT RESIZING".split()
)
FAILED_STATES = frozenset(
    "BOOT_FAIL DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY TIMEOUT PREEMPTED REVOKED".split()
)
ENDED_STATES = FAILED_STATES | {"COMPLETED", "CANCELLED"}

_OPEN_STATES = frozenset({"IDLE", "MIXED", "ALLOCATED"})
# Flags of a node that Slurm has powered down, and powers up for a job.
_ASLEEP_FLAGS = frozenset(("POWERED_DOWN", "POWERING_UP"))
_RESERVED = "+RESERVED"
# Flags of a node's state that do not exclude new work.
_HARMLESS_FLAGS = _ASLEEP_FLAGS | set(
    "COMPLETING PLANNED CLOUD DYNAMIC_NORM DYNAMIC_FUTURE".split()
)


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One job or array task as squeue shows it; times in seconds since the epoch, 0 if unknown."""

    # The id that commands take; `3_1` for a task of an array.
    key: JobId
    # SLURM_JOB_ID of the job.
    raw_id: str
    state: str
    reason: str
    user_id: int
    user: str
    partition: str
    priority: int
    dependency: str
    nodes: tuple[NodeName, ...]
    request: Request
    # The GPUs of `request` by type, parsed.
    gpus_per_node: tuple[tuple[str, int], ...]
    # Per job, task or socket.
    gpus_otherwise: tuple[tuple[str, int], ...]
    restarts: int
    submitted_s: float
    started_s: float
    ended_s: float
    # It is part of a heterogeneous job.
    is_set_apart: bool
    # The owner's part of it, and hadard's mark (jobspec/mark.py).
    comment: str
    mark: str = ""
    # That of the last run, as from wait(2): 10 after USR1 has ended it.
    exit_status: int = 0
    # `qos` and `account` are empty without slurmdbd.
    qos: str = ""
    account: str = ""
    licenses: str = ""
    # What its nodes must have, as in `--constraint`.
    features: str = ""
    # The names of its reservations.
    reservation: str = ""
    # It has a batch script; else it is srun's or salloc's.
    is_batch: bool = True
    eligible_s: float = 0.0
    # Slurm takes a requeue of it.
    may_requeue: bool = True

    @property
    def is_live(self) -> bool:
        """Whether the job is pending or holds GPUs; else it has ended."""
        return self.state == "PENDING" or self.state in HOLDING_STATES

    @property
    def requested_nodes(self) -> tuple[NodeName, ...]:
        """Return the nodes that the job must have."""
        return self.request.nodes

    @property
    def named_types(self) -> frozenset[str]:
        """Return the GPU types that the job's request names."""
        return types_in(self.request)

    @property
    def has_failed_to_launch(self) -> bool:
        """Whether Slurm holds the job because a node could not launch it."""
        return self.reason == "launch_failed_requeued_held"

    @property
    def is_held(self) -> bool:
        """Whether the job is pending under a hold of any kind."""
        return self.state == "PENDING" and self.priority == 0

    @property
    def is_held_by_user(self) -> bool:
        """Whether the job is pending under a hold that its owner can release."""
        return self.is_held and self.reason != "JobHeldAdmin"

    @property
    def is_held_by_operator(self) -> bool:
        """Whether the job is pending under a hold that its owner cannot release."""
        return self.is_held and self.reason == "JobHeldAdmin"

    @property
    def is_held_as_it_runs(self) -> bool:
        """Whether the job runs and would be held after a requeue."""
        return self.state in ("RUNNING", "CONFIGURING") and self.priority == 0

    def begins_later(self, now_s: float) -> bool:
        """Return whether the job waits for a begin time of its user."""
        # hadard changes the begin time that a requeue sets, and that of a request which it clears.
        may_be_own = self.restarts == 0 and not self.request.is_cleared
        # A change takes the reason away. By a time alone, clocks that differ would make a job wait:
        # a job without a begin time is eligible as it is submitted.
        says_so = self.is_held or self.reason in ("BeginTime", "None")
        begins_s = self.started_s if self.is_held else self.eligible_s
        return may_be_own and says_so and begins_s > max(now_s, self.submitted_s)

    @property
    def may_meet_reservation(self) -> bool:
        """Whether the job waits, and Slurm says that its nodes are or will be reserved."""
        return self.state == "PENDING" and "reserved" in self.reason.lower()


# The rows of the last reading by the texts that they were made of, and of nothing else. Rows of two
# readings may be one object.
RowsByTexts = dict[Texts, QueueRow]


def parse_queue(text: str, mark: str, known: RowsByTexts | None = None) -> list[QueueRow]:
    """Return the jobs in squeue's output for `QUEUE.argument(mark)`; raises SlurmOutputError.

    Most jobs have the texts of the last reading. `known` has its rows, and gets those of this one.
    """
    known = {} if known is None else known
    texts = QUEUE.texts(text, mark)
    rows = [known.get(each) or queue_row(QUEUE.named(each)) for each in texts]
    known.clear()
    known.update(zip(texts, rows, strict=True))
    return rows


def queue_row(field: Mapping[str, str]) -> QueueRow:
    """Return a job from the fields of squeue's output."""
    known = {name: "" if value in NOTHING else value for name, value in field.items()}
    comment, mark = split(known["Comment"])
    try:
        return QueueRow(
            key=JobId(field["JobArrayID"]),
            raw_id=field["JobID"],
            state=field["State"],
            reason=field["Reason"],
            user_id=int(field["UserID"]),
            user=field["UserName"],
            partition=field["Partition"],
            priority=int(field["PriorityLong"]),
            dependency=known["Dependency"],
            nodes=fold_out(known["NodeList"]),
            request=Request(
                num_nodes=field["NumNodes"],
                per_node=known["tres-per-node"],
                per_job=known["tres-per-job"],
                per_task=known["tres-per-task"],
                per_socket=known["tres-per-socket"],
                nodes=fold_out(known["ReqNodes"]),
            ),
            gpus_per_node=asked_gpus(known["tres-per-node"]),
            gpus_otherwise=sum((asked_gpus(known[name]) for name in _OTHERWISE), ()),
            restarts=int(known["RestartCnt"] or 0),
            submitted_s=time_s(known["SubmitTime"]),
            started_s=time_s(known["StartTime"]),
            ended_s=time_s(known["EndTime"]),
            is_set_apart=known["HetJobID"] not in ("", "0"),
            comment=comment,
            mark=mark,
            exit_status=exit_status(known["exit_code"]),
            qos=known["QOS"],
            account=known["Account"],
            licenses=known["Licenses"],
            features=known["Feature"],
            reservation=known["Reservation"],
            is_batch=field["BatchFlag"] == "1",
            eligible_s=time_s(known["EligibleTime"], unknown=math.inf),
            may_requeue=field["Requeue"] != "0",
        )
    except ValueError as error:
        raise SlurmOutputError(f"squeue: {error}", repr(field)) from error


def time_s(text: str, *, unknown: float = 0.0) -> float:
    """Return a time in seconds since the epoch; 0 for none.

    `unknown` is for `Unknown`, as squeue shows a begin time beyond all that it can print.
    """
    return unknown if text == "Unknown" else float(text or 0)


def exit_status(text: str) -> int:
    """Return the wait status that squeue shows as a number (22.05.8), or as `CODE:SIGNAL`."""
    code, colon, number = text.partition(":")
    return (int(code) << 8 | int(number)) if colon else int(code or 0)


def types_in(request: Request) -> frozenset[str]:
    """Return the GPU types that a request names."""
    found = (name for text in request.gpus for name, _ in asked_gpus(text))
    return frozenset(found) - {UNTYPED}


_NODE = re.compile(r"^NodeName=(\S+) (.*)$", re.MULTILINE)
_NODE_FIELD = re.compile(
    r" (Gres|GresUsed|State|SlurmdStartTime|ActiveFeatures|Partitions|CPUAlloc|CPUTot)=(\S+)"
)


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node as scontrol shows it."""

    node: Node
    state: str
    partitions: tuple[str, ...]
    features: frozenset[str] = frozenset()
    has_reported: bool = True
    # Jobs have all of its cores: no other can start there, though GPUs may be free.
    is_full: bool = False
    # It takes work, but only of the jobs of a reservation.
    is_reserved: bool = False
    # The GPUs by type of which jobs have shards or use MPS.
    shared: tuple[tuple[str, int], ...] = ()


def parse_nodes(text: str) -> list[NodeRow]:
    """Return the nodes in the output of `scontrol show node -d -o`."""
    rows = []
    for name, rest in _NODE.findall(text):
        # The first of each name: free texts such as a reason come last.
        field = dict(reversed(_NODE_FIELD.findall(rest)))
        if not {"Gres", "State"} <= field.keys():
            raise SlurmOutputError(f"scontrol show node: {name} lacks Gres or State", rest)
        partitions, features = field.get("Partitions", ""), field.get("ActiveFeatures", "(null)")
        row = node_row(
            name,
            parse_gpus(field["Gres"]),
            field["State"],
            partitions.split(",") if partitions else (),
            set(features.split(",")) - {"(null)"},
            has_reported=field.get("SlurmdStartTime") != "None",
            num_cpus=int(field.get("CPUTot", 0)),
            used_cpus=int(field.get("CPUAlloc", 0)),
        )
        shared = parse_shared_gpus(field.get("GresUsed", ""))
        rows.append(replace(row, shared=tuple(shared.items())))
    if text.strip() and not rows:
        raise SlurmOutputError("scontrol show node: no node found", text)
    return rows


def node_row(
    name: str,
    gpus: Mapping[str, int],
    state: str,
    partitions: Iterable[str],
    features: Iterable[str],
    *,
    has_reported: bool,
    num_cpus: int = 0,
    used_cpus: int = 0,
) -> NodeRow:
    """Return a node, schedulable where it takes work.

    After a restart of slurmctld a node has no SlurmdStartTime until it has reported. 22.05.8 may
    start a job there without any of its GPUs when another job ended in between; 24.11.5 does not.
    A node that is powered down reports before its job starts.
    """
    is_asleep = not _ASLEEP_FLAGS.isdisjoint(state.split("+"))
    can_work = has_reported or is_asleep
    is_schedulable = can_work and takes_work(state)
    is_reserved = can_work and not is_schedulable and takes_work(state.replace(_RESERVED, ""))
    node = Node.of(name, gpus, is_schedulable=is_schedulable, is_asleep=is_asleep)
    return NodeRow(
        node,
        state,
        tuple(partitions),
        frozenset(features),
        has_reported=has_reported,
        is_full=0 < num_cpus <= used_cpus,
        is_reserved=is_reserved,
    )


def takes_work(state: str) -> bool:
    """Return whether a node in `state`, such as `IDLE+DRAIN` or `MIXED*`, takes new work.

    Unknown flags exclude new work: a node that comes back shows UNKNOWN for a moment.
    """
    base, *flags = state.split("+")
    return base in _OPEN_STATES and _HARMLESS_FLAGS.issuperset(flags)


@dataclass(frozen=True, slots=True)
class Reservation:
    """One reservation, active or for later."""

    name: str
    nodes: frozenset[NodeName]
    is_active: bool


_RESERVATION = re.compile(
    r"^ReservationName=(\S+) .* Nodes=(\S+) NodeCnt=.* State=(\S+)", re.MULTILINE
)


def parse_reservations(text: str) -> list[Reservation]:
    """Return the reservations in the output of `scontrol show reservation -o`."""
    return [
        Reservation(name, frozenset(fold_out("" if n in NOTHING else n)), state == "ACTIVE")
        for name, n, state in _RESERVATION.findall(text)
    ]


JOB_LINE = re.compile(r"^JobId=(\d+) ", re.MULTILINE)


def split_job_details(text: str, known: Container[str]) -> dict[str, str]:
    """Return the lines of `scontrol show job -d -o` that are certainly complete, by job number.

    A job's name may hold line breaks and imitate the line of another job. A number that is not
    `known`, or that comes twice, reveals such a name, which may have cut the line before it.
    Neither line is returned: query those jobs one by one.
    """
    lines, is_suspect = suspects(text, known)
    return {
        number: line
        for (number, line), suspect in zip(lines, pairwise([*is_suspect, False]), strict=True)
        if not any(suspect)
    }


def suspects(text: str, known: Container[str]) -> tuple[list[tuple[str, str]], list[bool]]:
    """Return the lines of jobs with their numbers, and whether each may be an imitation."""
    starts = [match.start() for match in JOB_LINE.finditer(text)]
    shown = [text[start:end] for start, end in pairwise([*starts, len(text)])]
    lines = [(line[len("JobId=") : line.index(" ")], line) for line in shown]
    times = Counter(number for number, _ in lines)
    return lines, [number not in known or times[number] > 1 for number, _ in lines]


# Matches before JobName, where a user could imitate it.
_THROTTLE = re.compile(r"^JobId=\d+ ArrayJobId=(\d+) ArrayTaskId=\S+ ArrayTaskThrottle=(\d+) ")


def array_throttles(details: Iterable[str]) -> dict[str, int]:
    """Return the throttle of each array that has one, by array number, from detail lines."""
    found = (_THROTTLE.match(line) for line in details)
    return {match[1]: int(match[2]) for match in found if match and int(match[2])}


_DETAIL = re.compile(r" (CronJob|ExcNodeList|Nice|Prefer|TimeLimit)=(\S+)")


class Detail(NamedTuple):
    """What a job's detail line shows: None or () where a field is in doubt, "" for none."""

    # It belongs to scrontab, or the nodes that it excludes are in doubt.
    is_set_apart: bool
    excluded: tuple[NodeName, ...]
    nice: int | None
    preferred: str | None
    # 0 for none.
    limit_s: float | None


def detail_of(line: str) -> Detail:
    """Return what a detail line shows; a text of its user may imitate a second value of a field."""
    found: dict[str, set[str]] = {}
    for name, value in _DETAIL.findall(line):
        found.setdefault(name, set()).add(value)
    only = {name: next(iter(values)) for name, values in found.items() if len(values) == 1}
    excluded = only.get("ExcNodeList", "")
    return Detail(
        "Yes" in found.get("CronJob", ()) or len(found.get("ExcNodeList", ())) > 1,
        () if excluded in NOTHING else fold_out(excluded),
        int(n) if re.fullmatch(r"-?[0-9]{1,10}", n := only.get("Nice", "")) else None,
        only.get("Prefer", None if found.get("Prefer") or not line else ""),
        limit_s=parse_time_limit(only["TimeLimit"]) or 0.0 if "TimeLimit" in only else None,
    )


_NUM_NODES = re.compile(r" NumNodes=(\d+)(-\d+)? ")
# Slurm cuts it to the partition's size.
NO_MAXIMUM = 10_000


def asked_nodes(detail: str, least: str) -> str:
    """Return the number of nodes that a pending job asks for, such as `2-4`.

    squeue shows only the minimum, `least`, which a job's name cannot forge, and which selects among
    the ranges of the detail line. A number without a range has no maximum; it is returned with a
    large one, since a request without one would leave an earlier maximum in place.
    """
    ranges = dict(reversed(_NUM_NODES.findall(detail)))
    number, _, most = least.partition("-")
    return f"{number}-{most}" if most else number + (ranges.get(number) or f"-{NO_MAXIMUM}")


def held_gang(detail: str, nodes: Iterable[NodeName]) -> Gang:
    """Return the GPUs that a job holds on `nodes`, from its detail line.

    `nodes` come from squeue, where a job's name cannot forge them. Where the line names a node
    twice, the larger count is used: GPUs that a job might hold are not free.
    """
    allowed = set(nodes)
    counts: dict[tuple[str, str], int] = {}
    for names, gpus in parse_gpu_detail(detail):
        # A list that cannot be read, or is longer than the job's own, is a text of its owner.
        with suppress(SlurmOutputError):
            for name in allowed.intersection(fold_out(names, len(allowed))):
                for gpu_type, count in gpus.items():
                    counts[name, gpu_type] = max(count, counts.get((name, gpu_type), 0))
    return Gang.of(counts)
