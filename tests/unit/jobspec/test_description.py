"""A job's description in Slurm's comment: it is read back, and untrusted ones are checked."""

from __future__ import annotations

import contextlib
import json
import math
from dataclasses import replace

import pytest
from builders import some_rates
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gpu_types import Needs
from hadar_slurm.core.job import JobSpec, Shape, uniform_shapes
from hadar_slurm.core.throughput import Throughputs
from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import (
    MAX_COMMENT,
    MAX_GPUS,
    Description,
    Submitted,
    decode,
    job_spec,
    parse_shape,
)

GOOD = {"hadar": 1, "workload": "A3C", "steps": 100}

shapes = st.builds(Shape, st.integers(1, 8), st.integers(1, 8))


@st.composite
def descriptions(draw: st.DrawFn) -> Description:
    shape = draw(st.none() | shapes)
    throughputs = draw(
        st.dictionaries(st.text(min_size=1, max_size=8), st.floats(1e-9, 1e12), max_size=3)
    )
    checkpoint = draw(st.booleans())
    exempt_s = None if checkpoint else draw(st.none() | st.floats(0, 1e9))
    return Description(
        steps=draw(st.integers(1, 10**15)),
        gpus=shape.num_gpus if shape else draw(st.integers(1, 4096)),
        workload="" if throughputs else draw(st.text(min_size=1, max_size=30)),
        throughputs=throughputs,
        shape=shape,
        checkpoint=checkpoint,
        restart_loss_s=draw(st.floats(1, 1e6)) if checkpoint or exempt_s is not None else 0.0,
        exempt_s=exempt_s,
        restart_cost_s=draw(st.none() | st.floats(0, 1e9)),
        signal="" if checkpoint else draw(st.sampled_from(["", "B:USR1@120", "TERM@60"])),
        asks=draw(st.sampled_from([{}, {"gpus": "v100:2,k80"}, {"gres": "gpu:2", "nodes": "1-3"}])),
        needs=Needs(
            types=draw(st.sampled_from([(), ("a100_1g.5gb",), ("nvidia_a100-sxm4-80gb", "v100")])),
            memory_gb=draw(st.floats(0, 1e6)),
            compute_capability=draw(st.floats(0, 1e3)),
        ),
        comment=draw(st.text(max_size=30)),
    )


@given(description=descriptions())
def test_a_description_survives_the_comment(description: Description) -> None:
    """An encoded description is one printable ASCII line within the limit and is read back."""
    text = encode(description)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) <= MAX_COMMENT
    assert decode(text) == description


def test_the_form_is_the_one_that_jobs_in_the_queue_have() -> None:
    """The encoding stays the same, so that an update can read descriptions in the queue."""
    text = (
        '{"hadar":1,"rates":{"v100":12.5},"steps":5000,"gpus":4,"shape":"2x2",'
        '"checkpoint":true,"restart_cost_s":10.0,"comment":"mine"}'
    )
    description = Description(
        steps=5000,
        gpus=4,
        throughputs={"v100": 12.5},
        shape=Shape(nodes=2, gpus_per_node=2),
        checkpoint=True,
        restart_cost_s=10.0,
        comment="mine",
    )
    assert decode(text) == description
    assert encode(description) == text


