"""Checks a run of a training in copies by its faults, ends of slots, and notes."""

from __future__ import annotations

import errno
import json
import random
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

import fault_copy

from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.averaging.ranges import Ranges
from hadar_slurm.runtime.averaging.slots import SlotEnd, Slots
from hadar_slurm.runtime.averaging.tensors import TensorFile, TensorFileError

STEP_S = 0.02  # of the fastest copy
_MISSED = "nobody made them one"


@dataclass
class Fault:
    """A fault of a run, all times in seconds."""

    kind: StrEnum
    # When it hits.
    at_s: float
    copy: int
    # How long the disk is full or frozen, or until a killed process is started again.
    lasts_s: float
    # How far into averaging the copy is killed.
    delay_s: float
    # What it hit.
    came: str = "the job was done"
    # Copies that may have lost a slot's work by it.
    victims: tuple[int, ...] = ()
    # The first and the last end by which they had that slot's steps.
    ends: tuple[int, int] = (0, 0)
    # Whether it hit something and may cost no copy any work.
    is_free: bool = False

    @property
    def has_hit(self) -> bool:
        """Whether it hit anything."""
        return self.is_free or bool(self.victims)


@dataclass(frozen=True)
class Case:
    """What was drawn for a run."""

    number: int
    speeds: tuple[float, ...]
    total_steps: int
    faults: tuple[Fault, ...]

    @property
    def step_s(self) -> tuple[float, ...]:
        """Return the seconds that a step of each copy takes at the least."""
        return tuple(STEP_S / speed for speed in self.speeds)


@dataclass(frozen=True)
class Scale:
    """How much is drawn for a run, which takes about `slots` without faults."""

    slots: int
    slot_s: float
    most_copies: int
    most_faults: int
    lasts_s: float


def draw(seed: int, number: int, kinds: Sequence[StrEnum], scale: Scale) -> Case:
    """Return a run's copies and faults, the same for the same seed, number, kinds and scale."""
    rng = random.Random(f"{seed}/{number}")
    others = rng.randint(1, scale.most_copies - 1)
    speeds = (1.0, *(rng.choice((1.0, 0.5, 0.25)) for _ in range(others)))
    faults = [
        Fault(
            kind=rng.choice(list(kinds)),
            at_s=round(rng.uniform(0.2, scale.slots * scale.slot_s * 1.2), 2),
            copy=rng.randrange(len(speeds)),
            lasts_s=round(rng.uniform(0.1, scale.lasts_s), 2),
            delay_s=round(rng.uniform(0.0, 0.02), 4),
        )
        for _ in range(rng.randint(1, scale.most_faults))
    ]
    total_steps = round(scale.slots * scale.slot_s * sum(speeds) / STEP_S)
    return Case(number, speeds, total_steps, tuple(sorted(faults, key=lambda each: each.at_s)))


@dataclass
class Outcome:
    """What a run came to; `broken` are invariants that did not hold."""

    case: Case
    took_s: float = 0.0
    slots: int = 0
    trained: int = 0
    repeated: int = 0
    allowed: int = 0
    broken: list[str] = field(default_factory=list)

    def line(self) -> str:
        """Return the outcome in a line."""
        told = "; ".join(f"{each.at_s} s {each.kind} ({each.came})" for each in self.case.faults)
        return (
            f"run {self.case.number}: {len(self.case.speeds)} copies, {self.case.total_steps} "
            f"steps, {self.slots} slots, {self.took_s:.1f} s, {self.repeated} steps repeated of "
            f"{self.allowed} that may be: {told}: {'; '.join(self.broken) or 'all held'}"
        )


