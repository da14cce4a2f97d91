"""Stopping and starting jobs on a real Slurm, in batches, every change read back.

The order of things was measured (docs/slurm.md): a running job is asked to save, acknowledges, is
requeued with a user hold, changed only once it is pending again, then released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hadar_slurm.core.cluster import Cluster, JobId, Slot
from hadar_slurm.core.gang import Gang
from hadar_slurm.engine.actions import Action, Outcome, Start, Status, Stop
from hadar_slurm.errors import SlurmRefused, SlurmUnavailable
from hadar_slurm.handoff import ReportError, read_report
from hadar_slurm.slurm import enforce
from hadar_slurm.slurm.parse import QueueRow
from hadar_slurm.slurm.reading import Reading, read_all, read_queue
from hadar_slurm.slurm.runner import Runner

# How long a requeued job may take to leave its nodes; Slurm's KillWait is 30 s by default.
_LEAVE_S = 45.0
_LOOK_EVERY_S = 0.1
# A job that is only just starting misses the signal, so it is asked again.
_ASK_EVERY_S = 1.0

Outcomes = dict[Action, Outcome]


@dataclass
class Mover:
    """Carries out the stops and starts of one round.

    `grace_s` is how long jobs may take to save. `pause` sleeps, `now_s` tells the time; both in
    seconds.
    """

    runner: Runner
    version: tuple[int, int]
    spool: Path
    grace_s: float
    pause: Callable[[float], None]
    now_s: Callable[[], float]
    _outcomes: Outcomes = field(default_factory=dict)

    def stop(self, stops: Sequence[Stop]) -> Outcomes:
        """Take jobs off their GPUs, all at once, and return what came of each."""
        if not stops:
            return {}
        queue = self._queue()
        saving: dict[Stop, int] = {}
        held: list[Stop] = []
        for stop in stops:
            row = queue.get(stop.job_id)
            if row is None or row.state not in ("RUNNING", "PENDING"):
                self._defer(stop, f"it is {row.state if row else 'not to be seen'} by now")
            elif row.state == "PENDING":
                if row.is_held_by_user or self._try(stop, enforce.hold(stop.job_id)):
                    held.append(stop)
            elif self._ask(stop):
                saving[stop] = row.restarts
        self._await_pending(held, self.now_s())
        self._await_pending(self._requeue_when_saved(saving), self.now_s() + _LEAVE_S)
        return {stop: self._outcomes[stop] for stop in stops}

    def start(self, starts: Sequence[Start]) -> Outcomes:
        """Pin jobs to free GPUs and release them, and return what came of each."""
        if not starts:
            return {}
        try:
            reading = read_all(self.runner)
        except SlurmUnavailable as error:
            return {start: Outcome(start, Status.DEFERRED, str(error)) for start in starts}
        free = _free_slots(reading)
        pinned: dict[Start, bool] = {}
        for start in starts:
            row = reading.queue.get(start.job_id)
            if row is None or row.state != "PENDING":
                self._defer(start, f"it is {row.state if row else 'gone'} and not pending")
            elif any(free.get(slot, 0) < count for slot, count in start.gang.slots):
                self._defer(start, f"{start.gang} is not free yet")
            else:
                names_type = must_name_type(row, start.gang, reading.cluster, self.version)
                if self._pin(start, row, names_type=names_type):
                    pinned[start] = names_type
                    free.subtract(dict(start.gang.slots))
        self._release_if_pinned(pinned)
        return {start: self._outcomes[start] for start in starts}

    def _requeue_when_saved(self, saving: dict[Stop, int]) -> list[Stop]:
        """Requeue jobs as they acknowledge, or at the end of their grace; return those requeued."""
        asked_s = self.now_s()
        deadline_s = asked_s + self.grace_s
        requeued = []
        waiting = dict(saving)
        while waiting:
            is_late = self.now_s() >= deadline_s
            queue = self._queue()
            for stop, restarts in list(waiting.items()):
                row = queue.get(stop.job_id)
                # Requeueing brings a cancelled job back to life, so look right before.
                if row is None or row.state != "RUNNING" or row.restarts != restarts:
                    self._defer(stop, f"it is {row.state if row else 'not to be seen'} by now")
                elif not (is_late or self._has_saved(row)):
                    continue
                elif self._try(stop, enforce.requeue_held(stop.job_id)):
                    requeued.append(stop)
                    if not self._has_saved(row):
                        self._set(stop, Status.DONE, f"not saved within {self.grace_s:g} s")
                del waiting[stop]
            if self.now_s() >= asked_s + _ASK_EVERY_S:
                asked_s = self.now_s()
                waiting = {s: n for s, n in waiting.items() if self._ask(s)}
            if waiting:
                self.pause(_LOOK_EVERY_S)
        return requeued

    def _ask(self, stop: Stop) -> bool:
        return self._try(stop, enforce.ask_to_save(stop.job_id))

    def _has_saved(self, row: QueueRow) -> bool:
        """Return whether this very run of the job says that its checkpoint is written."""
        try:
            report = read_report(self.spool, row.raw_id, owner_uid=row.user_id)
        except ReportError:
            return False
        return report is not None and report.state == "saved" and report.restart == row.restarts

    def _await_pending(self, leaving: Sequence[Stop], deadline_s: float) -> None:
        """Wait until jobs are pending and held; until then changes would be lost in silence."""
        waiting = list(leaving)
        while waiting:
            queue = self._queue()
            for stop in list(waiting):
                row = queue.get(stop.job_id)
                if row is not None and row.is_held_by_user:
                    self._outcomes.setdefault(stop, Outcome(stop, Status.DONE))
                elif row is not None and row.state in ("PENDING", "COMPLETING", "RUNNING"):
                    continue
                else:
                    self._defer(stop, f"it is {row.state if row else 'not to be seen'} by now")
                waiting.remove(stop)
            if waiting and self.now_s() >= deadline_s:
                for stop in waiting:
                    self._defer(stop, "it is still on its nodes")
                return
            if waiting:
                self.pause(_LOOK_EVERY_S)

    def _pin(self, start: Start, row: QueueRow, *, names_type: bool) -> bool:
        """Make a pending job ask for exactly its gang; it stays held."""
        change = enforce.set_request(
            start.job_id,
            start.gang,
            self.version,
            names_type=names_type,
            is_restart=row.restarts > 0,
        )
        return (
            (row.is_held_by_user or self._try(start, enforce.hold(start.job_id)))
            and self._try(start, enforce.clear_request(start.job_id))
            and self._try(start, change)
        )

    def _release_if_pinned(self, pinned: Mapping[Start, bool]) -> None:
        """Release the jobs whose request Slurm really took over; an update can lie.

        `pinned` tells of each start whether its request names the GPU type.
        """
        if not pinned:
            return
        queue = self._queue()
        for start, names_type in pinned.items():
            row = queue.get(start.job_id)
            if row is None or row.state != "PENDING":
                self._defer(start, f"it is {row.state if row else 'not to be seen'} by now")
            elif not asks_for(row, start.gang, names_type=names_type):
                self._set(
                    start,
                    Status.REFUSED,
                    f"Slurm kept another request: nodes {','.join(row.requested_nodes)}, "
                    f"{row.gpus_per_node} a node, {row.gpus_otherwise} otherwise",
                )
            elif self._try(start, enforce.release(start.job_id)):
                self._set(start, Status.DONE)

    def _queue(self) -> dict[JobId, QueueRow]:
        """Return the queue; an unreachable Slurm shows none, so that nothing is done to it."""
        try:
            return read_queue(self.runner)
        except SlurmUnavailable:
            return {}

    def _try(self, action: Action, argv: Sequence[str]) -> bool:
        try:
            self.runner.run(argv)
        except SlurmRefused as error:
            self._set(action, Status.REFUSED, str(error))
        except SlurmUnavailable as error:
            self._defer(action, str(error))
        else:
            return True
        return False

    def _defer(self, action: Action, why: str) -> None:
        self._set(action, Status.DEFERRED, why)

    def _set(self, action: Action, status: Status, detail: str = "") -> None:
        self._outcomes[action] = Outcome(action, status, detail)


def must_name_type(row: QueueRow, gang: Gang, cluster: Cluster, version: tuple[int, int]) -> bool:
    """Return whether the request for `gang` has to name its GPU type.

    On a node with several types nothing else tells Slurm which; and where Slurm keeps types, a
    request that has named one cannot become untyped again.
    """
    nodes = cluster.by_name
    is_ambiguous = any(not nodes[name].has_one_type for name in gang.gpus_by_node)
    is_tied = enforce.keeps_types(version) and bool(row.named_types)
    return len(gang.gpus_by_type) == 1 and (is_ambiguous or is_tied)


def asks_for(row: QueueRow, gang: Gang, *, names_type: bool) -> bool:
    """Return whether a job's request, as Slurm shows it, is exactly `gang`.

    The number of nodes is not compared: squeue shows that of the job's last run.
    """
    return (
        set(row.requested_nodes) == set(gang.gpus_by_node)
        and row.gpus_per_node == enforce.requested_gpus(gang, names_type=names_type)
        and not row.gpus_otherwise
    )


def _free_slots(reading: Reading) -> Counter[Slot]:
    """Return the GPUs in every slot that no job holds."""
    free = Counter(reading.cluster.capacity)
    free.subtract(reading.in_use)
    return free
