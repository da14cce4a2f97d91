"""The page of what a site gains: losses first, then no moves and decision times, then tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
PLAIN_H = {"slurm": 9.5, "slurm:list": 9.0, "slurm:list:open": 9.6, "slurm:list:look": 9.7}
TIMES_H = {"hadar": 5.0, "srsf": 6.0, "las": 7.0, **PLAIN_H}


@pytest.fixture
def gains(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script as a module."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import site_gains

    return site_gains


def a_run(policy: str, sizes: str, movable: int, hours: float) -> dict[str, Any]:
    """Return a run as `hadar compare --json` prints it, with what the page needs."""
    return {
        "policy": f"{policy} (sizes {sizes})", "bare_policy": policy, "sizes": sizes,
        "status": "done", "movable": float(movable),
        "jobs": 50, "cluster": "4xV100", "load": 90.0, "seed": None, "made": "today",
        "machine": "a machine", "versions": {"hadar_slurm": "9"},
        "mean_jct_s": 3600 * hours, "ttd_s": 36_000 * hours, "p99_slowdown": 10 * hours,
        "bound_mean_jct_gang_s": 3600 * 4.0, "bound_ttd_gang_s": 36_000 * 4.0,
        "decision_ms_p50": 2.0 + movable / 100, "decision_ms_p99": 30.0,
    }  # fmt: skip


def a_grid(gains: ModuleType, changes: Mapping[tuple[str, int, str], float]) -> list[Any]:
    return [
        a_run(policy, sizes, share, changes.get((sizes, share, policy), hours))
        for sizes in gains.SIZES
        for share in gains.MOVABLE
        for policy, hours in TIMES_H.items()
    ]


def a_tree(gains: ModuleType, changes: Mapping[tuple[str, int, str], float]) -> dict[str, Any]:
    gain = {
        "policy": "hadar (sizes learned, 30 % movable)", "sizes": "learned", "movable": 30.0,
        "gain": 0.126,
        "interval": [-0.02, 0.251], "opponent": "slurm:list (sizes learned)",
    }  # fmt: skip
    few = {**gain, "sizes": "prior", "movable": 0.0, "interval": None}
    return {"runs": a_grid(gains, changes), "gains": [gain, few]}


def shares_of(gains: ModuleType) -> dict[str, Any]:
    part = {"users": 5, "jobs": 50, "mean_jct_before_s": 36_000.0, "mean_jct_s": 18_000.0}
    none = {**part, "users": 0, "jobs": 0, "mean_jct_before_s": None, "mean_jct_s": None}
    rows = [
        {"percent": float(percent), "policy": policy, "seed": 0, "all": part, "adopters": part,
         "others": none if percent == 100 else part}
        for percent in gains.ADOPTION
        for policy in (gains.JUDGED, *gains.PEERS)
    ]  # fmt: skip
    runs = [
        {
            "adoption": float(percent),
            "seed": 0,
            "bound_mean_jct_gang_s": 9000.0,
            "status": "done",
            "made": "later",
            "machine": "another",
        }
        for percent in gains.ADOPTION
    ]
    return {"adoption": rows, "runs": runs}


def test_plain_slurm_stands_beside_all_that_moves(gains: ModuleType) -> None:
    """It runs once for all shares; once for what is known, or for each where jobs lack limits."""
    others = [run for run in a_grid(gains, {}) if not run["bare_policy"].startswith("slurm")]
    once = a_run("slurm", "oracle", 0, 3.0)
    each = [a_run("slurm", sizes, 0, n) for n, sizes in enumerate(gains.SIZES)]
    for run in (once, *each):
        del run["movable"]
    found = gains.grid([once, *others])
    assert {runs["slurm"]["mean_jct_s"] for runs in found.values()} == {3 * 3600.0}
    assert len(found) == len(gains.SIZES) * len(gains.MOVABLE)
    found = gains.grid([*each, *others])
    for (sizes, _), runs in found.items():
        assert runs["slurm"]["mean_jct_s"] == 3600.0 * gains.SIZES.index(sizes)


def test_where_hadar_loses_comes_first(gains: ModuleType) -> None:
    """Every loss beyond chance, the largest first, with both figures and the winner."""
    tree = a_tree(gains, {("limit", 30, "hadar"): 6.6, ("prior", 0, "las"): 2.5})
    text = gains.page(tree, shares_of(gains), [["compare", "x"]], "Drawn.")
    losses = text.partition("## Beside the strongest")[0].partition("not the best\n")[2].strip()
    first, *others = losses.splitlines()
    assert first.startswith(
        "* mean JCT, nothing known, 0 % of the jobs movable: 5.00 h, `las` 2.50"
    )
    assert "(100 % more)" in first
    # Three figures of the one and of the other.
    assert len(others) == 5
    assert (
        "time limits known, 30 % of the jobs movable: 6.60 h, `srsf` 6.00 h (10 % more)" in losses
    )


def test_who_waits_longer_where_some_adopt_is_among_the_losses(gains: ModuleType) -> None:
    """By how much others do, and where a peer serves all users better; the rest is no loss."""
    shares = shares_of(gains)
    worse = {"users": 5, "jobs": 50, "mean_jct_before_s": 36_000.0, "mean_jct_s": 54_000.0}
    for row in shares["adoption"]:
        if (row["percent"], row["policy"]) == (10.0, "hadar"):
            row["others"] = worse
        if (row["percent"], row["policy"]) == (30.0, "las"):
            row["all"] = {**row["all"], "mean_jct_s": 9000.0}
    text = gains.page(a_tree(gains, {}), shares, [["compare", "x"]], "Drawn.")
    losses = text.partition("## Beside the strongest")[0].partition("not the best\n")[2].strip()
    assert losses.splitlines() == [
        "* mean JCT with 30 % of the users under hadar, history known: all users 5.00 h, under "
        "`las` 2.50 h (100 % more)",
        "* mean JCT with 10 % of the users under hadar, history known: others 15.00 h, before "
        "10.00 h (50 % more)",
    ]


def test_all_figures_stand_beside_bound_and_best_peer(gains: ModuleType) -> None:
    text = gains.page(a_tree(gains, {}), shares_of(gains), [["compare", "x"]], "Drawn.")
    assert "nowhere in these runs" in text
    assert "5.00 h under `hadar`, 6.00 h under `srsf`" in text
    assert "2.0 to 3.0 ms" in text
    row = "| history | 30 % | 5.00 h | 6.00 h `srsf` | 0.83 | 9.00 h `slurm:list` | 4.00 h |"
    assert text.count(row) == 1
    few = "| nothing | 0 % | 13 % | not known | `slurm:list` |"
    several = "| history | 30 % | 13 % | -2 to 25 % | `slurm:list` |"
    assert f"{few}\n{several}" in text
    assert "| 10 % | `hadar` | 5.00 h, before 10.00 h (-50 %) |" in text
    assert "| 100 % | `hadar` |" in text
    assert text.count("| - | 2.50 h |") == 3
    assert "hadar compare x" in text


def test_jobs_ended_by_their_limits_are_told_where_there_are_any(gains: ModuleType) -> None:
    tree = a_tree(gains, {})
    heading = "## Jobs ended by their time limits"
    about = shares_of(gains), [["compare", "x"]], "Drawn."
    assert heading not in gains.page(tree, *about)
    tree["runs"][0] |= {"killed": 19, "killed_share": 0.346}
    text = gains.page(tree, *about)
    assert text.index(heading) < text.index("## By what is known")
    assert "| nothing | 0 % | 19 (35 %) | 0 (0 %) | 0 (0 %) | 0 (0 %) | 0 (0 %) |" in text


def test_the_picture_is_drawn(gains: ModuleType, tmp_path: Path) -> None:
    """Also where all users have adopted, so that no others are left."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "gains.png"
    gains.draw(gains.grid(a_grid(gains, {})), shares_of(gains), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_failed_run_makes_no_page(gains: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "grid").mkdir()
    failed = {"policy": "las", "status": "failed", "error": "it broke"}
    (tmp_path / "grid" / "compare.json").write_text(json.dumps({"runs": [failed]}))
    with pytest.raises(SystemExit, match="it broke"):
        gains.read(tmp_path, "grid")


def test_the_histories_are_read_as_slurms(gains: ModuleType) -> None:
    """The drawn history has users, names, limits and types, and is the same for the same seed."""
    from site_history import histories

    from hadar_slurm.lab.inputs import read_table
    from hadar_slurm.lab.traces.load import parse_trace

    before, later = histories(20, 30, seed=1)
    assert (before, later) == histories(20, 30, seed=1)
    trace = parse_trace(later, "later", read_table(None))
    assert len(trace.jobs) == 20
    assert all(job.user and job.name and job.limit_steps > 0 for job in trace.jobs)
    assert set().union(*trace.held.values()) <= {"v100", "p100", "k80"}
