"""The page on our policies in Sia's simulator, from what is recorded."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SIA = Path(__file__).parents[3] / "benchmarks" / "sia"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module that writes the page."""
    monkeypatch.syspath_prepend(str(SIA))
    import comparison_page

    return comparison_page


def run(workload: str, scheduler: str, jct_h: float, makespan_h: float) -> dict[str, Any]:
    """Return a recorded run."""
    return {
        "workload": workload, "scheduler": scheduler, "interval_s": 360, "jobs": 160,
        "mean_jct_s": jct_h * 3600, "p99_jct_s": 7200.0, "makespan_s": makespan_h * 3600,
        "restarts": 7, "cpu_s": 60.0, "date": "2026-11-26", "versions": {"python": "3.11"},
    }  # fmt: skip


def test_the_page_begins_with_the_losses(page: ModuleType) -> None:
    """A lost figure is a row with both values; the table of means counts the won workloads."""
    runs = [
        run("saturn-1", "hadar", 1.0, 20.0), run("saturn-1", "gavel", 2.0, 19.0),
        run("philly-1", "hadar", 3.0, 20.0), run("philly-1", "gavel", 4.0, 25.0),
        run("philly-2", "gavel", 9.0, 90.0),
    ]  # fmt: skip
    lines = page.text(runs).splitlines()
    losses = lines.index("## Where hadar loses")
    assert losses < lines.index("## hadar beside each")
    lost = [line for line in lines[losses : losses + 12] if line.startswith("| saturn")]
    assert lost == [
        "| saturn-1 | makespan | `hadar`, 360 s | 20.00 | `gavel`, 360 s | 19.00 | 1.05 |"
    ]
    # Workloads that hadar has not run count for neither.
    assert "| mean JCT | `hadar`, 360 s | `gavel`, 360 s | 2 | 2 | 2.00 | 3.00 | 0.67 |" in lines
    assert "| makespan | `hadar`, 360 s | `gavel`, 360 s | 2 | 1 | 20.00 | 22.00 | 0.91 |" in lines


def test_only_schedulers_with_the_same_jobs_are_compared_as_such(page: ModuleType) -> None:
    """Batch sizes fixed beside tuned, and tuned beside fixed, are tables of their own."""
    runs = [
        run("saturn-1", "hadar", 1.0, 20.0), run("saturn-1", "hadar-tuned", 0.9, 18.0),
        run("saturn-1", "gavel", 2.0, 21.0), run("saturn-1", "sia_fix", 1.5, 19.0),
    ]  # fmt: skip
    same, other = (page.pairs(runs, asked) for asked in (page.SAME, page.OTHER))
    named = [[(pair.ours[0], pair.theirs[0]) for pair in pairs[::2]] for pairs in (same, other)]
    assert named == [
        [("hadar", "gavel"), ("hadar-tuned", "sia_fix")],
        [("hadar", "sia_fix"), ("hadar-tuned", "gavel")],
    ]
    assert not any(pair.lost for pair in same)
    assert [pair.lost for pair in other] == [[], ["saturn-1"], [], []]
    text = page.text(runs)
    assert text.index("On none of these workloads.") < text.index("With other jobs")
    assert "| `hadar-tuned`, 360 s | batch size tuned | 0.90 | 0.90 |" in text


def test_a_mean_over_some_workloads_is_not_shown(page: ModuleType) -> None:
    """Otherwise it would be compared with means over others."""
    runs = [
        run("saturn-1", "hadar", 1.0, 20.0), run("philly-1", "hadar", 3.0, 20.0),
        run("saturn-1", "sia", 1.5, 20.0),
    ]  # fmt: skip
    lines = page.text(runs).splitlines()
    assert "| `hadar`, 360 s | batch size fixed | 1.00 | 3.00 | 2.00 |" in lines
    assert "| `sia`, 360 s | elastic | 1.50 |  |  |" in lines
    assert "On none of these workloads." in lines


def test_the_page_is_that_of_the_recorded_runs(page: ModuleType) -> None:
    """README.md is what the script writes from runs.jsonl and bounds.jsonl."""
    runs = [json.loads(line) for line in (SIA / "runs.jsonl").read_text("utf-8").splitlines()]
    bounds = map(json.loads, (SIA / "bounds.jsonl").read_text("utf-8").splitlines())
    assert (SIA / "README.md").read_text("utf-8") == page.text(runs, list(bounds))


def runs(theirs_h: float) -> list[dict[str, Any]]:
    """Return recorded runs in which sia_fix has this makespan."""
    return [
        {"workload": "saturn-1", "scheduler": name, "interval_s": 360, "makespan_s": hours * 3600}
        for name, hours in (("hadar", 12.0), ("sia_fix", theirs_h))
    ]


@pytest.mark.parametrize(
    ("theirs_h", "said"),
    [
        (11.0, "is below it on 0 of 1. So it does not show"),
        (9.0, "is below it on 1 of 1. There no scheduler"),
    ],
)
def test_the_page_says_what_the_bound_shows(page: ModuleType, theirs_h: float, said: str) -> None:
    """That no scheduler can be better, or that this is not known."""
    bound = {"workload": "saturn-1", "bound_s": 36000.0, "job": "a-0", "gpu_type": "fast"}
    lines = page.bounded(runs(theirs_h), [bound])
    assert said in " ".join(lines).replace("\n", " ")
    assert f"| saturn-1 | a-0 | fast | 10.00 | 12.00 |  | {theirs_h:.2f} |" in lines
