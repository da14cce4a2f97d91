"""Trainings, whose copies do not outlive the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Make trainings."""
    from fakes.trainings import Training  # needs torch

    made: list[Training] = []

    def make(total_steps: int, *options: str, name: str = "job") -> Training:
        made.append(Training(tmp_path / name, total_steps, options))
        return made[-1]

    yield make
    for each in made:
        each.stop()
