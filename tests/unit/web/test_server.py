"""The server on a real port: its answers and its access checks."""

from __future__ import annotations

import http.client
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html.parser import HTMLParser
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from web_journals import NOW_S, a_blind_line, a_job, a_line, an_action, many_jobs, write

from hadar_slurm.errors import UsageError
from hadar_slurm.web.follower import Follower
from hadar_slurm.web.server import Address, Server, parse_address

EVIL = (
    "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>&lt;\u202e\x00\ud800\x1b\u200b\u2028"
)


class Site:
    """A running server, and a client."""

    def __init__(self, server: Server, follower: Follower) -> None:
        self.server = server
        self.follower = follower

    def ask(
        self, target: str = "/", method: str = "GET", **headers: str
    ) -> tuple[int, dict[str, str], str]:
        """Return status, headers and body."""
        client = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=300)
        try:
            client.request(method, target, headers=headers)
            answer = client.getresponse()
            names = {name.lower(): text for name, text in answer.getheaders()}
            return answer.status, names, answer.read().decode()
        finally:
            client.close()

    def send(self, request: bytes) -> bytes:
        """Return the answer to raw bytes."""
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=300) as wire:
            wire.sendall(request)
            with suppress(OSError):  # it may have answered and closed already
                wire.shutdown(socket.SHUT_WR)
            parts = []
            while part := wire.recv(65536):
                parts.append(part)
        return b"".join(parts)


@contextmanager
def site(
    path: Path, *, now_s: float = NOW_S + 400.0, hosts: tuple[str, ...] = ()
) -> Iterator[Site]:
    follower = Follower(path, every_s=3600.0)
    server = Server(follower, Address("127.0.0.1", 0), hosts=hosts, now_s=lambda: now_s)
    with follower, server.running():
        yield Site(server, follower)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


class Checker(HTMLParser):
    """Collects the elements of a page; raises if an element is not closed."""

    VOID = frozenset("meta link img br hr input".split())

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []
        assert len(self.ids) == len(set(self.ids)), "ids are unique"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def busy(path: Path, number: int = 20) -> None:
    jobs = many_jobs(number)
    nodes = "n1:V100:4 n2:K80:4"
    waiting = dict.fromkeys(list(jobs)[8:], "no free GPUs fit its gang now")
    write(path, a_line(0, jobs, nodes=nodes), a_line(1, jobs, nodes=nodes, waiting=waiting))


PAGES = (
    "/",
    "/jobs",
    "/jobs?state=running",
    "/jobs?state=waiting&page=2",
    "/jobs?state=waiting&user=user9&array=1",
    "/?hours=0&type=V100",
    "/?by=array",
    "/use?by=account&hours=1",
    "/claims",
)


@pytest.mark.parametrize("target", PAGES)
@pytest.mark.parametrize("number", [0, 6, 600])
def test_pages_are_whole(path: Path, target: str, number: int) -> None:
    """Elements are closed, ids are unique, and there is no external or inline content."""
    busy(path, number)
    with site(path) as web:
        status, headers, body = web.ask(target)
    assert status == 200
    assert headers["content-type"] == "text/html; charset=utf-8"
    page = Checker(body)
    for tag, name, value in page.attributes:
        assert not name.startswith("on"), (tag, name)
        assert name != "style"
        if name in {"href", "src", "action"}:
            assert value.startswith(("/", "#")), value
            assert not value.startswith("//")
    assert page.tags.count("script") == 1
    assert "style" not in page.tags


def test_the_page_tells_what_runs_what_waits_and_why(path: Path) -> None:
    """Jobs, reasons, types, prices and rounds are shown, and times have a zone."""
    busy(path)
    with site(path) as web:
        page = Checker(web.ask("/")[2])
    for words in ("1000", "user9", "no free GPUs fit its gang now", "V100", "0.5", "round end"):
        assert words in page.text, words
    assert "time in " in page.text
    assert "UTC" in page.text


