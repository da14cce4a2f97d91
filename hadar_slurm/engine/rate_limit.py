"""What hadard may change where slurmctld limits the RPCs of its account (`rl_enable`). Pure.

A user has a bucket of RPCs, which others of the account may have emptied: only what is added to it
each second counts. A change is one RPC, and three where it sets a number of nodes or names nodes
(scontrol 24.11.5): such jobs count twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

T = TypeVar("T")

# `hadar release` and the reaper promise to be done within this time.
RELEASED_WITHIN_S = 45.0
# Changes in a round, those of the next starts first: 10,000 jobs at once would take 20 s.
MOST_CHANGES = 300
# Jobs that are changed after one reading, and where that is slow, the time that it may take: an
# owner's edit between the reading and the change is lost.
AT_ONCE, _AT_ONCE_S = 25, 5.0
# The RPCs that read some jobs again, and those that read all of Slurm, with what surrounds them.
_READING, _READINGS = 4, 14
# Jobs that a reading asks for one by one, some 3 ms and two RPCs each.
MOST_ALONE = 300
# The part of the RPCs that is counted on.
_PART = 0.8
# The time of one command's changes; three RPCs each would take three times as long.
_COMMAND_S = 7.0


def rpcs_per_s(config: Mapping[str, str], uid: int) -> float:
    """Return how many RPCs slurmctld answers to a user in the long run; inf: no limit.

    `config` is what `scontrol show config` says. root and SlurmUser are exempt.
    """
    parameters = config.get("SlurmctldParameters", "").lower()
    words = [word.strip() for word in parameters.split(",")]
    exempt = {"0", *re.findall(r"\((\d+)\)", config.get("SlurmUser", ""))}
    if "rl_enable" not in parameters or str(uid) in exempt:
        return math.inf
    given = dict(word.split("=", 1) for word in words if "=" in word)
    rate, period = given.get("rl_refill_rate", "2"), given.get("rl_refill_period", "1")
    # What is refilled at once is never more than the bucket holds.
    size = given.get("rl_bucket_size", "30")
    is_known = rate.isdecimal() and period.strip("0").isdecimal() and size.isdecimal()
    return min(float(rate), float(size)) / float(period) if is_known else 2.0


def in_parts(jobs: Sequence[T], most: int) -> list[Sequence[T]]:
    """Return successive parts of at most that length."""
    return [jobs[at : at + most] for at in range(0, len(jobs), most)]


def most_alone(rpcs_per_s: float) -> int:
    """Return how many jobs are asked for one by one in a reading."""
    return at_once(rpcs_per_s, rpcs=2, most=MOST_ALONE)


def at_once(rpcs_per_s: float, rpcs: int = 1, most: int = AT_ONCE) -> int:
    """Return how many jobs are changed after one reading, with that many RPCs each."""
    return max(1, int(min(most, _AT_ONCE_S * rpcs_per_s / rpcs)))


def in_command(rpcs_per_s: float) -> int:
    """Return how many changes one command makes, so that it ends in time."""
    return max(1, int(min(1e6, _COMMAND_S * rpcs_per_s)))


def changes_in(seconds: float, rpcs_per_s: float) -> float:
    """Return how many jobs can be changed in that time, readings included; inf: no limit."""
    if math.isinf(rpcs_per_s):
        return math.inf
    left = _PART * seconds * rpcs_per_s - _READINGS
    return max(1, int(left / (1 + _READING / at_once(rpcs_per_s))))


def as_many(jobs: Sequence[T], seconds: float, rpcs_per_s: float) -> Sequence[T]:
    """Return the first jobs, as many as can be changed in that time."""
    most = changes_in(seconds, rpcs_per_s)
    return jobs if math.isinf(most) else jobs[: int(most)]


def is_slow(rpcs_per_s: float) -> bool:
    """Return whether a round's changes could not be undone in time."""
    return changes_in(RELEASED_WITHIN_S, rpcs_per_s) < MOST_CHANGES


def consequences(rpcs_per_s: float) -> str:
    """Return what follows for an account that is slow, and the remedy; else the empty string."""
    if not is_slow(rpcs_per_s):
        return ""
    return (
        f"slurmctld answers {rpcs_per_s:g} RPCs a second to this account (rl_enable), so at most"
        f" {changes_in(RELEASED_WITHIN_S, rpcs_per_s)} waiting jobs are steered at once, and mode"
        " hold works as steer; run hadard as SlurmUser, or raise rl_refill_rate"
    )
