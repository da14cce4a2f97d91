"""What a comparison leaves behind: a CSV and a JSON file, and one page that needs nothing else.

The page works without scripts, in light and dark, on paper, and for readers who hear it: plots
have a title and a description, tables have headings for rows and columns.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from hadar_slurm.lab.study import plots
from hadar_slurm.lab.study.compare import Record
from hadar_slurm.lab.study.summary import HOUR_S, Column, Group, Note, PolicyRecords, Series

# Too long for a table; they stay in the cells' own files.
_NOT_IN_TABLES = ("jcts_s", "gpu_hours", "occupancy", "detail", "version")


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that a report tells; `command` makes the same again.

    All groups have their tables; the first `num_plotted` have plots as well, or the page would be
    nothing else, and group number `charted` has the Gantt charts.
    """

    title: str
    command: str
    records: Sequence[Record]
    groups: Sequence[Group]
    notes: Sequence[Note] = ()
    series: Sequence[Series] = ()
    num_plotted: int = 6
    charted: int = 0


def csv_text(records: Sequence[Record]) -> str:
    """Return one line a run; times in seconds, names as in `hadar simulate --json`."""
    rows = [_flat(record) for record in records]
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def json_text(comparison: Comparison) -> str:
    """Return all runs, what made them, and the notes, as one JSON object."""
    tree = {
        "title": comparison.title,
        "command": comparison.command,
        "runs": [_short(record) for record in comparison.records],
        "notes": [
            {"heading": n.heading, "paragraphs": n.paragraphs, "table": n.table}
            for n in comparison.notes
        ],
    }
    return json.dumps(tree, indent=2) + "\n"


def write_all(folder: Path, comparison: Comparison) -> tuple[Path, ...]:
    """Write compare.csv, compare.json and report.html into `folder` and return their paths."""
    texts = {
        "compare.csv": csv_text(comparison.records),
        "compare.json": json_text(comparison),
        "report.html": page(comparison),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return tuple(folder / name for name in texts)


def _short(record: Record) -> Record:
    return {name: value for name, value in record.items() if name not in _NOT_IN_TABLES}


def _flat(record: Record) -> Record:
    row: Record = {}
    for name, value in _short(record).items():
        if name == "versions":
            continue
        if isinstance(value, dict):
            row |= {f"{name}_{key}": part for key, part in value.items()}
        else:
            row[name] = value
    return row


# The page.


def page(comparison: Comparison) -> str:
    """Return the report as one HTML page."""
    groups = [group for group in comparison.groups if group.done]
    sections = [
        *(_note(note) for note in comparison.notes),
        *(_series(series, f"s{number}") for number, series in enumerate(comparison.series)),
        *(
            _group(group, f"g{number}", is_plotted=number < comparison.num_plotted)
            for number, group in enumerate(comparison.groups)
        ),
        _gantts(groups[min(comparison.charted, len(groups) - 1)]) if groups else "",
        _glossary(groups[0].columns) if groups else "",
        _origin(comparison),
    ]
    title = escape(comparison.title)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{title}</title>\n<style>\n{_CSS}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{title}</h1>\n{_opening(comparison)}\n"
        + "\n".join(section for section in sections if section)
        + "\n</main>\n</body>\n</html>\n"
    )


def _opening(comparison: Comparison) -> str:
    records = comparison.records
    failed = [record for record in records if record["status"] != "done"]
    policies = list(dict.fromkeys(record["policy"] for record in records))
    said = (
        f"{_count(len(policies), 'policy', 'policies')} on "
        f"{_count(len(comparison.groups), 'setting')}, {_count(len(records), 'run')} in all."
    )
    lines = [f"<p>{said} Every run goes through the policy code and the loop that hadard runs.</p>"]
    if failed:
        items = "".join(
            f"<li>{escape(r['policy'])} on {escape(str(r['trace']))}: {escape(r['error'])}</li>"
            for r in failed
        )
        lines.append(
            f'<div class="alert" role="note"><p><strong>{_count(len(failed), "run")} failed.'
            f"</strong></p><ul>{items}</ul></div>"
        )
    return "\n".join(lines)


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _note(note: Note) -> str:
    words = "".join(f"<p>{escape(text)}</p>\n" for text in note.paragraphs)
    table = ""
    if note.table:
        head, *body = note.table
        rows = "".join(
            f'<tr><th scope="row">{escape(row[0])}</th>'
            + "".join(f"<td>{escape(text)}</td>" for text in row[1:])
            + "</tr>\n"
            for row in body
        )
        heads = "".join(f'<th scope="col">{escape(text)}</th>' for text in head)
        table = _scrolled(f"<table><thead><tr>{heads}</tr></thead>\n<tbody>{rows}</tbody></table>")
    return f"<section>\n<h2>{escape(note.heading)}</h2>\n{words}{table}</section>"


