"""The files in which the copies of a job agree, slot by slot (docs/adr/0016).

`slots/slot-S.safetensors` ends slot S: the parameters then, which steps are done, and for slot
S + 1 which steps each copy is to train. `slots/slot-S.ID.copy-C.safetensors` is what copy C trained
in slot S from the parameters in the end with that id. `slots/slot-S.ID.short` says that slot S ends
early, `stop` that the training ends with the running slot.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from hadar_slurm.runtime.averaging.identity import Identity
from hadar_slurm.runtime.averaging.ranges import Ranges
from hadar_slurm.runtime.averaging.tensors import (
    Stream,
    TensorFile,
    TensorFileError,
    write_tensors,
)
from hadar_slurm.runtime.averaging.threads import on_one_thread

log = logging.getLogger(__name__)

# From version 3 on an end may lack the optimiser's state, and contributions be differences.
VERSION, OLDER_VERSIONS = 3, (1, 2)
# Texts in the file `stop` that are longer are cut off.
_LONGEST_REASON = 1000
# Ends of slots that are always kept: a failing disk may have cut off the newest.
_KEPT = 2
# Further ends that are kept: one of this number of slots, and this number of ends at most.
KEEP_EVERY, MOST_KEPT = 10, 3
_OF_SLOT = re.compile(r"\.?slot-(\d+)\.")
_END = re.compile(r"slot-(\d+)\.safetensors")
_END_DRAFT = re.compile(r"\.slot-\d+\.safetensors\.")


@dataclass(frozen=True)
class SlotEnd:
    """What the copies know at the end of averaging interval `slot`; times in seconds."""

    slot: int
    total_steps: int
    done: Ranges = field(default_factory=Ranges)
    # The steps of the next interval by copy, the fastest first: they should finish in this order.
    dealt: Mapping[int, Ranges] = field(default_factory=dict)
    # The steps that each may train, of the interval after that, while it waits for its end.
    ahead: Mapping[int, Ranges] = field(default_factory=dict)
    length_s: float = 0.0  # how long the next interval is to last
    made_s: float = 0.0  # how long averaging the parameters took; 0 at the start of the job
    averages: int = 0  # the number of intervals so far to which two copies or more contributed
    # Distinguishes ends of one interval: another is made where this one could not be read.
    id: str = ""
    identity: Identity | None = None  # None in the end of an older release
    # Why nothing of the newest intervals could be used: a line for each without finite values.
    spoilt: tuple[str, ...] = ()
    together: bool = False  # the next interval is trained synchronously; nothing is dealt then
    # Copies between which the exchange of gradients was too slow to train synchronously.
    costly: tuple[int, ...] = ()
    stopped: str = ""  # why the training is over although steps are left
    rate_factor: float = 1.0  # of the learning rate, by the number of copies, at this end
    # Whether contributions to the next interval have the optimiser's state.
    with_state: bool = True
    # The newest slots, two at most, whose ends have it; none: this one, as in an older release.
    states: tuple[int, ...] = ()

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> SlotEnd:
        """Return the end that facts describe; raises KeyError, TypeError and ValueError."""
        return cls(
            slot=int(facts["slot"]),
            total_steps=int(facts["total_steps"]),
            done=Ranges.of(facts["done"]),
            dealt={int(copy): Ranges.of(pairs) for copy, pairs in facts["dealt"]},
            ahead={int(copy): Ranges.of(pairs) for copy, pairs in facts.get("ahead", ())},
            length_s=float(facts["length_s"]),
            made_s=float(facts.get("made_s", 0.0)),
            averages=int(facts.get("averages", 0)),
            id=str(facts["id"]),
            identity=Identity.of(facts.get("fingerprint")),
            spoilt=tuple(str(why) for why in facts.get("spoilt", ())),
            together=facts.get("together") is True,
            costly=tuple(int(copy) for copy in facts.get("costly", ())),
            stopped=str(facts.get("stopped", "")),
            rate_factor=float(facts.get("rate_factor", 1.0)),
            with_state=facts.get("with_state") is not False,
            states=tuple(int(slot) for slot in facts.get("states", ())),
        )

    @property
    def facts(self) -> dict[str, Any]:
        """Return the end as values for JSON."""
        return {
            **{name: value for name, value in vars(self).items() if name != "identity"},
            "version": VERSION,
            "done": self.done.pairs,
            "dealt": [[copy, steps.pairs] for copy, steps in self.dealt.items()],
            "ahead": [[copy, steps.pairs] for copy, steps in self.ahead.items()],
            "fingerprint": self.identity.facts if self.identity else None,
        }

    @property
    def state_slots(self) -> tuple[int, ...]:
        """Return the newest slots whose ends have the optimiser's state, at this end."""
        return self.states or (self.slot,)

    @property
    def has_state(self) -> bool:
        """Whether the file of this end has the optimiser's state."""
        return self.state_slots[-1] == self.slot

    @property
    def is_exact(self) -> bool:
        """Whether contributions to the next interval are exact: of one copy, or to the last."""
        dealt = [steps for steps in self.dealt.values() if len(steps)]
        return len(dealt) < 2 or sum(map(len, dealt)) >= len(self.todo)

    @property
    def is_complete(self) -> bool:
        """Whether no step is left to train."""
        return bool(self.stopped) or len(self.done) >= self.total_steps

    @property
    def todo(self) -> Ranges:
        """Return the steps that are left."""
        return Ranges.of([(0, self.total_steps)]) - self.done


