"""The pages: jobs with their places or reasons, who uses the GPUs, prices, and the last rounds.

They work without scripts, in light and dark, at any width, and with screen readers. Values are
prepared here; all markup is in `templates`, which escape all text from a journal.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import isfinite
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

from hadar_slurm import __version__
from hadar_slurm.core.cluster import natural_key
from hadar_slurm.metrics import Segment
from hadar_slurm.status.arrays import array_of, as_rows, common_text, gpus_by_type, row_name
from hadar_slurm.status.claims import replanned
from hadar_slurm.status.jobs import PINNED, Forked, state_of
from hadar_slurm.status.use import GROUPS, Labels, Use, number_of, use_by
from hadar_slurm.web import words
from hadar_slurm.web.gantt import MAX_GPUS, Window, gantt, gpu_types_of
from hadar_slurm.web.history import OTHERS, JournalView, Now
from hadar_slurm.web.view import HOURS, PageRequest

# Rows of a table on the first page, on one of the pages with all, and of the picture in words.
FEW, MANY, _MAX_WORDS = 15, 100, 100
# A small curve: its size, and its number of points, of which more would not be visible.
_SPARK_W, _SPARK_H, _SPARK_POINTS = 120.0, 26.0, 120

Values = dict[str, object]
# What each job holds.
Places = Mapping[str, Sequence[Segment]]


TEMPLATES = Environment(
    loader=PackageLoader(__package__),
    autoescape=True,
    undefined=StrictUndefined,
    # A macro's markup is unchanged, other values can be encoded.
    finalize=lambda value: value if hasattr(value, "__html__") else words.encodable(value),
    trim_blocks=True,
    lstrip_blocks=True,
    # An upgrade of the files must not change the pages of a running server.
    auto_reload=False,
)
TEMPLATES.filters |= {
    "clean": words.clean,
    "duration": words.duration,
    "figure": lambda value: "–" if value is None else f"{value:.3g}",
    "share": lambda part: "–" if part is None or not isfinite(part) else f"{100 * part:.0f} %",
    "span": words.span,
    "thousands": "{:,}".format,
    "work": lambda took_s: f"{took_s * 1000:.0f} ms" if took_s < 1 else f"{took_s:.1f} s",
}
TEMPLATES.globals |= {"count": words.count, "version": __version__}


def overview(view: PageRequest) -> str:
    """Return the first page."""
    with view.follower.lock:
        history = view.history
        places = history.places()
        waits, runs = _jobs(history, places)
        waiting, running = _grouped(history, waits), _grouped(history, runs)
        uses = _uses(view)
        return _filled(
            "overview",
            view,
            here="/",
            waits=len(waits),
            runs=len(runs),
            pinned=sum(state_of(history.now.jobs[job]) == PINNED for job in runs),
            types=list(_types(view)),
            chart=_chart(view),
            few=FEW,
            waiting_jobs=waiting,
            running_jobs=running,
            waiting_rows=_rows(view, waiting[:FEW], places),
            running_rows=_rows(view, running[:FEW], places),
            uses=uses[:FEW],
            num_uses=len(uses),
            believed_less=len(history.claims.believed_less(_now_s(view))),
            groups=_group_links(view),
            rounds=list(history.rounds)[-FEW:][::-1],
            max_gpus=MAX_GPUS,
        )


def listing(view: PageRequest) -> str:
    """Return one page of the list of all waiting or running jobs, or of those of one group."""
    with view.follower.lock:
        history = view.history
        places = history.places()
        waits, runs = _jobs(history, places)
        state = "running" if view.query.get("state") == "running" else "waiting"
        chosen = runs if state == "running" else waits
        asked = {group: view.query[group] for group in GROUPS if group in view.query}
        for group, name in asked.items():
            chosen = [job for job in chosen if _group(history, group, job) == name]
        # The tasks of an array that was asked for are listed one by one.
        rows = [(job,) for job in chosen] if "array" in asked else _grouped(history, chosen)
        page, pages = _page(view, len(rows))
        return _filled(
            "listing",
            view,
            here=f"/jobs?state={state}",
            state=state,
            asked={group: words.clean(name) for group, name in asked.items()},
            total=len(chosen),
            rows=_rows(view, rows[(page - 1) * MANY : page * MANY], places),
            page=page,
            pages=pages,
            address=f"/jobs?{urlencode({'state': state, **asked})}",
        )


def usage(view: PageRequest) -> str:
    """Return one page of the list of all groups and what they use."""
    with view.follower.lock:
        uses = _uses(view)
        page, pages = _page(view, len(uses))
        return _filled(
            "usage",
            view,
            here="/use",
            uses=uses[(page - 1) * MANY : page * MANY],
            total=len(uses),
            groups=_group_links(view),
            page=page,
            pages=pages,
            address=f"/use?{urlencode({'by': view.group, 'hours': view.hours})}",
        )


def claims(view: PageRequest) -> str:
    """Return one page of how far claims were off, who is believed less, and which jobs run so."""
    with view.follower.lock:
        history = view.history
        found = history.claims.found(_now_s(view))
        rows, jobs = found.rows(), replanned(history.now.jobs.items())
        page, pages = _page(view, len(rows))
        return _filled(
            "claims",
            view,
            here="/claims",
            found=found,
            rows=rows[(page - 1) * MANY : page * MANY],
            jobs=[(job, list(history.now.jobs[job.job].get("remarks", ()))) for job in jobs[:MANY]],
            num_jobs=len(jobs),
            many=MANY,
            page=page,
            pages=pages,
        )


def _now_s(view: PageRequest) -> float:
    """Return the time now: a simulation's is that of its last round."""
    return view.now_s if view.history.is_epoch else view.history.now.time_s


