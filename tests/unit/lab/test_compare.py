"""Cells: their inputs, their records on failure, and the reuse of results."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from builders import a_spec, some_rates
from studies import CLUSTER, a_cell, limited_jobs, some_jobs

from hadar_slurm.core.throughput import Throughputs
from hadar_slurm.errors import UsageError
from hadar_slurm.lab.study.bounds import forking_bound_s
from hadar_slurm.lab.study.compare import Record, run_cell, scale_to_load
from hadar_slurm.lab.study.experiment import ExperimentSettings, forked
from hadar_slurm.lab.study.running.cells import run_cells
from hadar_slurm.lab.study.running.processes import Processes
from hadar_slurm.lab.study.running.record_files import cell_path, read_record
from hadar_slurm.lab.traces.adopters import as_movable
from hadar_slurm.lab.traces.cluster import parse_cluster


class Heard:
    """Records the calls of a watcher."""

    def __init__(self) -> None:
        self.started_: list[int] = []
        self.known: list[int] = []
        self.made: list[int] = []

    def started(self, index: int) -> None:
        self.started_.append(index)

    def progressed(self, index: int, jobs_done: int) -> None:
        assert jobs_done >= 0

    def in_slurm(self, pending: int, running: int) -> None:
        raise AssertionError("these cells run on this machine")

    def finished(self, index: int, record: Record, *, was_known: bool) -> None:
        (self.known if was_known else self.made).append(index)


def test_a_key_changes_with_all_that_determines_a_run() -> None:
    """Jobs, speeds, cluster, policy and settings each change the key."""
    cell = a_cell()
    faster = replace(some_jobs()[0], throughputs=some_rates(V100=11.0, K80=2.0))
    others = [
        a_cell("las"),
        a_cell(specs=some_jobs(3)),
        a_cell(specs=(faster, *some_jobs()[1:])),
        a_cell(specs=(replace(some_jobs()[0], restart_cost_s=9.0), *some_jobs()[1:])),
        a_cell(settings=ExperimentSettings(round_s=60.0)),
        a_cell(settings=ExperimentSettings(rules="gavel")),
        replace(cell, cluster=parse_cluster("4xV100", gpus_per_node=2)),
    ]
    assert len({cell.key, *(other.key for other in others)}) == len(others) + 1


def test_a_name_does_not_change_the_key() -> None:
    """A renamed trace needs no new run."""
    assert a_cell(name="one").key == a_cell(name="other").key


def test_a_record_has_the_figures_and_the_bounds() -> None:
    """A record has every figure of the tables, and bounds below them."""
    record = run_cell(a_cell())
    assert record["status"] == "done"
    assert record["completed"] == 4
    assert record["ttd_over_bound"] >= 1.0
    assert record["mean_jct_over_bound"] >= 1.0
    assert len(record["jcts_s"]) == len(record["gpu_hours"]) == 4
    assert record["bound_mean_jct_s"] <= record["bound_mean_jct_gang_s"]
    assert json.loads(json.dumps(record)) == record


def test_a_policy_that_forks_is_held_against_the_forking_bound() -> None:
    """A cell is forked only if both its policy and its jobs allow copies."""
    specs = tuple(forked(some_jobs(), max_copies=2, aggregation_s=10.0))
    assert not a_cell("srsf", specs=specs).is_forked
    assert a_cell("hadare", specs=specs).is_forked
    assert not a_cell("hadare").is_forked


def test_a_run_that_fails_says_why(tmp_path: Path) -> None:
    """A job that fits nowhere fails its own cell only, and that cell is run again."""
    hopeless = a_cell(specs=(a_spec("1", throughputs=Throughputs()),))
    cells = [hopeless, a_cell()]
    for _ in range(2):
        heard = Heard()
        records = run_cells(cells, tmp_path, way=Processes(2), watcher=heard)
        assert [record["status"] for record in records] == ["failed", "done"]
        assert "never start" in records[0]["error"] or "fit" in records[0]["error"]
        assert 0 in heard.made


def test_what_is_there_is_not_run_again(tmp_path: Path) -> None:
    """A second run reads its results from files, even for a renamed trace; a torn file is rerun."""
    first = run_cells([a_cell()], tmp_path, way=Processes(1), watcher=Heard())
    heard = Heard()
    again = run_cells([a_cell(name="renamed")], tmp_path, way=Processes(1), watcher=heard)
    assert (heard.started_, heard.known) == ([], [0])
    assert again[0]["trace"] == "renamed"
    assert again[0]["ttd_s"] == first[0]["ttd_s"]
    cell_path(tmp_path, a_cell()).write_text('{"version":', encoding="utf-8")
    heard = Heard()
    run_cells([a_cell()], tmp_path, way=Processes(1), watcher=heard)
    assert heard.made == [0]


def test_one_file_serves_cells_that_are_the_same(tmp_path: Path) -> None:
    """Two identical cells are one run with one result file; each keeps its labels."""
    heard = Heard()
    cells = [a_cell(), a_cell(name="other")]
    records = run_cells(cells, tmp_path, way=Processes(2), watcher=heard)
    assert (heard.started_, heard.made, heard.known) == ([0], [0], [1])
    assert [record["trace"] for record in records] == ["few", "other"]
    assert records[0]["ttd_s"] == records[1]["ttd_s"]
    assert len(list((tmp_path / "cells").glob("*.json"))) == 1


def test_plain_slurms_short_runs_come_last(tmp_path: Path) -> None:
    """So that no long run is left at the end; results are in the order of the cells."""
    cells = [a_cell(policy) for policy in ("slurm", "slurm:list", "srsf", "las")]
    heard = Heard()
    records = run_cells(cells, tmp_path, way=Processes(1), watcher=heard)
    assert heard.started_ == [2, 3, 0, 1]
    assert [record["policy"] for record in records] == ["slurm", "slurm:list", "srsf", "las"]


def test_an_interrupt_keeps_what_is_done_and_leaves_no_process(tmp_path: Path) -> None:
    """After an interrupt only the cells without a result are run."""

    class Interrupts(Heard):
        def finished(self, index: int, record: Record, *, was_known: bool) -> None:
            super().finished(index, record, was_known=was_known)
            raise KeyboardInterrupt

    cells = [a_cell(), a_cell("las", specs=some_jobs(12, steps=30_000))]
    with pytest.raises(KeyboardInterrupt):
        run_cells(cells, tmp_path, way=Processes(1), watcher=Interrupts())
    assert read_record(cell_path(tmp_path, cells[0]))
    assert read_record(cell_path(tmp_path, cells[1])) is None
    heard = Heard()
    run_cells(cells, tmp_path, way=Processes(1), watcher=heard)
    assert (heard.known, heard.made) == ([0], [1])
    assert not [name for name in os.listdir(tmp_path / "cells") if not name.endswith(".json")]


def test_load_is_work_over_the_time_in_which_it_comes() -> None:
    """Load is the forking bound over the number of jobs times their mean arrival gap."""
    specs = some_jobs(6)
    for load in (50.0, 100.0, 120.0):
        scaled = scale_to_load(specs, CLUSTER, load)
        at_once = [replace(spec, submitted_s=0.0) for spec in specs]
        least_s = forking_bound_s(at_once, CLUSTER)
        mean_gap_s = scaled[-1].submitted_s / 5
        assert least_s / (6 * mean_gap_s) == pytest.approx(load / 100.0)
        gaps = [b.submitted_s - a.submitted_s for a, b in pairwise(scaled)]
        assert gaps == pytest.approx([mean_gap_s] * 5)


def test_jobs_that_come_at_once_have_no_load() -> None:
    """Scaling jobs without arrival gaps is an error that says what to do."""
    specs = [replace(spec, submitted_s=0.0) for spec in some_jobs()]
    with pytest.raises(UsageError, match="give a trace with arrivals"):
        scale_to_load(specs, CLUSTER, 90.0)


def test_a_larger_movable_share_contains_every_smaller_one() -> None:
    """Shares of the jobs keep their checkpoints; the label of a run says how many."""
    specs = some_jobs(20)
    shares = [
        {spec.job_id for spec in as_movable(specs, percent, seed=1) if spec.can_checkpoint}
        for percent in (0, 30, 100)
    ]
    assert [len(share) for share in shares] == [0, 6, 20]
    assert shares[0] <= shares[1] <= shares[2]
    assert as_movable(specs, 30, seed=1) != as_movable(specs, 30, seed=2)
    cell = a_cell()
    moved = replace(cell, workload=replace(cell.workload, movable=30.0))
    assert "movable" not in cell.labels
    assert moved.labels["movable"] == 30.0
    assert "30 % movable" in str(moved)


def test_jobs_that_their_limits_end_are_in_the_record_and_pass_no_bound() -> None:
    """Bounds are for all steps of all jobs, so there is no ratio to them."""
    record = run_cell(
        a_cell("yarn-cs", specs=limited_jobs(), settings=ExperimentSettings(sizes="limit"))
    )
    assert record["status"] == "done"
    assert record["killed"] == len(record["killed_jobs"]) == 4 - record["completed"] > 0
    assert 0 < record["killed_share"] < 1
    assert record["ttd_over_bound"] is record["mean_jct_over_bound"] is None
    adjusted = a_cell(
        "yarn-cs",
        specs=limited_jobs(),
        settings=ExperimentSettings(sizes="limit", adjusts_limits=True),
    )
    assert adjusted.policy_name == "yarn-cs (sizes limit, time-on)"
    record = run_cell(adjusted)
    assert (record["completed"], record["killed"], record["killed_jobs"]) == (4, 0, [])
    assert record["ttd_over_bound"] >= 1.0
