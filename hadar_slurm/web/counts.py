"""Counters of rounds, for metrics whose labels come from short, fixed lists of words.

Any other word in a journal counts as `other`, so that no journal can create unlimited series.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from hadar_slurm.core.claims import AS_GOOD_AS_TRUE, Judged
from hadar_slurm.core.job import Phase
from hadar_slurm.core.plan import WaitReason
from hadar_slurm.engine.actions import Status
from hadar_slurm.engine.modes import Mode
from hadar_slurm.journal import Line
from hadar_slurm.slurm.client.runner import DONE, REFUSED, UNAVAILABLE
from hadar_slurm.web.lines import RoundRow, partition_of

OTHER = "other"
MODES = tuple(str(mode) for mode in Mode)
ENDS = tuple(str(phase) for phase in (Phase.DONE, Phase.FAILED, Phase.CANCELLED))
PHASES = tuple(str(phase) for phase in Phase if str(phase) not in ENDS)
REASONS = {str(reason): reason.name.lower() for reason in WaitReason}
JUDGEMENTS = ("as_claimed", "longer", "shorter")
ACTIONS = ("start", "renew", "stop")
STATUSES = tuple(str(status) for status in Status)
PROGRAMS = ("scancel", "scontrol", "sinfo", "squeue", "sshare")
ANSWERS = (DONE, REFUSED, UNAVAILABLE)
# Seconds: a small cluster takes tens of milliseconds, a solver's limit may be minutes.
BUCKETS_S = (0.01, 0.03, 0.1, 0.3, 0.5, 1.0, 3.0, 5.0, 10.0, 30.0, 60.0, 120.0)


@dataclass
class Histogram:
    """A histogram of durations."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count a duration."""
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def cumulated(self) -> list[tuple[str, float]]:
        """Return each upper limit with the number of durations up to it."""
        limits = (*map(str, BUCKETS_S), "+Inf")
        return list(zip(limits, map(float, accumulate(self.counts)), strict=True))


@dataclass
class Counts:
    """Counts since the start of the server."""

    rounds: int = 0
    failed: int = 0
    fallbacks: int = 0
    averages: int = 0
    decisions: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    commands: Counter[tuple[str, str]] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    judged: Counter[str] = field(default_factory=Counter)
    round_s: Histogram = field(default_factory=Histogram)
    plan_s: Histogram = field(default_factory=Histogram)

    def add(
        self, line: Line, row: RoundRow, new_ends: Collection[str], judged: Iterable[Judged]
    ) -> None:
        """Count a line accepted by the history.

        `new_ends` are jobs whose end is new, `judged` those whose claim was judged.
        """
        self.rounds += 1
        self.failed += bool(row.errors)
        self.fallbacks += line["figures"].get("solver_fallback", 0) == 1
        for action in line["actions"]:
            what, how = one_of(action["do"], ACTIONS), one_of(action["status"], STATUSES)
            gpu_types = {gpu_type for gpus in action["gang"].values() for gpu_type in gpus}
            partition = partition_of(line.get("jobs", {}).get(action["job"]))
            self.decisions.update((what, how, partition, str(gpu_type)) for gpu_type in gpu_types)
        self.averages += row.averages or 0
        for (program, answer), number in row.commands.items():
            self.commands[one_of(program, PROGRAMS), one_of(answer, ANSWERS)] += number
        for job_id in new_ends:
            self.ended[one_of(line["ended"][job_id]["phase"], ENDS)] += 1
        self.judged.update(map(judgement_of, judged))
        self.round_s.observe(row.work_s)
        self.plan_s.observe(row.plan_s)


def judgement_of(job: Judged) -> str:
    """Return whether a job took longer or shorter than claimed."""
    factor = job.lasted_s / job.claimed_s
    if factor > AS_GOOD_AS_TRUE:
        return "longer"
    return "shorter" if factor < 1 / AS_GOOD_AS_TRUE else "as_claimed"


def one_of(word: object, known: Collection[str]) -> str:
    """Return the word if it is known, else `other`."""
    text = str(word)
    return text if text in known else OTHER


def counted(words: Iterable[object], known: Sequence[str]) -> dict[str, int]:
    """Return the count of each known word, and of `other`."""
    found = Counter(one_of(word, known) for word in words)
    return {word: found[word] for word in (*known, OTHER)}
