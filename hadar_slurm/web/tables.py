"""The page's tables: GPU types, jobs, rounds, and what the chart shows in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hadar_slurm.core.cluster import natural_key
from hadar_slurm.journal import Line
from hadar_slurm.metrics import Segment
from hadar_slurm.status.jobs import Forked, state_of
from hadar_slurm.web.gantt import Window
from hadar_slurm.web.history import OTHERS, Gpus, History, Point
from hadar_slurm.web.lines import RoundRow
from hadar_slurm.web.words import Clock, count, duration, figure, name, safe, share, work

_SPARK_W, _SPARK_H = 120.0, 26.0
# Points of a small curve; more cannot be told apart.
_SPARK_POINTS = 120
_LARGEST = 1e18


def table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of elements; a column whose heading begins with `#` holds numbers.

    A table wider than the page scrolls by itself, with the keyboard as well.
    """
    numeric = [head.startswith("#") for head in heads]
    cells = "".join(
        f'<th scope="col"{_kind(is_number)}>{safe(head.removeprefix("#"))}</th>'
        for head, is_number in zip(heads, numeric, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{cell}</th>' if index == 0 else f"<td{_kind(is_number)}>{cell}</td>"
            for index, (cell, is_number) in enumerate(zip(row, numeric, strict=True))
        )
        + "</tr>\n"
        for row in rows
    )
    slug = "".join(letter if letter.isalnum() else "-" for letter in title.lower())
    return (
        f'<div class="wide" id="{slug}" role="region" aria-label="{safe(title)}" tabindex="0">'
        f"<table><thead><tr>{cells}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
    )


def _kind(is_number: bool) -> str:
    return ' class="number"' if is_number else ""


def types(history: History, window: Window) -> str:
    """Return how the GPUs of each type are used, now and in a window, and what they cost."""
    points = [point for point, _ in history.spans(window.from_s, window.to_s)]
    rows = []
    for kind, gpus in history.now.gpus.items():
        held = [
            (p.time_s, p.gpus[kind].held / max(1, p.gpus[kind].total))
            for p in points
            if kind in p.gpus
        ]
        rows.append(
            [
                safe(kind),
                f"{_meter(gpus)} {share(gpus.held / gpus.total if gpus.total else None)}",
                figure(history.now.prices.get(kind)),
                _prices(kind, points, window),
                share(history.held_share(kind, window.from_s, window.to_s)),
                _spark(held, window, 1.0, f"share of {kind} held"),
                str(gpus.total),
                str(gpus.held),
                str(gpus.others),
                str(gpus.closed),
                str(gpus.idle),
            ]
        )
    heads = (
        "type held_now #price so_far #held_on_average so_far #GPUs #held #others’ #closed #idle"
    ).split()
    return table("GPUs by type", [head.replace("_", " ") for head in heads], rows)


def _prices(kind: str, points: Sequence[Point], window: Window) -> str:
    prices = [(p.time_s, p.prices[kind]) for p in points if kind in p.prices]
    most = max((price for point in points for price in point.prices.values()), default=0.0)
    return _spark(prices, window, most, f"price of {kind}") if prices else "–"


def _meter(gpus: Gpus) -> str:
    total = max(1, gpus.total)
    parts, left = "", 0.0
    for look, number in (("held", gpus.held), ("others", gpus.others), ("shut", gpus.closed)):
        wide = 100.0 * number / total
        if number:
            parts += f'<rect class="{look}" x="{left:.1f}%" width="{wide:.1f}%" height="10"/>'
        left += wide
    return (
        '<svg class="meter" width="80" height="10" aria-hidden="true">'
        f'<rect class="idle" width="100%" height="10"/>{parts}</svg>'
    )


def _spark(points: Sequence[tuple[float, float]], window: Window, most: float, title: str) -> str:
    """Return a small step curve from 0 to `most`, each value until the next one."""
    step = max(1, len(points) // _SPARK_POINTS)
    path = ""
    for time_s, value in points[::step]:
        x = window.share(time_s) * _SPARK_W
        high = min(1.0, max(0.0, value / most)) if most > 0 else 0.0
        y = 1 + (1 - (high if high == high else 0.0)) * (_SPARK_H - 2)
        path += f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}"
    return (
        f'<svg class="spark" width="{_SPARK_W:g}" height="{_SPARK_H:g}" role="img" '
        f'aria-label="{safe(title)} over time, at most {figure(most)}">'
        f'<path d="M0 {_SPARK_H - 1}H{_SPARK_W}" class="base"/>'
        + (f'<path d="{path}H{_SPARK_W}"/>' if path else "")
        + "</svg>"
    )


