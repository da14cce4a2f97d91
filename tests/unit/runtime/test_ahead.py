"""Delayed averaging: copies train while their interval is averaged, and every step counts once."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes import train_copy  # noqa: E402
from fakes.trainings import Training, until  # noqa: E402

from hadar_slurm.runtime.averaging.ahead import Ahead  # noqa: E402
from hadar_slurm.runtime.averaging.state import tensors_of  # noqa: E402
from hadar_slurm.runtime.copy import Copy  # noqa: E402
from hadar_slurm.runtime.dealing import Dealer  # noqa: E402
from hadar_slurm.runtime.files.ranges import Ranges  # noqa: E402
from hadar_slurm.runtime.files.records import SlotEnd  # noqa: E402
from hadar_slurm.runtime.files.slots import Slots  # noqa: E402
from hadar_slurm.runtime.files.tensors import TensorFile  # noqa: E402
from hadar_slurm.runtime.files.writing import write_tensors  # noqa: E402
from hadar_slurm.runtime.membership.surroundings import Surroundings  # noqa: E402
from hadar_slurm.runtime.settings import Settings  # noqa: E402

END = SlotEnd(slot=5, total_steps=99, id="of 5")
BEGINS = "steps that were trained ahead"


def union(parts: dict[int, Ranges]) -> Ranges:
    """Return the union of the copies' steps; no two copies may have the same one."""
    found = Ranges.of(pair for steps in parts.values() for pair in steps.pairs)
    assert len(found) == sum(map(len, parts.values()))
    return found


@given(st.floats(0, 1), st.integers(1, 300), st.data())
def test_no_step_counts_twice_and_none_is_left_out(
    delay: float, total_steps: int, data: st.DataObject
) -> None:
    """Copies may join, leave, slow down, lose an interval, or train any number of steps ahead."""
    dealer = Dealer(Settings(delay=delay, slot_s=10.0), None)
    speeds = st.dictionaries(st.integers(0, 3), st.floats(0.1, 5.0), min_size=1)
    end = dealer.deal(SlotEnd(slot=0, total_steps=total_steps), data.draw(speeds), 0.0)
    trained: list[int] = []
    ahead: dict[int, Ranges] = {}
    for _ in range(total_steps):
        assert not len(union(dict(end.dealt)) & union(dict(end.ahead)))
        assert not len((union(dict(end.dealt)) | union(dict(end.ahead))) - end.todo)
        done = end.done
        for copy, mine in end.dealt.items():
            own = ahead.get(copy, Ranges())
            own = Ranges() if len(own - mine) else own
            kept = own | (mine - own).first(data.draw(st.integers(0, len(mine))))
            if data.draw(st.integers(0, 4)):
                trained += kept
                done |= kept
        ahead = {
            copy: steps.first(data.draw(st.integers(0, len(steps))))
            for copy, steps in end.ahead.items()
        }
        end = replace(end, slot=end.slot + 1, done=done, dealt={})
        end = dealer.deal(end, data.draw(speeds), 0.0)
    # The steps that are left after these intervals are trained in one without losses.
    assert sorted([*trained, *end.todo]) == list(range(total_steps))


def test_what_was_trained_ahead_is_dealt_to_who_has_trained_it() -> None:
    """A copy is dealt the steps that it has trained ahead; lost steps come before new ones."""
    dealer = Dealer(Settings(delay=0.25, slot_s=10.0), None)
    begun = dealer.deal(SlotEnd(slot=3, total_steps=1000), {0: 2.0, 1: 1.0}, 0.0)
    assert begun.dealt == {0: Ranges.of([(0, 20)]), 1: Ranges.of([(20, 30)])}
    assert begun.ahead == {0: Ranges.of([(30, 35)]), 1: Ranges.of([(35, 37)])}
    lost = replace(begun, slot=4, done=Ranges.of([(0, 18), (20, 30)]), dealt={})
    after = dealer.deal(lost, {0: 2.0, 1: 1.0}, 0.0)
    assert after.dealt[0] == Ranges.of([(18, 20), (30, 35), (37, 50)])
    assert after.dealt[1] == Ranges.of([(35, 37), (50, 58)])
    # If a copy is gone for an interval, its steps may be dealt to any other copy.
    alone = dealer.deal(lost, {0: 2.0}, 0.0)
    assert alone.dealt[0] == Ranges.of([(18, 20), (30, 48)])


