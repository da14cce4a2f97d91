"""Parsing of traces: the resulting jobs, skipped records, and errors."""

from __future__ import annotations

import contextlib
import csv
import math
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from builders import ROUND, a_cluster, a_spec, some_rates
from hypothesis import example, given
from hypothesis import strategies as st
from strategies import clusters, throughputs

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.job import Job, JobSpec
from hadar_slurm.core.snapshot import GangRules, Snapshot
from hadar_slurm.core.throughput import SPREAD_FACTOR, GangThroughput, Throughputs, ThroughputTable
from hadar_slurm.errors import HadarError
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.lab.traces.cluster import parse_cluster
from hadar_slurm.lab.traces.fields import TraceError
from hadar_slurm.lab.traces.load import (
    FORMS,
    Trace,
    as_gavel_trace,
    check_fits,
    form_of,
    parse_gavel_trace,
    parse_trace,
    without_unfit,
)
from hadar_slurm.lab.traces.workload import hadar_jobs
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.resources import data_file
from hadar_slurm.sim.backend import GAVEL_RULES

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "tests" / "data" / "traces"
SHARED = ROOT.parent / "shared" / "data"
TABLE = parse_table(data_file("throughputs.json").read_text(encoding="utf-8"), "throughputs.json")
PAPER = parse_cluster("20xV100,20xP100,20xK80", gpus_per_node=4)

GAVEL = (DATA / "gavel.trace").read_text(encoding="utf-8")
CSV = (DATA / "elasticflow.csv").read_text(encoding="utf-8")
HISTORY = (DATA / "history.sacct").read_text(encoding="utf-8")
FORM_TEXTS = {"gavel": GAVEL, "elasticflow": CSV, "sacct": HISTORY}


def shared(name: str) -> str:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"../shared/data/{name}, which is not part of the project, is not there")
    return path.read_text(encoding="utf-8")


def jobs_of(text: str, cluster: Cluster | None = None) -> dict[str, JobSpec]:
    return {job.job_id: job for job in parse_trace(text, "t", TABLE, cluster).jobs}


def one(text: str, place: str = "t") -> str:
    """Return the error for an invalid trace."""
    with pytest.raises(TraceError) as caught:
        parse_trace(text, place, TABLE)
    return str(caught.value)


def hours_on(job: JobSpec, gpu_type: str, *, is_spread: bool = False) -> float:
    return job.total_steps / job.throughputs.on(gpu_type, job.num_gpus, is_spread=is_spread) / 3600


# Formats.


@pytest.mark.parametrize("form", FORMS)
def test_the_form_is_found_by_the_first_line(form: str) -> None:
    """The format is detected with any line ends, a byte order mark, and after blank lines."""
    text = FORM_TEXTS[form]
    plain = parse_trace(text, "t", TABLE)
    assert plain.form == form_of(text) == form
    for other in ("\ufeff" + text, text.replace("\n", "\r\n"), text.replace("\n", "\r")):
        assert parse_trace(other, "t", TABLE) == plain
    later = parse_trace("\n \n" + text, "t", TABLE)
    assert later.jobs == plain.jobs


@pytest.mark.parametrize("form", FORMS)
def test_every_job_knows_its_line(form: str) -> None:
    """The place of a job is the line with its id or its values."""
    trace = parse_trace(FORM_TEXTS[form], "dir/file", TABLE)
    lines = FORM_TEXTS[form].splitlines()
    assert set(trace.places) == {job.job_id for job in trace.jobs}
    for job in trace.jobs:
        origin, _, number = trace.place(job).rpartition(":")
        assert origin == "dir/file"
        key = job.workload if form == "gavel" else job.job_id
        assert lines[int(number) - 1].startswith(key)


def test_the_first_jobs_of_a_trace_are_a_trace() -> None:
    """Places and skipped records are kept; None keeps all jobs."""
    trace = parse_trace(HISTORY, "t", TABLE)
    few = trace.first(3)
    assert few.jobs == trace.jobs[:3]
    assert set(few.places) == {job.job_id for job in few.jobs}
    assert few.skipped == trace.skipped
    assert trace.first(None) == trace


# Gavel's format.


