"""`copy.on_average`: one copy evaluates the parameters of all, after each averaging."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes import train_copy  # noqa: E402
from fakes.by_loader import SETTINGS, Job, Plan  # noqa: E402

from hadar_slurm.runtime.copy import Copy  # noqa: E402
from hadar_slurm.runtime.membership.surroundings import Surroundings  # noqa: E402

SHORT = replace(SETTINGS, slot_s=0.2)
# Synchronous copies end an interval after a second at the earliest.
EPOCHS = {"averaged": 6, "synchronous": 40}


def trained(path: Path, evaluate: Callable[[Any, int], Any] | None, **options: Any) -> Copy:
    """Return a copy that has trained alone, in several intervals."""
    model, optimiser, train = train_copy.make(0)
    settings = replace(SHORT, slot_s=0.02, cost_part=1.0, **options)
    where = Surroundings(copy=0, directory=path)
    copy = Copy(model, optimiser, total_steps=60, settings=settings, surroundings=where)
    if evaluate:
        copy.on_average(evaluate)
    with copy:
        for step in copy.steps():
            train(copy, step)
    return copy


@pytest.mark.parametrize("delay", [0.0, 0.5])
def test_a_copy_alone_evaluates_each_interval(tmp_path: Path, delay: float) -> None:
    """Modes and random numbers are as before; the last call has the final parameters."""
    seen = []

    def evaluate(model: Any, step: int) -> Any:
        assert model.training
        model.eval()
        torch.rand(3)
        seen.append((step, {name: each.clone() for name, each in model.state_dict().items()}))
        return step if step > 1 else None

    copy = trained(tmp_path / "evaluated", evaluate, delay=delay)
    steps = [step for step, _ in seen]
    assert len(steps) > 2
    assert steps == sorted(set(steps))
    assert steps[-1] == 60
    assert [each.result for each in copy.evaluations()] == [step for step in steps if step > 1]
    assert all(each.copy == 0 and each.step == each.result for each in copy.evaluations())
    assert copy.model.training
    last = copy.model.state_dict()
    assert all(torch.equal(last[name], each) for name, each in seen[-1][1].items())
    # A step's length decides where intervals end, and these the random numbers; not so in one.
    one, other = (trained(tmp_path / name, each) for name, each in (("a", evaluate), ("b", None)))
    if len(one.evaluations()) == 2 and other.member.slots.newest_slot() == 2:
        last = other.model.state_dict()
        assert all(torch.equal(last[name], each) for name, each in one.model.state_dict().items())


def test_random_numbers_are_those_of_before(tmp_path: Path) -> None:
    """An evaluation does not change what the copy draws next."""
    model, optimiser, _ = train_copy.make(0)
    drawn = []
    for name in ("with", "without"):
        where = Surroundings(copy=0, directory=tmp_path / name)
        copy = Copy(model, optimiser, total_steps=9, settings=SHORT, surroundings=where)
        if name == "with":
            copy.on_average(lambda model, step: float(torch.rand(())))
        with copy:
            for _ in copy.steps():
                drawn.append(float(torch.rand(())))
                break
    assert drawn[0] == drawn[1]


def test_what_is_no_plain_value_is_refused(tmp_path: Path) -> None:
    """The error names the function and the remedy."""

    def accuracy(model: Any, step: int) -> Any:
        return torch.zeros(())

    with pytest.raises(TypeError, match="it is to return a plain value or None") as error:
        trained(tmp_path / "job", accuracy)
    assert "accuracy) after 1 steps" in error.value.__notes__[0]


def note(copy: Copy, number: int, plan: Plan, act: Callable[[int], None] | None = None) -> None:
    """Have a copy evaluate: note the step, the copy and the parameters."""

    def evaluate(model: Any, step: int) -> int:
        with (plan.notes / "evaluated").open("a", buffering=1) as told:
            told.write(f"{step} {number}\n")
        torch.save(model.state_dict(), plan.notes / f"evaluated-{step}")
        if act:
            act(step)
        return number

    copy.on_average(evaluate)


def evaluated(job: Job) -> list[list[int]]:
    """Return the evaluations: step and copy."""
    lines = (job.plan.notes / "evaluated").read_text().splitlines()
    return [[int(word) for word in line.split()] for line in lines]


@pytest.mark.parametrize("mode", ["averaged", "synchronous"])
def test_one_of_two_copies_evaluates_each_average(job: Callable[..., Job], mode: str) -> None:
    """Each once, the last with the final parameters of all copies."""
    made = job(
        copies=2, epochs=EPOCHS[mode], mode=mode, slow=(0.005, 0.005), settings=SHORT, prepare=note
    )
    made.run()
    steps = [step for step, _ in evaluated(made)]
    assert len(steps) > 2, made.log()
    assert len(steps) == len(set(steps))
    assert max(steps) == made.plan.total_steps
    last = torch.load(made.plan.notes / f"evaluated-{max(steps)}")
    assert all(torch.equal(made.final(1)[name], each) for name, each in last.items())


@pytest.mark.parametrize("mode", ["averaged", "synchronous"])
def test_a_copy_that_dies_as_it_evaluates_is_left_behind(
    job: Callable[..., Job], mode: str
) -> None:
    """That averaging is not evaluated again; the other copy trains the rest and evaluates that."""

    def prepare(copy: Copy, number: int, plan: Plan) -> None:
        def die(step: int) -> None:
            if step > 1 and not (plan.notes / "died").exists():
                (plan.notes / "died").write_text(f"{number}")
                os.kill(os.getpid(), signal.SIGKILL)

        note(copy, number, plan, die)

    settings = replace(SHORT, gone_after_s=5.0)
    made = job(
        copies=2,
        epochs=EPOCHS[mode],
        mode=mode,
        slow=(0.005, 0.005),
        settings=settings,
        prepare=prepare,
    )
    made.start(0, 1)
    for copy in (0, 1):
        made.processes[copy].join(600)
    dead = int((made.plan.notes / "died").read_text())
    made.end(dead, -signal.SIGKILL)
    made.end(1 - dead)
    assert len(made.newest().done) == made.plan.total_steps
    steps = [step for step, _ in evaluated(made)]
    assert len(steps) == len(set(steps))
    assert evaluated(made)[-1] == [made.plan.total_steps, 1 - dead]


def test_an_exception_ends_the_copy_that_evaluates(job: Callable[..., Job]) -> None:
    """Its log names the function and the step; the other copy goes on."""

    def prepare(copy: Copy, number: int, plan: Plan) -> None:
        def fail(step: int) -> None:
            if not (plan.notes / "failed").exists():
                (plan.notes / "failed").write_text(f"{number}")
                raise ValueError("no such metric")

        note(copy, number, plan, fail)

    made = job(copies=2, epochs=4, slow=(0.005, 0.005), settings=SHORT, prepare=prepare)
    made.start(0, 1)
    for copy in (0, 1):
        made.processes[copy].join(600)
    failed = int((made.plan.notes / "failed").read_text())
    made.end(failed, 1)
    made.end(1 - failed)
    assert len(made.newest().done) == made.plan.total_steps
    said = (made.plan.notes / f"log-{failed}").read_text()
    assert "no such metric" in said
    assert "evaluate) after" in said


@pytest.mark.parametrize("mode", ["averaged", "synchronous"])
def test_an_evaluation_may_stop_the_job(job: Callable[..., Job], mode: str) -> None:
    """All copies end with the same parameters, before all steps are done."""

    def prepare(copy: Copy, number: int, plan: Plan) -> None:
        def stop(step: int) -> None:
            if step > 10:
                copy.stop("the loss no longer improves")

        note(copy, number, plan, stop)

    made = job(
        copies=2, epochs=100, mode=mode, slow=(0.005, 0.005), settings=SHORT, prepare=prepare
    )
    made.run(is_whole=False)
    assert made.newest().stopped == "the loss no longer improves"
    assert len(made.newest().done) < made.plan.total_steps
    assert all(torch.equal(made.final(0)[name], each) for name, each in made.final(1).items())
