"""Copies that train synchronously come to what one node does, whatever happens to them."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes.together import SETTINGS, Job, Plan, alone, until  # noqa: E402

from hadar_slurm.runtime.averaging import modes  # noqa: E402
from hadar_slurm.runtime.files.slots import Slots  # noqa: E402


def check_alone(job: Job, *copies: int) -> None:
    """Check that copies came to the parameters of one node, up to rounding."""
    job.check(*copies)
    known = {key: value for key, value in job.options.items() if key in ("clip", "batch_size")}
    whole, mine = alone(Plan(job.path, job.path, job.total_steps, **known)), job.final(copies[0])
    assert all(torch.allclose(whole[name], mine[name], atol=2e-4) for name in whole)


def test_copies_come_to_what_one_node_does(job_of: Callable[..., Job]) -> None:
    """Unequal shares, gradient accumulation and clipping change nothing but rounding."""
    job = job_of(40, clip=0.5, parts=2, sample_s=0.001, awaits={0: (0, 1, 2)})
    job.start(0, 1)
    job.start(2, sample_s=0.003)
    for copy in range(3):
        job.end(copy)
    check_alone(job, 0, 1, 2)
    assert "group 0: copies" in job.log()


@pytest.mark.parametrize("after_s", [0.0, 0.0005])
def test_a_copy_that_is_killed_in_a_step_costs_no_sample(
    job_of: Callable[..., Job], after_s: float
) -> None:
    """The others drop that step or finish it; started again, the copy joins them."""
    job = job_of(120, sample_s=0.001, awaits={0: (0, 1, 2)})
    job.start(0, 2)
    job.start(1, dies_at=30, dies_after_s=after_s)
    job.end(1, -signal.SIGKILL)
    job.start(1)
    for copy in range(3):
        job.end(copy)
    check_alone(job, 0, 1, 2)
    assert "a copy is gone" in job.log()


def test_a_copy_may_come_and_be_asked_to_leave(job_of: Callable[..., Job]) -> None:
    """The group takes it in between two steps; what it has trained is kept when it leaves."""
    job = job_of(400, sample_s=0.002, settings=replace(SETTINGS, slot_s=30.0))
    job.start(0, 1, awaits={0: (0, 1), 20: (2,)})
    until(lambda: len(job.steps(0)) > 10, job)
    job.start(2)
    until(lambda: len(job.steps(2)) > 3, job)
    job.kill(0, signal.SIGUSR1)
    until(lambda: "asked to save, and saved" in job.log(), job)
    job.kill(0, signal.SIGTERM)
    job.end(0, 128 + signal.SIGTERM)
    job.end(1)
    job.end(2)
    check_alone(job, 1, 2)


def test_values_that_are_not_finite_are_dropped(job_of: Callable[..., Job]) -> None:
    """The step is trained again by all copies; no sample is lost or counts twice."""
    job = job_of(30, awaits={0: (0, 1)})
    job.start(0)
    job.start(1, spoils=(7, 21))
    job.end(0)
    job.end(1)
    check_alone(job, 0, 1)
    assert "step 7 is trained again: gradients of rank 1" in job.log()


def test_parameters_that_are_not_finite_are_replaced(job_of: Callable[..., Job]) -> None:
    """A copy's memory has an error: it takes over the others' parameters, and all train on."""
    job = job_of(40, awaits={0: (0, 1, 2)})
    job.start(1, 2)
    job.start(0, changes={7: float("nan")})
    for copy in range(3):
        job.end(copy)
    check_alone(job, 0, 1, 2)
    assert "takes over parameters: those of this copy are not finite" in job.log()


def test_parameters_of_all_copies_that_are_not_finite_cost_an_interval(
    job_of: Callable[..., Job],
) -> None:
    """They go on from the newest file; training stops only after some intervals like that."""
    job = job_of(40, awaits={0: (0, 1)}, settings=replace(SETTINGS, slot_s=60.0))
    job.start(0, 1, changes={7: float("nan")})
    job.end(0)
    job.end(1)
    check_alone(job, 0, 1)
    assert "no copy has finite parameters" in job.log()


def test_a_copy_with_other_parameters_reads_those_of_the_end(job_of: Callable[..., Job]) -> None:
    """A bit has flipped, or GPUs round differently: from the next end on all are the same again."""
    job = job_of(300, sample_s=0.001, settings=replace(SETTINGS, slot_s=0.5))
    job.start(0, awaits={0: (0, 1)})
    job.start(1, changes={7: 0.125})
    job.end(0)
    job.end(1)
    job.check(0, 1)
    assert job.log().count("copy 1: has other parameters than the end of slot") == 1
    assert "a copy is gone" not in job.log()


def test_a_batch_too_small_for_all_copies_is_trained_by_some(job_of: Callable[..., Job]) -> None:
    """Batch statistics need two samples, and the others train some that do not count."""
    job = job_of(30, norm=True, batch_size=4, awaits={0: (0, 1, 2)})
    job.start(0, 1, 2)
    for copy in range(3):
        job.end(copy)
    job.check(0, 1, 2)


def test_a_copy_that_was_left_behind_takes_no_steps_from_the_others(
    job_of: Callable[..., Job],
) -> None:
    """Asked to save what it trained before, it leaves that to the copies that went on."""
    settings = replace(SETTINGS, gone_after_s=2.0, slot_s=60.0)
    job = job_of(300, sample_s=0.002, settings=settings, awaits={0: (0, 1, 2)})
    job.start(0, 1, 2)
    until(lambda: len(job.steps(1)) > 10, job)
    job.kill(1, signal.SIGSTOP)
    until(lambda: "no sign of life" in job.log(), job)
    told = len(job.steps(0))
    until(lambda: len(job.steps(0)) > told + 40, job)
    job.kill(1, signal.SIGTERM)
    job.kill(1, signal.SIGCONT)
    job.end(1, 128 + signal.SIGTERM)
    job.end(0)
    job.end(2)
    check_alone(job, 0, 2)
    assert len(job.steps(0)) < job.total_steps + 20


def test_a_copy_that_stands_still_is_left_behind(job_of: Callable[..., Job]) -> None:
    """The others go on without it; when it continues, it takes over their state."""
    job = job_of(200, sample_s=0.002, settings=replace(SETTINGS, gone_after_s=2.0))
    job.start(0, 1, 2)
    until(lambda: len(job.steps(1)) > 10, job)
    job.kill(1, signal.SIGSTOP)
    until(lambda: "no sign of life" in job.log(), job)
    told = len(job.steps(0))
    until(lambda: len(job.steps(0)) > told + 5, job)
    job.kill(1, signal.SIGCONT)
    for copy in range(3):
        job.end(copy)
    check_alone(job, 0, 1, 2)


def test_a_copy_that_breaks_out_of_its_loop_leaves_the_rest(job_of: Callable[..., Job]) -> None:
    """What all have trained until then is kept."""
    job = job_of(60, sample_s=0.001, awaits={0: (0, 1)})
    job.start(0)
    job.start(1, stops_at=20)
    job.end(1)
    job.end(0)
    check_alone(job, 0)


def test_a_copy_may_ask_all_to_stop(job_of: Callable[..., Job]) -> None:
    """The step after the one in which it asks is the last, on all copies."""
    job = job_of(500, sample_s=0.001, awaits={0: (0, 1, 2)})
    job.start(0, 2)
    job.start(1, asks_to_stop_at=30)
    for copy in range(3):
        job.end(copy)
    end = job.newest()
    assert (end.stopped, list(end.done)) == ("the loss rises", list(range(32)))
    job.check_same(0, 1, 2)
    assert "stopped with 32 of 500 steps: the loss rises" in job.log()


def test_a_request_to_stop_outlives_its_copy(job_of: Callable[..., Job]) -> None:
    """It is in a file, at which a group looks."""
    job = job_of(4000, sample_s=0.001)
    job.start(0, 1)
    until(lambda: len(job.steps(1)) > 10, job)
    Slots(job.directory).ask_to_stop("enough")
    job.end(0)
    job.end(1)
    job.check_same(0, 1)
    assert job.newest().stopped == "enough"
    assert len(job.newest().done) < 4000


def test_batch_statistics_are_the_same_on_all_copies(job_of: Callable[..., Job]) -> None:
    """Running means count each copy by its samples."""
    job = job_of(30, norm=True)
    job.start(0, 1)
    job.end(0)
    job.end(1)
    job.check(0, 1)


def test_auto_averages_where_the_exchange_costs_too_much(job_of: Callable[..., Job]) -> None:
    """A step that takes next to no time is no reason to wait for a network."""
    job = job_of(300, mode="auto")
    job.start(0, 1)
    job.end(0)
    job.end(1)
    job.check(0, 1)
    assert "gradients take" in job.log()
    assert "ended with 2 copies" in job.log()


def test_auto_trains_synchronously_after_a_step_each(
    job_of: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default: copies see that the script's steps can be shared, and share them."""
    monkeypatch.setattr(modes, "MOST_EXCHANGE", 1.0)  # on a busy machine an exchange takes long
    job = job_of(400, mode="auto", sample_s=0.002)
    job.start(0, 1, awaits={0: (0, 1), 40: (2,)})
    until(lambda: "group 0: copies 0, 1" in job.log(), job)
    job.start(2, awaits={})
    for copy in range(3):
        job.end(copy)
    job.check(0, 1, 2)
    assert "copies 0, 1, 2" in job.log()