def test_nothing_is_trained_ahead_of_the_last_slot() -> None:
    """The same holds without a delay."""
    end = SlotEnd(slot=3, total_steps=30)
    dealer = Dealer(Settings(delay=1.0, slot_s=10.0), None)
    assert dealer.deal(end, {0: 2.0, 1: 1.0}, 0.0).ahead == {}
    assert dealer.deal(replace(end, done=Ranges.of([(0, 30)])), {0: 1.0}, 0.0).ahead == {}
    plain = Dealer(Settings(slot_s=10.0), None)
    assert plain.deal(replace(end, total_steps=1000), {0: 2.0, 1: 1.0}, 0.0).ahead == {}


@pytest.mark.parametrize("delay", [-0.1, 1.1])
def test_a_delay_that_is_none_is_refused(delay: float) -> None:
    """Steps are dealt at most one interval ahead."""
    with pytest.raises(ValueError, match="delay must be 0 to 1"):
        Settings(delay=delay)


def test_progress_is_added_to_what_was_made_one(tmp_path: Path) -> None:
    """If the average equals the contribution, the parameters stay the same to the bit."""
    torch.manual_seed(0)
    model, trained = torch.nn.Linear(30, 4), torch.nn.Linear(30, 4)
    then = model.weight.detach().clone()
    trained.load_state_dict(model.state_dict())
    with torch.no_grad():
        model.weight += torch.randn_like(model.weight)
    now = model.weight.detach().clone()
    one = torch.randn_like(then)
    for consolidated, expected in ((then, now), (one, one + now - then)):
        named = {"model/weight": consolidated, "model/bias": model.bias}
        write_tensors(tmp_path / "end", named, {})
        ahead = Ahead(trained, slot=5)
        with torch.no_grad():
            model.weight.copy_(now)
        ahead.take_over(model, END, TensorFile(tmp_path / "end"))
        assert torch.allclose(model.weight, expected, atol=1e-6)
        assert torch.equal(model.weight, now) == (consolidated is then)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_an_average_is_fetched_once_for_its_end(tmp_path: Path, dtype: Any) -> None:
    """Another end of the interval, which was made where that one was broken, is another average."""
    model, mine = torch.nn.Linear(30, 4, dtype=dtype), Ranges.of([(10, 20)])
    ahead = Ahead(model, slot=5)
    ahead.done = mine
    then = model.weight.detach().clone()
    one = {f"model/{name}": each.detach() + 1 for name, each in model.named_parameters()}
    write_tensors(tmp_path / "end", one, {})
    ahead.fetch(END, TensorFile(tmp_path / "end"))
    assert ahead.belongs_to(END, mine)
    assert not ahead.belongs_to(replace(END, id="another"), mine)
    (tmp_path / "end").unlink()
    with torch.no_grad():
        model.weight += 2
    write_tensors(tmp_path / "another", {}, {})
    ahead.take_over(model, END, TensorFile(tmp_path / "another"))
    assert torch.allclose(model.weight, then + 3, atol=0.05 if dtype is torch.bfloat16 else 1e-6)


def test_parameters_are_kept_in_the_nodes_memory_where_the_gpu_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No training fails for that."""
    model = torch.nn.Linear(30, 4)
    then = model.weight.detach().clone()
    one = {f"model/{name}": each.detach() + 1 for name, each in model.named_parameters()}
    write_tensors(tmp_path / "end", one, {})

    def is_full(*_: Any, **__: Any) -> Any:
        raise torch.cuda.OutOfMemoryError

    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty_like", is_full)
        ahead = Ahead(model, slot=5)
    ahead.take_over(model, END, TensorFile(tmp_path / "end"))
    assert torch.allclose(model.weight, then + 1)


def test_infinite_parameters_stay_as_they_are(tmp_path: Path) -> None:
    """A mask of negative infinities is no progress."""
    model = torch.nn.Linear(3, 1)
    with torch.no_grad():
        model.weight[0, 0] = -torch.inf
    ahead = Ahead(model, slot=5)
    one = {f"model/{name}": each.detach() for name, each in model.named_parameters()}
    write_tensors(tmp_path / "end", one, {})
    before = model.weight.detach().clone()
    ahead.take_over(model, END, TensorFile(tmp_path / "end"))
    assert torch.equal(model.weight, before)


def test_what_is_contributed_later_is_what_was_trained_then() -> None:
    """Training goes on before it is written; the optimiser's state is kept only where it counts."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    optimiser = torch.optim.Adam(model.parameters())

    def step() -> None:
        model(torch.randn(8, 4)).square().sum().backward()
        optimiser.step()

    step()
    for with_state in (True, False):
        ahead = Ahead(model, slot=5)
        named = tensors_of(model, optimiser)
        expected = {name: each.detach().clone() for name, each in named[0].items()}
        found = ahead.contributed(named, with_state=with_state)[0]
        step()
        of_state = {name for name in expected if name.startswith("optimiser/")}
        assert found.keys() == expected.keys() - (set() if with_state else of_state)
        assert all(torch.equal(found[name], expected[name]) for name in found)


