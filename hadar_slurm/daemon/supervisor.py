"""Notifications to systemd: ready, alive, stopping (sd_notify(3))."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify(*words: str) -> None:
    """Send a notification such as `READY=1` to the service manager, if there is one."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    # Names that begin with @ are not in the file system: there they begin with a zero byte.
    name = f"\0{address[1:]}" if address.startswith("@") else address
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.setblocking(False)
        channel.sendto("\n".join(words).encode(), name)
