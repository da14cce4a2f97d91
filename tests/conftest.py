"""How many examples the property tests draw: few on a developer's machine, more where CI is set."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A loaded machine draws slowly; that says nothing about the code under test.
settings.register_profile(
    "dev",
    max_examples=30,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("ci", parent=settings.get_profile("dev"), max_examples=60)
settings.load_profile("ci" if os.environ.get("CI") else "dev")
