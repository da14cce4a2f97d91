"""The report's plots, as SVG elements for an HTML page.

Text remains text and follows the page's theme: colours in `_THEME` become CSS variables. Every
policy of a group has one colour, dash and marker in all of its plots (`styles.py`). matplotlib is
imported where a plot is drawn.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from hadar_slurm.lab.study import occupancy
from hadar_slurm.lab.study.styles import DASH, Style, styles
from hadar_slurm.lab.study.summary import (
    HOUR_S,
    ComparableRuns,
    Matrix,
    PolicyRecords,
    Series,
)
from hadar_slurm.policies.solver import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Placeholder colours, replaced by those of the page.
_INK, _FAINT, _IDLE = "#010203", "#040506", "#070809"
_THEME = {_INK: "currentColor", _FAINT: "var(--faint)", _IDLE: "var(--idle)"}
_WIDTH_IN = 9.6
_INKED = "axes.labelcolor axes.titlecolor text.color xtick.labelcolor ytick.labelcolor".split()
_RC: Any = {
    **dict.fromkeys(_INKED, _INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color", "xtick.color", "ytick.color"), _FAINT),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor"), "none"),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    "svg.fonttype": "none",
    "font.family": ["sans-serif"],
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.titleweight": "normal",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.5,
}


def styles_of(group: ComparableRuns) -> dict[str, Style]:
    """Return the styles of the policies of a group."""
    return styles(entry.policy for entry in group.entries)


def jct_cdf(group: ComparableRuns, slug: str) -> str:
    """Return a plot of the share of jobs done within a time, for each policy."""
    with _figure(4.0) as figure:
        axes = figure.subplots()
        least_h, looks = np.inf, styles_of(group)
        entries = sorted(group.done, key=lambda entry: _mean(entry, "mean_jct_s"))
        for entry in entries:
            hours = np.sort(np.concatenate([r["jcts_s"] for r in entry.records])) / HOUR_S
            share = 100.0 * np.arange(1, len(hours) + 1) / len(hours)
            keep = np.unique(np.linspace(0, len(hours) - 1, 250).astype(int))
            _line(axes, entry.policy, hours[keep], share[keep], look=looks[entry.policy])
            least_h = min(least_h, float(hours[0]))
        axes.set(xscale="log", xlim=(max(least_h, 0.02), None), ylim=(0, 100))
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
        axes.tick_params(axis="x", which="minor", labelbottom=False)
        axes.set(xlabel="job completion time in hours (logarithmic)", ylabel="jobs done, %")
        _legend(axes, "by mean JCT, best first")
        means = ", ".join(f"{e.policy} {_mean(e, 'mean_jct_s'):.1f} h" for e in entries)
        said = f"Mean completion times: {means}."
        return _svg(figure, slug, "Share of jobs done within a given time", said)


def trade_off(group: ComparableRuns, slug: str) -> str:
    """Return a plot of TTD against mean JCT, a point per policy, with both lower bounds."""
    with _figure(4.2) as figure:
        axes = figure.subplots()
        points = {e.policy: (_mean(e, "mean_jct_s"), _mean(e, "ttd_s")) for e in group.done}
        looks = styles_of(group)
        for policy, (jct_h, ttd_h) in points.items():
            look = looks[policy]
            axes.plot(jct_h, ttd_h, look.marker, color=look.colour, markersize=8)
        least_jct_h, least_ttd_h = (least_bound_h(group, name) for name in ("mean_jct", "ttd"))
        for draw, least_h in ((axes.axvline, least_jct_h), (axes.axhline, least_ttd_h)):
            draw(least_h, color=_INK, linewidth=0.8 if least_h else 0.0, linestyle=DASH)
        axes.margins(0.12)
        left_h = min(0.0, axes.get_xlim()[0])
        axes.set(xlim=(left_h, None), xlabel="mean JCT in hours", ylabel="TTD in hours")
        words: Any = {"textcoords": "offset points", "fontsize": 8.5, "style": "italic"}
        top, right = axes.get_ylim()[1], axes.get_xlim()[1]
        bound = "lower bound" if least_jct_h and least_ttd_h else ""
        axes.annotate(bound, (least_jct_h, top), xytext=(4, -9), **words)
        axes.annotate(bound, (right, least_ttd_h), xytext=(0, -11), ha="right", **words)
        figure.draw_without_rendering()
        _name_points(axes, points, looks=looks, avoid=(least_jct_h, least_ttd_h))
        said = "; ".join(f"{p}: {y:.1f} h and {x:.1f} h" for p, (x, y) in points.items())
        title = (
            "TTD against mean JCT; the best point is nearest to the crossing of the dashed bounds"
        )
        least = f"Bounds: {least_ttd_h:.1f} h and {least_jct_h:.1f} h." if bound else ""
        return _svg(figure, slug, title, f"TTD and mean JCT. {said}. {least}")


def least_bound_h(group: ComparableRuns, name: str) -> float:
    """Return the least of the rows' own bounds of `mean_jct` or `ttd`, in hours; else 0.

    Rows may have jobs of their own, as those of an adoption study, or copies: a bound of one is
    none of the others. None holds where time limits have ended jobs.
    """
    found = []
    for entry in group.done:
        ratios = [record.get(f"{name}_over_bound") for record in entry.records]
        if not all(ratios):
            return 0.0
        pairs = zip(entry.records, ratios, strict=True)
        bounds_s = [record[f"{name}_s"] / ratio for record, ratio in pairs if ratio]
        found.append(sum(bounds_s) / len(bounds_s) / HOUR_S)
    return min(found, default=0.0)


def utilisation(group: ComparableRuns, slug: str) -> str:
    """Return a plot of the share of each GPU type's time that jobs held, a bar per policy."""
    rows = group.done
    shares = {
        gpu_type: [entry.mean(group.column(f"held_{gpu_type}")) or 0.0 for entry in rows]
        for gpu_type in group.gpu_types
    }
    looks = styles_of(group)
    colours = [looks[entry.policy].colour for entry in rows]
    with _figure(0.9 + 0.27 * len(rows)) as figure:
        panels = figure.subplots(1, len(shares), sharey=True, squeeze=False)[0]
        for panel, (gpu_type, held) in zip(panels, shares.items(), strict=True):
            panel.barh(range(len(rows)), held, height=0.72, color=colours)
            for row, share in enumerate(held):
                panel.text(share + 1.5, row, f"{share:.0f}", va="center", fontsize=8.5)
            panel.set(xlim=(0, 112), xticks=[0, 50, 100], title=f"{gpu_type}, % of time held")
            panel.set_yticks(range(len(rows)), [entry.policy for entry in rows])
            panel.tick_params(axis="y", length=0)
            panel.grid(axis="y", visible=False)
        panels[0].invert_yaxis()
        said = "; ".join(
            f"{e.policy} " + ", ".join(f"{name} {held[i]:.0f} %" for name, held in shares.items())
            for i, e in enumerate(rows)
        )
        return _svg(figure, slug, "Share of each GPU type's time that jobs held", said + ".")


