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

from hadar_slurm.runtime.averaging.ranges import Ranges  # noqa: E402
from hadar_slurm.runtime.averaging.slots import SlotEnd  # noqa: E402

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
def test_a_copy_that_is_killed_costs_the_job_nothing_else(tmp_path: Path) -> None:
    """The script runs a job of processes, kills some, and finds all invariants kept."""
    report = tmp_path / "report.json"
    words = [sys.executable, HADARE / "faults.py", "--runs=1", "--gone-after=8", "--json", report]
    done = subprocess.run(
        [*words, "--only=copy killed", "--only=copy killed while it makes all one"],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "every invariant held" in done.stdout.splitlines()[-1]
    tree = json.loads(report.read_text())
    assert sum(tree["faults"].values()) > 0


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
    assert "1 steps are said to be done and were trained by nobody" in broken
    assert "slot 2 has 5 new steps, not those that were contributed" in broken
    assert "slot-00000002.safetensors does not load" in broken
    assert "3 steps repeated, 0 may be" in broken
