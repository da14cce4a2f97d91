"""The fault runs of HadarE on a real Slurm: the faults drawn, and the violations found.

The runs themselves need root and take an hour: benchmarks/hadare/slurm_faults.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="needs PyTorch")

from hadar_slurm.runtime.averaging import state  # noqa: E402
from hadar_slurm.runtime.files.ranges import Ranges  # noqa: E402
from hadar_slurm.runtime.files.records import SlotEnd  # noqa: E402
from hadar_slurm.runtime.files.slots import Slots  # noqa: E402

HADARE = Path(__file__).parents[3] / "benchmarks" / "hadare"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script as a module."""
    monkeypatch.syspath_prepend(str(HADARE))
    import slurm_faults

    return slurm_faults


def ended(script: ModuleType, tmp_path: Path, *victims: int) -> object:
    """Return a successful run: two copies, a slot, and one fault with these victims."""
    notes, directory = tmp_path / "notes", tmp_path / "job"
    for path in (notes, directory / "slots"):
        path.mkdir(parents=True)
    job = script.fault_copy.Job(directory, notes, 10, ())
    from fault_record import Fault
    from slurm_job import Kind

    fault = Fault(Kind.HADARD, 1.0, 0, 1.0, 0.0, victims=victims)
    run = script.SlurmRun(script.Case(0, (1.0, 1.0), 10, (fault,)), job)
    slots = Slots(directory)
    dealt = {0: Ranges.of([(0, 6)]), 1: Ranges.of([(6, 10)])}
    everything = Ranges.of([(0, 10)])
    model, optimiser = script.fault_copy.make(10)
    first = SlotEnd(slot=0, total_steps=10, dealt=dealt)
    slots.end(first, *state.tensors_of(model, optimiser))
    with torch.no_grad():
        model.seen[: 6 * 16], model.seen[6 * 16 :] = 0.6, 0.4
        model.net[1].num_batches_tracked += 6
    last = SlotEnd(slot=1, total_steps=10, done=everything)
    slots.end(last, *state.tensors_of(model, optimiser))
    run.look()
    for copy, steps in dealt.items():
        line = json.dumps([1, run.ends[0].id, steps.pairs])
        (notes / f"parts-{copy}").write_text(line + "\n")
        (notes / f"steps-{copy}").write_text("".join(f"{step}\n" for step in steps))
    run.tasks = {copy: SimpleNamespace(state="COMPLETED") for copy in (0, 1)}
    return run


def test_every_kind_of_fault_is_drawn(script: ModuleType) -> None:
    """All kinds are drawn, several at a time in many runs, the same for the same seed."""
    kinds = script.kinds_of("synchronous")
    cases = [script.draw(0, seed, kinds, script.SCALE) for seed in range(100)]
    assert cases == [script.draw(0, seed, kinds, script.SCALE) for seed in range(100)]
    assert {fault.kind for case in cases for fault in case.faults} == set(kinds)
    assert set(script.kinds_of("averaged")) < set(kinds)
    assert sum(len(case.faults) > 1 for case in cases) > 60


def test_a_run_that_went_well_holds(script: ModuleType, tmp_path: Path) -> None:
    """A killed copy may train its part twice, and its task may fail."""
    run = ended(script, tmp_path, 1)
    with (run.job.notes / "steps-1").open("a") as file:
        file.write("6\n7\n8\n9\n")
    run.tasks[1].state = "FAILED"
    run.failed = {1}
    assert run.outcome().broken == []
    assert (run.outcome().repeated, run.outcome().allowed) == (4, 4)


def test_what_hadard_may_not_cost_is_found(script: ModuleType, tmp_path: Path) -> None:
    """Without a killed copy, repeated steps and failed, pending or missing tasks are violations."""
    run = ended(script, tmp_path)
    with (run.job.notes / "steps-1").open("a") as file:
        file.write("9\n")
    run.tasks[0].state = "FAILED"
    assert run.outcome().broken == ["1 steps repeated, 0 may be", "copy 0 ended as FAILED"]
    run.tasks[0].state = "PENDING"
    del run.tasks[1]
    assert run.outcome().broken[1:] == ["copy 0 ended as PENDING", "1 tasks, 2 copies"]


def test_no_other_slot_counts(script: ModuleType, tmp_path: Path) -> None:
    """Repeated steps are allowed only in the slot of the fault."""
    run = ended(script, tmp_path, 1)
    run.case.faults[0].ends = (1, 2)
    assert run.outcome().allowed == 0


def test_a_checkpoint_cut_off_and_a_step_lost_are_found(script: ModuleType, tmp_path: Path) -> None:
    """A truncated checkpoint and a missing contribution are found."""
    run = ended(script, tmp_path, 0, 1)
    (run.job.notes / "parts-1").write_text(json.dumps([1, run.ends[0].id, [[6, 9]]]) + "\n")
    path = run.job.directory / "slots" / "slot-00000001.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    broken = " / ".join(run.outcome().broken)
    assert "slot 1 has 10 new steps, not those that were contributed" in broken
    assert "slot-00000001.safetensors does not load" in broken


def test_runs_that_are_there_are_not_run_again(script: ModuleType, tmp_path: Path) -> None:
    """Recorded runs are read by seed, in any order."""
    path = tmp_path / "runs.jsonl"
    path.write_text('{"run": 5}\n{"run": 3}\n')
    assert [each["run"] for each in script.records(path)] == [3, 5]
    assert list(script.seeds_of("4-6")) == [4, 5, 6]
    assert list(script.seeds_of("4")) == [4]
