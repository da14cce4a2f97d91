"""Records of runs as tables: groups of comparable runs, columns, and the best values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from hadar_slurm.lab.study.compare import Record
from hadar_slurm.lab.traces.restart import restart_words

HOUR_S = 3600.0
# Labels that comparable runs have in common; results are averaged over seeds.
GROUP_LABELS = (
    "family", "trace", "jobs", "load", "cluster", "rules", "restart", "round_s",
)  # fmt: skip


_LEAST = "least"
# The row of what was recorded.
HAPPENED = "what happened"


@dataclass(frozen=True, slots=True)
class Column:
    """One figure of the tables."""

    name: str
    heading: str
    # Explanation for readers.
    note: str
    digits: int = 1
    # Its name in the records; "" where that is the column's.
    source: str = ""
    # Key of a figure by GPU type.
    gpu_type: str = ""
    # Factor and divisor of the figure in the records.
    factor: float = 1.0
    over: float = 1.0
    # "least" or "most"; "" where neither is better.
    best: str = _LEAST

    def get(self, record: Record) -> float | None:
        """Return the figure of a run, None if the record does not have it."""
        value = record.get(self.source or self.name)
        if self.gpu_type and value is not None:
            value = value.get(self.gpu_type, 0.0)
        return None if value is None else self.factor * float(value) / self.over

    def text(self, value: float | None) -> str:
        """Return a value as text for tables."""
        return "-" if value is None or not math.isfinite(value) else f"{value:,.{self.digits}f}"


KILLED_WORDS = (
    "Time limits ended jobs before all their steps were trained. Such a job counts as done at its "
    "limit, so mean JCT and TTD look shorter where many are ended; the GPU time that it held is "
    "lost. Slow-downs and FTF leave it out, and no ratio to a bound is shown. A job that "
    "preempt=cancel ended for another counts likewise."
)

_percent = partial(Column, factor=100.0, best="")


def _hours(name: str, heading: str, note: str, digits: int = 1) -> Column:
    return Column(
        name,
        heading=heading,
        note=note,
        digits=digits,
        source=f"{name.removesuffix('h')}s",
        over=HOUR_S,
    )


def _held(gpu_type: str) -> Column:
    note, source = f"Share of {gpu_type} time until TTD that jobs held.", "utilization_by_type"
    return _percent(f"held_{gpu_type}", f"{gpu_type} %", note, 0, source, gpu_type)


USER_COLUMNS: tuple[Column, ...] = (
    Column(
        "mean_user_slowdown",
        "user slow-down",
        "Mean slow-down of each user's jobs, mean over users.",
        2,
    ),
    Column(
        "max_user_slowdown",
        "worst user",
        "Mean slow-down of the jobs of the user for whom it is largest.",
        2,
    ),
)
_OFF = _percent(
    "off",
    "off by %",
    "Mean JCT of plain Slurm beside what happened, of the jobs whose start the history has: above "
    "0 it is longer. Where every plain Slurm is far off, the other rows say little of this site.",
)
KILLED_COLUMNS: tuple[Column, ...] = (
    Column("killed", "timed out", "Jobs ended with steps left: by their time limit, or preempted."),
    _percent(
        "killed_share",
        "lost %",
        "Share of the GPU time held by jobs that was held by those ended with steps left; all "
        "that they trained is lost.",
        best=_LEAST,
    ),
)
COVERAGE_COLUMNS: tuple[Column, ...] = (
    _percent(
        "beyond_q50",
        "beyond q50 %",
        "Share of the jobs that trained longer than the median of what was believed of them "
        "before; 50 where beliefs are calibrated.",
        0,
    ),
    _percent("beyond_q75", "beyond q75 %", "The same of the quantile .75; should be 25.", 0),
    _percent("beyond_q90", "beyond q90 %", "The same of the quantile .9; should be 10.", 0),
)
COLUMNS: tuple[Column, ...] = (
    _hours("ttd_h", "TTD h", "Time from the first submission to the last end."),
    Column(
        "ttd_over_bound",
        "TTD / bound",
        "TTD over the lower bound for any schedule, from a linear program; 1 is optimal. "
        "Policies that fork jobs are compared with the bound that allows forking.",
        3,
    ),
    _hours(
        "mean_jct_h",
        "mean JCT h",
        "Job completion time: from submission to end, mean over jobs.",
        2,
    ),
    Column(
        "mean_jct_over_bound",
        "JCT / bound",
        "Mean JCT over a lower bound: one machine that serves the smallest job first, at the "
        "prices of GPU types that maximise it; with equal prices for policies that fork. The "
        "bound may not be attainable.",
        2,
    ),
    _hours("p50_jct_h", "p50 h", "Half of the jobs were done within this time."),
    _hours("p95_jct_h", "p95 h", "95 % of the jobs were done within this time."),
    _hours("p99_jct_h", "p99 h", "99 % of the jobs were done within this time."),
    Column(
        "queueing_h",
        heading="queue h",
        note="Time from submission to the first GPU, mean over jobs.",
        digits=2,
        source="mean_queueing_s",
        over=HOUR_S,
    ),
    _hours("max_wait_h", "max wait h", "Longest uninterrupted time of any job without GPUs."),
    Column(
        "mean_ftf",
        "FTF",
        "Finish-time fairness, Themis' rho: JCT over the time on a 1/n share of every GPU type, "
        "mean over jobs; below 1 is better than an equal share.",
        2,
    ),
    Column("max_ftf", "worst FTF", "The largest FTF of any job."),
    Column(
        "mean_slowdown",
        "slow-down",
        "JCT over the time alone on the fastest GPU type, mean over jobs; 1 is the least.",
        2,
    ),
    Column("p99_slowdown", "p99 slow-down", "99 % of the jobs had at most this slow-down."),
    *USER_COLUMNS,
    _percent(
        "utilization",
        "trained %",
        "Share of all GPU time until TTD in which steps were trained.",
        best="most",
    ),
    _percent(
        "cru",
        "held %",
        "Cluster resource utilisation (CRU): share of all GPU time until TTD that jobs held, "
        "restarts and aggregation included.",
    ),
    *KILLED_COLUMNS,
    *COVERAGE_COLUMNS,
)
LAST_COLUMNS: tuple[Column, ...] = (
    Column("moves", "moves", "Starts beyond each job's first; each costs the restart time.", 0),
    Column("decision_ms_p50", "decision p50 ms", "Wall time of one decision, median."),
    Column("decision_ms_p99", "decision p99 ms", "Wall time of one decision, 99th percentile."),
    Column("cpu_s", "CPU s", "Processor time of the whole simulation, solvers included."),
)


@dataclass(frozen=True)
class PolicyRecords:
    """The records of one policy in a group, by seed: successful and failed ones."""

    policy: str
    records: tuple[Record, ...]
    failed: tuple[Record, ...] = ()

    def mean(self, column: Column) -> float | None:
        """Return a figure's mean over the seeds; None where no run has it."""
        values = [value for record in self.records if (value := column.get(record)) is not None]
        return sum(values) / len(values) if values else None

    @property
    def status(self) -> str:
        """Return the number of failures as text; empty without failures."""
        if not (self.failed and self.records):
            return "failed" if self.failed else ""
        return f"{len(self.failed)} of {len(self.failed) + len(self.records)} failed"


