"""The pages: what runs where, what waits and why, what GPUs cost, and the last rounds.

They work without scripts, in light and dark, at any width, and for readers who hear them. Whatever
comes from a journal goes through `words.safe` or `words.name`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from urllib.parse import urlencode

from hadar_slurm import __version__
from hadar_slurm.journal import Line
from hadar_slurm.metrics import Segment
from hadar_slurm.web import tables
from hadar_slurm.web.follower import Follower
from hadar_slurm.web.gantt import MAX_GPUS, Window, gantt, kinds_of
from hadar_slurm.web.history import History
from hadar_slurm.web.words import Clock, clean, count, duration, safe

# Hours that can be chosen; 0 is all that was read.
HOURS = (1, 6, 24, 72, 168, 0)
_DAY_H = 24
# Rows of a table on the first page, and on one of the pages with all.
FEW, MANY = 15, 100
_MAX_WORDS = 100
_REFRESH_S = 10
_LATE_S = 60.0

Query = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class View:
    """What a page is made from: the journal, the clock's time, and the words after the `?`."""

    follower: Follower
    now_s: float
    query: Query
    zone: tzinfo | None = None

    @property
    def history(self) -> History:
        """Return what is known of the journal."""
        return self.follower.history

    @property
    def clock(self) -> Clock:
        """Return how the journal's times are told."""
        return Clock(self.history.is_epoch, self.zone)

    @property
    def until_s(self) -> float:
        """Return when the picture ends: now, unless the last round is long ago."""
        now = self.history.now
        if not self.history.is_epoch:
            return now.time_s
        return max(now.time_s, min(self.now_s, now.time_s + now.length_s))

    @property
    def hours(self) -> int:
        """Return the hours to show, 0 for all: a day of a daemon's, all of a simulation's."""
        asked = self.query.get("hours", "")
        usual = _DAY_H if self.history.is_epoch else 0
        return int(asked) if asked in map(str, HOURS) else usual

    @property
    def window(self) -> Window | None:
        """Return the time to show; None while there is none."""
        begins_s = self.history.begins_s
        if self.hours:
            begins_s = max(begins_s, self.until_s - 3600.0 * self.hours)
        return Window(begins_s, self.until_s) if self.until_s > begins_s else None

    @property
    def kind(self) -> str:
        """Return the GPU type that was asked for, "" for all."""
        asked = self.query.get("type", "")
        return asked if asked in self.history.now.gpus else ""


def overview(view: View) -> str:
    """Return the first page."""
    with view.follower.lock:
        history = view.history
        if history.is_empty:
            return _page("Hadar", _head(view) + _alerts(view), "/")
        waits, runs = _jobs(history)
        body = [
            _head(view),
            _alerts(view),
            _tiles(view, waits, runs),
            _types(view),
            _chart(view),
            _waiting(view, waits),
            _running(view, runs),
            _rounds(view),
        ]
        return _page("Hadar", "\n".join(body), "/")