@dataclass
class Run(ABC):
    """A job in its directory, what is still to happen to it, and the ends of slots seen so far."""

    case: Case
    job: fault_copy.Job
    begun_s: float = field(default_factory=time.monotonic)
    agenda: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    ends: dict[int, SlotEnd] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    look_every_s: float = 0.01
    limit_s: float = 240.0  # for a run, on a machine that does much else

    @abstractmethod
    def begin(self) -> None:
        """Have the copies started."""

    @abstractmethod
    def hit(self, fault: Fault) -> None:
        """Inject a fault."""

    @abstractmethod
    def watch(self) -> None:
        """Find the copies that have died."""

    @abstractmethod
    def is_over(self) -> bool:
        """Return whether no process of the job runs."""

    def go(self) -> None:
        """Start all copies, let the faults happen, and wait for the end."""
        self.begin()
        for fault in self.case.faults:
            self.later(fault.at_s, partial(self._hit, fault))
        deadline_s = self.begun_s + self.limit_s
        while not self.is_over():
            if time.monotonic() > deadline_s:
                self.broken.append(f"not done after {self.limit_s:g} s")
                return
            time.sleep(self.look_every_s)
            self.look()
            self.watch()
            now_s = time.monotonic() - self.begun_s
            for entry in [entry for entry in self.agenda if entry[0] <= now_s]:
                self.agenda.remove(entry)
                entry[1]()
        self.look()

    def later(self, at_s: float, act: Callable[[], None]) -> None:
        """Call `act` when the run is `at_s` old."""
        self.agenda.append((at_s, act))

    def soon(self, after_s: float, act: Callable[[], None]) -> None:
        """Call `act` in `after_s`."""
        self.later(time.monotonic() - self.begun_s + after_s, act)

    def _hit(self, fault: Fault) -> None:
        if not self.is_done:
            fault.ends = (self.newest, self.newest)
            self.hit(fault)
            self.goes_on(fault)

    def goes_on(self, fault: Fault) -> None:
        """Record that a fault lasted until now; there may be an end that was not read yet."""
        fault.ends = (fault.ends[0], self.newest + 1)

    def hit_ending(self, fault: Fault) -> None:
        """Have the next copy that averages killed meanwhile."""
        fault.came = _MISSED
        (self.job.notes / "die").write_text(str(fault.delay_s))

    def died_ending(self, copy: int) -> Fault:
        """Return the fault that killed a copy, with when it did."""
        marker = self.job.notes / f"ending-{copy}"
        where = "in the middle" if marker.exists() else "right after"
        marker.unlink(missing_ok=True)
        fault = next(each for each in self.case.faults if each.came == _MISSED)
        fault.victims, fault.came = (copy,), f"copy {copy}, {where}"
        # It may have written one, and another copy the next, before its death was seen.
        fault.ends = (self.newest - 2, self.newest + 1)
        return fault

    def hit_full(self, fault: Fault, disk: Path, victims: Sequence[int]) -> None:
        """Fill a disk, for some time."""
        filler = disk / "filler"
        fault.victims, fault.came = tuple(victims), f"{fault.lasts_s} s"
        with filler.open("wb", buffering=0) as file:
            for size in (65536, 512, 1):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

        def make_room() -> None:
            filler.unlink(missing_ok=True)
            self.goes_on(fault)

        self.soon(fault.lasts_s, make_room)

    def look(self) -> None:
        """Read every end of a slot that is new; each has to be whole."""
        for path in sorted(self.job.directory.glob("slots/slot-????????.safetensors")):
            slot = int(path.name[5:13])
            if slot in self.ends:
                continue
            try:
                facts = TensorFile(path).facts
            except FileNotFoundError:
                continue
            except (TensorFileError, OSError) as error:
                self.broken.append(f"{path.name} does not load: {error}")
                continue
            self.ends[slot] = SlotEnd(
                slot=slot,
                total_steps=int(facts["total_steps"]),
                done=Ranges.of(facts["done"]),
                dealt={int(copy): Ranges.of(pairs) for copy, pairs in facts["dealt"]},
                id=str(facts["id"]),
            )

    @property
    def newest(self) -> int:
        """Return the newest end of a slot that was seen."""
        return max(self.ends, default=0)

    @property
    def is_done(self) -> bool:
        """Whether the job is, by the newest end of a slot that was seen."""
        return bool(self.ends) and self.ends[self.newest].is_complete

    # What must hold.

    def outcome(self) -> Outcome:
        """Return what the run came to."""
        took_s, notes = round(time.monotonic() - self.begun_s, 1), self.job.notes.glob("steps-*")
        steps = [int(line) for path in notes for line in path.read_text().splitlines()]
        done = Outcome(self.case, took_s, self.newest, len(steps), len(steps) - len(set(steps)))
        done.allowed = sum(
            self._dealt(copy, fault.ends) for fault in self.case.faults for copy in fault.victims
        )
        done.broken = [*self.broken, *self._wrong_steps(set(steps)), *self._wrong_checkpoints()]
        if done.repeated > done.allowed:
            done.broken.append(f"{done.repeated} steps repeated, {done.allowed} may be")
        return done

    def _dealt(self, copy: int, ends: tuple[int, int]) -> int:
        """Return the most steps that a copy was dealt for a slot by these ends."""
        there = [self.ends[slot] for slot in range(ends[0], ends[1] + 1) if slot in self.ends]
        return max((len(end.dealt.get(copy, ())) for end in there), default=0)

    def _wrong_steps(self, trained: set[int]) -> Iterator[str]:
        """Yield where steps are not consolidated exactly once."""
        everything = Ranges.of([(0, self.case.total_steps)])
        newest = self.ends[max(self.ends)].done if self.ends else Ranges()
        if newest != everything:
            yield f"{len(newest)} of {len(everything)} steps are consolidated"
        if missing := len(set(newest) - trained):
            yield f"{missing} steps are said to be done and were trained by nobody"
        parts: defaultdict[tuple[int, str], dict[str, Ranges]] = defaultdict(dict)
        for path in sorted(self.job.notes.glob("parts-*")):
            for slot, base, pairs in map(json.loads, path.read_text().splitlines()):
                parts[slot, base][path.name] = Ranges.of(pairs)
        for slot in sorted(self.ends)[1:]:
            after, before = self.ends[slot], self.ends.get(slot - 1)
            if before is None:
                yield f"the end of slot {slot - 1} was not seen"
                continue
            new = after.done - before.done
            if len(before.done - after.done):
                yield f"slot {slot} has lost steps"
            given = parts[slot, before.id].values()
            if sum(len(part) for part in given if not len(part - new)) != len(new):
                yield f"slot {slot} has {len(new)} new steps, not those that were contributed"

    def _wrong_checkpoints(self) -> Iterator[str]:
        """Yield which checkpoints that are left do not load into a new model."""
        for path in sorted(self.job.directory.glob("slots/slot-*")):
            if path.suffix == ".broken":
                yield f"{path.name} was put aside"
            elif path.name.count(".") == 1:
                try:
                    file = TensorFile(path)
                    tensors = {name: file.tensor(name) for name in file.names}
                    state.load(*fault_copy.make(), tensors, file.facts["facts"])
                except (TensorFileError, OSError, RuntimeError, KeyError) as error:
                    yield f"{path.name} does not load: {error}"
        if Slots(self.job.directory).newest() is None:
            yield "there is no checkpoint"