def along(series: Series, name: str, slug: str) -> str:
    """Return a plot of a column along a series, a line per policy."""
    with _figure(3.6) as figure:
        axes = figure.subplots()
        lines: dict[str, list[tuple[float, float]]] = {}
        looks = styles(e.policy for _, group in series.points for e in group.entries)
        column = series.points[0][1].column(name)
        for x, group in series.points:
            for entry in group.done:
                if (value := entry.mean(column)) is not None:
                    lines.setdefault(entry.policy, []).append((x, value))
        for policy, points in sorted(lines.items(), key=lambda line: max(line[1])[1], reverse=True):
            xs, ys = zip(*sorted(points), strict=True)
            _line(axes, policy, np.array(xs), np.array(ys), look=looks[policy], has_markers=True)
        xs = tuple(sorted({x for x, _ in series.points}))
        axes.set_xticks(xs, [f"{x:g}" for x in xs])
        least = 0.98 if name.endswith("over_bound") else 0.0
        axes.set(ylim=(least, None), xlabel=series.axis, ylabel=column.heading)
        _legend(axes, "as at the right end")
        said = "; ".join(
            f"{policy}: " + ", ".join(f"{column.text(y)} at {x:g}" for x, y in sorted(points))
            for policy, points in lines.items()
        )
        title = f"{column.heading} against {series.axis}"
        return _svg(figure, slug, title, f"{column.note} {said}.")


def gantt(entry: PolicyRecords, slug: str, *, until_h: float) -> str:
    """Return a Gantt chart of a policy's run up to `until_h`, jobs coloured by size."""
    record = entry.records[0]
    seen = occupancy.from_tree(record["occupancy"])
    ttd_h = float(record["ttd_s"]) / HOUR_S
    num_gpus = len(seen.jobs)
    with _figure(0.7 + max(1.0, 0.03 * num_gpus)) as figure:
        from hadar_slurm.lab.study.gantt import draw_by_size

        draw_by_size(figure, seen, np.array(record["gpu_hours"]), until_h=until_h, idle=_IDLE)
        share = 100.0 * float((seen.jobs >= 0).mean())
        title = f"{entry.policy}: {num_gpus} GPUs over time, the last job ends after {ttd_h:.1f} h"
        said = f"One row per GPU, jobs coloured by size, {share:.0f} % of the area held by jobs."
        return _svg(figure, slug, title, said)


