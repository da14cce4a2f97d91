"""The shared site: its stream of jobs, its figures, its tables and its options."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from hadar_slurm.cli.main import commands
from hadar_slurm.cli.trials.site import percents_of
from hadar_slurm.config import Config
from hadar_slurm.errors import UsageError
from hadar_slurm.lab.demo.both_runs import WAYS
from hadar_slurm.lab.site.adoption import draw_stream
from hadar_slurm.lab.site.jobs import UserJob
from hadar_slurm.lab.site.play import SETTINGS, Played
from hadar_slurm.lab.site.results import (
    AdoptionRow,
    StreamPlayed,
    adoption_row,
    adoption_table,
    median_wait_s,
    note_lines,
    scenario_row,
    scenario_table,
    summary_tree,
)
from hadar_slurm.lab.site.scenarios import SCENARIOS
from hadar_slurm.lab.site.users import NUM_USERS
from hadar_slurm.lab.traces.adopters import drawn

SCRIPT = Path("/site/work.sh")


@pytest.mark.parametrize("percent", [0, 10, 30, 50, 100])
def test_the_share_of_adopters_is_exact(percent: int) -> None:
    assert len(drawn(40, percent, seed=3)) == 40 * percent // 100


def test_a_larger_share_contains_every_smaller_one() -> None:
    """Shares of one seed differ only by the jobs that are added; another seed draws others."""
    shares = [drawn(40, percent, seed=3) for percent in (0, 10, 30, 50, 100)]
    assert all(small < large for small, large in pairwise(shares))
    assert drawn(40, 50, seed=4) != shares[3]


def test_the_stream_is_drawn_by_its_seed() -> None:
    """The jobs come in order, of all users and sizes, and are the same for the same seed."""
    stream = draw_stream(1)
    assert stream == draw_stream(1) != draw_stream(2)
    assert [job.submit_s for job in stream] == sorted(job.submit_s for job in stream)
    assert {job.user for job in stream} == set(range(NUM_USERS))
    assert {job.work.num_gpus for job in stream} == {1, 2, 4}


def test_both_ways_request_the_same_of_slurm() -> None:
    """hadar-sbatch gets sbatch's words and, before them, Hadar's options."""
    work = UserJob(3.0, num_gpus=2, is_movable=True, options=("--qos=high",))
    plain, hadar = (work.words(SCRIPT, with_hadar=way) for way in (False, True))
    assert plain == ["--gpus=2", "--time=10", "--qos=high", "/site/work.sh", "6", "movable"]
    described = [word for word in hadar if word.startswith("--hadar-")]
    assert hadar == described + plain
    assert "--hadar-throughput=v100=2,p100=1,k80=0.5" in described
    assert "--hadar-checkpoint=yes" in described


def test_work_on_one_node_names_no_type() -> None:
    """A gang on one node is asked for by node, so that hadard keeps it there."""
    words = UserJob(1.0, num_gpus=4, is_on_one_node=True).words(SCRIPT, with_hadar=False)
    assert words[:2] == ["--gpus-per-node=4", "--nodes=1"]


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ([], None),
        ([3.0], 3.0),
        ([5.0, 1.0, 3.0], 3.0),
        ([1.0, 2.0], 1.5),
        ([1.0, None, 2.0], 2.0),
        ([1.0, None], None),
        ([None], None),
    ],
)
def test_a_job_that_did_not_start_waits_longest(
    waits: list[float | None], expected: float | None
) -> None:
    assert median_wait_s(waits) == expected


def test_a_row_has_the_medians_of_all_runs() -> None:
    """Waits and idle GPU-seconds are medians, lost GPUs the most; equal notes appear once."""
    plain = [Played(wait_s, 9, 4.0, "") for wait_s in (1.0, 2.0, 9.0)]
    late = Played(None, 3, 8.0, "PENDING")
    row = scenario_row("age", "hold", plain, [late, late, Played(5.0, 1, 2.0, "")], 5.0)
    assert (row.plain_wait_s, row.hadar_wait_s, row.interval_s) == (2.0, None, 5.0)
    assert (row.lost_gpus, row.idle_gpu_s, row.plain_idle_gpu_s) == (3, 8.0, 4.0)
    assert row.note == "hold: PENDING"


def test_the_rows_of_streams_have_medians() -> None:
    """Plain jobs are compared with themselves: those of one seed differ from the mean of all."""
    ends = {1: {0: 9.0, 1: 20.0}, 2: {0: 8.0, 1: 22.0}, 3: {0: 7.0, 1: 30.0}}
    runs = {n: StreamPlayed(80.0 + n, jcts, frozenset({1}), "") for n, jcts in ends.items()}
    both = frozenset({0, 1})
    twins = {n: StreamPlayed(90.0, {0: 30.0, 1: 19.0 + n}, both, "") for n in ends}
    assert adoption_row(50, runs, twins) == AdoptionRow(50, 82.0, 15.0, 22.0, 21.0, "")
    assert adoption_row(0, twins, twins) == AdoptionRow(0, 90.0, 25.5, 25.5, 25.5, "")
    all_ours = {n: replace(run, plain=frozenset()) for n, run in runs.items()}
    assert adoption_row(100, all_ours, twins) == AdoptionRow(100, 82.0, 15.0, None, None, "")
    unfinished = StreamPlayed(None, {}, frozenset(), "2 jobs had not ended")
    expected = AdoptionRow(100, None, None, None, None, "2 jobs had not ended")
    assert adoption_row(100, {1: unfinished}, twins) == expected


def test_the_summary_is_json_with_its_fields() -> None:
    row = scenario_row("age", "hold", [Played(1.0, 0, 0.0, "")], [Played(None, 0, 7.0, "x")], 5.0)
    tree = summary_tree([row], [AdoptionRow(0, 90.0, 20.0, 20.0, 20.0, "")])
    assert json.loads(json.dumps(tree)) == {
        "scenarios": [
            {
                "name": "age",
                "way": "hold",
                "plain_wait_s": 1.0,
                "hadar_wait_s": None,
                "interval_s": 5.0,
                "lost_gpus": 0,
                "idle_gpu_s": 7.0,
                "plain_idle_gpu_s": 0.0,
                "note": "hold: x",
            }
        ],
        "adoption": [
            {
                "percent": 0,
                "ttd_s": 90.0,
                "mean_jct_s": 20.0,
                "plain_mean_jct_s": 20.0,
                "plain_before_jct_s": 20.0,
                "note": "",
            }
        ],
    }


def test_the_tables_show_waits_side_by_side() -> None:
    """A wait without an end is a dash, and its reason has a line of its own."""
    row = scenario_row("age", "hold", [Played(1.0, 0, 0.0, "")], [Played(None, 2, 7.0, "x")], 5.0)
    stream = AdoptionRow(30, 90.0, 20.0, 21.5, 22.5, "")
    console = Console(record=True, width=80)
    console.print(scenario_table([row]), adoption_table([stream]))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert ["age", "1.0", "s", "-", "2", "7"] in lines
    assert ["30", "%", "90.0", "s", "20.0", "s", "21.5", "s", "22.5", "s"] in lines
    assert note_lines([row], [stream, replace(stream, note="y")]) == [
        "age: hold: x",
        "adoption 30 %: y",
    ]


def test_percentages_are_read_with_zero() -> None:
    assert percents_of("") == []
    assert percents_of("50, 10,100") == [0, 10, 50, 100]
    for text in ("101", "ten", "-5"):
        with pytest.raises(UsageError, match="--adoption"):
            percents_of(text)


def test_every_way_is_a_configuration_of_hadard() -> None:
    """Every way is valid in hadar.yaml, and a mode."""
    for way in WAYS:
        assert Config.model_validate({**SETTINGS, "mode": way}).mode == way


def test_every_scenario_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs/site.md").read_text(encoding="utf-8")
    assert [name for name in SCENARIOS if f"| `{name}` |" not in text] == []
    assert all(name == scenario.name for name, scenario in SCENARIOS.items())


@pytest.mark.parametrize("option", ["--scenario", "--way"])
def test_a_name_that_is_not_there_is_refused_before_anything_starts(option: str) -> None:
    done = CliRunner().invoke(commands, ["site", option, "no-such"])
    assert isinstance(done.exception, UsageError)
    assert f"{option} 'no-such': expected one of" in str(done.exception)