def _group(group: Group, slug: str, *, is_plotted: bool) -> str:
    figures = ""
    if group.done and is_plotted:
        figures = _figure(
            plots.trade_off(group, f"{slug}-trade"),
            "Total duration against mean completion time. The dashed lines are lower bounds: no "
            "schedule that gives each job one gang at a time can pass them, and the one on the "
            "left may be out of reach.",
        )
        figures += _figure(
            plots.jct_cdf(group, f"{slug}-cdf"),
            "How many of the jobs were done within a time; further left and higher is better.",
        )
        figures += _figure(
            plots.utilisation(group, f"{slug}-use"),
            "What share of each GPU type's time jobs held until the last one ended. More is not "
            "better by itself: a type can be kept busy with jobs that belong elsewhere.",
        )
    return f"<section>\n<h2>{escape(group.title)}</h2>\n{_table(group)}{figures}</section>"


def _table(group: Group) -> str:
    columns = group.columns
    best = {column.name: group.best(column) for column in columns}
    heads = "".join(
        f'<th scope="col"><abbr title="{escape(c.note)}">{escape(c.heading)}</abbr></th>'
        for c in columns
    )
    rows = "".join(_row(entry, columns, best) for entry in group.entries)
    seeds = f"Mean of {group.num_seeds} seeds. " if group.num_seeds > 1 else ""
    caption = f"{seeds}Bold: the best of its column. Times in hours."
    return _scrolled(
        f"<table>\n<caption>{caption}</caption>\n<thead><tr>"
        f'<th scope="col">policy</th>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>'
    )


def _row(entry: PolicyRecords, columns: Sequence[Column], best: dict[str, frozenset[str]]) -> str:
    key = f'<span class="key" style="background:{plots.style(entry.policy).colour}"></span>'
    head = f'<th scope="row">{key}{escape(entry.policy)}</th>'
    if not entry.records:
        return (
            f'<tr>{head}<td class="failed" colspan="{len(columns)}">failed, see above</td></tr>\n'
        )
    cells = []
    for column in columns:
        text = column.text(entry.mean(column))
        is_best = entry.policy in best[column.name]
        cells.append(f"<td><strong>{text}</strong></td>" if is_best else f"<td>{text}</td>")
    status = f' <span class="failed">({entry.status})</span>' if entry.status else ""
    return f"<tr>{head.replace('</th>', status + '</th>')}{''.join(cells)}</tr>\n"


def _series(series: Series, slug: str) -> str:
    notes = {column.name: column.note for column in series.points[0][1].columns}
    figures = "".join(
        _figure(plots.along(series, name, f"{slug}-{name}"), notes[name]) for name in series.columns
    )
    return (
        f"<section>\n<h2>{escape(series.heading)}</h2>\n<p>{escape(series.words)}</p>\n{figures}"
        "</section>"
    )


def _gantts(group: Group) -> str:
    drawn = [entry for entry in group.done if entry.records[0].get("occupancy")]
    if not drawn:
        return ""
    until_h = max(float(entry.records[0]["ttd_s"]) for entry in drawn) / HOUR_S
    figures = "".join(
        f"<h3>{escape(entry.policy)}</h3>\n"
        + _figure(plots.gantt(entry, f"gantt{number}", until_h=until_h), "")
        for number, entry in enumerate(drawn)
    )
    return (
        f"<section>\n<h2>Who held which GPU: {escape(str(group.labels['trace']))}</h2>\n"
        "<p>One row a GPU, time from left to right on the same scale for all. Dark jobs are small, "
        "bright ones large (GPU-hours on the fastest type); grey is idle; the line is the last "
        f"job's end.</p>\n{figures}</section>"
    )


def _figure(svg: str, caption: str) -> str:
    said = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure><div class="drawn">{svg}</div>{said}</figure>\n'