@pytest.mark.parametrize("spoilt", ["parameters", "file"])
def test_what_was_trained_ahead_of_nothing_usable_is_left_out(
    tmp_path: Path, spoilt: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a contribution with NaN, or of an average that cannot be read."""
    copy, train = a_copy(tmp_path, slot_s=60.0)
    copy.member.slots.end(
        SlotEnd(
            slot=0,
            total_steps=5000,
            dealt={0: Ranges.of([(0, 5)])},
            ahead={0: Ranges.of([(5, 10)])},
            length_s=60.0,
        ),
        *copy.member.named(),
    )
    end, file = copy.member.newest()
    copy.learner.load(end, file)
    for step in copy.leading.train(end, end.dealt[0]):
        train(copy, step)
    ahead = copy.learner.ahead
    assert ahead is not None
    if spoilt == "parameters":
        next(iter(ahead._kept.values())).fill_(torch.nan)
        next(iter(ahead._kept.values())).view(-1)[0] = 1.0
    else:
        fetch = Ahead.fetch

        def fails(self: Ahead, *words: Any) -> None:
            raise OSError("no such disk")

        Ahead.fetch = fails  # type: ignore[method-assign]
    try:
        for step in copy.leading._settle_beside(end):
            train(copy, step)
    finally:
        if spoilt == "file":
            Ahead.fetch = fetch  # type: ignore[method-assign]
    assert copy.learner.ahead is None
    found = copy.member.slots.read(1)[0]
    assert len(found.done) == (0 if spoilt == "parameters" else 5)
    assert ("no such disk" in caplog.text) == (spoilt == "file")


@pytest.mark.parametrize(
    ("cost_s", "blocked_s", "length_s", "is_ahead"),
    [
        (2.9, 0.0, 58.0, False),  # once a minute is possible without
        (6.0, 0.0, 9.0, True),
        (6.0, 1.0, 20.0, True),  # at most 5 % of the time
        (40.0, 2.0, 60.0, True),
        (80.0, 2.0, 120.0, True),
    ],
)
def test_where_averaging_is_dear_copies_train_meanwhile(
    cost_s: float, blocked_s: float, length_s: float, is_ahead: bool
) -> None:
    """They have half as much time again as it takes; what stops them is bounded."""
    dealer = Dealer(Settings(slot_s=3.0), None)
    end = SlotEnd(slot=4, total_steps=100_000, length_s=length_s)
    found = dealer.deal(end, {0: 10.0, 1: 5.0}, cost_s, blocked_s=blocked_s)
    assert found.length_s == pytest.approx(length_s)
    assert not found.with_state
    assert bool(found.ahead) == is_ahead
    if is_ahead:
        waits_s = len(found.ahead[0]) / 10.0
        assert waits_s >= 1.49 * cost_s
    for delay in (0.0, 0.25):
        dealer = Dealer(Settings(slot_s=3.0, delay=delay), None)
        assert bool(dealer.deal(end, {0: 10.0, 1: 5.0}, cost_s).ahead) == bool(delay)


def test_the_optimisers_state_is_contributed_seldom_where_that_is_dear() -> None:
    """It takes at most a fifth of what averaging may take, and no training goes on beside it."""
    dealer = Dealer(Settings(slot_s=60.0), None)
    slots = []
    for slot in range(400):
        end = SlotEnd(slot=slot, total_steps=100_000, length_s=60.0)
        found = dealer.deal(end, {0: 10.0, 1: 5.0}, 20.0, 60.0)
        assert bool(found.ahead) != found.with_state
        if found.with_state:
            slots.append(slot + 1)
    assert 2 <= len(slots) <= 400 * 0.01 * 60.0 / 60.0 + 1


def test_what_was_trained_ahead_counts_in_the_next_slot_alone() -> None:
    """All of its steps must also be dealt to this copy in that interval."""
    ahead = Ahead(torch.nn.Linear(1, 1), slot=5)
    mine = Ranges.of([(10, 20)])
    assert not ahead.belongs_to(SlotEnd(slot=5, total_steps=99), mine)
    ahead.done = Ranges.of([(12, 15)])
    assert ahead.belongs_to(SlotEnd(slot=5, total_steps=99), mine)
    assert not ahead.belongs_to(SlotEnd(slot=5, total_steps=99), Ranges.of([(10, 14)]))
    assert not ahead.belongs_to(SlotEnd(slot=6, total_steps=99), mine)
    assert not ahead.belongs_to(SlotEnd(slot=4, total_steps=99), mine)


def test_copies_that_train_ahead_share_the_steps(training: Callable[..., Training]) -> None:
    """Some steps are trained ahead, each counts once, and all copies end with the same parameters.

    The shares of the last interval may be smaller than what was trained ahead of it: the rest, half
    an interval at most, does not count and is trained again.
    """
    job = training(200, "--step-s=0.01", "--delay=0.5", "--gone-s=20")
    job.start_together(0, 1)
    said = job.end(0) + job.end(1)
    job.check(0, 1)
    steps = job.steps(0) + job.steps(1)
    assert set(steps) == set(range(200))
    again = [step for step in set(steps) if steps.count(step) > 1]
    assert len(again) <= 60
    assert said.count(BEGINS) >= 2


def test_a_copy_that_is_killed_while_it_trains_ahead_costs_its_slot_alone(
    training: Callable[..., Training],
) -> None:
    """The files on disk stay readable, and the other copy continues from them."""
    job = training(300, "--step-s=0.01", "--delay=0.5")
    job.start_together(0, 1)
    until(lambda: job.has_ended(1))
    until(lambda: "copy 1: slot 4 begins" in (job.directory / "job.log").read_text())
    job.kill(1)
    job.end(1, -signal.SIGKILL)
    slots = Slots(job.directory)
    assert slots.read(slots.newest_slot())[0].slot >= 3
    job.end(0)
    job.check(0)
    assert set(job.steps(0)) | set(job.steps(1)) == set(range(300))


def test_two_processes_train_ahead_together(training: Callable[..., Training]) -> None:
    """Both train the same steps ahead, and every step counts.

    If the copy is slower afterwards, an interval may have fewer steps than were trained ahead of
    it: these are trained again.
    """
    job = training(100, "--step-s=0.01", "--delay=0.5")
    job.start(0, ranks=2)
    said = job.end(0)
    job.check(0, "0.1")
    assert job.steps(0) == job.steps("0.1")
    assert set(job.steps(0)) == set(range(100))
    assert BEGINS in said


def a_copy(directory: Path, slot_s: float) -> tuple[Copy, Callable[[Copy, int], None]]:
    """Return a copy, and a function that trains one step."""
    model, optimiser, train = train_copy.make(0)
    settings = Settings(slot_s=slot_s, cost_part=1.0, poll_s=0.01, delay=1.0)
    where = Surroundings(copy=0, directory=directory)
    return Copy(model, optimiser, total_steps=5000, settings=settings, surroundings=where), train


@pytest.mark.parametrize("asked", [signal.SIGTERM, None])
def test_a_copy_that_leaves_while_it_trains_ahead_leaves_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: signal.Signals | None
) -> None:
    """Its contribution is written, and its signs of life end."""
    # Long enough that even a busy machine trains more than three steps in one interval.
    copy, train = a_copy(tmp_path, slot_s=1.0)
    end_if_ours = copy.member.peers.end_if_ours
    # The second interval is never averaged.
    monkeypatch.setattr(
        copy.member.peers, "end_if_ours", lambda end, since: end.slot > 0 or end_if_ours(end, since)
    )
    error = SystemExit if asked else KeyError

    def run() -> None:
        with copy:
            for step in copy.steps():
                train(copy, step)
                time.sleep(0.002)
                if copy.learner.ahead and len(copy.learner.ahead.done) > 2:
                    if asked is None:
                        raise KeyError
                    copy.requests.asked.add(asked)

    with pytest.raises(error):
        run()
    newest = copy.member.slots.newest()
    assert newest is not None
    assert copy.member.slots.contributors(newest[0]) == {0}
    assert not (tmp_path / "copies" / "0").exists()
