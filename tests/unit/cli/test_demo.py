"""What the demo starts hadard with."""

from __future__ import annotations

from hadar_slurm.cli.demo import CONFIG
from hadar_slurm.config import Config


def test_the_demos_hadard_enforces_its_plans() -> None:
    """Left to the default it would only watch, and both runs would be plain Slurm's."""
    assert Config.model_validate(CONFIG).mode == "enforce"
