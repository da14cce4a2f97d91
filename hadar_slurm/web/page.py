"""The pages: what runs where, what waits and why, what GPUs cost, and the last rounds.

They work without scripts, in light and dark, at any width, and for readers who hear them. Whatever
comes from a journal goes through `words.safe` or `words.name`.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlencode

from hadar_slurm import __version__
from hadar_slurm.status.health import is_late
from hadar_slurm.status.jobs import PINNED, state_of
from hadar_slurm.web import tables
from hadar_slurm.web.chart import chart
from hadar_slurm.web.gantt import Window
from hadar_slurm.web.history import History
from hadar_slurm.web.view import PageRequest
from hadar_slurm.web.words import count, duration, link, safe

# Rows of a table on the first page, and on one of the pages with all.
FEW, MANY = 15, 100
_REFRESH_S = 10


def overview(view: PageRequest) -> str:
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
            chart(view),
            _waiting(view, waits),
            _running(view, runs),
            _rounds(view),
        ]
        return _page("Hadar", "\n".join(body), "/")


def listing(view: PageRequest) -> str:
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
            link(f"/jobs?{urlencode({'state': state, 'page': n})}", str(n), n == page)
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
        link(address, words, address == here)
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


def _head(view: PageRequest) -> str:
    history, now = view.history, view.history.now
    path = f'<code class="path">{safe(view.follower.path)}</code>'
    if history.is_empty:
        return f'<h1>Hadar</h1>\n<p class="soft">{path}</p>'
    if history.is_epoch:
        modes = " and ".join(now.modes)
        when = (
            f"round {now.number} began {safe(duration(view.now_s - now.time_s))} ago, "
            f"on {safe(view.clock.moment(now.time_s))} ({safe(view.clock.zone_at(now.time_s))})"
        )
        said = f"Policy {safe(now.policy)}, mode {safe(modes)}; {when}."
    else:
        said = (
            f"A simulation of policy {safe(now.policy)}; the last round began "
            f"{safe(duration(now.time_s))} after its start."
        )
    return f'<h1>Hadar</h1>\n<p>{said}</p>\n<p class="soft">{path}</p>'


def _alerts(view: PageRequest) -> str:
    history = view.history
    said: list[str] = []
    if view.follower.fault:
        said.append(
            f"The journal cannot be read: {safe(view.follower.fault)}. hadard writes it where "
            "<code>journal:</code> in its configuration says, hadar simulate with "
            "<code>--journal FILE</code>. This page shows it as soon as it can be read."
        )
    elif history.is_empty:
        said.append("The journal has no round yet.")
    said += _life(view)
    if not history.is_empty and history.is_epoch and history.rounds[-1].errors:
        said.append(f"The last round failed: {safe('; '.join(history.rounds[-1].errors))}")
    if view.follower.strange:
        said.append(
            f"{count(view.follower.strange, 'line')} cannot be read: damaged, or of another "
            "version of hadar_slurm."
        )
    items = "".join(f"<p>{text}</p>" for text in said)
    return f'<div class="alert" role="status">{items}</div>\n' if said else ""


def _life(view: PageRequest) -> list[str]:
    """Return what to know before the last round is believed: is hadard there, can it work?"""
    history, now = view.history, view.history.now
    if not history.is_empty and not history.is_epoch:
        return []
    age_s = view.now_s - now.time_s
    is_old = not history.is_empty and is_late(age_s, now.length_s)
    old = safe(duration(age_s))
    if view.pulse is None:
        return [f"No round for {old}: is hadard at work?"] if is_old else []
    said = []
    if not view.pulse.is_alive(view.now_s):
        place = f'<code class="path">{safe(view.pulse.run_dir)}</code>'
        then = "" if history.is_empty else f" What follows is from {old} ago."
        said.append(f"hadard is not alive: no fresh sign of life in {place}.{then}")
    elif is_old:
        said.append(f"hadard is alive, but its last round is {old} old: what follows is from then.")
    said += [
        f"Problem: {safe(kind)}: {safe(text)}"
        for kind, text in view.pulse.problems(view.now_s).items()
    ]
    return said


def _jobs(history: History) -> tuple[list[str], list[str]]:
    """Return the jobs that wait and those that run or are about to, by when they came."""
    jobs, places = history.now.jobs, history.places()
    runs = {job for job in jobs if job in places or jobs[job]["phase"] != "queued"}
    return tables.in_order(jobs.keys() - runs, jobs), tables.in_order(runs, jobs)


def _age_from(view: PageRequest) -> float:
    return view.now_s if view.history.is_epoch else view.history.now.time_s


def _tiles(view: PageRequest, waits: Sequence[str], runs: Sequence[str]) -> str:
    gpus = view.history.now.gpus.values()
    total, held = sum(g.total for g in gpus), sum(g.held for g in gpus)
    jobs = view.history.now.jobs
    pinned = sum(state_of(jobs[job]) == PINNED for job in runs)
    tiles = [
        (f"{len(runs) - pinned:,}", f"jobs run, {pinned:,} pinned" if pinned else "jobs run"),
        (f"{len(waits):,}", "jobs wait"),
        (f"{held:,} of {total:,}", "GPUs held by Hadar’s jobs"),
        (f"{sum(g.idle for g in gpus):,}", "GPUs idle"),
    ]
    items = "".join(f"<li><strong>{safe(a)}</strong> {safe(b)}</li>" for a, b in tiles)
    return f'<ul class="tiles">{items}</ul>'


def _types(view: PageRequest) -> str:
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


def _waiting(view: PageRequest, waits: Sequence[str]) -> str:
    body = (
        tables.waiting(view.history, waits[:FEW], _age_from(view))
        if waits
        else "<p>No job waits.</p>"
    )
    return f"<section>\n<h2>Waiting: {len(waits):,}</h2>\n{body}{_more(waits, 'waiting')}</section>"


def _running(view: PageRequest, runs: Sequence[str]) -> str:
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


def _rounds(view: PageRequest) -> str:
    rows = list(view.history.rounds)[-FEW:][::-1]
    return f"<section>\n<h2>Last rounds</h2>\n{tables.rounds(rows, view.clock)}</section>"