@dataclass(frozen=True)
class ComparableRuns:
    """Comparable runs: they differ in policy and seed only."""

    labels: Mapping[str, object]
    entries: tuple[PolicyRecords, ...]

    @cached_property
    def done(self) -> tuple[PolicyRecords, ...]:
        """Return the entries with at least one successful run."""
        return tuple(entry for entry in self.entries if entry.records)

    @cached_property
    def gpu_types(self) -> tuple[str, ...]:
        """Return the GPU types of the cluster."""
        return tuple(self.done[0].records[0]["utilization_by_type"]) if self.done else ()

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """Return the columns of the table, with those of GPU types and, where known, of users.

        Also those of jobs ended by their time limits, where there are any, and of learned sizes.
        """
        records = [record for entry in self.done for record in entry.records]
        has_users = any(c.get(record) is not None for c in USER_COLUMNS for record in records)
        absent = () if has_users else USER_COLUMNS
        absent += () if self.has_killed else KILLED_COLUMNS
        learns = any(COVERAGE_COLUMNS[0].get(record) is not None for record in records)
        absent += () if learns else COVERAGE_COLUMNS
        known = [column for column in COLUMNS if column not in absent]
        known[:0] = [_OFF] * any(_OFF.get(record) is not None for record in records)
        return (*known, *map(_held, self.gpu_types), *LAST_COLUMNS)

    @cached_property
    def has_killed(self) -> bool:
        """Return whether time limits ended any job."""
        return any(record.get("killed") for entry in self.done for record in entry.records)

    def column(self, name: str) -> Column:
        """Return the column with this name."""
        return next(column for column in self.columns if column.name == name)

    @cached_property
    def happened(self) -> PolicyRecords | None:
        """Return what was recorded of the jobs, as a row of the table; None if nothing was."""
        for entry in self.done:
            records = [record["recorded"] for record in entry.records if record.get("recorded")]
            if records:
                number, jobs = records[0]["jobs"], self.labels["jobs"]
                name = HAPPENED if number == jobs else f"{HAPPENED} ({number:,} of {jobs} jobs)"
                return PolicyRecords(name, tuple(records))
        return None

    @property
    def rows(self) -> tuple[PolicyRecords, ...]:
        """Return the rows of the table, what happened first."""
        return (*([self.happened] if self.happened else []), *self.entries)

    @property
    def num_seeds(self) -> int:
        """Return the number of runs per row."""
        return max((len(e.records) + len(e.failed) for e in self.entries), default=0)

    def best(self, column: Column) -> frozenset[str]:
        """Return the policies with the best printed value of a column; none if all are equal."""
        known = {e.policy: mean for e in self.done if (mean := e.mean(column)) is not None}
        texts = {policy: column.text(value) for policy, value in known.items()}
        if not column.best or len(set(texts.values())) < 2:
            return frozenset()
        pick = min if column.best == _LEAST else max
        winner = texts[pick(known, key=lambda policy: known[policy])]
        return frozenset(policy for policy, text in texts.items() if text == winner)

    @property
    def title(self) -> str:
        """Return a description of the group."""
        labels = self.labels
        load = "" if labels["load"] is None else f" at {labels['load']:g} % load"
        return (
            f"{labels['trace']}{load}: {labels['jobs']} {'job' if labels['jobs'] == 1 else 'jobs'} "
            f"on {labels['cluster']}, {labels['rules']} rules, "
            f"restart {restart_words(str(labels['restart']))}"
        )


