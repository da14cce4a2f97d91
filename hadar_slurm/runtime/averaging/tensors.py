"""Files of tensors and facts: written whole or not at all, checked when they are read.

A file is a safetensors file, which holds no code, with JSON in its metadata under `hadar` and a
checksum of all tensors. Any Python with safetensors can read one.
"""

from __future__ import annotations

import json
import os
import socket
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

_KEY = "hadar"


class TensorFileError(ValueError):
    """A file is not whole, or was not written by this library; says which and why."""


class TensorFile:
    """A file that is whole: its `facts`, and its tensors, read one at a time."""

    def __init__(self, path: Path, device: str = "cpu") -> None:
        """Open and check `path`; raises TensorFileError, and OSError when it cannot be read."""
        self.path = path
        with open(path, "rb"):
            pass  # an error of opening the file is not one of its contents
        try:
            self._file = safe_open(path, framework="pt", device=device)
            facts = json.loads((self._file.metadata() or {})[_KEY])
            names = list(self._file.keys())
            checksum = _checksum((name, self._file.get_tensor(name)) for name in sorted(names))
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise TensorFileError(f"{path}: {error or type(error).__name__}") from error
        except RuntimeError as error:  # torch opens the file again: by now it may be gone
            raise OSError(f"{path}: {error}") from error
        if not isinstance(facts, dict) or facts.pop("checksum", None) != checksum:
            raise TensorFileError(f"{path}: its tensors are not those that were written")
        self.facts: Mapping[str, Any] = facts
        self.names = tuple(sorted(names))

    def tensor(self, name: str) -> torch.Tensor:
        """Return one tensor; raises KeyError where there is none."""
        if name not in self.names:
            raise KeyError(name)
        tensor: torch.Tensor = self._file.get_tensor(name)
        return tensor


def write_tensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    facts: Mapping[str, Any],
    *,
    is_first: bool = False,
) -> bool:
    """Write a file in one step, and return whether this process wrote it.

    A reader sees all of it or the previous file. With `is_first` an existing file stays, and the
    process that wrote it may have removed this one's draft. Raises OSError (a full disk); nothing
    of the attempt is left then.
    """
    # Tensors that share memory, such as tied weights, each get their own.
    copied = {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
    plain = {name: tensor.contiguous() for name, tensor in copied.items()}
    metadata = {_KEY: json.dumps({**facts, "checksum": _checksum(sorted(plain.items()))})}
    draft = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        try:
            save_file(plain, draft, metadata=metadata)
        except SafetensorError as error:
            raise OSError(f"{draft}: {error}") from error
        try:
            _flush(draft)
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


def checksum_of(tensors: Mapping[str, torch.Tensor]) -> int:
    """Return a checksum of tensors on any device, with their names."""
    return _checksum((name, tensors[name].detach().to("cpu")) for name in sorted(tensors))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(tensors: Iterable[tuple[str, torch.Tensor]]) -> int:
    """Return a CRC-32 of names, types, shapes and contents: against accidents, not malice."""
    checksum = 0
    for name, tensor in tensors:
        checksum = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), checksum)
        contents = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        checksum = zlib.crc32(contents.data, checksum)
    return checksum