def test_gavels_columns() -> None:
    """Workload, gang, steps of the whole gang and arrival; the id is the line number from 0."""
    trace = parse_trace(GAVEL, "t", TABLE)
    assert [
        (job.job_id, job.workload, job.num_gpus, job.total_steps, job.submitted_s)
        for job in trace.jobs
    ] == [
        ("0", "ResNet-50 (batch size 64)", 2, 5000, 0.0),
        ("1", "A3C", 1, 7000, 12.5),
        ("2", "lm (batch size 80)", 4, 1_000_000, 12.5),
    ]
    assert trace.jobs[0].throughputs == TABLE.throughputs("ResNet-50 (batch size 64)")
    assert trace.jobs[2].throughputs == TABLE.throughputs("LM (batch size 80)")
    assert trace.skipped == ()
    assert trace.notes == (
        "priority weights are not used; of jobs with another one than 1: 1",
    )  # fmt: skip


def test_shockwaves_columns() -> None:
    """How a batch size changes, and the duration, stand between Gavel's columns; neither counts."""
    rows = [line.split("\t") for line in GAVEL.splitlines() if line.strip()]
    modes = ("static", "gns", "accordion")
    text = "\n".join(
        "\t".join([*row[:7], mode, *row[7:9], "1418", row[9]])
        for row, mode in zip(rows, modes, strict=True)
    )
    trace = parse_trace(text, "t", TABLE)
    assert trace.jobs == parse_trace(GAVEL, "t", TABLE).jobs
    assert trace.notes[1:] == (
        "batch sizes stay as they are; of jobs that would change theirs: 2",
    )  # fmt: skip


def test_the_jobs_alone() -> None:
    """`parse_gavel_trace` gives the same jobs, with the given restart cost."""
    trace = parse_trace(GAVEL, "t", TABLE)
    assert tuple(parse_gavel_trace(GAVEL.splitlines(), TABLE, "t")) == trace.jobs
    jobs = parse_gavel_trace(GAVEL.splitlines(), TABLE, "t", restart_cost_s=7.0)
    assert {job.restart_cost_s for job in jobs} == {7.0}


@pytest.mark.parametrize(
    "name", ["hadar480_static", "hadar480_burst", "hadar480_load90", "gavel480_static"]
)
def test_gavels_published_traces_are_read_whole(name: str) -> None:
    """With Gavel's own table, all 480 jobs are read and fit the paper's cluster."""
    table = parse_table(shared("gavel_simulation_throughputs.json"), "gavel.json")
    trace = parse_trace(shared(f"{name}.trace"), name, table)
    assert len(trace.jobs) == 480
    check_fits(trace, PAPER)
    check_fits(trace, PAPER, GAVEL_RULES)


def test_forty_thousand_lines_take_about_a_second() -> None:
    """42,841 lines take less than 5 s of processor time (1 s when measured)."""
    text = GAVEL.splitlines()[0] + "\n"
    began = time.process_time()
    assert len(parse_trace(text * 42_841, "t", TABLE).jobs) == 42_841
    assert time.process_time() - began < 5.0


@given(seed=st.integers(0, 99), gap_s=st.sampled_from((0.0, 3.0, 1000.0)))
def test_jobs_survive_being_written_in_gavels_form(seed: int, gap_s: float) -> None:
    """Jobs written in Gavel's format are the same when read again."""
    jobs = hadar_jobs(20, Random(seed).random, TABLE, mean_gap_s=gap_s)
    assert list(parse_trace(as_gavel_trace(jobs), "t", TABLE).jobs) == jobs


@pytest.mark.parametrize("workload", ["", " ", "a\tb", "a\nb"])
def test_a_name_that_would_break_the_line_is_not_written(workload: str) -> None:
    """The error names the job."""
    with pytest.raises(TraceError, match=r"job 1: workload .* cannot be written"):
        as_gavel_trace([a_spec("1", workload=workload)])


# ElasticFlow's format.


def test_elasticflows_columns() -> None:
    """Jobs are sorted by submission, with the recorded duration on the reference type."""
    trace = parse_trace(CSV, "t", TABLE)
    assert [
        (job.job_id, job.workload, job.num_gpus, job.total_steps, job.submitted_s)
        for job in trace.jobs
    ] == [
        ("first", "vgg16 (batch size 64)", 1, 3600, 0.0),
        ("third", "deepspeech2 (batch size 32)", 8, 1000, 300.0),
        ("second", "bert (batch size 128)", 4, 7200, 600.0),
        ("fourth", "somenet", 2, 1200, 1000.0),
    ]
    assert [round(3600 * hours_on(job, "V100")) for job in trace.jobs] == [1800, 500, 1800, 600]
    assert trace.notes[0].startswith("lines are not in the order of submission_time")
    assert "ResNet-50 for vgg16" in trace.notes[1]
    assert "the mean of all models for somenet" in trace.notes[1]


