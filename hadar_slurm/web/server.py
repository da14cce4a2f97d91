"""The HTTP server of `hadar web`: answers GET and HEAD, writes nothing, and trusts no client.

`exchange` checks and answers requests, `connections` bounds clients.
"""

from __future__ import annotations

import ipaddress
import socket
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, urlsplit

from hadar_slurm.errors import UsageError
from hadar_slurm.web.connections import ConnectionLimits, Connections
from hadar_slurm.web.exchange import RequestReader, Response
from hadar_slurm.web.exposition import exposition
from hadar_slurm.web.follower import Follower
from hadar_slurm.web.page import TEMPLATES, claims, listing, overview, usage
from hadar_slurm.web.pulse import Pulse
from hadar_slurm.web.view import PageRequest, Query

DEFAULT_ADDRESS = "127.0.0.1:8642"
_STATIC = Path(__file__).parent / "static"
_FILES = {
    "/style.css": "text/css; charset=utf-8",
    "/refresh.js": "text/javascript; charset=utf-8",
    "/icon.svg": "image/svg+xml",
}
_HTML = "text/html; charset=utf-8"
_MOST_PARTS = 8


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        with suppress(ValueError):
            return ipaddress.ip_address(self.host).is_loopback
        return self.host == "localhost"


def parse_address(text: str) -> Address:
    """Return the address in `127.0.0.1:8642`, `[::1]:8642` or `localhost:0`.

    Raises UsageError that says what is accepted. Without a host it is loopback, not all addresses.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--address {text!r}: expected ADDRESS:PORT, such as {DEFAULT_ADDRESS}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"--address {text!r}: write an IPv6 address in brackets, such as [::1]:0")
    return Address(host or "127.0.0.1", int(port))


class Server:
    """Serves the pages of one journal; `hosts` are further accepted host names.

    `pulse` has the heartbeat of the hadard that writes the journal; None: no heartbeat is shown.
    """

    def __init__(
        self,
        follower: Follower,
        address: Address,
        *,
        hosts: Collection[str] = (),
        now_s: Callable[[], float] = time.time,
        pulse: Pulse | None = None,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self._follower = follower
        self._pulse = pulse
        self._now_s = now_s
        names = ("localhost", address.host, socket.gethostname(), *hosts)
        self.names = frozenset(name.lower().rstrip(".") for name in names)
        try:
            listener = _listen(address)
        except OSError as error:
            where = f"{address.host}:{address.port}"
            raise UsageError(f"--address {where}: {error.strerror or error}") from error
        # Answers requests until the end of the block.
        limits = limits or ConnectionLimits()
        self.running = Connections(listener, self.respond, self.refuse, limits).running
        self.port = int(listener.getsockname()[1])
        shown = f"[{address.host}]" if ":" in address.host else address.host
        self.url = f"http://{shown}:{self.port}/"

    def respond(self, head: bytes) -> bytes:
        """Return the whole answer to a request."""
        return RequestReader(self.is_for_us, self.answer, head).respond()

    def refuse(self, status: HTTPStatus, words: str) -> bytes:
        """Return the answer to a request that is not parsed."""
        return RequestReader(self.is_for_us, self.answer).refuse(status, words)

    def is_for_us(self, host: str) -> bool:
        """Return whether a Host header names this server.

        Addresses are accepted: an attack by DNS rebinding uses a name.
        """
        try:
            parts = urlsplit(f"//{host}")
            name = parts.hostname if parts.port is None or parts.port >= 0 else None
        except ValueError:
            return False
        if name is None or parts.path or parts.query or parts.fragment or "@" in host:
            return False
        with suppress(ValueError):
            ipaddress.ip_address(name)
            return True
        return name.lower().rstrip(".") in self.names

    def answer(self, target: str, accept: str) -> Response:
        """Return the answer to a GET."""
        try:
            parts = urlsplit(target)
        except ValueError:
            parts = urlsplit("")
        if parts.path == "/metrics":
            return Response(*exposition(self._follower, accept, self._now_s(), self._pulse))
        if kind := _FILES.get(parts.path):
            return Response((_STATIC / parts.path[1:]).read_bytes(), kind)
        query: Query = {}
        with suppress(ValueError):
            query = dict(parse_qsl(parts.query, max_num_fields=_MOST_PARTS, errors="replace"))
        view = PageRequest(self._follower, self._now_s(), query, pulse=self._pulse)
        if parts.path == "/":
            return Response(overview(view).encode(), _HTML)
        if parts.path == "/jobs":
            return Response(listing(view).encode(), _HTML)
        if parts.path == "/use":
            return Response(usage(view).encode(), _HTML)
        if parts.path == "/claims":
            return Response(claims(view).encode(), _HTML)
        missing = TEMPLATES.get_template("missing.html.j2").render(here="")
        return Response(missing.encode(), _HTML, HTTPStatus.NOT_FOUND)


def _listen(address: Address) -> socket.socket:
    """Return a socket on an address, without a DNS query for the machine's own name."""
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, place = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        # Allows a quick restart; does not take another server's port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((str(place[0]), address.port))
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener
