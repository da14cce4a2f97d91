"""A cluster in virtual time behind the loop's Backend.

Jobs advance at the rate of their gang, a restart costs its time before steps count again, and
jobs end at their exact finish. GPUs of a job that ended are free at once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import Cluster, JobId, Slot
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress, check_phase_move
from hadar_slurm.core.snapshot import Ended, GangRules, Snapshot
from hadar_slurm.engine.actions import Action, Outcome, Renew, Start, Status, Stop
from hadar_slurm.engine.backend import Wake
from hadar_slurm.errors import HadarError

# Steps below this are rounding: the job has finished.
_FRACTION = 1e-6
# This many rounds in a row in which nothing trained mean that nothing ever will.
_IDLE_ROUNDS = 1000


@dataclass
class _Run:
    """A job inside the simulator; `ready_s` is when its steps begin to count again."""

    spec: JobSpec
    phase: Phase = Phase.QUEUED
    gang: Gang | None = None
    steps_done: float = 0.0
    service_gpu_s: float = 0.0
    restarts: int = 0
    has_run: bool = False
    ready_s: float = 0.0

    @property
    def rate(self) -> float:
        return self.gang.rate(self.spec.rates) if self.gang else 0.0

    def finish_s(self, now_s: float) -> float:
        """Return when the job ends if it stays where it is."""
        if self.rate <= 0:
            return math.inf
        left_s = (self.spec.total_steps - self.steps_done) / self.rate
        return max(self.ready_s, now_s) + left_s

    def move_to(self, phase: Phase) -> None:
        check_phase_move(self.spec.job_id, self.phase, phase)
        self.phase = phase


@dataclass
class SimBackend:
    """Simulates `jobs` on `cluster`; time is in seconds and begins at 0."""

    cluster: Cluster
    jobs: Sequence[JobSpec]
    rules: GangRules = field(default_factory=GangRules)
    now_s: float = 0.0
    _runs: dict[JobId, _Run] = field(init=False)
    _ended: list[Ended] = field(default_factory=list)
    _idle_rounds: int = 0

    def __post_init__(self) -> None:
        self._runs = {spec.job_id: _Run(spec) for spec in self.jobs}

    @property
    def num_unfinished(self) -> int:
        """Return the jobs that have not ended, those yet to arrive included."""
        return sum(not run.phase.is_final for run in self._runs.values())

    def observe(self) -> Snapshot:
        """Return the jobs that have arrived and not ended, and those that the last wait ended."""
        return Snapshot.of(
            now_s=self.now_s,
            cluster=self.cluster,
            jobs=[self._job(run) for run in self._present()],
            rules=self.rules,
            ended=self._ended,
        )

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Stop and start jobs, at once and in order."""
        return [self._apply(action) for action in actions]

    def wait(self, until_s: float) -> Wake:
        """Advance to the end of the round or to the next arrival or end of a job before it.

        After the last end there is one more round, which tells of it.
        """
        if self.num_unfinished == 0:
            return Wake.STOP
        arrivals = [s.submitted_s for s in self.jobs if s.submitted_s > self.now_s]
        finishes = [run.finish_s(self.now_s) for run in self._present() if run.gang]
        self._check_progress(bool(finishes or arrivals))
        if not finishes and arrivals and not any(True for _ in self._present()):
            # Nothing to do before somebody comes: no rounds in an empty cluster.
            until_s = max(until_s, min(arrivals))
        next_s = min([until_s, *arrivals, *finishes])
        self._ended.clear()
        self._advance(max(next_s, self.now_s))
        return Wake.CHANGE if next_s < until_s else Wake.ROUND_END

    def _present(self) -> Iterable[_Run]:
        return (
            run
            for run in self._runs.values()
            if run.spec.submitted_s <= self.now_s and not run.phase.is_final
        )

    def _job(self, run: _Run) -> Job:
        held = Allocation.rigid(run.gang) if run.gang else Allocation()
        return Job(
            run.spec, run.phase, Progress(run.steps_done, run.service_gpu_s, run.restarts), held
        )

    def _apply(self, action: Action) -> Outcome:
        run = self._runs[action.job_id]
        if isinstance(action, Stop):
            run.move_to(Phase.QUEUED)
            run.gang = None
        elif isinstance(action, Start):
            if not self._is_free(action.gang):
                return Outcome(action, Status.DEFERRED, f"{action.gang} is not free yet")
            run.move_to(Phase.RUNNING)
            run.gang = action.gang
            run.ready_s = self.now_s + (run.spec.restart_cost_s if run.has_run else 0.0)
            run.restarts += run.has_run
            run.has_run = True
        elif isinstance(action, Renew) and run.gang != action.gang:
            return Outcome(action, Status.REFUSED, f"it is not on {action.gang}")
        return Outcome(action, Status.DONE)

    def _is_free(self, gang: Gang) -> bool:
        used: Counter[Slot] = Counter()
        for run in self._present():
            if run.gang:
                used.update(dict(run.gang.slots))
        capacity = self.cluster.capacity
        return all(used[slot] + count <= capacity.get(slot, 0) for slot, count in gang.slots)

    def _advance(self, to_s: float) -> None:
        for run in self._present():
            if not run.gang:
                continue
            trained_s = max(0.0, to_s - max(run.ready_s, self.now_s))
            run.steps_done += trained_s * run.rate
            run.service_gpu_s += (to_s - self.now_s) * run.gang.num_gpus
            if run.spec.total_steps - run.steps_done <= _FRACTION * max(1.0, run.rate):
                run.steps_done = float(run.spec.total_steps)
                run.move_to(Phase.DONE)
                run.gang = None
                self._ended.append(Ended(run.spec.job_id, Phase.DONE, to_s))
        self.now_s = to_s

    def _check_progress(self, can_progress: bool) -> None:
        self._idle_rounds = 0 if can_progress else self._idle_rounds + 1
        if self._idle_rounds >= _IDLE_ROUNDS:
            left = [str(run.spec.job_id) for run in self._present()]
            raise HadarError(
                f"nothing has trained for {_IDLE_ROUNDS} rounds; jobs that never start: "
                f"{', '.join(left[:20])}"
            )
