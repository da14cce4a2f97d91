"""The soak test, for HADAR_SOAK_MINUTES; `make adversary MINUTES=30` runs the full one."""

from __future__ import annotations

import os

import pytest
from adversary.soak import Soak, as_tree
from adversary.test_files import train
from adversary.users import User
from integration.site import Site

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

MINUTES = float(os.environ.get("HADAR_SOAK_MINUTES", "1.5"))


def test_a_users_jobs_finish_whatever_another_user_does(
    site: Site, users: tuple[User, User], capsys: pytest.CaptureFixture[str]
) -> None:
    """All jobs complete, no hold exceeds its limit, and hadard's own files stay intact."""
    honest, adversary = users

    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\nsoak: {text}", end="", flush=True)

    # Creates the honest user's report directory: a squatted one has its own test.
    site.start()
    site.until_completed(train(honest, steps=10))
    site.hadard.stop()
    jobs = max(8, round(40 * min(1.0, MINUTES / 30)))
    soak = Soak(site, honest, adversary, MINUTES * 60, jobs, seed=1, say=say)
    outcome = soak.run()
    say(as_tree(outcome))
    assert outcome.faults == []
    assert set(outcome.jobs.values()) == {"COMPLETED"}
    assert outcome.scrapes > 10
