"""A fixture that starts jobs of synchronous copies and stops their processes after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def job_of(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return a function that makes jobs."""
    from fakes.together import Job  # needs torch

    made: list[Job] = []

    def make(total_steps: int, **options: Any) -> Job:
        made.append(Job(tmp_path / f"job-{len(made)}", total_steps, options))
        return made[-1]

    yield make
    for each in made:
        each.stop()
