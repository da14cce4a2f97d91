"""Times, copies and tables for terminals and files."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hadar_slurm.journal.values import gang_from_tree
from hadar_slurm.status.jobs import CopyState, Forked

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86400.0

# Files and pipes have room for all columns side by side, whatever the GPU types.
_FILES = 400
# Of a longer text the rest is left out, as in hadard's log.
_MOST_CHARACTERS = 4000


def escaped(text: str) -> str:
    """Return a text as one line, with characters that do not print as `\\x1b` or `\\u202e`.

    Those are control characters, line breaks, marks that reverse or hide text beside them, and what
    cannot be encoded.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def legible(text: str) -> str:
    """Return a text that another user may have chosen so that it can be shown anywhere."""
    return escaped(text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}...")


def _fit(part: RenderableType) -> RenderableType:
    """Return a text as `legible`; a string may be this program's own, with its line breaks."""
    if isinstance(part, Text) and (plain := legible(part.plain)) != part.plain:
        part = part.copy()
        part.plain = plain
    return "\n".join(map(legible, part.split("\n"))) if isinstance(part, str) else part


class _Unpadded(io.TextIOBase):
    """Writes lines to another file, without the spaces at their ends."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._line = file, ""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Return that of the other file, by which letters for tables are chosen."""
        return self._file.encoding

    def write(self, text: str) -> int:
        """Write the lines that are complete now."""
        *lines, self._line = f"{self._line}{text}".split("\n")
        self._file.write("".join(f"{line.rstrip(' ')}\n" for line in lines))
        return len(text)

    def flush(self) -> None:
        """Write what was begun."""
        self._file.write(self._line)
        self._line = ""
        self._file.flush()


class SafeConsole(Console):
    """Prints texts of users, such as the name of a workload, each in one line and `legible`."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield what is printed, in letters that the output's encoding has."""
        for text, style, control in super().render(_fit(renderable), options):
            known = text.encode(self.encoding, "backslashreplace").decode(self.encoding)
            yield Segment(known, style, control)


class _Table(Table):
    """A table whose columns have the width of what is printed."""

    def add_row(self, *cells: RenderableType | None, **settings: Any) -> None:
        super().add_row(*(None if cell is None else _fit(cell) for cell in cells), **settings)


def output_console() -> Console:
    """Return the console of a command's output; in files no line is broken, cut or padded."""
    console = SafeConsole(highlight=False, soft_wrap=True)
    if console.is_terminal:
        return console
    file: io.TextIOBase = _Unpadded(sys.stdout)
    return SafeConsole(file=file, width=_FILES, highlight=False, soft_wrap=True)  # type: ignore[arg-type]


def table_of(*headings: str) -> Table:
    """Return an empty table; a column whose heading begins with `#` is on the right."""
    table = _Table(box=None, pad_edge=False)
    for heading in headings:
        is_number = heading.startswith("#")
        table.add_column(heading.removeprefix("#"), justify="right" if is_number else "left")
    return table


def day(time_s: float) -> str:
    """Return a date in local time."""
    return f"{datetime.fromtimestamp(time_s).astimezone():%Y-%m-%d}"


def span(time_s: float) -> str:
    """Return a duration as text: `50 s`, `12 min`, `3.4 h`, `2.1 days`."""
    if time_s < 2 * _MINUTE_S:
        return f"{time_s:.0f} s"
    if time_s < 2 * _HOUR_S:
        return f"{time_s / _MINUTE_S:.0f} min"
    return f"{time_s / _HOUR_S:.1f} h" if time_s < 2 * _DAY_S else f"{time_s / _DAY_S:.1f} days"


def moment(time_s: float) -> str:
    """Return a time as local date and time: `2026-11-22 08:12:04 UTC`."""
    return f"{datetime.fromtimestamp(time_s).astimezone():%Y-%m-%d %H:%M:%S %Z}"


def round_words(number: int, time_s: float, age_s: float | None) -> str:
    """Return a round's number and time: `round 812, 14 s ago, at 2026-11-22 08:12:04 UTC`."""
    ago = "" if age_s is None else f", {span(age_s)} ago,"
    return f"round {number}{ago} at {moment(time_s)}"


def averages_words(forked: Forked, now_s: float) -> str:
    """Return how often and when copies were averaged, or `synchronous`; "" if unknown."""
    if forked.is_synchronous:
        return "synchronous"
    if forked.averages is None:
        return ""
    times = "once" if forked.averages == 1 else f"{forked.averages} times"
    last = forked.averaged_s
    return f"averaged {times}" + (f", last {span(max(0.0, now_s - last))} ago" if last else "")


def copy_words(copy: CopyState) -> str:
    """Return a copy as text: `copy 0 n1:v100:2 at 4.2 steps/s`."""
    speed = "" if copy.steps_per_s is None else f" at {copy.steps_per_s:.3g} steps/s"
    pinned = " (pinned)" if copy.is_pinned else ""
    return f"copy {copy.number} {gang_from_tree(copy.gang)}{speed}{pinned}"