def test_tasks_of_an_array_are_one_row(path: Path) -> None:
    """It leads to a list of them; the tasks that run are a row of their own."""
    jobs = {f"7_{n}": a_job(user="alice", submitted_s=NOW_S - 60 * n) for n in range(5)}
    jobs |= {"7_5": a_job("n1:V100:1", user="alice"), "7_6": a_job("n2:K80:1", user="alice")}
    waiting = dict.fromkeys([f"7_{n}" for n in range(4)], "no free GPUs fit its gang now")
    waiting["7_4"] = "a limit of Slurm"
    write(path, a_line(0, jobs, waiting=waiting))
    with site(path) as web:
        first = " ".join(Checker(web.ask("/")[2]).text.split())
        tasks = Checker(web.ask("/jobs?state=waiting&array=7")[2]).text
    assert "7_[0-4]" in first
    assert "5 × 1" in first
    assert "no free GPUs fit its gang now (4); a limit of Slurm (1)" in first
    assert re.search(r"7_\[5-6\] *alicerunning *1 K80, 1 V100", first)
    assert [f"7_{n}" in tasks for n in range(7)] == [True] * 5 + [False] * 2


def test_claims_are_shown_against_what_was_measured(path: Path) -> None:
    """The worst users first, with workloads, who is believed less until when, and which jobs."""
    slow = {"gan": {"1": [1000, 8000, 3.0]}, "lm": {"2": [1000, 4000]}}
    credit = {"times": 5.0, "speeds_off": 3.0, "jobs": 2, "at_s": NOW_S}
    job = a_job("n1:V100:1", user="eve", claimed_steps=200, remarks=["planned so"])
    write(path, a_line(0))
    with site(path) as web:
        assert "No claim was judged" in web.ask("/claims")[2]
        assert "believed less" not in Checker(web.ask("/")[2]).text
        judged = {"ada": {"bert": {"3": [1000, 1100]}}, "eve": slow}
        write(path, a_line(1, {"4": job}, judged=judged, credits={"eve": credit}))
        web.follower.poll()
        text = Checker(web.ask("/claims")[2]).text
        body = web.ask("/")[2]
    assert "Claimed against measured: 3 jobs" in text
    for row in ("eveall26823", "evegan18833", "evelm14411", "adabert11.11.111"):
        assert row in text
    assert text.index("evegan") < text.index("adabert")
    assert "eve25 times" in text
    assert "3 times, do not count" in text
    assert re.search(r"\d\d [A-Z][a-z]{2} 20\d\d", text)
    assert "4eveResNet-502001,000planned so" in text
    assert '1 user is believed less:\n<a href="/claims">' in body


def test_a_job_without_remarks_is_among_the_claims(path: Path) -> None:
    """A job that is planned with other steps than claimed may have no remark."""
    write(path, a_line(0, {"4": a_job("n1:V100:1", user="eve", claimed_steps=200)}))
    with site(path) as web:
        assert "4eveResNet-502001,000–" in Checker(web.ask("/claims")[2]).text


def test_a_long_name_takes_little_room(path: Path) -> None:
    """A text of others is cut: each is in a page several times."""
    long = "x" * 1_000_000
    write(path, a_line(0, {"4": a_job(user=long, workload=long, remarks=[long])}, errors=[long]))
    with site(path) as web:
        assert len(web.ask("/")[2]) < 100_000


def test_the_claims_of_many_users_have_pages(path: Path) -> None:
    judged = {f"user{n:03}": {"work": {str(n): [1000, 1000 + n]}} for n in range(250)}
    write(path, a_line(0, judged=judged))
    with site(path) as web:
        first, last = (Checker(web.ask(f"/claims?page={n}")[2]).text for n in (1, 3))
    assert "user249" in first
    assert "user000" not in first
    assert "user000" in last


@pytest.mark.parametrize("by", ["user", "account", "array"])
def test_use_is_grouped(path: Path, by: str) -> None:
    """Each group leads to its jobs, and the chosen time and type stay chosen."""
    owners = {"user": "alice"} | ({"account": "physics"} if by == "account" else {})
    jobs = {"7_1": a_job("n1:V100:2", **owners), "7_2": a_job(**owners), "8": a_job(user="bob")}
    write(path, *(a_line(number, jobs) for number in range(2)))
    name = {"user": "alice", "account": "physics", "array": "7"}[by]
    with site(path) as web:
        for target in (f"/?hours=6&by={by}", f"/use?by={by}&hours=6"):
            body = web.ask(target)[2]
            assert f"{name}100 %" in Checker(body).text
            assert f'href="/jobs?state=waiting&amp;{by}={name}">1</a>' in body
            assert "by=account" in body
        listed = Checker(web.ask(f"/jobs?state=waiting&{by}={name}")[2]).text
    assert "7_2" in listed
    assert "bob" not in listed