def test_columns_are_found_by_their_heading() -> None:
    """Other column orders, more columns, quotes and capitals give the same jobs."""
    rows = list(csv.DictReader(CSV.splitlines()))
    text = "DURATION,num_gpu,note,model_name,num_iteration,job_id,submission_time\n" + "".join(
        f'{r["duration"]},{r["num_gpu"]},"a, b","{r["model_name"]}",{r["num_iteration"]},'
        f"{r['job_id']},{r['submission_time']}\n"
        for r in rows
    )
    ours, theirs = jobs_of(text), jobs_of(CSV)
    assert ours.keys() == theirs.keys()
    for job_id, job in ours.items():
        assert job.throughputs == theirs[job_id].throughputs
        assert job.workload == theirs[job_id].workload.partition(" (")[0]


@pytest.mark.parametrize(("name", "number"), [("cluster03", 3011), ("cluster10", 260)])
def test_elasticflows_published_traces_are_read_whole(name: str, number: int) -> None:
    """Every line is a job with the recorded duration on V100s, and a longer one on K80s."""
    text = shared(f"elasticflow_{name}.csv")
    trace = parse_trace(text, name, TABLE, PAPER)
    rows = {row["job_id"]: row for row in csv.DictReader(text.splitlines())}
    assert len(trace.jobs) == len(rows) == number
    assert trace.jobs[0].submitted_s == 0.0
    for job in trace.jobs:
        assert 3600 * hours_on(job, "V100") == pytest.approx(float(rows[job.job_id]["duration"]))
        assert hours_on(job, "V100") < hours_on(job, "P100") < hours_on(job, "K80")
    left = without_unfit(trace, PAPER)
    assert len(left.jobs) == sum(int(row["num_gpu"]) <= 60 for row in rows.values())
    check_fits(left, PAPER)


def test_another_reference_type() -> None:
    """Durations may be measured on any type, under the name used in the cluster."""
    cluster = a_cluster("4xV100,4xNVIDIA_A100-sxm4-40gb")
    gpu_types = tuple(cluster.gpus_by_type)
    trace = parse_trace(CSV, "t", TABLE, cluster, reference="a100")
    job = trace.jobs[0]
    assert 3600 * hours_on(job, gpu_types[0]) == pytest.approx(1800)
    assert 3600 * hours_on(job, "V100") == pytest.approx(1800 * 1.54)


# Slurm's history.


def test_slurms_history_becomes_jobs() -> None:
    """Jobs are in order of submission, with users, GPUs, and steps from their run time."""
    trace = parse_trace(HISTORY, "t", TABLE)
    assert [(j.job_id, j.user, j.num_gpus, j.total_steps) for j in trace.jobs] == [
        ("117", "fay", 1, 3600),
        ("101", "ada", 2, 7200),
        ("102", "ben", 4, 3600),
        ("103", "ada", 4, 600),
        ("104", "cleo", 2, 300),
        ("105", "cleo", 1, 1800),
        ("106", "cleo", 2, 1800),
        ("110_1", "eve", 1, 600),
        ("110_2", "eve", 1, 300),
        ("111", "ben", 1, 600),
        ("112", "ben", 1, 3600),
        ("113", "ben", 1, 600),
        ("114", "ada", 4, 90000),
        ("116", "fay", 8, 3600),
        ("120+0", "gil", 4, 1800),
    ]
    # Submitted at 23:59 on 29 February, before midnight.
    assert trace.jobs[0].submitted_s == 0.0
    assert trace.jobs[1].submitted_s == 8 * 3600 + 60


def test_what_is_no_job_is_counted_by_reason() -> None:
    """Each reason has a count and the first place; every line is accounted for."""
    trace = parse_trace(HISTORY, "t", TABLE)
    assert [(s.reason, s.count, s.first) for s in trace.skipped] == [
        ("steps of jobs (sacct -X lists none)", 3, "t:3: 101.batch"),
        ("held no GPU", 2, "t:11: 107"),
        ("never started", 3, "t:12: 108"),
        ("ran for less than a second", 1, "t:21: 115"),
        ("repeated heading", 1, "t:22"),
        ("repeated record", 1, "t:23: 101"),
        ("time of submission not known", 1, "t:28: 121"),
    ]
    assert sum(s.count for s in trace.skipped) + len(trace.jobs) == HISTORY.count("\n") - 1
    assert str(trace.skipped[1]) == "2 left out: held no GPU, such as t:11: 107"


