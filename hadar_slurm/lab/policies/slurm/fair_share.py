"""A simulated cluster whose policies see Slurm's fair-share factor of each job's user.

It is the one that policy `slurm` goes by in a Slurm with its default settings here: by fair tree,
of decayed use, at each PriorityCalcPeriod.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Allocation
from hadar_slurm.core.job import Job, JobSpec, Phase
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.engine.actions import Action, Outcome, Start, Status, Stop
from hadar_slurm.engine.backend import Backend, Wake
from hadar_slurm.lab.policies.slurm.priority import factors_of
from hadar_slurm.lab.policies.slurm.settings import SlurmSettings
from hadar_slurm.sim.unread_snapshot import with_progress

_SETTINGS = SlurmSettings()


@dataclass
class FairShareBackend:
    """`inner`, a view of a simulation of `specs`, observed with fair-share factors."""

    inner: Backend
    specs: Sequence[JobSpec]
    _users: dict[JobId, str] = field(init=False)
    # The jobs that may have several copies.
    _forked: frozenset[JobId] = field(init=False)
    # By user, the GPU-seconds used, decayed, and the GPUs in use; by job, those in use.
    _used: dict[str, float] = field(default_factory=dict)
    _in_use: Counter[str] = field(default_factory=Counter)
    _held: dict[JobId, int] = field(default_factory=dict)
    _at_s: float = 0.0
    _period: int = -1
    _factors: Mapping[str, float] = field(default_factory=dict)
    # Queued jobs, as they are and as seen.
    _queued: dict[JobId, tuple[Job, Job]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._users = {spec.job_id: spec.user for spec in self.specs}
        self._forked = frozenset(spec.job_id for spec in self.specs if spec.max_copies > 1)

    def observe(self) -> Snapshot:
        """Return the snapshot with a factor for each job of which the user is known."""
        snapshot = self.inner.observe()
        passed_s, self._at_s = snapshot.now_s - self._at_s, snapshot.now_s
        fades = 0.5 ** (passed_s / _SETTINGS.half_life)
        self._used = {
            user: used * fades + self._in_use[user] * passed_s for user, used in self._used.items()
        }
        for job_id in self._held.keys() & {end.job_id for end in snapshot.ended}:
            self._hold(job_id, 0)
        others = {job.job_id: job.allocation for job in snapshot.others}
        for job_id in others:
            self._used.setdefault(self._users[job_id], 0.0)
        # A node that fails takes copies, or all that a job holds.
        for job_id in self._held.keys() & (self._forked | others.keys()):
            held = others.get(job_id) or snapshot.running.get(job_id, Allocation())
            self._hold(job_id, sum(gang.num_gpus for gang in held.gangs))
        period = int(snapshot.now_s // _SETTINGS.calc_period)
        if period != self._period:
            factors = factors_of(self._used, _SETTINGS.fairshare)
            self._queued.clear()
            self._period, self._factors = period, factors
        return with_progress(snapshot, self._with_factor)

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Apply the actions to the simulated cluster, and note which GPUs are in use."""
        outcomes = self.inner.apply(actions)
        for action in (each.action for each in outcomes if each.status is Status.DONE):
            if isinstance(action, Start | Stop):
                gpus = action.gang.num_gpus * (1 if isinstance(action, Start) else -1)
                self._hold(action.job_id, self._held.get(action.job_id, 0) + gpus)
        return outcomes

    def wait(self, until_s: float) -> Wake:
        """Advance the simulated cluster."""
        return self.inner.wait(until_s)

    def _hold(self, job_id: JobId, gpus: int) -> None:
        """Note how many GPUs a job has in use from now on."""
        self._in_use[self._users[job_id]] += gpus - self._held.pop(job_id, 0)
        if gpus > 0:
            self._held[job_id] = gpus

    def _with_factor(self, job: Job) -> Job:
        before, seen = self._queued.get(job.job_id, (None, job))
        if before is job or not job.spec.user:
            return seen
        # One whose user has not been seen at a PriorityCalcPeriod is the first of that user.
        seen = replace(job, fair_share=self._factors.get(job.spec.user, 1.0))
        if job.phase is Phase.QUEUED:
            self._queued[job.job_id] = (job, seen)
        return seen
