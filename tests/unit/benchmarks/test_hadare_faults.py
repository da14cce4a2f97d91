"""The fault runs of HadarE: drawn by seed, run with real processes, checked by their files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from hadar_slurm.runtime.averaging import state  # noqa: E402
from hadar_slurm.runtime.files.ranges import Ranges  # noqa: E402
from hadar_slurm.runtime.files.records import SlotEnd  # noqa: E402
from hadar_slurm.runtime.files.slots import Slots  # noqa: E402

HADARE = Path(__file__).parents[3] / "benchmarks" / "hadare"


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script as a module."""
    monkeypatch.syspath_prepend(str(HADARE))
    import faults

    return faults


def test_the_same_seed_draws_the_same_faults(faults: ModuleType) -> None:
    """Each run number gives other faults, of the requested kinds only."""
    kinds = [faults.Kind.KILL, faults.Kind.STALL]
    cases = [faults.draw(3, number, kinds, faults.SCALE) for number in range(20)]
    assert cases == [faults.draw(3, number, kinds, faults.SCALE) for number in range(20)]
    assert len({case.faults[0].at_s for case in cases}) > 15
    assert {fault.kind for case in cases for fault in case.faults} == set(kinds)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["averaged", "synchronous"])
def test_a_copy_that_is_killed_costs_the_job_nothing_else(tmp_path: Path, mode: str) -> None:
    """The script runs a job of processes, kills some, and finds all invariants kept."""
    report = tmp_path / "report.jsonl"
    words = [sys.executable, HADARE / "faults.py", "--runs=1", "--gone-after=8", "--json", report]
    done = subprocess.run(
        [*words, "--mode", mode, "--only=copy killed", "--only=copy killed at the end of a slot"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every invariant held" in done.stdout.splitlines()[-1]
    (record,) = map(json.loads, report.read_text().splitlines())
    assert record["mode"] == mode
    assert any(fault["hit"] for fault in record["faults"])


def test_what_did_not_hold_is_found(faults: ModuleType, tmp_path: Path) -> None:
    """Missing, repeated and untrained steps and truncated files are found."""
    notes, directory = tmp_path / "notes", tmp_path / "job"
    for path in (notes, directory / "slots"):
        path.mkdir(parents=True)
    (directory / "slots" / "slot-00000002.safetensors").write_bytes(b"half")
    (notes / "parts-0").write_text('[1, "a", [[0, 4]]]\n[2, "b", [[4, 6]]]\n')
    (notes / "parts-1").write_text('[2, "b", [[5, 9]]]\n')
    (notes / "steps-0").write_text("".join(f"{step}\n" for step in [*range(8), 1, 2, 3]))
    job = faults.fault_copy.Job(directory, notes, 10, (0.1, 0.1))
    running = faults.Running(faults.Case(0, (1.0, 1.0), 10, ()), job)
    dealt = {0: Ranges.of([(0, 4)])}
    running.ends = {
        0: SlotEnd(slot=0, total_steps=10, dealt=dealt, id="a"),
        1: SlotEnd(slot=1, total_steps=10, done=Ranges.of([(0, 4)]), id="b"),
        2: SlotEnd(slot=2, total_steps=10, done=Ranges.of([(0, 9)]), id="c"),
    }
    broken = " / ".join(running.outcome().broken)
    assert "9 of 10 steps are consolidated" in broken
    assert "1 steps are said to be done and were trained by no copy" in broken
    assert "slot 2 has 5 new steps, not those that were contributed" in broken
    assert "slot-00000002.safetensors does not load" in broken
    assert "3 steps repeated, 0 may be" in broken


def made(faults: ModuleType, tmp_path: Path) -> object:
    """Return a run of two steps that copies 0 and 1 trained together, each a half of the batch."""
    notes, directory = tmp_path / "notes", tmp_path / "job"
    for path in (notes, directory / "slots"):
        path.mkdir(parents=True)
    from fault_record import Fault

    job = faults.fault_copy.Job(directory, notes, 2, (0.1, 0.1), mode="synchronous")
    fault = Fault(faults.Kind.CUT, 1.0, 0, 1.0, 0.0, victims=(0,))
    run = faults.Running(faults.Case(0, (1.0, 1.0), 2, (fault,)), job)
    model, optimiser = faults.fault_copy.make(2)
    first = SlotEnd(slot=0, total_steps=2, together=True)
    Slots(directory).end(first, *state.tensors_of(model, optimiser))
    with torch.no_grad():
        model.seen += 1
        model.net[1].num_batches_tracked += 2
    last = SlotEnd(slot=1, total_steps=2, done=Ranges.of([(0, 2)]))
    Slots(directory).end(last, *state.tensors_of(model, optimiser))
    run.look()
    for copy in range(2):
        shares = [
            [run.ends[0].id, 0, step, step, 16 * step + 8 * copy, 16 * step + 8 * copy + 8]
            for step in range(2)
        ]
        note(notes / f"shares-{copy}", *shares)
        note(notes / f"made-{copy}", *([7, run.ends[0].id, 0, step + 1, 5] for step in range(2)))
        note(notes / f"final-{copy}", 5)
    return run


def note(path: Path, *values: object) -> None:
    """Add lines to the notes of a copy."""
    with path.open("a") as file:
        file.write("".join(json.dumps(each) + "\n" for each in values))


def test_a_synchronous_run_that_went_well_holds(faults: ModuleType, tmp_path: Path) -> None:
    """A line that was cut off does not count; four steps may be repeated for a fault."""
    run = made(faults, tmp_path)
    with (run.job.notes / "made-0").open("a") as file:
        file.write('[7, "half')
    note(run.job.notes / "shares-0", [run.ends[0].id, 0, 1, 1, 16, 24])
    outcome = run.outcome()
    assert outcome.broken == []
    assert (outcome.repeated, outcome.allowed) == (1, 4)


@pytest.mark.parametrize(
    ("name", "line", "what"),
    [
        ("shares-0", ["END", 0, 1, 1, 16, 25], "steps [1] of group 0 have samples"),
        ("shares-1", ["END", 0, 1, 1, 24, 31], "steps [1] of group 0 have samples"),
        ("shares-1", ["END", 0, 1, 0, 8, 16], "steps [0, 1] of group 0 have samples"),
        ("made-1", [8, "END", 0, 2, 6], "copies differ after 1 steps"),
        ("final-1", 6, "copies have ended with 2 different states"),
    ],
)
def test_what_did_not_hold_of_a_synchronous_run_is_found(
    faults: ModuleType, tmp_path: Path, name: str, line: object, what: str
) -> None:
    """Samples twice or missing, and copies with different parameters."""
    run = made(faults, tmp_path)
    known = {"END": run.ends[0].id}
    value = [known.get(each, each) for each in line] if isinstance(line, list) else line
    note(run.job.notes / name, value)
    assert what in " / ".join(run.outcome().broken)


def test_a_sample_that_has_entered_twice_is_found(faults: ModuleType, tmp_path: Path) -> None:
    """Also where all notes are in order: the parameters have the record."""
    run = made(faults, tmp_path)
    model, optimiser = faults.fault_copy.make(2)
    with torch.no_grad():
        model.seen += 1
        model.net[1].num_batches_tracked += 2
        model.seen[19] += 1
    path = run.job.directory / "slots" / "slot-00000001.safetensors"
    path.unlink()
    last = SlotEnd(slot=1, total_steps=2, done=Ranges.of([(0, 2)]))
    Slots(run.job.directory).end(last, *state.tensors_of(model, optimiser))
    broken = run.outcome().broken
    assert broken == [
        "1 samples have wrong weights: number 3 of step 1 has 2.0000, not 1.0000",
    ]


def test_batch_statistics_of_a_dropped_step_are_found(faults: ModuleType, tmp_path: Path) -> None:
    """Copies may agree on them and be wrong."""
    run = made(faults, tmp_path)
    model, optimiser = faults.fault_copy.make(2)
    with torch.no_grad():
        model.seen += 1
        model.net[1].num_batches_tracked += 3
    (run.job.directory / "slots" / "slot-00000001.safetensors").unlink()
    last = SlotEnd(slot=1, total_steps=2, done=Ranges.of([(0, 2)]))
    Slots(run.job.directory).end(last, *state.tensors_of(model, optimiser))
    assert run.outcome().broken == ["batch statistics are of 3 batches, not 2"]


def test_steps_are_lost_only_with_all_copies(faults: ModuleType, tmp_path: Path) -> None:
    """Without a copy that has them, all steps since the end of the slot may be trained again."""
    run = made(faults, tmp_path)
    for step in range(9):
        note(run.job.notes / "shares-0", [run.ends[0].id, 1, step, step % 2, 0, 8])
    assert run.outcome().broken[-1] == "9 steps repeated, 4 may be"
    run.case.faults[0].lost = run.ends[0].id
    assert run.outcome().allowed == 4 + 11
