"""A replay in one process has the same result as copies in separate processes, bit for bit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes import train_copy  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from hadar_slurm.handoff import Assignment, write_assignment  # noqa: E402
from hadar_slurm.runtime.settings import Settings  # noqa: E402

BENCHMARKS = Path(__file__).parents[3] / "benchmarks" / "hadare"
TOTAL_STEPS = 60
QUOTAS = {0: 8, 1: 4}


def in_processes(directory: Path, *more: str) -> dict[str, torch.Tensor]:
    """Return the parameters of two copies, each a process, that share the first interval.

    The first copy to join waits for the other one, as the assignment gives it steps.
    """
    path = directory / "assignment"
    # Without a length: the duration of averaging must not change the quotas.
    write_assignment(path, Assignment(1, QUOTAS, 0.0))
    words = [sys.executable, train_copy.__file__, str(directory / "job")]
    options = ["--assignment", str(path), "--gone-s=60", "--gather-s=100", *more]
    copies = [subprocess.Popen([*words, str(copy), str(TOTAL_STEPS), *options]) for copy in QUOTAS]
    try:
        assert [copy.wait(120) for copy in copies] == [0, 0]
    finally:
        for copy in copies:
            copy.kill()
            copy.wait()
    found: dict[str, torch.Tensor] = load_file(directory / "job" / "final-0.safetensors")
    return found


def replayed(monkeypatch: pytest.MonkeyPatch, **known: Any) -> tuple[list[Any], Any]:
    """Return the intervals of a replay, and its final parameters."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from replay import replay

    model, optimiser, train = train_copy.make(0)
    slots = list(
        replay(
            model,
            optimiser,
            train,
            total_steps=TOTAL_STEPS,
            quotas=[QUOTAS],
            speeds={0: 2.0, 1: 1.0},
            lr=train_copy.falling(TOTAL_STEPS),
            **known,
        )
    )
    assert [slot.steps_done for slot in slots] == [12, 24, 36, 48, 60]
    return slots, model.state_dict()


def test_a_replay_is_the_real_thing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout, batch statistics, Adam's moments and the learning rate are included."""
    slots, here = replayed(monkeypatch)
    assert [slot.seconds for slot in slots] == [4.0] * 5
    there = in_processes(tmp_path)
    assert all(torch.equal(here[name], there[name]) for name in there)


def test_so_it_is_where_copies_train_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay is given the steps that each copy trained ahead, from the log."""
    there = in_processes(tmp_path, "--delay=1", "--step-s=0.005")
    log = (tmp_path / "job" / "job.log").read_text()
    ahead = [{copy: 0 for copy in QUOTAS} for _ in range(5)]
    for copy, slot, steps in re.findall(r"copy (\d+).*slot (\d+) begins with (\d+) steps", log):
        ahead[int(slot) - 1][int(copy)] = int(steps)
    assert any(any(one.values()) for one in ahead)
    settings = Settings(delay=1.0)
    _, here = replayed(monkeypatch, settings=settings, ahead=ahead)
    assert all(torch.equal(here[name], there[name]) for name in there)