def test_what_was_assumed_is_said() -> None:
    """Notes list states, running jobs, untyped and mixed GPUs, components, and unknown speeds."""
    assert parse_trace(HISTORY, "t", TABLE).notes == (
        "each job trains for as long as it held its GPUs; on other GPU types its throughput "
        "differs by their relative speeds",
        "jobs that did not complete, with their run time: 1 CANCELLED, 1 NODE_FAIL, "
        "1 OUT_OF_MEMORY, 1 TIMEOUT",
        "jobs that had not ended, with their run time so far: 1",
        "jobs on GPUs without a type, counted as V100 (--reference): 1",
        "jobs on several types, with the speed of the slowest: 1",
        "components of heterogeneous jobs, treated as separate jobs: 1",
    )
    other = parse_trace(HISTORY.replace("h100", "quantum9"), "t", TABLE)
    assert other.notes[-1] == (
        "unknown speed of quantum9 relative to V100: only jobs that ran on it can run on it; "
        "give --gpu-speeds quantum9=SPEED"
    )


def test_a_job_takes_its_recorded_time_where_it_ran() -> None:
    """A job takes its recorded time on its type; a mixed gang ran at its slowest type's speed."""
    jobs = jobs_of(HISTORY)
    for job_id, gpu_type in {
        "101": "V100", "103": "V100", "104": "P100", "105": "1g.5gb", "106": "nvidia_a100_1g.5gb",
        "113": "K80", "116": "H100", "117": "V100",
    }.items():  # fmt: skip
        assert 3600 * hours_on(jobs[job_id], gpu_type) == pytest.approx(jobs[job_id].total_steps)
    mixed = jobs["102"]
    assert mixed.throughputs.of_gang(["k80", "v100"], 4, is_spread=True) == pytest.approx(1.0)
    # It ran on two nodes, so this is the speed across nodes.
    assert mixed.throughputs.on("k80", 4) == pytest.approx(1 / SPREAD_FACTOR)
    assert jobs["101"].throughputs.on("v100", 2, is_spread=True) == pytest.approx(SPREAD_FACTOR)


def test_types_of_unknown_speed_are_for_those_who_ran_there() -> None:
    """Only jobs that ran on a type of which nothing is known run there, until a speed is given."""
    cluster, history = a_cluster("8xquantum9,4xV100"), HISTORY.replace("h100", "quantum9")
    jobs = jobs_of(history, cluster)
    assert jobs["116"].throughputs.gpu_types == ("quantum9",)
    assert jobs["101"].throughputs.on("quantum9", 2) == 0.0
    trace = parse_trace(history, "t", TABLE, cluster, gpu_speeds={"quantum9": 5.0})
    told = {job.job_id: job for job in trace.jobs}
    assert told["116"].throughputs.on("V100", 8) == pytest.approx(0.2)
    assert told["101"].throughputs.on("quantum9", 2) == pytest.approx(5.0)
    assert not any("not known" in note for note in trace.notes)


def test_a_history_on_modern_types_needs_no_speeds() -> None:
    """Jobs may run on all of H100, A100, L40S and T4, and the ratios come with their origin."""
    types = ("nvidia_h100_80gb_hbm3", "a100", "l40s", "tesla_t4")
    rows = (record(str(n), alloc=f"gres/gpu:{types[n % 4]}=1") for n in range(1, 9))
    cluster = a_cluster("4xnvidia_h100_80gb_hbm3,4xa100,4xl40s,4xtesla_t4")
    trace = parse_trace(HEAD + "".join(rows), "t", TABLE, cluster)
    for job in trace.jobs:
        assert job.throughputs.run_on_all(types, 1)
    h100, a100, l40s, t4 = (trace.jobs[-1].throughputs.on(name, 1) for name in types)
    assert h100 > a100 > l40s > t4
    assert h100 / a100 == pytest.approx(3350 / 1555)
    assert [(each.gpu_type, each.origin, each.basis) for each in trace.speeds] == [
        ("a100", "measured", ""),
        ("l40s", "bandwidth", "v100"),
        ("nvidia_h100_80gb_hbm3", "bandwidth", "a100"),
        ("tesla_t4", "measured", ""),
    ]


HEAD = "JobID|Submit|Start|ElapsedRaw|AllocTRES|ReqTRES|State|JobName|Account\n"


def record(
    job_id: str = "1",
    *,
    submit: str = "2024-03-01T00:00:00",
    elapsed: str = "60",
    alloc: str = "gres/gpu=1",
    req: str = "",
    name: str = "",
    account: str = "",
) -> str:
    start = "2024-03-01T00:00:00"
    return f"{job_id}|{submit}|{start}|{elapsed}|{alloc}|{req}|COMPLETED|{name}|{account}\n"


