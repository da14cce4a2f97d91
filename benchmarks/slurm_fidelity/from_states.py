"""Asks policy `slurm` for each decision of a real Slurm, from the state that Slurm had then.

Two plays of one list go apart as soon as one decision differs by a tenth of a second; from the same
states, decisions differ only where the rules do, or where a job ends or comes in that very moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.snapshot import Ended, Round, Snapshot
from hadar_slurm.lab.policies.slurm.policy import SlurmMemory
from hadar_slurm.lab.policies.slurm.priority import Holding
from hadar_slurm.lab.study.experiment import rules_for
from hadar_slurm.policies.registry import make_policy
from slurm_fidelity.jobs import JobList, ListedJob, Play, Run
from slurm_fidelity.settings import policy_name
from slurm_fidelity.simulated import cluster_of, spec_of

# Starts that are not further apart, in real seconds, are of one pass over the queue.
_PASS_S = 0.1
# Real seconds from the end or submission of a job to a pass that sees it: one of these.
_SEEN_S = (0.1, 0.0, 0.35)

Starts = Mapping[int, tuple[tuple[str, int], ...]]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How many starts were decided in one play, by either, and how many by both alike."""

    decided: int
    alike: int


@dataclass
class _Replay:
    """The list, and what the policy remembers."""

    jobs: JobList
    play: Play
    memory: Any = None
    at_s: float = 0.0
    names: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.policy = make_policy(policy_name(self.jobs, slurm=self.play.slurm, looks_always=True))
        self.cluster = cluster_of(self.jobs)
        self.names = {name: f"n{i}" for i, name in enumerate(self.jobs.node_types(), 1)}

    def planned(self, now_s: float, started: Iterable[int], seen_s: float) -> Starts:
        """Return what the policy starts where the given jobs have started before.

        It sees ends and submissions of `seen_s` real seconds ago.
        """
        known, running = set(started), []
        seen_s = now_s - seen_s * self.jobs.compression
        ended: list[Ended] = []
        for job in self.jobs.jobs:
            run = self.play.runs[job.number]
            if job.number in known and run.end_s > seen_s:
                running.append(self._running(job, run, now_s))
            elif (
                job.number in known and run.end_s > self.at_s - max(_SEEN_S) * self.jobs.compression
            ):
                ended.append(Ended(self._id(job.number), Phase.DONE, self._clock(run.end_s)))
        waits = [
            Job(self._spec(job))
            for job in self.jobs.jobs
            if job.number not in known and job.submit_s <= seen_s
        ]
        snapshot = Snapshot.of(
            now_s=self._clock(now_s), cluster=self.cluster, jobs=[*running, *waits],
            rules=rules_for(self.policy),
            ended=ended,
        )  # fmt: skip
        plan = self.policy.plan(snapshot, Round(0, snapshot.now_s, 1.0, memory=self.memory))
        self._remember(plan.memory)
        self.at_s = now_s
        self.settle(known)
        back = {name: real for real, name in self.names.items()}
        waiting = {job.job_id for job in waits}
        return {
            int(job_id) - 1: tuple(sorted((back[str(slot.node)], n) for slot, n in given.slots))
            for job_id, given in plan.allocations
            if given and job_id in waiting
        }

    def settle(self, started: Iterable[int]) -> None:
        """Have the policy remember what really runs now, and not what it would have started."""
        if not isinstance(self.memory, SlurmMemory):
            return
        listed = {job.number: job for job in self.jobs.jobs}
        held = {
            self._id(number): Holding(listed[number].user, listed[number].gpus)
            for number in started
            if self.play.runs[number].end_s > self.at_s
        }
        priorities = replace(self.memory.priorities, held=held)
        self.memory = replace(self.memory, priorities=priorities, started_s={})

    def _remember(self, memory: Any) -> None:
        """Keep the priorities of jobs that this pass did not see yet."""
        if isinstance(memory, SlurmMemory) and isinstance(self.memory, SlurmMemory):
            old, new = self.memory.priorities, memory.priorities
            if old.period == new.period:
                priorities = replace(new, by_job={**old.by_job, **new.by_job})
                memory = replace(memory, priorities=priorities)
        self.memory = memory

    def _running(self, job: ListedJob, run: Run, now_s: float) -> Job:
        types = self.jobs.node_types()
        gang = Gang.of(
            {
                (NodeName(self.names[n]), types[n]): g
                for n, g in zip(run.nodes, run.gpus, strict=True)
            }
        )
        spec = self._spec(job)
        service = tuple(
            (t, n * max(0.0, now_s - run.start_s)) for t, n in gang.gpus_by_type.items()
        )
        found = Job(spec, Phase.RUNNING, allocation=Allocation.rigid(gang))
        return replace(found, progress=replace(found.progress, service_by_type=service))

    def _spec(self, job: ListedJob) -> Any:
        limit_s, submit_s = self.jobs.limit_s(job), self._clock(job.submit_s)
        return spec_of(job, self.jobs, job.seconds, submitted_s=submit_s, limit_s=limit_s)

    def _clock(self, time_s: float) -> float:
        return time_s + begins_s(self.jobs, self.play)

    def _id(self, number: int) -> JobId:
        return JobId(str(number + 1))


def begins_s(jobs: JobList, play: Play) -> float:
    """Return when a list begins for the policy, in seconds of the list.

    Where priorities do not count, as Slurm's clock has it, to the half minute: by that it groups
    the ends of jobs. Else after priorities were computed: both cannot be had.
    """
    return play.first_period_s or play.began_at % 30.0 * jobs.compression


def agreement(jobs: JobList, play: Play) -> Agreement:
    """Return on how many starts the policy agrees with the real Slurm from the same states.

    A real pass may be two: a start that the policy would have made a pass earlier is alike.
    """
    replay, started, decided, alike = _Replay(jobs, play), set[int](), 0, 0
    comes = sorted(job.submit_s for job in jobs.jobs)
    before: list[list[Starts]] = []
    for at_s, real in _passes(jobs, play):
        # A priority is that of the submission until all are computed again.
        while comes and comes[0] < at_s:
            replay.planned(comes.pop(0), started, seen_s=0.0)
        before = [[replay.planned(at_s, started, seen_s=s) for s in _SEEN_S], *before[:2]]
        ours = [starts for each in before[:2] for starts in each]
        alike += sum(any(each.get(n) == nodes for each in ours) for n, nodes in real.items())
        started |= real.keys()
        replay.settle(started)
        decided += len(real) + sum(_too_early(n, started, before) for n in before[-1][0])
    return Agreement(decided, alike)


def _too_early(number: int, started: set[int], passes: list[list[Starts]]) -> bool:
    """Return whether the policy would have started a job two passes ago, and Slurm has not."""
    return len(passes) == 3 and number not in started and all(number in x for x in passes[-1])


def _passes(jobs: JobList, play: Play) -> Iterator[tuple[float, Starts]]:
    """Yield what a real Slurm started in each pass over its queue."""
    at_s = last_s = 0.0
    found: dict[int, tuple[tuple[str, int], ...]] = {}
    for number, run in sorted(play.runs.items(), key=lambda each: each[1].start_s):
        if found and run.start_s - last_s > _PASS_S * jobs.compression:
            yield at_s, found
            found = {}
        last_s = run.start_s
        if not found:
            at_s = run.start_s
        found[number] = tuple(sorted(zip(run.nodes, run.gpus, strict=True)))
    yield at_s, found
