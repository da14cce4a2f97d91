"""Connections of `hadar web`: one event loop, a deadline for every request, and room for /metrics.

A client occupies no thread before its request is complete or while its answer is sent. So slow
clients cost one socket each, and only until the deadline for the whole request or answer. If there
are too many connections, the oldest one of the address with the most is closed, never the new one.
Pages and /metrics have separate threads: /metrics does not queue behind pages.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

log = logging.getLogger(__name__)

_HEAD_ENDS = re.compile(rb"\r?\n\r?\n")
_METRICS = re.compile(rb"\S+ /metrics[ ?]")
_BLOCK = 65536
_BACKLOG = 512
# Small, so that the requests of accepted clients are read before a burst could close them.
_ACCEPTED_AT_ONCE = 16
# Further input is read and dropped: closing with unread input would destroy the answer.
_LINGER_S = 1.0
_LINGER_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds for clients."""

    # Time for a complete request and for its answer to be read, in seconds.
    head_s: float = 10.0
    send_s: float = 30.0
    head_bytes: int = 65536
    # Open connections, and those among them that wait for the client to read.
    connections: int = 256
    sending: int = 32
    pages: int = 32
    metrics: int = 128


class _Line(NamedTuple):
    """Threads that answer requests of one sort, and its running and waiting requests."""

    pool: ThreadPoolExecutor
    most: int
    waiting: set[asyncio.Task[None]]


@dataclass(eq=False, slots=True)
class _Client:
    host: str
    task: asyncio.Task[None]
    transport: asyncio.WriteTransport
    is_answered: bool = False


class Connections:
    """Serves a site on a listening socket.

    `respond` makes the whole answer to a request, `refuse` that to one that is not parsed.
    """

    def __init__(
        self,
        listener: socket.socket,
        respond: Callable[[bytes], bytes],
        refuse: Callable[[HTTPStatus, str], bytes],
        limits: ConnectionLimits,
    ) -> None:
        self._listener, self._limits = listener, limits
        self._respond, self._refuse = respond, refuse
        # In order of arrival.
        self._clients: dict[_Client, None] = {}
        self._sending: dict[_Client, None] = {}
        self._pages = _Line(ThreadPoolExecutor(2, "pages"), limits.pages, set())
        self._metrics = _Line(ThreadPoolExecutor(1, "metrics"), limits.metrics, set())

    @contextmanager
    def running(self) -> Iterator[None]:
        """Serve until the end of the block."""
        loop = asyncio.new_event_loop()
        to_end, is_ready = asyncio.Event(), threading.Event()

        def run() -> None:
            with (
                suppress(asyncio.CancelledError),
                asyncio.Runner(loop_factory=lambda: loop) as runner,
            ):
                runner.run(self._serve(to_end, is_ready))

        thread = threading.Thread(target=run, name="http")
        thread.start()
        is_ready.wait()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(to_end.set)
            thread.join()

    async def _serve(self, to_end: asyncio.Event, is_ready: threading.Event) -> None:
        server = await asyncio.start_server(
            self._handle, sock=self._listener, backlog=_ACCEPTED_AT_ONCE, limit=_BLOCK
        )
        # asyncio's backlog also bounds its accepts per turn; only the system's queue may be large.
        self._listener.listen(_BACKLOG)
        is_ready.set()
        await to_end.wait()
        # A closing asyncio server forgets connections that are accepted but not yet handled.
        asyncio.get_running_loop().remove_reader(self._listener)
        await self._close_all()
        server.close()
        for line in (self._pages, self._metrics):
            line.pool.shutdown(wait=True, cancel_futures=True)

    async def _close_all(self) -> None:
        """Close every connection, also those accepted but not yet handled."""
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            # A task cancelled before it has begun would leave its connection open.
            await asyncio.sleep(0)
            for client in list(self._clients):
                client.transport.abort()
                client.task.cancel()
            await asyncio.wait(others, timeout=_LINGER_S)
        await asyncio.sleep(0)  # lets the last aborted connections close

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one client."""
        task = asyncio.current_task()
        assert task is not None
        peer = writer.get_extra_info("peername") or ("",)
        client = _Client(str(peer[0]), task, writer.transport)
        self._clients[client] = None
        if len(self._clients) > self._limits.connections:
            self._close_oldest([other for other in self._clients if not other.is_answered])
        try:
            await self._answer(client, reader, writer)
        except (OSError, TimeoutError, EOFError, asyncio.CancelledError):
            log.debug("a request was not answered", exc_info=True)
        finally:
            self._clients.pop(client, None)
            self._sending.pop(client, None)
            writer.transport.abort()

    async def _answer(
        self, client: _Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        async with asyncio.timeout(self._limits.head_s):
            head = await self._head(reader)
        client.is_answered = True
        answer = await self._response(client.task, head)
        client.is_answered = False
        self._sending[client] = None
        if len(self._sending) > self._limits.sending:
            self._close_oldest(list(self._sending))
        # drain() waits until the system has taken all of the answer.
        writer.transport.set_write_buffer_limits(high=0)
        async with asyncio.timeout(self._limits.send_s):
            writer.write(answer)
            await writer.drain()
        self._sending.pop(client, None)
        writer.write_eof()
        async with asyncio.timeout(_LINGER_S):
            for _ in range(_LINGER_BLOCKS):
                if not await reader.read(_BLOCK):
                    return

    async def _head(self, reader: asyncio.StreamReader) -> bytes | None:
        """Return a request without its body; None if it is too long."""
        text = bytearray()
        while True:
            seen = max(0, len(text) - 3)
            if not (block := await reader.read(_BLOCK)):
                raise EOFError("the client is gone")
            text += block
            if (end := _HEAD_ENDS.search(text, seen)) and end.end() <= self._limits.head_bytes:
                return bytes(text[: end.end()])
            if len(text) > self._limits.head_bytes:
                return None

    async def _response(self, task: asyncio.Task[None], head: bytes | None) -> bytes:
        """Return the answer, made in a thread; refuse if too many requests wait."""
        if head is None:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            return self._refuse(status, "This request is too long.")
        line = self._metrics if _METRICS.match(head) else self._pages
        if len(line.waiting) >= line.most:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            return self._refuse(status, "Too many requests at once; try again.")
        line.waiting.add(task)
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(line.pool, self._respond, head)
        finally:
            line.waiting.discard(task)

    def _close_oldest(self, clients: Sequence[_Client]) -> None:
        """Close the oldest connection of the address with the most."""
        numbers = Counter(client.host for client in clients)
        most = max(numbers.values(), default=0)
        oldest = next((client for client in clients if numbers[client.host] == most), None)
        if oldest is not None:
            self._clients.pop(oldest, None)
            self._sending.pop(oldest, None)
            oldest.transport.abort()
            oldest.task.cancel()
