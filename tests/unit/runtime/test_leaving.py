"""A copy that ends before the job is done leaves the other steps to the others."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes.trainings import Training  # noqa: E402
from unit.runtime.test_faults import a_copy  # noqa: E402

from hadar_slurm.handoff import read_report  # noqa: E402


def test_a_copy_that_breaks_out_of_its_loop_leaves_the_rest_to_the_others(
    training: Callable[..., Training], tmp_path: Path
) -> None:
    """Its status is 0, its trained steps count, and the other copy does not wait for it."""
    spool = tmp_path / "spool"
    job = training(300, "--step-s=0.01", "--slot-s=2", "--gone-s=120", f"--spool={spool}")
    go = job.hold(0)
    held = job.hold(1, options=("--stop-after=60",))
    go.touch()
    held.touch()
    said = job.end(1)
    assert "ends early, with " in said
    begun_s = time.monotonic()
    job.end(0)
    # Earlier than a copy would count as gone.
    assert time.monotonic() - begun_s < 100
    job.check(0)
    trained = job.steps(0) + job.steps(1)
    assert sorted(trained) == list(range(300))
    assert len(job.steps(1)) == 60
    report = read_report(spool, "71", owner_uid=tmp_path.stat().st_uid)
    assert report is not None
    assert report.state == "running"


def test_what_a_copy_trained_of_its_slot_is_contributed(tmp_path: Path) -> None:
    """The step of the break does not count; a copy that fails contributes nothing."""
    for name, error in (("early", None), ("failed", KeyError())):
        copy, train = a_copy(tmp_path / name, total_steps=400)
        try:
            with copy:
                steps = copy.steps()  # a reference, so that `break` does not close it
                interval = -1
                for step in steps:
                    train(copy, step)
                    before, interval = interval, copy.member.slots.newest_slot()
                    # Not at the first step of an interval, before which no step of it is trained.
                    if step >= 7 and interval == before:
                        if error:
                            raise error
                        break
        except KeyError:
            pass
        found = copy.member.slots.newest()
        assert found is not None
        end = found[0]
        given = copy.member.slots.contributors(end)
        if error:
            assert given == set()
            continue
        assert given == {0}
        part, _ = copy.member.slots.contribution(end, 0)
        assert set(end.done | part.done) == set(range(step))
        again, _ = a_copy(tmp_path / name, total_steps=400)
        with again:
            assert next(again.steps()) == step