@pytest.mark.parametrize(
    "comment",
    ["", "a comment", "{", "[]", "3", '"hadar"', "null", "{}", '{"a": 5}', "[" * 1024, "\ud800"],
)
def test_a_comment_of_the_users_own_is_not_ours(comment: str) -> None:
    """A comment without the key `hadar` is no description."""
    assert decode(comment) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hadar": 2}, "version 2, this reads 1"),
        ({"hadar": None}, "version None, this reads 1"),
        ({"checkpoint": True, "restart_loss_s": "20m"}, "restart_loss_s of the job's description"),
        ({"checkpoint": True, "restart_loss_s": True}, "must be 1 to 2.592e.* s, not True"),
        ({"checkpoint": True, "restart_loss_s": -1}, "must be 1 to 2.592e.* s, not -1"),
        ({"checkpoint": True, "restart_loss_s": math.nan}, "must be 1 to 2.592e.* s, not nan"),
        ({"restart_loss_s": 60}, "may lose work only of a job that saves"),
        ({"hadar": {}}, "version {}, this reads 1"),
        ({"stepz": 5}, "unknown key 'stepz'"),
        ({"steps": 0}, "steps must be a whole number, 1 to 1000000000000000, not 0"),
        ({"steps": -1}, "steps must be a whole number"),
        ({"steps": 1.5}, "steps must be a whole number"),
        ({"steps": "5"}, "steps must be a whole number"),
        ({"steps": True}, "steps must be a whole number"),
        ({"steps": None}, "steps must be a whole number"),
        ({"steps": 10**400}, "steps must be a whole number"),
        ({"gpus": 0}, "GPUs must be a whole number, 1 to 4096, not 0"),
        ({"gpus": MAX_GPUS + 1}, "GPUs must be a whole number"),
        ({"gpus": 10**18}, "GPUs must be a whole number"),
        ({"gpus": [4]}, "GPUs must be a whole number"),
        ({"workload": ""}, "neither a model nor a throughput"),
        ({"shape": "2x2"}, "the shape 2x2 is not a gang of 1 GPUs"),
        ({"shape": "two"}, "expected GPUs per node x nodes"),
        ({"shape": [2, 2]}, "expected GPUs per node x nodes"),
        ({"shape": "1x0"}, "expected GPUs per node x nodes"),
        ({"asks": [1]}, "asks of .* has the wrong form"),
        ({"asks": {"gpus": 2}}, "no request for GPUs and nodes"),
        ({"asks": {"gpus": "2 Priority=1"}}, "no request for GPUs and nodes"),
        ({"asks": {"gpus": "2\nrelease 7"}}, "no request for GPUs and nodes"),
        ({"asks": {"gpus": "2,"}}, "no request for GPUs and nodes"),
        ({"asks": {"nodes": "2\n"}}, "no request for GPUs and nodes"),
        ({"asks": {"priority": "1"}}, "no request for GPUs and nodes"),
        ({"types": "v100"}, "types of .* has the wrong form"),
        ({"types": [1]}, "types of .* has the wrong form"),
        ({"types": ["V100"]}, "no GPU types: V100"),
        ({"types": ["v100\n"]}, "no GPU types"),
        ({"types": ["v100"] * 33}, "no GPU types"),
        ({"memory_gb": "40"}, "memory_gb of .* has the wrong form"),
        ({"memory_gb": -1}, "GPU memory in GB must be 0 to 1e"),
        ({"memory_gb": float("nan")}, "GPU memory in GB must be 0 to 1e"),
        ({"memory_gb": 10**400}, "GPU memory in GB must be 0 to 1e"),
        ({"memory_gb": True}, "GPU memory in GB must be 0 to 1e"),
        ({"capability": [8]}, "capability of .* has the wrong form"),
        ({"capability": 10**400}, "compute capability must be 0 to 1000"),
        ({"rates": [1]}, "rates of .* has the wrong form"),
        ({"rates": None}, "rates of .* has the wrong form"),
        ({"rates": {"v100": "fast"}}, "throughput of v100 must be a number, not 'fast'"),
        ({"rates": {"v100": True}}, "throughput of v100 must be a number, not True"),
        ({"rates": {"v100": None}}, "throughput of v100 must be a number, not None"),
        ({"rates": {"v100": -1}}, "throughput of v100 must be 0 or 1e-09 to"),
        ({"rates": {"v100": float("nan")}}, "throughput of v100 must be 0 or"),
        ({"rates": {"v100": float("inf")}}, "throughput of v100 must be 0 or"),
        ({"rates": {"v100": 10**400}}, "throughput of v100 must be 0 or"),
        ({"rates": {"v100": 1e-320}}, "throughput of v100 must be 0 or"),
        ({"rates": {"v100": 1e300}}, "throughput of v100 must be 0 or"),
        ({"workload": "", "rates": {"v100": 0}}, "the throughput is 0 on every GPU type"),
        ({"restart_cost_s": -1}, "restart cost must be 0 to 1e"),
        ({"restart_cost_s": float("nan")}, "restart cost must be 0 to 1e"),
        ({"restart_cost_s": float("inf")}, "restart cost must be 0 to 1e"),
        ({"restart_cost_s": 10**400}, "restart cost must be 0 to 1e"),
        ({"restart_cost_s": True}, "restart cost must be 0 to 1e"),
        ({"restart_cost_s": "5"}, "restart_cost_s of .* has the wrong form"),
        ({"signal": "KILL@60"}, "no signal by which a job without copies saves: 'KILL@60'"),
        ({"signal": "B:USR1@301"}, "no signal by which"),
        ({"signal": ["USR1"]}, "no signal by which"),
    ],
)
def test_a_description_that_cannot_be_is_refused(changes: dict[str, object], words: str) -> None:
    """A wrong description raises JobSpecError, which names the fault."""
    with pytest.raises(JobSpecError, match=words):
        decode(json.dumps(GOOD | changes))


@pytest.mark.parametrize("value", ["yes", 1, "true", None, [True]])
def test_only_true_means_that_a_job_can_be_moved(value: object) -> None:
    """Any value of `checkpoint` but true means that the job cannot be migrated."""
    description = decode(json.dumps(GOOD | {"checkpoint": value}))
    assert description is not None
    assert description.checkpoint is False


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
)