@dataclass(frozen=True)
class Contribution:
    """What a copy trained in a slot."""

    copy: int
    slot: int
    base: str  # the id of the end that it started from
    done: Ranges
    seconds: float  # how long training took
    fault: str = ""  # why nothing of it is to be used; there are no tensors then
    is_checked: bool = False  # the copy has found its tensors finite
    with_state: bool = True  # it has the optimiser's state


@dataclass(frozen=True)
class Slots:
    """The files of one job, in `directory`.

    Beside the newest ends, those of slots whose number is a multiple of `keep_every` are kept (0:
    none), the newest `most_kept` of them.
    """

    directory: Path
    keep_every: int = KEEP_EVERY
    most_kept: int = MOST_KEPT

    def newest(self) -> tuple[SlotEnd, TensorFile] | None:
        """Return the newest end of a slot that is whole, or None before there is any.

        Raises OSError when one cannot be read, OtherVersionError when another version wrote it.
        """
        for slot in reversed(self.kept()):
            try:
                return self.read(slot)
            except FileNotFoundError:
                continue
            except TensorFileError as error:
                self.put_aside(slot, error)
        return None

    def put_aside(self, slot: int, why: object) -> None:
        """Rename the end of a slot that is broken: it must not prevent another end of the slot."""
        log.warning("left out: %s", why)
        path = self.end_path(slot)
        with suppress(OSError):
            path.replace(path.with_suffix(".broken"))

    def kept(self) -> list[int]:
        """Return the slots whose ends are there, in order: those listed, and those after them."""
        found = sorted(int(match[1]) for name in self.listed() if (match := _END.fullmatch(name)))
        after = found[-1] + 1 if found else 0
        while _is_there(self.end_path(after)):
            found.append(after)
            after += 1
        return found

    def broken(self) -> list[Path]:
        """Return the ends that were put aside because they could not be read."""
        return sorted(self.directory.joinpath("slots").glob("slot-*.broken"))

    def read(self, slot: int) -> tuple[SlotEnd, TensorFile]:
        """Return the end of a slot; raises TensorFileError, OSError and OtherVersionError."""
        file = TensorFile(self.end_path(slot))
        return _as_end(file), file

    def has_ended(self, slot: int) -> bool:
        """Return whether a slot has ended; its end may be removed by now."""
        return self.newest_slot() >= slot

    def newest_slot(self) -> int:
        """Return the number of the newest slot that has ended, -1 before there is any."""
        return max(self.kept(), default=-1)

    def listed(self) -> list[str]:
        """Return the names of all files, as the file system lists them.

        NFS may list files up to a minute after they were written, and opens them by name before.
        """
        with suppress(FileNotFoundError):
            return os.listdir(self.directory / "slots")
        return []

    def end(self, end: SlotEnd, tensors: Mapping[str, torch.Tensor | Stream], facts: Any) -> bool:
        """End a slot, and return whether no other copy had; older files are removed.

        The end gets an id of its own.
        """
        return self.end_as(replace(end, id=secrets.token_hex(4)), tensors, facts)

    @on_one_thread
    def end_as(
        self, end: SlotEnd, tensors: Mapping[str, torch.Tensor | Stream], facts: Any
    ) -> bool:
        """End a slot as `end` does, which has an id."""
        noted = {**end.facts, "facts": facts}
        is_first = write_tensors(self.end_path(end.slot), tensors, noted, is_first=True)
        if is_first:
            self._clear(end.slot, end.states)
        return is_first

    @on_one_thread
    def contribute(
        self, part: Contribution, tensors: Mapping[str, torch.Tensor], facts: Any
    ) -> None:
        """Write what a copy has trained in a slot."""
        noted = {**vars(part), "version": VERSION, "done": part.done.pairs, "facts": facts}
        write_tensors(self.part_path(part.slot, part.base, part.copy), tensors, noted)

    def contributors(self, end: SlotEnd) -> set[int]:
        """Return the copies that have contributed to the slot after `end`."""
        slot = end.slot + 1
        head, tail = f"slot-{slot:08}.{end.id}.copy-", ".safetensors"
        names = [name for name in self.listed() if name.startswith(head) and name.endswith(tail)]
        found = {int(name.removeprefix(head).removesuffix(tail)) for name in names}
        dealt = [copy for copy in end.dealt if copy not in found]
        return found | {copy for copy in dealt if _is_there(self.part_path(slot, end.id, copy))}

    def contribution(self, end: SlotEnd, copy: int) -> tuple[Contribution, TensorFile]:
        """Return a copy's part of the slot after `end`; raises TensorFileError and OSError."""
        slot = end.slot + 1
        path = self.part_path(slot, end.id, copy)
        file = TensorFile(path)
        try:
            facts = file.facts
            part = Contribution(
                copy=int(facts["copy"]),
                slot=int(facts["slot"]),
                base=str(facts["base"]),
                done=Ranges.of(facts["done"]),
                seconds=float(facts["seconds"]),
                fault=str(facts.get("fault", "")),
                is_checked=facts.get("is_checked") is True,
                with_state=facts.get("with_state") is not False,
            )
        except (KeyError, TypeError, ValueError) as error:
            raise TensorFileError(path, f"no contribution: {error!r}") from error
        if (part.slot, part.base, part.copy) != (slot, end.id, copy):
            raise TensorFileError(path, f"is of copy {part.copy} in slot {part.slot}")
        return part, file

    def steps_of(self, end: SlotEnd, copy: int) -> int:
        """Return how many steps a copy has contributed since `end`."""
        with suppress(TensorFileError, OSError):
            return len(self.contribution(end, copy)[0].done)
        return 0

    def cut_short(self, end: SlotEnd) -> None:
        """Ask all copies to end the slot after `end` early; raises OSError."""
        self._short_path(end).touch()

    def is_cut_short(self, end: SlotEnd) -> bool:
        """Return whether the slot after `end` is to end early."""
        return _is_there(self._short_path(end)) or bool(self.stop_reason())

    def ask_to_stop(self, reason: str) -> None:
        """Ask all copies to end the training with the running slot; raises OSError.

        The first reason is kept.
        """
        path = self.directory / "stop"
        draft = path.with_name(f".stop.{secrets.token_hex(4)}")
        try:
            draft.write_text(reason[:_LONGEST_REASON], encoding="utf-8")
            with suppress(FileExistsError):
                os.link(draft, path)
        finally:
            draft.unlink(missing_ok=True)

    def stop_reason(self) -> str:
        """Return why the training is to end with the running slot, "" if it is not."""
        with suppress(OSError, ValueError):
            return (self.directory / "stop").read_text(encoding="utf-8") or "no reason was given"
        return ""

    def say_done(self) -> None:
        """Write a file that shows the batch script of a copy that it is not needed."""
        with suppress(OSError):
            (self.directory / "done").touch()

    def is_done(self) -> bool:
        """Return whether that file is there."""
        return (self.directory / "done").exists()

    def end_path(self, slot: int) -> Path:
        """Return where a slot's end lies."""
        return self.directory / "slots" / f"slot-{slot:08}.safetensors"

    def part_path(self, slot: int, base: str, copy: int) -> Path:
        """Return where a copy's contribution lies."""
        return self.directory / "slots" / f"slot-{slot:08}.{base}.copy-{copy:05}.safetensors"

    def _short_path(self, end: SlotEnd) -> Path:
        return self.directory / "slots" / f"slot-{end.slot + 1:08}.{end.id}.short"

    def _clear(self, slot: int, states: tuple[int, ...]) -> None:
        """Remove what belongs to slots that have ended: all but the ends to keep, drafts too."""
        kept = self._kept(slot) | set(states)
        for path in (self.directory / "slots").iterdir():
            match = _OF_SLOT.match(path.name)
            if match is None or (number := int(match[1])) > slot:
                continue
            is_kept = number in kept and _END.fullmatch(path.name)
            # Another copy may be about to find that this slot has ended: the draft is its own.
            is_drafted = number == slot and _END_DRAFT.match(path.name)
            if not is_kept and not is_drafted:
                with suppress(OSError):
                    path.unlink()

    def _kept(self, slot: int) -> set[int]:
        """Return the slots whose ends are kept, at the end of `slot`."""
        newest = set(range(slot + 1 - _KEPT, slot + 1))
        if self.keep_every < 1:
            return newest
        last = (slot - _KEPT) // self.keep_every * self.keep_every
        further = (last - turn * self.keep_every for turn in range(self.most_kept))
        return newest | {number for number in further if number > 0}


class OtherVersionError(ValueError):
    """A file is whole, and was written by a version that this one cannot read."""


def _is_there(path: Path) -> bool:
    """Return whether a file can be opened: its name may be listed later than that."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _as_end(file: TensorFile) -> SlotEnd:
    facts = file.facts
    try:
        if facts["version"] not in (*OLDER_VERSIONS, VERSION):
            raise OtherVersionError(
                f"{file.path}: version {facts['version']}, this reads {VERSION} and older: go on "
                "with the release that wrote it"
            )
        return SlotEnd.of(facts)
    except OtherVersionError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise TensorFileError(file.path, f"no end of a slot: {error!r}") from error
