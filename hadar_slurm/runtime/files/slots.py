"""The files in which the copies of a job agree, slot by slot (docs/adr/0016).

records.py has what is in them.

`slots/slot-S.safetensors` ends slot S: the parameters then, which steps are done, and for slot
S + 1 which steps each copy is to train. `slots/slot-S.ID.copy-C.safetensors` is what copy C trained
in slot S from the parameters in the end with that id. `slots/slot-S.ID.short` says that slot S ends
early, `stop` that the training ends with the running slot. `slots/.slot-S.old` is an end that is
removed before the next is written, which then takes its memory.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from hadar_slurm.runtime.files.records import (
    OLDER_VERSIONS,
    VERSION,
    Contribution,
    OtherVersionError,
    SlotEnd,
)
from hadar_slurm.runtime.files.tensors import StreamedTensor, TensorFile, TensorFileError, size_of
from hadar_slurm.runtime.files.threads import on_one_thread
from hadar_slurm.runtime.files.writing import Room, own_suffix, write_tensors

log = logging.getLogger(__name__)

# Texts in the file `stop` that are longer are cut off.
_LONGEST_REASON = 1000
# Ends of slots that are always kept: a failing disk may have cut off the newest.
_KEPT = 2
# Further ends that are kept: one of this number of slots, and this number of ends at most.
KEEP_EVERY, MOST_KEPT = 10, 3
# From this size on, in bytes, files are written over older ones, or in their memory.
LARGE = 1 << 24
_OF_SLOT = re.compile(r"\.?slot-(\d+)\.")
_END = re.compile(r"slot-(\d+)\.safetensors")
_SPARE = re.compile(r"\.slot-\d+\.spare\.")
_OLD = re.compile(r"\.slot-\d+\.old")
_END_DRAFT = re.compile(r"\.slot-\d+\.safetensors\.")


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

    def end(
        self, end: SlotEnd, tensors: Mapping[str, torch.Tensor | StreamedTensor], facts: Any
    ) -> bool:
        """End a slot, and return whether no other copy had; older files are removed.

        The end gets an id of its own.
        """
        return self.end_as(replace(end, id=secrets.token_hex(4)), tensors, facts)

    @on_one_thread
    def end_as(
        self, end: SlotEnd, tensors: Mapping[str, torch.Tensor | StreamedTensor], facts: Any
    ) -> bool:
        """End a slot as `end` does, which has an id."""
        noted = {**end.facts, "facts": facts}
        self._free()
        is_first = write_tensors(self.end_path(end.slot), tensors, noted, is_first=True)
        if is_first:
            self._clear(end)
        return is_first

    @on_one_thread
    def contribute(
        self, part: Contribution, tensors: Mapping[str, torch.Tensor], facts: Any
    ) -> None:
        """Write what a copy has trained in a slot; large ones over that of the slot before.

        That is removed by then, and of no use to a copy that may still read it.
        """
        noted = {**part.facts, "facts": facts}
        path, room = self.part_path(part.slot, part.base, part.copy), None
        if sum(map(size_of, tensors.values())) >= LARGE:
            old, new = (self._spare_path(slot, part.copy) for slot in (part.slot, part.slot + 1))
            room = Room(old, new)
        write_tensors(path, tensors, noted, room=room)

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
            part = Contribution.of(file.facts)
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

    def _spare_path(self, slot: int, copy: int) -> Path:
        """Return where a copy keeps what it is to write its contribution to a slot over."""
        name = f".slot-{slot:08}.spare.copy-{copy:05}.{own_suffix()}"
        return self.directory / "slots" / name

    def _clear(self, end: SlotEnd) -> None:
        """Remove what belongs to slots that have ended: all but the ends to keep, drafts too."""
        slot, kept = end.slot, self._kept(end.slot) | set(end.states)
        for path in (self.directory / "slots").iterdir():
            match = _OF_SLOT.match(path.name)
            is_over = end.is_complete and _SPARE.match(path.name)
            if match is None or ((number := int(match[1])) > slot and not is_over):
                continue
            is_kept = number in kept and _END.fullmatch(path.name)
            # Another copy may be about to find that this slot has ended: the draft is its own.
            is_drafted = number == slot and _END_DRAFT.match(path.name)
            if is_kept or is_drafted:
                continue
            with suppress(OSError):
                if not end.is_complete and _END.fullmatch(path.name) and _is_large(path):
                    path.rename(path.with_name(f".slot-{number:08}.old"))
                else:
                    path.unlink()

    def _free(self) -> None:
        """Remove old ends, so that the file to be written takes their memory.

        Left free for seconds, that may go to other processes, or to the host of a virtual machine.
        """
        for name in filter(_OLD.fullmatch, self.listed()):
            with suppress(OSError):
                (self.directory / "slots" / name).unlink()

    def _kept(self, slot: int) -> set[int]:
        """Return the slots whose ends are kept, at the end of `slot`."""
        newest = set(range(slot + 1 - _KEPT, slot + 1))
        if self.keep_every < 1:
            return newest
        last = (slot - _KEPT) // self.keep_every * self.keep_every
        further = (last - turn * self.keep_every for turn in range(self.most_kept))
        return newest | {number for number in further if number > 0}


def _is_large(path: Path) -> bool:
    return path.stat().st_size >= LARGE


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
