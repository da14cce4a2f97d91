"""The tables of `hadar compare` and their sentences, in a terminal or a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from hadar_slurm.lab.study.summary import KILLED_WORDS, Column, ComparableRuns, Note
from hadar_slurm.status.words import output_console

# Least width of terminals for all columns; narrower ones get fewer.
_WIDE = 200
# Of a table, to find the width that it needs.
_ANY_WIDTH = 4000
_FEW = (
    "off", "ttd_h", "ttd_over_bound", "mean_jct_h", "mean_jct_over_bound", "p95_jct_h",
    "queueing_h", "mean_ftf", "utilization", "killed", "killed_share", "moves", "decision_ms_p50",
)  # fmt: skip
_READABLE = 100
# Of a folded table, in a terminal.
_MOST_ROWS = 12
# Of the terminal's width, for names that are longer to be folded.
_NAMES = 0.5


class _Part(NamedTuple):
    """One column: its heading, and a cell for each row."""

    heading: str
    cells: tuple[Text, ...]


def show(
    found: Sequence[ComparableRuns],
    notes: Sequence[Note],
    verdict: Sequence[str] = (),
    console: Console | None = None,
) -> None:
    """Print the sentences for people who decide, a table for each group, and the notes."""
    if console is None:
        console = output_console()
    for number, words in enumerate(verdict):
        _say(Text(words, style="" if number else "bold"), console)
    for group in found:
        _show_group(group, console)
    show_notes(notes, console)


def show_notes(notes: Sequence[Note], console: Console) -> None:
    """Print notes with their tables."""
    for note in notes:
        console.print(Text(note.heading, style="bold"))
        for words in note.paragraphs:
            _say(Text(words), console)
        if note.table:
            head, *rows = note.table
            shown = rows[:_MOST_ROWS] if note.is_folded else rows
            names, *parts = (
                _Part(heading, tuple(map(Text, cells)))
                for heading, *cells in zip(head, *shown, strict=True)
            )
            _show_parts(names, parts, console)
            if len(rows) > len(shown):
                console.print(f"and {len(rows) - len(shown)} more rows, which the report has")


def _show_group(group: ComparableRuns, console: Console) -> None:
    seeds = f", mean of {group.num_seeds} seeds" if group.num_seeds > 1 else ""
    has_room = console.width >= _WIDE
    captions = [] if has_room else ["files and wider terminals show more columns"]
    captions += [KILLED_WORDS] if group.has_killed else []
    names = [
        Text(f"{entry.policy} ({entry.status})" if entry.status else entry.policy)
        for entry in group.rows
    ]
    parts = [_part(group, column) for column in group.columns if has_room or column.name in _FEW]
    console.print(Text(group.title + seeds, style="bold"), soft_wrap=True)
    _show_parts(_Part("policy", tuple(names)), parts, console)
    for words in captions:
        _say(Text(words, style="italic"), console)


def _say(words: Text, console: Console) -> None:
    """Print a sentence, in readable lines on a terminal, as one line in a file."""
    if console.is_terminal:
        console.print(words, width=min(console.width, _READABLE), soft_wrap=False)
    else:
        console.print(words, soft_wrap=True)


def _part(group: ComparableRuns, column: Column) -> _Part:
    first, _, rest = column.heading.rpartition(" ")
    best = group.best(column)
    return _Part(
        f"{first}\n{rest}".strip(),
        tuple(
            Text(column.text(entry.mean(column)), "bold green" if entry.policy in best else "")
            for entry in group.rows
        ),
    )


def _show_parts(names: _Part, parts: Sequence[_Part], console: Console) -> None:
    """Print columns beside the names of the rows, below each other where they do not fit."""
    left = list(parts)
    while True:
        number = len(left)
        while number > 1 and _width(names, left[:number], console) > console.width:
            number -= 1
        console.print(_table(names, left[:number], console))
        left = left[number:]
        if not left:
            return


def _width(names: _Part, parts: Sequence[_Part], console: Console) -> int:
    """Return the width that columns need without a line break in any."""
    # The console's own width would be the most.
    options = console.options.update(width=_ANY_WIDTH)
    return Measurement.get(console, options, _table(names, parts, console)).maximum


def _table(names: _Part, parts: Sequence[_Part], console: Console) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(
        names.heading, vertical="bottom", overflow="fold", max_width=round(_NAMES * console.width)
    )
    for part in parts:
        table.add_column(part.heading, justify="right", vertical="bottom", overflow="fold")
    for name, *cells in zip(names.cells, *(part.cells for part in parts), strict=True):
        table.add_row(name, *cells)
    return table
