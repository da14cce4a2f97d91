"""The tables of a round as last written, and the round after them from a difference. Pure.

`difference.py` says what a difference is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from hadar_slurm.journal.line import Line

# What a damaged or foreign difference raises when it is applied.
DAMAGE = (KeyError, IndexError, TypeError, ValueError, AttributeError)
Table = dict[str, Any]
JOBS = "jobs"
STEPS = "steps_done"
PHASE = "phase"
# The phases of jobs that may train: `steps` has a number for each of these jobs.
_TRAINING = ("running", "starting")
_OWN = ("changes", "without", "renewed")
# What a rule is about.
_PLAIN = frozenset((str, int, float, bool))
NONE = object()


@dataclass(slots=True)
class WrittenTables:
    """What the next difference is about: each table as last written, and the last renewals."""

    tables: dict[str, Table] = field(default_factory=dict)
    renewals: list[Line] = field(default_factory=list)
    # Of the tables of which stretches were named.
    places: dict[str, _Places] = field(default_factory=dict)
    # The jobs that may train, in the order of `steps`.
    training: dict[str, None] = field(default_factory=dict)
    # By table, the rows that the last difference has changed: new ones, those that are gone, and at
    # least all in which more than a number or a text has changed.
    changed: dict[str, list[str]] = field(default_factory=dict)


def follow(state: WrittenTables, tree: Line, *, keeps: bool = True) -> Line:
    """Return the line that a difference stands for, and let `state` be the one after it.

    Rows that have not changed are the same objects as in the line before. Without `keeps` nothing
    is copied, and the lines before are no longer what they were. Raises one of DAMAGE.
    """
    line = {name: value for name, value in tree.items() if name not in _OWN}
    state.changed = {}
    for name, change in tree.get("changes", {}).items():
        state.changed[name] = _apply(state, name, change, keeps=keeps)
    without = tree.get("without", ())
    for name, table in state.tables.items():
        if name not in without and name not in line:
            line[name] = table
    line["actions"], renewals = _joined(state.renewals, tree["actions"], tree.get("renewed", ()))
    state.renewals = renewals or state.renewals
    return line


def _apply(state: WrittenTables, name: str, change: Line, *, keeps: bool) -> list[str]:
    """Change a table; return its rows for `WrittenTables.changed`.

    Other rows are hardly looked at: there may be many thousands.
    """
    old, is_jobs = state.tables.get(name, {}), name == JOBS
    new = state.tables[name] = dict(old) if keeps else old
    sets, each, fresh = change.get("set", ()), change.get("each", {}), change.get("new", {})
    # By the table as it was, before any row of it changes.
    lists = [change.get("gone", ()), *(group.get("of", ()) for group in sets)]
    gone, *chosen = _named(state, name, old, lists)
    for row in gone:
        del new[row]
        if is_jobs:
            state.training.pop(row, None)
    cells = _Cells(new, old if keeps else None)
    # First, since they go by the values before.
    for column, values in _rules_of(sets).items():
        cells.put(column, _with_value(new, column, values))
    if steps := change.get("steps"):
        stepped = zip(state.training, steps, strict=True)
        cells.put(STEPS, ((row, onward(new[row][STEPS], step)) for row, step in stepped if step))
    for group, rows in zip(sets, chosen, strict=True):
        cells.put(group.get("field"), zip(rows, repeat(group.get("to", NONE))))
    for column, given in each.items() if is_jobs else [(None, each)]:
        cells.put(column, given.items())
    for row, value in fresh.items():
        new[row] = new[value[0]] | value[1] if is_jobs and isinstance(value, list) else value
    added = list(fresh)
    for value, rows in change.get("alike", ()):
        new.update(dict.fromkeys(rows, value))
        added += rows
    if places := state.places.get(name):
        places.update(gone, added)
    for row in (*fresh, *cells.phases) if is_jobs else ():
        if new[row].get(PHASE) in _TRAINING:
            state.training.setdefault(row)
        else:
            state.training.pop(row, None)
    own = each.values() if is_jobs else [each]
    return [*gone, *(row for rows in (*chosen, *own) for row in rows), *added]


class _Cells:
    """Writes into a table's rows; rows of the table before (None: not kept) are copied first."""

    def __init__(self, table: Table, before: Table | None) -> None:
        self._table, self._before = table, before
        # The rows whose phase has changed.
        self.phases: list[str] = []

    def put(self, column: str | None, cells: Iterable[tuple[str, Any]]) -> None:
        """Set one cell of each of some rows, or the rows themselves (column None)."""
        table, before = self._table, self._before
        if column is None:
            table.update(cells)
            return
        if column == PHASE:
            cells = list(cells)
            self.phases.extend(row for row, _ in cells)
        for row, value in cells:
            job = table[row]
            if before is not None and job is before[row]:
                job = table[row] = dict(job)
            if value is NONE:
                del job[column]
            else:
                job[column] = value