def _page(view: PageRequest, num_rows: int) -> tuple[int, int]:
    """Return the page of a list that was asked for, and the number of pages."""
    pages = max(1, -(-num_rows // MANY))
    asked = view.query.get("page", "")
    return int(asked) if asked in map(str, range(1, pages + 1)) else 1, pages


def _filled(name: str, view: PageRequest, **values: object) -> str:
    """Return a page about a journal; call it under the follower's lock."""
    return TEMPLATES.get_template(f"{name}.html.j2").render(
        values,
        view=view,
        history=view.history,
        now=view.history.now,
        clock=view.clock,
        window=view.window,
    )


def _jobs(history: JournalView, places: Places) -> tuple[list[str], list[str]]:
    """Return the waiting jobs, and those with GPUs, each in order of submission."""
    jobs = history.now.jobs
    order = sorted(jobs, key=lambda job: (number_of(jobs[job]["submitted_s"]), natural_key(job)))
    runs = [job for job in order if job in places or jobs[job]["phase"] != "queued"]
    has_gpus = set(runs)
    return [job for job in order if job not in has_gpus], runs


def _grouped(history: JournalView, job_ids: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the jobs of each row: tasks of an array that differ in their places alone are one."""
    jobs = history.now.jobs

    def likeness(job_id: str) -> Hashable:
        job = jobs[job_id]
        return state_of(job), job["user"], job["workload"], job["gpus"]

    return as_rows(job_ids, likeness)


def _rows(view: PageRequest, rows: Iterable[Sequence[str]], places: Places) -> list[Values]:
    now, now_s = view.history.now, _now_s(view)
    return [_row(now, job_ids, places, now_s) for job_ids in rows]


def _row(now: Now, job_ids: Sequence[str], places: Places, now_s: float) -> Values:
    """Return a row about one job, or alike tasks of an array.

    A field that the journal lacks or has in a wrong form is empty.
    """
    jobs = [now.jobs[job_id] for job_id in job_ids]
    job, forked, is_one = jobs[0], now.forked.get(job_ids[0]), len(jobs) == 1
    steps = sum(number_of(each["steps"]) for each in jobs)
    held = [segment for job_id in job_ids for segment in places.get(job_id, ())]
    remarks = [list(each.get("remarks", ())) for each in jobs]
    said = common_text("; ".join(texts) for texts in remarks)
    return {
        "job_id": row_name(job_ids),
        "array": "" if is_one else array_of(job_ids[0]),
        "tasks": len(jobs),
        "user": job["user"],
        "work": job["workload"],
        "gpus": job["gpus"],
        "restarts": round(sum(number_of(each["restarts"]) for each in jobs)),
        "remarks": remarks[0] if is_one else [said] if said else [],
        "done": sum(number_of(each["steps_done"]) for each in jobs) / steps if steps > 0 else None,
        "why": common_text(_why(now, job_id) for job_id in job_ids),
        "waited_s": now_s - min(number_of(each["submitted_s"]) for each in jobs),
        "state": state_of(job) if job["phase"] != "queued" else "starting",
        "held": held,
        "by_type": gpus_by_type(segment.gang for segment in held),
        "forked": forked,
        "speeds": {copy.number: copy.steps_per_s for copy in forked.copies} if forked else {},
        "averages": _averages(forked, now.time_s),
    }


def _why(now: Now, job_id: str) -> str:
    """Return why a job waits."""
    chosen = "chosen; it starts when its GPUs are free" if job_id in now.planned else "–"
    return now.waiting.get(job_id, chosen)


def _group(history: JournalView, group: str, job_id: str) -> str:
    return words.clean(GROUPS[group](job_id, Labels.of(history.now.jobs[job_id])))


def _uses(view: PageRequest) -> list[Use]:
    """Return what each group uses, now and in the time shown."""
    history = view.history
    window = view.window or Window(view.until_s - 1.0, view.until_s)
    segments = [s for s in history.bars(view.until_s) if s.job_id != OTHERS and window.shows(s)]
    return use_by(
        GROUPS[view.group],
        segments,
        history.labels,
        history.now.jobs,
        window=(window.from_s, window.to_s),
        now_s=_now_s(view),
    )


def _group_links(view: PageRequest) -> list[tuple[str, str, bool]]:
    """Return what jobs can be grouped by as (query, words, whether it is the current one)."""
    return [
        (_query(view, view.hours, view.gpu_type, group), f"by {group}", group == view.group)
        for group in GROUPS
    ]


def _averages(forked: Forked | None, now_s: float) -> str:
    if forked is not None and forked.is_synchronous:
        return "synchronous"
    if forked is None or forked.averages is None:
        return ""
    last = forked.averaged_s
    ago = "" if last is None else f", last {words.duration(now_s - last)} before this round"
    return f"averaged {words.count(forked.averages, 'time')}{ago}"


def _types(view: PageRequest) -> Iterator[Values]:
    """Yield each type's use, now and in a window, and its price; curves are SVG paths."""
    window = view.window or Window(view.until_s - 1.0, view.until_s)
    points = [point for point, _ in view.history.spans(window.from_s, window.to_s)]
    most = max((price for point in points for price in point.prices.values()), default=0.0)
    for gpu_type, gpus in view.history.now.gpus.items():
        known = [(p.time_s, p.gpus[gpu_type]) for p in points if gpu_type in p.gpus]
        held = [(time_s, now.held / max(1, now.total)) for time_s, now in known]
        prices = [(p.time_s, p.prices[gpu_type]) for p in points if gpu_type in p.prices]
        yield {
            "gpu_type": gpu_type,
            "gpus": gpus,
            "held_share": view.history.held_share(gpu_type, window.from_s, window.to_s),
            "held": _curve(held, window, 1.0),
            "prices": _curve(prices, window, most),
            "most": most,
        }


def _curve(points: Sequence[tuple[float, float]], window: Window, most: float) -> str:
    """Return the path of a step curve from 0 to `most`, each value until the next one."""
    path = ""
    for time_s, value in points[:: max(1, len(points) // _SPARK_POINTS)]:
        x = window.share(time_s) * _SPARK_W
        high = min(1.0, max(0.0, value / most)) if most > 0 else 0.0
        y = 1 + (1 - (high if high == high else 0.0)) * (_SPARK_H - 2)
        path += f"H{x:.1f}V{y:.1f}" if path else f"M{x:.1f} {y:.1f}"
    return path


def _chart(view: PageRequest) -> Values:
    """Return the chart of GPUs by job; `words` are the last of `num_words` rows of it as text."""
    history, window = view.history, view.window
    nodes, gpu_types = history.now.nodes, gpu_types_of(history.now.nodes)
    has_all = sum(gpu_types.values()) <= MAX_GPUS
    chosen = view.gpu_type or ("" if has_all else next(iter(gpu_types), ""))
    if chosen:
        nodes = {
            name: node | {"gpus": {chosen: node["gpus"][chosen]}}
            for name, node in nodes.items()
            if chosen in node["gpus"]
        }
    values: Values = {
        "choices": _choices(view, list(gpu_types), chosen, has_all=has_all),
        "gantt": None,
        "num_gpus": sum(gpu_types_of(nodes).values()),
    }
    if window is None:
        return values
    segments = [segment for segment in history.bars(view.until_s) if window.shows(segment)]
    listed = [s for s in segments if not chosen or chosen in s.gang.gpus_by_type]
    listed.sort(key=lambda s: (s.start_s, s.job_id), reverse=True)
    totals = accumulate(sum(node["gpus"].values()) for node in nodes.values())
    nodes = {
        name: nodes[name] for name, total in zip(nodes, totals, strict=True) if total <= MAX_GPUS
    }
    picture = gantt(nodes, segments, history.labels, window, view.clock)
    return values | {"gantt": picture, "words": listed[:_MAX_WORDS], "num_words": len(listed)}


def _query(view: PageRequest, hours: int, gpu_type: str, group: str) -> str:
    """Return a query for the same page with these choices; usual ones are left out."""
    named = {"type": words.clean(gpu_type)} if gpu_type else {}
    grouped = {"by": group} if group != next(iter(GROUPS)) else {}
    return urlencode({"hours": hours, **named, **grouped})


def _choices(
    view: PageRequest, gpu_types: Sequence[str], chosen: str, *, has_all: bool
) -> dict[str, list[tuple[str, str, bool]]]:
    """Return rows of links as (address, words, whether it is the current page)."""

    def link(hours: int, gpu_type: str, text: str, is_here: bool) -> tuple[str, str, bool]:
        return f"/?{_query(view, hours, gpu_type, view.group)}#chart", text, is_here

    spans = {hours: words.span(hours) if hours else "all" for hours in HOURS}
    times = [link(h, view.gpu_type, text, h == view.hours) for h, text in spans.items()]
    names = [*([""] if has_all else ()), *gpu_types]
    types = [link(view.hours, name, name or "all types", name == chosen) for name in names]
    return {"Time to show": times} | ({"GPU types to show": types} if len(gpu_types) > 1 else {})
