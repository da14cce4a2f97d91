"""The decision on a submission: its reason is one line, for any options."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.submit.decision import Decision, why_left
from hadar_slurm.submit.describing.describe import describe
from hadar_slurm.submit.describing.summary import summary
from hadar_slurm.submit.gpu_options import GpuOption
from hadar_slurm.submit.request import SbatchRequest, parse_words, with_script

TABLE = ThroughputTable("test", {})
VALUES = st.text(st.sampled_from("0129:,=gpuv/x-. \n"), max_size=8)
GPU_WORDS = st.tuples(
    st.sampled_from(["--gpus", "--gpus-per-node", "--gres", "--tres-per-task", "--gpus-per-task"]),
    VALUES | st.sampled_from(["2", "gpu:2", "v100:2", "gpu"]),
).map("=".join)


def request_of(*words: str, script: str = "") -> SbatchRequest:
    return with_script(parse_words([*words, "job.sh"], {}), lambda *_: script)


def told(request: SbatchRequest) -> str:
    """Return why the job is left to plain Slurm, by its options."""
    reason = why_left(request)
    return reason.why if reason else ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--gpus=4"], [("gpus", 4, ())]),
        (["--gpus=v100:2,k80:1"], [("gpus", 3, ("v100", "k80"))]),
        (["--gpus=v100"], [("gpus", 1, ("v100",))]),
        (["--gpus-per-node=v100:2"], [("gpus-per-node", 2, ("v100",))]),
        (["--gres=gpu"], [("gres", 1, ())]),
        (["--gres=gpu:4,license:2"], [("gres", 4, ())]),
        (["--gres=gpu:v100:2,gpu:1"], [("gres", 3, ("v100",))]),
        (["--gres=gpu_mem:4"], []),
        (["--gres=license:2"], []),
        (["--tres-per-task=cpu:2"], []),
        (["--tres-per-task=gres/gpu:2"], [("tres-per-task", 0, ())]),
        (["--gpus-per-task=v100:2", "-G8"], [("gpus", 8, ()), ("gpus-per-task", 2, ("v100",))]),
    ],
)
def test_options_that_ask_for_gpus(words: list[str], expected: list[GpuOption]) -> None:
    assert request_of(*words).gpus == expected


@given(st.lists(GPU_WORDS, max_size=3), VALUES)
def test_any_words_are_left_described_or_refused(words: list[str], limit: str) -> None:
    """A job that is not left to Slurm requests GPUs of one type or any."""
    request = request_of(*words, f"--time={limit}")
    why = told(request)
    assert Decision(False, why).line.startswith("plain Slurm places this job: ")
    if why:
        return
    try:
        description = describe(request, Estimator.shipped(TABLE))
    except JobSpecError:
        return
    assert description.gpus > 0
    assert description.limit_s > 0
    named = {name.lower() for option in request.gpus for name in option.gpu_types}
    assert set(description.needs.types) == named
    expected = "of any type" if not named else f"of type {named.pop()}"
    assert expected in summary(description, request, TABLE)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--gpus=1", "--time=90"], "1 GPU of any type, up to 1:30:00"),
        (["--gres=gpu:2", "-N2", "--time=2-0"], "4 GPUs of any type on 2 nodes, up to 2-0:00:00"),
        (["--gpus=v100:2", "--hadar-steps=1"], "2 GPUs of type v100, 1 step"),
        (["--gres=gpu:V100:2", "-t60"], "2 GPUs of type v100, up to 1:00:00"),
        (
            ["--gpus=v100:2", "--hadar-types=V100, h100", "-t60"],
            "2 GPUs of type v100 or h100, up to 1:00:00",
        ),
        (
            ["-G1", "--hadar-gpu-memory=40G", "--hadar-compute-capability=8.6", "-t60"],
            "1 GPU of any type with 40 GB and compute capability 8.6, up to 1:00:00",
        ),
        (["--gpus-per-task=1", "-n4", "-t60"], "4 GPUs of any type, up to 1:00:00"),
        (
            ["--gpus-per-task=k80:1", "-N2", "--ntasks-per-node=2", "-t60"],
            "4 GPUs of type k80 on 2 nodes, up to 1:00:00",
        ),
        (["--gpus=4", "--gpus-per-task=2", "-t60"], "4 GPUs of any type, up to 1:00:00"),
        (["--gpus=4", "-N4", "-t60"], "4 GPUs of any type on 4 nodes, up to 1:00:00"),
        (["--gpus=4", "-N1-4", "-t60"], "4 GPUs of any type, up to 1:00:00"),
        (["--gpus=4", "--gpus-per-node=2", "-t60"], "4 GPUs of any type on 2 nodes, up to 1:00:00"),
        (["--gres=gpu:2", "--gpus-per-node=2", "-t60"], "2 GPUs of any type, up to 1:00:00"),
        (
            ["--gres=gpu:2", "-n8", "--ntasks-per-node=4", "-t60"],
            "4 GPUs of any type on 2 nodes, up to 1:00:00",
        ),
        (
            ["--gpus-per-task=1", "-N2", "--tasks-per-node=4", "-t60"],
            "8 GPUs of any type on 2 nodes, up to 1:00:00",
        ),
        (
            ["--gpus-per-socket=v100:2", "--sockets-per-node=2", "-t60"],
            "4 GPUs of type v100, up to 1:00:00",
        ),
        (["--hadar-gang=2x2", "--hadar-steps=9"], "4 GPUs of any type on 2 nodes, 9 steps"),
        (
            ["--hadar-steps=9", "--hadar-copies=3"],
            "1 GPU of any type, in up to 3 copies, 9 steps",
        ),
        (
            ["--hadar-model=X", "--hadar-steps=9", "--time=1"],
            "1 GPU of any type, 9 steps, up to 0:01:00, no throughput is known for X",
        ),
    ],
)
def test_what_hadard_places_in_a_few_words(words: list[str], expected: str) -> None:
    request = request_of(*words)
    description = describe(request, Estimator.shipped(TABLE))
    assert summary(description, request, TABLE) == expected


def test_lines_of_a_script_count_as_words() -> None:
    assert told(request_of(script="#!/bin/sh\n#SBATCH --gpus=k80:1,p4:1\n")) == (
        "GPUs of several types are requested together (k80, p4)"
    )
    assert told(request_of("-G1", script="#SBATCH -t5\n#SBATCH -H\n")) == "--hold is given"
    assert told(request_of("-G1", script="#SBATCH -t5\n#HADAR --no-hadar\n")) == (
        "--no-hadar is given"
    )


def test_the_word_in_a_comment_says_the_same() -> None:
    """Among other words, and also beside options that describe the job."""
    why = "--comment=no-hadar is given"
    assert told(request_of("-G1", script="#SBATCH -t5 --comment=mine,no-hadar\n")) == why
    assert told(request_of("-G1", "--hadar-steps=9", "--comment=no-hadar")) == why
    assert told(request_of("-G1", "-t5", "--comment=no-hadar-here")) == ""


def test_a_job_that_shares_nodes_with_its_own_user_alone_is_left() -> None:
    """hadard counts GPUs: it could pin such a job to a node that other users' jobs use."""
    words = ("-G1", "-t5", "--exclusive=user")
    assert told(request_of(*words)) == "--exclusive=user is given; hadard counts GPUs, not nodes"
    assert told(request_of(*words, "--hadar-model=A3C")) == ""
