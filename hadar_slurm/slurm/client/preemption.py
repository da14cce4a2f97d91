"""What Slurm preempts by requeue: partitions below others, and QOS that others preempt.

By Slurm's documentation (slurm.conf: PreemptType, PreemptMode; sacctmgr: QOS), as 22.05.8 shows it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from itertools import chain

from hadar_slurm.core.time_limit import parse_time_limit
from hadar_slurm.errors import SlurmError
from hadar_slurm.slurm.client.parse import NodeRow
from hadar_slurm.slurm.client.protocol import Preemptible
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.state import read_nodes

log = logging.getLogger(__name__)

_SETTING = re.compile(r"^(Preempt\w+) += (.*)$", re.MULTILINE)
_PARTITION = re.compile(
    r"^PartitionName=(\S+) .*? GraceTime=(\d+) .*? PriorityTier=(\d+) .*? PreemptMode=(\S+)",
    re.MULTILINE,
)
_QOS = "Name,Preempt,PreemptMode,GraceTime,PreemptExemptTime"


def read_preemptible(runner: Runner) -> Preemptible:
    """Return what Slurm preempts by requeue; nothing without slurmdbd for QOS."""
    settings = dict(_SETTING.findall(runner.run(["scontrol", "show", "config"])))
    kind, exempt_s = settings.get("PreemptType", ""), _seconds(settings.get("PreemptExemptTime"))
    if kind.endswith("/qos"):
        try:
            shown = runner.run(["sacctmgr", "-nP", "show", "qos", f"format={_QOS}"])
        except SlurmError as error:
            log.warning("what Slurm preempts is not known: %s", error)
            return {}
        return _of_qos(shown, settings.get("PreemptMode", ""), exempt_s)
    if kind.endswith("/partition_prio"):
        shown = runner.run(["scontrol", "-a", "show", "partition", "-o"])
        return _of_partitions(shown, read_nodes(runner), exempt_s)
    return {}


def _of_partitions(shown: str, nodes: Iterable[NodeRow], exempt_s: float) -> Preemptible:
    """Return the partitions below another one that has some of their nodes."""
    rows = {name: (grace, int(tier), mode) for name, grace, tier, mode in _PARTITION.findall(shown)}
    found: dict[str, tuple[float, float]] = {}
    for names in {node.partitions for node in nodes}:
        known = [name for name in names if name in rows]
        most = max((rows[name][1] for name in known), default=0)
        for name in known:
            grace, tier, mode = rows[name]
            if tier < most and _requeues(mode):
                found[f"partition={name}"] = float(grace), exempt_s
    return found


def _of_qos(shown: str, mode_of_cluster: str, exempt_s: float) -> Preemptible:
    """Return the QOS that another one preempts."""
    rows = [line.split("|") for line in shown.splitlines() if line.count("|") >= 4]
    preempted = set(chain.from_iterable(row[1].split(",") for row in rows))
    found: dict[str, tuple[float, float]] = {}
    for name, _, mode, grace, exempt, *_ in rows:
        own_s = _seconds(exempt) if exempt.strip() else exempt_s
        if name in preempted and _requeues(mode_of_cluster if mode == "cluster" else mode):
            found[f"qos={name}"] = _seconds(grace), own_s
    return found


def _requeues(mode: str) -> bool:
    return "REQUEUE" in mode.upper().split(",")


def _seconds(text: str | None) -> float:
    return parse_time_limit(text or "") or 0.0
