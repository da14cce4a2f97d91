"""Synchronous training: the copies of a group train each step together, each a part of its batch.

An interval is trained by one group, or by several after each other when copies come and go. After
each step all copies of a group have the same parameters, so any of them can end the interval, and
the others take nothing from its file. What an interrupted step has changed is dropped or, where
another copy has finished it, taken over from that copy when the next group begins.
"""

from __future__ import annotations

import json
import logging
import signal
import time
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hadar_slurm.older_python import zip_equal
from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.averaging.finite import MOST_SPOILT, NotFiniteError
from hadar_slurm.runtime.averaging.modes import Mode, is_costly
from hadar_slurm.runtime.files.ranges import Ranges
from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.files.slots import Slots
from hadar_slurm.runtime.files.tensors import TensorFile, checksum_of
from hadar_slurm.runtime.membership.presence import Doing, Presence
from hadar_slurm.runtime.samples import mixed
from hadar_slurm.runtime.settings import Settings
from hadar_slurm.runtime.synchronous.fitness import Fitness
from hadar_slurm.runtime.synchronous.gradients import Exchanged, Field, Gradients, Outcome
from hadar_slurm.runtime.synchronous.links import LinkError, Links
from hadar_slurm.runtime.synchronous.roster import Group, Roster, Version
from hadar_slurm.runtime.synchronous.shares import Pace
from hadar_slurm.runtime.synchronous.transfer import Sent, send_bytes, send_state

log = logging.getLogger(__name__)

# How often the first copy of a group looks at the files.
_LOOK_S = 1.0
# How often a failed end of an interval is tried again.
_END_AGAIN_S = 5.0
# Groups in a row that were not formed, or were lost before a step, before copies average instead.
_MOST_FAILED = 4
# The length of an interval that has none.
_USUAL_S = 60.0

Steps = Generator[int, None, tuple[SlotEnd, TensorFile]]


class Host(Protocol):
    """The copy that trains."""

    asked: set[int]

    @property
    def stop_asked(self) -> str:
        """Why the whole training is to end, "" if it is not."""

    def load(self, end: SlotEnd, file: TensorFile) -> None:
        """Take over the parameters at the end of an interval."""

    def evaluate(self, end: SlotEnd) -> None:
        """Call what is to be called with the parameters at the end of an interval."""

    def newest(self) -> tuple[SlotEnd, TensorFile]:
        """Return the newest end."""

    def named(self) -> state.Named:
        """Return the state of the training."""

    def take_over(self, named: state.Named) -> None:
        """Load a state."""

    def set_rates(self, parent_step: int) -> None:
        """Set the learning rates at a step of the whole job."""

    def tell_steps(self, end: SlotEnd, own_steps: int, steps_per_s: float) -> None:
        """Report progress."""

    def check_claim(self) -> None:
        """Raise HeldError where a later run has taken over."""

    def end_together(
        self,
        end: SlotEnd,
        applied: Ranges,
        speeds: Mapping[int, float],
        costly: Collection[int],
        *,
        stops: bool = False,
    ) -> SlotEnd | None:
        """Write the next end, the last if it `stops`; None where another copy has.

        Raises OSError.
        """


