"""The users who lose under hadar beside plain Slurm, and why the one who loses most does.

A user loses whose jobs take more than 10 % and ten minutes longer on the mean, or of whose jobs
time limits end more.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from hadar_slurm.lab.study.compare import Record
from hadar_slurm.lab.study.summary import HOUR_S

# Least ratio and difference of mean completion times at which a user loses.
LONGER, LONGER_S = 1.10, 600.0


@dataclass(frozen=True, slots=True)
class UserChange:
    """The jobs of a user under hadar, and under plain Slurm (`before`)."""

    user: str
    jobs: int
    # GPUs of a job, on the mean.
    gpus: float
    mean_jct_before_s: float
    mean_jct_s: float
    # From submission to the first GPU, on the mean.
    mean_queueing_before_s: float
    mean_queueing_s: float
    # The type on which most of the jobs were for most of their GPU time.
    gpu_type_before: str
    gpu_type: str
    killed_before: int
    killed: int

    @property
    def ratio(self) -> float:
        """Return the mean completion time over that before."""
        return self.mean_jct_s / max(self.mean_jct_before_s, 1.0)

    @property
    def loses(self) -> bool:
        """Whether the user loses."""
        longer_s = self.mean_jct_s - self.mean_jct_before_s
        return (self.ratio > LONGER and longer_s > LONGER_S) or self.killed > self.killed_before

    @property
    def why(self) -> str:
        """Return what is worse for the user's jobs, the greater part first; "" if nothing is."""
        waits_s = self.mean_queueing_s - self.mean_queueing_before_s
        runs_s = self.mean_jct_s - self.mean_jct_before_s - waits_s
        other = self.gpu_type != self.gpu_type_before
        on = f", mostly on {self.gpu_type} instead of {self.gpu_type_before}" if other else ""
        parts = [
            (waits_s, f"{waits_s / HOUR_S:.2f} h more until the first GPU"),
            (runs_s, f"{runs_s / HOUR_S:.2f} h more from then on{on}"),
        ]
        said = [text for longer_s, text in sorted(parts, reverse=True) if longer_s >= LONGER_S / 10]
        if self.killed > self.killed_before:
            said.append(f"time limits end {self.killed} of the jobs, before {self.killed_before}")
        return "; ".join(said)

    @property
    def tree(self) -> dict[str, Any]:
        """Return the fields, times in seconds, with `why`."""
        return {**asdict(self), "why": self.why}


class Losers(NamedTuple):
    """The number of users, 0 where jobs have none, and those who lose, who loses most first."""

    users: int
    who: tuple[UserChange, ...]


def changes_of(ours: Record, theirs: Record) -> list[UserChange]:
    """Return what changes for each user from `theirs` to `ours`, two runs of the same jobs.

    In order of names; [] where jobs have no users.
    """
    by_user = defaultdict[str, list[int]](list)
    for number, user in enumerate(ours.get("users") or ()):
        if user and "queued_s" in ours and "queued_s" in theirs:
            by_user[user].append(number)
    return [
        _change(user, numbers, ours=ours, theirs=theirs)
        for user, numbers in sorted(by_user.items())
    ]


def losers_of(ours: Record, theirs: Record) -> Losers:
    """Return the users who lose from `theirs` to `ours`, two runs of the same jobs."""
    changes = changes_of(ours, theirs)
    who = sorted((each for each in changes if each.loses), key=lambda each: -each.ratio)
    return Losers(len(changes), tuple(who))


def _change(user: str, numbers: Sequence[int], *, ours: Record, theirs: Record) -> UserChange:
    return UserChange(
        user=user,
        jobs=len(numbers),
        gpus=_mean(ours, "gpus", numbers),
        mean_jct_before_s=_mean(theirs, "jcts_s", numbers),
        mean_jct_s=_mean(ours, "jcts_s", numbers),
        mean_queueing_before_s=_mean(theirs, "queued_s", numbers),
        mean_queueing_s=_mean(ours, "queued_s", numbers),
        gpu_type_before=_usual(theirs, numbers),
        gpu_type=_usual(ours, numbers),
        killed_before=len({*theirs["killed_jobs"]} & {*numbers}),
        killed=len({*ours["killed_jobs"]} & {*numbers}),
    )


def _mean(record: Record, name: str, numbers: Sequence[int]) -> float:
    return statistics.fmean(float(record[name][number]) for number in numbers)


def _usual(record: Record, numbers: Sequence[int]) -> str:
    return Counter(str(record["gpu_types"][number]) for number in numbers).most_common(1)[0][0]
