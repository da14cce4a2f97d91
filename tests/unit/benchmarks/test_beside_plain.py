"""Sections on plain Slurm of the pages of results, and what stays where only it is run again."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
HOUR_S = 3600.0


class Pages(NamedTuple):
    """The scripts as modules."""

    beside: ModuleType
    generality: ModuleType
    field: ModuleType


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> Pages:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import beside_plain
    import field
    import generality

    return Pages(beside_plain, generality, field)


def a_run(policy: str, jct_h: float, **others: Any) -> dict[str, Any]:
    """Return a run as `hadar compare --json` prints it, with what the pages need."""
    return {
        "policy": policy, "bare_policy": policy.partition(" ")[0], "status": "done",
        "sizes": "learned" if "learned" in policy else "oracle", "trace": "t", "load": None,
        "seed": None,
        "mean_jct_s": HOUR_S * jct_h, "ttd_s": HOUR_S * 10 * jct_h, "p99_slowdown": jct_h,
        "max_wait_s": HOUR_S * jct_h / 2,
        "made": "2026-11-28T01:02:03", "machine": "a machine", "versions": {}, **others,
    }  # fmt: skip


def some_runs() -> list[dict[str, Any]]:
    """Return a loss of 25 % where nothing moves, and a gain of half where all can."""
    return [
        a_run("hadar (sizes learned, 0 % movable)", 10.0, movable=0.0),
        a_run("hadar (sizes learned, 100 % movable)", 4.0, movable=100.0),
        a_run("slurm", 9.0, ttd_s=HOUR_S * 70),
        a_run("slurm:list:open", 8.0),
        a_run("slurm:list", 1.0, status="failed"),
    ]


def test_a_figure_that_is_0_under_plain_slurm_is_a_loss_without_a_ratio(pages: Pages) -> None:
    """No job waits there; the worst user counts where jobs have users."""
    runs = [
        a_run("hadar (sizes learned, 0 % movable)", 10.0, movable=0.0, max_user_slowdown=3.0),
        a_run("slurm", 12.0, max_wait_s=0.0, max_user_slowdown=2.0),
    ]
    (row,) = pages.beside.compared(runs, [])
    assert row.ratio("max_wait_s") == float("inf")
    lines = pages.beside.section([row])
    assert "| t | history | 0 % | longest wait | 5.00 | 0.00 `slurm` | - |" in lines
    assert "| t | history | 0 % | worst user's slow-down | 3.0 | 2.0 `slurm` | 1.50 |" in lines


def test_the_strongest_plain_slurm_of_each_figure_is_the_opponent(pages: Pages) -> None:
    """Also where plain Slurm ran once for all that hadar knows; failed runs do not count."""
    fixed, moved = pages.beside.compared(some_runs(), [])
    assert (fixed.known, fixed.movable, moved.movable) == ("history", "0 %", "all")
    assert fixed.ratio("mean_jct_s") == pytest.approx(1.25)
    assert (fixed.strongest("mean_jct_s"), fixed.strongest("ttd_s")) == ("slurm:list:open", "slurm")
    assert moved.ratio("mean_jct_s") == pytest.approx(0.5)


def test_losses_come_first_and_every_row_says_what_was_known_and_moved(pages: Pages) -> None:
    gains = [
        {
            "trace": "t", "load": None, "seed": None, "movable": 0.0, "gain": -0.25,
            "policy": "hadar (sizes learned, 0 % movable)", "interval": [-0.4, 0.1],
        }
    ]  # fmt: skip
    others = [run | {"trace": "u"} for run in some_runs()]
    lines = pages.beside.section(pages.beside.compared([*some_runs(), *others], gains))
    text = "\n".join(lines)
    assert lines[0].startswith("* Known of sizes: history; movable: 0 %. The mean JCT of hadar is")
    loss = "| t | history | 0 % | mean JCT | 10.00 | 8.00 `slurm:list:open` | 1.25 |"
    gain = (
        "| t | history | 0 % | 10.00 | 8.00 `slurm:list:open` | 25 % longer "
        "| 40 % longer to 10 % shorter, 1 run |"
    )
    assert text.index("where hadar loses") < text.index(loss) < text.index(gain)
    assert "| t | history | all | 4.00 | 8.00 `slurm:list:open` | 50 % shorter | 1 run |" in text
    assert "1.43" in text.partition("TTD")[2]
    alone = pages.beside.section(pages.beside.compared(some_runs(), gains))
    assert alone[0].startswith("| where hadar loses")


def test_several_seeds_give_a_range_over_their_runs(pages: Pages) -> None:
    runs = [
        *(a_run("hadar", hours, seed=seed) for seed, hours in enumerate((3.0, 5.0))),
        *(a_run("slurm", 5.0, seed=seed) for seed in (0, 1)),
    ]
    gains = [
        {"trace": "t", "load": None, "seed": seed, "policy": "hadar", "gain": gain}
        for seed, gain in enumerate((0.4, 0.0))
    ]
    (row,) = pages.beside.compared(runs, gains)
    assert (row.known, row.movable) == ("true ones", "all")
    assert pages.beside.between(row) == "the same to 40 % shorter, 2 runs"


def test_of_generality_plain_slurm_alone_is_written_again(pages: Pages, tmp_path: Path) -> None:
    """hadar's figures are those of the page, whose other sections stay as they are."""
    tables = [
        f"## {heading}: beside the best peer\n\n| workload | hadar | srsf |\n|---|---:|---:|\n"
        f"| ours: t | {value} (0.50) | 9.00 (1.00) |\n| mean ratio | 0.50 | 1.00 |"
        for heading, value in {
            "mean JCT h": "1,004.00", "TTD h": "50.00", "p99 slow-down": 3, "max wait h": "0.50",
        }.items()
    ]  # fmt: skip
    peers = "\n\n".join([*tables, "*Made 2026-11-25 on a machine.*"])
    kept = f"# How hadar generalises\n\nWords.\n\n## Beside plain Slurm\n\nOld.\n\n{peers}\n"
    runs = [a_run("slurm", hours, seed=n, family="ours") for n, hours in enumerate((900, 1100))]
    (tmp_path / "compare.json").write_text(json.dumps({"runs": runs, "gains": []}))
    text = pages.generality.with_plain(kept, tmp_path)
    head, _, rest = text.partition("## Beside plain Slurm\n")
    assert head.endswith("Words.\n\n")
    assert rest.endswith(peers + "\n")
    assert "Old." not in text
    assert "| ours: t | true ones | all | 1,004.00 | 1,000.00 `slurm` | the same | 2 runs |" in rest
    assert "those of 2026-11-25 in the tables below" in rest.replace("\n", " ")
    assert "*Made 2026-11-28" in rest.partition("## mean JCT h")[0]
    again = pages.generality.with_plain(text, tmp_path)
    assert again == text


