"""The layout of the chart of GPUs by job: one row per GPU, time from left to right.

Rows have a height in pixels, times are shares of the width, so that text keeps its size at any
width. The style sheet sets colours. A journal has the number of a job's GPUs on a node, not which:
a job is drawn on the lowest ones free at its start.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from hadar_slurm.core.cluster import JobId, natural_key
from hadar_slurm.journal import Line
from hadar_slurm.metrics import Segment
from hadar_slurm.status.use import Labels
from hadar_slurm.web.history import OTHERS
from hadar_slurm.web.words import Clock, clean, duration

# With more GPUs a row would be less than three pixels high, and the page too long.
MAX_GPUS = 512
# More bars than this are drawn without titles, on a grid of at most this many cells.
MAX_BARS = 3_000
MAX_CELLS = 40_000
NUM_COLOURS = 12

_GAP, _HEAD, _AXIS = 3, 22, 22
# (GPUs up to, height of a row in pixels)
_HEIGHTS = ((40, 15), (96, 11), (200, 6), (MAX_GPUS, 3))
# A digit's width, and the chart's least width on a desktop and on a phone, in pixels.
_LETTER, _WIDE, _NARROW = 6.6, 800.0, 230.0
_TOUCH_S = 1e-3


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time to draw, seconds as in the journal."""

    from_s: float
    to_s: float

    def share(self, time_s: float) -> float:
        """Return a time's place, from 0 at the left end to 1 at the right, clipped."""
        return min(1.0, max(0.0, (time_s - self.from_s) / (self.to_s - self.from_s)))

    def shows(self, segment: Segment) -> bool:
        """Return whether a segment overlaps the window."""
        return segment.end_s > self.from_s and segment.start_s < self.to_s


class GanttRow(NamedTuple):
    """GPUs of one type on one node: drawn from `top`, `height` pixels each."""

    node: str
    gpu_type: str
    num_gpus: int
    is_open: bool
    top: int
    height: int

    @property
    def words(self) -> str:
        """Return the label."""
        return self.node if self.is_open else f"{self.node}, closed"


class _Bar(NamedTuple):
    """A job on neighbouring GPUs of a row."""

    row: GanttRow
    top: int
    num_gpus: int
    segment: Segment


def gpu_types_of(nodes: Mapping[str, Line]) -> dict[str, int]:
    """Return the number of GPUs by type."""
    total: Counter[str] = Counter()
    for node in nodes.values():
        total.update(node["gpus"])
    return dict(sorted(total.items()))


