"""Copies contribute differences, and find their optimiser's state again after a restart."""

from __future__ import annotations

import json
import signal
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes import train_copy  # noqa: E402

from hadar_slurm.runtime.averaging.consolidation import OptimiserRule  # noqa: E402
from hadar_slurm.runtime.copy import Copy  # noqa: E402
from hadar_slurm.runtime.files.ranges import Ranges  # noqa: E402
from hadar_slurm.runtime.files.records import Contribution, SlotEnd  # noqa: E402
from hadar_slurm.runtime.files.slots import Slots  # noqa: E402
from hadar_slurm.runtime.files.writing import write_tensors  # noqa: E402
from hadar_slurm.runtime.membership.surroundings import Surroundings  # noqa: E402
from hadar_slurm.runtime.settings import Settings  # noqa: E402

STATE = "optimiser/0/exp_avg"


def a_copy(directory: Path, number: int, **settings: Any) -> tuple[Copy, Callable[..., None]]:
    """Return a copy of a job of 400 steps, and a function that trains one step."""
    model, optimiser, train = train_copy.make(0, dropout=0.0)
    known = Settings(poll_s=0.01, **({"slot_s": 60.0} | settings))
    where = Surroundings(copy=number, directory=directory)
    copy = Copy(
        model, optimiser, total_steps=400, mode="averaged", settings=known, surroundings=where
    )
    return copy, train


def damage(path: Path) -> None:
    """Change a bit of a parameter in a file."""
    whole = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    name = next(name for name in header if name.startswith("model/"))
    whole[8 + length + header[name]["data_offsets"][0]] ^= 1
    path.write_bytes(whole)


def begin(copy: Copy, dealt: dict[int, int], **known: Any) -> SlotEnd:
    """Write the end of interval 0, with these numbers of steps dealt to copies."""
    firsts = dict(
        zip(dealt, (sum(list(dealt.values())[:at]) for at in range(len(dealt))), strict=True)
    )
    steps = {
        number: Ranges.of([(firsts[number], firsts[number] + n)]) for number, n in dealt.items()
    }
    end = SlotEnd(slot=0, total_steps=400, dealt=steps, length_s=60.0, **known)
    copy.member.slots.end(end, *copy.member.named())
    return copy.member.slots.read(0)[0]


def trained(copy: Copy, train: Callable[..., None], *, is_leaving: bool = False) -> None:
    """Load the newest end, train the copy's steps, and contribute."""
    end, file = copy.member.newest()
    copy.learner.load(end, file)
    number = copy.member.where.copy
    for step in copy.leading.train(end, end.dealt[number]):
        train(copy, step)
        if is_leaving:
            copy.requests.asked.add(signal.SIGUSR1)
    copy.leading.contributing.save()
    copy.requests.asked.clear()


def two(directory: Path, **settings: Any) -> tuple[list[Copy], SlotEnd]:
    """Return two copies that have contributed to interval 1, and the end of interval 0."""
    with_state = settings.pop("with_state", True)
    made = [a_copy(directory, number, **settings) for number in (0, 1)]
    end = begin(made[0][0], {0: 20, 1: 10}, with_state=with_state)
    for copy, train in made:
        trained(copy, train)
    return [copy for copy, _ in made], end


def moments(copy: Copy) -> Any:
    """Return a moment of the optimiser."""
    return copy.member.named()[0][STATE].clone()


def test_contributions_have_no_state_where_the_end_asks_for_none(tmp_path: Path) -> None:
    """Each copy goes on with its own, and all with the same parameters."""
    copies, end = two(tmp_path, with_state=False)
    slots = copies[0].member.slots
    for number in (0, 1):
        part, file = slots.contribution(end, number)
        assert not part.with_state
        assert "difference/model/0.weight" in file.names
        assert not [name for name in file.names if name.startswith("optimiser/")]
    own = [moments(copy) for copy in copies]
    assert copies[0].member.ending.end(end, {0, 1}, {0, 1})
    after, file = copies[0].member.newest()
    assert (after.states, after.has_state) == ((0,), False)
    for copy, before in zip(copies, own, strict=True):
        copy.learner.load(after, file)
        assert torch.equal(moments(copy), before)
    names = [name for name in file.names if name.startswith("model/")]
    one, other = (copy.member.named()[0] for copy in copies)
    assert all(torch.equal(one[name], other[name]) for name in names)
    assert not torch.equal(own[0], own[1])


@pytest.mark.parametrize("rule", list(OptimiserRule))
def test_a_state_that_is_contributed_is_shared_by_the_rule(
    tmp_path: Path, rule: OptimiserRule
) -> None:
    """By `average` and `keep` all copies go on with the same one, by `local` each with its own."""
    copies, end = two(tmp_path, optimiser=rule)
    own = [moments(copy) for copy in copies]
    assert copies[0].member.ending.end(end, {0, 1}, {0, 1})
    after, file = copies[0].member.newest()
    assert after.has_state
    for copy in copies:
        copy.learner.load(after, file)
    if rule is OptimiserRule.RESET:
        assert all(STATE not in copy.member.named()[0] for copy in copies)
        return
    found = [moments(copy) for copy in copies]
    expected = {
        OptimiserRule.AVERAGE: [(2 * own[0] + own[1]) / 3] * 2,
        OptimiserRule.KEEP: [own[0]] * 2,
        OptimiserRule.LOCAL: own,
    }[rule]
    assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(found, expected, strict=True))
    late, _ = a_copy(tmp_path, 5, optimiser=rule)
    late.learner.load(*late.member.newest())
    kept = expected[0] if rule is OptimiserRule.AVERAGE else own[0]
    assert torch.allclose(moments(late), kept, atol=1e-6)


