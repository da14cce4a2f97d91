"""How hadard deals with one Slurm."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hadar_slurm.slurm.control.modes import Mode, Modes


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """Times are in seconds.

    `modes` says what may be done in which partition. `grace_s` is how long a job may take to save
    before it is requeued all the same, `pin_timeout_s` how long a released job may wait on its
    nodes before it is planned anew, `poll_s` the time between two looks at the queue while waiting.
    `wake_file`, where hooks of Slurm leave word of news, makes it look sooner. Copies of forked
    jobs are told in `assignments` how to share a slot of `slot_s`; None: they are told nothing.
    """

    spool: Path
    modes: Modes = field(default_factory=lambda: Modes(Mode.ENFORCE))
    restart_cost_s: float = 30.0
    grace_s: float = 60.0
    pin_timeout_s: float = 60.0
    poll_s: float = 5.0
    wake_file: Path | None = None
    assignments: Path | None = None
    slot_s: float = 360.0