@pytest.mark.parametrize(
    ("alloc", "req", "gpus"),
    [
        ("gres/gpu=4", "", {"V100": 4}),
        ("gres/gpu:k80=4,gres/gpu=4", "", {"k80": 4}),
        ("gres/gpu=4,gres/gpu:k80=4", "", {"k80": 4}),
        ("gres/gpu:k80=4", "gres/gpu:v100=4", {"k80": 4}),
        ("gres/gpu=4,gres/gpu:k80=1", "", {"k80": 1, "V100": 3}),
        ("gres/gpu=2", "gres/gpu:p100=2", {"p100": 2}),
        ("gres/gpu=2", "gres/gpu:p100=1", {"V100": 2}),
        ("gres/gpu=2", "gres/gpu:p100=1,gres/gpu:k80=1", {"p100": 1, "k80": 1}),
        ("", "gres/gpu:p100=2", {"p100": 2}),
        ("gres/gpu:1g.5gb=2,gres/gpu:2g.10gb=1,gres/gpu=3", "", {"1g.5gb": 2, "2g.10gb": 1}),
        ("gres/gpu:k80=0,gres/gpu:v100=1,gres/gpumem=4G,gres/gpuutil=70", "", {"v100": 1}),
        ("GRES/GPU:K80=1", "", {"K80": 1}),
    ],
)
def test_gpus_of_a_record(alloc: str, req: str, gpus: dict[str, int]) -> None:
    """`gres/gpu` is the total; untyped GPUs get the requested type, else the reference type."""
    (job,) = parse_trace(HEAD + record(alloc=alloc, req=req), "t", TABLE).jobs
    assert job.num_gpus == sum(gpus.values())
    assert job.throughputs.of_gang(gpus, job.num_gpus, is_spread=False) == pytest.approx(1.0)


def test_time_limits_are_kept() -> None:
    """With the type on which the job ran; one without a limit is none that a limit would end."""
    head = "JobID|Submit|ElapsedRaw|AllocTRES|State|Timelimit\n"
    row = "{job}|2024-03-01T00:00:00|60|gres/gpu=1|COMPLETED|{limit}\n"
    limits = ("01:00:00", "1-00:00:00", "UNLIMITED", "Partition_Limit")
    text = head + "".join(row.format(job=job, limit=limit) for job, limit in enumerate(limits, 1))
    trace = parse_trace(text, "t", TABLE)
    assert [job.limit_s for job in trace.jobs] == [3600.0, 86400.0, math.inf, math.inf]
    assert {job.limit_type.lower() for job in trace.jobs} == {"v100"}
    assert any(note.endswith("with the longest of all: 2") for note in trace.notes)
    raw = text.replace("Timelimit", "TimelimitRaw").replace("01:00:00", "60")
    assert parse_trace(raw, "t", TABLE).jobs[0].limit_s == 3600.0
    mixed = text.replace("gres/gpu=1", "gres/gpu=3,gres/gpu:k80=1,gres/gpu:v100=2")
    assert {job.limit_type for job in parse_trace(mixed, "t", TABLE).jobs} == {"k80"}
    without = parse_trace(HEAD + record(), "t", TABLE)
    assert without.jobs[0].limit_s == math.inf


def test_times_may_be_seconds() -> None:
    """Times may be in seconds, as with SLURM_TIME_FORMAT=%s."""
    trace = parse_trace(HEAD + record("1", submit="1700000100") + record("2", submit="1700000000"),
                        "t", TABLE)  # fmt: skip
    assert [(job.job_id, job.submitted_s) for job in trace.jobs] == [("2", 0.0), ("1", 100.0)]


def test_a_table_of_the_sites_own_knows_jobs_by_name() -> None:
    """A workload named like a job or an account gives the speeds of those jobs."""
    table = ThroughputTable(
        "site",
        {
            "nlp": Throughputs.of(
                {("v100", 1): GangThroughput(10.0), ("a100", 1): GangThroughput(25.0)}
            ),
            "Train": Throughputs.of(
                {
                    ("v100", 1): GangThroughput(4.0),
                    ("v100", 2): GangThroughput(6.0, 5.0),
                    ("a100", 2): GangThroughput(30.0, 10.0),
                }
            ),
        },
    )
    text = HEAD + "".join(
        (
            record("1", account="nlp"),
            record("2", account="chem"),
            record("3", name="train", account="nlp", alloc="gres/gpu=2"),
        )
    )
    trace = parse_trace(text, "t", table, a_cluster("4xA100,4xV100"))
    nlp, other, train = trace.jobs
    assert (nlp.workload, other.workload, train.workload) == ("nlp", "", "train")
    assert nlp.throughputs.on("A100", 1) == pytest.approx(2.5)
    # The mean of 2.5 and 5, ratios on the smallest gang measured on both types.
    assert other.throughputs.on("A100", 1) == pytest.approx((2.5 * 5.0) ** 0.5)
    assert train.throughputs.on("A100", 2) == pytest.approx(5.0)
    assert train.throughputs.on("A100", 2, is_spread=True) == pytest.approx(10 / 6)
    assert "for nlp, train by their own" in trace.notes[0]


