"""Sets the number of examples of property tests: few by default, more where CI is set.

Also registers `workers`, which distributes the tests among processes.
"""

from __future__ import annotations

import os

import workers
from hypothesis import HealthCheck, settings

pytest_configure = workers.configure

# A loaded machine draws slowly; that says nothing about the code under test.
settings.register_profile(
    "dev",
    max_examples=20,
    deadline=None,
    # The same examples in every run, so that only a change of the code changes the result.
    # HADAR_EXPLORE=1 draws random examples, to search for unknown faults.
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("ci", parent=settings.get_profile("dev"), max_examples=60)
settings.register_profile(
    "explore", parent=settings.get_profile("dev"), max_examples=200, derandomize=False
)
settings.load_profile(
    "explore" if os.environ.get("HADAR_EXPLORE") else "ci" if os.environ.get("CI") else "dev"
)
