"""The row of what happened: the recorded times of a history, beside plain Slurm's."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from builders import a_cluster
from histories import MODERN, modern_history

from hadar_slurm.lab.inputs import read_table
from hadar_slurm.lab.study.compare import Cell, Record, StudyWorkload, run_cell
from hadar_slurm.lab.study.report import Comparison, page
from hadar_slurm.lab.study.summary import ComparableRuns, groups
from hadar_slurm.lab.study.tables import show
from hadar_slurm.lab.traces.load import parse_trace

CLUSTER = a_cluster(",".join(f"8x{name}" for name in MODERN))
# In histories.py each job starts 30 s after its submission.
QUEUED_S = 30.0


@cache
def a_cell(text: str) -> Cell:
    trace = parse_trace(text, "made", read_table(None), CLUSTER)
    jobs = StudyWorkload(name="made", specs=trace.jobs, recorded=trace.recorded)
    return Cell(workload=jobs, cluster=CLUSTER, cluster_name="modern", policy="slurm:list")


@cache
def records() -> tuple[Record, ...]:
    cell = a_cell(modern_history(40))
    return tuple(run_cell(replace(cell, policy=name)) for name in ("slurm:list", "srsf"))


def a_group() -> ComparableRuns:
    (group,) = groups(records())
    return group


def test_the_first_row_is_what_happened() -> None:
    """With the figures that the history has, and "-" for all others; it is never the best."""
    group = a_group()
    happened = group.rows[0]
    assert [entry.policy for entry in group.rows] == ["what happened", "slurm:list", "srsf"]
    trace = parse_trace(modern_history(40), "made", read_table(None), CLUSTER)
    expected_h = sum(QUEUED_S + job.total_steps for job in trace.jobs) / 40 / 3600.0
    assert happened.mean(group.column("mean_jct_h")) == pytest.approx(expected_h)
    assert happened.mean(group.column("queueing_h")) == pytest.approx(QUEUED_S / 3600.0)
    last_s = max(job.submitted_s + QUEUED_S + job.total_steps for job in trace.jobs)
    assert happened.mean(group.column("ttd_h")) == pytest.approx(last_s / 3600.0)
    for name in ("mean_ftf", "utilization", "moves", "off", "ttd_over_bound"):
        assert happened.mean(group.column(name)) is None
    assert all("what happened" not in group.best(column) for column in group.columns)


def test_plain_slurm_stands_with_its_distance_and_other_policies_without() -> None:
    group = a_group()
    plain, other = group.entries
    column = group.columns[0]
    assert column.name == "off"
    happened_s = plain.records[0]["recorded"]["mean_jct_s"]
    off = plain.records[0]["mean_jct_s"] / happened_s - 1
    assert plain.mean(column) == pytest.approx(100 * off)
    assert other.mean(column) is None


@pytest.mark.parametrize(("adoption", "has_distance"), [(0.0, True), (50.0, False)])
def test_with_adoption_the_run_without_any_adopter_has_its_distance(
    adoption: float, has_distance: bool
) -> None:
    cell = replace(a_cell(modern_history(40)), policy="slurm", adoption=adoption)
    assert ("off" in run_cell(cell)) is has_distance


def test_jobs_without_a_start_are_left_out_and_counted() -> None:
    """Then the duration in all is not known either."""
    lines = modern_history(40).splitlines()
    for number in (3, 8):
        fields = lines[number].split("|")
        lines[number] = "|".join([*fields[:3], "Unknown", *fields[4:]])
    (group,) = groups([run_cell(a_cell("\n".join(lines)))])
    assert group.rows[0].policy == "what happened (38 of 40 jobs)"
    assert group.rows[0].mean(group.column("ttd_h")) is None


def test_the_terminal_and_the_page_begin_their_tables_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show([a_group()], [])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    (at,) = (number for number, line in enumerate(lines) if line.startswith("what happened"))
    assert lines[at + 1].startswith("slurm:list")
    rows = page(Comparison("t", "c", records(), [a_group()], num_plotted=0)).split("<tr>")
    (at,) = (number for number, row in enumerate(rows) if "what happened</th>" in row)
    assert "slurm:list" in rows[at + 1]


def test_without_recorded_times_there_is_no_such_row() -> None:
    """Nor where arrivals are those of a load; and records that are known later are a new run."""
    cell = a_cell(modern_history(12))
    other = replace(cell, workload=replace(cell.workload, recorded={}))
    assert cell.key != other.key
    scaled = replace(cell, workload=replace(cell.workload, load=80.0))
    for each in (other, scaled):
        (group,) = groups([run_cell(each)])
        assert group.rows == group.entries
        assert group.columns[0].name == "ttd_h"
