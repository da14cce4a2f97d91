"""Fixtures that start trainings and stop all of their processes after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return a function that makes trainings."""
    from fakes.trainings import Training  # needs torch

    made: list[Training] = []

    def make(total_steps: int, *options: str, name: str = "job") -> Training:
        made.append(Training(tmp_path / name, total_steps, options))
        return made[-1]

    yield make
    for each in made:
        each.stop()


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Any]:
    """Return a place to start trainings in, as from one shell or one Slurm job."""
    from fakes.alone import Alone  # needs torch

    place = tmp_path / "submitted"
    place.mkdir()
    made = Alone(place)
    yield made
    made.stop()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return a function that makes jobs whose copies train by a data loader."""
    from fakes.by_loader import Job, Plan  # needs torch

    made: list[Job] = []

    def make(**options: Any) -> Job:
        made.append(Job(Plan(tmp_path / f"{len(made)}", **options)))
        return made[-1]

    yield make
    for each in made:
        each.stop()
