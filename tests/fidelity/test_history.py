"""What `hadar compare` says of histories whose waits come from a real slurmctld.

The plays are those of benchmarks/results/slurm_fidelity, written as `sacct` prints them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hadar_slurm.cli.main import app

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def fidelity(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the package with its modules."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import slurm_fidelity.__main__
    import slurm_fidelity.histories

    return slurm_fidelity


def compare(
    fidelity: ModuleType, name: str, policies: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], str]:
    """Return what `hadar compare` finds on the first play of a list, and its page."""
    files = fidelity.__main__
    jobs = fidelity.jobs.read_lists(files.LISTS)[name]
    play = next(each for each in fidelity.jobs.read_plays(files.PLAYS) if each.list == name)
    path, output = tmp_path / f"{name}.sacct", tmp_path / "out"
    path.write_text(fidelity.history.history(jobs, play), encoding="utf-8")
    words = [str(path), *fidelity.histories.cluster_options(jobs), "--output", str(output)]
    words += ["--policy", policies] if policies else []
    monkeypatch.setattr(sys, "argv", ["hadar", "compare", *words])
    with pytest.raises(SystemExit) as end:
        app()
    assert not end.value.code
    page = (output / "report.html").read_text(encoding="utf-8")
    return json.loads((output / "compare.json").read_text(encoding="utf-8")), page


def nearest(found: dict[str, Any]) -> float:
    """Return the mean JCT of the nearest plain Slurm over the recorded one, minus 1."""
    known = [run["recorded"] for run in found["runs"] if run["policy"].startswith("slurm")]
    return min((r["simulated_jct_s"] / r["mean_jct_s"] - 1 for r in known), key=abs)


@pytest.mark.parametrize("name", ["ef06", "philly1", "single"])
def test_plain_slurm_is_near_what_a_real_one_did(
    fidelity: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a Slurm that is set up as assumed, the nearest plain one is within 10 %, and that is said.

    The comparison sees nothing of the site but what `sacct` shows of the jobs.
    """
    usual = ",".join(fidelity.histories.USUAL)
    found, page = compare(fidelity, name, usual, tmp_path, monkeypatch)
    off = nearest(found)
    assert abs(off) <= 0.10
    [said] = found["verdict"]
    assert f"{name}: what happened is a mean completion time of" in said
    assert said.endswith(f"h, {abs(off) * 100:.0f} % {'more' if off > 0 else 'less'}.")
    assert said in page


def test_of_a_slurm_that_is_set_up_otherwise_no_gain_is_stated(
    fidelity: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a real Slurm without multifactor priorities no gain is stated, and the page says why.

    With the words for that Slurm the nearest one is within 10 %, and the gain is stated.
    """
    found, page = compare(fidelity, "over-nodes", "", tmp_path, monkeypatch)
    assert "hadar" in {run["policy"].partition(" ")[0] for run in found["runs"]}
    assert abs(nearest(found)) > 0.15
    [said] = found["verdict"]
    assert "That is too far to state a gain: Slurm was set up otherwise than assumed" in said
    assert "too far to state a gain" in page
    assert "would shorten" not in page
    words = f"hadar,{fidelity.histories.described(a_list_of(fidelity, 'over-nodes'))}"
    told, _ = compare(fidelity, "over-nodes", words, tmp_path, monkeypatch)
    assert abs(nearest(told)) <= 0.10
    assert "hadar would shorten the mean completion time by" in told["verdict"][0]


def a_list_of(fidelity: ModuleType, name: str) -> Any:
    """Return a list that was played."""
    return fidelity.jobs.read_lists(fidelity.__main__.LISTS)[name]
