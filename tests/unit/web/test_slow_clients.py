"""Many clients, and clients that send or read slowly, on real sockets."""

from __future__ import annotations

import gc
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http import HTTPStatus
from pathlib import Path

import pytest
from web_journals import NOW_S, a_line, many_jobs, write

from hadar_slurm.web.connections import ConnectionLimits, Connections
from hadar_slurm.web.follower import Follower
from hadar_slurm.web.server import Address, Server

# Much shorter than `PATIENT_S`, much longer than a busy machine needs.
PATIENCE_S = 30.0
# No deadline of a slow client expires during a test.
PATIENT_S = 600.0
START = b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "
PAGE = b"GET /?hours=0 HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextmanager
def served(
    directory: Path, limits: ConnectionLimits | None = None, *, jobs: int = 40
) -> Iterator[int]:
    """Serve a journal, and yield the port."""
    path = directory / "journal.jsonl"
    seen = many_jobs(jobs)
    for number in range(3):
        write(path, a_line(number, seen, nodes="n1:V100:4 n2:K80:4"))
    follower = Follower(path, every_s=3600.0)
    server = Server(follower, Address("127.0.0.1", 0), now_s=lambda: NOW_S + 800.0, limits=limits)
    with follower, server.running():
        yield server.port


def ask(port: int, target: str) -> tuple[int, float]:
    """Return the status of an answer, and its time in seconds."""
    began_s = time.monotonic()
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        client.request("GET", target)
        answer = client.getresponse()
        answer.read()
        return answer.status, time.monotonic() - began_s
    finally:
        client.close()


def connect(port: int, *, buffer: int = 0, source: str = "127.0.0.1") -> socket.socket:
    wire = socket.socket()
    wire.bind((source, 0))
    if buffer:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    wire.settimeout(10)
    wire.connect(("127.0.0.1", port))
    return wire


@contextmanager
def crowd(number: int, port: int, act: Callable[[socket.socket], None]) -> Iterator[list[int]]:
    """Keep `number` clients connected, each of which acts repeatedly; count the reconnects."""
    reconnects = [0]
    to_end = threading.Event()

    def run() -> None:
        wires = [connect(port) for _ in range(number)]
        for wire in wires:
            with suppress(OSError):
                wire.sendall(START)
        is_there.set()
        while not to_end.wait(0.2):
            for index, wire in enumerate(wires):
                try:
                    act(wire)
                except OSError:
                    wire.close()
                    reconnects[0] += 1
                    wires[index] = connect(port)
                    with suppress(OSError):
                        wires[index].sendall(START)
        for wire in wires:
            wire.close()

    is_there = threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert is_there.wait(30)
        yield reconnects
    finally:
        to_end.set()
        thread.join()


def trickle(wire: socket.socket) -> None:
    wire.sendall(b"x")


@pytest.mark.parametrize("number", [200, 600])
def test_clients_that_trickle_do_not_shut_metrics_or_the_page(tmp_path: Path, number: int) -> None:
    """Clients at the scraper's address send single bytes; there are more than the limit."""
    limits = ConnectionLimits(head_s=PATIENT_S)
    with served(tmp_path, limits) as port, crowd(number, port, trickle):
        ends_s = time.monotonic() + 3.0
        while time.monotonic() < ends_s:
            for target in ("/metrics", "/"):
                status, took_s = ask(port, target)
                assert status == 200
                assert took_s < PATIENCE_S


def test_a_request_has_a_deadline_as_a_whole(tmp_path: Path) -> None:
    """Sending single bytes does not extend the deadline."""
    with served(tmp_path, ConnectionLimits(head_s=0.5)) as port, connect(port) as wire:
        began_s = time.monotonic()
        wire.sendall(START)
        wire.settimeout(0.1)
        while True:
            assert time.monotonic() < began_s + 10
            with suppress(TimeoutError):
                try:
                    if not wire.recv(1):
                        break
                except ConnectionResetError:
                    break
            with suppress(BrokenPipeError, ConnectionResetError):
                wire.sendall(b"x")
        assert time.monotonic() - began_s >= 0.4


class Large:
    """A site with pages larger than the system's send buffer."""

    PAGE = b"p" * 30_000_000

    def respond(self, head: bytes) -> bytes:
        return b"HTTP/1.0 200 OK\r\n\r\n" + (b"m" if b"/metrics" in head else self.PAGE)

    def refuse(self, status: HTTPStatus, words: str) -> bytes:
        return f"HTTP/1.0 {status.value} {words}\r\n\r\n".encode()


@contextmanager
def large(limits: ConnectionLimits) -> Iterator[int]:
    """Serve large pages, and yield the port."""
    listener = socket.create_server(("127.0.0.1", 0))
    port: int = listener.getsockname()[1]
    site = Large()
    with Connections(listener, site.respond, site.refuse, limits).running():
        yield port


