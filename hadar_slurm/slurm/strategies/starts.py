"""Starts under a hold: hold, clear the request, set nodes and GPUs, read back, release."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId, Slot
from hadar_slurm.core.time_limit import new_time_limit_s
from hadar_slurm.engine.actions import Start, Status
from hadar_slurm.engine.rate_limit import at_once, in_parts
from hadar_slurm.errors import SlurmUnavailable
from hadar_slurm.jobspec.request import SIZES, Request
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.scontrol import must_name_type, request_for, requested_gpus
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.readings import is_edited
from hadar_slurm.slurm.enforce.state_machine import Event, Kind
from hadar_slurm.slurm.strategies.changes import FOREIGN_HOLD, Changes, Outcomes, state_now


@dataclass
class Starts(Changes):
    """Carries out the starts of one round."""

    # The cores and memory that each pin asks for.
    _asked: dict[Start, tuple[str, ...]] = field(default_factory=dict, init=False)

    def start(self, starts: Sequence[Start]) -> Outcomes:
        """Pin jobs to free GPUs and release them, and return the outcome of each."""
        pinned: dict[Start, bool] = {}
        try:
            reading = self.slurm.read()
            free = reading.free
            for some in in_parts(starts, at_once(self.slurm.rpcs_per_s, rpcs=8)):
                jobs = {start.job_id for start in some}
                reading = reading.updated(jobs, self.ledger.read_again(self.slurm, jobs))
                pinned |= self._pin(self._startable(some, reading, free), reading)
        except SlurmUnavailable as error:
            self._defer({*starts} - pinned.keys() - self._outcomes.keys(), str(error))
        self._release_if_pinned(pinned)
        return {start: self._outcomes[start] for start in starts}

    def _startable(
        self, starts: Sequence[Start], reading: SlurmState, free: Counter[Slot]
    ) -> dict[Start, QueueRow]:
        """Return the jobs that may be pinned to GPUs which are `free`; defer the others."""
        rows: dict[Start, QueueRow] = {}
        for start in starts:
            row = reading.queue.get(start.job_id)
            if row is None or row.state != "PENDING":
                self._defer([start], f"it is {row.state if row else 'gone'} and not pending")
            elif why := self._why_not_pinned(start, row, reading, free):
                self._defer([start], why)
            else:
                rows[start] = row
                free.subtract(dict(start.gang.slots))
        return rows

    def _why_not_pinned(
        self, start: Start, row: QueueRow, reading: SlurmState, free: Counter[Slot]
    ) -> str:
        """Return why a pending job must not be pinned now; empty: it may be."""
        claim = self.ledger[row.key]
        if row.is_held and not claim.holds:
            return FOREIGN_HOLD
        if row.requested_nodes and not claim.pins(row.requested_nodes):
            return "its owner has named nodes for it"
        if row.key in reading.unseen or is_edited(self.state, reading, row.key, claim):
            return "its owner has changed it since the plan was made"
        if not start.gang.gpus_by_node.keys() <= reading.cluster.open_names:
            return f"{start.gang} has a node that takes no work now"
        if any(free.get(slot, 0) < count for slot, count in start.gang.slots):
            return f"{start.gang} is not free yet"
        return ""

    def _pin(self, rows: Mapping[Start, QueueRow], reading: SlurmState) -> dict[Start, bool]:
        """Make held jobs request their gangs; return the successes, and which name the GPU type."""
        names, pins = dict[Start, bool](), dict[Start, Event]()
        keeps_types = self.slurm.abilities.keeps_types
        for start, row in rows.items():
            named = self.ledger[row.key].named_types(row) if keeps_types else frozenset()
            names[start] = names_type = must_name_type(named, start.gang, reading.cluster)
            request = request_for(start.gang, self.slurm.version, names_type=names_type)
            request = self._with_sizes(request, start, row, reading)
            shown, on = reading.shown(row.key), self.seen.limits_s.get(row.key, {})
            pins[start] = self._event(
                Kind.PIN,
                row,
                own=reading.request(row),
                request=request,
                shown=shown,
                own_excluded=self.ledger.excluded_by_owner(row, shown["excluded"]),
                limit_s=new_time_limit_s(on, start.gang.gpus_by_type, shown["limit_s"] or 0.0),
            )
        self._asked = {start: event.request.sizes for start, event in pins.items()}
        return {start: names[start] for start in self._carry_out(pins)}

    def _with_sizes(
        self, request: Request, start: Start, row: QueueRow, reading: SlurmState
    ) -> Request:
        """Return a request with the cores and the memory of a copy on its type.

        Where hadard does not know its owner's, it could not put them back and changes none.
        """
        description = self.seen.by_type.get(start.job_id)
        own = self.ledger[row.key].own or reading.request(row)
        if description is None or not any(own.sizes):
            return request
        from hadar_slurm.jobspec.cores_memory import with_sizes

        gpu_type = next(iter(start.gang.gpus_by_type)).lower()
        cores, memory_mb = description.cores.get(gpu_type), description.memory_mb.get(gpu_type)
        return with_sizes(request, own, cores=cores, memory_mb=memory_mb)

    def _release_if_pinned(self, pinned: Mapping[Start, bool]) -> None:
        """Release the jobs whose request (`_pin`) Slurm shows: Slurm may ignore an update."""
        queue = self._queue() if pinned else {}
        shown = self._shown_sizes(pinned)
        ready: dict[Start, Event] = {}
        for start, names_type in pinned.items():
            row = queue.get(start.job_id)
            if row is None or row.state != "PENDING":
                self._defer([start], state_now(row))
            elif row.is_held_by_operator:
                self._defer([start], "an operator holds it")
            elif (sizes := self._asked.get(start)) and shown.get(start, sizes) != sizes:
                from hadar_slurm.jobspec.cores_memory import size_words

                self._set(start, Status.REFUSED, f"Slurm kept {size_words(shown[start])}")
            # The number of nodes is not compared: squeue shows that of the job's last run.
            elif (
                set(row.requested_nodes) == set(start.gang.gpus_by_node)
                and row.gpus_per_node == requested_gpus(start.gang, names_type=names_type)
                and not row.gpus_otherwise
            ):
                ready[start] = self._event(Kind.RELEASE, row)
            else:
                why = f"Slurm kept another request: nodes {','.join(row.requested_nodes)}, "
                why += f"{row.gpus_per_node} a node, {row.gpus_otherwise} otherwise"
                self._set(start, Status.REFUSED, why)
        # The ledger keeps the holds until a reading shows that they are gone.
        for start in self._carry_out(ready):
            self._set(start, Status.DONE)

    def _shown_sizes(self, starts: Iterable[Start]) -> dict[Start, tuple[str, ...]]:
        """Return the cores and memory that Slurm shows of copies for which they were set."""
        asked = [start for start in starts if any(self._asked.get(start, ()))]
        if not asked:
            return {}
        sizes: Mapping[JobId, tuple[str, ...]] = {}
        with suppress(SlurmUnavailable):
            sizes = self.slurm.read().sizes
        return {start: tuple(sizes.get(start.job_id, ("",) * len(SIZES))) for start in asked}
