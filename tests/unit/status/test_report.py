"""Figures of a period of the journal, and its jobs as a workload."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import a_gang, a_job, a_plan, a_snapshot, some_rates

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.snapshot import Ended, Round
from hadar_slurm.engine.actions import Outcome, Start, Status, Stop
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.journal import Line, as_line
from hadar_slurm.status.report import GpuHours, Reporter

NODES = "2xV100,2xK80"


def a_line(
    time_s: float,
    *jobs: Job,
    mode: str = "hold",
    ended: tuple[Ended, ...] = (),
    outcomes: tuple[Outcome, ...] = (),
    occupied: str = "",
    errors: tuple[str, ...] = (),
) -> Line:
    snapshot = replace(a_snapshot(NODES, *jobs, now_s=time_s, occupied=occupied), ended=ended)
    record = RoundRecord(
        Round(0, time_s, 360.0),
        "round end",
        "hadar",
        snapshot,
        a_plan({}),
        outcomes,
        {"plan": 0.25 if errors else 0.5},
        errors,
    )
    return as_line(record) | {"mode": mode}


def read(*lines: Line) -> Reporter:
    reporter = Reporter()
    for line in lines:
        reporter.add(line)
    return reporter


def test_nothing_read_is_no_report() -> None:
    assert Reporter().report() is None
    assert Reporter().workload() is None


def test_hours_are_counted_by_who_had_the_gpus() -> None:
    """A managed job has GPUs for half of the hour; the last line adds no time."""
    runs = a_job("1", 2, on="n1:V100:2")
    lines = [a_line(n * 360.0, *([runs] if n < 5 else []), occupied="n2:K80:1") for n in range(11)]
    found = read(*lines).report()
    assert found is not None
    assert found.gpu_hours["V100"] == GpuHours(pytest.approx(1.0), 0.0, pytest.approx(1.0))
    assert found.gpu_hours["K80"] == GpuHours(0.0, pytest.approx(1.0), pytest.approx(1.0))
    assert (found.rounds, found.from_s, found.to_s) == (11, 0.0, 3600.0)


def test_time_in_which_nobody_looked_is_not_counted() -> None:
    found = read(a_line(0.0), a_line(36_000.0)).report()
    assert found is not None
    assert found.gpu_hours["V100"].idle == pytest.approx(2 * 0.2)


def test_a_round_of_several_modes_is_one_round() -> None:
    first, second = a_job("1", on="n1:V100:1"), a_job("2", on="n2:K80:1")
    lines = [
        line
        for n in range(11)
        for line in (
            a_line(n * 360.0, first, occupied="n2:K80:1"),
            a_line(n * 360.0 + 1, second, occupied="n1:V100:1", mode="observe"),
        )
    ]
    found = read(*lines).report()
    assert found is not None
    assert found.rounds == 11
    assert found.jobs == 2
    assert found.gpu_hours["K80"] == GpuHours(
        pytest.approx(1.0, rel=1e-3), 0.0, pytest.approx(1.0, rel=1e-3)
    )


def test_ends_and_actions_are_counted_once() -> None:
    """Ended jobs are listed for some rounds; those that ended before the first do not count."""
    ends = (Ended(JobId("1"), Phase.DONE, 700.0), Ended(JobId("8"), Phase.DONE, -50.0))
    gang = a_gang("n1:V100:1")
    outcomes = (
        Outcome(Stop(JobId("2"), 0, gang), Status.DONE),
        Outcome(Start(JobId("2"), 0, gang), Status.REFUSED, "no"),
    )
    found = read(
        a_line(0.0, a_job("1", submitted_s=-300.0), a_job("2")),
        a_line(720.0, a_job("2"), ended=ends, outcomes=outcomes),
        a_line(1080.0, a_job("2"), ended=ends, errors=("squeue: timed out",)),
    ).report()
    assert found is not None
    assert (found.ended, found.mean_jct_s) == ({"done": 1}, 1000.0)
    assert (found.starts, found.moves, found.refused) == (0, 1, 1)
    assert (found.failed_rounds, found.errors) == (1, {"squeue: timed out": 1})
    assert (found.decision_s_p50, found.decision_s_max) == (0.5, 0.5)


def test_the_jobs_make_a_workload() -> None:
    """Jobs have the steps left at first, and the latest throughput."""
    slow, fast = some_rates(V100=1.0), some_rates(V100=4.0)
    reporter = read(
        a_line(1000.0, a_job("1", steps=1000, done=400.0, throughputs=slow, submitted_s=100.0)),
        a_line(
            1360.0,
            a_job("1", steps=1000, done=900.0, throughputs=fast, submitted_s=100.0),
            a_job("2", throughputs=fast, submitted_s=1300.0),
            a_job("3", throughputs=some_rates(), submitted_s=1300.0),
        ),
    )
    found = reporter.workload()
    assert found is not None
    jobs, cluster, round_s, ends_s = found
    assert (round_s, ends_s) == (360.0, {})
    assert [(job.job_id, job.submitted_s, job.total_steps) for job in jobs] == [
        ("1", 0.0, 600),
        ("2", 300.0, 1000),
    ]
    assert jobs[0].throughputs.on("V100", 1) == 4.0
    assert cluster.gpus_by_type == {"K80": 2, "V100": 2}


def test_a_round_that_saw_nothing_is_a_round() -> None:
    line = as_line(RoundRecord(Round(0, 5.0, 360.0), "start", "p", errors=("no squeue",)))
    found = read(line).report()
    assert found is not None
    assert (found.rounds, found.jobs, found.gpu_hours) == (1, 0, {})


def moving(time_s: float, done: float, on: str, *outcomes: Outcome, restarts: int = 0) -> Line:
    """Return a line with one job of 1000 steps, 1 step/s on K80 and 4 on V100."""
    speeds = some_rates(V100=4.0, K80=1.0)
    job = a_job("1", steps=1000, done=done, throughputs=speeds, on=on)
    job = replace(job, progress=replace(job.progress, restarts=restarts))
    return a_line(time_s, job, outcomes=outcomes)


def test_what_a_move_cost_and_gained() -> None:
    """It was away for a minute, lost 40 s of work, and its 640 other steps take a quarter."""
    stop = Outcome(Stop(JobId("1"), 0, a_gang("n2:K80:1")), Status.DONE)
    lines = [
        moving(0.0, 400.0, "n2:K80:1", stop),
        moving(30.0, 360.0, ""),
        moving(60.0, 360.0, "n1:V100:1", restarts=1),
        moving(100.0, 520.0, "n1:V100:1", restarts=1),
    ]
    found = read(*lines).report()
    assert found is not None
    (move,) = found.moved
    assert (move.from_types, move.to_types) == (("K80",), ("V100",))
    assert (move.away_s, move.lost_s, move.is_faster) == (60.0, 40.0, True)
    assert move.foreseen_s == 640.0 - 160.0 - 60.0 - 40.0
    # In 100 s it would have had 100 steps more, and has 120.
    assert move.had_s == 20.0
    assert len(read(*lines[:2]).report().moved) == 0  # type: ignore[union-attr]


def test_a_second_stop_ends_what_the_first_gained() -> None:
    stop = Outcome(Stop(JobId("1"), 0, a_gang("n2:K80:1")), Status.DONE)
    again = Outcome(Stop(JobId("1"), 0, a_gang("n1:V100:1")), Status.DONE)
    found = read(
        moving(0.0, 400.0, "n2:K80:1", stop),
        moving(60.0, 400.0, "n1:V100:1", again, restarts=1),
        moving(120.0, 400.0, "n2:K80:1", restarts=2),
    ).report()
    assert found is not None
    assert [(m.to_types, m.had_s, m.is_faster) for m in found.moved] == [
        (("V100",), -60.0, True),
        (("K80",), -60.0, False),
    ]
