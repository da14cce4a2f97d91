"""The results of the test-bed: medians over runs, tables, and the content of `summary.json`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

from rich.box import SIMPLE_HEAD
from rich.table import Table

from hadar_slurm.lab.site.play import Played


@dataclass(frozen=True, slots=True)
class ScenarioRow:
    """The result of one scenario in one way; waits None where a job did not start in time."""

    name: str
    way: str
    plain_wait_s: float | None
    hadar_wait_s: float | None
    # Between two looks of Slurm's main scheduler at the whole queue.
    interval_s: float
    # GPUs of stopped jobs that plain jobs took while a job of hadard's waited.
    lost_gpus: int
    # GPU-seconds without a job while a judged job waited, in the play with hadard.
    idle_gpu_s: float
    plain_idle_gpu_s: float
    note: str


@dataclass(frozen=True, slots=True)
class StreamPlayed:
    """What became of one stream of jobs: nothing is known of them if it did not end in time."""

    ttd_s: float | None
    # Completion times by place in the stream, and the places of plain jobs.
    jcts_s: Mapping[int, float]
    plain: frozenset[int]
    note: str


@dataclass(frozen=True, slots=True)
class AdoptionRow:
    """The result of streams with one share of jobs; times None if one did not end in time."""

    percent: int
    ttd_s: float | None
    mean_jct_s: float | None
    # Of the users' plain jobs; None also where all jobs are hadard's.
    plain_mean_jct_s: float | None
    # Of the same jobs in the same stream without a job of hadard's.
    plain_before_jct_s: float | None
    note: str


def median_wait_s(waits: Sequence[float | None]) -> float | None:
    """Return the median, in which None is longer than every wait; None if the median is one."""
    if not waits:
        return None
    # The lower one of two middle values could hide that half of the jobs did not start.
    middle = median(math.inf if wait is None else wait for wait in waits)
    return None if math.isinf(middle) else middle


def scenario_row(
    name: str, way: str, plain: Sequence[Played], hadar: Sequence[Played], interval_s: float
) -> ScenarioRow:
    """Return the row of one group of judged jobs from the plays of all runs."""
    told = [
        f"{title}: {note}"
        for title, plays in (("plain", plain), (way, hadar))
        for note in dict.fromkeys(play.note for play in plays)
        if note
    ]
    return ScenarioRow(
        name,
        way=way,
        plain_wait_s=_rounded(median_wait_s([play.wait_s for play in plain])),
        hadar_wait_s=_rounded(median_wait_s([play.wait_s for play in hadar])),
        interval_s=interval_s,
        lost_gpus=max((play.lost_gpus for play in hadar), default=0),
        idle_gpu_s=round(median([play.idle_gpu_s for play in hadar] or [0.0]), 1),
        plain_idle_gpu_s=round(median([play.idle_gpu_s for play in plain] or [0.0]), 1),
        note="; ".join(told),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def adoption_row(
    percent: int, runs: Mapping[int, StreamPlayed], twins: Mapping[int, StreamPlayed]
) -> AdoptionRow:
    """Return the medians over the runs with one share, by seed; `twins` have plain jobs only."""
    before = [
        _mean_s(twins[seed], run.plain) if seed in twins else None for seed, run in runs.items()
    ]
    values = (
        median_wait_s([run.ttd_s for run in runs.values()]),
        median_wait_s([_mean_s(run, run.jcts_s.keys()) for run in runs.values()]),
        median_wait_s([_mean_s(run, run.plain) for run in runs.values()]),
        median_wait_s(before),
    )
    notes = dict.fromkeys(run.note for run in runs.values() if run.note)
    ttd_s, mean_s, plain_s, before_s = map(_rounded, values)
    return AdoptionRow(
        percent,
        ttd_s=ttd_s,
        mean_jct_s=mean_s,
        plain_mean_jct_s=plain_s,
        plain_before_jct_s=before_s,
        note="; ".join(notes),
    )


def _mean_s(played: StreamPlayed, places: Collection[int]) -> float | None:
    known = [played.jcts_s[place] for place in places if place in played.jcts_s]
    return fmean(known) if known else None


def summary_tree(
    scenarios: Sequence[ScenarioRow], adoption: Sequence[AdoptionRow]
) -> dict[str, object]:
    """Return the content of `summary.json`; times in seconds."""
    return {
        "scenarios": [asdict(row) for row in scenarios],
        "adoption": [asdict(row) for row in adoption],
    }


def scenario_table(rows: Sequence[ScenarioRow]) -> Table:
    """Return the waits of the twins side by side, one row for each group of judged jobs."""
    title = "Wait of the judged jobs, plain and with hadard"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("scenario", no_wrap=True)
    for heading in ("plain", "hadar", "lost GPUs", "idle GPU s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        waits = (_seconds(row.plain_wait_s), _seconds(row.hadar_wait_s))
        table.add_row(row.name, *waits, str(row.lost_gpus), f"{row.idle_gpu_s:.0f}")
    return table


def adoption_table(rows: Sequence[AdoptionRow]) -> Table:
    """Return the figures by the share of jobs that are submitted through hadar-sbatch."""
    title = "One stream of jobs, by the share submitted through hadar-sbatch"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("share", "TTD", "mean JCT", "of plain jobs", "of these at 0 %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        times = (row.ttd_s, row.mean_jct_s, row.plain_mean_jct_s, row.plain_before_jct_s)
        table.add_row(f"{row.percent} %", *map(_seconds, times))
    return table


def note_lines(scenarios: Sequence[ScenarioRow], adoption: Sequence[AdoptionRow]) -> list[str]:
    """Return a line for each row with a note, such as why a job did not start."""
    named = [(row.name, row.note) for row in scenarios]
    named += [(f"adoption {row.percent} %", row.note) for row in adoption]
    return [f"{name}: {note}" for name, note in named if note]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
