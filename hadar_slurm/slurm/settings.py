"""How hadard deals with one Slurm."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hadar_slurm.core.gpu_types import OwnTypes
from hadar_slurm.engine.modes import Mode, Modes


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """Times are in seconds."""

    # The directory of progress reports.
    spool: Path
    # What hadard may do in which partition.
    modes: Modes = field(default_factory=lambda: Modes(Mode.HOLD))
    # Whose words may make a job movable (core/moves.py), by `default` and `partition=NAME`.
    moves: Mapping[str, str] = field(default_factory=dict)
    restart_cost_s: float = 30.0
    # A job that has not saved a checkpoint this long after the signal is requeued.
    grace_s: float = 60.0
    # A released job that has not started on its nodes after this time is planned again.
    pin_timeout_s: float = 60.0
    # Between two reads of the queue while waiting.
    poll_s: float = 5.0
    # Slurm's hooks append to it, so that the queue is read at once.
    wake_file: Path | None = None
    # Where failures on GPU types are written for hadar-sbatch; None: nowhere.
    failures: Path | None = None
    # The directory for the quotas of copies of forked jobs; None: they get none.
    assignments: Path | None = None
    # The seconds that those quotas are for; copies average more often.
    slot_s: float = 360.0
    # The site's own values of GPU types.
    own_types: OwnTypes = field(default_factory=dict)
    # The operator's lists of enrolled names, by kind; empty: no job is enrolled.
    enrol: Mapping[str, Collection[str]] = field(default_factory=dict)
    # The most jobs of an account that are enrolled at once, where the operator limits them.
    enrolled_of_account: Mapping[str, int] = field(default_factory=dict)
    # Whether jobs without steps have the sizes that ended jobs say, within their time limits.
    learns_sizes: bool = True
