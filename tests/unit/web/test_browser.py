"""The pages in a real browser: they fit, have no errors, and work without scripts.

`HADAR_SCREENSHOTS=DIRECTORY` saves screenshots.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import Browser, a_browser, find_browser
from web_journals import ROUND_S, a_job, a_line, an_action, gang, many_jobs, write

from hadar_slurm.state.heartbeat import Heartbeat, write_heartbeat
from hadar_slurm.web.follower import Follower
from hadar_slurm.web.pulse import Pulse
from hadar_slurm.web.server import Address, Server

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="no Chromium is installed (Debian: apt-get install chromium)"
)
NODES = "n1:V100:4 n2:K80:4"
EVIL = "<script>document.title='evil'</script><img src=x onerror=\"document.title='evil'\">"
LONG = "a-job-whose-name-nobody-has-ever-typed-by-hand-" * 5


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with a_browser(PROGRAM, tmp_path_factory.mktemp("profile")) as found:
        yield found


@contextmanager
def served(path: Path, pulse: Pulse | None = None) -> Iterator[tuple[str, Follower]]:
    follower = Follower(path, every_s=3600.0)
    server = Server(follower, Address("127.0.0.1", 0), pulse=pulse)
    with follower, server.running():
        yield server.url, follower


def a_journal(path: Path, number: int) -> Path:
    """Write ten rounds that end now, with `number` jobs, some of them with hostile names."""
    jobs = many_jobs(number)
    if number > 1:
        jobs["1001"] |= {"user": EVIL, "workload": LONG}
        jobs[f"{LONG}{EVIL}"] = a_job(user=LONG, workload=EVIL)
    waiting = {job: "no free GPUs fit its gang now" for job in jobs if not jobs[job]["holds"]}
    moved = [an_action("start", job, "n1:V100:1") for job in list(jobs)[:1]]
    now_s = time.time()
    for round_ in range(10):
        line = a_line(
            round_,
            jobs,
            nodes=NODES,
            waiting=waiting,
            actions=moved if round_ % 3 == 0 else (),
            time_s=now_s - (10 - round_) * ROUND_S,
        )
        write(path, line | {"errors": [LONG] if round_ == 4 else []})
    return path


def picture(browser: Browser, name: str) -> None:
    kept = os.environ.get("HADAR_SCREENSHOTS")
    if kept:
        Path(kept).mkdir(parents=True, exist_ok=True)
        browser.screenshot(Path(kept) / f"{name}.png")


def overflow(browser: Browser) -> int:
    """Return by how many pixels the page is wider than its window."""
    wide: int = browser.value(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    return wide


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("number", [0, 6, 600])
def test_pages_fit_and_browsers_complain_of_nothing(
    browser: Browser, tmp_path: Path, number: int, width: int
) -> None:
    """No page is wider than its window, violates its policy, or loads from other sites."""
    with served(a_journal(tmp_path / "journal.jsonl", number)) as (url, _):
        for page in ("", "jobs?state=waiting", "jobs?state=running", "use?by=array"):
            for dark in (False, True):
                browser.open(url + page, width=width, dark=dark)
                slug = page.partition("=")[2] or "overview"
                picture(browser, f"{slug}-{number}-{width}{'-dark' if dark else ''}")
                assert overflow(browser) == 0
                assert browser.complaints() == []
                assert all(asked.startswith(url) for asked in browser.requested())
                assert browser.value("document.title") != "evil"
                assert browser.value("document.querySelectorAll('.bars .bar').length > 0") == (
                    number > 0 and not page
                )


def a_troubled_journal(path: Path) -> Path:
    """Write rounds with a forked job, a pinned job, and jobs with remarks."""
    holds = {"0": gang("n1:V100:2"), "1": gang("n2:K80:2")}
    copies = {"0": {"task": "1008_0", "steps_per_s": 4.25}, "1": {"task": "1008_3"}}
    now_s = time.time()
    facts = {"averages": 12, "averaged_s": now_s - 400.0, "copies": copies}
    jobs = {
        "1008": a_job("n1:V100:2", gpus=2, copies=3) | {"holds": holds},
        "1009": a_job(
            "n1:V100:1", phase="starting", pinned=True, remarks=["pinned to n1; Slurm: Resources"]
        ),
        "1010": a_job("n1:V100:1", remarks=[f"it is not migrated: {LONG} {EVIL}"]),
        "1011": a_job(remarks=["it asks for a partition that hadard does not manage"]),
    }
    waiting = {"1011": "no free GPUs fit its gang now"}
    for number in range(3):
        told_s = now_s - (3 - number) * ROUND_S
        more = {"forked": {"1008": facts}}
        line = a_line(number, jobs, nodes=NODES, waiting=waiting, time_s=told_s, **more)
        write(path, line)
    return path


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("is_alive", [True, False])
def test_trouble_fits(browser: Browser, tmp_path: Path, is_alive: bool, width: int) -> None:
    """Long problems, a dead daemon, copies, pins and remarks fit the window."""
    problems = {"journal": f"{LONG}: No space left", "reports": EVIL}
    good_until_s = time.time() + (3600 if is_alive else -1)
    write_heartbeat(tmp_path, Heartbeat(7, "toy", good_until_s, "", problems=problems))
    pulse = Pulse(tmp_path)
    pulse.poll()
    with served(a_troubled_journal(tmp_path / "journal.jsonl"), pulse) as (url, _):
        for page in ("", "jobs?state=running"):
            browser.open(url + page, width=width)
            slug = page.partition("=")[2] or "overview"
            picture(browser, f"trouble-{slug}-{'alive' if is_alive else 'gone'}-{width}")
            assert overflow(browser) == 0
            assert browser.complaints() == []
            assert browser.value("document.title") != "evil"
            said = browser.value("document.querySelector('.alert').textContent")
            assert ("Problem: journal" in said) == is_alive
            assert ("hadard is not alive" in said) != is_alive


def test_a_missing_journal_fits(browser: Browser, tmp_path: Path) -> None:
    """A long path is wrapped, not cut off."""
    path = tmp_path / "/".join(["there-is-no-such-directory"] * 6) / "journal.jsonl"
    with served(path) as (url, _):
        browser.open(url, width=400)
        picture(browser, "missing-400")
        assert overflow(browser) == 0
        assert browser.complaints() == []


@pytest.mark.parametrize("minutes", [31, 59, 60, 61, 119, 777, 10_000])
def test_labels_do_not_lie_on_each_other(browser: Browser, tmp_path: Path, minutes: int) -> None:
    """Axis labels do not overlap at either width, and stay in the chart."""
    begin_s = time.time() - 60 * minutes
    nodes = "gpu-node-with-a-long-name-0017:V100:4"
    path = write(
        tmp_path / "journal.jsonl",
        a_line(0, nodes=nodes, time_s=begin_s),
        a_line(1, nodes=nodes, time_s=time.time()),
    )
    with served(path) as (url, _):
        for width in (1280, 400):
            browser.open(f"{url}?hours=0", width=width)
            assert overflow(browser) == 0
            picture(browser, f"axis-{minutes}-{width}")
            boxes = browser.value(
                "[...document.querySelectorAll('.grid text')]"
                ".map(t => t.getBoundingClientRect()).filter(b => b.width > 0)"
                ".map(b => [b.left, b.right])"
            )
            assert len(boxes) >= 2
            assert all(left[1] < right[0] for left, right in itertools.pairwise(boxes))
            chart = browser.value("document.querySelector('.bars').getBoundingClientRect().left")
            assert chart <= boxes[0][0]
            assert boxes[-1][1] <= width


def test_the_page_keeps_up_by_itself(browser: Browser, tmp_path: Path) -> None:
    """A new round appears without a reload, opened parts stay open, and pausing works."""
    path = a_journal(tmp_path / "journal.jsonl", 6)
    with served(path) as (url, follower):
        browser.open(url, width=1280)
        browser.value("document.querySelector('#words').open = true")
        browser.value("window.stays = 1")
        write(path, a_line(10, nodes=NODES, time_s=time.time()))
        follower.poll()
        # Two clicks: pause, then resume, which fetches at once.
        browser.value("document.getElementById('pause').click()")
        assert browser.value("document.getElementById('pause').textContent") == "Go on"
        browser.value("document.getElementById('pause').click()")
        ends = time.monotonic() + 20
        while "Waiting: 0" not in browser.value("document.body.textContent"):
            assert time.monotonic() < ends, "the page has not kept up"
            time.sleep(0.05)
        assert browser.value("window.stays") == 1
        assert browser.value("document.querySelector('#words').open")
        assert browser.complaints() == []


def test_it_works_without_scripts(browser: Browser, tmp_path: Path) -> None:
    """The page is complete, the pause button is hidden, and the page reloads by itself."""
    with served(a_journal(tmp_path / "journal.jsonl", 6)) as (url, _):
        browser.call("Emulation.setScriptExecutionDisabled", value=True)
        try:
            browser.open(url, width=1280)
            root = browser.call("DOM.getDocument", depth=-1)["root"]["nodeId"]
            button = browser.call("DOM.querySelector", nodeId=root, selector="#pause[hidden]")
            reload_ = browser.call(
                "DOM.querySelector", nodeId=root, selector="meta[http-equiv=refresh]"
            )
            bars = browser.call("DOM.querySelectorAll", nodeId=root, selector=".bars .bar")
            assert button["nodeId"]
            assert reload_["nodeId"]
            assert len(bars["nodeIds"]) >= 6
        finally:
            browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_everything_can_be_reached_by_keyboard(browser: Browser, tmp_path: Path) -> None:
    """Links, the button, the text of the chart and scrolling tables take the focus."""
    with served(a_journal(tmp_path / "journal.jsonl", 6)) as (url, _):
        browser.open(url, width=400)
        seen = []
        for _ in range(40):
            for event in ("rawKeyDown", "keyUp"):
                browser.call(
                    "Input.dispatchKeyEvent", type=event, key="Tab", windowsVirtualKeyCode=9
                )
            seen.append(
                browser.value(
                    "(e => e.id || e.tagName.toLowerCase() + (e.getAttribute('href') || ''))"
                    "(document.activeElement)"
                )
            )
        for wanted in ("a#main", "a/", "a/metrics", "pause", "gpus-by-type", "summary",
                       "waiting-jobs", "last-rounds"):  # fmt: skip
            assert wanted in seen, wanted