# Invalid traces. docs/traces.md shows every one of these messages.

_LINE = GAVEL.splitlines()[0]
_HEADING, _FIRST = CSV.splitlines()[:2]

WRONG = {
    "empty": ("", "my.trace: no job in it; expected a line for each job"),
    "binary": (
        "\x7fELF\x02\x01\x00\x00",
        "my.trace:1: 1 columns, expected 10, or 12 as Shockwave's, with tabs, or the heading of "
        "ElasticFlow's CSV (job_id,submission_time,...) or of sacct -P (JobID|User|...)",
    ),
    "truncated": (
        f"{_LINE}\n{_LINE[:40]}",
        "my.trace:2: 2 columns, expected 10, or 12 as Shockwave's, with tabs; was the line cut?",
    ),
    "negative": (
        _LINE.replace("\t5000\t", "\t-5000\t"),
        "my.trace:1: total steps '-5000': expected a whole number, 1 or more",
    ),
    "nan": (
        _LINE.removesuffix("0") + "nan",
        "my.trace:1: arrival 'nan': expected a number, 0 or more",
    ),
    "infinite": (
        _LINE.replace("\t2\t", "\tinf\t"),
        "my.trace:1: gang size 'inf': expected a whole number, 1 or more",
    ),
    "huge gang": (
        _LINE.replace("\t2\t", "\t1e9\t"),
        "my.trace:1: gang size '1e9': expected at most 100000 GPUs",
    ),
    "huge number": (
        _LINE.replace("\t5000\t", "\t" + "9" * 400 + "\t"),
        f"my.trace:1: total steps '{'9' * 60}'...: expected a whole number, 1 or more",
    ),
    "milliseconds": (
        _LINE.removesuffix("0") + "1700000000000",
        "my.trace:1: arrival '1700000000000': expected seconds, at most 1e+10; are these "
        "milliseconds?",
    ),
    "unknown model": (
        _LINE.replace("ResNet-50 (batch size 64)", "GPT-9"),
        "my.trace:1: workload 'GPT-9' is not in the throughput table, which has A3C, CycleGAN, "
        "LM (batch size 10), LM (batch size 20), LM (batch size 40), ...; give another table with "
        "--throughputs",
    ),
    "unsorted": (
        f"{_LINE.removesuffix('0')}60\n{_LINE}",
        "my.trace:2: arrival 0 s is before the line above's; sort the trace",
    ),
    "csv columns": (
        "job_id,submission_time,num_iteration\n1,2,3",
        "my.trace:1: no column model_name, num_gpu, duration in the heading; expected at least "
        "job_id,submission_time,num_iteration,model_name,num_gpu,duration",
    ),
    "csv cut": (
        f"{_HEADING}\n{_FIRST[:20]}",
        "my.trace:2: 4 columns, expected 8 as in the heading; was the line cut?",
    ),
    "csv quote": (
        f'{_HEADING}\n{_FIRST}\n"open',
        "my.trace:3: not CSV: unexpected end of data; was the line cut?",
    ),
    "csv twins": (
        f"{_HEADING}\n{_FIRST}\n{_FIRST}",
        "my.trace:3: job_id 'first' is already used in my.trace:2; give each job a unique one",
    ),
    "csv no time": (
        f"{_HEADING}\n{_FIRST.removesuffix('1800')}0",
        "my.trace:2: duration '0': expected seconds above 0; remove the job",
    ),
    "csv empty": (
        _HEADING,
        "my.trace: no job in it; expected a line for each job below the heading",
    ),
    "sacct heading": (
        "JobID|State\n1|COMPLETED",
        "my.trace:1: no field submit, elapsedraw, alloctres in the heading; expected what sacct -P "
        "-o JobID,User,Account,Partition,Submit,Start,End,ElapsedRaw,Timelimit,AllocTRES,ReqTRES,"
        "State prints, with its heading (no -n)",
    ),
    "sacct cut": (
        HEAD + record()[:30],
        "my.trace:2: 3 fields, expected 9 as in the heading; was the line cut, or is there a | or "
        "a line break within a value? Put SubmitLine last, and leave out other fields that users "
        "write freely, such as Comment",
    ),
    "sacct id": (
        HEAD + record("job7"),
        "my.trace:2: JobID 'job7': expected a Slurm job id, such as 123, 123_4 or 123+0",
    ),
    "sacct twins": (
        HEAD + record() + record(elapsed="61"),
        "my.trace:3: JobID 1 is already used in my.trace:2, with other values; leave -D "
        "(--duplicates) out of sacct, and keep one record of each job",
    ),
    "sacct time": (
        HEAD + record(submit="yesterday"),
        "my.trace:2: Submit 'yesterday': expected a time such as 2024-03-01T12:00:00; unset "
        "SLURM_TIME_FORMAT for sacct, or set it to %s",
    ),
    "sacct elapsed": (
        HEAD + record(elapsed="-1"),
        "my.trace:2: ElapsedRaw '-1': expected a number, 0 or more",
    ),
    "sacct limit": (
        "JobID|Submit|ElapsedRaw|AllocTRES|State|Timelimit\n"
        "1|2024-03-01T12:00:00|60|gres/gpu=1|COMPLETED|a day",
        "my.trace:2: Timelimit 'a day': expected a time limit such as 1-12:00:00, or UNLIMITED; "
        "leave it out of -o if it is not known",
    ),
    "sacct tres": (
        HEAD + record(alloc="cpu=1,gres/g"),
        "my.trace:2: AllocTRES 'gres/g': expected NAME=COUNT, such as gres/gpu:v100=2; was the "
        "line cut?",
    ),
    "sacct count": (
        HEAD + record(alloc="gres/gpu:v100=-2"),
        "my.trace:2: AllocTRES 'gres/gpu:v100' '-2': expected a whole number, 1 or more",
    ),
    "sacct without gpus": (
        HEAD + record(alloc="cpu=4"),
        "my.trace: no job in it that held GPUs; 1 left out: held no GPU, such as my.trace:2: 1; "
        "does AccountingStorageTRES in slurm.conf name gres/gpu?",
    ),
}