@given(
    tree=st.dictionaries(
        st.sampled_from(
            ["workload", "rates", "steps", "gpus", "asks", "shape", "checkpoint", "comment"]
        )
        | st.sampled_from(["restart_cost_s", "types", "memory_gb", "capability"]),
        json_values | st.integers(min_value=10**300),
    )
)
def test_nothing_but_a_job_spec_error_comes_of_any_comment(tree: dict[str, object]) -> None:
    """Any JSON gives a description with a valid job spec, or a JobSpecError."""
    with contextlib.suppress(JobSpecError):
        description = decode(json.dumps({"hadar": 1, **GOOD, **tree}))
        assert description is not None
        job_spec(
            Submitted(JobId("1"), 0.0),
            description,
            Throughputs(),
            total_steps=1,
            restart_cost_s=30.0,
        )


@given(text=st.text(max_size=50))
def test_any_text_is_a_comment(text: str) -> None:
    """Text that is not JSON with the key `hadar` is no description."""
    assert decode(text) is None


def test_texts_of_a_description_can_be_written() -> None:
    """Half a surrogate pair in a workload would end hadard's rounds, for all users.

    The user's own comment is given back as it was.
    """
    found = decode(
        r'{"hadar":1,"steps":10,"comment":"v\udce9","workload":"a\ud800 \u00e9 \ud83d\ude00"}'
    )
    assert found is not None
    assert found.workload == "a? \u00e9 \U0001f600"
    assert found.comment == "v\udce9"


def test_a_comment_that_slurm_would_cut_is_refused() -> None:
    """A description above Slurm's limit, which Slurm would cut off, is refused."""
    longest = Description(steps=1, workload="A", comment="x" * 900)
    assert len(encode(longest)) <= MAX_COMMENT
    with pytest.raises(JobSpecError, match=r"takes 1\d\d\d of the 1011 characters"):
        encode(Description(steps=1, workload="A", comment="x" * 1000))
    # An é is six characters in JSON.
    with pytest.raises(JobSpecError, match="of the 1011 characters"):
        encode(Description(steps=1, workload="A", comment="é" * 200))


def test_a_job_can_always_leave() -> None:
    """The longest accepted description has room for the mark of a job that leaves."""
    empty = len(encode(Description(steps=1, workload="A", comment="x")))
    full = Description(steps=1, workload="A", comment="x" * (1011 - empty + 1))
    assert len(encode(full)) == 1011
    assert len(encode(replace(full, leaves=True))) == MAX_COMMENT


@given(shape=shapes)
def test_a_shape_is_read_as_it_is_written(shape: Shape) -> None:
    """A shape is read back from GPUs per node x nodes, with a small or capital X."""
    assert parse_shape(str(shape)) == shape
    assert parse_shape(str(shape).upper()) == shape


@pytest.mark.parametrize(
    "text",
    ["", "x", "2x", "x2", "2", "0x2", "2x0", "2x2x2", "-1x2", "2 x 2", "²x1", "١x1", "1.0x2"],
)
def test_a_shape_that_is_none_is_refused(text: str) -> None:
    """Anything but two whole numbers of 1 or more is refused as a shape."""
    with pytest.raises(JobSpecError, match="expected GPUs per node x nodes, such as 4x2"):
        parse_shape(text)


def test_the_spec_takes_what_the_description_says() -> None:
    """Throughputs, shape and restart cost of the description replace the defaults."""
    throughputs = some_rates(V100=10.0)
    submitted = Submitted(JobId("1"), 7.0, "ada")

    def given(description: Description) -> JobSpec:
        return job_spec(submitted, description, throughputs, total_steps=5, restart_cost_s=30.0)

    plain = given(Description(steps=5, gpus=4, workload="a3c"))
    assert plain.throughputs == throughputs
    assert plain.shapes == uniform_shapes(4)
    assert (plain.num_gpus, plain.total_steps, plain.restart_cost_s) == (4, 5, 30.0)
    assert (plain.submitted_s, plain.user, plain.can_checkpoint) == (7.0, "ada", False)
    own = Description(
        steps=5,
        gpus=4,
        throughputs={"V100": 12.0},
        shape=Shape(nodes=2, gpus_per_node=2),
        checkpoint=True,
        restart_cost_s=0.0,
    )
    spec = given(own)
    assert spec.shapes == (Shape(nodes=2, gpus_per_node=2),)
    assert (spec.restart_cost_s, spec.can_checkpoint) == (0.0, True)
    losing = replace(own, restart_cost_s=10.0, restart_loss_s=60.0)
    spec = given(losing)
    assert (spec.restart_cost_s, spec.can_checkpoint) == (40.0, True)
