"""Distributes the tests among pytest-xdist's workers, and estimates the remaining time.

A test with a real Slurm mostly waits, so there are more workers than cores. Tests that compute go
to the first workers, which run at a lower priority so that they do not slow Slurm down. The tests
that took longest in the last run start first.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

DURATIONS = "hadar/durations"  # key in pytest's cache: each test's duration in seconds
COMPUTING = ("gw0", "gw1")
TOLD_EVERY_S = 30.0
WAITING = ("tests/adversary/", "tests/clients/", "tests/integration/")
# The tests of each of these files share a cluster; all other tests with Slurm are separate units.
WHOLE = (
    "tests/adversary/test_lies.py",
    "tests/clients/test_clients.py",
    "tests/integration/test_local_accounting.py",
    "tests/integration/test_other_slurm.py",
)
# Tests under this path take seconds each, and are separate units.
SINGLE = "tests/unit/runtime/"


def waits(test: str) -> bool:
    """Return whether a test mostly waits for Slurm."""
    return test.startswith(WAITING) or "[local" in test


def unit(test: str) -> str:
    """Return a test's scheduling unit: its file, the test alone, or the local contract tests."""
    file = test.partition("::")[0]
    if "[local" in test:
        return "[local"  # the contract tests share a cluster
    is_single = file not in WHOLE and (waits(test) or file.startswith(SINGLE))
    return test if is_single else file


class Scheduling(LoadScopeScheduling):
    """Gives each worker the units of its kind first, the longest first, then the others."""

    durations: Counter[str]

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        computes = node.gateway.id in COMPUTING

        def rank(name: str) -> tuple[bool, float]:
            return waits(name) != computes, self.durations[name] or len(self.workqueue[name])

        self.workqueue.move_to_end(max(self.workqueue, key=rank), last=False)
        super()._assign_work_unit(node)


class Sharing:
    """Plugin of the process that controls the workers: durations of the last run and this one."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        # Without pytest's plugin of the cache there is none.
        self.cache: pytest.Cache | None = getattr(config, "cache", None)
        self.durations: dict[str, float] = self.cache.get(DURATIONS, {}) if self.cache else {}
        self.took: Counter[str] = Counter()
        self.left: dict[str, float] = {}
        self.done_s = 0.0
        self.began_s = self.told_s = time.monotonic()

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> Scheduling:
        """Return the scheduler, with the last run's durations by unit."""
        scheduling = Scheduling(config, log)
        scheduling.durations = Counter()
        for test, took_s in self.durations.items():
            scheduling.durations[unit(test)] += took_s
        return scheduling

    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Record the tests to run and their expected durations."""
        usual_s = sum(self.durations.values()) / (len(self.durations) or 1)
        self.left = {test: self.durations.get(test, usual_s) for test in ids}
        self.began_s = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record a test's duration, and print the remaining time every TOLD_EVERY_S seconds."""
        self.took[report.nodeid] += report.duration
        if report.when == "teardown":
            self.done_s += self.left.pop(report.nodeid, 0.0)
        now_s = time.monotonic()
        if now_s > self.told_s + TOLD_EVERY_S:
            self.told_s = now_s
            self.tell(now_s - self.began_s)

    def tell(self, gone_s: float) -> None:
        """Print the elapsed time and the remaining time, estimated from the last run."""
        line = f"{gone_s / 60:.1f} min gone, {len(self.left)} tests to go"
        if self.done_s:
            line += f", about {gone_s * sum(self.left.values()) / self.done_s / 60:.1f} min"
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        reporter.write(f"\n{line}\n")

    def pytest_sessionfinish(self) -> None:
        """Save the durations for the next run."""
        if self.cache:
            self.cache.set(DURATIONS, {**self.durations, **self.took})


def configure(config: pytest.Config) -> None:
    """Set up this process as a worker or as their controller; a single process needs nothing."""
    if hasattr(config, "workerinput"):
        # More threads than cores spin while they wait: 4 s of torch became 150.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        if config.workerinput["workerid"] in COMPUTING:
            os.nice(10)
    elif config.getoption("numprocesses", None):
        config.pluginmanager.register(Sharing(config))
