"""The journal: one JSON line per round, which all other tools read.

Fields are explained in docs/journal.md. A gang is `{node: {gpu type: count}}`; times are seconds,
since the epoch for hadard and since 0 for the simulator.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from io import FileIO
from itertools import count, islice, pairwise, takewhile
from pathlib import Path
from typing import Any

from hadar_slurm.core.cluster import Cluster, GpuType, JobId, Node, NodeName, natural_key
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, JobSpec, Phase, Progress, Shape, uniform_shapes
from hadar_slurm.core.snapshot import Ended, GangRules, Snapshot
from hadar_slurm.core.throughput import GangThroughput, Throughputs
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.errors import ConfigError

VERSION = 1

Line = dict[str, Any]

_RULES = asdict(GangRules())
_BLOCK = 1 << 20


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
        "aggregation_cost_s": spec.aggregation_cost_s or None,
        "fair_share": job.fair_share,
        "partition": job.partition or None,
        "remarks": list(job.remarks) or None,
        "pinned": job.is_pinned or None,
        "left_out": job.left_out or None,
    }
    return {
        "phase": str(job.phase),
        "user": spec.user,
        "workload": spec.workload,
        "gpus": spec.num_gpus,
        "submitted_s": spec.submitted_s,
        "steps": spec.total_steps,
        "steps_done": round(job.progress.steps_done, 3),
        "restarts": job.progress.restarts,
        "holds": _copies(job.allocation),
        "throughputs": {
            gpu_type: float(f"{throughput:.5g}")
            for gpu_type in spec.throughputs.gpu_types
            if (throughput := spec.throughputs.on(gpu_type, spec.num_gpus)) > 0
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
        jobs=[_job_from(JobId(name), tree) for name, tree in line["jobs"].items()],
        occupied=dict(gang_from_tree(line["occupied"]).slots),
        ended=[Ended(JobId(k), Phase(v["phase"]), v["end_s"]) for k, v in line["ended"].items()],
        # A later version may know rules that this one does not.
        rules=GangRules(**{k: v for k, v in line.get("rules", {}).items() if k in _RULES}),
    )


def throughputs_of(job: Line) -> Mapping[str, float]:
    """Return a job's throughputs by GPU type; hadard 0.2 wrote them under the key `rates`."""
    found: Mapping[str, float] = job.get("throughputs" if "throughputs" in job else "rates", {})
    return found


def _job_from(job_id: JobId, tree: Line) -> Job:
    throughputs = {
        (gpu_type, tree["gpus"]): GangThroughput(throughput)
        for gpu_type, throughput in throughputs_of(tree).items()
    }
    spec = JobSpec(
        job_id=job_id,
        num_gpus=tree["gpus"],
        total_steps=tree["steps"],
        throughputs=Throughputs.of(throughputs),
        submitted_s=tree["submitted_s"],
        shapes=tuple(Shape(*shape) for shape in tree.get("layouts", ())),
        can_checkpoint=not tree.get("stays", False),
        restart_cost_s=tree.get("restart_cost_s", 0.0),
        max_copies=tree.get("copies", 1),
        aggregation_cost_s=tree.get("aggregation_cost_s", 0.0),
        workload=tree["workload"],
        user=tree["user"],
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
    )


def _copies(allocation: Allocation) -> Line:
    return {str(copy): gang_tree(gang) for copy, gang in allocation.copies}


