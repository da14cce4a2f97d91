"""Which jobs of Slurm's history are the same work, and what hadard learns of those that ended."""

from __future__ import annotations

import math

import pytest
from builders import a_cluster

from hadar_slurm.core.throughput_model import Workload
from hadar_slurm.core.type_failures import Work
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.identity import Shown, workload_of_shown
from hadar_slurm.lab.inputs import read_table
from hadar_slurm.lab.traces.ended import ended_jobs
from hadar_slurm.lab.traces.fields import TraceError
from hadar_slurm.lab.traces.load import parse_trace

CLUSTER = a_cluster("4xV100,4xK80")
HEADING = "JobID|User|Submit|End|ElapsedRaw|AllocTRES|State|JobName|Comment|WorkDir|SubmitLine"


def record(
    number: int,
    *,
    name: str = "fit",
    end: str = "1750001000",
    gpu_type: str = "v100",
    comment: str = "",
    directory: str = "/home/ann/p",
    line: str = "sbatch fit.sh",
    user: str = "ann",
) -> str:
    tres = f"cpu=1,gres/gpu=1,gres/gpu:{gpu_type}=1,node=1"
    return (
        f"{number}|{user}|1750000000|{end}|600|{tres}|COMPLETED|{name}|{comment}|{directory}|{line}"
    )


def text(*records: str) -> str:
    return "\n".join([HEADING, *records]) + "\n"


def names(*records: str) -> list[str]:
    trace = parse_trace(text(*records), "history", read_table(None), CLUSTER)
    return [job.name for job in trace.jobs]


def test_a_history_has_the_workloads_that_hadard_calls_them() -> None:
    """By name, submit line, directory and comment, as for a live job of the same submission."""
    found = names(
        record(1, name="parsl.fit.block-1.1750000000.5"),
        record(2, name="run.sh", line="sbatch -p gpu --time 60 run.sh conf/large.yaml"),
        record(3, name="wrap", line="sbatch --wrap='python -u train.py'"),
        record(4, comment=encode(Description(limit_s=60.0, workload="A3C"))),
    )
    assert found == [
        "job:parsl.fit",
        workload_of_shown(Shown("run.sh", "run.sh conf/large.yaml", "/home/ann/p")),
        workload_of_shown(Shown("wrap", "python -u train.py", "/home/ann/p")),
        "A3C",
    ]


def test_a_history_brings_the_qos() -> None:
    """Where it has the field; policy slurm takes it as it is written."""
    lines = text(record(1)).replace("|User|", "|User|QOS|").replace("|ann|", "|ann|high|")
    trace = parse_trace(lines, "history", read_table(None), CLUSTER)
    assert [job.qos for job in trace.jobs] == ["high"]
    assert [
        job.qos for job in parse_trace(text(record(1)), "h", read_table(None), CLUSTER).jobs
    ] == [""]


def test_a_submit_line_may_have_anything_in_it() -> None:
    """Separators and line breaks in the last field make neither an error nor a job."""
    found = names(
        record(1, line="sbatch --wrap='a | b'"),
        record(2, line="sbatch --wrap='c\nd | e'"),
        record(3),
    )
    assert len(found) == 3
    assert names(record(1, line="sbatch --wrap='unclosed")) == ["job:fit"]


def test_ended_jobs_count_on_the_fastest_type() -> None:
    """A job that still runs, or has no user, says nothing; a slower type's job is shorter."""
    found = ended_jobs(
        text(
            record(1),
            record(2, gpu_type="k80"),
            record(3, end="Unknown"),
            record(4, user=""),
        ),
        "history",
        read_table(None),
        CLUSTER,
    )
    fast, slow = found.jobs
    assert fast.work == slow.work == Work(Workload("ann", "job:fit"), 1)
    assert (fast.job_id, fast.ended_s, fast.service_s) == ("1", 1_750_001_000.0, 600.0)
    assert 0 < slow.service_s < 300.0
    assert "2 left out" in found.notes[-1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("job_id,submission_time\n", "expected what sacct"),
        (text(record(1)).replace("|End|", "|Ended|"), "the field End"),
    ],
)
def test_what_is_no_history_is_named(words: str, said: str) -> None:
    with pytest.raises(TraceError, match=said):
        ended_jobs(words, "history", read_table(None), CLUSTER)


def test_an_ended_job_is_finite() -> None:
    found = ended_jobs(text(record(1)), "history", read_table(None), CLUSTER)
    assert all(math.isfinite(job.service_s) for job in found.jobs)
