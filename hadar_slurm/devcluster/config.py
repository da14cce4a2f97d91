"""The nodes of a local cluster and the slurm.conf and gres.conf that describe them to Slurm.

Every GPU is a symbolic link to /dev/null: Slurm hands out only GPUs that have a device file.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import yaml

from hadar_slurm.errors import ConfigError

MAX_NODES = 256
MAX_GPUS_PER_NODE = 64
# How long a cancelled job may take to end before Slurm kills it, in seconds.
KILL_WAIT_S = 5

_NODE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
_RESERVED_NAMES = set("all default localhost mariadbd munged slurmctld slurmdbd".split())
_GPU_TYPE = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,31}")
_ENTRY = re.compile(r"(?:([0-9]{1,4}) *\* *)?([^*]+)")
_GPUS = re.compile(r"([^:]+):([0-9]{1,4})")
_ACCEPTED = (
    "write TYPE:COUNT for a node, for example v100:4; separate nodes by commas, "
    "join the types of one node with + (v100:2+k80:2), repeat a node with 3*v100:4"
)


@dataclass(frozen=True, slots=True)
class NodeShape:
    """One node: its name and its numbers of fake GPUs by type."""

    name: str
    gpus: Mapping[str, int]

    def __post_init__(self) -> None:
        if not _NODE_NAME.fullmatch(self.name) or self.name.lower() in _RESERVED_NAMES:
            raise ConfigError(
                f"node name {self.name!r}: use up to 63 letters, digits, - and _, beginning with "
                f"a letter, and none of {', '.join(sorted(_RESERVED_NAMES))}"
            )
        for gpu_type, count in self.gpus.items():
            if not isinstance(gpu_type, str) or not _GPU_TYPE.fullmatch(gpu_type):
                raise ConfigError(
                    f"node {self.name}: GPU type {gpu_type!r}: use up to 32 letters, digits, "
                    "-, _ and ., beginning with a letter"
                )
            if type(count) is not int or count < 1:
                text = f"{gpu_type}: {count!r} is not a number of GPUs from 1"
                raise ConfigError(f"node {self.name}: {text}")
        if not 1 <= self.num_gpus <= MAX_GPUS_PER_NODE:
            text = f"{self.num_gpus} GPUs: give it 1 to {MAX_GPUS_PER_NODE}"
            raise ConfigError(f"node {self.name} has {text}")
        object.__setattr__(self, "gpus", MappingProxyType(dict(sorted(self.gpus.items()))))

    @property
    def num_gpus(self) -> int:
        """Return the GPUs of all types together."""
        return sum(self.gpus.values())


Nodes = Sequence[NodeShape]


def parse_nodes(text: str) -> tuple[NodeShape, ...]:
    """Return the nodes of a line such as `v100:4,2*p100:4,v100:2+k80:2`, named n1, n2 and so on."""
    gpus: list[dict[str, int]] = []
    for entry in text.split(","):
        if (match := _ENTRY.fullmatch(entry.strip())) is None:
            raise ConfigError(f"{entry.strip()!r} in {text!r} is not a node: {_ACCEPTED}")
        gpus += [_parse_gpus(match[2], text)] * int(match[1] or 1)
    return _checked(tuple(NodeShape(f"n{i}", each) for i, each in enumerate(gpus, 1)))


def _parse_gpus(entry: str, text: str) -> dict[str, int]:
    gpus: dict[str, int] = {}
    for part in entry.split("+"):
        if (match := _GPUS.fullmatch(part.strip())) is None:
            raise ConfigError(f"{part.strip()!r} in {text!r} is not a node: {_ACCEPTED}")
        if match[1] in gpus:
            raise ConfigError(f"{entry.strip()!r} in {text!r} names {match[1]} twice: add them up")
        gpus[match[1]] = int(match[2])
    return gpus


def load_nodes(path: Path) -> tuple[NodeShape, ...]:
    """Return the nodes of a YAML file: `nodes: [{name: n1, gpus: {v100: 4}}, ...]`.

    A node without a name is named by its place in the list: n1, n2 and so on.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        text = " ".join(str(error).split())
        raise ConfigError(f"cannot read nodes from {path}: {text}") from None
    _require_keys(content, {"nodes"}, {"nodes"}, str(path))
    if not isinstance(content["nodes"], list):
        raise ConfigError(f"{path}: nodes: {content['nodes']!r} is not a list of nodes")
    shapes = []
    for place, node in enumerate(content["nodes"], 1):
        where = f"{path}: node {place}"
        _require_keys(node, {"name", "gpus"}, {"gpus"}, where)
        if not isinstance(node["gpus"], dict):
            raise ConfigError(f"{where}: gpus: {node['gpus']!r} is not a table such as {{v100: 4}}")
        try:
            shapes.append(NodeShape(str(node.get("name", f"n{place}")), node["gpus"]))
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    return _checked(tuple(shapes))


