"""Large files are written over those of earlier intervals, or in their memory."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from hadar_slurm.runtime.files import slots as slots_module  # noqa: E402
from hadar_slurm.runtime.files.ranges import Ranges  # noqa: E402
from hadar_slurm.runtime.files.records import Contribution, SlotEnd  # noqa: E402
from hadar_slurm.runtime.files.slots import Slots  # noqa: E402

FACTS = {"state": {}, "groups": [], "parameters": ["model/a"], "extra": []}


@pytest.fixture
def slots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slots:
    """Return a job's slots in which every contribution is large."""
    monkeypatch.setattr(slots_module, "LARGE", 1)
    return Slots(tmp_path)


def ended(slots: Slots, slot: int, **known: Any) -> SlotEnd:
    """End a slot."""
    end = SlotEnd(slot, 99, dealt={0: Ranges.of([(slot, slot + 1)])}, id="e")
    assert slots.end_as(replace(end, **known), {"model/a": torch.zeros(4)}, FACTS)
    return end


def contributed(slots: Slots, end: SlotEnd, values: list[float]) -> Path:
    """Contribute to the slot after `end`, and return the file."""
    part = Contribution(0, end.slot + 1, end.id, end.dealt[0], 1.0)
    slots.contribute(part, {"model/a": torch.tensor(values)}, FACTS)
    return slots.part_path(part.slot, end.id, 0)


def read(slots: Slots, end: SlotEnd) -> list[float]:
    """Return what was contributed after `end`."""
    found: list[float] = slots.contribution(end, 0)[1].tensor("model/a").tolist()
    return found


def test_a_contribution_takes_the_room_of_the_last(slots: Slots) -> None:
    """Also one of another size, and over many slots."""
    end = ended(slots, 0)
    with contributed(slots, end, [0.0]).open("rb") as first:  # its number is not given again
        for slot, values in enumerate(([1.0, 2.0, 3.0], [4.0], [5.0] * 500, [6.0, 7.0]), start=1):
            end = ended(slots, slot)
            path = contributed(slots, end, values)
            assert os.path.samestat(path.stat(), os.fstat(first.fileno()))
            assert read(slots, end) == values


def test_a_contribution_that_has_another_name_is_not_written_over(slots: Slots) -> None:
    """The copy that averaged has not removed it yet, or a user has linked it elsewhere."""
    first = ended(slots, 0)
    path = contributed(slots, first, [1.0, 2.0])
    elsewhere = slots.directory / "mine"
    os.link(path, elsewhere)
    second = ended(slots, 1)
    kept = elsewhere.read_bytes()
    assert contributed(slots, second, [3.0, 4.0]).stat().st_ino != elsewhere.stat().st_ino
    assert (elsewhere.read_bytes(), read(slots, second)) == (kept, [3.0, 4.0])


def test_what_was_kept_of_a_slot_is_removed_with_it(slots: Slots) -> None:
    """A copy that was killed does not write over it any more."""
    contributed(slots, ended(slots, 0), [1.0])
    assert [name for name in slots.listed() if ".spare." in name]
    ended(slots, 1)
    ended(slots, 2)
    assert not [name for name in slots.listed() if ".spare." in name]


@pytest.mark.parametrize("how", [{"done": Ranges.of([(0, 99)])}, {"stopped": "enough"}])
def test_nothing_of_it_outlives_the_training(slots: Slots, how: dict[str, Any]) -> None:
    """Neither where all steps are done nor where a copy has stopped it."""
    contributed(slots, ended(slots, 0), [1.0])
    ended(slots, 1, **how)
    assert sorted(slots.listed()) == [slots.end_path(slot).name for slot in (0, 1)]


def test_small_contributions_and_file_systems_without_links_need_none(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a new file."""
    end = ended(slots, 0)
    with monkeypatch.context() as patch:
        patch.setattr(slots_module, "LARGE", 1000)
        contributed(slots, end, [1.0])
        assert not [name for name in slots.listed() if ".spare." in name]

    def refuse(*_: object) -> None:
        raise OSError("no links here")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        contributed(slots, end, [2.0])
    assert read(slots, end) == [2.0]
    assert not [name for name in slots.listed() if ".spare." in name]


def test_an_end_is_removed_as_the_one_after_the_next_is_written(
    slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is free at that moment; the two newest can be read all the time."""
    seen: list[list[str]] = []
    write = slots_module.write_tensors

    def write_and_look(*words: Any, **options: Any) -> bool:
        seen.append(sorted(slots.listed()))
        return write(*words, **options)

    monkeypatch.setattr(slots_module, "write_tensors", write_and_look)
    for slot in range(4):
        ended(slots, slot)
    names = [slots.end_path(slot).name for slot in range(4)]
    assert seen == [[], names[:1], names[:2], names[1:3]]
    assert sorted(slots.listed()) == [".slot-00000001.old", *names[2:]]
    assert slots.kept() == [2, 3]
    ended(slots, 4, stopped="enough")
    assert sorted(slots.listed()) == [names[3], slots.end_path(4).name]


def test_a_reader_of_an_old_end_is_not_disturbed(slots: Slots) -> None:
    """It may read for as long as it likes."""
    ended(slots, 0)
    _, file = slots.read(0)
    for slot in range(1, 6):
        ended(slots, slot)
    assert file.tensor("model/a").tolist() == [0.0] * 4


def test_a_small_end_is_removed_at_once(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its memory does not matter."""
    monkeypatch.setattr(slots_module, "LARGE", 10_000)
    for slot in range(4):
        ended(slots, slot)
    assert sorted(slots.listed()) == [slots.end_path(slot).name for slot in (2, 3)]
