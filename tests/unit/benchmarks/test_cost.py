"""What an averaging costs is measured in processes, and scaled by bytes and CPU time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
pytest.importorskip("torch", reason="needs PyTorch")

BENCHMARKS = Path(__file__).parents[3] / "benchmarks" / "hadare"


def record(cpu_s: float = 0.4, *, delays: bool = False) -> dict[str, Any]:
    """Return a run of 250 M parameters, 1 GB, with three copies."""
    part = {"read": 1e9, "written": 0.5e9, "cpu_s": cpu_s, "kernel_s": cpu_s / 2, "s": 1.0}
    parts = {
        "save": {**part, "read": 1e9},
        "merge": {**part, "read": 2.5e9, "written": 1e9, "cpu_s": 3 * cpu_s},
        "load": {**part, "written": 0.0},
    }
    if delays:
        beside = {**part, "read": 0.0, "written": 0.0, "cpu_s": cpu_s / 2}
        parts |= {"keep": beside, "take": beside}
    return {
        "date": "2026-01-01",
        "memory": "free",
        "delays": delays,
        "directory": "/somewhere",
        "cpus": 2,
        "load": 1.0,
        "torch": "2",
        "copies": 3,
        "averagings": 4,
        "first": 6,
        "parameters": 250_000_000,
        "rss": 2_000_000_000,
        "parts": parts,
        "parts_at_first": {name: {**each, "cpu_s": 2 * cpu_s} for name, each in parts.items()},
    }


def test_costs_are_per_size_and_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The merger's time is shared by all copies; time at scale is that of bytes and CPU."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cost_page

    assert cost_page.cpu_s(record())["all"] == pytest.approx(1.2)
    three = cost_page.scaled(record(), 3)
    assert three["save"] == pytest.approx(4 * (0.5 + 0.4))
    assert three["load"] == pytest.approx(4 * (1.0 + 0.4))
    assert three["merge"] == pytest.approx(4 * (2.5 + 1.2))
    six = cost_page.scaled(record(), 6)
    assert six["merge"] == pytest.approx(4 * 3.7 * (1 + 1.5 / 2.5))
    assert three["blocked"] == three["all"]
    page = " ".join(cost_page.text([record(), record(delays=True)]).split())
    assert "Memory free, without a delay: **holds**, 1.20 to 1.20;" in page
    assert "free, with one: **holds**, 1.60 to 1.60." in page
    assert "| 2.0 | 1.87 |" in page  # at first
    assert "**does not hold**" in cost_page.text([record(1.0), record(delays=True)])


def test_with_a_delay_training_stops_for_a_part_of_an_averaging(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The interval has room for the rest."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cost_page

    found = cost_page.scaled(record(delays=True), 3)
    assert found["blocked"] == pytest.approx(4 * 0.4)
    assert found["all"] == pytest.approx(4 * (0.9 + 3.7 + 1.4 + 0.4))
    assert cost_page.interval_s(record(delays=True), 3) == pytest.approx(found["all"] * 1.5)
    assert cost_page.interval_s(record(), 3) == pytest.approx(4 * 6.0 / 0.05)


def test_a_model_has_about_the_size_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is at least one matrix."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cost

    counts = [sum(p.numel() for p in cost.model_of(size).parameters()) for size in (0.1, 33)]
    assert counts == [4096**2, 2 * 4096**2]
