"""The preview of a submission: throughput and duration on each GPU type."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest
from builders import a_cluster, some_rates

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.gpu_types import GpuFacts, Needs
from hadar_slurm.core.job import Shape
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.submit.decision import Call, Decision
from hadar_slurm.submit.describing.preview import TypePreview, as_json, as_text, choices

TABLE = ThroughputTable("test", {"A": some_rates(V100=10.0, K80=1.0, P100=0.0)})
# An H100 is twice as fast as a V100.
ESTIMATOR = Estimator(
    TABLE,
    {
        "v100": GpuFacts(2.0, 16.0, 7.0),
        "k80": GpuFacts(0.2, 12.0, 3.7),
        "p100": GpuFacts(None, 16.0, 6.0),
        "h100": GpuFacts(4.0, 80.0, 9.0),
    },
)
CLUSTER = a_cluster("4xV100,4xK80,1xP100,8xH100")


def job(gpus: int = 1, shape: Shape | None = None, **throughputs: float) -> Description:
    """Return a job of 36000 steps, with the table's rates unless rates are given."""
    return Description(steps=36000, gpus=gpus, shape=shape, workload="A", throughputs=throughputs)


def test_the_fastest_type_comes_first_and_what_would_not_run_last() -> None:
    """Hours are steps over speed; published speeds apply where the table has none."""
    found = choices(job(), CLUSTER, ESTIMATOR)
    assert [(one.gpu_type, one.steps_per_s, one.why_not) for one in found] == [
        ("H100", 20.0, ""),
        ("V100", 10.0, ""),
        ("K80", 1.0, ""),
        ("P100", None, "does not fit"),
    ]
    assert [one.hours for one in found] == [0.5, 1.0, 10.0, None]
    assert {one.origin for one in found[:3]} == {"published"}


def test_a_job_with_a_time_limit_alone_has_hours_and_no_speed() -> None:
    """It takes its time limit on the slowest type; its steps/s are unknown."""
    found = choices(Description(limit_s=7200.0, workload="job:x"), CLUSTER, ESTIMATOR)
    slow = found[-1]
    assert (slow.gpu_type, slow.steps_per_s, slow.hours) == ("K80", None, pytest.approx(2.0))
    assert "?" in as_text(call(Description(limit_s=7200.0, workload="job:x")))


def test_a_type_that_is_not_what_the_job_needs_comes_with_the_reason() -> None:
    """The table says of each type that the job may not have why."""
    needs = Needs(types=("v100", "h100"), memory_gb=40)
    found = {one.gpu_type: one for one in choices(replace(job(), needs=needs), CLUSTER, ESTIMATOR)}
    assert {name: one.why_not for name, one in found.items()} == {
        "H100": "",
        "V100": "its memory is 16 GB, 40 GB is needed",
        "K80": "only v100, h100 may be used",
        "P100": "only v100, h100 may be used",
    }
    assert found["H100"].hours == 0.5


@pytest.mark.parametrize(
    ("gpus", "shape", "cluster", "speed"),
    [
        (4, None, "4xV100", 40.0),
        (4, None, "2xV100,2xV100", 32.0),
        (4, Shape(2, 2), "4xV100,4xV100", 32.0),
        (4, Shape(1, 4), "2xV100,2xV100", None),
        (4, Shape(2, 2), "4xV100", None),
        (8, None, "4xV100", None),
    ],
)
def test_the_speed_is_that_of_the_best_layout(
    gpus: int, shape: Shape | None, cluster: str, speed: float | None
) -> None:
    """The speed is that within a node if the gang fits there, else the lower one across nodes."""
    found = {one.gpu_type: one for one in choices(job(gpus, shape), a_cluster(cluster), ESTIMATOR)}
    assert found["V100"].steps_per_s == speed
    assert found["V100"].why_not == ("" if speed else "too few for the gang")


def test_rates_of_its_own_outweigh_the_table() -> None:
    """Given rates replace those of the table, and are for the whole gang."""
    found = choices(job(4, h100=20.0), CLUSTER, ESTIMATOR)
    assert found[0] == TypePreview("H100", 8, 20.0, 0.5, "given", 1.11)
    assert {one.steps_per_s for one in found[1:]} == {None}
    assert "no throughput is given" in {one.why_not for one in found[1:]}


def call(description: Description | None = None, cluster: Cluster | None = CLUSTER) -> Call:
    argv, variables = ("sbatch", "--hold", "a b"), {"HADAR_SPOOL": "/x y"}
    decision = Decision(False, "because")
    return Call(argv, decision, variables, ("n",), description, cluster, ESTIMATOR)


def test_the_call_can_be_pasted_into_a_shell() -> None:
    """The call includes the variables of hadar-sbatch; the table follows."""
    first, empty, head, best, *rest = as_text(call(job())).splitlines()
    assert shlex.split(first) == ["HADAR_SPOOL=/x y", "sbatch", "--hold", "a b"]
    assert (empty, head.split()) == (
        "",
        ["GPU", "type", "GPUs", "steps/s", "hours", "known", "from"],
    )
    assert best.split()[:4] == ["H100", "8", "20", "0.5"]
    assert best.endswith("published, +/- x1.49, chosen first")
    assert rest[2].split() == ["P100", "1", "-", "-", "does", "not", "fit"]
    assert sum("chosen first" in line for line in [best, *rest]) == 1


@pytest.mark.parametrize("one", [call(), call(job(), None)])
def test_without_a_job_of_ours_or_a_cluster_there_is_no_table(one: Call) -> None:
    """Without a description or a cluster only the call is printed."""
    assert len(as_text(one).splitlines()) == 1
    assert json.loads(as_json(one))["choices"] == []


def test_json_tells_the_same() -> None:
    """The JSON has the same data; the job's id is null before the submission."""
    one = call(job(v100=20.0), a_cluster("4xV100,4xK80"))
    assert json.loads(as_json(one)) == {
        "job": None,
        "cluster": None,
        "taken": False,
        "why": "because",
        "is_held": False,
        "sbatch": ["sbatch", "--hold", "a b"],
        "environment": {"HADAR_SPOOL": "/x y"},
        "notes": ["n"],
        "choices": [
            {"gpu_type": "V100", "gpus": 4, "steps_per_s": 20.0, "hours": 0.5, "origin": "given",
             "spread": 1.11, "why_not": ""},
            {"gpu_type": "K80", "gpus": 4, "steps_per_s": None, "hours": None, "origin": "",
             "spread": None, "why_not": "no throughput is given"},
        ],
    }  # fmt: skip
    assert json.loads(as_json(call(), "7", "c"))["job"] == "7"