def waiting(history: History, job_ids: Sequence[str], now_s: float) -> str:
    """Return the jobs that wait, each with the reason."""
    now = history.now

    def row(job_id: str) -> list[str]:
        job = now.jobs[job_id]
        why = now.waiting.get(job_id)
        if why is None:
            why = "chosen; it starts when its GPUs are free" if job_id in now.planned else "–"
        return [
            name(job_id),
            name(job["user"] or "–"),
            safe(job["gpus"]),
            _said(why, job),
            duration(now_s - _number(job["submitted_s"])),
            _done(job),
            name(job["workload"] or "–"),
        ]

    # The reason stands where it is seen on a telephone without scrolling.
    heads = ("job", "user", "#GPUs", "why it waits", "#for", "#done", "work")
    return table("Waiting jobs", heads, map(row, job_ids))


def running(
    history: History,
    job_ids: Sequence[str],
    places: Mapping[str, Sequence[Segment]],
    clock: Clock,
) -> str:
    """Return the jobs that hold GPUs, and where; those of a forked job by copy."""
    now = history.now

    def row(job_id: str) -> list[str]:
        job = now.jobs[job_id]
        held = places.get(job_id, ())
        state = state_of(job) if job["phase"] != "queued" else "starting"
        since = clock.moment(min(s.start_s for s in held)) if held else "–"
        forked = now.forked.get(job_id)
        return [
            name(job_id),
            name(job["user"] or "–"),
            safe(state),
            _copies(held, forked) if forked else "; ".join(safe(s.gang) for s in held) or "–",
            str(sum(s.gang.num_gpus for s in held)),
            safe(since),
            _done(job),
            safe(job["restarts"]),
            name(job["workload"] or "–"),
            _said(_averages(forked, now.time_s), job),
        ]

    heads = (
        *("job", "user", "state", "where", "#GPUs", "#since", "#done", "#restarts", "work"),
        "remarks",
    )
    return table("Running jobs", heads, map(row, job_ids))


def _copies(held: Sequence[Segment], forked: Forked) -> str:
    """Return the places of a forked job's copies, a line each, with what they measure."""
    speeds = {copy.number: copy.steps_per_s for copy in forked.copies}
    lines = []
    for segment in held:
        speed = speeds.get(segment.copy)
        at = "" if speed is None else f" at {speed:.3g} steps/s"
        lines.append(f"copy {segment.copy}: {safe(segment.gang)}{at}")
    return "<br>".join(lines) or "–"


def _averages(forked: Forked | None, now_s: float) -> str:
    if forked is None or forked.averages is None:
        return ""
    last = "" if forked.averaged_s is None else f", last {duration(now_s - forked.averaged_s)}"
    return f"averaged {count(forked.averages, 'time')}{last and last + ' before this round'}"


def _said(first: object, job: Line) -> str:
    """Return a text and the remarks on a job, in a cell that wraps."""
    told = "; ".join(map(str, filter(None, (first, *job.get("remarks", ())))))
    return f'<span class="said">{safe(told)}</span>' if job.get("remarks") else safe(told) or "–"


def in_order(job_ids: Iterable[str], jobs: Mapping[str, Line]) -> list[str]:
    """Return jobs by when they were submitted."""
    return sorted(job_ids, key=lambda job: (_number(jobs[job]["submitted_s"]), natural_key(job)))


def rounds(rows: Iterable[RoundRow], clock: Clock) -> str:
    """Return rounds, the last first."""

    def row(r: RoundRow) -> list[str]:
        refused = sum(n for (_, status), n in r.did.items() if status == "refused")
        later = sum(n for (_, status), n in r.did.items() if status == "deferred")
        said = "; ".join(r.errors)
        return [
            str(r.number),
            safe(clock.moment(r.time_s)),
            safe(r.mode or "–"),
            safe(r.wake),
            str(r.jobs),
            str(r.waiting),
            str(r.did.get(("start", "done"), 0)),
            str(r.did.get(("stop", "done"), 0)),
            str(later),
            str(refused),
            work(r.work_s),
            f'<span class="bad">{safe(said)}</span>' if said else "–",
        ]

    heads = (
        "round #time mode why #jobs #waiting #started #stopped #deferred #refused #took errors"
    ).split()
    return table("Last rounds", heads, map(row, rows))


def bars(segments: Iterable[Segment], history: History, clock: Clock) -> str:
    """Return what the chart shows, in words."""

    def row(s: Segment) -> list[str]:
        user, workload = history.names.get(s.job_id, ("", ""))
        return [
            name(s.job_id) if s.job_id != OTHERS else "others",
            name(user or "–"),
            name(workload or "–"),
            safe(s.gang),
            safe(clock.moment(s.start_s)),
            safe(clock.moment(s.end_s)),
            duration(s.end_s - s.start_s),
        ]

    heads = ("job", "user", "work", "where", "#from", "#to", "#lasted")
    return table("Who held which GPU, in words", heads, map(row, segments))


def _done(job: Line) -> str:
    steps = _number(job["steps"])
    return share(_number(job["steps_done"]) / steps) if steps > 0 else "–"


def _number(value: object) -> float:
    """Return a number of a journal, 0 where it is none."""
    return float(value) if isinstance(value, int | float) and abs(value) < _LARGEST else 0.0
