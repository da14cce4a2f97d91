"""A small model of slurmctld with its own clock; it does what docs/slurm.md describes, and no more.

Only tests advance the time. Jobs start between two commands, never during one, as on a real
cluster, where a start takes some milliseconds. The output of the tools is in `fake_tools`.
"""

from __future__ import annotations

import math
import os
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from itertools import count
from pathlib import Path
from typing import Any

from hadar_slurm.handoff import ProgressReport, user_reports, write_report

# A requeued job does not start before this long.
REQUEUE_DELAY_S = 121.0
# How long a job takes to leave its nodes, to save on USR1, and to wait for its migration.
LEAVING_S = 0.2
SAVING_S = 0.1
MOVE_WAIT_S = 60.0
# How long after a restart of slurmctld its nodes report.
UNREPORTED_S = 5.0
FOREVER_S = 1e9

Gpus = tuple[tuple[str, int], ...]  # type and count in order; no type: ""


class Rejected(Exception):
    """The error with which slurmctld refuses a request."""


@dataclass
class FakeNode:
    """A node; `gpus` are in the order of gres.conf, which is that of the device numbers."""

    name: str
    gpus: dict[str, int]
    partitions: tuple[str, ...] = ("main",)
    is_drained: bool = False
    is_down: bool = False
    has_reported: bool = True

    @property
    def takes_work(self) -> bool:
        """Return whether jobs may start here."""
        return not (self.is_drained or self.is_down)

    @property
    def features(self) -> frozenset[str]:
        """Return the node's features: the names of its GPU types."""
        return frozenset(self.gpus)

    def numbers(self, gpu_type: str) -> range:
        """Return the device numbers of the GPUs of one type."""
        before = 0
        for each, number in self.gpus.items():
            if each == gpu_type:
                return range(before, before + number)
            before += number
        return range(0)


@dataclass
class Asked:
    """A job's request; None is what was never given, empty what was cleared."""

    per_node: Gpus | None = None
    per_job: Gpus | None = None
    per_task: Gpus | None = None
    per_socket: Gpus | None = None
    nodes: tuple[str, ...] = ()
    min_nodes: int = 1
    max_nodes: int | None = None

    @property
    def all(self) -> Gpus:
        """Return all requested GPUs, in any form of request."""
        given = (self.per_node, self.per_job, self.per_task, self.per_socket)
        return tuple(pair for gpus in given for pair in gpus or ())


Held = dict[str, dict[str, tuple[int, ...]]]  # node -> GPU type -> device numbers


