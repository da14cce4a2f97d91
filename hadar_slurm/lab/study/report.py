"""The files of a comparison: CSV, JSON, and one self-contained HTML page.

The page works without scripts, in light and dark themes, in print, and with screen readers: plots
have a title and a description, tables have headings for rows and columns.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from hadar_slurm.lab.study import plots
from hadar_slurm.lab.study.compare import Record
from hadar_slurm.lab.study.summary import HOUR_S, KILLED_WORDS, ComparableRuns, Note, Series

# Too long for tables; only the cells' files have them.
_NOT_IN_TABLES = (
    "jcts_s", "killed_jobs", "users", "adopters", "gpu_hours", "occupancy", "detail", "version",
    "queued_s", "gpus", "gpu_types",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Comparison:
    """The content of a report."""

    title: str
    # Repeats the comparison.
    command: str
    records: Sequence[Record]
    # Each has a table.
    groups: Sequence[ComparableRuns]
    notes: Sequence[Note] = ()
    series: Sequence[Series] = ()
    # Number of groups with plots, and index of the group with Gantt charts.
    num_plotted: int = 6
    charted: int = 0
    # Further keys of the JSON.
    tree: Mapping[str, object] = field(default_factory=dict)
    # The first sentences, for people who decide.
    verdict: tuple[str, ...] = ()


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
    """Return all runs, the command and the notes as one JSON object."""
    tree = {
        "title": comparison.title,
        "command": comparison.command,
        "verdict": comparison.verdict,
        "runs": [_short(record) for record in comparison.records],
        "notes": [
            {"heading": note.heading, "paragraphs": note.paragraphs, "table": note.table}
            for note in comparison.notes
        ],
        **comparison.tree,
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
        if not isinstance(value, dict):
            row[name] = value
        elif name != "versions":
            row |= {f"{name}_{key}": part for key, part in value.items()}
    return row


_TEMPLATES = Environment(
    loader=PackageLoader(__package__),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def page(comparison: Comparison) -> str:
    """Return the report as one HTML page."""
    records = comparison.records
    done = [group for group in comparison.groups if group.done]
    charted = done[min(comparison.charted, len(done) - 1)] if done else None
    gantts = [e for e in charted.done if e.records[0].get("occupancy")] if charted else []
    made = sorted(str(record["made"]) for record in records if "made" in record)
    return _TEMPLATES.get_template("report.html.j2").render(
        comparison=comparison,
        plots=plots,
        num_policies=len({record["policy"] for record in records}),
        failed=[record for record in records if record["status"] != "done"],
        charted=charted,
        gantts=gantts,
        until_h=max((float(e.records[0]["ttd_s"]) for e in gantts), default=0.0) / HOUR_S,
        columns={column.name: column for group in done for column in group.columns}.values(),
        killed_words=KILLED_WORDS,
        made=list(dict.fromkeys(made[:1] + made[-1:])),
        machines=sorted({str(record["machine"]) for record in records if "machine" in record}),
        versions=sorted(
            {f"{name} {v}" for record in records for name, v in record.get("versions", {}).items()}
        ),
    )