def groups(records: Sequence[Record]) -> list[ComparableRuns]:
    """Return the records in groups, in the order in which groups and policies first appear."""
    found: dict[tuple[object, ...], dict[str, tuple[list[Record], list[Record]]]] = {}
    for record in records:
        key = tuple(record.get(label) for label in GROUP_LABELS)
        done, failed = found.setdefault(key, {}).setdefault(record["policy"], ([], []))
        (done if record["status"] == "done" else failed).append(record)
    return [
        ComparableRuns(
            dict(zip(GROUP_LABELS, key, strict=True)),
            tuple(PolicyRecords(policy, *map(tuple, runs)) for policy, runs in by_policy.items()),
        )
        for key, by_policy in found.items()
    ]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Ratios by row and column for a heat map; None where unknown, 1 is neutral, less is better."""

    heading: str
    words: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    # One tuple for each row.
    values: tuple[tuple[float | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Note:
    """A discussion of the runs, with an optional table whose first row is its heading."""

    heading: str
    paragraphs: tuple[str, ...]
    table: tuple[tuple[str, ...], ...] = ()
    # Drawn above the table.
    matrix: Matrix | None = None
    # Whether its table is long, and for those who ask: folded on the page, cut in a terminal.
    is_folded: bool = False


def killed_notes(groups: Sequence[ComparableRuns]) -> list[Note]:
    """Return how many jobs were ended, and the share of the GPU time lost; none if none."""
    if not any(group.has_killed for group in groups):
        return []
    policies = tuple(dict.fromkeys(entry.policy for group in groups for entry in group.done))
    rows = []
    for group in groups:
        texts = {}
        for entry in group.done:
            number, share = (column.text(entry.mean(column)) for column in KILLED_COLUMNS)
            texts[entry.policy] = f"{number} ({share} %)"
        rows.append((group.title, *(texts.get(policy, "-") for policy in policies)))
    words = (KILLED_WORDS, "Jobs ended; in brackets the share of the GPU time held that was lost.")
    return [Note("Jobs ended with steps left", words, (("", *policies), *rows))]


@dataclass(frozen=True, slots=True)
class Series:
    """Groups along one axis of a plot; `points` are (position on the axis, group)."""

    heading: str
    words: str
    axis: str
    points: tuple[tuple[float, ComparableRuns], ...]
    columns: tuple[str, ...]


def load_series(groups: Sequence[ComparableRuns]) -> list[Series]:
    """Return a series for each set of groups that differ in load alone."""
    found: dict[tuple[object, ...], list[ComparableRuns]] = {}
    for group in groups:
        if group.done and group.labels["load"] is not None:
            others = tuple(value for label, value in group.labels.items() if label != "load")
            found.setdefault(others, []).append(group)
    return [
        Series(
            heading=f"{members[0].labels['trace']}: effect of the load",
            words="At 100 % work arrives at the cluster's maximum rate (a linear "
            "program over all jobs); the gaps between arrivals keep their proportions.",
            axis="offered load, %",
            points=tuple((float(str(group.labels["load"])), group) for group in members),
            columns=("mean_jct_h", "ttd_h", "ttd_over_bound"),
        )
        for members in found.values()
        if len(members) > 1
    ]
