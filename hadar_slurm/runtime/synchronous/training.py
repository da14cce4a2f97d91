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
from collections.abc import Collection, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from hadar_slurm.older_python import zip_equal
from hadar_slurm.runtime.averaging.finite import MOST_SPOILT, NotFiniteError
from hadar_slurm.runtime.averaging.modes import TrainingMode, is_costly
from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.files.tensors import TensorFile, checksum_of
from hadar_slurm.runtime.membership.presence import Doing
from hadar_slurm.runtime.samples import mixed
from hadar_slurm.runtime.synchronous.fitness import Fitness
from hadar_slurm.runtime.synchronous.gradients import Exchanged, Field, StepOutcome
from hadar_slurm.runtime.synchronous.grouping import Grouping
from hadar_slurm.runtime.synchronous.links import LinkError
from hadar_slurm.runtime.synchronous.progress import ParameterProgress
from hadar_slurm.runtime.synchronous.transfer import send_bytes

log = logging.getLogger(__name__)

# How often the first copy of a group looks at the files.
_LOOK_S = 1.0
# The length of an interval that has none.
_USUAL_S = 60.0

Steps = Generator[int, None, tuple[SlotEnd, TensorFile]]


@dataclass
class Synchronous:
    """One copy's part in synchronous training."""

    grouping: Grouping
    fitness: Fitness
    mode: TrainingMode = TrainingMode.SYNCHRONOUS
    is_training: bool = False
    progress: ParameterProgress | None = None  # of the running interval, None in others
    _looked_s: float = 0.0
    _spoilt: int = 0

    def __post_init__(self) -> None:
        grouping = self.grouping
        self.host, self.copy, self.slots = grouping.host, grouping.copy, grouping.slots
        self.roster, self.gradients, self.ends = grouping.roster, grouping.gradients, grouping.ends

    def enrol(self) -> bool:
        """Publish that this copy can train synchronously, once known; return whether it still may.

        In mode "auto" it is known after a watched step, or because another copy can: all copies run
        the same script.
        """
        if self.roster.is_open:
            return True
        if self.fitness.fault is None and self.roster.able().keys() - {self.copy}:
            self.fitness.fault = ""
        if self.fitness.fault == "" and len(self.grouping.here() | {self.copy}) > 1:
            self.roster.open(lambda: True)  # a full disk: the next time
        if self.roster.is_refused:
            self.fitness.fault = f"{self.roster.room} cannot be used"
        return not self.fitness.fault

    def train(self, end: SlotEnd) -> Steps:
        """Yield the steps of the interval after `end`, whose parameters this copy has.

        Goes on through later intervals that are synchronous; returns the newest end, to be loaded.
        """
        self.gradients.open()
        progress = self._begin(end)
        self.is_training = True
        try:
            found = yield from self._train(progress)
            self.progress = None
            return found
        finally:
            self.is_training = False
            self.grouping.leave()

    def leave(self, is_error: bool) -> None:
        """Leave the job; keep what the last steps have changed, unless this copy failed."""
        progress, self.progress = self.progress, None
        if progress is not None and not is_error:
            self._keep(progress)
        self.grouping.leave()
        self.gradients.close()
        self.fitness.close()
        self.roster.leave()

    def part(self, batch_size: int, parts: int = 1) -> slice:
        """Return which samples of a batch this copy trains, in `parts` parts."""
        mine, counted = self.grouping.pace.part(self.copy, batch_size, parts)
        self.gradients.expect(counted, batch_size, parts)
        return mine

    def _begin(self, end: SlotEnd) -> ParameterProgress:
        """This copy has the parameters of `end`."""
        self.progress = ParameterProgress(end)
        torch.manual_seed(mixed(self.grouping.seed, end.slot + 1, self.copy))
        return self.progress

    def _train(self, progress: ParameterProgress) -> Steps:
        while (end := progress.end).together and not end.is_complete:
            if self._is_asked(progress):
                break
            if not self.grouping.join(progress, partial(self._is_over, end)):
                self._is_asked(progress)  # writes what this copy alone may know
                break
            after = yield from self._steps(progress)
            if after is None:
                break
            if after is not end:
                progress = self._begin(after)
                self.host.evaluate(after)
        return self.host.newest()

    def _keep(self, progress: ParameterProgress) -> None:
        """End the interval with what this copy has, as the program ends before the job."""
        gradients, end = self.gradients, progress.end
        is_applied = gradients.last is not None and gradients.last.outcome is StepOutcome.APPLIED
        if is_applied and gradients.has_stepped:
            progress.apply(next(iter(progress.todo)), progress.version.group)
        if len(progress.applied) and not self.slots.has_ended(end.slot + 1):
            self._write(progress, stops=bool(self.host.stop_asked))
            log.info("ends early, with %d steps of slot %d", len(progress.applied), end.slot + 1)

    def _is_asked(self, progress: ParameterProgress) -> bool:
        """Return whether this copy is to leave; what it alone may know is then in a file."""
        if not self.host.asked:
            return False
        self.grouping.presence.say(Doing.LEAVES)
        self.grouping.leave()
        while len(progress.applied) and not self.slots.has_ended(progress.end.slot + 1):
            if self.grouping.is_replaced_without_this_copy():
                break  # what this copy has would take their steps from them
            if self._write(progress) is not None or signal.SIGTERM in self.host.asked:
                break
            time.sleep(self.grouping.poll_s)  # a full disk
        return True

    def _is_over(self, end: SlotEnd) -> bool:
        self.host.check_claim()
        return bool(self.host.asked) or self.slots.newest_slot() != end.slot

    def _steps(self, progress: ParameterProgress) -> Generator[int, None, SlotEnd | None]:
        """Yield steps until the group or the interval ends.

        Return the end to go on from: the same where another group is to, None where it is unknown.
        """
        end, grouping = progress.end, self.grouping
        for step in progress.todo:
            while True:
                self.host.set_rates(len(end.done) + len(progress.applied))
                self.gradients.begin(self._flags(progress))
                yield step
                found = self.gradients.finish()
                if found.outcome is StepOutcome.BROKEN:
                    log.warning("a copy is gone: %s", found.why)
                    grouping.lose(progress)
                    return end
                if found.outcome is StepOutcome.APPLIED:
                    break
                if found.all(Field.SPOILT):
                    self._lose_all(progress)
                    return None
                self._drop(progress, step, found)
                if found.any(Field.SPOILT) and self.gradients.own[Field.SPOILT]:
                    log.warning("takes over parameters: those of this copy are not finite")
                    progress.forget()
                if found.any(Field.SPOILT) or found.any(Field.REGROUP):
                    grouping.leave()
                    return end
            grouping.failed = self._spoilt = 0
            grouping.has_applied = True
            progress.apply(step, grouping.group.number if grouping.group else 0)
            after = self._after(progress, found)
            if after is not None:
                return after[0]
        # All steps were done already, by a group whose copies are gone.
        return self._close(progress, ())[0]

    def _lose_all(self, progress: ParameterProgress) -> None:
        """No copy has finite parameters: go on from the file, as with contributions like that.

        Training stops after some such intervals.
        """
        slot = progress.end.slot
        log.warning("no copy has finite parameters: the steps since slot %d are lost", slot)
        if self.grouping.leads:
            self._write(progress)
        progress.forget()
        self.grouping.leave()

    def _drop(self, progress: ParameterProgress, step: int, found: Exchanged) -> None:
        """Have a step trained again; raises NotFiniteError after several times."""
        self._spoilt += 1
        log.warning("step %d is trained again: %s", step, found.why)
        if self._spoilt >= MOST_SPOILT:
            if self.grouping.leads and len(progress.applied):
                self._write(progress)
            raise NotFiniteError(
                f"step {step} was dropped {MOST_SPOILT} times in a row: {found.why}. The newest "
                f"slot in {self.slots.directory.resolve() / 'slots'} has the parameters of before"
            )
        torch.manual_seed(mixed(self.grouping.seed, step, self.copy, self._spoilt))

    def _flags(self, progress: ParameterProgress) -> dict[Field, float]:
        """Return what this copy has to say at the next step; the first one looks at the files."""
        flags: dict[Field, float] = {}
        grouping, end = self.grouping, progress.end
        if self.host.asked:
            grouping.presence.say(Doing.LEAVES)
            flags[Field.LEAVES] = 1.0
        if self.host.stop_asked:
            flags[Field.STOPS] = 1.0
        now_s = time.monotonic()
        if not grouping.leads or now_s < self._looked_s + _LOOK_S:
            return flags
        self._looked_s = now_s
        self.host.check_claim()
        group = grouping.group
        assert group is not None
        if self.slots.newest_slot() != end.slot:
            return {**flags, Field.STALE: 1.0}
        if self.slots.stop_reason():  # of a copy that is gone
            flags[Field.STOPS] = 1.0
        if self.roster.waiting(group.number + 1) or grouping.is_replaced(group):
            flags[Field.REGROUP] = 1.0
        length_s = end.length_s or _USUAL_S
        is_due = now_s > progress.begun_s + length_s and now_s > self.ends.again_s
        if is_due or not grouping.here() <= self.roster.able().keys():
            flags[Field.CLOSE] = 1.0
        return flags

    def _after(self, progress: ParameterProgress, found: Exchanged) -> tuple[SlotEnd | None] | None:
        """Return None to go on; else, in a tuple, what `_steps` returns. The same on each copy."""
        end, grouping = progress.end, self.grouping
        group, pace = grouping.group, grouping.pace
        assert group is not None
        column = {name: dict(zip_equal(group.copies, found.column(name))) for name in Field}
        counts = {copy: int(count) for copy, count in column[Field.SAMPLES].items()}
        is_due = pace.note(counts, column[Field.TRAIN_S], found.column(Field.EXCHANGE_S))
        costly: tuple[int, ...] = ()
        if is_due:
            exchange_s, train_s = pace.costs_s()
            benched = pace.replace()
            grouping.rate = pace.rates.get(self.copy, 0.0)
            if self.mode is TrainingMode.AUTO and is_costly(exchange_s, train_s):
                log.info("gradients take %.3f s, a step %.3f s", exchange_s, train_s)
                costly = group.copies
            elif benched:
                grouping.bench(benched)
                return (end,)
        own = len(progress.applied) if grouping.leads else 0
        self.host.tell_steps(end, own, pace.steps_per_s().get(self.copy, 0.0))
        if found.any(Field.STALE):
            grouping.leave()
            return (None,)
        leaves, stops = found.any(Field.LEAVES), found.any(Field.STOPS)
        is_complete = len(progress.applied) >= len(end.todo)
        if costly or is_complete or leaves or stops or found.any(Field.CLOSE):
            return self._close(progress, costly, leaves=leaves, stops=stops)
        if found.any(Field.REGROUP):
            grouping.leave()
            return (end,)
        return None

    def _close(
        self,
        progress: ParameterProgress,
        costly: Collection[int],
        *,
        leaves: bool = False,
        stops: bool = False,
    ) -> tuple[SlotEnd | None]:
        """End the interval: the first copy writes it, the others are sent what it says."""
        end, grouping = progress.end, self.grouping
        links = grouping.links
        assert links is not None
        try:
            told, checksum = b"", checksum_of(self.host.named()[0])
            if grouping.leads:
                after = self._write(progress, costly, stops=stops)
                if after and not after.spoilt:
                    told = json.dumps({**after.facts, "checksum": checksum}).encode()
            told = send_bytes(links, told, source=0)
        except LinkError as error:
            log.warning("a copy is gone at the end of slot %d: %s", end.slot + 1, error)
            grouping.lose(progress)
            return (end,)
        facts: Any = json.loads(told) if told else None
        if facts is None:
            if self.slots.newest_slot() == end.slot:  # it could not be written
                time.sleep(grouping.poll_s)
                return (end,)
            grouping.leave()
            return (None,)
        after = SlotEnd.of(facts)
        if checksum != facts["checksum"]:
            # GPUs of several types round differently, and memory may have an error.
            log.info("has other parameters than the end of slot %d, and reads that", after.slot)
            newest, file = self.host.newest()
            if newest.id != after.id:
                grouping.leave()
                return (None,)
            self.host.load(newest, file)
        if leaves:
            grouping.leave()
        return (after,)

    def _write(
        self, progress: ParameterProgress, costly: Collection[int] = (), *, stops: bool = False
    ) -> SlotEnd | None:
        """End the interval with what this copy has; None where that failed, or came too late."""
        return self.ends.write(progress, self.grouping.pace.steps_per_s(), costly, stops=stops)
