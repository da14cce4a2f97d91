"""The difference between a round and the one before, and the round from a difference. Pure.

Small fields are in every difference as they are. The large ones are tables, of which it has the
rows that are new, gone or changed; what many rows have in common is written once. Renewals, one
for each running job in every round, are given as stretches of those before (docs/journal.md). The
difference to an empty state is the whole round, only shorter.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

from hadar_slurm.journal.line import Line

TABLES = ("nodes", "occupied", "jobs", "ended", "plan", "waiting", "forked", "credits")
# What a damaged or foreign difference raises when it is applied.
DAMAGE = (KeyError, IndexError, TypeError, ValueError, AttributeError)

Table = dict[str, Any]
# Of a change of a cell: the column, and the values before and after as text.
_Key = tuple[str | None, str, str]
# Names, and pairs [first, last] of names in the table's order.
_Rows = list[Any]

_JOBS = "jobs"
_STEPS = "steps_done"
_PHASE = "phase"
# The phases of jobs that may train: `steps` has a number for each of these jobs.
_TRAINING = ("running", "starting")
_OWN = ("changes", "without", "renewed")
# A stretch of fewer rows is not shorter than their names.
_LEAST_STRETCH = 3
# A rule, which looks at all rows, is for at least this many of them.
_LEAST_RULE = 40
# A shorter value is written for each row.
_LEAST_ALIKE = 8
# A new job is written like another of the same kind if at most this many fields differ.
_MOST_OWN = 6
_KIND = ("user", "workload", "gpus", _PHASE)
# What a rule is about.
_PLAIN = frozenset((str, int, float, bool))
_NONE = object()


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


def difference(state: WrittenTables, line: Line) -> Line:
    """Return what `follow` needs to return a line after `state`."""
    tree = {name: value for name, value in line.items() if name not in TABLES}
    tree["actions"], renewed = _split(state.renewals, line["actions"])
    if renewed:
        tree["renewed"] = renewed
    changes = {}
    for name in TABLES:
        table = line.get(name, _NONE)
        if isinstance(table, dict):
            training = state.training if name == _JOBS else None
            if change := _change(state.tables.get(name, {}), table, training):
                changes[name] = change
            elif name not in state.tables:
                changes[name] = {}
        elif table is not _NONE:
            tree[name] = table
    if without := [name for name in state.tables if name not in line]:
        tree["without"] = without
    return {**tree, "changes": changes} if changes else tree


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


def _change(old: Table, new: Table, training: Mapping[str, None] | None) -> Line:
    """Return the change from one table to another, empty if they are equal.

    `training` is of the table of jobs, None for other tables.
    """
    is_jobs, order = training is not None, _Order(old)
    steps = [_step(old[name], new[name]) for name in training or () if name in new]
    alike: dict[_Key, list[str]] = {}
    values: dict[str, Any] = {}
    for name, before in old.items():
        after = new.get(name, _NONE)
        if after is _NONE:
            continue
        if after == before:
            continue
        cells: Iterable[str | None] = before.keys() | after.keys() if is_jobs else (None,)
        for column in cells:
            was, now = _cell(before, column), _cell(after, column)
            if was == now or (
                column == _STEPS and name in (training or ()) and _is_told(before, after)
            ):
                continue
            was_text, now_text = _text(was), _text(now)
            alike.setdefault((column, was_text, now_text), []).append(name)
            values[was_text], values[now_text] = was, now
    rules = _rules(alike, values, [row for name, row in old.items() if name in new])
    each: Line = {}
    sets = []
    for (column, was_text, now_text), names in alike.items():
        was, now = values[was_text], values[now_text]
        if len(names) == 1 and now is not _NONE:
            (each.setdefault(column, {}) if column else each)[names[0]] = now
            continue
        group: Line = {"field": column} if column else {}
        is_rule = (column, was_text, now_text) in rules
        group |= {"from": was} if is_rule else {"of": order.rows(names)}
        sets.append(group if now is _NONE else group | {"to": now})
    fresh = {name: row for name, row in new.items() if name not in old}
    parts = {
        "gone": order.rows([name for name in old if name not in new]),
        "set": sets,
        "each": each,
        "steps": steps if any(steps) else [],
        **(_new_jobs(fresh, new) if is_jobs else _new_rows(fresh)),
    }
    return {name: part for name, part in parts.items() if part}


def _rules(
    alike: Mapping[_Key, Sequence[str]], values: Mapping[str, Any], kept: Sequence[Any]
) -> set[_Key]:
    """Return the changes that all rows with the former value have in common.

    Of plain values only, which one look at each row finds.
    """
    many = [
        key
        for key, names in alike.items()
        if len(names) >= _LEAST_RULE and isinstance(values[key[1]], str | int | float)
    ]
    columns = {column for column, _, _ in many}
    counts = {column: Counter(_plain(row, column) for row in kept) for column in columns}
    # Not a number is not equal to itself.
    return {
        key
        for key in many
        if counts[key[0]][values[key[1]]] == len(alike[key]) and values[key[1]] == values[key[1]]
    }


def _plain(row: Any, column: str | None) -> Any:
    value = _cell(row, column)
    return value if isinstance(value, str | int | float) else None


def _new_jobs(fresh: Table, table: Table) -> Line:
    """Return new jobs: each a row, or [a job of its kind, the fields that differ]."""
    found: Line = {}
    models: dict[tuple[Any, ...], str] = {}
    # All jobs there, so that a new one is like one before it in the table or already there.
    for name, row in table.items() if fresh else ():
        kind = tuple([row.get(column) for column in _KIND])
        if name in fresh:
            found[name] = row
            if (model := models.get(kind)) is not None:
                like = table[model]
                own = {key: value for key, value in row.items() if like.get(key, _NONE) != value}
                if len(own) <= _MOST_OWN and like.keys() <= row.keys():
                    found[name] = [model, own]
        models[kind] = name
    return {"new": found}


def _new_rows(fresh: Table) -> Line:
    """Return new rows: those with a value of their own, and the others by their value."""
    alike: dict[str, list[str]] = {}
    for name, row in fresh.items():
        alike.setdefault(_text(row), []).append(name)
    groups = [names for text, names in alike.items() if len(names) > 1 and len(text) > _LEAST_ALIKE]
    together = {name for names in groups for name in names}
    own = {name: row for name, row in fresh.items() if name not in together}
    return {"new": own, "alike": [[fresh[names[0]], names] for names in groups]}


def _apply(state: WrittenTables, name: str, change: Line, *, keeps: bool) -> list[str]:
    """Change a table; return its rows for `WrittenTables.changed`.

    Other rows are hardly looked at: there may be many thousands.
    """
    old, is_jobs = state.tables.get(name, {}), name == _JOBS
    new = state.tables[name] = dict(old) if keeps else old
    sets, each, fresh = change.get("set", ()), change.get("each", {}), change.get("new", {})
    # By the table as it was, before any row of it changes.
    lists = [change.get("gone", ()), *(group.get("of", ()) for group in sets)]
    gone, *chosen = _named(state, name, old, lists)
    # Rows that are new, or whose phase changes, and all for the result.
    phases, changed = list(fresh), list(gone)

    def put(column: str | None, cells: Iterable[tuple[str, Any]]) -> None:
        if column is None:
            new.update(cells)
            return
        if column == _PHASE:
            cells = list(cells)
            phases.extend(row for row, _ in cells)
        for row, value in cells:
            job = new[row]
            if keeps and job is old[row]:
                job = new[row] = dict(job)
            if value is _NONE:
                del job[column]
            else:
                job[column] = value

    for row in gone:
        del new[row]
        if is_jobs:
            state.training.pop(row, None)
    # First, since they go by the values before.
    for column, values in _rules_of(sets).items():
        put(column, _with_value(new, column, values))
    if steps := change.get("steps"):
        stepped = zip(state.training, steps, strict=True)
        put(_STEPS, ((row, _onward(new[row][_STEPS], step)) for row, step in stepped if step))
    for group, rows in zip(sets, chosen, strict=True):
        put(group.get("field"), zip(rows, repeat(group.get("to", _NONE))))
        changed += rows
    for column, cells in each.items() if is_jobs else [(None, each)]:
        put(column, cells.items())
        changed += cells
    for row, value in fresh.items():
        new[row] = new[value[0]] | value[1] if is_jobs and isinstance(value, list) else value
    added = list(fresh)
    for value, rows in change.get("alike", ()):
        new.update(dict.fromkeys(rows, value))
        added += rows
    if places := state.places.get(name):
        places.update(gone, added)
    for row in phases if is_jobs else ():
        if new[row].get(_PHASE) in _TRAINING:
            state.training.setdefault(row)
        else:
            state.training.pop(row, None)
    return changed + added


def _rules_of(sets: Iterable[Line]) -> dict[str | None, dict[Any, Any]]:
    """Return by column the value after each value that all rows that had it have changed."""
    rules: dict[str | None, dict[Any, Any]] = {}
    for group in sets:
        if "of" not in group:
            rules.setdefault(group.get("field"), {})[group["from"]] = group.get("to", _NONE)
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


def _cell(row: Any, column: str | None) -> Any:
    return row if column is None else row.get(column, _NONE)


def _text(value: Any) -> str:
    return "" if value is _NONE else json.dumps(value, sort_keys=True)


def _step(before: Line, after: Line) -> float:
    """Return the steps between two rows of a job, 0 if they are not numbers."""
    was, now = before.get(_STEPS), after.get(_STEPS)
    if not isinstance(was, int | float) or not isinstance(now, int | float):
        return 0
    # Neither infinite nor beyond what three decimals are kept of.
    if not -1e12 < was < 1e12 or not -1e12 < now < 1e12:
        return 0
    step = round(now - was, 3)
    return int(step) if step == int(step) else step


def _onward(before: Any, step: float) -> Any:
    after = before + step
    # Rounding takes longer than all else that is done with a job, and a whole number needs none.
    return round(after, 3) if step and after % 1 else after if step else before


def _is_told(before: Line, after: Line) -> bool:
    """Return whether a job's entry in `steps` gives its steps exactly."""
    told = _onward(before.get(_STEPS, _NONE), _step(before, after))
    return bool(told == after.get(_STEPS, _NONE))


