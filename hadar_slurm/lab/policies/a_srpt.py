"""Policy `a-srpt`: jobs start in the order in which one imaginary fast machine ends them.

Source: A-SRPT (arXiv 2501.05563); only its abstract is openly available. It predicts the iterations
of each job and maps the cluster to a single machine, on which preemptive shortest remaining
processing time first is optimal. We reconstruct the rule with the standard conversion to a
non-preemptive schedule (Phillips, Stein and Wein, Math. Programming 82, 1998):

* The machine is as fast as all GPUs together; a job's size on it is its GPU-seconds on its fastest
  type. It serves the job with the least work left, and adds jobs as they arrive.
* On the cluster jobs start in the order of their ends on that machine, without preemption and with
  backfill. A gang takes its fastest type with room and as few nodes as it can; A-SRPT's rule for
  when to wait for a better placement is not published.

Sizes are `JobSpec.total_steps`: on Slurm the user's prediction; `predicting.py` adds errors. After
a restart the machine begins with the jobs of the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush

from hadar_slurm.core.cluster import JobId, natural_key
from hadar_slurm.core.job import Job
from hadar_slurm.core.plan import Plan
from hadar_slurm.core.snapshot import Round, Snapshot
from hadar_slurm.placement.allocator import Allocator
from hadar_slurm.policies.entry_point import without_options


@dataclass(frozen=True, slots=True)
class AdaptiveSrpt:
    """The policy."""

    name: str = "a-srpt"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return which jobs run in `round_`, and on which GPUs."""
        allocator = Allocator(snapshot, round_)
        machine = round_.memory if isinstance(round_.memory, Machine) else Machine()
        speed = sum(snapshot.cluster.capacity.values())
        arrivals = [
            (job.spec.submitted_s, job.job_id, _size(job, allocator) / max(1, speed))
            for job in snapshot.plannable
            if job.job_id not in machine.left_s and job.job_id not in machine.ended_s
        ]
        machine = machine.run(arrivals, snapshot.now_s)
        ended_s = {k: end_s for k, end_s in machine.ended_s.items() if k in snapshot.by_id}
        machine = replace(machine, ended_s=ended_s)
        waiting = [job for job in allocator.jobs if not allocator.stay(job)]
        for job in sorted(waiting, key=lambda job: machine.place(job.job_id)):
            if not allocator.has_room:
                break
            allocator.start(job, allocator.by_speed(job))
        return allocator.plan(memory=machine)


@dataclass(frozen=True, slots=True)
class Machine:
    """The imaginary machine at `now_s`: seconds left of each job on it, and past ends of jobs."""

    now_s: float = float("-inf")
    left_s: Mapping[JobId, float] = field(default_factory=dict)
    ended_s: Mapping[JobId, float] = field(default_factory=dict)

    def run(self, arrivals: Iterable[tuple[float, JobId, float]], until_s: float) -> Machine:
        """Return the machine at `until_s`; arrivals are (time, job, seconds on it)."""
        coming = sorted(arrivals, key=lambda item: (item[0], natural_key(item[1])), reverse=True)
        queue = [(left, natural_key(job_id), job_id) for job_id, left in self.left_s.items()]
        heapify(queue)
        ended, now_s = dict(self.ended_s), self.now_s
        while True:
            while coming and coming[-1][0] <= now_s:
                _, job_id, left = coming.pop()
                heappush(queue, (left, natural_key(job_id), job_id))
            if now_s >= until_s:
                break
            next_s = min(until_s, coming[-1][0]) if coming else until_s
            if not queue:
                now_s = next_s
                continue
            left, key, job_id = heappop(queue)
            if now_s + left <= next_s:
                now_s += left
                ended[job_id] = now_s
            else:
                heappush(queue, (left - (next_s - now_s), key, job_id))
                now_s = next_s
        # A job in the snapshot is present even if its arrival time is later than now.
        late = {job_id: left for _, job_id, left in coming}
        return Machine(now_s, {job_id: left for left, _, job_id in queue} | late, ended)

    def place(self, job_id: JobId) -> tuple[bool, float, tuple[int, str]]:
        """Return the sort key of the order in which jobs end on the machine."""
        has_ended = job_id in self.ended_s
        when = self.ended_s[job_id] if has_ended else self.left_s.get(job_id, float("inf"))
        return (not has_ended, when, natural_key(job_id))


def _size(job: Job, allocator: Allocator) -> float:
    """Return a job's GPU-seconds on its fastest type; 0 if it trains on none."""
    best = max((allocator.throughput(job, k) for k in allocator.by_speed(job)), default=0.0)
    return job.spec.num_gpus * job.spec.total_steps / best if best > 0 else 0.0


make = without_options(AdaptiveSrpt)