def heat_map(matrix: Matrix, slug: str) -> str:
    """Return a heat map of ratios, blue below 1 and red above, with the ratios as text."""
    with _figure(0.5 + 0.27 * len(matrix.rows)) as figure:
        from hadar_slurm.lab.study.heatmap import draw

        draw(figure.subplots(), matrix)
        lines = zip(matrix.rows, matrix.values, strict=True)
        said = "; ".join(
            f"{row}: "
            + ", ".join(
                f"{column} {'unknown' if value is None else f'{value:.2f}'}"
                for column, value in zip(matrix.columns, values, strict=True)
            )
            for row, values in lines
        )
        return _svg(figure, slug, matrix.heading, said + ".")


@contextmanager
def _figure(height_in: float) -> Iterator[Figure]:
    """Yield a figure in the page's style."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_RC):
        yield Figure(figsize=(_WIDTH_IN, height_in), layout="constrained")


def _mean(entry: PolicyRecords, name: str) -> float:
    """Return a time's mean over the seeds, in hours."""
    return float(np.mean([record[name] for record in entry.records])) / HOUR_S


def _line(
    axes: Axes, policy: str, x: Floats, y: Floats, *, look: Style, has_markers: bool = False
) -> None:
    marker = look.marker if has_markers else ""
    width, layer = (2.6, 3) if _is_hadar(policy) else (1.6, 2)
    line = axes.plot(x, y, color=look.colour, linestyle=look.dash, marker=marker, label=policy)
    line[0].set(markersize=5.5, linewidth=width, zorder=layer)


def _legend(axes: Axes, title: str) -> None:
    place: Any = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.02), "alignment": "left"}
    axes.legend(title=title, title_fontsize=9, handlelength=3.2, **place)


def _name_points(
    axes: Axes,
    points: Mapping[str, tuple[float, float]],
    *,
    looks: Mapping[str, Style],
    avoid: tuple[float, float],
) -> None:
    """Write each policy's name beside its point, where no name, point or line of `avoid` is."""
    height, letter, gap = 12.0, 5.6, 8.0
    place, scale = axes.transData.transform, 72.0 / axes.figure.dpi
    spots = {policy: place(point) * scale for policy, point in points.items()}
    (at_x, at_y), (right, top) = place([avoid, (axes.get_xlim()[1], axes.get_ylim()[1])]) * scale
    # The two lines and their labels.
    taken = [(at_x - 1, -np.inf, at_x + 1, np.inf), (-np.inf, at_y - 1, np.inf, at_y + 1)]
    taken += [(at_x, top - 12, at_x + 62, top), (right - 62, at_y - 13, right, at_y)]
    taken += [(x - 5, y - 5, x + 5, y + 5) for x, y in spots.values()]
    for policy, (x, y) in sorted(spots.items(), key=lambda item: tuple(item[1])):
        width = letter * len(policy)
        # Right, left, above, below, then further away.
        tries = [
            (dx, dy)
            for step in (0, 12, 24, 36, 48)
            for dx in (gap, -gap - width, -width / 2)
            for dy in (-height / 2 + step, -height / 2 - step)
            if dx != -width / 2 or step
        ]
        boxes = {(x + dx, y + dy, x + dx + width, y + dy + height): (dx, dy) for dx, dy in tries}
        clear = (box for box in boxes if not any(_overlap(box, other) for other in taken))
        taken.append(next(clear, next(iter(boxes))))
        dx, dy = boxes[taken[-1]]
        look: Any = {"color": looks[policy].colour, "textcoords": "offset points"}
        look |= {
            "fontweight": "bold" if _is_hadar(policy) else "normal",
            "annotation_clip": False,
        }
        axes.annotate(policy, points[policy], xytext=(dx, dy + 2.5), **look)


def _is_hadar(policy: str) -> bool:
    """Return whether a row, by its name, is one of hadar."""
    return policy.partition(" ")[0] == "hadar"


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _svg(figure: Figure, slug: str, title: str, said: str) -> str:
    """Return a figure as an element for a page, with a title and a description for all readers."""
    from matplotlib import rc_context

    text = io.StringIO()
    with rc_context({"svg.hashsalt": slug}):
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = "<svg" + text.getvalue().partition("<svg")[2]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font: ([^;\"]*?)([\d.]+px) [^;\"]*", r"font: \1\2 var(--sans)", svg)
    for drawn, shown in _THEME.items():
        svg = svg.replace(drawn, shown)
    # Ids become unique in the page; unreferenced ones go.
    wanted = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda m: f' id="{slug}-{m[1]}"' if m[1] in wanted else "", svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\1{slug}-", svg)
    box = re.search(r'viewBox="([^"]*)"', svg)
    assert box is not None
    head = (
        f'<svg class="plot" viewBox="{box[1]}" role="img" aria-labelledby="{slug}-t {slug}-d" '
        'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
        f'<title id="{slug}-t">{escape(title)}</title><desc id="{slug}-d">{escape(said)}</desc>'
    )
    return re.sub(r"^<svg[^>]*>", lambda _: head, svg.strip(), count=1)