def _split(before: Sequence[Line], actions: Sequence[Line]) -> tuple[list[Line], list[list[int]]]:
    """Return the actions that were not among those before, and the stretches of those that were.

    A stretch is [number of other actions ahead of it, first, last], by place among those before.
    """
    places = {(action["job"], action["copy"]): n for n, action in enumerate(before)}
    new: list[Line] = []
    stretches: list[list[int]] = []
    for action in actions:
        place = places.get((action["job"], action["copy"]))
        if place is None or before[place] != action:
            new.append(action)
        elif stretches and stretches[-1][0] == len(new) and stretches[-1][2] == place - 1:
            stretches[-1][2] = place
        else:
            stretches.append([len(new), place, place])
    return new, stretches


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


class _Order:
    """A table's rows in order, to name stretches of them."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._places: dict[str, int] = {}

    def rows(self, names: Sequence[str]) -> _Rows:
        """Return names in the table's order with their stretches as pairs."""
        if len(names) < _LEAST_STRETCH:
            return list(names)
        if not self._places:
            self._places = {name: place for place, name in enumerate(self._table)}
        found: _Rows = []
        begin = 0
        while begin < len(names):
            place = self._places[names[begin]]
            # Places only grow, so those of a stretch are as far apart as their numbers.
            ends = range(begin, len(names))
            length = bisect_left(
                ends, 1, key=lambda n: self._places[names[n]] - place - (n - begin)
            )
            stretch = names[begin : begin + length]
            if length < _LEAST_STRETCH:
                found += stretch
            else:
                found.append([stretch[0], stretch[-1]])
            begin += length
        return found


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
