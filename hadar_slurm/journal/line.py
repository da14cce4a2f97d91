"""A round as a line of the journal, and the snapshot in it.

Fields are explained in docs/journal.md. A gang is `{node: {gpu type: count}}`; times are seconds,
since the epoch for hadard and since 0 for the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from itertools import compress
from operator import is_not
from typing import Any

from hadar_slurm.core.claims import Credit, Judged
from hadar_slurm.core.cluster import Cluster, GpuType, JobId, Node, NodeName, natural_key
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress, Shape, uniform_shapes
from hadar_slurm.core.snapshot import Ended, GangRules, Snapshot
from hadar_slurm.core.throughput import GangThroughput, Throughputs
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.errors import ConfigError

VERSION = 2
# Those that are read; lines of version 1 are whole and have no checksum.
VERSIONS = (1, VERSION)

Line = dict[str, Any]

# The year 9000, which a calendar still knows.
_LAST_S = 2.2e11

_RULES = asdict(GangRules())


def as_line(record: RoundRecord) -> Line:
    """Return a round as a journal line."""
    seen = _seen(record.snapshot) if record.snapshot else {}
    plan = record.plan
    return {
        "version": VERSION,
        "round": record.round.index,
        "time_s": record.round.start_s,
        "length_s": record.round.length_s,
        "wake": record.wake,
        "may_move": record.round.may_move,
        "policy": record.policy,
        **seen,
        "plan": {job: _copies(held) for job, held in plan.allocations} if plan else None,
        "waiting": {job: str(why) for job, why in plan.waiting} if plan else {},
        "figures": dict(plan.figures) if plan else {},
        "actions": [
            {
                "do": type(action).__name__.lower(),
                "job": action.job_id,
                "copy": action.copy,
                "gang": gang_tree(action.gang),
                "status": str(outcome.status),
                "detail": outcome.detail,
            }
            for outcome in record.outcomes
            for action in [outcome.action]
        ],
        "durations_s": {part: round(time_s, 6) for part, time_s in record.durations.items()},
        "errors": list(record.errors),
    }


def gang_tree(gang: Gang) -> dict[str, dict[str, int]]:
    """Return a gang as `{node: {gpu type: count}}`."""
    tree: dict[str, dict[str, int]] = {}
    for slot, number in gang.slots:
        tree.setdefault(slot.node, {})[slot.gpu_type] = number
    return tree


def gang_from_tree(tree: Mapping[str, Mapping[str, int]]) -> Gang:
    """Return the gang in `{node: {gpu type: count}}`."""
    return Gang.of(
        {(n, gpu_type): number for n, gpus in tree.items() for gpu_type, number in gpus.items()}
    )


def _seen(snapshot: Snapshot) -> Line:
    rules = {k: v for k, v in asdict(snapshot.rules).items() if v != _RULES[k]}
    return {
        "nodes": {
            node.name: {"gpus": dict(node.gpus), "open": node.is_schedulable}
            for node in snapshot.cluster.nodes
        },
        "occupied": gang_tree(Gang(snapshot.occupied)),
        "jobs": {job.job_id: _job(job) for job in snapshot.jobs},
        "ended": {e.job_id: {"phase": str(e.phase), "end_s": e.end_s} for e in snapshot.ended},
        **({"rules": rules} if rules else {}),
    }


def _job(job: Job) -> Line:
    spec = job.spec
    is_wide = spec.shapes == uniform_shapes(spec.num_gpus)
    allowed = job.allowed_nodes
    unusual = {
        "stays": None if spec.can_checkpoint else True,
        "layouts": None if is_wide else [list(shape) for shape in spec.shapes],
        "nodes": None if allowed is None else sorted(allowed, key=natural_key),
        "bound_type": job.bound_type,
        "copies": spec.max_copies if spec.max_copies > 1 else None,
        "gangs": dict(spec.gangs) or None,
        "aggregation_cost_s": spec.aggregation_cost_s or None,
        "fair_share": job.fair_share,
        "partition": job.partition or None,
        "account": job.account or None,
        "remarks": list(job.remarks) or None,
        "pinned": job.is_pinned or None,
        "left_out": job.left_out or None,
        "limit_left_s": None if job.limit_left_s is None else round(job.limit_left_s),
    }
    return {
        "phase": str(job.phase),
        "user": spec.user,
        "workload": spec.workload,
        "gpus": spec.num_gpus,
        "submitted_s": spec.submitted_s,
        "steps": spec.total_steps,
        **({"claimed_steps": spec.claimed_steps} if spec.claimed_steps else {}),
        "steps_done": round(job.progress.steps_done, 3),
        "restarts": job.progress.restarts,
        "holds": _copies(job.allocation),
        "throughputs": {
            gpu_type: float(f"{throughput:.5g}")
            for gpu_type in spec.throughputs.gpu_types
            if (throughput := spec.throughput_on(gpu_type)) > 0
        },
        "restart_cost_s": spec.restart_cost_s,
        # Fields at their usual value are left out.
        **{name: value for name, value in unusual.items() if value is not None},
    }


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
        rules=GangRules(**{k: v for k, v in line.get("rules", {}).items() if k in _RULES}),
    )


def claim_facts(judged: Iterable[Judged], credits: Mapping[str, Credit]) -> Line:
    """Return what a line has of claims: ended jobs that were judged, and users believed less.

    A credit changes only when a job is judged: what has faded since is left to readers.
    """
    jobs: Line = {}
    for job in judged:
        numbers = [round(min(max(1.0, s), _LAST_S)) for s in (job.claimed_s, job.lasted_s)]
        off = [_short(min(job.speeds_off, _LAST_S))] if job.speeds_off > 1 else []
        jobs.setdefault(job.user, {}).setdefault(job.workload, {})[job.job_id] = numbers + off
    believed = {
        user: {
            "times": _short(math.exp(credit.log_off)),
            "speeds_off": _short(math.exp(credit.speeds_off)),
            "jobs": credit.jobs,
            "at_s": round(credit.at_s),
        }
        for user, credit in credits.items()
    }
    return {**({"judged": jobs} if jobs else {}), **({"credits": believed} if believed else {})}


def judged_of(line: Line) -> list[Judged]:
    """Return the ended jobs whose claims were judged in a round; ValueError for wrong numbers."""
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
    if not 0 < number <= _LAST_S:
        raise ValueError(f"{number!r} is out of range")
    return float(number)


def _short(factor: float) -> float:
    return float(f"{factor:.4g}")


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
        Phase(tree["phase"]),
        Progress(tree["steps_done"], tree["restarts"]),
        Allocation.of(holds),
        frozenset(map(NodeName, tree["nodes"])) if "nodes" in tree else None,
        GpuType(tree["bound_type"]) if "bound_type" in tree else None,
        tree.get("fair_share"),
        tree.get("partition", ""),
        tuple(tree.get("remarks", ())),
        bool(tree.get("pinned", False)),
        tree.get("left_out", False),
        tree.get("account", ""),
        tree.get("limit_left_s"),
    )


def _copies(allocation: Allocation) -> Line:
    return {str(copy): gang_tree(gang) for copy, gang in allocation.copies}


def changed_rows(before: Mapping[str, Line], after: Mapping[str, Line]) -> list[str]:
    """Return the rows of a table that are not the same objects as in the line before.

    That a reader of successive lines need not look at thousands of others is worth this form.
    """
    return list(compress(after, map(is_not, after.values(), map(before.get, after))))
