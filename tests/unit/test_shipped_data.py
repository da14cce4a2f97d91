"""The files in hadar_slurm/data: their contents, and that their scripts generate them."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hadar_slurm
from hadar_slurm.core.throughput import Throughputs, ThroughputTable
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.resources import data_file

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "data"
GPU_TYPES = ("k80", "p100", "v100")


@pytest.fixture(scope="module")
def table() -> ThroughputTable:
    path = data_file("throughputs.json")
    return parse_table(path.read_text(encoding="utf-8"), path.name)


@pytest.fixture(scope="module")
def demo() -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(data_file("demo_jobs.json").read_text(encoding="utf-8"))
    return tree


def shared(name: str) -> Path:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"../shared/data/{name}, which is not part of the project, is not there")
    return path


def script(name: str) -> Path:
    path = ROOT / "benchmarks" / name
    if not path.exists():
        pytest.skip(f"benchmarks/{name} is not beside these tests")
    return path


def output_of(name: str, source: Path) -> str:
    package = Path(hadar_slurm.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(script(name)), str(source)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env={"PYTHONPATH": str(package)},
    )
    return done.stdout


def rates_of(table: ThroughputTable, workload: str) -> Throughputs:
    throughputs = table.throughputs(workload)
    assert throughputs is not None, f"{workload} is not in the table"
    return throughputs


def test_the_table_is_what_its_script_makes() -> None:
    """The script generates the shipped throughput table."""
    made = output_of("make_throughput_table.py", shared("gavel_simulation_throughputs.json"))
    assert made == data_file("throughputs.json").read_text(encoding="utf-8")


def test_the_table_holds_gavels_measurements(table: ThroughputTable) -> None:
    """Every row but Recommendation's equals the published figure without sharing, to 5 digits."""
    path = shared("gavel_simulation_throughputs.json")
    gavel = json.loads(path.read_text(encoding="utf-8"))
    num_checked = 0
    for workload, throughputs in table.workloads.items():
        for (gpu_type, size), throughput in throughputs.rows:
            if workload.startswith("Recommendation"):
                continue
            key = f"('{workload}', {size})"
            across = (
                gavel[f"{gpu_type}_unconsolidated"].get(key, {}).get("null") if size > 1 else None
            )
            assert throughput.together == pytest.approx(gavel[gpu_type][key]["null"], rel=1e-4)
            assert throughput.spread == (
                None if across is None else pytest.approx(across, rel=1e-4)
            )
            num_checked += 1
    num_published = sum(
        not key.startswith("('Recommendation") for gpu_type in GPU_TYPES for key in gavel[gpu_type]
    )
    assert num_checked == num_published


def test_the_table_says_where_it_comes_from(table: ThroughputTable) -> None:
    """The file contains the citation, the commit, the licence and notes on odd rows."""
    tree = json.loads(data_file("throughputs.json").read_text(encoding="utf-8"))
    assert "OSDI" in table.source
    assert "github.com/stanford-futuredata/gavel at c4fa400" in table.source
    assert "MIT" in tree["licence"]
    assert "Copyright (c) 2020 Stanford Future Data Systems" in tree["licence"]
    assert any("Recommendation" in note for note in tree["notes"])


def test_every_workload_has_a_rate_on_one_gpu_of_each_type(table: ThroughputTable) -> None:
    """Each of the 26 workloads has a throughput on one GPU of each of the three types."""
    assert len(table.workloads) == 26
    for workload, throughputs in table.workloads.items():
        assert throughputs.gpu_types == GPU_TYPES, workload
        assert all(throughputs.on(gpu_type, 1) > 0 for gpu_type in GPU_TYPES), workload


def test_a_gang_of_one_has_no_rate_across_nodes(table: ThroughputTable) -> None:
    """No row of one GPU has a throughput across nodes, from which gangs would be scaled."""
    for workload, throughputs in table.workloads.items():
        ones = [throughput for (_, size), throughput in throughputs.rows if size == 1]
        assert all(throughput.spread is None for throughput in ones), workload


def test_recommendation_is_faster_on_faster_gpus(table: ThroughputTable) -> None:
    """Recommendation is faster on faster GPU types, unlike in Gavel's simulation table."""
    for batch_size in (512, 1024, 2048, 4096, 8192):
        throughputs = rates_of(table, f"Recommendation (batch size {batch_size})")
        assert throughputs.on("k80", 1) < throughputs.on("p100", 1) < throughputs.on("v100", 1)


