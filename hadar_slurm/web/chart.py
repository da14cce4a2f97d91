"""The section with the picture: choices of time and type, legend, and the same in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

from hadar_slurm.journal import Line
from hadar_slurm.metrics import Segment
from hadar_slurm.web import tables
from hadar_slurm.web.gantt import MAX_GPUS, gantt, kinds_of
from hadar_slurm.web.view import HOURS, PageRequest
from hadar_slurm.web.words import clean, link

# Rows of the table that has the picture in words.
_MAX_WORDS = 100


def chart(view: PageRequest) -> str:
    """Return who held which GPU; use it under the follower's lock."""
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


def _choices(view: PageRequest, kinds: Sequence[str], chosen: str, *, has_all: bool) -> str:
    def address(hours: int, kind: str) -> str:
        return f"/?{urlencode({'hours': hours} | ({'type': clean(kind)} if kind else {}))}#chart"

    times = "".join(link(address(h, view.kind), _short(h), h == view.hours) for h in HOURS)
    types = "".join(
        link(address(view.hours, kind), kind or "all types", kind == chosen)
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


def _in_words(view: PageRequest, seen: Sequence[Segment], chosen: str) -> str:
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
