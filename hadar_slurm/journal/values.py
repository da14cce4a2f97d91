"""The values in a line of the journal: the snapshot, its jobs, and what was found of claims."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import compress
from operator import is_not

from hadar_slurm.core.claims import Credit, Judged
from hadar_slurm.core.cluster import Cluster, GpuType, JobId, Node, NodeName
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress, Shape
from hadar_slurm.core.snapshot import Ended, GangRules, Snapshot
from hadar_slurm.core.throughput import GangThroughput, Throughputs
from hadar_slurm.errors import ConfigError
from hadar_slurm.journal.line import LAST_S, USUAL_RULES, Line


def gang_from_tree(tree: Mapping[str, Mapping[str, int]]) -> Gang:
    """Return the gang in `{node: {gpu type: count}}`."""
    return Gang.of(
        {(n, gpu_type): number for n, gpus in tree.items() for gpu_type, number in gpus.items()}
    )


def snapshot_of(line: Line) -> Snapshot:
    """Return the snapshot in a round's line; raises ConfigError if the line has none.

    The line lacks the GPU time received by type and the throughput across nodes.
    """
    if "nodes" not in line:
        raise ConfigError(f"round {line['round']} has no snapshot: {'; '.join(line['errors'])}")
    cluster = Cluster.of(
        Node.of(name, node["gpus"], is_schedulable=node["open"])
        for name, node in line["nodes"].items()
    )
    return Snapshot.of(
        now_s=float(line["time_s"]),
        cluster=cluster,
        jobs=[job_of(name, tree) for name, tree in line["jobs"].items()],
        occupied=dict(gang_from_tree(line["occupied"]).slots),
        ended=[Ended(JobId(k), Phase(v["phase"]), v["end_s"]) for k, v in line["ended"].items()],
        # A later version may know rules that this one does not.
        rules=GangRules(**{k: v for k, v in line.get("rules", {}).items() if k in USUAL_RULES}),
    )


def judged_of(line: Line) -> list[Judged]:
    """Return the runs that were judged in a round; ValueError for wrong numbers."""
    return [
        Judged(JobId(job), user, workload, *map(_positive, numbers))
        for user, workloads in line.get("judged", {}).items()
        for workload, jobs in workloads.items()
        for job, numbers in jobs.items()
    ]


def credits_of(line: Line) -> dict[str, Credit]:
    """Return the users who are believed less, by a line; ValueError for wrong numbers."""
    return {
        user: Credit(
            math.log(_positive(tree["times"])),
            math.log(_positive(tree["speeds_off"])),
            int(_positive(tree["jobs"])),
            _positive(tree["at_s"]),
        )
        for user, tree in line.get("credits", {}).items()
    }


def _positive(number: float) -> float:
    """Return a number above 0 that is no larger than a time can be."""
    if not 0 < number <= LAST_S:
        raise ValueError(f"{number!r} is out of range")
    return float(number)


def throughputs_of(job: Line) -> Mapping[str, float]:
    """Return a job's throughputs by GPU type; hadard 0.2 wrote them under the key `rates`."""
    found: Mapping[str, float] = job.get("throughputs" if "throughputs" in job else "rates", {})
    return found


def job_of(name: str, tree: Line) -> Job:
    """Return a job of a line's `jobs`."""
    gangs = tree.get("gangs", {})
    throughputs = {
        (gpu_type, gangs.get(gpu_type, tree["gpus"])): GangThroughput(throughput)
        for gpu_type, throughput in throughputs_of(tree).items()
    }
    spec = JobSpec(
        job_id=JobId(name),
        num_gpus=tree["gpus"],
        total_steps=tree["steps"],
        throughputs=Throughputs.of(throughputs),
        submitted_s=tree["submitted_s"],
        shapes=tuple(Shape(*shape) for shape in tree.get("layouts", ())),
        can_checkpoint=not tree.get("stays", False),
        restart_cost_s=tree.get("restart_cost_s", 0.0),
        max_copies=tree.get("copies", 1),
        gangs=tuple(sorted(gangs.items())),
        aggregation_cost_s=tree.get("aggregation_cost_s", 0.0),
        workload=tree["workload"],
        user=tree["user"],
        claimed_steps=tree.get("claimed_steps", 0),
    )
    holds = {int(copy): gang_from_tree(gang) for copy, gang in tree["holds"].items()}
    return Job(
        spec,
        phase=Phase(tree["phase"]),
        progress=Progress(tree["steps_done"], tree["restarts"]),
        allocation=Allocation.of(holds),
        allowed_nodes=frozenset(map(NodeName, tree["nodes"])) if "nodes" in tree else None,
        bound_type=GpuType(tree["bound_type"]) if "bound_type" in tree else None,
        fair_share=tree.get("fair_share"),
        partition=tree.get("partition", ""),
        remarks=tuple(tree.get("remarks", ())),
        is_pinned=bool(tree.get("pinned", False)),
        left_out=tree.get("left_out", False),
        account=tree.get("account", ""),
        limit_left_s=tree.get("limit_left_s"),
        is_estimated=tree.get("estimated", False),
    )


def changed_rows(before: Mapping[str, Line], after: Mapping[str, Line]) -> list[str]:
    """Return the rows of a table that are not the same objects as in the line before.

    That a reader of successive lines need not look at thousands of others is worth this form.
    """
    return list(compress(after, map(is_not, after.values(), map(before.get, after))))
