"""A job's description, carried in Slurm's Comment field as JSON. Standard library only.

Comment holds 1024 characters, survives requeues, may be set by the job's owner and is readable by
all users who may see the job. It is user input: everything in it is checked here.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import UnionType
from typing import Any, NamedTuple
from zlib import crc32

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gpu_types import Needs
from hadar_slurm.core.job import JobSpec, Shape, uniform_shapes
from hadar_slurm.core.moves import MovedBy, MoveLevel, parse_signal
from hadar_slurm.core.throughput import Throughputs
from hadar_slurm.errors import JobSpecError

VERSION = 1
MAX_COMMENT = 1024
# Bounds beyond any real job, so that a comment cannot cost the daemon much time.
MAX_GPUS = 4096
MAX_STEPS = 10**15
MIN_THROUGHPUT, MAX_THROUGHPUT = 1e-9, 1e12
MAX_RESTART_S = 1e9
MIN_LOSS_S, MAX_LOSS_S = 1.0, 30 * 86_400.0
MAX_LIMIT_S = 1e9
MAX_COPIES = 1000
MAX_MEMORY_GB, MAX_CAPABILITY = 1e6, 1e3
MAX_TYPES = 32
MAX_CORES, MAX_MEMORY_MB = 65_000, 10**9
# Keys that are fields of `Description`.
_TEXTS = frozenset(("excludes", "time_on", "comment", "signal"))
_AS_GIVEN = _TEXTS.union(
    "steps limit_s gpus asks copies gangs cores steered".split(),
    "restart_loss_s restart_cost_s exempt_s".split(),
)
_FORMS: Mapping[str, UnionType | type] = {
    **dict.fromkeys(("rates", "asks", "gangs", "cores", "mem_mb"), dict),
    **dict.fromkeys(("limit_s", "restart_loss_s", "memory_gb", "capability"), int | float),
    **dict.fromkeys(("restart_cost_s", "exempt_s"), int | float | None),
    **{"types": list, "steered": int},
}
_KEYS = _AS_GIVEN.union(_FORMS, "hadar workload shape checkpoint held leave".split())
# sbatch's options that request GPUs, and their values such as `v100:2,k80` or, of gres, `gpu:2`.
# They become part of a command, so nothing else may be in them.
GPU_OPTIONS = ("gpus", "gpus-per-node", "gres", "gpus-per-task", "gpus-per-socket")
_GPUS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}(,[A-Za-z0-9_][A-Za-z0-9_.:-]{0,63}){0,7}")
_NODES = re.compile("[0-9]{1,6}(-[0-9]{1,6})?")
_TYPE = re.compile(r"[a-z0-9_][a-z0-9_.:+-]{0,63}")
_HOSTS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,\[\]-]{0,299}")
_SPAN = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
# A list of nodes names at most this many: a short text can stand for billions.
_MOST_HOSTS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """A job as `hadar-sbatch` describes it to hadard; raises JobSpecError for wrong values."""

    # 0: not known; the job then trains for at most `limit_s`.
    steps: int = 0
    # Time limit in seconds; 0: not known.
    limit_s: float = 0.0
    gpus: int = 1
    # The user's own options of sbatch for GPUs and nodes, by name: what the job is to request again
    # if hadard loses its ledger. Empty: any `gpus` in all.
    asks: Mapping[str, str] = field(default_factory=dict)
    # A row of the throughput table, or other work whose throughput is to be measured.
    workload: str = ""
    # Throughput of the gang in steps/s per GPU type, as given by the user.
    throughputs: Mapping[str, float] = field(default_factory=dict)
    # What the job needs of each GPU.
    needs: Needs = field(default_factory=Needs)
    # The GPU type on which `limit_s` was measured; empty: the limit holds on every type.
    time_on: str = ""
    # The nodes that the user excludes, in Slurm's syntax.
    excludes: str = ""
    # None allows every uniform layout of the `gpus`.
    shape: Shape | None = None
    # Above 1 the tasks of the job's array are copies of one training (HadarE), each on one node.
    copies: int = 1
    # By GPU type in lower case: the GPUs of a copy, of which `gpus` is the smallest number, and its
    # cores and MB of memory where hadard is to set them. A copy runs on no other type. Empty: on
    # all types `gpus`, and cores and memory as submitted.
    gangs: Mapping[str, int] = field(default_factory=dict)
    cores: Mapping[str, int] = field(default_factory=dict)
    memory_mb: Mapping[str, int] = field(default_factory=dict)
    checkpoint: bool = False
    # Not 0: the job listens for no signal, and may be requeued when it loses at most this work.
    restart_loss_s: float = 0.0
    restart_cost_s: float | None = None
    # Not empty: its owner's own signal, such as `B:USR1@120`, by which the job may be moved where
    # the site allows that (core/moves.py); `checkpoint` is then false.
    signal: str = ""
    # Not None: Slurm may preempt the job by requeue after a run of this many seconds, with `signal`
    # first, and so may hadard where the site allows that; `restart_loss_s` is for each day.
    exempt_s: float | None = None
    # The job was submitted under a hold that hadard may release.
    is_held: bool = False
    # The digest of the nodes that hadar-sbatch has excluded; True: of any (up to 0.2.0), 0: none.
    steered: int = 0
    # The owner has taken the job out of hadard's control.
    leaves: bool = False
    # The user's own comment, which would otherwise be in the field.
    comment: str = ""

    def __post_init__(self) -> None:
        limit_s = self.limit_s
        _check("time limit", limit_s, 0, MAX_LIMIT_S, unit=" s")
        # Without steps there has to be a time limit, and with copies steps to share out.
        _check_count("steps", self.steps, 0 if limit_s and self.copies == 1 else 1, MAX_STEPS)
        _check_count("GPUs", self.gpus, 1, MAX_GPUS)
        _check_count("copies", self.copies, 1, MAX_COPIES)
        _check("GPU memory in GB", self.needs.memory_gb, 0, MAX_MEMORY_GB)
        _check("compute capability", self.needs.compute_capability, 0, MAX_CAPABILITY)
        types = self.needs.types
        if len(types) > MAX_TYPES or not all(map(_TYPE.fullmatch, types)):
            raise JobSpecError(f"no GPU types: {', '.join(types)}")
        if self.time_on and not (limit_s and _TYPE.fullmatch(self.time_on)):
            raise JobSpecError(f"no GPU type on which a time limit was measured: {self.time_on!r}")
        if self.excludes and not is_node_list(self.excludes):
            raise JobSpecError(f"no list of nodes to exclude: {self.excludes!r}")
        if not may_ask(self.asks):
            raise JobSpecError(f"no request for GPUs and nodes: {dict(self.asks)!r}")
        if not self.workload and not self.throughputs:
            raise JobSpecError("neither a model nor a throughput per GPU type is given")
        if self.shape is not None and self.shape.num_gpus != self.gpus:
            raise JobSpecError(f"the shape {self.shape} is not a gang of {self.gpus} GPUs")
        if self.copies > 1 and self.shape != Shape(1, self.gpus):
            raise JobSpecError("a copy of a forked job needs all its GPUs on one node")
        self._check_gangs()
        self._check_throughputs()
        self._check_costs()

    def _check_throughputs(self) -> None:
        for gpu_type, throughput in self.throughputs.items():
            if isinstance(throughput, bool) or not isinstance(throughput, int | float):
                raise JobSpecError(f"throughput of {gpu_type} must be a number, not {throughput!r}")
            if throughput != 0 and not MIN_THROUGHPUT <= throughput <= MAX_THROUGHPUT:
                wanted = f"0 or {MIN_THROUGHPUT:g} to {MAX_THROUGHPUT:g}"
                raise JobSpecError(f"throughput of {gpu_type} must be {wanted}, not {throughput!r}")
        if not self.workload and not any(self.throughputs.values()):
            raise JobSpecError("the throughput is 0 on every GPU type given")

    def _check_costs(self) -> None:
        loss_s = self.restart_loss_s
        if loss_s or isinstance(loss_s, bool):
            _check("the work that a requeue may lose", loss_s, MIN_LOSS_S, MAX_LOSS_S, unit=" s")
        if self.exempt_s is not None:
            _check("the time before preemption", self.exempt_s, 0, MAX_LIMIT_S, unit=" s")
        saves = self.checkpoint or self.exempt_s is not None
        if (loss_s and not saves) or (loss_s and self.copies > 1):
            raise JobSpecError("a requeue may lose work only of a job that saves, not in copies")
        if self.signal and (parse_signal(self.signal) is None or self.copies > 1):
            raise JobSpecError(f"no signal by which a job without copies saves: {self.signal!r}")
        if self.restart_cost_s is not None:
            _check("restart cost", self.restart_cost_s, 0, MAX_RESTART_S, unit=" s")

    def _check_gangs(self) -> None:
        for what, values, most in (
            ("GPUs", self.gangs, MAX_GPUS),
            ("cores", self.cores, MAX_CORES),
            ("MB of memory", self.memory_mb, MAX_MEMORY_MB),
        ):
            if len(values) > MAX_TYPES or not all(map(_TYPE.fullmatch, values)):
                raise JobSpecError(f"no GPU types: {', '.join(values)}")
            for gpu_type, value in values.items():
                _check_count(f"{what} on {gpu_type}", value, 1, most)
            if not values.keys() <= self.gangs.keys():
                other = sorted(values.keys() - self.gangs.keys())[0]
                raise JobSpecError(f"{what} are given on {other}, and no GPUs of a copy there")
        if self.gangs and self.copies < 2:
            raise JobSpecError("only a job in copies may have another number of GPUs on each type")
        if self.gangs and self.gpus != min(self.gangs.values()):
            raise JobSpecError(f"{self.gpus} GPUs are not the smallest gang of {dict(self.gangs)}")

    @property
    def moved_by(self) -> MovedBy:
        """Return whose words make the job movable."""
        if self.exempt_s is not None:
            return MovedBy.PREEMPTIBLE
        if self.signal:
            return MovedBy.SIGNALS
        return MovedBy.STATED if self.checkpoint else MovedBy.NONE

    def moved(self, level: MoveLevel) -> Description:
        """Return the description where only jobs up to a level are moved: `checkpoint` says so."""
        moves = MovedBy.NONE < self.moved_by <= level.by
        return self if moves == self.checkpoint else replace(self, checkpoint=moves)

    def gpus_on(self, gpu_type: str) -> int:
        """Return the GPUs of a gang on a type."""
        return self.gangs.get(gpu_type.lower(), self.gpus)

    def shapes_on(self, gpu_type: str) -> tuple[Shape, ...]:
        """Return the layouts that the job may have on a type."""
        return (Shape(1, self.gpus_on(gpu_type)),) if self.gangs else self.shapes

    @property
    def num_nodes(self) -> str:
        """Return the number of nodes that the job asks for, as a range such as `1-4`."""
        least = self.shape.nodes if self.shape else 1
        given = self.asks.get("nodes", f"{least}-{least if self.shape else self.gpus}")
        return given if "-" in given else f"{given}-{given}"

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """Return the layouts that the job may have."""
        return (self.shape,) if self.shape else uniform_shapes(self.gpus)


def digest(names: Iterable[str]) -> int:
    """Return a number that differs for other names, in any order; 0 for none."""
    return crc32(",".join(sorted(names)).encode())


def _check(what: str, value: float, least: float, most: float, *, unit: str = "") -> None:
    if isinstance(value, bool) or not least <= value <= most:
        raise JobSpecError(f"{what} must be {least:g} to {most:g}{unit}, not {value!r}")


def _check_count(what: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise JobSpecError(f"{what} must be a whole number, {least} to {most}, not {value!r}")


@lru_cache(maxsize=16384)
def decode(comment: str) -> Description | None:
    """Return a comment's description, None without hadar's key; raises JobSpecError if invalid."""
    try:
        tree = json.loads(comment)
    except (ValueError, RecursionError):
        return None
    if not isinstance(tree, dict) or "hadar" not in tree:
        return None
    if tree["hadar"] != VERSION:
        raise JobSpecError(f"description of version {tree['hadar']!r}, this reads {VERSION}")
    if unknown := sorted(set(tree) - _KEYS):
        raise JobSpecError(f"unknown key {unknown[0]!r} in the job's description")
    _check_forms(tree)
    given: Any = {n: str(tree[n]) if n in _TEXTS else tree[n] for n in _AS_GIVEN & tree.keys()}
    return Description(
        **given,
        workload=str(tree.get("workload", "")).encode(errors="replace").decode(),
        throughputs=tree.get("rates", {}),
        needs=Needs(
            types=tuple(tree.get("types", [])),
            memory_gb=tree.get("memory_gb", 0.0),
            compute_capability=tree.get("capability", 0.0),
        ),
        shape=parse_shape(str(tree["shape"])) if tree.get("shape") else None,
        memory_mb=tree.get("mem_mb", {}),
        checkpoint=tree.get("checkpoint") is True,
        is_held=tree.get("held") is True,
        leaves=tree.get("leave") is True,
    )


def _check_forms(tree: Mapping[str, object]) -> None:
    """Raise JobSpecError if a value is of a type that `Description` does not check."""
    for name in _FORMS.keys() & tree.keys():
        value, is_sound = tree[name], isinstance(tree[name], _FORMS[name])
        if not is_sound or (isinstance(value, list) and not all(isinstance(v, str) for v in value)):
            raise JobSpecError(f"{name} of the job's description has the wrong form")


def may_ask(asks: Mapping[str, object]) -> bool:
    """Return whether these are options of sbatch for GPUs and nodes, in a form that is known."""
    forms = {**dict.fromkeys(GPU_OPTIONS, _GPUS), "nodes": _NODES}
    return all(
        name in forms and isinstance(value, str) and forms[name].fullmatch(value)
        for name, value in asks.items()
    )


def is_node_list(text: str) -> bool:
    """Return whether a text is a list of nodes such as `n[1-3],gpu7`, and not too long."""
    spans = [int(most) - int(least) + 1 for least, most in _SPAN.findall(text)]
    # The number if all spans were of one name.
    is_small = all(span > 0 for span in spans) and math.prod(spans) <= _MOST_HOSTS
    return is_small and _HOSTS.fullmatch(text) is not None


def decode_or_none(comment: str) -> Description | None:
    """Return the description in a job's comment, or None if it is missing or invalid."""
    try:
        return decode(comment)
    except JobSpecError:
        return None


