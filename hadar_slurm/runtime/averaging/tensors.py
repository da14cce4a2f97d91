"""Files of tensors and facts: written whole or not at all, checked as they are read.

A file is a safetensors file, which holds no code, with JSON in its metadata under `hadar`. Any
Python with safetensors can read one. It is written and read in blocks, so no tensor needs a second
place in memory, and a tensor is read from the disk once: its checksum is that of its blocks.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import socket
import struct
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

BLOCK = 1 << 18
_KEY = "hadar"
_NAMES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_DTYPES = {dtype: name for name, dtype in _NAMES.items()}


class TensorFileError(ValueError):
    """A file is not whole, or was not written by this library; says which and why."""

    def __init__(self, path: Path, why: object) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


@dataclass(frozen=True)
class Stream:
    """A tensor that is made while it is written: `blocks` returns its blocks in order, flat."""

    dtype: torch.dtype
    shape: torch.Size
    blocks: Callable[[], Iterator[torch.Tensor]]


@dataclass(frozen=True)
class _Place:
    """Where a tensor is in a file."""

    dtype: torch.dtype
    shape: torch.Size
    first: int
    end: int


class TensorFile:
    """A file whose header is whole: its `facts`, and its tensors, which are checked when read."""

    def __init__(self, path: Path) -> None:
        """Open `path`; raises TensorFileError, and OSError when it cannot be read."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        try:
            metadata, self._places = self._header()
            facts = json.loads(metadata[_KEY])
            self._checksums: Mapping[str, int] = facts.pop("checksums", {})
            checksum = facts.pop("checksum", None)  # of releases before this one
        except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
            raise TensorFileError(path, error or type(error).__name__) from error
        self.facts: Mapping[str, Any] = facts
        self.names = tuple(sorted(self._places))
        if checksum is not None:
            self._check_all(checksum)
        elif self._places.keys() != self._checksums.keys():
            raise TensorFileError(path, "it has not the checksums of its tensors")

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Return the shape of each tensor."""
        return {name: place.shape for name, place in self._places.items()}

    def dtype(self, name: str) -> torch.dtype:
        """Return the type of a tensor; raises KeyError where there is none."""
        return self._places[name].dtype

    def tensor(self, name: str) -> torch.Tensor:
        """Return one tensor, once it is checked.

        Raises KeyError where there is none, TensorFileError and OSError.
        """
        place = self._places[name]
        tensor = torch.empty(place.shape, dtype=place.dtype)
        for _ in self._read(name, tensor.reshape(-1)):
            pass
        return tensor

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        """Yield the blocks of a tensor, each valid until the next; raises like `tensor`.

        A wrong checksum is found after the last one.
        """
        place = self._places[name]
        count = math.prod(place.shape)
        return self._read(name, torch.empty(min(count, BLOCK), dtype=place.dtype))

    def stream(self, name: str) -> Stream:
        """Return a tensor to be written to another file."""
        place = self._places[name]
        return Stream(place.dtype, place.shape, lambda: self.blocks(name))

    def _read(self, name: str, into: torch.Tensor) -> Iterator[torch.Tensor]:
        """Read a tensor into one of its size, or block by block into one of a block's."""
        place, checksum = self._places[name], _Checksum(name)
        count = math.prod(place.shape)
        for first in range(0, count, BLOCK):
            at = first if len(into) == count else 0
            block = into[at : at + min(BLOCK, count - first)]
            content = content_of(block)
            offset = place.first + first * place.dtype.itemsize
            if os.preadv(self._descriptor, [content], offset) != len(content):
                raise TensorFileError(self.path, f"{name} is cut off")
            checksum.add(content)
            yield block
        if self._checksums and checksum.value != self._checksums[name]:
            raise TensorFileError(self.path, f"{name} is not what was written")

    def _header(self) -> tuple[Mapping[str, str], dict[str, _Place]]:
        size = os.fstat(self._descriptor).st_size
        (length,) = struct.unpack("<Q", os.pread(self._descriptor, 8, 0))
        if 8 + length > size:
            raise ValueError("it is cut off")
        tree = json.loads(os.pread(self._descriptor, length, 8))
        metadata = tree.pop("__metadata__")
        places = {}
        for name, entry in tree.items():
            first, end = (8 + length + int(offset) for offset in entry["data_offsets"])
            place = _Place(_NAMES[entry["dtype"]], torch.Size(entry["shape"]), first, end)
            if end - first != math.prod(place.shape) * place.dtype.itemsize:
                raise ValueError(f"{name} has another size than its shape")
            places[name] = place
        if max((place.end for place in places.values()), default=8 + length) != size:
            raise ValueError("its size is not that of its tensors")
        return metadata, places

    def _check_all(self, expected: int) -> None:
        """Check the one checksum of a file of an older release."""
        checksum = 0
        for name in self.names:
            tensor = self.tensor(name)
            head = f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
            checksum = zlib.crc32(content_of(tensor.reshape(-1)), zlib.crc32(head, checksum))
        if checksum != expected:
            raise TensorFileError(self.path, "its tensors are not those that were written")


