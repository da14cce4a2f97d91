"""Damaged journal lines: pages and metrics are still produced."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse
from web_journals import NOW_S, Tree, a_job, a_line, an_action, gang, text_of

from hadar_slurm.web.exposition import exposition
from hadar_slurm.web.follower import Follower
from hadar_slurm.web.page import claims, listing, overview
from hadar_slurm.web.view import PageRequest

JUNK = [
    *(None, -1, 0, 1e308, float("nan"), float("inf"), 10**400, "", "x", "<b>", "\ud800", True),
    *([], {}, [1], {"a": 1}),
]
RATES = {"v100": 2.0, "k80": 1.0}
JOBS = {
    "1": a_job("n1:V100:1", rates=RATES, partition="main"),
    "2": a_job(partition="main,long"),
    "3": a_job("n2:K80:1", rates=RATES, nodes=["n2"]),
    "4": a_job(
        "n2:K80:1", rates=RATES, copies=2, pinned=True, remarks=["a remark"], claimed_steps=7
    ),
}
COPIES = {"0": {"task": "4_0", "steps_per_s": 2.5, "pinned": True}}
FORKED = {"4": {"averages": 3, "averaged_s": NOW_S, "copies": COPIES}}
ACTIONS = [an_action("start", "2", "n2:K80:1"), an_action("stop", "1", "n1:V100:1")]
LINES = [
    a_line(
        number,
        JOBS,
        mode=mode,
        waiting={"2": "why"},
        actions=ACTIONS,
        occupied=gang("n1:V100:1"),
        ended={"9": {"phase": "done", "end_s": NOW_S}},
        errors=["an error"],
        held=1,
        expired=2,
        averages=3,
        forked=FORKED,
        commands={"squeue": {"done": 2}},
        judged={"eve": {"gan": {"9": [10.0, 400, 2.5]}}},
        credits={"eve": {"times": 40.0, "speeds_off": 2.5, "jobs": 1, "at_s": NOW_S}},
    )
    for number in range(6)
    for mode in ("hold", "observe")
]


def _places(tree: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every value of a tree."""
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in pairs:
        yield (*before, key)
        if isinstance(value, dict | list):
            yield from _places(value, (*before, key))


def _damaged(line: Tree, random: Random) -> Tree:
    """Return a line with up to three values removed or replaced by junk."""
    line = copy.deepcopy(line)
    for _ in range(random.randint(1, 3)):
        *before, last = random.choice(list(_places(line)))
        inner: Any = line
        for key in before:
            inner = inner[key]
        if isinstance(inner, dict) and random.random() < 0.3:
            del inner[last]
        else:
            inner[last] = copy.deepcopy(random.choice(JUNK))
    return line


@pytest.mark.parametrize("seed", range(120))
def test_no_line_takes_the_page_down(tmp_path: Path, seed: int) -> None:
    """Damaged lines are skipped or shown, and pages and metrics still work."""
    random = Random(seed)
    mixed = [_damaged(line, random) if random.random() < 0.5 else line for line in LINES]
    path = tmp_path / "journal.jsonl"
    with Follower(path) as follower:
        path.write_text(text_of(*mixed), encoding="utf-8")
        follower.poll()
        for query in ({}, {"hours": "0"}, {"type": "V100"}, {"state": "running"}):
            view = PageRequest(follower, NOW_S + 3000, query)
            overview(view).encode("utf-8")
            listing(view).encode("utf-8")
            claims(view).encode("utf-8")
        assert list(parse(exposition(follower, "", NOW_S)[0].decode()))
