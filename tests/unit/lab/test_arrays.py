"""Runs as job arrays: what the command does by what Slurm shows, with a Slurm of the test's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from studies import a_cell

from hadar_slurm.errors import ConfigError, SlurmRefused, SlurmUnavailable, UsageError
from hadar_slurm.lab.on_slurm import way_to_run
from hadar_slurm.lab.study.compare import Cell, Record, run_cell
from hadar_slurm.lab.study.running.arrays import Arrays, RunRequest, run_task
from hadar_slurm.lab.study.running.cells import run_cells
from hadar_slurm.lab.study.running.processes import Processes
from hadar_slurm.lab.study.running.record_files import cell_path, write_record

CELLS = [a_cell("srsf"), a_cell("las")]


class Slurm:
    """Answers squeue, scontrol and scancel from a table of states; `then` follows each squeue."""

    def __init__(self, states: dict[str, str], then: Callable[[], None] = lambda: None) -> None:
        self.states, self.then, self.said = states, then, list[Sequence[str]]()

    def run(self, argv: Sequence[str], *, stdin: str = "") -> str:
        self.said.append(argv)
        if argv[0] == "squeue":
            text = "".join(f"{task} {state}\n" for task, state in self.states.items())
            self.then()
            return text
        assert argv[0] == "scancel"
        return ""


class Heard:
    """A watcher that remembers the counts of jobs."""

    def __init__(self) -> None:
        self.counts = list[tuple[int, int]]()

    def started(self, index: int) -> None:
        raise AssertionError("no cell runs on this machine")

    progressed = started  # type: ignore[assignment]

    def in_slurm(self, pending: int, running: int) -> None:
        self.counts.append((pending, running))

    def finished(self, index: int, record: Record, *, was_known: bool) -> None:
        pass


def a_study(folder: Path, cells: Sequence[Cell]) -> None:
    """Write that each cell is a task of array 7."""
    (folder / "slurm").mkdir()
    tasks = {cell.key: f"7_{n}" for n, cell in enumerate(cells)}
    (folder / "slurm" / "tasks.json").write_text(json.dumps(tasks), encoding="utf-8")


def arrays(slurm: object, *, late_s: float = 0.0) -> Arrays:
    return Arrays(RunRequest(), slurm, poll_s=0.0, late_s=late_s)  # type: ignore[arg-type]


def test_tasks_of_a_killed_command_are_awaited(tmp_path: Path) -> None:
    """Cells that are in Slurm are not submitted again, and each ends with its file."""
    a_study(tmp_path, CELLS)
    states = {"7_0": "RUNNING", "7_1": "PENDING"}
    rounds = 0

    def then() -> None:
        nonlocal rounds
        rounds += 1
        if rounds > 1:
            for number, cell in enumerate(CELLS[: rounds - 1]):
                write_record(cell_path(tmp_path, cell), run_cell(cell))
                states.pop(f"7_{number}", None)

    heard = Heard()
    records = run_cells(CELLS, tmp_path, way=arrays(Slurm(states, then)), watcher=heard)
    assert [record["status"] for record in records] == ["done", "done"]
    assert heard.counts[-1] == (0, 0)
    assert (1, 0) in heard.counts


@pytest.mark.parametrize(
    ("state", "remedy"),
    [("TIMEOUT", "--slurm-time"), ("OUT_OF_MEMORY", "--slurm-memory"), ("CANCELLED", "repeat")],
)
def test_a_task_without_a_result_says_what_helps(tmp_path: Path, state: str, remedy: str) -> None:
    a_study(tmp_path, CELLS[:1])
    (tmp_path / "slurm" / "7_0_0_log.out").write_text("began\nKilled\n", encoding="utf-8")
    states = {"7_0": "RUNNING"}
    slurm = Slurm(states, lambda: states.update({"7_0": state}))
    (record,) = run_cells(CELLS[:1], tmp_path, way=arrays(slurm, late_s=1e9), watcher=Heard())
    assert record["status"] == "failed"
    assert all(word in record["error"] for word in (state, remedy, "7_0", "Killed"))


def test_a_task_that_slurm_has_forgotten_has_failed_at_last(tmp_path: Path) -> None:
    """Its file may be seen late, so only after a while."""
    a_study(tmp_path, CELLS[:1])
    states = {"7_0": "RUNNING"}
    slurm = Slurm(states, states.clear)
    (record,) = run_cells(CELLS[:1], tmp_path, way=arrays(slurm), watcher=Heard())
    assert "no longer known" in record["error"]


def test_an_interrupt_cancels_all_tasks(tmp_path: Path) -> None:
    a_study(tmp_path, CELLS)
    slurm = Slurm({"7_0": "RUNNING", "7_1": "PENDING"})

    class Stops(Heard):
        def in_slurm(self, pending: int, running: int) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_cells(CELLS, tmp_path, way=arrays(slurm), watcher=Stops())
    assert slurm.said[-1] == ["scancel", "7_0", "7_1"]


def test_a_silent_slurm_ends_no_run(tmp_path: Path) -> None:
    """While Slurm gives no answer, results are awaited."""
    a_study(tmp_path, CELLS[:1])
    path = cell_path(tmp_path, CELLS[0])

    class Silent(Slurm):
        def run(self, argv: Sequence[str], *, stdin: str = "") -> str:
            self.said.append(argv)
            if len(self.said) == 3:
                write_record(path, run_cell(CELLS[0]))
            raise SlurmUnavailable("no answer")

    (record,) = run_cells(CELLS[:1], tmp_path, way=arrays(Silent({})), watcher=Heard())
    assert record["status"] == "done"


def test_a_slurm_without_arrays_is_named(tmp_path: Path) -> None:
    class Without(Slurm):
        def run(self, argv: Sequence[str], *, stdin: str = "") -> str:
            return "MaxArraySize            = 0\n"

    with pytest.raises(ConfigError, match="MaxArraySize"):
        run_cells(CELLS, tmp_path, way=arrays(Without({})), watcher=Heard())


def test_a_refused_question_is_an_error(tmp_path: Path) -> None:
    """An answer that is not about forgotten jobs is not taken for one."""
    a_study(tmp_path, CELLS[:1])

    class Refusing(Slurm):
        def run(self, argv: Sequence[str], *, stdin: str = "") -> str:
            raise SlurmRefused("squeue: error: Access denied")

    with pytest.raises(SlurmRefused, match="denied"):
        run_cells(CELLS[:1], tmp_path, way=arrays(Refusing({})), watcher=Heard())


def test_a_task_of_other_code_makes_no_result(tmp_path: Path) -> None:
    """The file of a cell is named by its key; a task whose own key differs fails."""
    path = tmp_path / "cells" / "0123.json"
    with pytest.raises(Exception, match="have changed"):
        run_task(CELLS[0], path)
    record = json.loads(path.read_text(encoding="utf-8"))
    assert (record["status"], record["key"]) == ("failed", "0123")


def test_options_are_checked() -> None:
    words = {"partition": "", "time_limit": "4:00:00", "memory": "4G", "options": ""}
    assert way_to_run(3, on_slurm=False, **words) == Processes(3)
    way = way_to_run(3, on_slurm=True, **{**words, "options": "--qos=long, account=a"})
    assert isinstance(way, Arrays)
    assert way.request == RunRequest("", 14_400.0, "4G", 3, {"qos": "long", "account": "a"})
    for wrong, value in (
        ("time_limit", "soon"),
        ("memory", "much"),
        ("options", "qos"),
        ("options", "array=1-9"),
    ):
        with pytest.raises(UsageError, match=value):
            way_to_run(None, on_slurm=True, **{**words, wrong: value})
    with pytest.raises(UsageError, match="--on-slurm"):
        way_to_run(None, on_slurm=False, **{**words, "partition": "cpu"})
