"""How several workers share the tests, and how long these will still take.

A test of a real Slurm waits most of its time, so there are more workers than cores. What computes
goes to the first workers, which run at a lower priority, so that it does not keep Slurm waiting.
What took longest in the last run comes first.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

DURATIONS = "hadar/durations"  # where pytest keeps how long each test took, in seconds
COMPUTING = ("gw0", "gw1")
TOLD_EVERY_S = 30.0
WAITING = ("tests/adversary/", "tests/clients/", "tests/integration/")
# These have a cluster of their own for all their tests; every other one goes to any worker.
WHOLE = (
    "tests/clients/test_clients.py",
    "tests/integration/test_local_accounting.py",
    "tests/integration/test_other_slurm.py",
)
# Each takes seconds.
SINGLE = "tests/unit/runtime/"


def waits(test: str) -> bool:
    """Whether a test mostly waits for Slurm."""
    return test.startswith(WAITING) or "[local" in test


def unit(test: str) -> str:
    """Return what a test is run together with: its file's other tests, or none."""
    file = test.partition("::")[0]
    if "[local" in test:
        return "[local"  # the contract's tests have a cluster of their own as well
    is_single = file not in WHOLE and (waits(test) or file.startswith(SINGLE))
    return test if is_single else file


class Scheduling(LoadScopeScheduling):
    """Gives each worker what is of its kind, the longest first, then what is left."""

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
    """What the process that has the workers knows: the last run's durations and this one's."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.durations: dict[str, float] = config.cache.get(DURATIONS, {}) if config.cache else {}
        self.took: Counter[str] = Counter()
        self.left: dict[str, float] = {}
        self.done_s = 0.0
        self.began_s = self.told_s = time.monotonic()

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> Scheduling:
        """Share as is told above."""
        scheduling = Scheduling(config, log)
        scheduling.durations = Counter()
        for test, took_s in self.durations.items():
            scheduling.durations[unit(test)] += took_s
        return scheduling

    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        """Note what there is to do."""
        usual_s = sum(self.durations.values()) / (len(self.durations) or 1)
        self.left = {test: self.durations.get(test, usual_s) for test in ids}
        self.began_s = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what was done, and say now and then how much there is left."""
        self.took[report.nodeid] += report.duration
        if report.when == "teardown":
            self.done_s += self.left.pop(report.nodeid, 0.0)
        now_s = time.monotonic()
        if now_s > self.told_s + TOLD_EVERY_S:
            self.told_s = now_s
            self.tell(now_s - self.began_s)

    def tell(self, gone_s: float) -> None:
        """Say how long the tests have taken and, known from the last run, will still take."""
        line = f"{gone_s / 60:.1f} min gone, {len(self.left)} tests to go"
        if self.done_s:
            line += f", about {gone_s * sum(self.left.values()) / self.done_s / 60:.1f} min"
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        reporter.write(f"\n{line}\n")

    def pytest_sessionfinish(self) -> None:
        """Keep the durations."""
        if self.config.cache:
            self.config.cache.set(DURATIONS, {**self.durations, **self.took})


def configure(config: pytest.Config) -> None:
    """Make this process what it is: a worker, the one that has workers, or the only one."""
    if hasattr(config, "workerinput"):
        # More threads than cores spin while they wait: 4 s of torch became 150.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        if config.workerinput["workerid"] in COMPUTING:
            os.nice(10)
    elif config.getoption("numprocesses", None):
        config.pluginmanager.register(Sharing(config))