@dataclass
class FakeJob:
    """A job or a task of an array; `hold` is empty, `user` or `admin`.

    Its program takes `work_s` seconds on any GPUs, and reports `steps` steps at the end. On USR1
    it saves, unless `ignores_usr1` or `dies_of_usr1` is set. `kept_types` are all GPU types that
    its requests have named.
    """

    number: int
    asked: Asked
    submitted_s: float
    user: str = "alice"
    name: str = "job"
    comment: str = ""
    partition: str = "main"
    array: int = 0
    task: int | None = None
    throttle: int = 0
    excluded: tuple[str, ...] = ()
    nice: int = 0
    # In minutes; 0: none.
    limit_min: int = 0
    features: frozenset[str] = frozenset()
    prefers: str = ""
    dependency: int = 0
    reservation: str = ""
    is_batch: bool = True
    is_cron: bool = False
    # Shown only: other jobs get GPUs of its nodes.
    is_exclusive: bool = False
    het_id: int = 0
    het_offset: int = 0
    may_requeue: bool = True
    work_s: float = FOREVER_S
    steps: int = 0
    ignores_usr1: bool = False
    dies_of_usr1: bool = False
    hold: str = ""
    released_s: float = -FOREVER_S
    reason: str = "None"
    state: str = "PENDING"
    after_leaving: str = ""
    begins_s: float = 0.0
    started_s: float = 0.0
    ended_s: float = 0.0
    done_s: float = 0.0
    saved_s: float = 0.0
    restarts: int = 0
    rank: int = 0
    held: Held = field(default_factory=dict)
    ran_on: tuple[str, ...] = ()
    kept_types: set[str] = field(default_factory=set)
    run: int = 0
    times_asked_to_save: int = 0
    # How often an update has taken nodes, or none, from it as it ran.
    resizes: int = 0
    messages: list[str] = field(default_factory=list)
    exit_status: int = 0
    qos: str = ""
    account: str = ""
    licenses: str = ""
    # Cores of a node and of a task, and MB of a node or of a core.
    node_cores: int = 1
    task_cores: int = 1
    node_memory_mb: int = 0
    core_memory_mb: int = 100

    @property
    def wishes(self) -> tuple[object, ...]:
        """Return all that decides where the job fits."""
        asked = self.asked
        gpus = asked.per_node, asked.per_job, asked.per_task, asked.per_socket
        nodes = asked.nodes, asked.min_nodes, asked.max_nodes, self.excluded, self.partition
        return *gpus, *nodes, self.features, frozenset(self.kept_types)

    @property
    def key(self) -> str:
        """Return the id that commands take."""
        if self.het_id:
            return f"{self.het_id}+{self.het_offset}"
        return str(self.number) if self.task is None else f"{self.array}_{self.task}"

    @property
    def is_live(self) -> bool:
        """Return whether the job is pending or holds GPUs."""
        return self.state in ("PENDING", "RUNNING", "COMPLETING")

    @property
    def gpus(self) -> Counter[tuple[str, str]]:
        """Return how many GPUs it holds by (node, type)."""
        return Counter(
            {
                (n, gpu_type): len(numbers)
                for n, by in self.held.items()
                for gpu_type, numbers in by.items()
            }
        )

    @property
    def num_gpus(self) -> int:
        """Return how many GPUs it holds."""
        return sum(self.gpus.values())