def _rules_of(sets: Iterable[Line]) -> dict[str | None, dict[Any, Any]]:
    """Return by column the value after each value that all rows that had it have changed."""
    rules: dict[str | None, dict[Any, Any]] = {}
    for group in sets:
        if "of" not in group:
            rules.setdefault(group.get("field"), {})[group["from"]] = group.get("to", NONE)
    return rules


def _with_value(
    table: Table, column: str | None, values: Mapping[Any, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield the rows with one of some plain values in a column, and what it becomes."""
    for name, row in table.items():
        was = row if column is None else row.get(column)
        if type(was) in _PLAIN and was in values:
            yield name, values[was]


def _named(
    state: WrittenTables, name: str, table: Table, lists: Iterable[Iterable[Any]]
) -> list[list[str]]:
    """Return the names in lists that `_Order.rows` has returned."""
    found: list[list[str]] = []
    for rows in lists:
        names: list[str] = []
        for row in rows:
            if isinstance(row, str):
                names.append(row)
            else:
                if name not in state.places:
                    state.places[name] = _Places(table)
                names += state.places[name].between(*row)
        found.append(names)
    return found


def onward(before: Any, step: float) -> Any:
    """Return a job's steps after some more, as rounded in a line."""
    after = before + step
    # Rounding takes longer than all else that is done with a job, and a whole number needs none.
    return round(after, 3) if step and after % 1 else after if step else before


def _joined(
    before: Sequence[Line], new: Sequence[Line], stretches: Iterable[Sequence[int]]
) -> tuple[list[Line], list[Line]]:
    """Return all actions, and the renewals that those of the next round may repeat.

    These are the renewals, and after them one for each job started.
    """
    found: list[Line] = []
    renewals: list[Line] = []
    begin = 0
    for place, first, last in (*stretches, (len(new), 0, -1)):
        if not 0 <= first <= last + 1 <= len(before):
            raise IndexError(f"[{first}, {last}] of {len(before)} renewals")
        others = new[begin:place]
        found += others
        found += before[first : last + 1]
        renewals += [action for action in others if action["do"] == "renew"]
        renewals += before[first : last + 1]
        begin = place
    started = [action for action in new if action["do"] == "start" and action["status"] == "done"]
    renewals += [action | {"do": "renew", "detail": ""} for action in started]
    return found, renewals


class _Places:
    """A table's rows in order, to find stretches of them; kept, since most rows stay."""

    def __init__(self, table: Table) -> None:
        # None: gone.
        self._rows: list[str | None] = list(table)
        self._places = {name: place for place, name in enumerate(table)}

    def between(self, first: str, last: str) -> list[str]:
        """Return the rows from one to another."""
        rows = self._rows[self._places[first] : self._places[last] + 1]
        return [name for name in rows if name is not None]

    def update(self, gone: Iterable[str], new: Iterable[str]) -> None:
        """Let these rows be gone, and these be at the end."""
        for name in gone:
            self._rows[self._places.pop(name)] = None
        for name in new:
            self._places[name] = len(self._rows)
            self._rows.append(name)
