"""hadar top: its table, its updates, and hostile names, which are shown unchanged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builders import a_gang, a_job, a_plan, a_snapshot
from rich.console import Console
from typer.testing import CliRunner

from hadar_slurm.cli import top as command
from hadar_slurm.cli.main import commands
from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.gang import Allocation
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import Plan, WaitReason
from hadar_slurm.core.snapshot import Round
from hadar_slurm.core.throughput import GangThroughput, Throughputs
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.journal import Journal
from hadar_slurm.journal.reader import read_journal
from hadar_slurm.journal.values import snapshot_of


def of_user(job: Job, user: str) -> Job:
    return replace(job, spec=replace(job.spec, user=user))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    runs = a_job("1", 2, on="n1:V100:2", done=500.0)
    waits = of_user(a_job("2", submitted_s=1e9 - 7300), "[bold]eve")
    snapshot = a_snapshot("2xV100", waits, runs, now_s=1e9)
    plan = a_plan({"1": "n1:V100:2"}, {"2": WaitReason.INSUFFICIENT})
    path = tmp_path / "j.jsonl"
    written = Journal(path)
    written.write(RoundRecord(Round(3, 1e9, 360.0), "round end", "hadar", snapshot, plan))
    written.close()
    return path


def test_jobs_are_shown_below_what_status_says(journal: Path) -> None:
    done = CliRunner().invoke(
        commands, ["top", "--once", "--journal", str(journal)], env={"COLUMNS": "140"}
    )
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.output.splitlines()]
    assert rows[0][:3] == ["hadard", "is", "not"]
    first, second = rows[-2:]
    assert first[:4] == ["1", "running", "2", "50%"]
    assert first[-1] == "n1:V100:2"
    assert second[:5] == ["2", "[bold]eve", "queued", "1", "0%"]
    assert second[5:7] == ["2.0", "h"]
    assert " ".join(second[7:]) == str(WaitReason.INSUFFICIENT)


def test_tasks_of_an_array_are_one_row(tmp_path: Path) -> None:
    """With their GPUs by type, or the reasons that most of them have."""
    runs = [a_job(f"7_{n}", 2, on=f"n{n}:v100:2", done=500.0) for n in (1, 2)]
    waits = [a_job(f"7_{n}", 2, submitted_s=1e9 - 600 * n) for n in (3, 4, 5)]
    snapshot = a_snapshot("2xv100,2xv100", *waits, *runs, now_s=1e9)
    reasons = [WaitReason.INSUFFICIENT, WaitReason.INSUFFICIENT, WaitReason.OUTBID]
    plan = a_plan({}, {job.job_id: why for job, why in zip(waits, reasons, strict=True)})
    path = tmp_path / "j.jsonl"
    written = Journal(path)
    written.write(RoundRecord(Round(3, 1e9, 360.0), "round end", "hadar", snapshot, plan))
    written.close()
    done = CliRunner().invoke(
        commands, ["top", "--once", "--journal", str(path)], env={"COLUMNS": "190"}
    )
    first, second = [line.split() for line in done.output.splitlines()[-2:]]
    assert first[:6] == ["7_[1-2]", "running", "2", "×", "2", "50%"]
    assert first[-2:] == ["4", "v100"]
    assert second[:8] == ["7_[3-5]", "queued", "3", "×", "2", "0%", "50", "min"]
    assert " ".join(second[8:]) == f"{WaitReason.INSUFFICIENT} (2); {WaitReason.OUTBID} (1)"


def test_a_small_screen_tells_how_many_are_left_out(journal: Path) -> None:
    lines, _ = command.last_lines(journal)
    life: dict[str, object] = {"enforces": [], "alive": False, "disabled": True}
    life |= {"run_dir": "/run/hadar", "problems": {}}
    console = Console(width=100)
    with console.capture() as shown:
        console.print(command.picture(life, lines, "", room=1, now_s=1e9))
    assert "and 1 more" in shown.get()
    assert "eve" not in shown.get()
    assert "nothing is enforced" in shown.get()


def test_control_c_ends_it(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends `hadar top` with status 0; between updates it waits --every seconds."""
    looks: list[float] = []

    def interrupt(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(command.time, "sleep", interrupt)
    done = CliRunner().invoke(commands, ["top", "--every", "0.5", "--journal", str(journal)])
    assert done.exit_code == 0, done.output
    assert looks == [0.5, 0.5, 0.5]


def test_without_a_journal_it_says_so(tmp_path: Path) -> None:
    done = CliRunner().invoke(commands, ["top", "--once", "--journal", str(tmp_path / "none")])
    assert "none: no round has been written yet" in done.output


def test_copies_with_gangs_by_type_show_theirs(tmp_path: Path) -> None:
    """Those of each copy, and of a job that waits the sizes that a copy may have."""
    speeds = Throughputs.of({("v100", 1): GangThroughput(10.0), ("k80", 4): GangThroughput(8.0)})
    held = Allocation.of({0: a_gang("n1:v100:1"), 1: a_gang("n2:k80:4")})
    jobs = []
    for number, allocation in (("1", held), ("2", Allocation())):
        spec = replace(a_job(number).spec, gangs=(("k80", 4), ("v100", 1)), throughputs=speeds)
        phase = Phase.RUNNING if allocation else Phase.QUEUED
        jobs.append(Job(replace(spec, max_copies=2), phase, allocation=allocation))
    snapshot = a_snapshot("1xv100,4xk80", *jobs, now_s=1e9)
    plan = Plan.of({JobId("1"): held}, {JobId("2"): WaitReason.INSUFFICIENT})
    path = tmp_path / "j.jsonl"
    written = Journal(path)
    written.write(RoundRecord(Round(3, 1e9, 360.0), "round end", "hadare", snapshot, plan))
    written.close()
    assert snapshot_of(next(iter(read_journal(path)))).jobs == snapshot.jobs
    done = CliRunner().invoke(
        commands, ["top", "--once", "--journal", str(path)], env={"COLUMNS": "190"}
    )
    first, second = done.output.splitlines()[-2:]
    assert first.split()[:3] == ["1", "running", "5"]
    assert "copy 0 n1:v100:1" in first
    assert "copy 1 n2:k80:4" in first
    assert second.split()[:5] == ["2", "queued", "1", "or", "4"]
    shown = CliRunner().invoke(commands, ["explain", "2", "--journal", str(path)]).output
    assert "job 2: queued, 1 v100 or 4 k80 for a copy" in shown
    assert [
        line.split()[:3] for line in shown.splitlines() if line.startswith(("v100", "k80"))
    ] == [
        ["v100", "1", "10"],
        ["k80", "4", "8"],
    ]
