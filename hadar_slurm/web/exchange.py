"""One request and its answer as bytes: access checks and HTTP headers.

The name in `Host` must be one of the server's, so that a page on another site cannot read this one
through a browser on this machine. Headers forbid browsers to load anything from elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from typing import NamedTuple

from hadar_slurm.status.words import legible

PLAIN = "text/plain; charset=utf-8"
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
log = logging.getLogger(__name__)


class Response(NamedTuple):
    """The content of an answer."""

    body: bytes
    kind: str
    status: HTTPStatus = HTTPStatus.OK


class RequestReader(BaseHTTPRequestHandler):
    """The standard library's reader of requests, on bytes instead of a socket.

    `is_for_us` accepts a Host header, `answer` makes the answer to a GET by target and Accept.
    """

    server_version = "hadar"
    sys_version = ""

    def __init__(
        self,
        is_for_us: Callable[[str], bool],
        answer: Callable[[str, str], Response],
        head: bytes = b"",
    ) -> None:
        self.is_for_us, self.answer = is_for_us, answer
        self.rfile = BytesIO(head)
        self.wfile: BytesIO = BytesIO()
        self.client_address = ("", 0)
        self.request_version = "HTTP/1.0"
        self.requestline = ""
        self.command = "GET"

    def respond(self) -> bytes:
        """Return the whole answer."""
        self.handle_one_request()
        return self.wfile.getvalue()

    def refuse(self, status: HTTPStatus, words: str) -> bytes:
        """Return the answer to a request that is not parsed."""
        self._say(status, words)
        return self.wfile.getvalue()

    def parse_request(self) -> bool:
        """Return whether a request is acceptable; others are refused here."""
        if not super().parse_request():
            return False
        if self.command not in {"GET", "HEAD"}:
            self._say(HTTPStatus.METHOD_NOT_ALLOWED, "This page only reads: GET or HEAD.")
            return False
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not self.is_for_us(hosts[0]):
            words = "This is not a name of this server; hadar web --host NAME adds one."
            self._say(HTTPStatus.MISDIRECTED_REQUEST, words)
            return False
        return True

    def do_GET(self) -> None:
        """Answer with a page, a file or the metrics."""
        try:
            answer = self.answer(self.path, self.headers.get("Accept", ""))
        except Exception:
            log.exception("%s failed", legible(self.path.split("?", 1)[0]))
            self._say(HTTPStatus.INTERNAL_SERVER_ERROR, "This page could not be made; see the log.")
            return
        self._send(answer)

    def do_HEAD(self) -> None:
        """Answer as to GET, without the body."""
        self.do_GET()

    def _say(self, status: HTTPStatus, words: str) -> None:
        self._send(Response(f"{words}\n".encode(), PLAIN, status))

    def _send(self, answer: Response) -> None:
        self.close_connection = True
        self.send_response(answer.status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        if answer.status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        self.send_header("Content-Type", answer.kind)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a request that cannot be read."""
        self.request_version = "HTTP/1.0"
        self.command = getattr(self, "command", None) or "GET"
        self._say(HTTPStatus(code), "This request cannot be understood.")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the pages that a user reads are private."""
