"""The journal: one JSON line a round, the one output that everything else reads.

Fields are explained in docs/journal.md. A gang is `{node: {gpu type: count}}`; times are seconds,
since the epoch for hadard and since 0 for the simulator.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.engine.actions import Outcome
from hadar_slurm.engine.rounds import RoundRecord
from hadar_slurm.errors import ConfigError

VERSION = 1

Line = dict[str, Any]


def as_line(record: RoundRecord) -> Line:
    """Return a round as the journal writes it."""
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
        "actions": [_action(outcome) for outcome in record.outcomes],
        "durations_s": {part: round(time_s, 6) for part, time_s in record.durations.items()},
        "errors": list(record.errors),
    }


def gang_tree(gang: Gang) -> dict[str, dict[str, int]]:
    """Return a gang as `{node: {gpu type: count}}`."""
    tree: dict[str, dict[str, int]] = {}
    for slot, count in gang.slots:
        tree.setdefault(slot.node, {})[slot.gpu_type] = count
    return tree


def gang_from_tree(tree: dict[str, dict[str, int]]) -> Gang:
    """Return the gang in `{node: {gpu type: count}}`."""
    return Gang.of({(n, kind): count for n, gpus in tree.items() for kind, count in gpus.items()})


def _seen(snapshot: Snapshot) -> Line:
    return {
        "nodes": {
            node.name: {"gpus": dict(node.gpus), "open": node.is_schedulable}
            for node in snapshot.cluster.nodes
        },
        "occupied": gang_tree(Gang(snapshot.occupied)),
        "jobs": {job.job_id: _job(job) for job in snapshot.jobs},
        "ended": {
            end.job_id: {"phase": str(end.phase), "end_s": end.end_s} for end in snapshot.ended
        },
    }


def _job(job: Job) -> Line:
    return {
        "phase": str(job.phase),
        "user": job.spec.user,
        "workload": job.spec.workload,
        "gpus": job.spec.num_gpus,
        "submitted_s": job.spec.submitted_s,
        "steps": job.spec.total_steps,
        "steps_done": round(job.progress.steps_done, 3),
        "restarts": job.progress.restarts,
        "holds": _copies(job.allocation),
    }


def _copies(allocation: Allocation) -> Line:
    return {str(copy): gang_tree(gang) for copy, gang in allocation.copies}


def _action(outcome: Outcome) -> Line:
    action = outcome.action
    return {
        "do": type(action).__name__.lower(),
        "job": action.job_id,
        "copy": action.copy,
        "gang": gang_tree(action.gang),
        "status": str(outcome.status),
        "detail": outcome.detail,
    }


class Journal:
    """An append-only file of rounds; a line is on its way to disk before the next round begins.

    A file that has grown to `max_bytes` is put aside as `NAME.1`, older ones move up, and all
    after `NAME.{keep}` go. Without `max_bytes` it grows for ever.
    """

    def __init__(self, path: Path, *, max_bytes: float = math.inf, keep: int = 5) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_line(path)
        self._path = path
        self._max_bytes = max_bytes
        self._keep = keep
        self._file: IO[bytes] = path.open("ab")

    def write(self, record: RoundRecord, *, mode: str = "") -> None:
        """Append one round, with the mode that it was decided in if there are several.

        Raises OSError when it cannot be written; what was written of it is cut off again.
        """
        tree = as_line(record) | ({"mode": mode} if mode else {})
        before = self._file.tell()
        try:
            self._file.write(json.dumps(tree, separators=(",", ":")).encode() + b"\n")
            self._file.flush()
        except OSError:
            self._start_anew(before)
            raise
        if self._file.tell() >= self._max_bytes:
            self._rotate()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _start_anew(self, length: int) -> None:
        """Open the file again without what a failed write has left, buffered or on disk."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            os.truncate(self._path, length)
        self._file = self._path.open("ab")

    def _rotate(self) -> None:
        self._file.close()
        names = [self._path.with_name(f"{self._path.name}.{n}") for n in range(1, self._keep + 1)]
        for older, newer in pairwise(reversed(names)):
            if newer.exists():
                newer.replace(older)
        self._path.replace(names[0])
        self._file = self._path.open("ab")


def _drop_torn_line(path: Path) -> None:
    """Cut off a last line that a crash left without its end; appending to it would spoil two."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)


def read_last(path: Path, number: int) -> list[Line]:
    """Return up to `number` of the last rounds, the oldest first, reading no more than these.

    Right after the file was put aside they are in the one before. No file: no rounds.
    """
    found: list[Line] = []
    for file in (path, path.with_name(f"{path.name}.1")):
        with suppress(FileNotFoundError):
            found = _parsed(file, _last_texts(file, number - len(found))) + found
        if len(found) >= number:
            break
    return found


def _last_texts(path: Path, number: int) -> list[bytes]:
    """Return the last whole lines of a file, read backwards in blocks that double."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        block, tail = 65536, b""
        while len(tail) < size and tail.count(b"\n") <= number:
            start = max(0, size - block)
            file.seek(start)
            tail, block = file.read(size - start), 2 * block
    # What follows the last end of a line is still being written, or was cut short.
    whole = tail[: tail.rfind(b"\n") + 1].splitlines()
    return whole[-number:] if number > 0 else []


def _parsed(path: Path, texts: list[bytes]) -> list[Line]:
    """Return lines as rounds."""
    try:
        lines = [json.loads(text) for text in texts]
    except ValueError as error:
        raise ConfigError(f"{path}: near its end: not a journal line: {error}") from error
    for line in lines:
        _check_version(line, str(path))
    return lines


def _check_version(line: object, place: str) -> None:
    version = line.get("version") if isinstance(line, dict) else None
    if version != VERSION:
        raise ConfigError(f"{place}: journal version {version!r}, this reads {VERSION}")


def read_journal(path: Path) -> Iterator[Line]:
    """Yield the rounds of a journal; a last line cut short by a crash is left out."""
    with path.open(encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            try:
                line = json.loads(text)
            except ValueError as error:
                if not text.endswith("\n"):
                    return
                raise ConfigError(f"{path}:{number}: not a journal line: {error}") from error
            _check_version(line, f"{path}:{number}")
            yield line