def test_hostile_names_are_text(path: Path) -> None:
    """Names of users, jobs and workloads never become elements, and hide or reverse no text."""
    jobs = {
        f"1{EVIL}": a_job("n1:V100:1", user=EVIL, workload=EVIL),
        f"2{EVIL}": a_job(user=EVIL, workload=EVIL, account=EVIL),
    }
    starts = [an_action("start", f"1{EVIL}", "n1:V100:1", "refused")]
    evil_node = {EVIL: {"gpus": {EVIL: 2}, "open": False}}
    for number in range(2):
        line = a_line(number, jobs, actions=starts, waiting={f"2{EVIL}": EVIL}, policy=EVIL)
        line |= {"errors": [EVIL], "wake": EVIL, "figures": {f"price.{EVIL}": 1.0}}
        line["nodes"] |= evil_node
        line["jobs"][f"1{EVIL}"] |= {"claimed_steps": 3, "remarks": [EVIL]}
        line["judged"] = {EVIL: {EVIL: {EVIL: [10, 900]}, "other": {"9": [10, 900]}}}
        line["credits"] = {EVIL: {"times": 90.0, "speeds_off": 2.0, "jobs": 1, "at_s": NOW_S}}
        write(path, line)
    with site(path) as web:
        for target in PAGES:
            body = web.ask(target)[2]
            page = Checker(body)
            assert page.tags.count("script") == 1
            assert "img" not in page.tags
            assert "<script>alert" not in body
            assert [sign for sign in body if not (sign.isprintable() or sign == "\n")] == []
        shown = Checker(web.ask("/")[2]).text
        assert "<script>alert(1)</script>" in shown
        assert list(parse(web.ask("/metrics")[2]))


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_only_get_is_answered(path: Path, method: str) -> None:
    """All other methods are refused."""
    busy(path)
    with site(path) as web:
        for target in ("/", "/metrics", "/nowhere"):
            status, headers, _ = web.ask(target, method)
            assert status == 405
            assert headers["allow"] == "GET, HEAD"


def test_head_has_no_body(path: Path) -> None:
    """HEAD returns the headers of GET without the page."""
    with site(path) as web:
        status, headers, body = web.ask("/style.css", "HEAD")
        assert (status, body) == (200, "")
        assert int(headers["content-length"]) == len(web.ask("/style.css")[2].encode())


def test_nothing_is_written(path: Path, tmp_path: Path) -> None:
    """The journal and its directory are unchanged, even if there is none."""
    with site(tmp_path / "none" / "journal.jsonl") as web:
        web.ask("/")
    assert list(tmp_path.iterdir()) == []
    busy(path)
    before = path.read_bytes(), path.stat().st_mtime_ns
    path.chmod(0o444)
    with site(path) as web:
        for target in (*PAGES, "/metrics", "/nowhere"):
            web.ask(target)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:99",
        "localhost",
        "LOCALHOST:8642",
        "[::1]:8642",
        "10.1.2.3:1",
        "gpu.",
    ],
)
def test_it_answers_to_its_names(path: Path, host: str) -> None:
    """IP addresses, localhost and the operator's host names are accepted."""
    with site(path, hosts=("gpu",)) as web:
        assert web.ask("/metrics", Host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8642", "localhost.evil.example", "127.0.0.1.evil.example", "",
     "127.0.0.1@evil.example", "evil.example/127.0.0.1", "[::1", "x:y", "127.0.0.1:99999999"],
)  # fmt: skip
def test_another_sites_page_cannot_read_it(path: Path, host: str) -> None:
    """Other host names that resolve to this address are refused (DNS rebinding)."""
    busy(path)
    with site(path) as web:
        for target in ("/", "/metrics"):
            status, _, body = web.ask(target, Host=host)
            assert status == 421
            assert "1000" not in body


@pytest.mark.parametrize(
    "request_",
    [
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
        b"GET /\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET //evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /static/style.css%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"",
    ],
)
def test_odd_requests_get_no_page(path: Path, request_: bytes) -> None:
    """Invalid requests are refused, and the next request is answered."""
    busy(path)
    with site(path) as web:
        answer = web.send(request_)
        assert b"1000" not in answer
        assert b"root:" not in answer
        assert b"Traceback" not in answer
        assert web.ask("/")[0] == 200


