"""The age of the last round, whether hadard is alive, and whether its rounds succeed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from hadar_slurm.journal import Line
from hadar_slurm.state.heartbeat import Heartbeat
from hadar_slurm.status.words import moment, span

# A round is stale after this many of its lengths plus seconds; the alert rules agree.
LATE_ROUNDS, LATE_S = 3.0, 60.0


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a round is still current."""

    # None without a round and for a simulation's round, whose time is virtual.
    age_s: float | None = None
    # None if the heartbeat was not read.
    hadard_alive: bool | None = None
    is_stale: bool = False


def standing_of(line: Line | None, now_s: float, *, hadard_alive: bool | None = None) -> Standing:
    """Return the standing of a round at `now_s`; only hadard's rounds name a mode."""
    if line is None or not line.get("mode"):
        return Standing(None, hadard_alive)
    age_s = max(0.0, now_s - float(line["time_s"]))
    return Standing(age_s, hadard_alive, is_late(age_s, float(line["length_s"])))


def is_late(age_s: float, length_s: float) -> bool:
    """Return whether the next round is overdue."""
    return age_s > LATE_ROUNDS * length_s + LATE_S


def trouble_of(beat: Heartbeat | None, now_s: float) -> str:
    """Return since when and why no round of a running hadard has succeeded; "" if one has."""
    if beat is None or not beat.is_signed(now_s) or beat.is_fresh(now_s):
        return ""
    rounds, last = beat.rounds, ""
    if rounds.succeeded_s is not None:
        ago = span(max(0.0, now_s - rounds.succeeded_s))
        last = f"; the last one that succeeded ended {ago} ago, at {moment(rounds.succeeded_s)}"
    if not rounds.are_failing or rounds.since_s is None:
        return f"hadard runs, but its round does not end{last}"
    since = f"since {moment(rounds.since_s)}, {span(max(0.0, now_s - rounds.since_s))} ago"
    return f"the last {rounds.failed} rounds of hadard failed, {since}: {rounds.fault}{last}"
