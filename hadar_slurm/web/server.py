"""The HTTP server of `hadar web`: answers GET and HEAD, writes nothing, and trusts nobody.

A page on another site cannot read this one through a browser on this machine: the name that the
browser asked for (`Host`) has to be an address, this machine's name, or one that the operator has
named. Everything on a page comes from this server, and browsers are told to take nothing else.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

from hadar_slurm.errors import UsageError
from hadar_slurm.web.exposition import exposition
from hadar_slurm.web.follower import Follower
from hadar_slurm.web.page import listing, missing, overview
from hadar_slurm.web.view import Query, View

DEFAULT_ADDRESS = "127.0.0.1:8642"
_STATIC = Path(__file__).parent / "static"
_FILES = {
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/refresh.js": ("refresh.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_HTML = "text/html; charset=utf-8"
_PLAIN = "text/plain; charset=utf-8"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_MOST_PARTS = 8
# A client that says nothing for so long is hung up on, and so is one more than so many at once.
_PATIENCE_S = 10.0
MOST_AT_ONCE = 64
log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """What is sent back."""

    body: bytes
    kind: str
    status: HTTPStatus = HTTPStatus.OK


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """Return the address in `127.0.0.1:8642`, `[::1]:8642` or `localhost:0`.

    Raises UsageError that says what is accepted. A host left out is loopback, never everywhere.
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
    """Serves the pages of one journal; `hosts` are names by which it may be asked for besides."""

    def __init__(
        self,
        follower: Follower,
        address: Address,
        *,
        hosts: Collection[str] = (),
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._follower = follower
        self._now_s = now_s
        names = ("localhost", address.host, socket.gethostname(), *hosts)
        self.names = frozenset(name.lower().rstrip(".") for name in names)
        try:
            self._http = _make_server(address, self)
        except OSError as error:
            where = f"{address.host}:{address.port}"
            raise UsageError(f"--address {where}: {error.strerror or error}") from error
        self.port = int(self._http.server_address[1])
        shown = f"[{address.host}]" if ":" in address.host else address.host
        self.url = f"http://{shown}:{self.port}/"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Answer requests until the end of the block."""
        thread = threading.Thread(
            target=self._http.serve_forever, kwargs={"poll_interval": 0.1}, name="http"
        )
        thread.start()
        try:
            yield
        finally:
            self._http.shutdown()
            thread.join()
            self._http.server_close()

    def is_for_us(self, host: str) -> bool:
        """Return whether a Host header is one by which we may be asked for.

        An address is: a page elsewhere that is made to point here has a name.
        """
        name = _host_name(host)
        if name is None:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.lower().rstrip(".") in self.names
        return True

    def answer(self, target: str, accept: str) -> Answer:
        """Return the answer to a GET."""
        parts = urlsplit(target)
        if parts.path == "/metrics":
            return Answer(*exposition(self._follower, accept, self._now_s()))
        if parts.path in _FILES:
            name, kind = _FILES[parts.path]
            return Answer((_STATIC / name).read_bytes(), kind)
        view = View(self._follower, self._now_s(), _query(parts.query))
        if parts.path == "/":
            return Answer(overview(view).encode(), _HTML)
        if parts.path == "/jobs":
            return Answer(listing(view).encode(), _HTML)
        return Answer(missing().encode(), _HTML, HTTPStatus.NOT_FOUND)


def _query(text: str) -> Query:
    try:
        return dict(parse_qsl(text, max_num_fields=_MOST_PARTS, errors="replace"))
    except ValueError:
        return {}


def _host_name(host: str) -> str | None:
    """Return the name or address in a Host header, None where it is none."""
    try:
        parts = urlsplit(f"//{host}")
        port_is_fine = parts.port is None or parts.port >= 0
    except ValueError:
        return None
    is_plain = not parts.path and not parts.query and not parts.fragment and "@" not in host
    return parts.hostname if is_plain and port_is_fine else None


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    # Another server's port must not be taken from it.
    allow_reuse_port = False
    request_queue_size = 32

    def __init__(self, family: int, place: tuple[str, int], web: Server) -> None:
        self.address_family = family
        self.web = web
        self._room = threading.BoundedSemaphore(MOST_AT_ONCE)
        super().__init__(place, _Handler)

    def server_bind(self) -> None:
        # The standard library would ask DNS for our name here, and may wait for it.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, if there are not too many."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room for the next."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say in the log what went wrong; a client that hung up is nothing."""
        log.debug("a request was not answered", exc_info=True)


def _make_server(address: Address, web: Server) -> _HttpServer:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    family, _, _, _, place = found[0]
    return _HttpServer(family, (str(place[0]), address.port), web)


class _Handler(BaseHTTPRequestHandler):
    server_version = "hadar"
    sys_version = ""
    timeout = _PATIENCE_S
    server: _HttpServer

    def parse_request(self) -> bool:
        """Return whether a request is one to answer; what is not is answered here."""
        if not super().parse_request():
            return False
        if self.command not in {"GET", "HEAD"}:
            self._say(HTTPStatus.METHOD_NOT_ALLOWED, "This page only reads: GET or HEAD.")
            return False
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not self.server.web.is_for_us(hosts[0]):
            self._say(
                HTTPStatus.MISDIRECTED_REQUEST,
                "This is not a name of this server; hadar web --host NAME adds one.",
            )
            return False
        return True

    def do_GET(self) -> None:
        """Answer with a page, a file or the metrics."""
        try:
            answer = self.server.web.answer(self.path, self.headers.get("Accept", ""))
        except Exception:
            log.exception("%s failed", self.path.split("?", 1)[0])
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, "This page could not be made; see the log.")
            return
        self._send(answer)

    def do_HEAD(self) -> None:
        """Answer as to GET, without the body."""
        self.do_GET()

    def _say(self, status: HTTPStatus, words: str) -> None:
        self._send(Answer(f"{words}\n".encode(), _PLAIN, status))

    def _send(self, answer: Answer) -> None:
        self.close_connection = True
        self.send_response(answer.status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that cannot be read, in words of ours."""
        self.request_version = "HTTP/1.0"
        self.command = getattr(self, "command", None) or "GET"
        self._say(HTTPStatus(code), "This request cannot be understood.")

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet: who looked at what is nobody's business."""
