"""The quality matrix: its runs, their reuse, and the page made of them."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

HADARE = Path(__file__).parents[3] / "benchmarks" / "hadare"


@pytest.fixture
def quality(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script as a module."""
    monkeypatch.syspath_prepend(str(HADARE))
    import quality

    torch.set_num_threads(1)

    return quality


@pytest.mark.parametrize("name", ["images", "language"])
def test_a_run_is_the_same_each_time_and_trained_once(
    quality: ModuleType, tmp_path: Path, name: str
) -> None:
    """A run learns and is reproducible; a recorded run is reused, a truncated line ignored."""
    path = tmp_path / "runs.jsonl"
    run = quality.Run(name, "adam", 0, total_steps=24, copies=2, slot_s=4.0)
    quality.make([("some", run)], path)
    with path.open("a") as file:
        file.write('{"name": "cut\n')
    quality.make([("some", run)], path)
    (record,) = quality.records(path)
    again = quality.train(run)
    assert [record[key] for key in ("loss", "curve")] == [again[key] for key in ("loss", "curve")]
    assert record["time_s"] == 12.0
    losses = [point[2] for point in record["curve"]]
    assert losses[-1] < losses[0]


def test_every_question_is_asked_of_the_same_seeds(quality: ModuleType) -> None:
    """Variants are compared on the same seeds; no run has two names."""
    runs = quality.matrix(list(quality.QUESTIONS))
    assert len({run for _, run in runs}) == len(runs)
    assert all(run.seed < quality.QUESTIONS["main"][0] for _, run in runs)
    assert quality.same_time(1024) == 320


def record(quality: ModuleType, name: str, seed: int, loss: float) -> dict[str, Any]:
    """Return a run's line."""
    run = {"task": "images", "optimiser": "sgd", "seed": seed}
    return {"name": name, "run": run, "loss": loss, "accuracy": 0.5, "time_s": 1.0, "cpu_s": 1.0}


def test_differences_are_by_seed(quality: ModuleType) -> None:
    """Differences are per seed: large seed effects do not hide them, and noise is none."""
    records = [
        record(quality, name, seed, loss)
        for seed, base in enumerate((1.0, 2.0, 3.0))
        for name, loss in (
            ("HadarE", base + 0.01 * seed),
            ("single", base + 0.2),
            ("single, same time", base + 0.1 * (seed - 1)),
        )
    ]
    pairs = {pair["against"]: pair for pair in quality.compared(records)["pairs"]}
    assert pairs["single"]["finding"] == "better"
    assert pairs["single"]["better"] == 3
    assert pairs["single"]["loss"] == pytest.approx([-0.19, 0.01])
    assert pairs["single, same time"]["finding"] == "no different"


def test_a_difference_of_accuracy_is_judged_too(quality: ModuleType) -> None:
    """A lower loss with fewer right answers is better by loss and worse by accuracy."""
    records = [
        record(quality, name, seed, loss) | {"accuracy": accuracy + 0.01 * seed}
        for seed in range(3)
        for name, loss, accuracy in (("HadarE", 0.5, 0.60), ("single", 0.9, 0.65))
    ]
    (pair,) = quality.compared(records)["pairs"]
    assert (pair["finding"], pair["accuracy_finding"]) == ("better", "worse")


def test_the_page_is_what_the_runs_say(quality: ModuleType) -> None:
    """README.md is generated from the recorded runs."""
    found = quality.compared(quality.records(HADARE / "quality.jsonl"))
    text = quality.page.text(found, HADARE / "faults.jsonl")
    assert (HADARE / "README.md").read_text(encoding="utf-8") == text


def test_half_the_steps_are_not_enough(quality: ModuleType) -> None:
    """A single node with half the steps ends with a loss at least 10 % higher, in every run."""
    losses: dict[tuple[str, str, int, str], float] = {}
    for line in (HADARE / "quality.jsonl").read_text(encoding="utf-8").splitlines():
        each = json.loads(line)
        run = each["run"]
        losses[run["task"], run["optimiser"], run["seed"], each["name"]] = each["loss"]
    halves = {key: loss for key, loss in losses.items() if key[3] == "single, half the steps"}
    assert len(halves) == 20
    assert all(loss >= 1.1 * losses[(*key[:3], "single")] for key, loss in halves.items())
