"""hadard's notifications to systemd."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from hadar_slurm.daemon.supervisor import notify


@pytest.fixture(params=["file", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """Listen like a service manager, on a file or an abstract socket."""
    name = f"hadar-{uuid4()}"
    address = str(tmp_path / "notify") if request.param == "file" else f"\0{name}"
    monkeypatch.setenv("NOTIFY_SOCKET", address.replace("\0", "@"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(address)
        listening.settimeout(5)
        yield listening


def test_the_manager_hears_it(manager: socket.socket) -> None:
    notify("READY=1", "STATUS=at work")
    assert manager.recv(100) == b"READY=1\nSTATUS=at work"


@pytest.mark.parametrize("address", ["", "nowhere", "/no/such/socket", "@no-such-socket"])
def test_nobody_needs_to_listen(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify("READY=1")
    monkeypatch.delenv("NOTIFY_SOCKET")
    notify("READY=1")


def test_a_manager_that_does_not_read_keeps_nobody_waiting(manager: socket.socket) -> None:
    """notify does not block when the manager's buffer is full; further messages are lost."""
    for _ in range(5000):
        notify("WATCHDOG=1")
    assert manager.recv(100) == b"WATCHDOG=1"
