"""The copies' reports add up: over all copies every step is counted once."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from fakes import train_copy  # noqa: E402

from hadar_slurm.handoff import ProgressReport, read_report, user_reports  # noqa: E402
from hadar_slurm.runtime.copy import Copy  # noqa: E402
from hadar_slurm.runtime.membership.surroundings import Surroundings  # noqa: E402
from hadar_slurm.runtime.settings import Settings  # noqa: E402

SETTINGS = Settings(
    slot_s=0.05, cost_part=1.0, gone_after_s=0.5, poll_s=0.01, report_every_s=0.0, move_s=0.1
)


def a_copy(directory: Path, total_steps: int = 40, settings: Settings = SETTINGS) -> Copy:
    """Return the only copy of a job; it reports after each step."""
    model, optimiser, _ = train_copy.make(0)
    where = Surroundings(
        copy=0,
        directory=directory / "job",
        job="7",
        restart=2,
        spool=user_reports(directory / "spool", os.getuid()),
    )
    return Copy(model, optimiser, total_steps=total_steps, settings=settings, surroundings=where)


def said(directory: Path) -> ProgressReport:
    """Return the newest report of the copy."""
    report = read_report(directory / "spool", "7", owner_uid=os.getuid())
    assert report is not None
    return report


def test_steps_done_are_those_made_one_and_our_own(tmp_path: Path) -> None:
    """This holds at each step; a copy has no own steps when an interval begins."""
    copy = a_copy(tmp_path)
    own = []
    with copy:
        for _ in copy.steps():
            report, newest = said(tmp_path), copy.member.slots.newest()
            assert newest is not None
            assert report.state == "running"
            assert report.restart == 2
            assert report.steps_done - report.own_steps == len(newest[0].done)
            assert (report.aggregation_s > 0) == (newest[0].slot > 0)
            own.append(report.own_steps)
    assert own[0] == 0
    assert max(own) > 1
    done = said(tmp_path)
    assert (done.state, done.steps_done, done.own_steps) == ("done", 40, 0)


def test_a_consolidation_costs_all_of_its_parts(tmp_path: Path) -> None:
    """A copy that averaged counts the measured time, others the time noted in the slot end."""
    copy = a_copy(tmp_path)
    with copy:
        list(copy.steps())
    newest = copy.member.slots.newest()
    assert newest is not None
    costs = copy.member.costs
    slot = newest[0].slot
    assert costs.now.made_s[slot] != newest[0].made_s > 0
    assert said(tmp_path).aggregation_s == costs.total_s
    late = a_copy(tmp_path)
    with late:
        assert list(late.steps()) == []
    assert late.member.costs.without_state.made_s == {slot: newest[0].made_s}


def test_a_signal_of_somebody_else_costs_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy reports what it has saved, waits for a requeue, and then continues."""
    copy = a_copy(tmp_path, settings=replace(SETTINGS, slot_s=60.0))
    heard: list[ProgressReport] = []
    tell = copy.member.reports.tell

    def tell_and_hear(*words: Any) -> None:
        tell(*words)
        heard.append(said(tmp_path))

    monkeypatch.setattr(copy.member.reports, "tell", tell_and_hear)
    trained = []
    with copy:
        for step in copy.steps():
            trained.append(step)
            if step == 12:
                os.kill(os.getpid(), signal.SIGUSR1)
    assert trained == list(range(40))
    saved = [report for report in heard if report.state == "saved"]
    # The first interval has one step, which is not the copy's own any more.
    assert [(report.steps_done, report.own_steps) for report in saved] == [(13, 12)]
    after = heard[heard.index(saved[0]) + 1]
    assert (after.state, after.own_steps) == ("running", 12)


def test_a_long_first_step_does_not_count_for_the_speed(tmp_path: Path) -> None:
    """Compiled kernels and empty caches make it slow; it must not cause a migration."""
    copy = a_copy(tmp_path, settings=replace(SETTINGS, slot_s=60.0))
    speeds, begun_s = [], []
    with copy:
        for step in copy.steps():
            begun_s.append(time.monotonic())
            time.sleep(0.5 if step == 1 else 0.01)
            speeds.append(said(tmp_path).steps_per_s)
    # The first interval has one step, the first of the run, which is not measured.
    assert speeds[:2] == [0.0, 0.0]
    a_step_s, with_the_long_one_s = (
        (begun_s[-1] - begun_s[first]) / (len(begun_s) - 1 - first) for first in (2, 1)
    )
    assert 1 / speeds[-1] == pytest.approx(a_step_s, abs=(with_the_long_one_s - a_step_s) / 2)


def test_slots_are_longer_where_consolidation_is_dear(tmp_path: Path) -> None:
    """Averaging takes its part of the time: an interval lasts as long as two averages here."""
    copy = a_copy(tmp_path, settings=replace(SETTINGS, slot_s=1e-4, cost_part=0.5))
    lengths = []
    with copy:
        for _ in copy.steps():
            newest = copy.member.slots.newest()
            assert newest is not None
            lengths.append((newest[0].slot, newest[0].length_s, newest[0].made_s))
    assert lengths[0][1:] == (1e-4, 0.0)
    assert max(length_s for _, length_s, _ in lengths) > 2 * min(
        made_s for slot, _, made_s in lengths if slot > 0
    )