def test_a_copy_that_starts_takes_the_state_of_an_older_end(tmp_path: Path) -> None:
    """The newest end has none; that with the state is kept until two newer ones have one."""
    copies, end = two(tmp_path, optimiser_every=4)
    slots = copies[0].member.slots
    assert copies[0].member.ending.end(end, {0, 1}, {0, 1})
    with_state = slots.read(1)[1].tensor(STATE)
    for slot in range(1, 4):
        after, _ = slots.read(slot)
        part = Contribution(0, slot + 1, after.id, after.dealt[0], 1.0, with_state=False)
        tensors, facts = copies[0].member.named()
        model = {name: tensor for name, tensor in tensors.items() if name.startswith("model/")}
        slots.contribute(part, model, facts)
        assert copies[0].member.ending.end(after, {0}, {0, 1})
    newest, file = copies[0].member.newest()
    assert (newest.slot, newest.states) == (4, (0, 1))
    assert STATE not in file.names
    late, _ = a_copy(tmp_path, 5)
    late.learner.load(newest, file)
    assert torch.equal(moments(late), with_state)


def test_a_copy_that_is_asked_to_save_leaves_its_state(tmp_path: Path) -> None:
    """Its next run goes on with it; the others keep their own."""
    one, other = (a_copy(tmp_path, number) for number in (0, 1))
    end = begin(one[0], {0: 20, 1: 10}, with_state=False)
    trained(*one)
    trained(*other, is_leaving=True)
    own = [moments(copy) for copy, _ in (one, other)]
    assert one[0].member.ending.end(end, {0, 1}, {0, 1})
    after, file = one[0].member.newest()
    assert after.has_state
    one[0].learner.load(after, file)
    assert torch.equal(moments(one[0]), own[0])
    again, _ = a_copy(tmp_path, 1)
    again.learner.load(after, file)
    assert torch.equal(moments(again), own[1])


def test_a_copy_whose_contribution_did_not_count_takes_the_state_of_the_end(
    tmp_path: Path,
) -> None:
    """Its own may be what made it fail."""
    copies, end = two(tmp_path)
    with torch.no_grad():
        copies[1].optimiser.state[copies[1].model[0].weight]["exp_avg"].fill_(float("nan"))
    assert copies[0].member.ending.end(end, {0}, {0, 1})
    after, file = copies[0].member.newest()
    copies[1].learner.load(replace(after, with_state=False), file)
    assert bool(torch.isfinite(moments(copies[1])).all())


def test_an_end_whose_tensors_are_broken_gives_way_to_the_one_before(tmp_path: Path) -> None:
    """Its header is whole, so that it is found when it is loaded."""
    copy, train = a_copy(tmp_path, 0, slot_s=0.05, cost_part=1.0)
    with copy:
        for step in copy.steps():
            train(copy, step)
    slots = copy.member.slots
    path = slots.end_path(slots.newest_slot())
    damage(path)
    (tmp_path / "done").unlink()
    again, train = a_copy(tmp_path, 0, slot_s=0.05, cost_part=1.0)
    steps = []
    with again:
        for step in again.steps():
            train(again, step)
            steps.append(step)
    assert steps
    assert steps[-1] == 399
    assert f"left out: {path}: model/" in (tmp_path / "job.log").read_text()
    assert len(again.member.newest()[0].done) == 400


def test_a_mean_with_a_broken_contribution_is_made_of_the_others(tmp_path: Path) -> None:
    """It is found while the mean is written, and its steps are trained again."""
    copies, end = two(tmp_path)
    path = copies[0].member.slots.part_path(1, end.id, 1)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert copies[0].member.ending.end(end, {0, 1}, {0, 1})
    after, _ = copies[0].member.newest()
    assert after.done == end.dealt[0]


def test_ends_and_contributions_are_found_by_name_before_they_are_listed(tmp_path: Path) -> None:
    """NFS may list a file up to a minute late."""

    class Late(Slots):
        def listed(self) -> list[str]:
            return [name for name in super().listed() if name.startswith("slot-00000000.saf")]

    copies, end = two(tmp_path)
    late = Late(tmp_path)
    assert late.listed() == ["slot-00000000.safetensors"]
    assert late.contributors(end) == {0, 1}
    assert late.newest_slot() == 0
    assert copies[0].member.ending.end(end, {0, 1}, {0, 1})
    assert late.newest_slot() == 1
    assert late.has_ended(1)
    found = late.newest()
    assert found is not None
    assert found[0].slot == 1
    empty = Late(tmp_path / "other")
    assert empty.newest_slot() == -1
    write_tensors(empty.end_path(0), {}, {})
    assert empty.newest_slot() == 0
