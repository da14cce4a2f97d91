"""How old the last round is, and whether there is a hadard to make the next one. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hadar_slurm.journal import Line

# A round older than this many of its lengths and seconds is stale; the alert rules say the same.
LATE_ROUNDS, LATE_S = 3.0, 60.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What the answers from one round are worth now.

    `age_s` is None for a simulation's round, whose time is not the clock's, and without a round;
    `hadard_alive` is None where no heartbeat was looked for.
    """

    age_s: float | None = None
    hadard_alive: bool | None = None
    is_stale: bool = False


def standing_of(line: Line | None, now_s: float, *, hadard_alive: bool | None = None) -> Standing:
    """Return how a round stands at `now_s`; only hadard's rounds name a mode."""
    if line is None or not line.get("mode"):
        return Standing(None, hadard_alive)
    age_s = max(0.0, now_s - float(line["time_s"]))
    return Standing(age_s, hadard_alive, is_late(age_s, float(line["length_s"])))


def is_late(age_s: float, length_s: float) -> bool:
    """Return whether a round of this length should have been followed by another."""
    return age_s > LATE_ROUNDS * length_s + LATE_S
