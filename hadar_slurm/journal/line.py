"""A round as a line of the journal, and the snapshot in it.

Fields are explained in docs/journal.md. A gang is `{node: {gpu type: count}}`; times are seconds,
since the epoch for hadard and since 0 for the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from hadar_slurm.core.claims import Credit, Judged
from hadar_slurm.core.cluster import NodeName, naturally_sorted
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, uniform_shapes
from hadar_slurm.core.snapshot import GangRules, Snapshot
from hadar_slurm.engine.loop import RoundRecord

VERSION = 2
# Those that are read; lines of version 1 are whole and have no checksum.
VERSIONS = (1, VERSION)

Line = dict[str, Any]

# The year 9000, which a calendar still knows.
LAST_S = 2.2e11

USUAL_RULES = asdict(GangRules())


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
        **({"left_out": dict(record.left_out)} if record.left_out else {}),
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


def _seen(snapshot: Snapshot) -> Line:
    rules = {k: v for k, v in asdict(snapshot.rules).items() if v != USUAL_RULES[k]}
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
        "nodes": None if allowed is None else [*_in_order(allowed)],
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
        "estimated": job.is_estimated or None,
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


def claim_facts(judged: Iterable[Judged], credits: Mapping[str, Credit]) -> Line:
    """Return what a line has of claims: the runs that were judged, and users believed less.

    A credit changes only when a run is judged: what has faded since is left to readers.
    """
    jobs: Line = {}
    for job in judged:
        numbers = [round(min(max(1.0, s), LAST_S)) for s in (job.claimed_s, job.lasted_s)]
        off = [_short(min(job.speeds_off, LAST_S))] if job.speeds_off > 1 else []
        found = jobs.setdefault(job.user, {}).setdefault(job.workload, {})
        # Of several runs of a job the one that was furthest off is kept.
        known = found.get(job.job_id, [1, 0])
        found[job.job_id] = max(known, numbers + off, key=lambda n: n[1] / n[0])
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


@lru_cache(maxsize=256)
def _in_order(nodes: frozenset[NodeName]) -> tuple[NodeName, ...]:
    return tuple(naturally_sorted(nodes))


def _short(factor: float) -> float:
    return float(f"{factor:.4g}")


def _copies(allocation: Allocation) -> Line:
    return {str(copy): gang_tree(gang) for copy, gang in allocation.copies}
