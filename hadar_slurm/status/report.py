"""hadar report: the decisions of a period, from the journal. Pure, line by line."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import NamedTuple

from hadar_slurm.core.cluster import Cluster, GpuType, JobId
from hadar_slurm.core.job import JobSpec
from hadar_slurm.journal import Line
from hadar_slurm.journal.decoder import Changed
from hadar_slurm.journal.moved import Move, Moves
from hadar_slurm.journal.values import job_of, snapshot_of, throughputs_of
from hadar_slurm.status.claims import Claims, ClaimsSeen
from hadar_slurm.status.status import GpuUse, mode_of

_HOUR_S = 3600.0
# A line counts for at most this many rounds; after a longer gap hadard was not running.
_MOST_ROUNDS = 2.0


@dataclass(frozen=True, slots=True)
class GpuHours:
    """GPU hours of one type: of managed jobs, of other jobs, and idle on open nodes."""

    managed: float = 0.0
    others: float = 0.0
    idle: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of a period; times in seconds."""

    from_s: float
    to_s: float
    policies: tuple[str, ...]
    rounds: int
    # Rounds with an error, and the errors, most frequent first.
    failed_rounds: int
    errors: Mapping[str, int]
    jobs: int
    # Counts by phase.
    ended: Mapping[str, int]
    # From submission to end, over the jobs done.
    mean_jct_s: float | None
    starts: int
    # Stops carried out.
    moves: int
    # Actions that Slurm refused.
    refused: int
    decision_s_p50: float
    decision_s_max: float
    gpu_hours: Mapping[GpuType, GpuHours]
    claims: Claims
    # What moves cost and gained, those of jobs that train again.
    moved: tuple[Move, ...]


class Past(NamedTuple):
    """The jobs of a period, to be simulated again; times in seconds from its first line."""

    jobs: list[JobSpec]
    cluster: Cluster
    # The usual length of a round.
    round_s: float
    # Of the jobs that were done in the period, the ends.
    ends_s: Mapping[JobId, float]