def test_of_the_field_a_section_without_its_runs_stays(pages: Pages, tmp_path: Path) -> None:
    """With the day on which it was made; a section whose runs are there is written again."""
    found = {
        (trace, policy, 0.0): {
            "mean_jct_h": 5.0, "p50_jct_h": 2.0, "p95_jct_h": 9.0, "ttd_h": 20.0, "mean_ftf": 1.0,
            "moves": 0, "decision_ms": 1.0, "jct_bound_h": 1.0, "ttd_bound_h": 2.0,
            "made": "2026-11-28",
        }
        for trace in pages.field.TRACES
        for policy in pages.field.PLAIN_SLURMS
    }  # fmt: skip
    kept = "# Old\n\n## Plain Slurm\n\nOld rows.\n\n## Sizes known\n\nOld.\n\n*Made 2026-11-22.*\n"
    text = pages.field.page(found, tmp_path, kept)
    assert "## Sizes known\n\nOld.\n\n*Made 2026-11-22.*\n\n## " in text
    assert "Old rows" not in text
    plain = text.partition("## Plain Slurm\n")[2].partition("\n## ")[0]
    assert plain.count("| slurm:list:open |") == len(pages.field.TRACES)
    assert "*Made 2026-11-28 on" in plain
    assert pages.field.page({}, tmp_path, text) == text


def test_what_another_program_printed_has_the_day_on_which_it_did(
    pages: Pages, tmp_path: Path
) -> None:
    """Not that on which the page is written."""
    printed = tmp_path / "hare.md"
    printed.write_text("Some figures.\n", encoding="utf-8")
    os.utime(printed, (1_790_000_000, 1_790_000_000))
    text = pages.field.page({}, tmp_path)
    assert "Some figures.\n\n*Made 2026-09-21 on" in text