def test_an_address_that_is_none_is_no_fault_of_the_page(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not found; the log has no text of a client."""
    with site(path) as web:
        answer = web.send(b"GET http://[\x1b]0;x HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert answer.startswith(b"HTTP/1.0 404 ")
    assert caplog.text == ""


def test_browsers_are_told_to_take_nothing_else(path: Path) -> None:
    """Every answer has the same strict headers, also refusals."""
    with site(path) as web:
        answers = [web.ask(target) for target in ("/", "/metrics", "/refresh.js", "/nowhere")]
        answers += [web.ask("/", "POST"), web.ask("/", Host="evil.example")]
    for _, headers, _ in answers:
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "unsafe" not in policy
        assert "*" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in headers
        assert "Python" not in headers["server"]
    assert [status for status, _, _ in answers] == [200, 200, 200, 404, 405, 421]


@pytest.mark.parametrize(
    "target",
    ["/?hours=-1", "/?hours=1e9", "/?hours=%00", "/jobs?page=0", "/jobs?page=-1",
     "/jobs?page=%C2%B2", "/jobs?state=%3Cscript%3E", "/?type=%22%3E", "/?" + "a=1&" * 50,
     "/jobs?page=" + "9" * 5000],
)  # fmt: skip
def test_words_in_an_address_choose_among_what_there_is(path: Path, target: str) -> None:
    """Invalid query values are replaced by the default."""
    busy(path)
    with site(path) as web:
        status, _, body = web.ask(target)
    assert status == 200
    Checker(body)


def test_a_missing_journal_is_told(path: Path) -> None:
    """The page shows the error, and the journal as soon as it exists."""
    with site(path) as web:
        status, _, body = web.ask("/")
        assert status == 200
        assert "No such file or directory" in Checker(body).text
        busy(path)
        web.follower.poll()
        assert "No such file" not in Checker(web.ask("/")[2]).text


def test_an_empty_journal_and_one_with_a_fault_are_told(path: Path) -> None:
    """A journal without rounds, or without a snapshot, gives valid pages."""
    path.touch()
    with site(path) as web:
        assert "no round yet" in Checker(web.ask("/")[2]).text
        write(path, a_blind_line(0))
        web.follower.poll()
        for target in PAGES:
            assert "squeue: timed out" in Checker(web.ask(target)[2]).text


def test_a_daemon_that_is_silent_is_told(path: Path) -> None:
    """After three rounds without a line the page asks whether hadard is running."""
    busy(path)
    with site(path, now_s=NOW_S + 7200) as web:
        assert "is hadard at work?" in Checker(web.ask("/")[2]).text
    with site(path, now_s=NOW_S + 800) as web:
        assert "is hadard at work?" not in Checker(web.ask("/")[2]).text


def test_long_lists_are_cut_into_pages(path: Path) -> None:
    """Long lists are split into pages; each job is on one of them."""
    busy(path, 600)
    with site(path) as web:
        found: list[str] = []
        for number in range(1, 7):
            page = web.ask(f"/jobs?state=waiting&page={number}")[2]
            found += re.findall(r">(1\d{3})</bdi>", page)
        first = web.ask("/")[2]
    assert found == [str(n) for n in range(1008, 1600)]
    assert first.count("no free GPUs fit its gang now") == 15
    assert len(first) < 100_000


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8642", ("127.0.0.1", 8642)),
        ("[::1]:0", ("::1", 0)),
        (":9000", ("127.0.0.1", 9000)),
        ("localhost:1", ("localhost", 1)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
    ],
)
def test_addresses_are_read(text: str, address: tuple[str, int]) -> None:
    """An address without a host is loopback."""
    assert parse_address(text) == address
    assert parse_address(text).is_loopback == (address[0] != "0.0.0.0")


@pytest.mark.parametrize(
    "text", ["", "8642", "127.0.0.1", "127.0.0.1:x", "::1:80", "a:65536", "a:²"]
)
def test_a_wrong_address_is_told(text: str) -> None:
    """The error names the option."""
    with pytest.raises(UsageError, match="--address"):
        parse_address(text)


def test_a_port_that_is_taken_is_told(path: Path) -> None:
    """A port in use is an error."""
    with site(path) as web, pytest.raises(UsageError, match=f"{web.server.port}: .*in use"):
        Server(web.follower, Address("127.0.0.1", web.server.port))
