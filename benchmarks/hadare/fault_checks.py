"""What must hold after a run of a training in copies, by its ends of slots and its notes."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fault_copy
import torch
from fault_copy import BATCH_SIZE, Made, Share

from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.files.ranges import Ranges
from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.files.slots import Slots
from hadar_slurm.runtime.files.tensors import TensorFile, TensorFileError

if TYPE_CHECKING:
    from fault_record import Case

# Attempts at synchronous steps that a fault may cost while a copy has their parameters: the step
# that it interrupts, and those in which the others notice it.
_PER_FAULT = 4
# Weights of samples are sums in single precision.
_ROUNDING = 1e-3
_SEEN = f"{state.MODEL}seen"
_BATCHES = f"{state.MODEL}net.1.num_batches_tracked"

# A synchronous step: the slot end before it, its group, and how many steps are in between.
_At = tuple[str, int, int]


def read_notes(path: Path) -> list[Any]:
    """Return a copy's lines, without one that its death has cut off."""
    if not path.exists():
        return []
    whole, _, _ = path.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def newest_made(notes: Path, copy: int) -> Made | None:
    """Return the newest synchronous state that a copy has noted."""
    found = read_notes(notes / f"made-{copy}")
    return Made(*found[-1]) if found else None


@dataclass(frozen=True)
class Checks:
    """The record of a run: its ends of slots by number, and what its copies have noted."""

    case: Case
    job: fault_copy.Job
    ends: Mapping[int, SlotEnd]

    @property
    def done(self) -> Ranges:
        """Return the steps that are consolidated."""
        return self.ends[max(self.ends)].done if self.ends else Ranges()

    @cached_property
    def _own(self) -> list[int]:
        """The steps that copies trained by themselves, between averagings."""
        return [step for each in self._notes("steps").values() for step in each]

    @cached_property
    def _shares(self) -> dict[_At, dict[str, list[Share]]]:
        """The shares of synchronous steps, by copy: one for each attempt."""
        found: dict[_At, dict[str, list[Share]]] = defaultdict(lambda: defaultdict(list))
        for copy, notes in self._notes("shares").items():
            for share in (Share(*each) for each in notes):
                found[share.end, share.group, share.steps][copy].append(share)
        return found

    @cached_property
    def _made(self) -> dict[_At, set[int]]:
        """The checksums of states after synchronous steps."""
        found: dict[_At, set[int]] = defaultdict(set)
        for notes in self._notes("made").values():
            for made in (Made(*each) for each in notes):
                found[made.end, made.group, made.steps - 1].add(made.checksum)
        return found

    def _notes(self, name: str) -> dict[str, list[Any]]:
        paths = sorted(self.job.notes.glob(f"{name}-*"))
        return {path.name.partition("-")[2]: read_notes(path) for path in paths}

    def _attempts(self, end: str | None = None) -> int:
        """Return how often synchronous steps were begun, all or those since a slot end."""
        return sum(
            max(map(len, copies.values()))
            for at, copies in self._shares.items()
            if end in (None, at[0])
        )

    @cached_property
    def _distinct(self) -> set[int]:
        """The steps that were trained, by a copy or by all."""
        return {*self._own, *(share.step for at in self._made for share in self._last(at))}

    def trained(self) -> int:
        """Return how many steps were trained, repeated ones too."""
        return len(self._own) + self._attempts()

    def repeated(self) -> int:
        """Return how many steps were trained again, or begun and not applied."""
        return self.trained() - len(self._distinct)

    def allowed(self) -> int:
        """Return how many steps may have been repeated, by the faults that hit and by a delay."""
        faults = [fault for fault in self.case.faults if fault.has_hit]
        own = sum(self._dealt(copy, fault.ends) for fault in faults for copy in fault.victims)
        lost = {fault.lost for fault in faults if fault.lost}
        lost |= {before.id for before, after in self._pairs() if len(after.spoilt)}
        own += sum(_lost_ahead(before, after) for before, after in self._pairs())
        return own + _PER_FAULT * len(faults) * bool(self._shares) + sum(map(self._attempts, lost))

    def _dealt(self, copy: int, ends: tuple[int, int]) -> int:
        """Return the most steps that a copy was dealt for a slot by these ends, and ahead of it."""
        there = [self.ends[slot] for slot in range(ends[0], ends[1] + 1) if slot in self.ends]
        both = (len(end.dealt.get(copy, ())) + len(end.ahead.get(copy, ())) for end in there)
        return max(both, default=0)

    def _pairs(self) -> Iterator[tuple[SlotEnd, SlotEnd]]:
        """Yield the ends before and after each slot of which both were seen."""
        for slot, after in sorted(self.ends.items()):
            if slot - 1 in self.ends:
                yield self.ends[slot - 1], after

    def broken(self) -> Iterator[str]:
        """Yield what does not hold."""
        yield from self._wrong_steps()
        yield from self._wrong_shares()
        yield from self._wrong_states()
        yield from self._wrong_checkpoints()
        yield from self._wrong_weights()
        yield from self._wrong_batches()

    def _wrong_steps(self) -> Iterator[str]:
        """Yield where steps are not consolidated exactly once."""
        everything = Ranges.of([(0, self.case.total_steps)])
        if self.done != everything:
            yield f"{len(self.done)} of {len(everything)} steps are consolidated"
        if missing := len(set(self.done) - self._distinct):
            yield f"{missing} steps are said to be done and were trained by no copy"
        for slot in sorted(self.ends)[1:]:
            if slot - 1 not in self.ends:
                yield f"the end of slot {slot - 1} was not seen"
        for before, after in self._pairs():
            new = after.done - before.done
            if len(before.done - after.done):
                yield f"slot {after.slot} has lost steps"
            if before.together:
                if new != before.todo.first(len(new)):
                    yield f"slot {after.slot} has other steps than the next {len(new)}"
                if missing := sum(not self._was_made(before.id, step) for step in range(len(new))):
                    yield f"slot {after.slot} has {missing} steps that no copy has applied"
            elif sum(map(len, self._used(before, after))) != len(new):
                yield f"slot {after.slot} has {len(new)} new steps, not those that were contributed"

    def _was_made(self, end: str, steps: int) -> bool:
        return any(at[0] == end and at[2] == steps for at in self._made)

    def _last(self, at: _At) -> list[Share]:
        """Return the shares of the last attempt, which was applied."""
        return [shares[-1] for shares in self._shares[at].values()]

    def _used(self, before: SlotEnd, after: SlotEnd) -> list[Ranges]:
        """Return the contributions to an averaged slot whose steps are in its end."""
        new = after.done - before.done
        given = {
            copy: Ranges.of(pairs)
            for copy, parts in self._notes("parts").items()
            for slot, base, pairs in parts
            if (slot, base) == (after.slot, before.id)
        }
        return [part for part in given.values() if len(part) and not len(part - new)]

    def _wrong_shares(self) -> Iterator[str]:
        """Yield applied synchronous steps whose samples are not exactly the batch."""
        for at in self._made:
            last = self._last(at)
            found = sorted(row for each in last for row in range(each.first, each.stop))
            steps = {each.step for each in last}
            batch = [step * BATCH_SIZE + row for step in steps for row in range(BATCH_SIZE)]
            if len(steps) != 1 or found != batch:
                yield f"steps {sorted(steps)} of group {at[1]} have samples {found}"

    def _wrong_states(self) -> Iterator[str]:
        """Yield where copies that should have the same parameters have not."""
        apart = {
            self.ends[slot].id
            for fault in self.case.faults
            for slot in range(fault.ends[0], fault.ends[1] + 1)
            if fault.is_apart and slot in self.ends
        }
        differing = [
            at for at, found in self._made.items() if len(found) > 1 and at[0] not in apart
        ]
        if differing:
            yield f"copies differ after {len(differing)} steps, first {min(differing)}"
        final = {each for notes in self._notes("final").values() for each in notes}
        if len(final) > 1:
            yield f"copies have ended with {len(final)} different states"

    def _wrong_checkpoints(self) -> Iterator[str]:
        """Yield which checkpoints that are left do not load into a new model."""
        for path in sorted(self.job.directory.glob("slots/slot-*")):
            if path.suffix == ".broken":
                yield f"{path.name} was put aside"
            elif path.name.count(".") == 1:
                try:
                    file = TensorFile(path)
                    tensors = {name: file.tensor(name) for name in file.names}
                    state.load(*fault_copy.make(self.job.total_steps), tensors, file.facts["facts"])
                except (TensorFileError, OSError, RuntimeError, KeyError) as error:
                    yield f"{path.name} does not load: {error}"
        if Slots(self.job.directory).newest() is None:
            yield "there is no checkpoint"

    def _wrong_weights(self) -> Iterator[str]:
        """Yield whether samples have another weight in the parameters than they should.

        That of a sample is 1 in a synchronous slot, else the part of the slot's steps that its
        copy contributed.
        """
        weights = torch.zeros(self.case.total_steps)
        for before, after in self._pairs():
            if before.together:
                weights[list(after.done - before.done)] = 1.0
            else:
                used = self._used(before, after)
                for part in used:
                    weights[list(part)] = len(part) / sum(map(len, used))
        newest = Slots(self.job.directory).newest()
        if newest is None:
            return
        seen = newest[1].tensor(_SEEN).reshape(-1, BATCH_SIZE)
        wrong = (seen - weights[:, None]).abs() > _ROUNDING
        if count := int(wrong.sum()):
            step, row = wrong.nonzero()[0].tolist()
            yield (
                f"{count} samples have wrong weights: number {row} of step {step} has "
                f"{seen[step, row]:.4f}, not {weights[step]:.4f}"
            )

    def _wrong_batches(self) -> Iterator[str]:
        """Yield whether batch statistics have counted other than the steps that were trained.

        The count after an averaged slot is that of the copy with most steps. With a delay each copy
        goes on with its own.
        """
        if self.job.settings.delay:
            return
        newest = Slots(self.job.directory).newest()
        if newest is None or newest[0].slot != max(self.ends, default=-1):
            return
        counts = [
            len(after.done - before.done)
            if before.together
            else max(map(len, self._used(before, after)), default=0)
            for before, after in self._pairs()
        ]
        counted = int(newest[1].tensor(_BATCHES))
        if counted != sum(counts):
            yield f"batch statistics are of {counted} batches, not {sum(counts)}"


def _lost_ahead(before: SlotEnd, after: SlotEnd) -> int:
    """Return how many steps of what copies trained ahead may not have counted after an end."""
    lost = (
        steps
        for copy, steps in before.ahead.items()
        if len(steps - after.dealt.get(copy, Ranges()))
    )
    return sum(map(len, lost))
