"""When a real Slurm looked at its queue: what the starts of a play say of it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
# A cycle of backfill, and its first look; main looks .4 s after backfill.
CYCLE_S, FIRST_S, MAIN_S = 1.004, 0.3, 0.4


@pytest.fixture
def fidelity(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the package with its modules."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import slurm_fidelity.passes

    return slurm_fidelity


def a_list(fidelity: ModuleType, number: int) -> Any:
    """Return jobs of one user, one each second, in real time."""
    jobs = fidelity.jobs
    listed = tuple(
        jobs.ListedJob(n, "u0", float(n), 1, 1, {"a": (90.0, 90.0)}, 1) for n in range(number)
    )
    return jobs.JobList("some", "made", (jobs.Pool("a", 9, 8),), listed, compression=1)


def a_play(fidelity: ModuleType, starts: list[float]) -> Any:
    """Return a play with these starts, of jobs that last longer than it."""
    runs = {n: fidelity.jobs.Run(at_s + 0.03, 900.0, ("n1-a-1",)) for n, at_s in enumerate(starts)}
    return fidelity.jobs.Play("some", "22.05", "today", runs)


def test_each_scheduler_looks_in_each_second_of_its_phase(fidelity: ModuleType) -> None:
    """Jobs that overtake job 0 were started by backfill, others in their order also by main."""
    backfill = [FIRST_S + CYCLE_S * n for n in (2, 3, 7, 11, 12, 19, 25, 30)]
    main = [FIRST_S + CYCLE_S * n + MAIN_S for n in (40, 42, 47, 53)]
    starts = [FIRST_S + CYCLE_S * 35, *backfill, *main]
    found = fidelity.passes.passes(a_list(fidelity, len(starts)), a_play(fidelity, starts), 0)
    for looks, known in ((found.backfill_s, backfill), (found.main_s, main)):
        assert all(min(abs(at_s - look_s) for look_s in looks) < 0.01 for at_s in known)
        assert all(gap == pytest.approx(CYCLE_S) for gap in (b - a for a, b in pairwise(looks)))
        assert looks[0] < 1.1
        assert looks[-1] > max(starts) + 50


def test_a_start_out_of_phase_is_no_look(fidelity: ModuleType) -> None:
    """Of two that cannot both be looks the one that fits the others is."""
    backfill = [FIRST_S + CYCLE_S * n for n in (2, 3, 7, 11, 12, 19, 25, 30)]
    starts = [FIRST_S + CYCLE_S * 35, *backfill, FIRST_S + CYCLE_S * 15 + 0.5]
    found = fidelity.passes.passes(a_list(fidelity, len(starts)), a_play(fidelity, starts), 0)
    assert min(abs(starts[-1] - look_s) for look_s in found.backfill_s) > 0.4


def test_looks_may_be_drawn(fidelity: ModuleType) -> None:
    """Then no start matters to them, and each seed has its own."""
    jobs = a_list(fidelity, 3)
    early, late = (a_play(fidelity, starts) for starts in ([0.1, 1.1, 2.1], [0.7, 5.5, 9.2]))
    drawn = fidelity.passes.drawn
    assert drawn(jobs, early, 1) == drawn(jobs, late, 1)
    assert drawn(jobs, early, 1) != drawn(jobs, early, 2)
    looks = drawn(jobs, early, 1).backfill_s
    assert 0.0 <= looks[0] < 1.1
    assert all(1.0 < b - a < 1.01 for a, b in pairwise(looks))
