"""Jobs: the shapes of a gang, invalid specs, and the transitions between phases."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import a_gang, a_job, a_spec
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Phase, Shape, uniform_shapes
from hadar_slurm.errors import JobSpecError
from hadar_slurm.sim.job import PhaseError, check_phase_move

ENDS = {Phase.DONE, Phase.FAILED, Phase.CANCELLED}


@given(num_gpus=st.integers(1, 500))
def test_the_layouts_of_a_gang_are_its_divisors(num_gpus: int) -> None:
    """The shapes use every number of nodes that divides the gang, the fewest nodes first."""
    shapes = uniform_shapes(num_gpus)
    assert [shape.nodes for shape in shapes] == [
        nodes for nodes in range(1, num_gpus + 1) if num_gpus % nodes == 0
    ]
    assert {shape.num_gpus for shape in shapes} == {num_gpus}


def test_a_shape_reads_gpus_by_nodes() -> None:
    """A shape is written as GPUs per node x nodes, as in users' options."""
    assert str(Shape(nodes=2, gpus_per_node=4)) == "4x2"


def test_a_spec_without_shapes_allows_every_layout() -> None:
    """A spec without shapes allows all uniform shapes."""
    assert a_spec("1", 4).shapes == uniform_shapes(4)


def test_a_spec_that_cannot_be_is_refused() -> None:
    """No GPUs, no steps or a shape of another size is refused with the job and the value."""
    with pytest.raises(JobSpecError, match="job 7: GPUs must be 1 or more, not 0"):
        a_spec("7", 0)
    with pytest.raises(JobSpecError, match="job 7: total steps must be 1 or more, not -5"):
        a_spec("7", steps=-5)
    with pytest.raises(JobSpecError, match="job 7: 2x1, 1x3 is not a gang of 4 GPUs"):
        a_spec("7", 4, shapes=[Shape(1, 2), Shape(2, 2), Shape(3, 1)])


def test_steps_left_are_never_below_none() -> None:
    """Steps left are 0, not negative, if more steps are done than requested."""
    assert a_job("1", steps=100, done=30.0).steps_left == 70.0
    assert a_job("1", steps=100, done=130.0).steps_left == 0.0


@pytest.mark.parametrize("after", Phase)
@pytest.mark.parametrize("before", Phase)
def test_nothing_follows_an_end(before: Phase, after: Phase) -> None:
    """A job may go from any phase to any other, unless it has ended."""
    if before is after or before not in ENDS:
        check_phase_move(JobId("7"), before, after)
        return
    with pytest.raises(PhaseError, match=f"job 7 cannot go from {before} to {after}"):
        check_phase_move(JobId("7"), before, after)


def test_what_is_final_and_what_can_be_planned() -> None:
    """Jobs that have ended or are stopping cannot be planned."""
    assert {phase for phase in Phase if phase.is_final} == ENDS
    assert {phase for phase in Phase if phase.is_plannable} == set(Phase) - ENDS - {Phase.STOPPING}


def test_who_must_keep_its_gpus() -> None:
    """Only jobs that run without checkpoints or are starting must keep their GPUs."""
    assert a_job("1", on="n1:V100:1", can_checkpoint=False).is_pinned_in_place
    assert a_job("1", on="n1:V100:1", phase=Phase.STARTING).is_pinned_in_place
    assert not a_job("1", on="n1:V100:1").is_pinned_in_place
    assert not a_job("1", can_checkpoint=False).is_pinned_in_place


def test_a_gang_by_type_has_its_own_size_and_layout() -> None:
    """In any case of the type's name; other types have the smallest size."""
    spec = replace(a_spec(), gangs=(("k80", 4), ("v100", 1)))
    assert [spec.gpus_on(k) for k in ("K80", "v100", "p100")] == [4, 1, 1]
    assert spec.shapes_on("K80") == (Shape(1, 4),)
    assert spec.has_size_of(a_gang("n1:k80:4"))
    assert not spec.has_size_of(a_gang("n1:k80:1"))
    assert not spec.has_size_of(a_gang("n1:k80:4 n2:v100:1"))
    with pytest.raises(JobSpecError, match="1 GPUs are not the smallest gang of k80:4"):
        replace(a_spec(), gangs=(("k80", 4),))
