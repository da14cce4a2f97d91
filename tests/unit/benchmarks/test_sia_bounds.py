"""The bound on the makespan of jobs with fixed batch sizes.

HADAR_SIA_ARTIFACT names a checkout of Sia's artifact; its test needs the simulator's libraries too.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import ModuleType

import pytest

SIA = Path(__file__).parents[3] / "benchmarks" / "sia"
ARTIFACT = os.environ.get("HADAR_SIA_ARTIFACT")
LIBRARIES = ("pandas", "scipy", "autograd", "cvxpy")


@pytest.fixture
def bounds(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module with the bound."""
    monkeypatch.syspath_prepend(str(SIA))
    import bounds

    return bounds


def test_a_gang_is_tried_in_every_placement(bounds: ModuleType) -> None:
    """Once each, on no more nodes and GPUs than there are."""
    assert list(bounds.placements(4, 3, 3)) == [(3, 1), (2, 2), (2, 1, 1)]
    assert list(bounds.placements(1, 2, 8)) == [(1,)]
    assert list(bounds.placements(9, 2, 4)) == []


def test_the_bound_is_the_latest_end_of_a_job_alone(bounds: ModuleType) -> None:
    """A job waits for the round after its submission; time begins with the first submission."""
    jobs = [{"name": "long", "time": "100"}, {"name": "late", "time": "721"}]
    alone = {"long": bounds.Alone(1000.0, "fast"), "late": bounds.Alone(400.0, "slow")}
    found = bounds.last_end(jobs, alone, 360)
    assert found == {"bound_s": 1080 + 400 - 100, "job": "late", "gpu_type": "slow"}


@pytest.mark.slow
@pytest.mark.skipif(not ARTIFACT, reason="needs Sia's artifact: set HADAR_SIA_ARTIFACT")
@pytest.mark.skipif(
    not all(map(importlib.util.find_spec, LIBRARIES)), reason="needs Sia's libraries"
)
def test_the_bound_is_the_recorded_one(bounds: ModuleType) -> None:
    """It depends on the artifact alone."""
    recorded = map(json.loads, (SIA / "bounds.jsonl").read_text("utf-8").splitlines())
    (same,) = (one for one in recorded if one["workload"] == "saturn-1")
    assert bounds.bound(Path(str(ARTIFACT)), "saturn-1") == same
