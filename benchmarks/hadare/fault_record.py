"""A run of a training in copies with its faults, and the ends of slots that are seen meanwhile."""

from __future__ import annotations

import errno
import json
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path

import fault_copy
import torch
from fault_checks import Checks, newest_made

from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.files.tensors import TensorFile, TensorFileError

STEP_S = 0.02  # of the fastest copy


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
    # The slot end since which all synchronous steps may be lost: no copy was left that had them.
    lost: str = ""
    # Whether the copies may have different parameters until the next end.
    is_apart: bool = False

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
    is_frozen: set[int] = field(default_factory=set)  # copies that stand still
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
    def alive(self) -> set[int]:
        """Return the copies whose processes run."""

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
            self.note_loss(fault)

    def goes_on(self, fault: Fault) -> None:
        """Record that a fault lasted until now; there may be an end that was not read yet."""
        fault.ends = (fault.ends[0], self.newest + 1)

    def note_loss(self, fault: Fault) -> None:
        """Record whether no copy is left that has the synchronous steps since the newest end."""
        end = self.ends.get(self.newest)
        if not fault.victims or end is None or not end.together:
            return
        states = {copy: newest_made(self.job.notes, copy) for copy in self.alive() - self.is_frozen}
        if not any(
            made and made.end == end.id and made.pid == self.pid(copy)
            for copy, made in states.items()
        ):
            fault.lost = end.id

    def pid(self, copy: int) -> int:
        """Return the process that was started last for a copy, 0 where none was."""
        try:
            return int((self.job.notes / f"pid-{copy}").read_text().split()[0])
        except (FileNotFoundError, IndexError):
            return 0

    def hit_within(self, fault: Fault, what: str) -> None:
        """Have the next copy killed that does `what`: `ending` or `exchange`."""
        fault.came = "no copy did so"
        number = self.case.faults.index(fault)
        after_s = fault.delay_s if what == "ending" else fault.delay_s / 10
        draft = self.job.notes / "death"
        draft.write_text(json.dumps([number, after_s]))
        draft.replace(self.job.notes / f"die-{what}")

    def hit_step(self, fault: Fault, copy: int, spoil: fault_copy.Spoil) -> None:
        """Have a copy spoil its next step."""
        fault.victims, fault.is_apart = (copy,), spoil is fault_copy.Spoil.FLIP
        draft = self.job.notes / f"spoiling-{copy}"
        draft.write_text(f"{spoil} {fault.delay_s}")
        draft.replace(self.job.notes / f"spoil-{copy}")

    def died_within(self, copy: int) -> Fault:
        """Return the fault that killed a copy, with when it did."""
        died, marker = self.job.notes / f"died-{copy}", self.job.notes / f"ending-{copy}"
        where = "in the end of a slot" if marker.exists() else "outside of the end of a slot"
        marker.unlink(missing_ok=True)
        fault = self.case.faults[json.loads(died.read_text())[0]]
        died.unlink()
        fault.victims, fault.came = (copy,), f"copy {copy}, {where}"
        # It may have written one, and another copy the next, before its death was seen.
        fault.ends = (self.newest - 2, self.newest + 1)
        self.note_loss(fault)
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
                file = TensorFile(path)
                end = SlotEnd.of(file.facts)
                wrong = [name for name in file.names if not torch.isfinite(file.tensor(name)).all()]
            except (TensorFileError, OSError, RuntimeError, LookupError, TypeError) as error:
                if not path.exists():
                    continue  # removed meanwhile
                self.broken.append(f"{path.name} does not load: {error}")
                continue
            if wrong:
                self.broken.append(f"{path.name} has values that are not finite: {wrong[0]}")
            self.ends[slot] = end

    @property
    def newest(self) -> int:
        """Return the newest end of a slot that was seen."""
        return max(self.ends, default=0)

    @property
    def is_done(self) -> bool:
        """Whether the job is, by the newest end of a slot that was seen."""
        return bool(self.ends) and self.ends[self.newest].is_complete

    def outcome(self) -> Outcome:
        """Return what the run came to."""
        took_s = round(time.monotonic() - self.begun_s, 1)
        checks = Checks(self.case, self.job, self.ends)
        done = Outcome(self.case, took_s, self.newest, checks.trained(), checks.repeated())
        done.allowed = checks.allowed()
        done.broken = [*self.broken, *checks.broken()]
        if done.repeated > done.allowed:
            done.broken.append(f"{done.repeated} steps repeated, {done.allowed} may be")
        return done
