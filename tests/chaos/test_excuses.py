"""Edits that look to hadard as its own changes count apart, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from chaos.excuses import Record, excused_edits, releases_in, starts_in
from chaos.invariants import EDITS, WHOLE, Finding
from chaos.test_invariants import a_task
from chaos.workload import Edit


def test_two_writers_at_one_moment_are_told() -> None:
    """An edit lost to a change of hadard's under way is apart, one lost later is not."""
    task = a_task()
    task.note("Nice", Edit("700", 104.0, 105.0))
    finding = Finding(EDITS, "7", 110.0, "Nice is '0' after its owner's '700'")
    other = Finding(WHOLE, "8", 110.0, "Nice")

    def notes(begun_s: float, done_s: float, job: str = "7") -> list[dict[str, Any]]:
        begun = {"time_s": begun_s, "jobs": [job], "step": "steer", "is_begun": True}
        return [begun, {"time_s": done_s, "jobs": [job], "step": "steer", "wrong": {}}]

    for changes, is_apart in (
        (notes(104.5, 106.0), True),
        (notes(105.5, 106.0), False),
        (notes(104.5, 106.0, "8"), False),
        ([], False),
    ):
        mine, same = excused_edits([finding, other], {"7": task}, Record(changes))
        assert bool(mine.apart) is is_apart
        assert same == other


def is_apart(record: Record, submitted_s: float = 0.0) -> bool:
    """Return whether a hold that an owner sets from 120 to 121 s, and that is lost, is apart."""
    task = a_task(submitted_s=submitted_s)
    task.note("Hold", Edit("hold", 120.0, 121.0))
    finding = Finding(EDITS, "7", 125.0, "Hold is 'released' after its owner's 'hold'")
    (told,) = excused_edits([finding], {"7": task}, record)
    return bool(told.apart)


@pytest.mark.parametrize("by", ["hadard", "hadar release"])
@pytest.mark.parametrize(
    ("replaced_s", "expected"), [([], False), ([110.0], True), ([90.0], False), ([130.0], False)]
)
def test_a_hold_after_slurmctld_was_replaced_is_told(
    by: str, replaced_s: list[float], expected: bool
) -> None:
    """It may be hadard's own, whose release slurmctld had not saved."""
    begun = {"time_s": 100.0, "jobs": ["7"], "step": "release", "is_begun": True}
    changes = [begun, {"time_s": 101.0, "jobs": ["7"], "step": "release", "wrong": {}}]
    readings = [{"time_s": 101.5, "pid": 1}, {"time_s": 122.0, "pid": 1}]
    record = (
        Record(changes, readings, replaced_s=replaced_s)
        if by == "hadard"
        else Record((), readings, replaced_s=replaced_s, releases={"7": [100.5]})
    )
    assert is_apart(record) is expected


@pytest.mark.parametrize(
    ("readings", "rounds", "expected"),
    [
        pytest.param([], [], True, id="killed before it read the job"),
        pytest.param([(1, 117.0)], [], True, id="killed before it wrote that"),
        pytest.param([(1, 117.0)], [(1, 118.0)], False, id="killed after the round"),
        pytest.param([(1, 117.0)], [(2, 118.0)], True, id="another one's round"),
        pytest.param([(1, 117.0), (1, 121.5)], [], False, id="still there"),
        pytest.param([(1, 117.0), (2, 121.5)], [], True, id="restarted"),
        pytest.param([(1, 115.0), (1, 121.5)], [], True, id="read it before the release only"),
    ],
)
def test_a_hold_before_the_release_was_recorded_is_told(
    readings: list[tuple[int, float]], rounds: list[tuple[int, float]], expected: bool
) -> None:
    """Slurm shows no difference between that hold and hadard's own."""

    def notes(times: list[tuple[int, float]]) -> list[dict[str, Any]]:
        return [{"pid": pid, "time_s": time_s} for pid, time_s in times]

    record = Record((), notes(readings), notes(rounds), releases={"7": [116.0]})
    assert is_apart(record) is expected
    assert not is_apart(Record((), notes(readings), notes(rounds), releases={"8": [116.0]}))


@pytest.mark.parametrize(
    ("submitted_s", "seen_s", "expected"),
    [(90.0, 112.0, True), (90.0, 95.0, False), (50.0, 112.0, False)],
)
def test_a_hold_of_a_new_job_that_no_hadard_had_seen_is_told(
    submitted_s: float, seen_s: float, expected: bool
) -> None:
    """Its owner has released it at once: it looks as before a hold of hadar-sbatch."""
    readings = [{"pid": 1, "time_s": time_s} for time_s in (seen_s, 112.0, 122.0)]
    record = Record((), readings, releases={"7": [100.0]})
    assert is_apart(record, submitted_s) is expected


def test_slurmctld_logs_its_starts_and_who_was_released() -> None:
    """Also single tasks of an array, and nothing else that is said of a hold."""
    log = """\
[2026-11-29T08:04:30.000] slurmctld version 22.05.8 started on cluster test
[2026-11-29T08:04:32.395] sched: _release_job_rec: release hold on JobId=5_1(9) by uid 0
[2026-11-29T08:04:33.734] sched: _release_job_rec: release hold on JobId=7 by uid 0
[2026-11-29T08:04:34.000] sched: _hold_job_rec: hold on JobId=7 by uid 0
[2026-11-29T08:04:35.000] sched: _release_job_rec: release hold on JobId=7 by uid 1000
"""
    found = releases_in(log)
    assert found.keys() == {"5_1", "7"}
    first, second = found["7"]
    assert first - starts_in(log)[0] == pytest.approx(3.734)
    assert second - first == pytest.approx(1.266)