class _Checksum:
    """A checksum of a tensor's blocks: against accidents, not malice.

    A block counts by the sum of its 64-bit words, which is several times as fast as a CRC.
    """

    def __init__(self, name: str) -> None:
        self.value = zlib.crc32(name.encode())

    def add(self, content: memoryview) -> None:
        words = len(content) // 8
        total = 0
        if words:
            total = int(torch.frombuffer(content, dtype=torch.int64, count=words).sum()) % 2**64
        self.value = zlib.crc32(content[8 * words :], self.value)
        self.value = zlib.crc32(total.to_bytes(8, "little"), self.value)


def checksum_of(tensors: Mapping[str, torch.Tensor]) -> int:
    """Return a checksum of tensors on any device, with their names."""
    found = 0
    for name in sorted(tensors):
        checksum = _Checksum(name)
        for block in _blocks(tensors[name]):
            checksum.add(content_of(block))
        found = zlib.crc32(checksum.value.to_bytes(8, "little"), found)
    return found


def write_tensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor | Stream],
    facts: Mapping[str, Any],
    *,
    is_first: bool = False,
) -> bool:
    """Write a file in one step, and return whether this process wrote it.

    A reader sees all of it or the previous file. With `is_first` an existing file stays, and the
    process that wrote it may have removed this one's draft. Raises OSError (a full disk), and what
    making a stream raises; nothing of the attempt is left then.
    """
    draft = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _write(draft, tensors, facts)
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


def _write(
    path: Path, tensors: Mapping[str, torch.Tensor | Stream], facts: Mapping[str, Any]
) -> None:
    """Write a file, the header last: it has the checksums. It keeps its length."""
    order = sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name))
    checksums = dict.fromkeys(order, 0)
    header = _header_of(tensors, order, facts, checksums)
    with open(path, "wb", buffering=0) as file:
        file.seek(len(header))
        for name in order:
            checksum = _Checksum(name)
            for block in _blocks(tensors[name]):
                content = content_of(block)
                checksum.add(content)
                _write_all(file.fileno(), content)
            checksums[name] = checksum.value
        file.seek(0)
        _write_all(
            file.fileno(),
            _header_of(tensors, order, facts, checksums, len(header)),
        )
        os.fsync(file.fileno())


def _header_of(
    tensors: Mapping[str, torch.Tensor | Stream],
    order: list[str],
    facts: Mapping[str, Any],
    checksums: Mapping[str, int],
    length: int = 0,
) -> bytes:
    """Return what comes before the tensors, with room for other checksums, or of a `length`."""
    tree: dict[str, Any] = {"__metadata__": {_KEY: json.dumps({**facts, "checksums": checksums})}}
    end = 0
    for name in order:
        each = tensors[name]
        first, end = end, end + math.prod(each.shape) * each.dtype.itemsize
        shown = {"dtype": _DTYPES[each.dtype], "shape": list(each.shape)}
        tree[name] = {**shown, "data_offsets": [first, end]}
    text = json.dumps(tree).encode()
    size = length - 8 if length else (len(text) + 10 * len(order)) // 8 * 8 + 8
    return struct.pack("<Q", size) + text.ljust(size)


def _blocks(tensor: torch.Tensor | Stream) -> Iterator[torch.Tensor]:
    if isinstance(tensor, Stream):
        yield from tensor.blocks()
        return
    flat = tensor.detach().contiguous().reshape(-1)
    for first in range(0, len(flat), BLOCK):
        yield flat[first : first + BLOCK].cpu()


def content_of(block: torch.Tensor) -> memoryview:
    """Return the bytes of a flat tensor in main memory, which has to outlive them."""
    size = block.numel() * block.element_size()
    return memoryview((ctypes.c_ubyte * size).from_address(block.data_ptr())).cast("B")


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
