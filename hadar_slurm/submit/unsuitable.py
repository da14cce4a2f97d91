"""The nodes that do not suit a job, by its throughputs, its time limit and earlier failures."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hadar_slurm.core.cluster import Cluster, NodeName
from hadar_slurm.core.time_limit import late_types
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.estimator import Estimator, fitting_types, words, work_of
from hadar_slurm.state.failures import read_failures


class Unsuitable(NamedTuple):
    """What a job that Slurm starts is to be kept off."""

    # Why failures deprive the job of GPU types, by their names in lower case.
    bars: Mapping[str, str] = {}
    # The nodes of its partition with a type on which it does not run or end in time; None where
    # these are all, and where the nodes are not known.
    nodes: tuple[NodeName, ...] | None = None


def unsuitable(
    description: Description, estimator: Estimator, cluster: Cluster | None, run_dir: Path | None
) -> Unsuitable:
    """Return what does not suit a job; `run_dir` has hadard's file of failures, None: no matter.

    hadard gives a job more time on a slower type, sbatch does not.
    """
    if cluster is None:
        return Unsuitable()
    bars, user, size = dict[str, str](), _user_name(), description.gpus
    work = work_of(description, user) if description.copies == 1 and user else None
    types = fitting_types(cluster.nodes, description.shapes)
    if work is not None and run_dir is not None:
        estimator.heed(work, read_failures(run_dir, work))
        bars = {k: words(bar) for k, bar in estimator.barred(description, user, types).items()}
    throughputs = estimator.throughputs(description, "", cluster.gpus_by_type, without=bars)
    if description.limit_s and (description.steps or description.time_on):
        limits_s = dict.fromkeys(throughputs.gpu_types, description.limit_s)
        steps = estimator.total_steps(description, throughputs)
        late = late_types(throughputs, size, steps, limits_s, types)
        throughputs = throughputs.without(late.keys())
    wrong = tuple(
        node.name
        for node in cluster.nodes
        if not throughputs.run_on_all((k for k, _ in node.gpus), size)
    )
    return Unsuitable(bars, wrong if len(wrong) < len(cluster.nodes) else None)


def _user_name() -> str:
    """Return the name of this user, "" if it has none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return ""
