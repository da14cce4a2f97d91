"""Writes files of tensors whole or not at all, block by block (tensors.py reads them)."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import torch

from hadar_slurm.runtime.files.tensors import (
    DTYPES,
    KEY,
    Checksum,
    StreamedTensor,
    blocks_of,
    content_of,
    size_of,
)


@dataclass(frozen=True)
class Room:
    """A file that is of no more use, to be written over, and the name under which to keep it then.

    That takes half of the CPU time of a new file, whose memory the kernel has to find and clear,
    and far less on a virtual machine that has returned freed memory to its host.
    """

    old: Path
    new: Path


def write_tensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor | StreamedTensor],
    facts: Mapping[str, Any],
    *,
    is_first: bool = False,
    room: Room | None = None,
) -> bool:
    """Write a file in one step, and return whether this process wrote it.

    A reader sees all of it or the previous file. With `is_first` an existing file stays, and the
    process that wrote it may have removed this one's draft. Raises OSError (a full disk), and what
    making a stream raises; nothing of the attempt is left then.
    """
    draft = path.with_name(f".{path.name}.{own_suffix()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with _opened(draft, room) as file:
            _write(file, tensors, facts)
        if room:
            with suppress(OSError):  # a file system without links
                os.link(draft, room.new)
        try:
            (os.link if is_first else os.replace)(draft, path)
        except (FileExistsError, FileNotFoundError):
            if not is_first:
                raise
            return False
        _flush(path.parent)
        return True
    finally:
        with suppress(OSError):
            draft.unlink()


def own_suffix() -> str:
    """Return what makes a file's name this process's own."""
    return f"{socket.gethostname()}.{os.getpid()}"


def _opened(draft: Path, room: Room | None) -> FileIO:
    """Return a new file to write to, or an old one that has no other name."""
    if room:
        with suppress(OSError):
            room.old.rename(draft)
            file = FileIO(os.open(draft, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "w")
            if os.fstat(file.fileno()).st_nlink == 1:
                return file
            file.close()
    draft.unlink(missing_ok=True)
    return FileIO(draft, "x")


def _write(
    file: FileIO, tensors: Mapping[str, torch.Tensor | StreamedTensor], facts: Mapping[str, Any]
) -> None:
    """Write a file, the header last: it has the checksums. It keeps its length."""
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    checksums = dict.fromkeys(order, 0)
    header = _header_of(tensors, order, facts, checksums)
    file.seek(len(header))
    for name in order:
        checksum = Checksum(name)
        for block in blocks_of(tensors[name]):
            content = content_of(block)
            checksum.add(content)
            _write_all(file.fileno(), content)
        checksums[name] = checksum.value
    file.truncate()
    file.seek(0)
    _write_all(
        file.fileno(),
        _header_of(tensors, order=order, facts=facts, checksums=checksums, length=len(header)),
    )
    os.fsync(file.fileno())


def _header_of(
    tensors: Mapping[str, torch.Tensor | StreamedTensor],
    order: list[str],
    facts: Mapping[str, Any],
    checksums: Mapping[str, int],
    length: int = 0,
) -> bytes:
    """Return what comes before the tensors, with room for other checksums, or of a `length`."""
    tree: dict[str, Any] = {"__metadata__": {KEY: json.dumps({**facts, "checksums": checksums})}}
    end = 0
    for name in order:
        each = tensors[name]
        first, end = end, end + size_of(each)
        shown = {"dtype": DTYPES[each.dtype], "shape": list(each.shape)}
        tree[name] = {**shown, "data_offsets": [first, end]}
    text = json.dumps(tree).encode()
    size = length - 8 if length else (len(text) + 10 * len(order)) // 8 * 8 + 8
    return struct.pack("<Q", size) + text.ljust(size)


def _write_all(descriptor: int, content: bytes | memoryview) -> None:
    left = memoryview(content)
    while len(left):
        left = left[os.write(descriptor, left) :]


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