def test_auto_averages_a_script_whose_steps_cannot_be_shared(job_of: Callable[..., Job]) -> None:
    """It trains as before there was another mode, and the reason is in the log."""
    job = job_of(60, mode="auto", sample_s=0.002, has_own_samples=True)
    job.start(0, 1)
    job.end(0)
    job.end(1)
    job.check(0, 1)
    assert "averages: a step takes no samples" in job.log()
    assert "group" not in job.log()


def test_copies_that_cannot_reach_each_other_average(job_of: Callable[..., Job]) -> None:
    """A site may have no network between nodes: the job ends nevertheless, in any mode."""
    job = job_of(60, is_unlinked=True, sample_s=0.001, settings=replace(SETTINGS, slot_s=0.5))
    job.start(0, 1)
    job.end(0)
    job.end(1)
    job.check(0, 1)
    assert "cannot train synchronously, and average" in job.log()
    assert "ended with 2 copies" in job.log()


def test_a_copy_that_is_not_able_has_all_average(job_of: Callable[..., Job]) -> None:
    """A copy of an older script joins; the others do not wait for it."""
    job = job_of(300, sample_s=0.001)
    job.start(0, 1, awaits={0: (0, 1), 20: (2,)})
    until(lambda: len(job.steps(0)) > 10, job)
    job.start(2, mode="averaged")
    for copy in range(3):
        job.end(copy)
    job.check(0, 1, 2)
    assert "ended with 3 copies" in job.log()


def test_a_job_goes_on_from_its_checkpoint(job_of: Callable[..., Job], tmp_path: Path) -> None:
    """All copies are killed; the steps since the last end of an interval are trained again."""
    job = job_of(120, sample_s=0.002, settings=replace(SETTINGS, slot_s=0.5))
    job.start(0, 1)
    until(lambda: job.log().count("synchronous steps") > 1, job)
    for copy in (0, 1):
        job.kill(copy)
        job.end(copy, -signal.SIGKILL)
    job.start(0, 1)
    job.end(0)
    job.end(1)
    check_alone(job, 0, 1)
