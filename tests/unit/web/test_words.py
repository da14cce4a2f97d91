"""Escaping of text, and formats of times."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from hadar_slurm.web.page import TEMPLATES
from hadar_slurm.web.words import Clock, duration

NOON_S = datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()
BERLIN = ZoneInfo("Europe/Berlin")


def test_nothing_in_a_name_is_markup() -> None:
    """Brackets, quotes and characters that do not print are escaped everywhere."""
    evil = "<script>alert(1)</script>\"' onload=x \x00\ud800&amp;\u202e"
    macros = TEMPLATES.from_string(
        '{% from "macros.html.j2" import name, link %}'
        "{{ evil }}{{ name(evil) }}{{ link(evil, evil, true) }}"
    )
    shown = macros.render(evil=evil)
    safe = "&lt;script&gt;alert(1)&lt;/script&gt;&#34;&#39; onload=x \\x00\\ud800&amp;amp;\\u202e"
    assert shown.replace(safe, "_") == (
        '_<bdi class="name" title="_">_</bdi><a href="_" aria-current="page">_</a>'
    )
    shown.encode("utf-8")


def test_all_templates_escape() -> None:
    """Autoescape is on, and no template marks a value as safe."""
    assert TEMPLATES.autoescape is True
    names = TEMPLATES.list_templates()
    assert "overview.html.j2" in names
    for name in names:
        assert TEMPLATES.get_template(name)
        source = TEMPLATES.loader.get_source(TEMPLATES, name)[0] if TEMPLATES.loader else ""
        assert not re.search(r"\bsafe\b|autoescape", source), name


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (59.4, "59 s"),
        (60, "1 min"),
        (3599, "1 h 00 min"),
        (5400, "1 h 30 min"),
        (200_000, "2 d 8 h"),
        (-5, "0 s"),
        (float("nan"), "–"),
    ],
)
def test_durations_are_short(seconds: float, words: str) -> None:
    """A duration has at most two units."""
    assert duration(seconds) == words


def test_an_axis_says_its_zone() -> None:
    """The caption of the axis names the time zone."""
    assert Clock(True, UTC).axis(NOON_S, NOON_S + 60) == "time in UTC"
    assert Clock(True, BERLIN).axis(NOON_S, NOON_S + 60) == "time in CET, UTC+01:00"
    spring_s = datetime(2026, 3, 29, 0, tzinfo=UTC).timestamp()
    assert Clock(True, BERLIN).axis(spring_s, spring_s + 7200) == (
        "time in CET, UTC+01:00, later CEST, UTC+02:00"
    )
    zone = ZoneInfo("America/Sao_Paulo")
    assert Clock(True, zone).axis(NOON_S, NOON_S) == "time in UTC-03:00"
    assert "simulation" in Clock(False).axis(0, 1)


def test_ticks_are_round_by_the_clock_on_the_wall() -> None:
    """Ticks six hours apart are at 0, 6, 12 and 18 o'clock local time."""
    ticks = list(Clock(True, BERLIN).ticks(NOON_S, NOON_S + 86400, most=6))
    assert [label for _, label in ticks] == ["18:00", "23 Nov", "06:00", "12:00"]
    labels = [label for _, label in Clock(False).ticks(0, 90_000, most=6)]
    assert labels == ["0 h", "6 h", "12 h", "18 h", "24 h"]


@pytest.mark.parametrize("lasts_s", [1.0, 100.0, 5000.0, 1e5, 1e6, 1e7, 1e9])
def test_there_are_some_ticks_but_not_too_many(lasts_s: float) -> None:
    """For any window there is room for the labels."""
    for clock in (Clock(False), Clock(True, BERLIN)):
        assert len(list(clock.ticks(NOON_S, NOON_S + lasts_s, most=6))) <= 7
