"""Information on hadard itself: alive or not, its problems, copies, pins, remarks."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from web_journals import NOW_S, a_job, a_line, gang, write

from hadar_slurm.state.heartbeat import Heartbeat, write_heartbeat
from hadar_slurm.state.problems import Problem
from hadar_slurm.web.exposition import exposition
from hadar_slurm.web.follower import Follower
from hadar_slurm.web.page import listing, overview
from hadar_slurm.web.pulse import Pulse
from hadar_slurm.web.view import PageRequest

FULL = "/var/log/hadar/journal.jsonl cannot be written: <No space>; free some"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def vouch(directory: Path, good_until_s: float, **problems: str) -> Pulse:
    """Write a heartbeat, and return a Pulse that has read it."""
    beat = Heartbeat(7, "toy", good_until_s, str(directory), problems=problems)
    write_heartbeat(directory, beat)
    pulse = Pulse(directory)
    pulse.poll()
    return pulse


def samples(path: Path, pulse: Pulse | None, now_s: float) -> dict[tuple[str, str], float]:
    """Return the metrics by name and kind."""
    with Follower(path, every_s=3600.0) as follower:
        text = exposition(follower, "", now_s, pulse)[0].decode()
    return {
        (sample.name, sample.labels.get("kind", "")): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def page(path: Path, pulse: Pulse | None, now_s: float) -> str:
    """Return the text of the first page."""
    with Follower(path, every_s=3600.0) as follower:
        found = overview(PageRequest(follower, now_s, {}, pulse=pulse))
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", " ", found)))


@pytest.mark.parametrize("journal", ["there", "missing", "unreadable"])
def test_metrics_tell_of_the_daemon_whatever_the_journal_is(path: Path, journal: str) -> None:
    """The daemon's metrics do not depend on the journal."""
    if journal == "there":
        write(path, a_line(0))
    elif journal == "unreadable":
        path.mkdir()
    found = samples(path, vouch(path.parent, NOW_S + 60.0, journal=FULL), NOW_S + 40.0)
    assert found["hadar_daemon_up", ""] == 1
    problems = {kind: value for (name, kind), value in found.items() if name == "hadar_problem"}
    assert problems == {**dict.fromkeys(map(str, Problem), 0.0), "other": 0.0, "journal": 1.0}
    assert found["hadar_journal_readable", ""] == (journal == "there")
    assert found.get(("hadar_last_round_age_seconds", "")) == (40 if journal == "there" else None)


def test_a_kind_that_this_version_does_not_know_counts_as_other(path: Path) -> None:
    found = samples(path, vouch(path.parent, NOW_S + 60.0, weather="rain"), NOW_S)
    assert found["hadar_problem", "other"] == 1
    assert ("hadar_problem", "weather") not in found


@pytest.mark.parametrize("good_until_s", [None, NOW_S - 1.0, NOW_S + 1e9])
def test_a_daemon_that_is_gone_is_a_metric(path: Path, good_until_s: float | None) -> None:
    """The daemon is down without a heartbeat, with an expired one, or one from a wrong clock."""
    if good_until_s is None:
        pulse = Pulse(path.parent)
        pulse.poll()
    else:
        beat = Heartbeat(7, "toy", good_until_s, "", good_for_s=30.0, problems={"journal": FULL})
        write_heartbeat(path.parent, beat)
        pulse = Pulse(path.parent)
        pulse.poll()
    found = samples(path, pulse, NOW_S)
    assert found["hadar_daemon_up", ""] == 0
    assert found["hadar_problem", "journal"] == 0


def test_without_a_place_for_the_heartbeat_nothing_is_said_of_the_daemon(path: Path) -> None:
    """Without a run directory, as for a simulation, no metric or text is on the daemon."""
    write(path, a_line(0))
    found = samples(path, None, NOW_S)
    assert ("hadar_daemon_up", "") not in found
    assert "is not alive" not in page(path, None, NOW_S)


