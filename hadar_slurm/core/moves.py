"""By which words of its owner a job may be moved, who allows it, and what it may lose. Pure.

A job that runs is moved to other GPUs by one of four ways: hadard's own handshake by USR1
(`--hadar-checkpoint=yes`), a requeue without a signal that loses a bounded amount of work
(`restart:TIME`), the signal that its owner has named to sbatch for the end of its time (`--signal`
with `--requeue`), or a requeue as Slurm itself may preempt it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from hadar_slurm.core.time_limit import parse_duration

_UNITS_S = ((3_600.0, "h"), (60.0, "min"), (1.0, "s"))
# sbatch(1), --signal: R is for reservations, B for the batch shell alone. 60 s is its default.
_OPTION = re.compile(r"(?:([RB]{1,2}):)?([A-Z0-9]+)(?:@([0-9]{1,5}))?", re.IGNORECASE)
_DEFAULT_S = 60
# A round waits while jobs save.
_MOST_S = 300
_DAY_S = 86_400.0
_LOST_A_DAY_S = 3_600.0
# What a restart takes, at least, beside the work that is lost.
_RESTARTS_IN_S = 60.0
# Those with which programs are asked to save, or to end; short names by all names and numbers.
_NUMBERS = {n: int(signal.Signals[f"SIG{n}"]) for n in ("USR1", "USR2", "TERM", "INT", "HUP")}
_NAMES = {key: n for n, number in _NUMBERS.items() for key in (n, f"SIG{n}", str(number))}


class OwnSignal(NamedTuple):
    """The signal of sbatch's `--signal`: its name, such as USR1, for whom, and how early."""

    name: str
    # The batch shell alone; else all steps without it.
    to_batch: bool
    # How many seconds before its time limit the job would get it.
    before_s: int

    def __str__(self) -> str:
        return f"{'B:' if self.to_batch else ''}{self.name}@{self.before_s}"

    @property
    def deaths(self) -> tuple[int, int]:
        """Return the wait(2) statuses of a script that it killed, or whose child it killed."""
        number = _NUMBERS[self.name]
        return number, (128 + number) << 8


USR1 = OwnSignal("USR1", True, 0)


@lru_cache(maxsize=1024)
def parse_signal(text: str) -> OwnSignal | None:
    """Return the signal in a text such as `B:USR1@120`; None for none by which a job is moved."""
    if (found := _OPTION.fullmatch(text.strip())) is None:
        return None
    flags, name, before = found.groups()
    name, before_s = signal_name(name), int(before or _DEFAULT_S)
    if not name or not 0 < before_s <= _MOST_S:
        return None
    return OwnSignal(name, "B" in (flags or "").upper(), before_s)


def signal_name(text: str) -> str:
    """Return USR1 for SIGUSR1, usr1 or 10; "" for a signal by which no job is moved."""
    return _NAMES.get(text.upper(), "")


class MovedBy(IntEnum):
    """Whose words make a job movable; each level has those below."""

    NONE = 0
    # Those of --hadar-checkpoint.
    STATED = 1
    # Also --signal with --requeue.
    SIGNALS = 2
    # Also those of the site: its partition or QOS is one that Slurm preempts by requeue.
    PREEMPTIBLE = 3


class MoveLevel(NamedTuple):
    """A value of `moves` in hadar.yaml."""

    by: MovedBy
    # The work in seconds that a job which only its site's rules make movable may lose in a day.
    most_s: float = 0.0


_LEVELS = "none, stated, signals, or preemptible:TIME with up to a day, such as preemptible:1h"


@lru_cache(maxsize=64)
def parse_level(text: str) -> MoveLevel:
    """Return a level such as `signals` or `preemptible:30m`; raises ValueError for any other."""
    name, colon, time = text.partition(":")
    by = MovedBy.__members__.get(name.upper()) if name.islower() else None
    most_s = (parse_duration(time) or 0.0) if colon else _LOST_A_DAY_S
    if by is None or not 0 < most_s <= _DAY_S or (colon and by is not MovedBy.PREEMPTIBLE):
        raise ValueError(f"expected {_LEVELS}")
    return MoveLevel(by, most_s if by is MovedBy.PREEMPTIBLE else 0.0)


def level_of(levels: Mapping[str, str], partitions: str, qos: str, account: str) -> MoveLevel:
    """Return the level of a job in partitions `a,b`, by `moves` of hadar.yaml.

    The least of those given for its partitions, QOS and account; else that for `default`.
    """
    if not levels:  # for each job in each round
        return parse_level("stated")
    keys = (*(f"partition={name}" for name in partitions.split(",")), f"qos={qos}")
    given = [levels[key] for key in (*keys, f"account={account}") if key in levels]
    return min(map(parse_level, given or [levels.get("default", "stated")]))


def why_not_requeued(most_s: float, loses_s: float | None, ran_s: float) -> str:
    """Return why a run must not lose work now; empty: it may.

    `most_s`: what its owner allows; `loses_s`: what it would lose, None where it is not known, and
    it loses at most `most_s` by its owner's word; `ran_s`: how long the run has lasted. A run
    keeps at least as much as it loses: else a job that is moved again and again would never end.
    """
    if loses_s is None:
        why = f"it has run for less than {in_words(2 * most_s)}, twice what it may lose"
        return why if ran_s < 2 * most_s else ""
    if loses_s > most_s:
        lost, bound = in_words(loses_s), in_words(most_s)
        return f"it would lose {lost} since its last checkpoint, and may {bound}"
    return "" if 2 * loses_s <= ran_s else "it has kept less in this run than it would lose"


def why_not_preempted(loses_s: float, most_s: float, *, since_s: float) -> str:
    """Return why a run must not be requeued as Slurm may preempt it; empty: it may.

    It loses `loses_s` of work now, and may lose `most_s` in a day; `since_s`: how long ago it
    was last requeued (inf: never).
    """
    why = f"would lose {in_words(loses_s)}, and may {in_words(most_s)} in a day"
    if loses_s > most_s:
        return f"it {why}"
    is_soon = max(loses_s, _RESTARTS_IN_S) * _DAY_S > most_s * since_s
    return f"it was requeued {in_words(since_s)} ago, {why}" if is_soon else ""


def requeue_remark(most_s: float) -> str:
    """Return what the owner of a job that may be requeued without a signal should know."""
    lost = in_words(most_s)
    return f"it may be requeued without a signal, and then loses at most {lost} of work"


def why_not_signalled(own: OwnSignal, ran_s: float, ended_run: int) -> str:
    """Return why a run must not get its own signal; empty: it may.

    `ended_run`: the run that did not leave in time after it, or died of it (0: none).
    """
    if ended_run:
        return f"not migrated: its run {ended_run} did not save on {own} and leave"
    if ran_s < 2 * own.before_s:
        return f"not migrated now: it has run for less than {in_words(2 * own.before_s)}"
    return ""


def in_words(seconds: float) -> str:
    """Return a time as people write it, such as `1.5 h`."""
    size_s, unit = next((u for u in _UNITS_S if seconds >= u[0]), _UNITS_S[-1])
    return f"{seconds / size_s:.3g} {unit}"
