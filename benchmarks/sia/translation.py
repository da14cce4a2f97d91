"""Plays one of our policies for Sia's simulator: its jobs as a snapshot, our plan as its answer.

Nothing here imports the simulator. It calls a policy once a round, with the jobs that are there and
what each of them holds, and expects for each job that is to run the GPU type, which it calls a
cluster, and the index of a node for each GPU.

The policy gets what the simulator gives to its own Gavel: the steps of each job, how many it has
done, and its steps/s on each type; of jobs that tune their batch sizes, what `batch_sizes.py` makes
of these. Where the simulator differs from what policies assume:

* GPUs that become free within a round stay idle until its end.
* The first start of a job also costs its restart time.
* A gang that changes its nodes, but neither type nor GPUs by node, does not pay for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from hadar_slurm.core.broken_plan import check_plan
from hadar_slurm.core.cluster import Cluster, GpuType, JobId, Node, NodeName
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress
from hadar_slurm.core.snapshot import Ended, GangRules, Round, Snapshot
from hadar_slurm.core.throughput import GangThroughput, Throughputs
from hadar_slurm.policies.policy import Policy

# The GPU type of a job, and the index of its node for each GPU; no type: it holds nothing.
Held = tuple[str | None, Sequence[int]]

# Any gang of one type, over any nodes.
RULES = GangRules(is_uniform=False, may_mix_types=False)


class JobInfo(Protocol):
    """What is read of a job as the simulator shows it to its Gavel; times in seconds."""

    scale_factor: int  # the gang's GPUs
    submission_time: float
    age: float
    rescale_time: float  # what a restart takes
    total_steps: float
    remain_steps: float


# Returns the steps/s of a job on a type with these numbers of GPUs by node; 0: it cannot run there.
Speed = Callable[[JobInfo, str, tuple[int, ...]], float]


def packed(num_gpus: int, gpus_per_node: int) -> tuple[int, ...]:
    """Return the GPUs on each node of a gang on as few nodes as can be."""
    full, rest = divmod(num_gpus, gpus_per_node)
    return (gpus_per_node,) * full + ((rest,) if rest else ())


def on_two(num_gpus: int) -> tuple[int, ...]:
    """Return the GPUs on each node of a gang in two halves."""
    return (num_gpus - num_gpus // 2, num_gpus // 2)


def measured(
    num_gpus: int, gpus_per_node: int, on: Callable[[tuple[int, ...]], float]
) -> tuple[float, float | None]:
    """Return the steps/s of a gang on the fewest nodes, and in two halves if it fits on one."""
    together = on(packed(num_gpus, gpus_per_node))
    if not 1 < num_gpus <= gpus_per_node:
        return together, None
    # Not above the rate on one node, as noise of measurements may put it.
    return together, min(together, on(on_two(num_gpus)))


@dataclass
class Translation:
    """Calls `policy` for a simulated cluster; keeps what the simulator does not: service, restarts.

    `num_nodes` and `gpus_per_node` are by GPU type; `round_s` is the length of a round.
    """

    policy: Policy
    num_nodes: Mapping[str, int]
    gpus_per_node: Mapping[str, int]
    round_s: float
    speed: Speed
    cluster: Cluster = field(init=False)
    _nodes: dict[NodeName, tuple[str, int]] = field(default_factory=dict)
    _service: dict[str, Counter[GpuType]] = field(default_factory=dict)
    _starts: Counter[str] = field(default_factory=Counter)
    _present: set[str] = field(default_factory=set)
    _index: int = 0
    _last_s: float | None = None
    _memory: object = None

    def __post_init__(self) -> None:
        nodes = []
        for gpu_type, count in self.num_nodes.items():
            for index in range(count):
                node = Node.of(f"{gpu_type}-{index}", {gpu_type: self.gpus_per_node[gpu_type]})
                self._nodes[node.name] = (gpu_type, index)
                nodes.append(node)
        self.cluster = Cluster.of(nodes)

    def decide(
        self, jobs: Mapping[str, JobInfo], held: Mapping[str, Held]
    ) -> dict[str, tuple[str, list[int]]]:
        """Return what the jobs hold during the next round, for those that are to run.

        `held` is what they held during the last one. Raises InvalidPlan where the policy's plan
        does not fit.
        """
        snapshot = self._snapshot(jobs, held)
        now_s = snapshot.now_s
        round_ = Round(
            self._index, now_s, self.round_s, memory=self._memory, ends_s=now_s + self.round_s
        )
        plan = self.policy.plan(snapshot, round_)
        check_plan(snapshot, plan)
        self._index += 1
        self._memory = plan.memory
        answer: dict[str, tuple[str, list[int]]] = {}
        for job_id, allocation in plan.allocations:
            answer[str(job_id)] = self._as_held(allocation)
            if allocation != snapshot.by_id[job_id].allocation:
                self._starts[job_id] += 1
        return answer

    def _snapshot(self, jobs: Mapping[str, JobInfo], held: Mapping[str, Held]) -> Snapshot:
        now_s = max(info.submission_time + info.age for info in jobs.values())
        passed_s = 0.0 if self._last_s is None else now_s - self._last_s
        self._last_s = now_s
        ended = self._present - set(jobs)
        self._present = set(jobs)
        return Snapshot.of(
            now_s=now_s,
            cluster=self.cluster,
            jobs=[
                self._job(name, info, held.get(name, (None, ())), passed_s)
                for name, info in jobs.items()
            ],
            rules=RULES,
            ended=[Ended(JobId(name), Phase.DONE, now_s) for name in ended],
        )

    def _job(self, name: str, info: JobInfo, held: Held, passed_s: float) -> Job:
        spec = self._spec(name, info)
        service = self._service.setdefault(name, Counter())
        allocation = self._as_allocation(held)
        for slot, count in allocation.slots:
            service[slot.gpu_type] += count * passed_s
        progress = Progress(
            max(0.0, spec.total_steps - info.remain_steps),
            max(0, self._starts[name] - 1),
            tuple(sorted(service.items())),
        )
        phase = Phase.RUNNING if allocation else Phase.QUEUED
        return Job(spec, phase, progress, allocation)

    def _spec(self, name: str, info: JobInfo) -> JobSpec:
        return JobSpec(
            job_id=JobId(name),
            num_gpus=info.scale_factor,
            total_steps=max(1, round(info.total_steps)),
            throughputs=self._throughputs(info),
            submitted_s=info.submission_time,
            restart_cost_s=info.rescale_time,
        )

    def _throughputs(self, info: JobInfo) -> Throughputs:
        """Return the steps/s of a job's gang: on the fewest nodes, and in two halves if on one."""
        size, rows = info.scale_factor, {}
        for gpu_type, gpus in self.gpus_per_node.items():
            if size > gpus * self.num_nodes[gpu_type]:
                continue
            together, halved = measured(size, gpus, partial(self.speed, info, gpu_type))
            spread = together if halved is None else halved or None
            rows[gpu_type, size] = GangThroughput(max(0.0, together), spread)
        return Throughputs.of(rows)

    def _as_allocation(self, held: Held) -> Allocation:
        gpu_type, indices = held
        if gpu_type is None or not len(indices):
            return Allocation()
        counts = Counter((f"{gpu_type}-{index}", gpu_type) for index in indices)
        return Allocation.rigid(Gang.of(counts))

    def _as_held(self, allocation: Allocation) -> tuple[str, list[int]]:
        """Return a gang as the simulator writes it: a node's index for each GPU, in order."""
        (gpu_type,) = {slot.gpu_type for slot, _ in allocation.slots}
        indices = [
            index
            for slot, count in allocation.slots
            for index in [self._nodes[slot.node][1]] * count
        ]
        return str(gpu_type), sorted(indices)
