"""Files of tensors and facts, which are checked as they are read; writing.py writes them.

A file is a safetensors file, which holds no code, with JSON in its metadata under `hadar`. Any
Python with safetensors can read one. It is written and read in blocks, so no tensor needs a second
place in memory, and a tensor is read from the disk once: its checksum is that of its blocks.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import struct
import weakref
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

BLOCK = 1 << 18
KEY = "hadar"
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
DTYPES = {dtype: name for name, dtype in _NAMES.items()}


class TensorFileError(ValueError):
    """A file is not whole, or was not written by this library; says which and why."""

    def __init__(self, path: Path, why: object) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


@dataclass(frozen=True)
class StreamedTensor:
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


def size_of(tensor: torch.Tensor | StreamedTensor | _Place) -> int:
    """Return the size of a tensor in bytes."""
    size: int = math.prod(tensor.shape) * tensor.dtype.itemsize
    return size


class TensorFile:
    """A file whose header is whole: its `facts`, and its tensors, which are checked when read."""

    def __init__(self, path: Path) -> None:
        """Open `path`; raises TensorFileError, and OSError when it cannot be read."""
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        try:
            metadata, self._places = self._header()
            facts = json.loads(metadata[KEY])
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
        self.read_into(name, tensor.reshape(-1))
        return tensor

    def read_into(self, name: str, flat: torch.Tensor) -> None:
        """Read a tensor into a flat one of any type and device; raises like `tensor`.

        A wrong checksum is found when it is read.
        """
        if flat.device.type == "cpu" and flat.dtype == self.dtype(name):
            for _ in self._read(name, flat):
                pass
            return
        first = 0
        for block in self.blocks(name):
            flat[first : first + len(block)].copy_(block)
            first += len(block)

    def blocks(self, name: str) -> Iterator[torch.Tensor]:
        """Yield the blocks of a tensor, each valid until the next; raises like `tensor`.

        A wrong checksum is found after the last one.
        """
        place = self._places[name]
        count = math.prod(place.shape)
        return self._read(name, torch.empty(min(count, BLOCK), dtype=place.dtype))

    def stream(self, name: str) -> StreamedTensor:
        """Return a tensor to be written to another file."""
        place = self._places[name]
        return StreamedTensor(place.dtype, place.shape, lambda: self.blocks(name))

    def _read(self, name: str, into: torch.Tensor) -> Iterator[torch.Tensor]:
        """Read a tensor into one of its size, or block by block into one of a block's."""
        place, checksum = self._places[name], Checksum(name)
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
            if end - first != size_of(place):
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


class Checksum:
    """A checksum of a tensor's blocks: against accidents, not malice.

    A block counts by the sum of its 64-bit words, which is several times as fast as a CRC.
    """

    def __init__(self, name: str) -> None:
        self.value = zlib.crc32(name.encode())

    def add(self, content: memoryview) -> None:
        """Take in the next block."""
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
        checksum = Checksum(name)
        for block in blocks_of(tensors[name]):
            checksum.add(content_of(block))
        found = zlib.crc32(checksum.value.to_bytes(8, "little"), found)
    return found


def blocks_of(tensor: torch.Tensor | StreamedTensor) -> Iterator[torch.Tensor]:
    """Yield the blocks of a tensor on any device, flat and in main memory."""
    if isinstance(tensor, StreamedTensor):
        yield from tensor.blocks()
        return
    flat = tensor.detach().contiguous().reshape(-1)
    for first in range(0, len(flat), BLOCK):
        yield flat[first : first + BLOCK].cpu()


def content_of(block: torch.Tensor) -> memoryview:
    """Return the bytes of a flat tensor in main memory, which has to outlive them."""
    return memoryview((ctypes.c_ubyte * size_of(block)).from_address(block.data_ptr())).cast("B")
