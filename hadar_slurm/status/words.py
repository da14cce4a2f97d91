"""Times, copies and tables for terminals and files."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterable
from datetime import datetime
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from hadar_slurm.journal.values import gang_from_tree
from hadar_slurm.status.jobs import CopyState, Forked

_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86400.0

# Files and pipes have room for all columns side by side, whatever the GPU types.
_FILES = 400
# Those of ASCII, of which a line break and a tab are harmless, and of Latin-1.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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
    """Prints texts of users, such as the name of a workload, without commands to the terminal."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield what is printed, texts without their control characters."""
        for text, style, control in super().render(renderable, options):
            is_safe = control or text.isprintable()
            yield Segment(text if is_safe else _UNSAFE.sub("", text), style, control)


def output_console() -> Console:
    """Return the console of a command's output; in files no line is broken, cut or padded."""
    console = SafeConsole(highlight=False, soft_wrap=True)
    if console.is_terminal:
        return console
    file: io.TextIOBase = _Unpadded(sys.stdout)
    return SafeConsole(file=file, width=_FILES, highlight=False, soft_wrap=True)  # type: ignore[arg-type]


def table_of(*headings: str) -> Table:
    """Return an empty table; a column whose heading begins with `#` is on the right."""
    table = Table(box=None, pad_edge=False)
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
