"""A process group of copies: gloo over TCP, joined through files of the job's owner.

The copies find each other's addresses in a directory that no other user can read or write, so no
port listens for a rendezvous. gloo itself has no authentication (docs/security.md). Unlike
torch.distributed's default group this one can be left and formed again at any time.
"""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

# Absent where PyTorch was built without torch.distributed.
_Store: Any = getattr(distributed, "Store", object)

_POLL_S = 0.01
# How often a copy that waits for others looks whether they are present.
_LOOK_S = 0.5
# A step may compile for minutes; that its copy is present is looked at otherwise.
_LONGEST = timedelta(days=1)
# How long the copies of a new group try to reach each other.
_FORMED_WITHIN = timedelta(seconds=20)
# torch's own variable, by which a site chooses the network.
INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
_LOOPBACK = "127.0.0.1"
# Any port: a datagram socket that connects sends nothing.
_ANY_PORT = 9


class LinkError(RuntimeError):
    """A process group is broken or was not formed: one of its copies is gone or unreachable."""


def is_available() -> bool:
    """Return whether this PyTorch can form groups."""
    return distributed.is_available() and hasattr(distributed, "ProcessGroupGloo")


class Links:
    """Links of this copy, number `rank`, to the other copies of a group of `size`.

    All methods are collective and raise LinkError; a group that has raised it is of no more use. A
    copy whose process ends is noticed at once, one that stands still or whose machine is gone when
    `is_intact` becomes false.
    """

    def __init__(
        self, keys: Path, rank: int, hosts: Sequence[str], is_intact: Callable[[], bool]
    ) -> None:
        self.rank, self.size = rank, len(hosts)
        self._is_intact = is_intact
        self._group: Any = None
        # Until the group's threads have ended: one that frees the last tensor as Python ends would
        # abort the process (PyTorch's issue 190489).
        self._held: torch.Tensor | None = None
        if self.size == 1:
            return
        try:
            keys.mkdir(mode=0o700, exist_ok=True)
            self._group = _formed(keys, rank, hosts, is_intact)
        except (RuntimeError, OSError) as error:
            raise LinkError(f"no group of {self.size} copies: {_first_line(error)}") from error

    def sum(self, tensor: torch.Tensor) -> None:
        """Replace a tensor in main memory by its sum over all copies: the same bits on each."""
        if self._group is not None:
            options = distributed.AllreduceOptions()
            options.timeout = _LONGEST
            self._wait(tensor, lambda: self._group.allreduce([tensor], options))

    def broadcast(self, tensor: torch.Tensor, source: int) -> None:
        """Replace a tensor in main memory by that of the copy with rank `source`."""
        if self._group is not None:
            options = distributed.BroadcastOptions()
            options.rootRank, options.rootTensor, options.timeout = source, 0, _LONGEST
            self._wait(tensor, lambda: self._group.broadcast([tensor], options))

    def close(self) -> None:
        """Leave the group; copies that wait in it get LinkError at once."""
        self._group = None  # its connections and threads end with it
        self._held = None

    def _wait(self, tensor: torch.Tensor, begin: Callable[[], Any]) -> None:
        """Wait for work of the group on a tensor; its own wait() has no limit in time."""
        is_over = threading.Event()
        self._held = tensor
        try:
            work = begin()
            work.get_future().add_done_callback(lambda _: is_over.set())
            while not is_over.wait(_LOOK_S):
                if not self._is_intact():
                    raise RuntimeError("a copy of the group gives no sign of life")
            work.wait()
        except BaseException as error:
            if not is_over.is_set():
                _keep(self._group)
            self.close()
            if isinstance(error, RuntimeError):
                raise LinkError(_first_line(error)) from error
            raise


def _keep(group: object) -> None:
    """Let a group exist to the end of the process.

    gloo cannot end work that waits for a copy which stands still, and removing a group waits for
    its work (PyTorch 2.13: abort() has no effect on it).
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def address_towards(host: str) -> str:
    """Return this machine's address on the way to a host; raises OSError for an unknown one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, _ANY_PORT))
        address: str = probe.getsockname()[0]
    return address


def _formed(keys: Path, rank: int, hosts: Sequence[str], is_intact: Callable[[], bool]) -> Any:
    group: Any = distributed.ProcessGroupGloo
    options = group._Options()
    options._timeout = _FORMED_WITHIN
    if os.environ.get(INTERFACE_VARIABLE):
        options._devices = [group.create_device(interface=os.environ[INTERFACE_VARIABLE])]
    else:
        others = [host for host in hosts if host != hosts[rank]]
        # Copies on one machine need no network, and are not reachable from one.
        address = address_towards(others[0]) if others else _LOOPBACK
        options._devices = [group.create_device(hostname=address)]
    return group(_Keys(keys, is_intact), rank, len(hosts), options)


class _Keys(_Store):  # type: ignore[misc]
    """Keys and values as files of a directory."""

    def __init__(self, directory: Path, is_intact: Callable[[], bool]) -> None:
        super().__init__()
        self._directory, self._is_intact = directory, is_intact

    def set(self, key: str, value: str | bytes) -> None:
        path = self._path(key)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_bytes(value.encode() if isinstance(value, str) else value)
        draft.replace(path)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._path(key).read_bytes()

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        until_s = time.monotonic() + _FORMED_WITHIN.total_seconds()
        for key in keys:
            while not self._path(key).exists():
                if time.monotonic() > until_s or not self._is_intact():
                    raise RuntimeError(f"a copy has not come ({key})")
                time.sleep(_POLL_S)

    def _path(self, key: str) -> Path:
        return self._directory / key.replace("/", "-")


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__