@dataclass
class Synchronous:
    """One copy's part in synchronous training."""

    host: Host
    copy: int
    seed: int
    model: nn.Module
    slots: Slots
    presence: Presence
    here: Callable[[], set[int]]
    settings: Settings
    roster: Roster
    gradients: Gradients
    fitness: Fitness
    mode: Mode = Mode.SYNCHRONOUS
    version: Version = field(default_factory=Version)
    applied: Ranges = field(default_factory=Ranges)
    group: Group | None = None
    links: Links | None = None
    pace: Pace = field(default_factory=lambda: Pace({}))
    benched: tuple[int, ...] = ()  # the group that trains faster without this copy
    is_training: bool = False
    _end: SlotEnd | None = None
    _begun_s: float = 0.0
    _looked_s: float = 0.0
    _end_again_s: float = 0.0
    _failed: int = 0
    _has_applied: bool = False  # the group, a step
    _rate: float = 0.0  # samples/s of this copy
    _spoilt: int = 0

    def enrol(self) -> bool:
        """Publish that this copy can train synchronously, once known; return whether it still may.

        In mode "auto" it is known after a watched step, or because another copy can: all copies run
        the same script.
        """
        if self.roster.is_open:
            return True
        if self.fitness.fault is None and self.roster.able().keys() - {self.copy}:
            self.fitness.fault = ""
        if self.fitness.fault == "" and len(self.here() | {self.copy}) > 1:
            self.roster.open(lambda: True)  # a full disk: the next time
        if self.roster.is_refused:
            self.fitness.fault = f"{self.roster.room} cannot be used"
        return not self.fitness.fault

    def train(self, end: SlotEnd) -> Steps:
        """Yield the steps of the interval after `end`, whose parameters this copy has.

        Goes on through later intervals that are synchronous; returns the newest end, to be loaded.
        """
        self.gradients.open()
        self._begin(end)
        self.is_training = True
        try:
            found = yield from self._train(end)
            self._end = None
            return found
        finally:
            self.is_training = False
            self.leave_group()

    def _train(self, end: SlotEnd) -> Steps:
        while end.together and not end.is_complete and not self._is_asked(end):
            if not self._join(end):
                if self._is_asked(end):
                    break
                return self.host.newest()
            after = yield from self._steps(end)
            if after is None:
                return self.host.newest()
            if after is not end:
                self._begin(after)
                self.host.evaluate(after)
                end = after
        return self.host.newest()

    def leave_group(self) -> None:
        """Leave the group, if this copy is in one."""
        links, self.links = self.links, None
        self.gradients.join(None)
        if links is not None:
            links.close()

    def leave(self, is_error: bool) -> None:
        """Leave the job; keep what the last steps have changed, unless this copy failed."""
        end, gradients = self._end, self.gradients
        is_applied = gradients.last is not None and gradients.last.outcome is Outcome.APPLIED
        if not is_error and end is not None and is_applied and gradients.has_stepped:
            step = next(iter(end.todo - self.applied))
            self.applied |= Ranges.of([(step, step + 1)])
        is_kept = not is_error and end is not None and len(self.applied) > 0
        if is_kept and end is not None and not self.slots.has_ended(end.slot + 1):
            self._write(end, (), stops=bool(self.host.stop_asked))
            log.info("ends early, with %d steps of slot %d", len(self.applied), end.slot + 1)
        self._end = None
        self.leave_group()
        self.gradients.close()
        self.fitness.close()
        self.roster.leave()

    def part(self, batch_size: int, parts: int = 1) -> slice:
        """Return which samples of a batch this copy trains, in `parts` parts."""
        mine, counted = self.pace.part(self.copy, batch_size, parts)
        self.gradients.expect(counted, batch_size, parts)
        return mine

    def _begin(self, end: SlotEnd) -> None:
        """This copy has the parameters of `end`."""
        self._end, self.applied = end, Ranges()
        self.version = Version(end.id, steps=0)
        self._begun_s = time.monotonic()
        torch.manual_seed(mixed(self.seed, end.slot + 1, self.copy))

    def _is_asked(self, end: SlotEnd) -> bool:
        """Return whether this copy is to leave; what it alone may know is then in a file."""
        if not self.host.asked:
            return False
        self.presence.say(Doing.LEAVES)
        self.leave_group()
        while len(self.applied) and not self.slots.has_ended(end.slot + 1):
            if self._have_others_gone_on():
                break  # what this copy has would take their steps from them
            if self._write(end, ()) is not None or signal.SIGTERM in self.host.asked:
                break
            time.sleep(self.settings.poll_s)  # a full disk
        return True

    def _have_others_gone_on(self) -> bool:
        """Return whether copies that are present have formed a group without this copy."""
        newest = self.roster.newest()
        if newest is None or self.group is None or newest.number <= self.group.number:
            return False
        return self.copy not in newest.hosts and bool(set(newest.hosts) & self.here())

    def _is_over(self, end: SlotEnd) -> bool:
        self.host.check_claim()
        return bool(self.host.asked) or self.slots.newest_slot() != end.slot

    def _join(self, end: SlotEnd) -> bool:
        """Be in a group that trains the interval after `end`; False where that is over."""
        if self.links is not None:
            return True
        while not self._is_over(end):
            if self.benched and self._is_benched():
                self.presence.say(Doing.WAITS)
                time.sleep(self.settings.poll_s)
                continue
            self.benched = ()
            self.presence.say(Doing.TRAINS)
            try:
                group = self.roster.form(self.version, lambda: self._is_over(end))
            except OSError as error:
                log.warning("no group yet: %s", error)
                time.sleep(self.settings.poll_s)
                continue
            if group is None:
                return False
            self.group = group
            try:
                return self._meet(end, group)
            except LinkError as error:
                self.leave_group()
                log.warning("group %d is not formed: %s", group.number, error)
                self._fail(end, group)
        return False

    def _fail(self, end: SlotEnd, group: Group) -> None:
        """Count a group without a step; after some, the first copy has all average instead."""
        self._failed += 1
        if self._failed >= _MOST_FAILED and self.copy == group.copies[0]:
            log.warning("copies cannot train synchronously, and average: see %s", self.roster.room)
            self._write(end, group.copies)
            self._failed = 0

    def _is_benched(self) -> bool:
        """Return whether the copies that go on without this one still do."""
        newest, own = self.roster.newest(), self.group
        if newest is None or own is None or not set(self.benched) & self.here():
            return False
        return newest.number == own.number or newest.copies == self.benched

    def _meet(self, end: SlotEnd, group: Group) -> bool:
        """Link up with a group and agree on one state; False where the interval has ended."""
        rank, hosts = group.copies.index(self.copy), [group.hosts[copy] for copy in group.copies]
        self.links = links = Links(
            self.roster.keys(group), rank, hosts, lambda: self._is_intact(group)
        )
        table = torch.zeros(links.size, 4, dtype=torch.float64)
        is_stale = self.slots.newest_slot() != end.slot
        known = self.version.steps if self.version.end == end.id else -1
        table[rank] = torch.tensor(
            [known, self.version.group, float(is_stale), self._rate], dtype=torch.float64
        )
        links.sum(table)
        if bool(table[:, 2].any()):
            self.leave_group()
            return False
        versions = [(int(steps), int(number)) for steps, number, _, _ in table.tolist()]
        source = max(range(links.size), key=lambda each: (*versions[each], -each))
        if versions[source][0] < 0:  # all are to read the file again
            self.leave_group()
            return False
        if set(versions) != {versions[source]}:
            sent = send_state(links, Sent(self.host.named(), self.applied), source)
            if rank != source:
                self.host.take_over(sent.named)
                self.applied = sent.applied
            log.info("all have the state of copy %d", group.copies[source])
        steps = versions[source][0]
        self.version = Version(end.id, group.number if steps else 0, steps)
        rates = dict(zip_equal(group.copies, table[:, 3].tolist()))
        has_norm = any(isinstance(each, _BatchNorm) for each in self.model.modules())
        self.pace = Pace(rates, least=2 if has_norm else 1)
        self.gradients.join(links)
        torch.manual_seed(mixed(self.seed, end.slot + 1, self.copy, group.number))
        self._has_applied = False
        log.info("group %d: copies %s", group.number, ", ".join(map(str, group.copies)))
        return True

    def _is_intact(self, group: Group) -> bool:
        """Return whether a group's copies give signs of life, and have not formed another one."""
        now_s = time.monotonic()
        self.presence.look(now_s)
        there = {*self.presence.present(now_s), self.copy}
        return set(group.hosts) <= there and not self._is_replaced(group)

    def _steps(self, end: SlotEnd) -> Generator[int, None, SlotEnd | None]:
        """Yield steps until the group or the interval ends.

        Return the end to go on from: `end` where another group is to, None where it is unknown.
        """
        for step in end.todo - self.applied:
            while True:
                self.host.set_rates(len(end.done) + len(self.applied))
                self.gradients.begin(self._flags(end))
                yield step
                found = self.gradients.finish()
                if found.outcome is Outcome.BROKEN:
                    log.warning("a copy is gone: %s", found.why)
                    self._lose(end)
                    return end
                if found.outcome is Outcome.APPLIED:
                    break
                if found.all(Field.SPOILT):
                    self._lose_all(end)
                    return None
                self._drop(end, step, found)
                if found.any(Field.SPOILT):
                    if self.gradients.own[Field.SPOILT]:
                        log.warning("takes over parameters: those of this copy are not finite")
                        self.version, self.applied = Version(end.id), Ranges()
                    self.leave_group()
                    return end
                if found.any(Field.REGROUP):
                    self.leave_group()
                    return end
            self._failed = self._spoilt = 0
            self._has_applied = True
            self.applied |= Ranges.of([(step, step + 1)])
            number = self.group.number if self.group else 0
            self.version = Version(end.id, number, self.version.steps + 1)
            after = self._after(end, found)
            if after is not None:
                return after[0]
        # All steps were done already, by a group whose copies are gone.
        return self._close(end, ())[0]

    def _lose_all(self, end: SlotEnd) -> None:
        """No copy has finite parameters: go on from the file, as with contributions like that.

        Training stops after some such intervals.
        """
        log.warning("no copy has finite parameters: the steps since slot %d are lost", end.slot)
        if self.links is not None and self.links.rank == 0:
            self._write(end, ())
        self.version, self.applied = Version(end.id), Ranges()
        self.leave_group()

    def _lose(self, end: SlotEnd) -> None:
        self.leave_group()
        if self.group is not None and not self._has_applied:
            self._fail(end, self.group)

    def _drop(self, end: SlotEnd, step: int, found: Exchanged) -> None:
        """Have a step trained again; raises NotFiniteError after several times."""
        self._spoilt += 1
        log.warning("step %d is trained again: %s", step, found.why)
        if self._spoilt >= MOST_SPOILT:
            if self.links is not None and self.links.rank == 0 and len(self.applied):
                self._write(end, ())
            raise NotFiniteError(
                f"step {step} was dropped {MOST_SPOILT} times in a row: {found.why}. The newest "
                f"slot in {self.slots.directory.resolve() / 'slots'} has the parameters of before"
            )
        torch.manual_seed(mixed(self.seed, step, self.copy, self._spoilt))

    def _flags(self, end: SlotEnd) -> dict[Field, float]:
        """Return what this copy has to say at the next step; the first one looks at the files."""
        flags: dict[Field, float] = {}
        if self.host.asked:
            self.presence.say(Doing.LEAVES)
            flags[Field.LEAVES] = 1.0
        if self.host.stop_asked:
            flags[Field.STOPS] = 1.0
        now_s = time.monotonic()
        if self.links is None or self.links.rank or now_s < self._looked_s + _LOOK_S:
            return flags
        self._looked_s = now_s
        self.host.check_claim()
        group = self.group
        assert group is not None
        if self.slots.newest_slot() != end.slot:
            return {**flags, Field.STALE: 1.0}
        if self.slots.stop_reason():  # of a copy that is gone
            flags[Field.STOPS] = 1.0
        if self.roster.waiting(group.number + 1) or self._is_replaced(group):
            flags[Field.REGROUP] = 1.0
        length_s = end.length_s or _USUAL_S
        is_due = now_s > self._begun_s + length_s and now_s > self._end_again_s
        if is_due or not self.here() <= self.roster.able().keys():
            flags[Field.CLOSE] = 1.0
        return flags

    def _is_replaced(self, group: Group) -> bool:
        newest = self.roster.newest()
        return newest is not None and newest.number > group.number

    def _after(self, end: SlotEnd, found: Exchanged) -> tuple[SlotEnd | None] | None:
        """Return None to go on; else, in a tuple, what `_steps` returns. The same on each copy."""
        group = self.group
        assert group is not None
        column = {name: dict(zip_equal(group.copies, found.column(name))) for name in Field}
        counts = {copy: int(count) for copy, count in column[Field.SAMPLES].items()}
        is_due = self.pace.note(counts, column[Field.TRAIN_S], found.column(Field.EXCHANGE_S))
        costly: tuple[int, ...] = ()
        if is_due:
            exchange_s, train_s = self.pace.costs_s()
            benched = self.pace.replace()
            self._rate = self.pace.rates.get(self.copy, 0.0)
            if self.mode is Mode.AUTO and is_costly(exchange_s, train_s):
                log.info("gradients take %.3f s, a step %.3f s", exchange_s, train_s)
                costly = group.copies
            elif benched:
                return self._bench(end, group, benched)
        own = len(self.applied) if self.links is not None and self.links.rank == 0 else 0
        self.host.tell_steps(end, own, self.pace.steps_per_s().get(self.copy, 0.0))
        if found.any(Field.STALE):
            self.leave_group()
            return (None,)
        is_complete = len(self.applied) >= len(end.todo)
        leaves, stops = found.any(Field.LEAVES), found.any(Field.STOPS)
        if costly or is_complete or leaves or stops or found.any(Field.CLOSE):
            return self._close(end, costly, leaves=leaves, stops=stops)
        if found.any(Field.REGROUP):
            self.leave_group()
            return (end,)
        return None

    def _bench(self, end: SlotEnd, group: Group, benched: Collection[int]) -> tuple[SlotEnd]:
        """Go on in a group without the copies that delay it."""
        rest = tuple(copy for copy in group.copies if copy not in benched)
        names = ", ".join(map(str, benched))
        log.info("group %d goes on faster without copies: %s", group.number, names)
        if self.copy in benched:
            self.benched = rest
        self.roster.apart = set(benched)
        self.leave_group()
        return (end,)

    def _close(
        self, end: SlotEnd, costly: Collection[int], *, leaves: bool = False, stops: bool = False
    ) -> tuple[SlotEnd | None]:
        """End the interval: the first copy writes it, the others are sent what it says."""
        links = self.links
        assert links is not None
        try:
            told, checksum = b"", checksum_of(self.host.named()[0])
            if links.rank == 0:
                after = self._write(end, costly, stops=stops)
                if after and not after.spoilt:
                    told = json.dumps({**after.facts, "checksum": checksum}).encode()
            told = send_bytes(links, told, source=0)
        except LinkError as error:
            log.warning("a copy is gone at the end of slot %d: %s", end.slot + 1, error)
            self._lose(end)
            return (end,)
        facts: Any = json.loads(told) if told else None
        if facts is None:
            if self.slots.newest_slot() == end.slot:  # it could not be written
                time.sleep(self.settings.poll_s)
                return (end,)
            self.leave_group()
            return (None,)
        after = SlotEnd.of(facts)
        if checksum != facts["checksum"]:
            # GPUs of several types round differently, and memory may have an error.
            log.info("has other parameters than the end of slot %d, and reads that", after.slot)
            newest, file = self.host.newest()
            if newest.id != after.id:
                self.leave_group()
                return (None,)
            self.host.load(newest, file)
        if leaves:
            self.leave_group()
        return (after,)

    def _write(
        self, end: SlotEnd, costly: Collection[int], *, stops: bool = False
    ) -> SlotEnd | None:
        """Write the end of the interval after `end`; None where that failed, or came too late."""
        try:
            speeds = self.pace.steps_per_s()
            return self.host.end_together(end, self.applied, speeds, costly, stops=stops)
        except OSError as error:
            self._end_again_s = time.monotonic() + _END_AGAIN_S
            log.warning("slot %d cannot be ended yet: %s", end.slot + 1, error)
            return None
