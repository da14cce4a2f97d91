"""hadar's gain beside a real Slurm: how it is judged, told, and made known to hadard."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hadar_slurm.jobspec.throughput_table import parse_table

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def fidelity(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the package with its modules."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import slurm_fidelity.gains
    import slurm_fidelity.sections

    return slurm_fidelity


def a_list(fidelity: ModuleType, name: str = "some") -> Any:
    """Return four jobs of a node each, one each 20 s of the list, played ten times as fast."""
    jobs = fidelity.jobs
    listed = tuple(
        jobs.ListedJob(n, "u0", 20.0 * n, 8, 1, {"a": (90.0, 99.0), "b": (300.0, 330.0)}, 1)
        for n in range(4)
    )
    pools = (jobs.Pool("a", 1, 8), jobs.Pool("b", 1, 8))
    return jobs.JobList(name, "made", pools, listed, compression=10)


def a_play(fidelity: ModuleType, jobs: Any, lasts_s: float) -> Any:
    """Return a play in which each job ends this long after its submission."""
    runs = {
        job.number: fidelity.jobs.Run(job.submit_s, job.submit_s + lasts_s, ("n1-a-1",), (8,))
        for job in jobs.jobs
    }
    return fidelity.jobs.Play(jobs.name, "22.05", "today", runs, late_s=0.1, load=2.0)


def test_a_gain_is_the_share_that_the_plain_time_is_shorter_by(fidelity: ModuleType) -> None:
    """Real and simulated, over the means of the plays of the same Slurm; losses come first."""
    worse, better = a_list(fidelity, "worse"), a_list(fidelity, "better")
    plain = [a_play(fidelity, worse, 100.0), a_play(fidelity, better, 300.0)]
    plain.append(a_play(fidelity, better, 500.0))
    steered = [a_play(fidelity, better, 300.0), a_play(fidelity, worse, 120.0)]
    found = fidelity.gains.gains(
        {"worse": worse, "better": better},
        plain,
        steered,
        {("worse", "22.05"): [100.0], ("better", "22.05"): [400.0]},
    )
    assert [gain.jobs.name for gain in found] == ["worse", "better"]
    assert [gain.real for gain in found] == [pytest.approx(-0.2), pytest.approx(0.25)]
    loss = found[0]
    # Two of the jobs get the fast node one after the other, and wait for it, in real seconds.
    assert 9.0 <= min(loss.simulated_steered_s) <= max(loss.simulated_steered_s) <= 33.0
    assert 9.0 <= min(loss.simulated_alone_s) <= max(loss.simulated_alone_s) <= 33.0
    assert loss.off == pytest.approx(100 * (loss.simulated - loss.real))
    assert fidelity.gains.record(found)["mean_off"] == pytest.approx(
        (abs(loss.off) + abs(found[1].off)) / 2
    )


def test_the_section_says_how_far_the_simulated_gain_is_off(fidelity: ModuleType) -> None:
    """In the mean and of each list, with the lists that are within what is asked for."""
    one = {
        "list": "some", "jobs": 4, "plain_s": [10.0], "steered_s": [9.0, 9.4],
        "simulated_plain_s": [10.0], "simulated_steered_s": [8.0], "alone": 0.3, "real": 0.08,
        "simulated": 0.2, "off": 12.0, "late_s": 0.4, "load": 2.4,
    }  # fmt: skip
    tree = {
        "mean_off": 6.5,
        "mean_alone_off": 9.0,
        "lists": [one, one | {"list": "other", "off": -1.0}],
    }
    text = fidelity.sections.gains_section(tree)
    assert "| some | 4 | 1 + 2 | 10.0 | 9.0, 9.4 |" in text
    assert "| 8.0% (6 to 10) | 20.0% | +12.0 | 30.0% | +22.0 | 0.4 | 2 |" in text
    said = " ".join(text.split())
    assert "the mean absolute difference is 6.5 points" in said
    assert "1 of 2 lists are within 5. Alone it is 9.0." in said
    assert "differ by 4.0 points in the mean and by 4.0 at most" in said
    assert "between those of real plays on none, and beyond them on `some`." in said
    apart = {"list": "apart", "steered_s": [7.0, 9.9], "real": 0.155}
    said = " ".join(fidelity.sections.gains_section(tree | {"lists": [one | apart]}).split())
    assert "between those of real plays on `apart`, and beyond them on none." in said


def test_a_record_is_judged_anew_beside_other_plain_simulations(fidelity: ModuleType) -> None:
    """What was simulated under steer is kept."""
    one = {
        "list": "some", "simulated_plain_s": [10.0], "simulated_steered_s": [8.0],
        "simulated_alone_s": [6.0], "simulated": 0.2, "alone": 0.4, "off": 10.0, "real": 0.1,
    }  # fmt: skip
    tree = fidelity.gains.with_plain({"lists": [one]}, {"some": [9.0, 7.0]})
    found = tree["lists"][0]
    assert (found["simulated"], found["alone"]) == (0.0, 0.25)
    assert tree["mean_off"] == pytest.approx(10.0)
    assert tree["mean_alone_off"] == pytest.approx(15.0)


def test_a_section_is_put_in_and_replaced(fidelity: ModuleType) -> None:
    """Before the last sections of the page, once, whatever is written again."""
    put = fidelity.sections.with_section
    page = "# Title\n\n## Lists\n\nmany\n\n## How\n\nso\n"
    once = put(page, "## New", "text\n")
    assert once == "# Title\n\n## Lists\n\nmany\n\n## New\n\ntext\n\n## How\n\nso\n"
    assert put(put(once, "## New", "other\n"), "## New", "text\n") == once


def test_hadard_reads_the_throughputs_of_a_list(fidelity: ModuleType) -> None:
    """Each job is a workload, with its own ratio of the types."""
    jobs = a_list(fidelity)
    table = parse_table(fidelity.steered.throughput_table(jobs), "made")
    throughputs = table.workloads["j3"]
    assert throughputs.on("a", 8) / throughputs.on("b", 8) == pytest.approx(300 / 90)
    spread = throughputs.on("a", 8, is_spread=True)
    assert throughputs.on("a", 8) / spread == pytest.approx(99 / 90)
