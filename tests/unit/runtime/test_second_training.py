"""A second training neither takes over the first one's parameters nor mixes with it."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes.alone import Alone  # noqa: E402
from fakes.trainings import until  # noqa: E402

STEPS = list(range(40))


@pytest.mark.parametrize("job", [{}, {"SLURM_JOB_ID": "42", "SLURM_RESTART_COUNT": "0"}])
def test_a_second_training_in_a_shell_or_a_job_trains(alone: Alone, job: dict[str, str]) -> None:
    """It has a directory of its own and logs it; so does the same command line once more."""
    name = "hadar-42" if job else "hadar-job"
    alone.run("a", 40, "--lr=0.1", **job)
    said = alone.run("b", 40, "--lr=0.5", **job)
    assert alone.steps("b", 0.5) == STEPS
    assert not torch.equal(alone.weights("a"), alone.weights("b", 0.5))
    assert f"this one is in {name}-2" in said
    alone.run("b", 40, "--lr=0.5", **job)
    assert alone.steps("b", 0.5) == STEPS * 2
    assert alone.directories() == {name, f"{name}-2", f"{name}-3"}


def test_trainings_in_one_loop_are_trained_one_by_one(alone: Alone) -> None:
    """A training that failed or was stopped early is not continued by the next."""
    alone.run("a", 40, "--lr", "0.1", "0.2")
    assert alone.steps("a", 0.1) == alone.steps("a", 0.2) == STEPS
    assert not torch.equal(alone.weights("a", 0.1), alone.weights("a", 0.2))
    for job, option in (("1", "--fail-at=20"), ("2", "--stop-at=20")):
        alone.run(job, 40, "--lr", "0.1", "0.2", option, SLURM_JOB_ID=job)
        assert alone.steps(job, 0.2) == list(range(20))


def test_a_training_that_was_killed_is_resumed(alone: Alone) -> None:
    """It continues in the same directory, and the log says how far it is."""
    first = alone.start("a", 200, "--step-s=0.01")
    until(lambda: len(alone.steps("a")) > 60)
    alone.kill(first)
    before = len(alone.steps("a"))
    said = alone.run("a", 200, "--step-s=0.01")
    assert "resumed, " in said
    assert " of 200 steps done (hadar-job)" in said
    again = alone.steps("a")[before:]
    assert 0 < again[0] <= before
    assert again[-1] == 199
    assert alone.directories() == {"hadar-job"}


@pytest.mark.slow
def test_a_requeued_job_goes_through_its_trainings_once_more(alone: Alone) -> None:
    """Finished trainings are not repeated, unfinished ones are resumed, and new ones start."""
    job = {"SLURM_JOB_ID": "42", "SLURM_RESTART_COUNT": "0"}
    alone.run("a", 40, **job)
    second = alone.start("b", 200, "--step-s=0.01", **job)
    until(lambda: len(alone.steps("b")) > 60)
    alone.kill(second)
    job["SLURM_RESTART_COUNT"] = "1"
    assert "40 of 40 steps are done (hadar-42)" in alone.run("a", 40, **job)
    assert alone.steps("a") == STEPS
    before = alone.weights("a")
    assert "resumed, " in alone.run("b", 200, "--step-s=0.01", **job)
    assert alone.steps("b")[-1] == 199
    alone.run("c", 40, "--lr=0.5", **job)
    assert alone.steps("c", 0.5) == STEPS
    # The same command line a second time in this run is another training.
    alone.run("a", 40, **job)
    assert alone.steps("a") == STEPS * 2
    assert torch.equal(before, alone.weights("a"))
    assert alone.directories() == {"hadar-42", "hadar-42-2", "hadar-42-3", "hadar-42-4"}


def test_a_requeued_loop_goes_on_where_it_was(alone: Alone) -> None:
    """The trainings of one process are distinguished by number."""
    job = {"SLURM_JOB_ID": "42"}
    loop = ("--lr", "0.1", "0.2", "0.3", "--step-s=0.005")
    first = alone.start("a", 80, *loop, **job)
    until(lambda: len(alone.steps("a", 0.2)) > 40)
    alone.kill(first)
    alone.run("a", 80, *loop, **job, SLURM_RESTART_COUNT="1")
    assert alone.steps("a", 0.1) == alone.steps("a", 0.3) == list(range(80))
    assert set(alone.steps("a", 0.2)) == set(range(80))
    assert len(alone.steps("a", 0.2)) < 160
    assert alone.directories() == {"hadar-42", "hadar-42-2", "hadar-42-3"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "differs"),
    [
        (["--seed=3"], "seed 0, not 3"),
        (["--width=8"], r"model/0.bias has the shape (16,)"),
        (["--lr=0.5"], "`train_alone.py a 200 --step-s=0.01`, not `train_alone.py a 200 --lr=0.5`"),
    ],
)
def test_a_training_that_is_not_over_is_not_gone_on_with_by_another(
    alone: Alone, options: list[str], differs: str
) -> None:
    """The error names the directory, what differs and the remedy; the first one can be resumed."""
    first = alone.start("a", 200, "--step-s=0.01")
    until(lambda: len(alone.steps("a")) > 60)
    alone.kill(first)
    said = alone.run("a", 200, *options, status=1)
    assert f"{alone.place / 'hadar-job'} holds" in said
    assert differs in said
    assert "give each job a directory of its own (HADAR_JOB_DIR)" in said
    assert "resumed, " in alone.run("a", 200, "--step-s=0.01")


def test_a_directory_that_was_named_holds_one_training(alone: Alone) -> None:
    """The same training again is found to be done; another is refused, also in the same process."""
    named = {"HADAR_JOB_DIR": str(alone.place / "mine")}
    alone.run("a", 40, **named)
    assert "nothing to train: 40 of 40 steps are done" in alone.run("a", 40, **named)
    assert alone.steps("a") == STEPS
    assert "`train_alone.py a 40 --lr=0.5`" in alone.run("a", 40, "--lr=0.5", status=1, **named)
    named = {"HADAR_JOB_DIR": str(alone.place / "loop")}
    said = alone.run("b", 40, "--lr", "0.1", "0.2", status=1, **named)
    assert "training 1 of a process, not its training 2" in said
    assert (alone.steps("b"), alone.steps("b", 0.2)) == (STEPS, [])


def test_a_later_run_of_a_job_may_be_started_otherwise(alone: Alone) -> None:
    """A script may add an option if SLURM_RESTART_COUNT is set; the log has both command lines."""
    job = {"SLURM_JOB_ID": "42", "HADAR_JOB_DIR": str(alone.place / "mine")}
    first = alone.start("a", 100, "--step-s=0.01", **job)
    until(lambda: len(alone.steps("a")) > 40)
    alone.kill(first)
    said = alone.run("a", 100, **job, SLURM_RESTART_COUNT="1")
    assert "goes on by `train_alone.py a 100` with what was begun by" in said
    assert set(alone.steps("a")) == set(range(100))


def test_a_copy_that_was_not_needed_finds_that_out(alone: Alone) -> None:
    """It starts after the job is done: it trains no step, and gets the final parameters."""
    array = {"HADAR_COPIES": "2", "SLURM_ARRAY_JOB_ID": "7"}
    alone.run("a", 40, **array, SLURM_JOB_ID="8", SLURM_ARRAY_TASK_ID="0")
    said = alone.run("b", 40, **array, SLURM_JOB_ID="9", SLURM_ARRAY_TASK_ID="1")
    assert "nothing to train" in said
    assert alone.steps("b") == []
    assert torch.equal(alone.weights("a"), alone.weights("b"))