def test_the_heartbeat_is_read_again_and_again(path: Path) -> None:
    """It is read at the start of the server, and then periodically."""
    write_heartbeat(path.parent, Heartbeat(7, "toy", NOW_S + 60.0, ""))
    with Pulse(path.parent, every_s=0.01) as pulse:
        assert pulse.is_alive(NOW_S)
        (path.parent / "heartbeat.json").unlink()
        for _ in range(1000):
            if not pulse.is_alive(NOW_S):
                break
            pulse._to_end.wait(0.01)
        assert not pulse.is_alive(NOW_S)


def test_the_page_says_that_hadard_is_gone_and_how_old_the_round_is(path: Path) -> None:
    write(path, a_line(812))
    seen_s = NOW_S + 812 * 360.0
    alive = page(path, vouch(path.parent, seen_s + 60.0), seen_s + 14.0)
    assert "round 812 began 14 s ago" in alive
    assert "alive" not in alive
    gone = page(path, vouch(path.parent, seen_s + 60.0), seen_s + 7200.0)
    assert f"hadard is not alive: no fresh heartbeat in {path.parent} ." in gone
    assert "The following is from 2 h 00 min ago." in gone
    stale = page(path, vouch(path.parent, seen_s + 9000.0), seen_s + 7200.0)
    assert "hadard is alive, but the following is from its last round, 2 h 00 min ago" in stale
    simulated = path.with_name("sim.jsonl")
    write(simulated, a_line(0, mode=""))
    assert "not alive" not in page(simulated, vouch(path.parent, 0.0), NOW_S)


def test_the_page_shows_problems_with_and_without_a_journal(path: Path) -> None:
    pulse = vouch(path.parent, NOW_S + 60.0, journal=FULL)
    assert f"Problem: journal: {FULL}" in page(path, pulse, NOW_S)
    write(path, a_line(0))
    assert f"Problem: journal: {FULL}" in page(path, pulse, NOW_S)
    with Follower(path, every_s=3600.0) as follower:
        assert "<No space>" not in listing(PageRequest(follower, NOW_S, {}, pulse=pulse))


def test_copies_pins_and_remarks_are_on_the_page(path: Path) -> None:
    """A forked job's row has its copies with GPUs and speed, its total GPUs, and its averages."""
    holds = {"0": gang("n1:V100:2"), "1": gang("n2:K80:2")}
    forked = a_job("n1:V100:2", gpus=2, copies=3) | {"holds": holds}
    facts = {"averages": 12, "averaged_s": NOW_S - 40.0}
    facts |= {"copies": {"0": {"task": "8_0", "steps_per_s": 4.25}}}
    jobs = {
        "8": forked,
        "9": a_job("n3:V100:1", phase="starting", pinned=True, remarks=["pinned to n3 <now>"]),
        "10": a_job("n3:V100:1", phase="starting"),
        "11": a_job(remarks=["it asks for more than there is"]),
    }
    line = a_line(
        0,
        jobs,
        nodes="n1:V100:2 n2:K80:2 n3:V100:2",
        waiting={"11": "no free GPUs"},
        forked={"8": facts},
    )
    write(path, line)
    text = page(path, None, NOW_S + 1.0)
    assert "copy 0: n1:V100:2 at 4.25 steps/s copy 1: n2:K80:2 4 " in text
    assert "averaged 12 times, last 40 s before this round" in text
    path.write_text("")
    write(path, line | {"forked": {"8": facts | {"synchronous": True}}})
    assert "synchronous" in page(path, None, NOW_S + 1.0)
    assert "pinned to n3 <now>" in text
    assert "no free GPUs; it asks for more than there is" in text
    assert "2 jobs run, 1 pinned" in text
    rows = re.findall(r" (9|10) alice (pinned|starting) n3:V100:1 1 ", text)
    assert rows == [("9", "pinned"), ("10", "starting")]