def _scrolled(table: str) -> str:
    # A table wider than the page scrolls by itself, with the keyboard as well.
    return f'<div class="wide" role="region" aria-label="table" tabindex="0">{table}</div>\n'


def _glossary(columns: Sequence[Column]) -> str:
    items = "".join(
        f"<dt>{escape(column.heading)}</dt><dd>{escape(column.note)}</dd>\n" for column in columns
    )
    return f"<section>\n<h2>What the columns mean</h2>\n<dl>\n{items}</dl>\n</section>"


def _origin(comparison: Comparison) -> str:
    records = comparison.records
    made = sorted(str(record["made"]) for record in records if "made" in record)
    machines = sorted({str(record["machine"]) for record in records if "machine" in record})
    versions = sorted(
        {f"{name} {v}" for record in records for name, v in record.get("versions", {}).items()}
    )
    rows = [
        ("command", f"<code>{escape(comparison.command)}</code>"),
        ("made", escape(" to ".join(dict.fromkeys([made[0], made[-1]])) if made else "-")),
        ("machine", escape("; ".join(machines) or "-")),
        ("versions", escape(", ".join(versions) or "-")),
    ]
    items = "".join(f"<dt>{name}</dt><dd>{value}</dd>\n" for name, value in rows)
    return f"<section>\n<h2>How this was made</h2>\n<dl>\n{items}</dl>\n</section>"


_CSS = """\
:root { --ink: #1b1f24; --paper: #ffffff; --faint: #c3c8cf; --idle: #e9ebee; --soft: #5b636e;
  --stripe: #f5f6f8; --alert: #a3160f; --sans: system-ui, "Segoe UI", Roboto, "Helvetica Neue",
  Arial, sans-serif; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --paper: #15181d; --faint: #4a515b; --idle: #2a2f37; --soft: #a0a8b3;
    --stripe: #1c2027; --alert: #ff9a90; }
}
html { background: var(--paper); color: var(--ink); font: 16px/1.5 var(--sans); }
body { margin: 0; }
main { max-width: 78rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .75rem; }
h2 { font-size: 1.2rem; line-height: 1.3; margin: 2.75rem 0 .75rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 0; }
p, dd { max-width: 46rem; }
figure { margin: 1.5rem 0; max-width: 64rem; }
h3 + figure { margin-top: .4rem; }
figcaption { color: var(--soft); font-size: .9rem; max-width: 46rem; }
.drawn { overflow-x: auto; }
svg.plot { display: block; width: 100%; min-width: 40rem; height: auto; color: var(--ink); }
svg.plot image { image-rendering: pixelated; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .8rem; font-variant-numeric: tabular-nums; }
caption { caption-side: bottom; text-align: left; color: var(--soft); padding-top: .5rem; }
th, td { padding: .3rem .4rem; text-align: right; white-space: nowrap; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
thead th { border-bottom: 1px solid var(--ink); vertical-align: bottom; white-space: normal;
  font-weight: 600; }
tbody th { font-weight: 500; }
tbody tr:nth-child(even) > * { background: var(--stripe); }
td strong { font-weight: 700; }
abbr { text-decoration: none; }
.key { display: inline-block; width: .7em; height: .7em; margin-right: .5em; border-radius: 2px; }
.failed { color: var(--alert); text-align: left; }
.alert { border-left: 4px solid var(--alert); padding: .1rem 1rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .35rem 1.25rem; }
dt { font-weight: 600; }
dd { margin: 0; }
@media (max-width: 40rem) { dl { display: block; } dd { margin: 0 0 .6rem; } }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, monospace; font-size: .875em;
  overflow-wrap: anywhere; }
@page { size: A4 landscape; margin: 12mm; }
@media print {
  :root { --ink: #000; --paper: #fff; --faint: #bbb; --idle: #e9ebee; --soft: #444;
    --stripe: #fff; --alert: #a3160f; }
  html { font-size: 10pt; }
  main { max-width: none; padding: 0; }
  .wide, .drawn { overflow: visible; }
  svg.plot { min-width: 0; }
  table { font-size: 7.5pt; }
  th, td { padding: .15rem .3rem; }
  figure { max-width: 22cm; }
  figure, tr, h2, h3 { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  .key { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