class FakeSlurm:
    """One cluster. Tests call its methods to cause events, and the tools to serve hadard.

    `nodes` is as in `v100:4,v100:2+k80:2`; they are named n1, n2, ... Reports of jobs go to
    `spool`. All users have the uid that runs the tests, so that reports have the right owner.
    """

    def __init__(
        self,
        nodes: str,
        *,
        version: tuple[int, int, int] = (22, 5, 8),
        spool: Path | None = None,
        now_s: float = 1_800_000_000.0,
        partitions: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.version = version
        # On a machine one hadard may work for the cluster of a name.
        self.name = "fake"
        self.spool = spool
        self.now_s = now_s
        self.uid = os.geteuid()
        self.nodes: dict[str, FakeNode] = {}
        for number, text in enumerate(nodes.split(","), start=1):
            pairs = (part.split(":") for part in text.split("+"))
            gpus = {gpu_type: int(many) for gpu_type, many in sorted(pairs)}
            self.nodes[f"n{number}"] = FakeNode(f"n{number}", gpus)
        for name, members in (partitions or {}).items():
            for member in members:
                self.nodes[member].partitions += (name,)
        self.jobs: list[FakeJob] = []
        # By account and user.
        self.shares: dict[tuple[str, str], float] = {}
        self.is_away = False
        # When slurmctld started.
        self.booted_s = now_s - 10_000.0
        # The limit of GPUs per user by QOS; 0 for none.
        self.gpus_per_user = 0
        # The nodes of reservations that begin before any job would end.
        self.reserved: set[str] = set()
        # Nodes that Slurm does not show, such as idle cloud nodes without PrivateData=cloud.
        self.hidden: set[str] = set()
        # The maximum time limit of a partition, as scontrol shows it.
        self.most_time = "UNLIMITED"
        # SlurmctldParameters; tests obey `rl_enable` (`fake_bucket`).
        self.parameters = "(null)"
        # Keys of updates that it refuses.
        self.refused: set[str] = set()
        self._by_key: dict[str, FakeJob] = {}
        self._numbers = count(1)
        self._ranks = count(1)
        self._ticks = count()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []

    @property
    def keeps_types(self) -> bool:
        """Return whether a GPU type once named in a request stays in effect."""
        return self.version < (24, 11)

    # Actions of users, and time.

    def submit(self, asked: Asked, *, tasks: Sequence[int] = (), **given: Any) -> FakeJob:
        """Submit a job, or the tasks of an array, of which the first is returned."""
        number = next(self._numbers)
        found: list[FakeJob] = []
        for task in tasks or (None,):
            job = FakeJob(number, replace(asked), self.now_s, task=task, **given)
            job.array = number if task is not None else 0
            job.rank = next(self._ranks)
            job.kept_types = {gpu_type for gpu_type, _ in asked.all if gpu_type}
            job.reason = "JobHeldUser" if job.hold else "None"
            self._check(job)
            found.append(job)
        self.jobs += found
        self._by_key |= {job.key: job for job in found}
        return found[0]

    def find(self, key: str) -> list[FakeJob]:
        """Return the job, the task, or all tasks of the array that `key` names."""
        array, _, task = key.partition("_")
        if key in self._by_key:
            return [self._by_key[key]]
        found = [job for job in self.jobs if job.array and str(job.array) == array]
        if task.startswith("["):
            chosen = _ranges(task.strip("[]"))
            found = [job for job in found if job.task in chosen]
        elif task:
            found = []
        found = found or [job for job in self.jobs if str(job.number) == key]
        if not found:
            raise Rejected("Invalid job id specified")
        return found

    def split(self, job: FakeJob) -> None:
        """Give a task of an array its own job id, as Slurm does when the task is changed."""
        if job.task is None:
            return
        others = [each for each in self.jobs if each.array == job.array and each is not job]
        if any(each.number == job.number for each in others):
            job.number = next(self._numbers)

    def advance(self, seconds: float) -> None:
        """Advance the time; jobs start, end and leave their nodes."""
        until_s = self.now_s + seconds
        self._schedule()
        while True:
            waits = [job.begins_s for job in self.jobs if self._only_waits_for_time(job)]
            next_s = min([*waits, self._agenda[0][0] if self._agenda else math.inf])
            if next_s > until_s:
                break
            self.now_s = max(self.now_s, next_s)
            while self._agenda and self._agenda[0][0] <= self.now_s:
                heappop(self._agenda)[2]()
            self._schedule()
        self.now_s = until_s

    def forget_ended(self) -> None:
        """Forget the jobs that have ended, as Slurm does after MinJobAge."""
        self.jobs = [job for job in self.jobs if job.is_live]
        self._by_key = {job.key: job for job in self.jobs}

    def lose_node(self, name: str) -> None:
        """Take a node down; its jobs are requeued, or end if they may not be."""
        self.nodes[name].is_down = True
        for job in self.jobs:
            if name in job.held:
                if job.state == "COMPLETING":
                    self._left(job)
                elif job.may_requeue:
                    self._requeued(job)
                    self._left(job)
                else:
                    self.end(job, "NODE_FAIL")
                    self._left(job)

    def restart(self, loses_s: float = 0.0) -> None:
        """Restart slurmctld; its nodes report UNREPORTED_S later.

        It shows jobs that were released within the last `loses_s` under their user hold, pending
        also if they have started.
        """
        self.booted_s = max(self.now_s, self.booted_s + 1.0)
        for job in self.jobs:
            is_live = job.state in ("PENDING", "RUNNING") and not job.hold
            if is_live and job.released_s > self.now_s - loses_s:
                job.run += job.state == "RUNNING"
                job.state, job.held, job.started_s = "PENDING", {}, 0.0
                job.hold, job.reason = "user", "JobHeldUser"
        for node in self.nodes.values():
            node.has_reported = False
            self.later(UNREPORTED_S, partial(setattr, node, "has_reported", True))

    # Requests of the tools to slurmctld. They raise Rejected.

    def hold(self, job: FakeJob, kind: str) -> None:
        """Hold a job; a running job continues, and is held once it is requeued."""
        self._must_not_have_ended(job)
        self.split(job)
        job.hold, job.reason = kind, "JobHeldAdmin" if kind == "admin" else "JobHeldUser"

    def release(self, job: FakeJob, *, by: str | None = None) -> None:
        """Release a job; `by` is a user, who cannot release an operator's hold."""
        self._must_not_have_ended(job)
        if job.hold == "admin" and by is not None:
            raise Rejected("Access/permission denied")
        self.split(job)
        job.released_s = self.now_s if job.hold == "user" else -FOREVER_S
        if job.hold:
            job.rank = next(self._ranks)
            job.hold, job.reason = "", "None"

    def requeue(self, job: FakeJob, *, hold: bool) -> None:
        """Requeue a running job or a job that has ended in any state."""
        if job.state == "PENDING":
            raise Rejected("Job is pending execution")
        if not job.may_requeue:
            raise Rejected("Requested operation is presently disabled")
        if job.state == "COMPLETING":
            job.restarts += job.after_leaving != "PENDING"
            job.after_leaving = "PENDING"
        else:
            was_running = job.state == "RUNNING"
            self._requeued(job)
            if was_running:
                self.later(LEAVING_S, partial(self._left, job, job.run))
            else:
                self._left(job)
        if hold:
            job.hold, job.reason = "user", "job requeued in held state"

    def cancel(self, job: FakeJob) -> None:
        """Cancel a job, at once if it is pending; without an error if it has ended."""
        if job.state == "PENDING":
            job.state, job.ended_s = "CANCELLED", self.now_s
            job.started_s = self.now_s
        elif job.state == "COMPLETING" and job.after_leaving == "PENDING":
            job.after_leaving = "CANCELLED"
            job.ended_s = self.now_s
        elif job.state == "RUNNING":
            self.end(job, "CANCELLED")

    def signal(self, job: FakeJob, name: str = "USR1") -> None:
        """Send a signal to a running job's program, which handles USR1 only and ignores others."""
        if job.state != "RUNNING":
            raise Rejected("Invalid job id specified")
        job.times_asked_to_save += 1
        if name != "USR1":
            return
        if job.dies_of_usr1:
            self.later(SAVING_S, partial(self._die, job, job.run))
        elif not job.ignores_usr1:
            self.later(SAVING_S, partial(self._save, job, job.run))

    def notify(self, job: FakeJob, text: str) -> None:
        """Print a message in a running job's output."""
        if job.state != "RUNNING":
            raise Rejected("Requested operation is presently disabled")
        job.messages.append(text)

    def update(self, job: FakeJob, changes: Iterable[tuple[str, str]]) -> None:
        """Change a job key by key: changes before an invalid key may stay in effect.

        While a job is leaving its nodes the update succeeds and changes nothing.
        """
        self._must_not_have_ended(job)
        if job.state == "COMPLETING":
            return
        self.split(job)
        given = dict(changes)
        kept = fold_out(given.get("ReqNodeList", ""))
        if kept and job.state == "RUNNING" and self.version < (24, 11) and {*kept} <= {*job.held}:
            # Before anything else is checked (22.05.8).
            job.resizes += 1
            job.held = {name: job.held[name] for name in kept}
        if "ReqNodeList" in given and job.state != "PENDING":
            raise Rejected("Invalid node name specified")
        for key, value in given.items():
            self._change(job, key, value)

    def _change(self, job: FakeJob, key: str, value: str) -> None:
        asked = job.asked
        if key in TRES_KEYS:
            self._must_wait(job)
            setattr(asked, TRES_KEYS[key], self._gpus(job, value))
        elif key == "ReqNodeList":
            if not set(fold_out(value)) <= self.nodes.keys():
                raise Rejected("Invalid node name specified")
            asked.nodes = fold_out(value)
        elif key == "NumNodes":
            self._must_wait(job)
            least, dash, most = value.partition("-")
            # A single number is the minimum; the maximum stays unchanged.
            limit = int(most) if dash else asked.max_nodes
            if limit is not None and int(least) > limit:
                raise Rejected("Node count specification invalid")
            asked.min_nodes, asked.max_nodes = int(least), limit
        elif key == "StartTime":
            self._must_wait(job)
            job.begins_s = self.now_s + float(value.removeprefix("now+"))
        elif key == "Comment":
            job.comment = value
        elif key == "Prefer":
            job.prefers = value
        elif key == "Features":
            self._must_wait(job)
            job.features = frozenset(filter(None, value.split("&")))
        elif key == "TimeLimit":
            job.limit_min = int(value)
        elif key == "Nice":
            self._must_wait(job)
            if int(value) != job.nice:
                job.hold = ""  # the priority of a held job is 0, and changes as that of others
            job.nice = int(value)
        elif key == "ExcNodeList":
            self._must_wait(job)
            # The list that it has already is accepted.
            if fold_out(value) != job.excluded and not {*fold_out(value)} <= self.nodes.keys():
                raise Rejected("Invalid node name specified")
            job.excluded = fold_out(value)
        elif key == "Dependency":
            job.dependency = int(value.removeprefix("afterok:") or 0)
        elif key == "Partition":
            job.partition = value
        elif key == "Requeue":
            job.may_requeue = value == "1"
        elif key in _SIZES:
            if key in self.refused:
                raise Rejected("Requested node configuration is not available")
            self._must_wait(job)
            if key.startswith("MinMemory"):
                job.node_memory_mb = job.core_memory_mb = 0
            setattr(job, _SIZES[key], int(value))
        else:
            raise Rejected(f"Update of this parameter is not supported: {key}={value}\n")

    def _gpus(self, job: FakeJob, text: str) -> Gpus:
        """Parse the GPUs in `gres:gpu:k80:2`; reject unknown types, or none where required."""
        prefix = self.prefix
        gpus = parse_gpus(text.replace(prefix, ""))
        if text and not text.startswith(prefix):
            # Accepted, but the request then has no GPUs.
            return ()
        gpu_types = {gpu_type for node in self.nodes.values() for gpu_type in node.gpus}
        largest = max(sum(node.gpus.values()) for node in self.nodes.values())
        if any(gpu_type and gpu_type not in gpu_types for gpu_type, _ in gpus):
            raise Rejected("Invalid generic resource (gres) specification")
        if any(not gpu_type and many > largest * len(self.nodes) for gpu_type, many in gpus):
            raise Rejected("Invalid generic resource (gres) specification")
        if self.keeps_types and job.kept_types and any(not gpu_type for gpu_type, _ in gpus):
            raise Rejected("Invalid GRES specification (with and without type identification)")
        job.kept_types |= {gpu_type for gpu_type, _ in gpus if gpu_type}
        return gpus

    @property
    def prefix(self) -> str:
        """Return the prefix of `gpu` in a request."""
        return "gres/" if self.version >= (23, 2) else "gres:"

    def _must_wait(self, job: FakeJob) -> None:
        if job.state != "PENDING":
            raise Rejected("Job is no longer pending execution")

    def _must_not_have_ended(self, job: FakeJob) -> None:
        if not job.is_live:
            raise Rejected("Job has already finished")
        # Slurm 24.11 refuses every change of such a job, a release too.
        if job.state == "PENDING" and not (self.keeps_types or {*job.excluded} <= {*self.nodes}):
            raise Rejected("Invalid node name specified")

    def _check(self, job: FakeJob) -> None:
        """Reject a submission that could not start even on the empty cluster."""
        if not set(job.asked.nodes) <= self.nodes.keys():
            raise Rejected("Invalid node name specified")
        if self._place(job, self._all_gpus(), only_open=False) is None:
            raise Rejected("Requested node configuration is not available")

    # Time and placement.

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do something once `seconds` have passed."""
        heappush(self._agenda, (self.now_s + seconds, next(self._ticks), act))

    def _only_waits_for_time(self, job: FakeJob) -> bool:
        return job.state == "PENDING" and not job.hold and job.begins_s > self.now_s

    def _requeued(self, job: FakeJob) -> None:
        """Begin a requeue; unsaved work is lost."""
        job.state, job.after_leaving = "COMPLETING", "PENDING"
        job.done_s = job.saved_s
        job.submitted_s = self.now_s
        job.restarts += 1
        job.run += 1

    def end(self, job: FakeJob, state: str) -> None:
        """End a running job in `state`, once it has left its nodes."""
        job.state, job.after_leaving, job.ended_s = "COMPLETING", state, self.now_s
        job.run += 1
        self.later(LEAVING_S, partial(self._left, job, job.run))

    def _left(self, job: FakeJob, run: int | None = None) -> None:
        """Free the GPUs of a job that has left its nodes."""
        if job.state != "COMPLETING" or (run is not None and run != job.run):
            return
        job.state, job.after_leaving = job.after_leaving, ""
        job.held = {}
        if job.state == "PENDING":
            job.begins_s = self.now_s + REQUEUE_DELAY_S
            job.ended_s = 0.0
            if job.hold and job.reason == "None":
                job.reason = "JobHeldUser"

    def _save(self, job: FakeJob, run: int) -> None:
        if job.run == run and job.state == "RUNNING":
            job.saved_s = job.done_s + self.now_s - job.started_s
            self.report(job, "saved")
            self.later(MOVE_WAIT_S, partial(self._go_on, job, run))

    def _die(self, job: FakeJob, run: int) -> None:
        if job.run == run and job.state == "RUNNING":
            job.exit_status = int(signal.SIGUSR1)
            self.end(job, "FAILED")

    def _go_on(self, job: FakeJob, run: int) -> None:
        if job.run == run and job.state == "RUNNING":
            self.report(job, "running")

    def _finish(self, job: FakeJob, run: int) -> None:
        if job.run == run and job.state == "RUNNING":
            job.saved_s = job.work_s
            self.report(job, "done")
            self.end(job, "COMPLETED")

    def report(self, job: FakeJob, state: str) -> None:
        """Have a job report the steps that its checkpoint holds."""
        if self.spool is not None:
            steps = min(job.steps, int(job.steps * job.saved_s / job.work_s))
            written = ProgressReport(job.restarts, state, steps, time_s=self.now_s)
            write_report(user_reports(self.spool, os.geteuid()), str(job.number), written)

    def _schedule(self) -> None:
        """Start jobs in the order of submission or release; a job that does not fit is skipped."""
        waiting = [job for job in self.jobs if job.state == "PENDING" and not job.hold]
        free = self.free() if waiting else Counter()
        # Jobs that are alike have room, or none, together: GPUs only get fewer here.
        full: set[object] = set()
        may_fit: dict[object, bool] = {}
        for job in sorted(waiting, key=lambda job: job.rank + job.nice):
            job.reason = self._why_waits(job)
            if job.reason == "None" and self._is_throttled(job):
                job.reason = "JobArrayTaskLimit"
            elif job.reason == "None" and self._is_over_limit(job):
                job.reason = "QOSMaxGRESPerUser"
            elif job.reason == "None" and self._meets_reservation(job):
                job.reason = "ReqNodeNotAvail,_May_be_reserved_for_other_job"
            if job.reason != "None":
                continue
            alike = job.wishes
            place = None if alike in full else self._place(job, free, only_open=True)
            if place is not None:
                self._start(job, place)
                free.subtract(
                    {(n, gpu_type): k for n, by in place.items() for gpu_type, k in by.items()}
                )
                continue
            full.add(alike)
            if alike not in may_fit:
                most = self._place(job, self._all_gpus(), only_open=False)
                may_fit[alike] = most is not None
            if may_fit[alike]:
                job.reason = "Resources"
            else:
                job.hold, job.reason = "user", "BadConstraints"

    def _meets_reservation(self, job: FakeJob) -> bool:
        """Return whether a job may have only reserved nodes: Slurm's reason then says so."""
        if job.asked.nodes or not job.excluded:
            return bool(self.reserved & {*job.asked.nodes})
        left = self.nodes.keys() - {*job.excluded}
        return bool(left) and left <= self.reserved

    def _why_waits(self, job: FakeJob) -> str:
        if any(other.state != "COMPLETED" for other in self.before(job)):
            return "Dependency"
        return "BeginTime" if job.begins_s > self.now_s else "None"

    def before(self, job: FakeJob) -> list[FakeJob]:
        """Return the jobs that a job waits for."""
        if not job.dependency:
            return []
        return [other for other in self.jobs if other.number == job.dependency]

    def _is_throttled(self, job: FakeJob) -> bool:
        if not job.throttle:
            return False
        tasks = [each for each in self.jobs if each.array == job.array]
        return 0 < job.throttle <= [each.state for each in tasks].count("RUNNING")

    def _is_over_limit(self, job: FakeJob) -> bool:
        if not self.gpus_per_user:
            return False
        used = sum(each.num_gpus for each in self.jobs if each.user == job.user)
        return 0 < self.gpus_per_user < used + sum(many for _, many in job.asked.all)

    def _start(self, job: FakeJob, place: Mapping[str, Mapping[str, int]]) -> None:
        self.split(job)
        job.held = {
            name: {
                gpu_type: self._unused(name, gpu_type)[:many] for gpu_type, many in by_type.items()
            }
            for name, by_type in place.items()
        }
        job.ran_on = tuple(place)
        job.state, job.reason = "RUNNING", "None"
        job.started_s, job.ended_s = self.now_s, 0.0
        job.run += 1
        self.report(job, "running")
        if job.work_s < FOREVER_S:
            self.later(job.work_s - job.done_s, partial(self._finish, job, job.run))

    def holders(self) -> defaultdict[str, list[FakeJob]]:
        """Return the jobs that hold GPUs, by node."""
        found: defaultdict[str, list[FakeJob]] = defaultdict(list)
        for job in self.jobs:
            for name in job.held:
                found[name].append(job)
        return found

    def _unused(self, name: str, gpu_type: str) -> tuple[int, ...]:
        holders = (job for job in self.jobs if name in job.held)
        used = {n for job in holders for n in job.held[name].get(gpu_type, ())}
        return tuple(n for n in self.nodes[name].numbers(gpu_type) if n not in used)

    def free(self) -> Counter[tuple[str, str]]:
        """Return the GPUs that no job holds by (node, type)."""
        free = self._all_gpus()
        for job in self.jobs:
            free.subtract(job.gpus)
        return free

    def _all_gpus(self) -> Counter[tuple[str, str]]:
        return Counter(
            {(n.name, gpu_type): k for n in self.nodes.values() for gpu_type, k in n.gpus.items()}
        )

    def _place(
        self, job: FakeJob, free: Mapping[tuple[str, str], int], *, only_open: bool
    ) -> dict[str, dict[str, int]] | None:
        """Return GPUs by node that the job could get, or None."""
        names = [name for name in self._candidates(job, only_open=only_open)]
        must = [name for name in job.asked.nodes if name in names]
        if len(must) < len(job.asked.nodes):
            return None
        names = must + [name for name in names if name not in must]
        order = {name: list(self.nodes[name].gpus) for name in names}
        room = {name: {k: free.get((name, k), 0) for k in order[name]} for name in names}
        asked = job.asked
        least = max(asked.min_nodes, len(must))
        most = len(names) if asked.max_nodes is None else asked.max_nodes
        if least > most:
            return None
        per_node = asked.per_node or asked.per_socket
        in_all = asked.per_job or asked.per_task
        if per_node:
            fitting = [(n, p) for n in names if (p := _take(per_node, room[n], order[n]))]
            chosen = dict(fitting[: max(least, 1)])
            is_whole = len(chosen) >= least and set(must) <= chosen.keys()
            return chosen if is_whole else None
        if in_all:
            if least <= 1:
                for name in must or names:
                    whole = _take(in_all, room[name], order[name])
                    if whole:
                        return {name: whole}
            return _spread(in_all, names, room, order, least=least, most=most)
        return {name: {} for name in names[: max(least, 1)]} if len(names) >= least else None

    def _candidates(self, job: FakeJob, *, only_open: bool) -> Iterator[str]:
        for node in self.nodes.values():
            is_open = (node.takes_work and node.name not in self.reserved) or not only_open
            is_listed = set(job.partition.split(",")) & set(node.partitions)
            # A type that the job has once named must exist on every node, even with a count of 0.
            has_types = not self.keeps_types or job.kept_types <= node.gpus.keys()
            suits = is_listed and has_types and job.features <= node.features
            if is_open and suits and node.name not in job.excluded:
                yield node.name


TRES_KEYS = {
    "TresPerNode": "per_node",
    "TresPerJob": "per_job",
    "TresPerTask": "per_task",
    "TresPerSocket": "per_socket",
}
_SIZES = {
    "MinCPUsNode": "node_cores",
    "CPUsPerTask": "task_cores",
    "MinMemoryNode": "node_memory_mb",
    "MinMemoryCPU": "core_memory_mb",
}


def parse_gpus(text: str) -> Gpus:
    """Return the GPUs in `gpu:v100:2,gpu:1`; a count may be left out."""
    found = []
    for part in filter(None, text.split(",")):
        _, *rest = part.split(":")
        many = int(rest.pop()) if rest and rest[-1].isdigit() else 1
        found.append((rest[0] if rest else "", many))
    return tuple(found)


def fold_out(text: str) -> tuple[str, ...]:
    """Return the names in `n[1-3],n5`; each node name of the fake is n and a number."""
    inner = text.replace("n[", "").replace("]", "").replace("n", "")
    return tuple(f"n{number}" for number in sorted(_ranges(inner)))


def _ranges(text: str) -> list[int]:
    numbers: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        if not first.isdigit():
            return [0]  # the name of no node
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _take(wanted: Gpus, room: Mapping[str, int], order: Sequence[str]) -> dict[str, int] | None:
    """Return GPUs of one node, untyped ones in the order of gres.conf; None if too few are free."""
    left = dict(room)
    taken: Counter[str] = Counter()
    for gpu_type, many in wanted:
        for each in [gpu_type] if gpu_type else order:
            here = min(many, left.get(each, 0))
            taken[each] += here
            left[each] = left.get(each, 0) - here
            many -= here
        if many:
            return None
    return {gpu_type: many for gpu_type, many in taken.items() if many}


def _spread(
    wanted: Gpus,
    names: Sequence[str],
    room: Mapping[str, Mapping[str, int]],
    order: Mapping[str, Sequence[str]],
    *,
    least: int,
    most: int,
) -> dict[str, dict[str, int]] | None:
    """Return GPUs on several nodes, in order, at least one on each; None if too few are free."""
    left = list(wanted)
    chosen: dict[str, dict[str, int]] = {}
    for name in names:
        spare = sum(many for _, many in left) - max(0, least - len(chosen) - 1)
        here: Counter[str] = Counter()
        for place, (asked, many) in enumerate(left):
            for gpu_type in [asked] if asked else order[name]:
                given = max(0, min(many, room[name].get(gpu_type, 0) - here[gpu_type], spare))
                here[gpu_type] += given
                many, spare = many - given, spare - given
            left[place] = (asked, many)
        if sum(here.values()):
            chosen[name] = {gpu_type: many for gpu_type, many in here.items() if many}
    is_whole = not any(many for _, many in left) and least <= len(chosen) <= most
    return chosen if is_whole else None