class Journal:
    """An append-only file of rounds; each line is written before the next round begins.

    A file that reaches `max_bytes` is rotated to `NAME.1`, older files move up, and at most `keep`
    are kept. Each line goes to the file that has the name at that time: after the file was moved
    or a write failed, the next line opens it again.
    """

    def __init__(self, path: Path, *, max_bytes: float = math.inf, keep: int = 5) -> None:
        self._path, self._max_bytes, self._keep = path, max_bytes, keep
        self._file: FileIO | None = None

    def open(self) -> FileIO:
        """Return the file, reopened if another file has its name; raises OSError."""
        if self._file is not None:
            with suppress(FileNotFoundError):
                if os.path.samestat(self._path.stat(), os.fstat(self._file.fileno())):
                    return self._file
        self.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists():
            # A last line without newline, left by a crash, is removed: the next line stays whole.
            with self._path.open("rb+") as file:
                content = file.read()
                if content and not content.endswith(b"\n"):
                    file.truncate(content.rfind(b"\n") + 1)
        # Unbuffered: closing a buffer after a failed write would write it again.
        self._file = self._path.open("ab", buffering=0)
        return self._file

    def write(
        self, record: RoundRecord, *, mode: str = "", more: Mapping[str, object] | None = None
    ) -> None:
        """Append one round; only hadard gives `mode` and `more` fields.

        Raises OSError if the write fails; a part that was written is removed.
        """
        tree = as_line(record) | ({"mode": mode} if mode else {}) | dict(more or {})
        file = self.open()
        before = file.tell()
        left = memoryview(json.dumps(tree, separators=(",", ":")).encode() + b"\n")
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            with suppress(OSError):
                os.truncate(file.fileno(), before)
            self.close()
            raise
        if file.tell() >= self._max_bytes:
            self.close()
            files = [self._path.with_name(f"{self._path.name}.{n + 1}") for n in range(self._keep)]
            for older, newer in pairwise(reversed(files)):
                if newer.exists():
                    newer.replace(older)
            self._path.replace(files[0])

    def close(self) -> None:
        """Close the file."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()


def read_last(path: Path, number: int) -> list[Line]:
    """Return up to `number` of the last rounds, the oldest first, reading only the file's end.

    Right after a rotation they are in the rotated file. Without a file there are none.
    """
    found: list[Line] = []
    for file in (path, path.with_name(f"{path.name}.1")):
        with suppress(FileNotFoundError):
            texts = list(islice(texts_backwards(file), number - len(found)))
            try:
                found = [json.loads(text) for text in reversed(texts)] + found
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{file}: near its end: not a journal line: {error}") from error
            for line in found:
                _check_version(line, str(file))
        if len(found) >= number:
            break
    return found


def read_with_older(path: Path) -> Iterator[Line]:
    """Yield the rounds of a journal's rotated files and of the journal, the oldest first."""
    for file in reversed([*files_of(path)]):
        yield from read_journal(file)


def files_of(path: Path) -> Iterator[Path]:
    """Yield a journal's path and its rotated files, the newest first."""
    yield path
    numbered = (path.with_name(f"{path.name}.{number}") for number in count(1))
    yield from takewhile(Path.exists, numbered)


def texts_backwards(path: Path) -> Iterator[bytes]:
    """Yield the whole lines of a file, without newlines, the last one first."""
    with path.open("rb") as file:
        left = file.seek(0, os.SEEK_END)
        # Text after the last newline is still being written, or was cut off.
        is_whole = False
        parts: list[bytes] = []
        while left > 0:
            start = max(0, left - _BLOCK)
            file.seek(start)
            first, *others = file.read(left - start).split(b"\n")
            left = start
            if others:
                others[-1] += b"".join(reversed(parts))
                parts = []
                for text in reversed(others):
                    if is_whole:
                        yield text
                    is_whole = True
            parts.append(first)
        if is_whole:
            yield b"".join(reversed(parts))


def _check_version(line: object, place: str) -> None:
    version = line.get("version") if isinstance(line, dict) else None
    if version != VERSION:
        raise ConfigError(f"{place}: journal version {version!r}, this reads {VERSION}")


def read_journal(path: Path) -> Iterator[Line]:
    """Yield the rounds of a journal; a last line cut off by a crash is left out."""
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            try:
                line = json.loads(text)
            except (ValueError, RecursionError) as error:
                if not text.endswith("\n"):
                    return
                raise ConfigError(f"{path}:{number}: not a journal line: {error}") from error
            _check_version(line, f"{path}:{number}")
            yield line
