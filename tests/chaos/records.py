"""Reads jobs and nodes from Slurm's own records, without the product's parsers. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ClusterShell.NodeSet import NodeSet
from integration.site import Gpu, gpus_in

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "REQUEUE_FED"})
HOLDING = frozenset({"RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED"})

_FIELD = re.compile(r"(?:^| )(\w+)=(\S*)")
_NOTHING = ("(null)", "None", "N/A", "Unknown")


@dataclass(frozen=True, slots=True)
class Sighting:
    """One job or array task; times in seconds since the epoch, 0 if there are none."""

    key: str
    raw_id: str
    state: str
    reason: str
    priority: int
    restarts: int
    requested_nodes: str
    excluded_nodes: str
    dependency: str
    started_s: float
    ended_s: float
    gpus: frozenset[Gpu]
    nice: str = "0"
    limit: str = ""
    features: str = ""
    qos: str = ""
    num_nodes: str = ""

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self.state not in WAITING and self.state not in HOLDING

    @property
    def is_held(self) -> bool:
        """Whether the job is pending under any hold."""
        return self.state in WAITING and self.priority == 0

    def __str__(self) -> str:
        words = [self.state, self.reason, f"priority {self.priority}", f"restarts {self.restarts}"]
        gpus = " ".join(sorted(f"{gpu.node}:{gpu.gpu_type}:{gpu.index}" for gpu in self.gpus))
        nodes = f"must have {self.requested_nodes}" if self.requested_nodes else ""
        words.append(f"begins {self.started_s:.0f}")
        return f"job {self.key}: " + ", ".join(word for word in (*words, nodes, gpus) if word)


def sightings(text: str) -> Iterator[Sighting]:
    """Yield the jobs in `scontrol show job -d -o`, whose names must be plain words."""
    for line in text.splitlines():
        if line.startswith("JobId="):
            yield from _sighting(line)


def _sighting(line: str) -> Iterator[Sighting]:
    facts: dict[str, str] = {}
    for name, value in _FIELD.findall(line):
        facts.setdefault(name, "" if value in _NOTHING else value)
    seen = Sighting(
        key=facts["JobId"],
        raw_id=facts["JobId"],
        state=facts["JobState"],
        reason=facts["Reason"],
        priority=int(facts["Priority"]),
        restarts=int(facts.get("Restarts") or 0),
        requested_nodes=facts.get("ReqNodeList", ""),
        excluded_nodes=facts.get("ExcNodeList", ""),
        dependency=facts.get("Dependency", ""),
        started_s=_seconds(facts.get("StartTime", "")),
        ended_s=_seconds(facts.get("EndTime", "")),
        gpus=gpus_in(line) if facts["JobState"] in HOLDING else frozenset(),
        nice=facts.get("Nice", ""),
        limit=facts.get("TimeLimit", ""),
        features=facts.get("Features", ""),
        qos=facts.get("QOS", ""),
        num_nodes=facts.get("NumNodes", ""),
    )
    if "ArrayTaskId" not in facts:
        yield seen
        return
    for task in NodeSet(f"[{facts['ArrayTaskId'].partition('%')[0]}]"):
        yield _renamed(seen, f"{facts['ArrayJobId']}_{task}")


def _renamed(seen: Sighting, key: str) -> Sighting:
    values = {name: getattr(seen, name) for name in Sighting.__slots__}
    return Sighting(**{**values, "key": key})


def _seconds(text: str) -> float:
    return float(text) if text.isdigit() else 0.0


def node_states(text: str) -> dict[str, str]:
    """Return the state of every node in `scontrol show node -o`.

    It is `UNREPORTED` from a restart of slurmctld until slurmd has reported.
    """
    states = {}
    for line in text.splitlines():
        facts = dict(_FIELD.findall(line))
        if "NodeName" in facts and "State" in facts:
            has_come = facts.get("SlurmdStartTime") != "None"
            states[facts["NodeName"]] = facts["State"] if has_come else "UNREPORTED"
    return states


_USED = re.compile(r"gpu:([^:(]+):[1-9]\d*\(IDX:([^)]*)\)")


def gpus_in_use(text: str) -> set[Gpu]:
    """Return the GPUs that slurmctld counts as allocated, in `scontrol show node -d -o`.

    Those that no job holds are lost: 22.05.8 may lose some in a restart.
    """
    found: set[Gpu] = set()
    for line in text.splitlines():
        facts = dict(_FIELD.findall(line))
        for kind, indices in _USED.findall(facts.get("GresUsed", "")):
            found |= {Gpu(facts["NodeName"], kind, int(index)) for index in NodeSet(f"[{indices}]")}
    return found


_GRES = re.compile(r"gpu:(?:([^:(,]+):)?(\d+)")
_MAY_START = frozenset({"IDLE", "MIXED"})


def idle_gpus(text: str) -> dict[tuple[str, str], int]:
    """Return the idle GPUs by node and type, on nodes that start jobs, in `show node -d -o`."""
    found: dict[tuple[str, str], int] = {}
    for line in text.splitlines():
        facts = dict(_FIELD.findall(line))
        if facts.get("State") not in _MAY_START or facts.get("SlurmdStartTime") == "None":
            continue
        used = dict(_GRES.findall(facts.get("GresUsed", "")))
        for gpu_type, number in _GRES.findall(facts.get("Gres", "")):
            found[facts["NodeName"], gpu_type] = int(number) - int(used.get(gpu_type, 0))
    return found