def gantt(
    nodes: Mapping[str, Line],
    segments: Iterable[Segment],
    labels: Mapping[JobId, Labels],
    window: Window,
    clock: Clock,
) -> dict[str, object]:
    """Return the template's values for the chart of all GPUs of `nodes`.

    `segments` overlap the window, `labels` are those of their jobs. Jobs on removed nodes
    are not drawn. If there are too many bars, `cells` has one path per look in place of `drawn`.
    """
    rows, height = _rows(nodes)
    bars = _bars(rows, segments)
    is_coarse = len(bars) > MAX_BARS
    num_bins = max(40, min(600, MAX_CELLS // max(1, sum(row.num_gpus for row in rows))))
    longest = max((len(row.words) for row in rows), default=0)
    return {
        "rows": rows,
        "height": height,
        # The longest label's width, clipped.
        "labels_width": min(220, max(70, round(_LETTER * longest) + 4)),
        "num_jobs": len({bar.segment.job_id for bar in bars} - {OTHERS}),
        # (place, anchor, label)
        "ticks": [
            (_percent(at), "start" if at < 0.09 else "end" if at > 0.91 else "middle", label)
            for time_s, label in clock.ticks(window.from_s, window.to_s, most=8)
            for at in (window.share(time_s),)
        ],
        "drawn": [] if is_coarse else [_drawn(bar, labels, window, clock) for bar in bars],
        "cells": _cells(rows, bars, window, num_bins) if is_coarse else None,
        "num_bins": num_bins,
    }


def _rows(nodes: Mapping[str, Line]) -> tuple[list[GanttRow], int]:
    """Return the rows, types together, and the height of all with the axis."""
    gpu_types = gpu_types_of(nodes)
    total = sum(gpu_types.values())
    height = next((height for most, height in _HEIGHTS if total <= most), _HEIGHTS[-1][1])
    rows: list[GanttRow] = []
    top = 0
    for gpu_type in gpu_types:
        top += _HEAD
        for node in sorted(nodes, key=natural_key):
            if number := int(nodes[node]["gpus"].get(gpu_type, 0)):
                rows.append(
                    GanttRow(
                        node,
                        gpu_type=gpu_type,
                        num_gpus=number,
                        is_open=bool(nodes[node]["open"]),
                        top=top,
                        height=height,
                    )
                )
                top += number * height + _GAP
    return rows, top + _AXIS


def _bars(rows: Sequence[GanttRow], segments: Iterable[Segment]) -> list[_Bar]:
    """Return each segment's bars, one per run of adjacent GPUs."""
    by_slot = {(row.node, row.gpu_type): row for row in rows}
    free_from = {slot: [float("-inf")] * row.num_gpus for slot, row in by_slot.items()}
    bars: list[_Bar] = []
    for segment in sorted(segments, key=lambda s: (s.start_s, s.end_s, s.job_id, s.copy)):
        for (node, gpu_type), number in segment.gang.slots:
            if (row := by_slot.get((node, gpu_type))) is None:
                continue
            free = free_from[node, gpu_type]
            # Late observations may overlap; then the GPUs that are free soonest are used.
            waits_s = [max(0.0, free_s - segment.start_s - _TOUCH_S) for free_s in free]
            taken = sorted(sorted(range(row.num_gpus), key=waits_s.__getitem__)[:number])
            for index in taken:
                free[index] = segment.end_s
            # In a run of consecutive numbers, a number less its place is the same.
            for _, run in groupby(enumerate(taken), lambda pair: pair[1] - pair[0]):
                adjacent = [index for _, index in run]
                bars.append(_Bar(row, row.top + adjacent[0] * row.height, len(adjacent), segment))
    return bars


def _class(job_id: str) -> str:
    """Return the class of a job's colour, the same in every picture; neighbours differ."""
    if job_id == OTHERS:
        return "others"
    is_number = job_id.isdecimal()
    number = int(job_id[-9:]) if is_number else zlib.crc32(job_id.encode("utf-8", "replace"))
    return f"c{number % NUM_COLOURS}"


def _percent(part: float) -> str:
    return f"{100 * part:.3f}".rstrip("0").rstrip(".") + "%"


def _drawn(
    bar: _Bar, labels: Mapping[JobId, Labels], window: Window, clock: Clock
) -> dict[str, object]:
    """Return a bar to draw; `id_class` is "" if there is no room for the job's id."""
    segment = bar.segment
    left, right = window.share(segment.start_s), window.share(segment.end_s)
    height = bar.num_gpus * bar.row.height
    needs = _LETTER * len(segment.job_id) + 6
    has_room = height >= 11 and needs <= (right - left) * _WIDE and segment.job_id != OTHERS
    id_class = "id" if needs <= (right - left) * _NARROW else "id odd"
    begin, end = clock.moment(segment.start_s), clock.moment(segment.end_s)
    times = f"{begin} to {end}, {duration(segment.end_s - segment.start_s)}"
    copy = f", copy {segment.copy}" if segment.copy else ""
    job = f"job {segment.job_id}{copy}"
    user_and_work = ", ".join(filter(None, labels.get(segment.job_id, Labels())[:2]))
    if segment.job_id == OTHERS:
        job, user_and_work = "jobs that are not Hadar's", ""
    return {
        "look": _class(segment.job_id),
        "x": _percent(left),
        "width": _percent(max(right - left, 0.0005)),
        "top": bar.top,
        "height": height,
        "is_thin": bar.row.height < 9,
        "title": "\n".join(filter(None, (job, clean(user_and_work), str(segment.gang), times))),
        "job_id": segment.job_id,
        "id_class": id_class if has_room else "",
        "middle": _percent((left + right) / 2),
    }


def _cells(
    rows: Sequence[GanttRow], bars: Sequence[_Bar], window: Window, num_bins: int
) -> dict[str, str]:
    """Return all bars as one path per colour, on a grid of equal time spans."""
    tops = (row.top + index * row.height for row in rows for index in range(row.num_gpus))
    lanes = {top: [""] * num_bins for top in tops}
    for bar in bars:
        first = round(window.share(bar.segment.start_s) * num_bins)
        last = round(window.share(bar.segment.end_s) * num_bins)
        look = _class(bar.segment.job_id)
        for index in range(bar.num_gpus):
            lane = lanes[bar.top + index * bar.row.height]
            lane[first:last] = [look] * (last - first)
    paths: defaultdict[str, str] = defaultdict(str)
    tall = rows[0].height if rows else 0
    for top, lane in lanes.items():
        begin = 0
        for look, run in groupby(lane):
            wide = len(list(run))
            if look:
                paths[look] += f"M{begin} {top}h{wide}v{tall}h-{wide}z"
            begin += wide
    return dict(sorted(paths.items()))