def parse_shape(text: str) -> Shape:
    """Return the shape in `GPUSxNODES`, such as 4x2: four GPUs on each of two nodes."""
    found = re.fullmatch("([0-9]+)x([0-9]+)", text.lower())
    if found and (shape := Shape(int(found[2]), int(found[1]))).num_gpus > 0:
        return shape
    raise JobSpecError(f"gang {text!r}: expected GPUs per node x nodes, such as 4x2")


class Submitted(NamedTuple):
    """A job's id, when it was submitted, in seconds since the epoch, and by whom."""

    job_id: JobId
    at_s: float
    user: str = ""


def job_spec(
    submitted: Submitted,
    description: Description,
    throughputs: Throughputs,
    *,
    total_steps: int,
    restart_cost_s: float,
    shapes: tuple[Shape, ...] = (),
) -> JobSpec:
    """Return the job; `restart_cost_s` is the description's default, `shapes` replace its own.

    The cost of a requeue that loses work includes half of what it may lose: the mean, where the
    time of the last checkpoint is not known.
    """
    own_cost = description.restart_cost_s
    cost_s = restart_cost_s if own_cost is None else own_cost
    return JobSpec(
        job_id=submitted.job_id,
        num_gpus=description.gpus,
        total_steps=total_steps,
        throughputs=throughputs,
        submitted_s=submitted.at_s,
        shapes=shapes or description.shapes,
        gangs=tuple(sorted(description.gangs.items())),
        can_checkpoint=description.checkpoint,
        restart_cost_s=cost_s + description.restart_loss_s / 2,
        workload=description.workload,
        user=submitted.user,
    )