UNFIT = (
    "my.trace:1: job 0: no nodes hold its gang of 8 GPUs; the cluster has 2 K80, 4 V100 on 3 "
    "nodes; give a larger --cluster, or --leave-out-unfit"
)
RATELESS = (
    "my.trace:1: job 0: it runs with 2 GPUs on none of the cluster's types (4 H100), only on k80, "
    "p100, v100; give another --cluster, --throughputs or --gpu-speeds"
)


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named_with_its_line_and_a_remedy(what: str) -> None:
    """The message is the documented one."""
    text, message = WRONG[what]
    assert one(text, "my.trace") == message


def test_the_page_on_traces_shows_every_message() -> None:
    """docs/traces.md contains the messages, word for word."""
    page = " ".join((ROOT / "docs" / "traces.md").read_text(encoding="utf-8").split())
    messages = [*(message for _, message in WRONG.values()), UNFIT, RATELESS]
    assert [message for message in messages if message not in page] == []


@pytest.mark.parametrize(
    "submit",
    ["2024-02-30T00:00:00", "2024-13-01T00:00:00", "2024-00-01T00:00:00", "2024-01-00T00:00:00",
     "2024-01-01T24:00:00", "2024-01-01T00:60:00", "2024-01-01", "1969-01-01T00:00:00",
     "0000-00-00T00:00:00", "99999999999999"],
)  # fmt: skip
def test_what_is_no_time_is_refused(submit: str) -> None:
    """Invalid dates, invalid times of day, and other formats are errors."""
    assert "t:2: Submit" in one(HEAD + record(submit=submit))


# Whether a job fits.


def test_a_gang_that_no_nodes_hold_is_named() -> None:
    """The error has file, line, job, size and remedy; or the job is skipped and counted."""
    text = _LINE.replace("\t2\t", "\t8\t") + "\n" + _LINE.replace("\t2\t", "\t1\t")
    trace = parse_trace(text, "my.trace", TABLE)
    cluster = parse_cluster("4xV100,2xK80", gpus_per_node=2)
    with pytest.raises(TraceError) as caught:
        check_fits(trace, cluster)
    assert str(caught.value) == UNFIT
    left = without_unfit(trace, cluster)
    assert [job.job_id for job in left.jobs] == ["1"]
    assert left.places == {"1": "my.trace:2"}
    (skipped,) = left.skipped
    assert (skipped.reason, skipped.count) == ("fits on no nodes of the cluster", 1)
    check_fits(left, cluster)
    with pytest.raises(TraceError, match="no job of the trace fits the cluster, such as"):
        without_unfit(trace, parse_cluster("1xH100", gpus_per_node=1))