def _require_keys(value: object, known: set[str], required: set[str], where: str) -> None:
    if not isinstance(value, dict) or not required <= value.keys():
        raise ConfigError(f"{where}: {value!r} is not a table with {', '.join(sorted(required))}")
    if unknown := [str(key) for key in value if key not in known]:
        text = f"{', '.join(unknown)}; known: {', '.join(sorted(known))}"
        raise ConfigError(f"{where}: unknown key {text}")


def _checked(nodes: tuple[NodeShape, ...]) -> tuple[NodeShape, ...]:
    if not 1 <= len(nodes) <= MAX_NODES:
        raise ConfigError(f"{len(nodes)} nodes: a local cluster has 1 to {MAX_NODES}")
    if twice := [name for name, times in Counter(n.name for n in nodes).items() if times > 1]:
        raise ConfigError(f"two nodes are named {twice[0]}: give each its own name")
    return nodes


def cluster_name(directory: Path) -> str:
    """Return the ClusterName of the cluster in `directory`, the same each time."""
    return "hadar-" + hashlib.sha256(str(directory).encode()).hexdigest()[:8]


def device_path(directory: Path, node: str, gpu_type: str, index: int | str) -> Path:
    """Return the fake device of one GPU."""
    return directory / "gpu" / f"{node}-{gpu_type}-{index}"


def slurm_conf_text(
    directory: Path, nodes: Nodes, ports: Sequence[int], *, user: str, slurmd_timeout_s: int
) -> str:
    """Return slurm.conf; the first port is slurmctld's, the others belong to the nodes in turn."""
    settings = f"""\
ClusterName={cluster_name(directory)}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/slurmd/%n
SlurmctldPidFile={directory}/pid/slurmctld.pid
SlurmdPidFile={directory}/pid/%n.pid
SlurmctldLogFile={directory}/log/slurmctld/log
SlurmdLogFile={directory}/log/%n/log
SlurmdTimeout={slurmd_timeout_s}
KillWait={KILL_WAIT_S}
CompleteWait=0
InactiveLimit=0
MinJobAge=300
ReturnToService=2
JobRequeue=1
MaxJobCount=50000
MaxArraySize=20001
MailProg=/bin/true
MpiDefault=none
SwitchType=switch/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
# Nodes claim cores, memory and GPUs that this machine does not have.
SlurmdParameters=config_overrides
GresTypes=gpu
DebugFlags=NO_CONF_HASH
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,sched_interval=5,bf_interval=1
"""
    lines = [_node_line(node, port) for node, port in zip(nodes, ports[1:], strict=True)]
    lines.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
    return settings + "\n".join(lines) + "\n"


def _node_line(node: NodeShape, port: int) -> str:
    # Two cores and 1000 MB a GPU, so that GPUs are what runs out first.
    cores, memory_mb = max(16, 2 * node.num_gpus), max(8000, 1000 * node.num_gpus)
    gres = ",".join(f"gpu:{gpu_type}:{count}" for gpu_type, count in node.gpus.items())
    return (
        f"NodeName={node.name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} "
        f"CPUs={cores} Boards=1 SocketsPerBoard=1 CoresPerSocket={cores} ThreadsPerCore=1 "
        f"RealMemory={memory_mb} Gres={gres} Feature={','.join(node.gpus)}"
    )


def gres_conf_text(directory: Path, nodes: Nodes) -> str:
    """Return gres.conf, which gives every GPU its fake device."""
    lines = ["AutoDetect=off"]
    for node in nodes:
        for gpu_type, count in node.gpus.items():
            files = device_path(directory, node.name, gpu_type, f"[0-{count - 1}]")
            lines.append(f"NodeName={node.name} Name=gpu Type={gpu_type} File={files}")
    return "\n".join(lines) + "\n"


def cgroup_conf_text(version: str) -> str:
    """Return cgroup.conf for what `slurmctld -V` prints: nothing may touch control groups."""
    match = re.search(r"([0-9]+)\.([0-9]+)", version)
    if match is not None and (int(match[1]), int(match[2])) >= (23, 2):
        return "CgroupPlugin=disabled\n"
    # An older slurmd does not know that value, and looks for control groups of its own choice
    # before it learns that none are used: on a machine with v2, or with none, it would give up.
    return "CgroupPlugin=cgroup/v1\n"
