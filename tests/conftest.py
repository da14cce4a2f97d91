"""How many examples the property tests draw: few on a developer's machine, more where CI is set.

And, by `workers`, how the tests are shared among processes.
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
    # The same examples every time: a change is judged by what it changes. Others are drawn by
    # HADAR_EXPLORE=1, for whoever looks for what nobody has met yet.
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
