"""A training that has begun and cannot be found: it must not begin again unnoticed."""

from __future__ import annotations

import json
import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone

from hadar_slurm import handoff
from hadar_slurm.runtime.files.slots import Slots
from hadar_slurm.runtime.membership.surroundings import Surroundings

NAME = "begun.json"


class LostTrainingError(RuntimeError):
    """What was trained cannot be read; says why, which files, and the remedy."""


@dataclass(frozen=True)
class Begun:
    """The evidence that a training has begun, beside its slot ends.

    `begun.json` in the job's directory, written after the end of slot 0; broken slot ends, put
    aside; and, for a later run of a Slurm job, the progress report of an earlier run, as reports
    are written once slot 0 has ended. All trainings of a job share that, so it counts only where
    this one `is_first`.
    """

    slots: Slots
    where: Surroundings
    is_first: bool = True

    def note(self) -> None:
        """Leave `begun.json`, unless it is there; raises OSError."""
        path = self.slots.directory / NAME
        if path.exists():
            return
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        facts = {"version": 1, "begun": now, "host": socket.gethostname(), "job": self.where.job}
        draft = path.with_name(f".{NAME}.{facts['host']}.{os.getpid()}")
        try:
            draft.write_text(json.dumps(facts) + "\n", encoding="utf-8")
            draft.replace(path)
        finally:
            with suppress(OSError):
                draft.unlink()

    def evidence(self) -> str:
        """Return the evidence that this training has begun, or nothing."""
        directory = self.slots.directory
        if broken := self.slots.broken():
            return f"{', '.join(map(str, broken))}: broken, put aside"
        if (directory / NAME).exists():
            return f"{directory / NAME} is there, and no slot end is in {directory / 'slots'}"
        job, restart = self.where.job, self.where.restart
        if job is None or restart == 0 or not self.is_first:
            return ""
        with suppress(handoff.ReportError, OSError):
            report = handoff.read_own_report(self.where.spool, job)
            if report is not None and report.restart < restart:
                return (
                    f"job {job} has reported {report.steps_done} steps in its run "
                    f"{report.restart}, and nothing of them is in {directory}"
                )
        return ""

    def error(self, why: str) -> LostTrainingError:
        """Return the error that refuses to begin, with the evidence `why`."""
        directory = self.slots.directory.resolve()
        return LostTrainingError(
            f"{directory}: this training has begun before, and what was trained cannot be read on "
            f"{socket.gethostname()}: {why}. Bring the files back (is the file system mounted "
            f"here?), or remove {directory} to begin again at step 0"
        )


def check_parent(where: Surroundings) -> None:
    """Raise LostTrainingError where a later run of a job misses the parent of its directory."""
    parent = where.directory.absolute().parent
    if where.restart > 0 and not parent.is_dir():
        raise LostTrainingError(
            f"{parent} does not exist on {socket.gethostname()}, and job {where.job} is in its run "
            f"{where.restart}: what was trained before cannot be read. Mount the file system here, "
            f"or make {parent} to begin at step 0"
        )