def test_a_job_without_a_rate_on_any_type_is_named() -> None:
    """If the cluster has none of the job's types, the error lists both."""
    trace = parse_trace(GAVEL, "my.trace", TABLE)
    with pytest.raises(TraceError) as caught:
        check_fits(trace, a_cluster("4xH100"))
    assert str(caught.value) == RATELESS


@given(
    cluster=clusters(may_close=False),
    gpus=st.integers(1, 12),
    speed=throughputs(),
    rules=st.sampled_from((GangRules(), GangRules(may_mix_types=False), GAVEL_RULES)),
)
def test_a_job_fits_where_policies_can_place_it(
    cluster: Cluster, gpus: int, speed: Throughputs, rules: GangRules
) -> None:
    """The check agrees with the allocator on an empty, open cluster."""
    spec = a_spec("1", gpus, throughputs=speed)
    snapshot = Snapshot.of(now_s=0.0, cluster=cluster, jobs=[Job(spec)], rules=rules)
    board = Allocator(snapshot, ROUND)
    is_placed = board.start(snapshot.jobs[0], board.gpu_types)
    trace = Trace("gavel", (spec,), {spec.job_id: "t:1"})
    try:
        check_fits(trace, cluster, rules)
    except TraceError:
        assert not is_placed
    else:
        assert is_placed


def test_a_gang_of_mixed_types_fits() -> None:
    """A gang of two types fits by default, but not under Gavel's rules."""
    spec = a_spec("1", 4, throughputs=some_rates(v100=2.0, k80=1.0))
    trace = Trace("gavel", (spec,), {spec.job_id: "t:1"})
    check_fits(trace, a_cluster("2xV100,2xK80"))
    with pytest.raises(TraceError):
        check_fits(trace, a_cluster("2xV100,2xK80"), GAVEL_RULES)


# Arbitrary texts.

_VALUES = st.sampled_from(
    ["", "0", "1", "2", "-1", "nan", "inf", "1e400", "9" * 30, "9" * 5000, "0x1", "²", "\x00",
     "A3C", "first", "101", "101.batch", "7_1", "7_[1-", "7+1", "gres/gpu=1",
     "gres/gpu:v100=2,gres/gpu=2", "gres/gpu:=1", "gres/gpu=", "=", ",,", "Unknown",
     "2024-03-01T00:00:00", '"', "RUNNING", "|", "\t", "1g.5gb", "é\u2028x"]
)  # fmt: skip
_SHAPES: dict[str, Callable[[list[str]], str]] = {
    "gavel": "\t".join,
    "elasticflow": ",".join,
    "sacct": "|".join,
}


@st.composite
def odd_texts(draw: st.DrawFn) -> str:
    """Return a trace of any format with some values, lines and characters changed."""
    form = draw(st.sampled_from(FORMS))
    lines = FORM_TEXTS[form].splitlines()
    (separator,) = {"gavel": "\t", "elasticflow": ",", "sacct": "|"}[form]
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        values = lines[at].split(separator)
        values[draw(st.integers(0, len(values) - 1))] = draw(_VALUES)
        lines[at] = _SHAPES[form](values)
    text = "\n".join(draw(st.permutations(lines)) if draw(st.booleans()) else lines)
    return text[: draw(st.integers(0, len(text)))] if draw(st.booleans()) else text


@given(text=odd_texts() | st.text(max_size=200))
@example(text="a|b")
@example(text="job_id")
@example(text="\ufeff")
@example(text='job_id,"')
def test_nothing_but_named_errors_comes_of_any_text(text: str) -> None:
    """Any text gives a HadarError or a valid trace, which can be checked against a cluster."""
    with contextlib.suppress(HadarError):
        trace = parse_trace(text, "t", TABLE, PAPER)
        assert trace.jobs[0].submitted_s >= 0
        assert all(job.total_steps >= 1 and job.job_id in trace.places for job in trace.jobs)
        arrivals = [job.submitted_s for job in trace.jobs]
        assert arrivals == sorted(arrivals)
        without_unfit(trace, PAPER)


@given(text=odd_texts())
def test_no_record_goes_missing(text: str) -> None:
    """Every line that is not blank is the heading, a job, or counted as skipped."""
    try:
        trace = parse_trace(text, "t", TABLE)
    except HadarError:
        return
    num_lines = sum(bool(line.strip()) for line in text.replace("\r", "\n").split("\n"))
    num_records = num_lines - (trace.form != "gavel")
    if trace.form != "elasticflow" or '"' not in text:
        assert len(trace.jobs) + sum(part.count for part in trace.skipped) == num_records