def test_clients_that_do_not_read_do_not_shut_metrics_or_the_page() -> None:
    """More clients than may wait request a large page and read single bytes."""
    with large(ConnectionLimits(sending=8, send_s=PATIENT_S)) as port, ExitStack() as wires:
        slow = [wires.enter_context(connect(port, buffer=2048)) for _ in range(40)]
        for wire in slow:
            wire.sendall(PAGE)
            wire.settimeout(0.01)
        for _ in range(10):
            for wire in slow:
                with suppress(OSError):
                    wire.recv(1)
            for target in ("/metrics", "/"):
                status, took_s = ask(port, target)
                assert status == 200
                assert took_s < PATIENCE_S


def test_an_answer_has_a_deadline_as_a_whole() -> None:
    """Reading slowly does not extend the deadline."""
    with large(ConnectionLimits(send_s=0.5)) as port, connect(port, buffer=2048) as wire:
        wire.sendall(PAGE)
        began_s = time.monotonic()
        taken = 0
        with suppress(ConnectionResetError):
            while part := wire.recv(2048):
                taken += len(part)
                time.sleep(0.001)
                assert time.monotonic() < began_s + 20, taken
        assert 0 < taken < len(Large.PAGE)


def test_a_crowd_that_is_idle_costs_no_threads(tmp_path: Path) -> None:
    """Idle connections use no threads; above the limit the oldest ones are closed."""
    with served(tmp_path, ConnectionLimits(connections=50)) as port, ExitStack() as wires:
        before = threading.active_count()
        idle = [wires.enter_context(connect(port)) for _ in range(120)]
        assert ask(port, "/metrics")[0] == 200
        assert threading.active_count() <= before + 4
        for wire in idle[:60]:
            with suppress(ConnectionResetError):
                assert wire.recv(1) == b""


def test_a_crowd_at_one_address_does_not_push_out_another(tmp_path: Path) -> None:
    """The oldest connection of the address with the most connections is closed."""
    with served(tmp_path, ConnectionLimits(connections=20)) as port, ExitStack() as wires:
        alone = wires.enter_context(connect(port))
        alone.sendall(START)
        for _ in range(60):
            wires.enter_context(connect(port, source="127.0.0.2")).sendall(START)
        assert ask(port, "/metrics")[0] == 200
        alone.sendall(b"y\r\n\r\n")
        assert alone.recv(64).split(b" ")[1] == b"200"


def test_pages_that_stand_in_line_leave_metrics_alone(tmp_path: Path) -> None:
    """Excess page requests get 503; /metrics has its own thread."""
    with served(tmp_path, ConnectionLimits(pages=4), jobs=3000) as port, ExitStack() as wires:
        asked = [wires.enter_context(connect(port)) for _ in range(40)]
        for wire in asked:
            wire.sendall(PAGE)
        status, took_s = ask(port, "/metrics")
        assert status == 200
        assert took_s < PATIENCE_S
        answers = [wire.recv(64).split(b" ")[1] for wire in asked]
        assert set(answers) == {b"200", b"503"}


def test_it_ends_with_clients_at_every_stage(tmp_path: Path) -> None:
    """The server stops while clients are idle, sending a request, or not reading."""
    with ExitStack() as wires:
        with served(tmp_path, jobs=2000) as port:
            for text in (b"", START, PAGE) * 5:
                wire = wires.enter_context(connect(port, buffer=1024))
                wire.sendall(text)
            assert ask(port, "/metrics")[0] == 200
            ended_s = time.monotonic()
        assert time.monotonic() - ended_s < 10


class Short(Large):
    """A site with tiny pages."""

    PAGE = b"p"


@pytest.mark.slow
def test_it_leaves_no_connection_open_that_comes_as_it_ends() -> None:
    """Connections made during the shutdown are closed; an open one would cause a warning."""
    for _ in range(30):
        listener = socket.create_server(("127.0.0.1", 0))
        is_over = threading.Event()
        arguments = (listener.getsockname()[1], is_over)
        crowd = [threading.Thread(target=come_and_go, args=arguments) for _ in range(3)]
        site, limits = Short(), ConnectionLimits()
        with Connections(listener, site.respond, site.refuse, limits).running():
            for client in crowd:
                client.start()
            ask(arguments[0], "/metrics")
        is_over.set()
        for client in crowd:
            client.join()
    gc.collect()


def come_and_go(port: int, is_over: threading.Event) -> None:
    """Connect and disconnect until the test or the server ends."""
    while not is_over.is_set():
        try:
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
        except OSError:
            return