@dataclass
class Reporter:
    """Collects the figures of a report from lines in order."""

    _rounds: int = 0
    _span_s: tuple[float, float] | None = None
    _policies: dict[str, None] = field(default_factory=dict)
    _errors: Counter[str] = field(default_factory=Counter)
    _failed: int = 0
    # Each job as first and as last observed.
    _first: dict[str, Line] = field(default_factory=dict)
    _last: dict[str, Line] = field(default_factory=dict)
    _ends: dict[str, tuple[str, float]] = field(default_factory=dict)
    # By (what, status).
    _actions: Counter[tuple[str, str]] = field(default_factory=Counter)
    _decisions_s: list[float] = field(default_factory=list)
    # The lengths of rounds.
    _lengths_s: list[float] = field(default_factory=list)
    _hours: dict[GpuType, GpuHours] = field(default_factory=dict)
    _claims: ClaimsSeen = field(default_factory=ClaimsSeen)
    _moves: Moves = field(default_factory=Moves)
    # Of the lines of the open round: when the first began and for how long, their modes, and those
    # of the ones that observed anything.
    _open_s: tuple[float, float] = (0.0, 0.0)
    _modes: list[str] = field(default_factory=list)
    _observed: list[str] = field(default_factory=list)
    _use: GpuUse = field(default_factory=GpuUse)
    # All modes so far; jobs may go from one to another.
    _all_modes: set[str] = field(default_factory=set)
    # The last line that observed anything.
    _seen: Line | None = None

    def add(self, line: Line, changed: Changed = None) -> None:
        """Read the next line; a round has one for each mode.

        `changed` is what may differ from the line before of its mode, as `read_period` yields it;
        the line may change once the next one is read.
        """
        mode, time_s = mode_of(line), float(line["time_s"])
        if mode in self._modes:
            self._close(time_s)
        if not self._modes:
            self._open_s = time_s, float(line["length_s"])
            self._lengths_s.append(self._open_s[1])
        self._modes.append(mode)
        self._all_modes.add(mode)
        first_s, _ = self._span_s or (time_s, time_s)
        self._span_s = first_s, time_s
        policy = str(line["policy"])
        self._policies.pop(policy, None)
        self._policies[policy] = None
        self._failed += bool(line["errors"])
        self._errors.update(line["errors"])
        self._decisions_s.append(float(line["durations_s"].get("plan", 0.0)))
        self._claims.add(line)
        self._moves.add(line)
        self._actions.update(map(itemgetter("do", "status"), line["actions"]))
        if "jobs" in line:
            self._seen = line
            self._observed.append(mode)
            self._use.add(line, changed)
            self._note(line, changed if len(self._all_modes) == 1 else None, first_s)

    def _note(self, line: Line, changed: Changed, first_s: float) -> None:
        """Note the jobs that have changed, and the ends that are new; all if `changed` is None."""
        jobs, ended = line["jobs"], line["ended"]
        if changed is None:
            changed = {"jobs": jobs, "ended": ended}
        for name in changed.get("jobs", ()):
            if name in jobs:
                self._last[name] = jobs[name]
                if name not in self._first:
                    self._first[name] = dict(jobs[name])
        for name in changed.get("ended", ()):
            end = ended.get(name)
            if end is not None and end["end_s"] >= first_s:
                self._ends[name] = str(end["phase"]), float(end["end_s"])

    def _close(self, next_s: float) -> None:
        """Count the hours of the open round, which ends at `next_s`."""
        self._rounds += 1
        begin_s, length_s = self._open_s
        hours = max(0.0, min(next_s - begin_s, _MOST_ROUNDS * length_s)) / _HOUR_S
        for gpu_type, use in self._use.of(self._observed).items() if self._observed else ():
            old = self._hours.get(gpu_type, GpuHours())
            new = (old.managed + use.managed * hours, old.others + use.others * hours)
            self._hours[gpu_type] = GpuHours(*new, old.idle + use.free * hours)
        self._modes, self._observed = [], []

    def workload(self) -> Past | None:
        """Return the jobs, submission times counted from the first line, and what became of them.

        A job submitted before the first line counts as submitted with it, with the steps left then.
        None without jobs.
        """
        if self._seen is None or self._span_s is None:
            return None
        jobs = [self._spec(name) for name, job in self._last.items() if any(throughputs_of(job))]
        if not jobs:
            return None
        begins_s = self._span_s[0]
        came = [replace(spec, submitted_s=max(0.0, spec.submitted_s - begins_s)) for spec in jobs]
        ends = self._ends.items()
        ends_s = {JobId(name): s - begins_s for name, (phase, s) in ends if phase == "done"}
        cluster = snapshot_of(self._seen).cluster.all_open()
        return Past(came, cluster, statistics.median(self._lengths_s), ends_s)

    def _spec(self, name: str) -> JobSpec:
        """Return a job with its last throughputs, and the steps left when it was first observed."""
        steps = max(1, round(job_of(name, self._first[name]).steps_left))
        return replace(job_of(name, self._last[name]).spec, total_steps=steps)

    def report(self) -> Report | None:
        """Return the figures, None if nothing was read."""
        if self._span_s is None:
            return None
        if self._modes:
            self._close(self._span_s[1])
        jcts_s = [
            end_s - float(self._last[job]["submitted_s"])
            for job, (phase, end_s) in self._ends.items()
            if phase == "done" and job in self._last
        ]
        ended = Counter(phase for job, (phase, _) in self._ends.items() if job in self._last)
        return Report(
            from_s=self._span_s[0],
            to_s=self._span_s[1],
            policies=tuple(self._policies),
            rounds=self._rounds,
            failed_rounds=self._failed,
            errors=dict(self._errors.most_common()),
            jobs=len(self._last),
            ended=dict(sorted(ended.items())),
            mean_jct_s=statistics.fmean(jcts_s) if jcts_s else None,
            starts=self._actions["start", "done"],
            moves=self._actions["stop", "done"],
            refused=sum(n for (_, status), n in self._actions.items() if status == "refused"),
            decision_s_p50=statistics.median(self._decisions_s),
            decision_s_max=max(self._decisions_s),
            gpu_hours=dict(sorted(self._hours.items())),
            claims=self._claims.found(self._span_s[1]),
            moved=tuple(self._moves.found),
        )
