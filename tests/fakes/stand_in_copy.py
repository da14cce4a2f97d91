"""A copy of a forked job for machines without PyTorch: it counts steps instead of training.

    python stand_in_copy.py TOTAL_STEPS STEPS_PER_S

It does not replace the runtime's own copies (tests/integration/test_forked.py runs both): each
copy counts its steps in a file, so no steps are ever lost.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from hadar_slurm import handoff


def main() -> None:
    """Count steps until the copies together have done all."""
    total, speed = int(sys.argv[1]), float(sys.argv[2])
    parent, number = os.environ["SLURM_ARRAY_JOB_ID"], os.environ["SLURM_ARRAY_TASK_ID"]
    spool, job = Path(os.environ["HADAR_SPOOL"]), os.environ["SLURM_JOB_ID"]
    restart = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    shared = Path(os.environ["SLURM_SUBMIT_DIR"]) / f"stand-in-{parent}"
    shared.mkdir(exist_ok=True)
    mine = shared / number
    is_asked = False
    # Simulates early stopping: this copy ends with status 0 once it has counted that many steps.
    stops, _, after = os.environ.get("STAND_IN_STOPS", "").partition(":")

    def ask(_number: int, _frame: FrameType | None) -> None:
        nonlocal is_asked
        is_asked = True

    before = signal.signal(signal.SIGUSR1, ask)

    def counted() -> int:
        return sum(int(path.read_text() or 0) for path in shared.glob("[0-9]"))

    def report(state: str) -> None:
        own = int(mine.read_text() or 0) if mine.exists() else 0
        measured = speed if state == "running" else 0.0
        # `own` was never averaged with the others' steps: each copy counts its own.
        told = handoff.ProgressReport(restart, state, own, measured, time.time(), own_steps=own)
        handoff.write_report(spool, job, told)

    while counted() < total:
        if stops == number and mine.exists() and int(mine.read_text()) >= int(after):
            signal.signal(signal.SIGUSR1, before)
            return
        report("saved" if is_asked else "running")
        time.sleep(1.0 / speed)
        if not is_asked:
            draft = shared / f".{number}"
            draft.write_text(str(int(mine.read_text()) + 1 if mine.exists() else 1))
            draft.replace(mine)
    # As a copy does when it leaves: the batch script ignores the signal, Python's end would not.
    signal.signal(signal.SIGUSR1, before)
    report("done")


if __name__ == "__main__":
    main()
