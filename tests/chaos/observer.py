"""Samples Slurm's records during a run and checks the invariants on each sample."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from chaos.constancy import lost_edits
from chaos.invariants import (
    Finding,
    Past,
    Sample,
    Waits,
    incomplete_gangs,
    shared_gpus,
)
from chaos.progress import Idling
from chaos.records import (
    HOLDING,
    WAITING,
    Sighting,
    gpus_in_use,
    idle_gpus,
    node_states,
    sightings,
)
from chaos.workload import Task
from chaos.world import World
from integration.site import Gpu

# How long a job may wait beside idle GPUs: rounds of 2 s, and pins that time out.
_IDLE_S = 60.0


@dataclass
class Observer:
    """The nodes in the newest sample, every job's past, and the findings.

    `limit_s` is how long jobs may wait for hadard once it is gone.
    """

    world: World
    tasks: dict[str, Task]
    limit_s: float
    pasts: dict[str, Past] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    nodes: dict[str, str] = field(default_factory=dict)
    lost_gpus: set[Gpu] = field(default_factory=set)
    _unheld: set[Gpu] = field(default_factory=set)
    samples: int = 0
    newest_s: float = 0.0
    away_until_s: float = 0.0
    gone_since_s: float | None = None
    waits: Waits = field(default_factory=Waits)
    idling: Idling = field(default_factory=Idling)
    # Whether hadard is expected to make progress now.
    is_excused: bool = True
    _told: set[tuple[str, str, int]] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def look(self) -> bool:
        """Take a sample and check it; return whether Slurm answered."""
        before_s = time.time()
        done = self.world.run(["scontrol", "show", "job", "-d", "-o"], limit_s=10)
        nodes = self.world.run(["scontrol", "show", "node", "-d", "-o"], limit_s=10)
        if done.status != 0 or nodes.status != 0:
            # Waits count from here: without slurmctld no job can be released.
            self.away_until_s = time.time()
            return False
        sample = Sample(before_s, time.time(), tuple(sightings(done.out)))
        with self._lock:
            idle = {} if self.is_excused else idle_gpus(nodes.out)
            self._take(sample, idle)
            self.nodes = node_states(nodes.out)
            # By number, which a GPU keeps if its type is renamed.
            held = {(gpu.node, gpu.index) for job in sample.jobs for gpu in job.gpus}
            in_use = gpus_in_use(nodes.out)
            unheld = {gpu for gpu in in_use if (gpu.node, gpu.index) not in held}
            # Nodes are read after jobs, so only a GPU unheld in two samples in a row is lost.
            self.lost_gpus, self._unheld = unheld & self._unheld, unheld
        return True

    def _take(self, sample: Sample, idle: Mapping[tuple[str, str], int]) -> None:
        for job in sample.jobs:
            self.pasts.setdefault(job.key, Past(job, sample.after_s)).add(job, sample.after_s)
        self.samples += 1
        self.newest_s = sample.after_s
        tasks = dict(self.tasks)
        shown = {job.key for job in sample.jobs}
        for key in tasks.keys() & self.pasts.keys() - shown:
            self._forget_cancelled(key, tasks[key], sample)
        gone_s = self.gone_since_s
        # While slurmctld was unreachable too, the reaper could not release jobs.
        since_s = None if gone_s is None else max(gone_s, self.away_until_s)
        is_gone = since_s is not None and sample.before_s > since_s + self.limit_s
        for finding in (
            *shared_gpus(sample),
            *incomplete_gangs(sample, tasks),
            *lost_edits(sample, tasks, is_gone=is_gone),
            *self.idling.add(sample, tasks, idle, _IDLE_S),
        ):
            self._add(finding)
        for finding in self.waits.add(sample, tasks, since_s, self.limit_s):
            self._add(finding)

    def _forget_cancelled(self, key: str, task: Task, sample: Sample) -> None:
        """Mark as CANCELLED a pending task that its user cancelled and Slurm no longer shows.

        Slurm keeps no record of a cancelled task that shared the record of its array.
        """
        past, cancelled_s = self.pasts[key], task.cancelled_s
        if past.last.state in WAITING and cancelled_s and sample.before_s > cancelled_s:
            gone = replace(past.last, state="CANCELLED", ended_s=cancelled_s)
            past.add(gone, sample.after_s)

    def _add(self, finding: Finding) -> None:
        """Add a finding, once for each run of a job."""
        past = self.pasts.get(finding.job)
        mark = (finding.invariant, finding.job, past.last.restarts if past else 0)
        if mark not in self._told:
            self._told.add(mark)
            self.findings.append(finding)

    def live(self) -> list[Sighting]:
        """Return the last sightings of the workload's jobs that have not ended, sorted by key."""
        with self._lock:
            found = [
                past.last
                for key, past in self.pasts.items()
                if key in self.tasks and not past.last.is_final
            ]
        return sorted(found, key=lambda job: job.key)

    def num_live(self) -> int:
        """Return how many of the workload's jobs have not ended, including those never seen."""
        pasts = self.pasts
        return sum(key not in pasts or not pasts[key].last.is_final for key in list(self.tasks))

    def holding(self) -> int:
        """Return how many of the workload's jobs hold GPUs."""
        return sum(job.state in HOLDING for job in self.live())