def listing(view: View) -> str:
    """Return one page of all jobs that wait or run."""
    with view.follower.lock:
        history = view.history
        waits, runs = _jobs(history)
        is_running = view.query.get("state") == "running"
        chosen = runs if is_running else waits
        pages = max(1, -(-len(chosen) // MANY))
        asked = view.query.get("page", "")
        page = int(asked) if asked in map(str, range(1, pages + 1)) else 1
        shown = chosen[(page - 1) * MANY : page * MANY]
        table = (
            tables.running(history, shown, history.places(), view.clock)
            if is_running
            else tables.waiting(history, shown, _age_from(view))
        )
        state = "running" if is_running else "waiting"
        links = "".join(
            _link(f"/jobs?{urlencode({'state': state, 'page': n})}", str(n), n == page)
            for n in range(1, pages + 1)
        )
        title = f"{state.capitalize()} jobs"
        body = (
            f"{_head(view)}{_alerts(view)}<section>\n<h2>{title}: {len(chosen):,}</h2>\n"
            + (table if shown else f"<p>No job is {state}.</p>")
            + (f'<nav class="choices" aria-label="Pages">{links}</nav>' if pages > 1 else "")
            + "</section>"
        )
        return _page(f"{title} – Hadar", body, f"/jobs?state={state}")


def missing() -> str:
    """Return the page for addresses that there are none of."""
    return _page(
        "Not here – Hadar",
        "<h1>There is no such page</h1><p>The first one is <a href='/'>here</a>.</p>",
        "",
    )


# Parts of pages.


def _page(title: str, body: str, here: str) -> str:
    links = "".join(
        _link(address, words, address == here)
        for address, words in (
            ("/", "Overview"),
            ("/jobs?state=waiting", "Waiting"),
            ("/jobs?state=running", "Running"),
            ("/metrics", "Metrics"),
        )
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<noscript><meta http-equiv="refresh" content="{3 * _REFRESH_S}"></noscript>\n'
        f"<title>{safe(title)}</title>\n"
        '<link rel="icon" href="/icon.svg" type="image/svg+xml">\n'
        '<link rel="stylesheet" href="/style.css">\n'
        '<script src="/refresh.js" defer></script>\n</head>\n<body>\n'
        '<a class="skip" href="#main">Skip to the content</a>\n'
        f'<header><nav aria-label="Pages of this site">{links}</nav>'
        f'<button id="pause" type="button" hidden data-every="{_REFRESH_S}">Pause</button>'
        "</header>\n"
        f'<main id="main">\n{body}\n</main>\n'
        f"<footer>hadar_slurm {safe(__version__)}. This page only reads.</footer>\n"
        "</body>\n</html>\n"
    )


def _link(address: str, words: str, is_here: bool) -> str:
    here = ' aria-current="page"' if is_here else ""
    return f'<a href="{safe(address)}"{here}>{safe(words)}</a>'


def _head(view: View) -> str:
    history, now = view.history, view.history.now
    path = f'<code class="path">{safe(view.follower.path)}</code>'
    if history.is_empty:
        return f'<h1>Hadar</h1>\n<p class="soft">{path}</p>'
    if history.is_epoch:
        modes = " and ".join(now.modes)
        when = (
            f"the last round began {safe(duration(view.now_s - now.time_s))} ago, "
            f"on {safe(view.clock.moment(now.time_s))} ({safe(view.clock.zone_at(now.time_s))})"
        )
        said = f"Policy {safe(now.policy)}, mode {safe(modes)}; {when}."
    else:
        said = (
            f"A simulation of policy {safe(now.policy)}; the last round began "
            f"{safe(duration(now.time_s))} after its start."
        )
    return f'<h1>Hadar</h1>\n<p>{said}</p>\n<p class="soft">{path}</p>'


def _alerts(view: View) -> str:
    history, now = view.history, view.history.now
    said: list[str] = []
    if view.follower.fault:
        said.append(
            f"The journal cannot be read: {safe(view.follower.fault)}. hadard writes it where "
            "<code>journal:</code> in its configuration says, hadar simulate with "
            "<code>--journal FILE</code>. This page shows it as soon as it can be read."
        )
    elif history.is_empty:
        said.append("The journal has no round yet.")
    if not history.is_empty and history.is_epoch:
        age_s = view.now_s - now.time_s
        if age_s > 3 * now.length_s + _LATE_S:
            said.append(f"No round for {safe(duration(age_s))}: is hadard at work?")
        if history.rounds[-1].errors:
            said.append(f"The last round failed: {safe('; '.join(history.rounds[-1].errors))}")
    if view.follower.strange:
        said.append(
            f"{count(view.follower.strange, 'line')} cannot be read: damaged, or of another "
            "version of hadar_slurm."
        )
    items = "".join(f"<p>{text}</p>" for text in said)
    return f'<div class="alert" role="status">{items}</div>\n' if said else ""


def _jobs(history: History) -> tuple[list[str], list[str]]:
    """Return the jobs that wait and those that run or are about to, by when they came."""
    jobs, places = history.now.jobs, history.places()
    runs = {job for job in jobs if job in places or jobs[job]["phase"] != "queued"}
    return tables.in_order(jobs.keys() - runs, jobs), tables.in_order(runs, jobs)


def _age_from(view: View) -> float:
    return view.now_s if view.history.is_epoch else view.history.now.time_s


def _tiles(view: View, waits: Sequence[str], runs: Sequence[str]) -> str:
    gpus = view.history.now.gpus.values()
    total, held = sum(g.total for g in gpus), sum(g.held for g in gpus)
    tiles = [
        (f"{len(runs):,}", "jobs run"),
        (f"{len(waits):,}", "jobs wait"),
        (f"{held:,} of {total:,}", "GPUs held by Hadar’s jobs"),
        (f"{sum(g.idle for g in gpus):,}", "GPUs idle"),
    ]
    items = "".join(f"<li><strong>{safe(a)}</strong> {safe(b)}</li>" for a, b in tiles)
    return f'<ul class="tiles">{items}</ul>'


def _types(view: View) -> str:
    window = view.window or Window(view.until_s - 1.0, view.until_s)
    spoken = _span(view.hours)
    return (
        "<section>\n<h2>GPUs by type</h2>\n"
        + tables.types(view.history, window)
        + f'<p class="soft">Average and curves: {spoken}. The price is what the policy reckons the '
        "next GPU of a type to be worth; 0 where some are free.</p></section>"
    )


def _span(hours: int) -> str:
    if not hours:
        return "all that was read"
    return f"the last {hours} h" if hours < 48 else f"the last {hours // 24} days"


def _chart(view: View) -> str:
    history, window = view.history, view.window
    nodes, kinds = history.now.nodes, kinds_of(history.now.nodes)
    left_out = sum(kinds.values()) - MAX_GPUS
    chosen = view.kind or (next(iter(kinds), "") if left_out > 0 else "")
    if chosen:
        nodes = _only(nodes, chosen)
    choices = _choices(view, list(kinds), chosen, has_all=left_out <= 0)
    if window is None:
        drawn = "<p>One round alone has no length; the picture begins with the second.</p>"
    else:
        segments = list(history.bars(view.until_s))
        drawn = gantt(_first(nodes), segments, history.names, window, view.clock)
        seen = [s for s in segments if s.end_s > window.from_s and s.start_s < window.to_s]
        drawn += _in_words(view, seen, chosen)
    shown = sum(kinds_of(nodes).values())
    note = (
        f'<p class="soft">The first {MAX_GPUS} of {shown:,} GPUs.</p>' if shown > MAX_GPUS else ""
    )
    legend = (
        '<p class="legend"><span class="key c0"></span>a colour a job '
        '<span class="key others"></span>others <span class="key idle"></span>idle '
        '<span class="key shut"></span>closed now</p>'
    )
    return (
        f'<section id="chart">\n<h2>Who held which GPU</h2>\n{choices}{legend}{drawn}{note}'
        "</section>"
    )


def _choices(view: View, kinds: Sequence[str], chosen: str, *, has_all: bool) -> str:
    def address(hours: int, kind: str) -> str:
        return f"/?{urlencode({'hours': hours} | ({'type': clean(kind)} if kind else {}))}#chart"

    times = "".join(_link(address(h, view.kind), _short(h), h == view.hours) for h in HOURS)
    types = "".join(
        _link(address(view.hours, kind), kind or "all types", kind == chosen)
        for kind in ([""] if has_all else []) + list(kinds)
    )
    return (
        f'<nav class="choices" aria-label="Time to show">{times}</nav>'
        f'<nav class="choices" aria-label="GPU types to show">{types}</nav>'
        if len(kinds) > 1
        else f'<nav class="choices" aria-label="Time to show">{times}</nav>'
    )


def _short(hours: int) -> str:
    return "all" if not hours else f"{hours} h" if hours < 48 else f"{hours // 24} days"


def _only(nodes: Mapping[str, Line], kind: str) -> dict[str, Line]:
    return {
        name: node | {"gpus": {kind: node["gpus"][kind]}}
        for name, node in nodes.items()
        if kind in node["gpus"]
    }


def _first(nodes: Mapping[str, Line]) -> dict[str, Line]:
    """Return as many nodes as a chart has room for."""
    found: dict[str, Line] = {}
    room = MAX_GPUS
    for name, node in nodes.items():
        room -= sum(node["gpus"].values())
        if room < 0:
            break
        found[name] = node
    return found


def _in_words(view: View, seen: Sequence[Segment], chosen: str) -> str:
    segments = [s for s in seen if not chosen or chosen in s.gang.gpus_by_type]
    segments.sort(key=lambda s: (s.start_s, s.job_id), reverse=True)
    shown = segments[:_MAX_WORDS]
    if not shown:
        return ""
    of = f", the last {len(shown)} of {len(segments):,}" if len(shown) < len(segments) else ""
    return (
        f'<details id="words"><summary>In words{of}</summary>\n'
        f"{tables.bars(shown, view.history, view.clock)}</details>"
    )


def _waiting(view: View, waits: Sequence[str]) -> str:
    body = (
        tables.waiting(view.history, waits[:FEW], _age_from(view))
        if waits
        else "<p>No job waits.</p>"
    )
    return f"<section>\n<h2>Waiting: {len(waits):,}</h2>\n{body}{_more(waits, 'waiting')}</section>"


def _running(view: View, runs: Sequence[str]) -> str:
    body = (
        tables.running(view.history, runs[:FEW], view.history.places(), view.clock)
        if runs
        else "<p>No job runs.</p>"
    )
    return f"<section>\n<h2>Running: {len(runs):,}</h2>\n{body}{_more(runs, 'running')}</section>"


def _more(jobs: Sequence[str], state: str) -> str:
    if len(jobs) <= FEW:
        return ""
    return f'<p><a href="/jobs?state={state}">All {len(jobs):,}</a></p>'


def _rounds(view: View) -> str:
    rows = list(view.history.rounds)[-FEW:][::-1]
    return f"<section>\n<h2>Last rounds</h2>\n{tables.rounds(rows, view.clock)}</section>"
