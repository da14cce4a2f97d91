"""The directory of a training of one copy, also where it is not the first of its job.

A job's directory is `hadar-ID`, that of its second training `hadar-ID-2`, and so on. A training
that is not over is resumed. One that is over is resumed only by a later run of the same Slurm job,
which repeats the same trainings.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hadar_slurm.runtime.files.slots import Slots
from hadar_slurm.runtime.membership.claim import ClaimedRun, RunState, read_run, run_path

_COPY = 0  # the number of a copy that is alone


@dataclass(frozen=True)
class ChosenTraining:
    """A directory to train in; `passed` are those of other trainings before it."""

    directory: Path
    passed: tuple[Path, ...] = ()
    is_over: bool = False


def choose(first: Path, mine: ClaimedRun) -> ChosenTraining:
    """Return the directory for a run, `first` or one numbered after it."""
    passed: list[Path] = []
    while True:
        directory = numbered(first, len(passed) + 1)
        last = read_run(run_path(directory, _COPY))
        has_ended = is_over(directory, last)
        if _is_for(mine, last, has_ended):
            return ChosenTraining(directory, tuple(passed), has_ended)
        passed.append(directory)


def numbered(first: Path, number: int) -> Path:
    """Return the directory of a job's training of this number, from 1."""
    return first if number == 1 else first.with_name(f"{first.name}-{number}")


def is_over(directory: Path, last: ClaimedRun | None) -> bool:
    """Return whether the training in a directory is over: done, or ended by its program."""
    return Slots(directory).is_done() or (last is not None and last.state is RunState.OVER)


def _is_for(mine: ClaimedRun, last: ClaimedRun | None, is_over: bool) -> bool:
    """Return whether a run belongs into a directory with this last run."""
    if last is None:  # new, or written by a release that noted no runs
        return not is_over or mine.restart > 0
    if last.number != mine.number:
        return False
    return not is_over or (mine.follows(last) and mine.command == last.command)