def test_the_table_can_be_read_line_by_line() -> None:
    """Each workload is on one line, so that a diff shows one line per change."""
    lines = data_file("throughputs.json").read_text(encoding="utf-8").splitlines()
    assert sum('"k80"' in line for line in lines) == 26


def test_the_demo_is_what_its_script_makes() -> None:
    """The script generates the shipped job list."""
    made = output_of("make_demo_jobs.py", shared("elasticflow_cluster10.csv"))
    assert made == data_file("demo_jobs.json").read_text(encoding="utf-8")


def test_the_demo_follows_its_rule(demo: dict[str, Any]) -> None:
    """The window, the gangs, the arrivals and the durations follow the rule in the file."""
    path = shared("elasticflow_cluster10.csv")
    with path.open(encoding="utf-8", newline="") as file:
        trace = sorted(csv.DictReader(file), key=lambda row: int(row["submission_time"]))
    times = [int(row["submission_time"]) for row in trace]
    gangs = [int(row["num_gpu"]) for row in trace]
    spans = {
        start: times[start + 23] - times[start]
        for start in range(len(trace) - 23)
        if sum(gang >= 2 for gang in gangs[start : start + 24]) >= 3
        and max(gangs[start : start + 24]) >= 4
    }
    start = min(spans, key=lambda start: (spans[start], start))
    window = trace[start : start + 24]
    assert [job["trace_job_id"] for job in demo["jobs"]] == [row["job_id"] for row in window]
    logs = [math.log(int(row["duration"])) for row in window]
    for job, row, log in zip(demo["jobs"], window, logs, strict=True):
        share = (int(row["submission_time"]) - times[start]) / spans[start]
        assert job["num_gpus"] == min(int(row["num_gpu"]), 4)
        assert job["submit_s"] == pytest.approx(30 * share, abs=6e-4)
        place = (log - min(logs)) / (max(logs) - min(logs))
        assert job["v100_s"] == pytest.approx(4 + 12 * place, abs=6e-4)


def test_the_demo_says_where_it_comes_from(demo: dict[str, Any]) -> None:
    """The file contains the citation, the licence and the rule."""
    assert "ASPLOS 2023" in demo["source"]
    assert "Copyright (c) Microsoft Corporation" in demo["licence"]
    assert all(isinstance(sentence, str) for sentence in demo["rule"])


def test_the_demos_jobs_are_whole(demo: dict[str, Any], table: ThroughputTable) -> None:
    """24 jobs in order of arrival, each with the steps of its duration on V100s."""
    jobs = demo["jobs"]
    assert len(jobs) == len({job["id"] for job in jobs}) == 24
    arrivals_s = [job["submit_s"] for job in jobs]
    assert arrivals_s == sorted(arrivals_s)
    assert (arrivals_s[0], arrivals_s[-1]) == (0.0, 30.0)
    assert min(job["v100_s"] for job in jobs) == 4.0
    assert max(job["v100_s"] for job in jobs) == 16.0
    assert sum(job["num_gpus"] >= 2 for job in jobs) >= 3
    assert max(job["num_gpus"] for job in jobs) == 4
    for job in jobs:
        throughput = rates_of(table, job["workload"]).on("v100", job["num_gpus"])
        assert job["total_steps"] == round(job["v100_s"] * throughput)


def test_every_demo_workload_runs_on_every_type(
    demo: dict[str, Any], table: ThroughputTable
) -> None:
    """Throughputs are above zero for 1, 2 and 4 GPUs of each type; no odd row is used."""
    for workload in {job["workload"] for job in demo["jobs"]}:
        assert not workload.startswith(("Recommendation", "ResNet-18 (batch size 16)"))
        assert workload != "ResNet-18 (batch size 32)"
        throughputs = rates_of(table, workload)
        for gpu_type in GPU_TYPES:
            assert all(throughputs.on(gpu_type, size, is_spread=False) > 0 for size in (1, 2, 4))
            assert all(throughputs.on(gpu_type, size, is_spread=True) > 0 for size in (2, 4))


def test_no_demo_job_is_longer_than_two_minutes_anywhere(
    demo: dict[str, Any], table: ThroughputTable
) -> None:
    """Each job takes less than 110 s alone on its slowest GPU type."""
    for job in demo["jobs"]:
        throughputs = rates_of(table, job["workload"])
        slowest = min(throughputs.on(gpu_type, job["num_gpus"]) for gpu_type in GPU_TYPES)
        assert job["total_steps"] / slowest < 110
