"""The page on time to quality says what its runs say."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

ROOM = Path(__file__).resolve().parents[3] / "benchmarks" / "hadare"


@pytest.mark.parametrize(("loss", "said"), [(0.92, "within"), (1.2, "NOT within")])
def test_a_page_says_how_much_sooner_and_whether_quality_is_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: float, said: str
) -> None:
    monkeypatch.syspath_prepend(str(ROOM))
    page = importlib.import_module("time_to_quality_page")
    runs = tmp_path / "runs.jsonl"
    common = {"task": "images", "start_s": 10.0}
    lines = [
        {**common, "system": system, "seed": seed, "steps": 8, "seconds": seconds, "loss": value}
        for seed, noise in enumerate((-0.1, 0.0, 0.1))
        for system, seconds, value in (("one", 100.0, 0.9 + noise), ("auto", 40.0, loss + noise))
    ]
    runs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page.page(runs, machine="A machine.", period_s=1.0, factor=1.1)
    text = runs.with_suffix(".md").read_text()
    assert "images: 2.50 times sooner" in text
    assert f", {said} one node's noise by seed (0.100)" in text
    assert "| images | one node | 8 | 0.900 ± 0.100 |  | 100 ± 0 |  |  |" in text
    assert "| 2.50 ± 0.00 | 2.20 ± 0.00 |" in text


def test_the_page_is_that_of_the_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(ROOM))
    page = importlib.import_module("time_to_quality_page")
    copied = tmp_path / "time_to_quality.jsonl"
    copied.write_text((ROOM / copied.name).read_text())
    pytest.importorskip("torch", reason="needs PyTorch")
    study = importlib.import_module("time_to_quality")
    page.page(copied, machine=study.MACHINE, period_s=study.PERIOD_S, factor=study.FACTOR["images"])
    assert copied.with_suffix(".md").read_text() == (ROOM / "time_to_quality.md").read_text()
