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
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hadar_slurm.journal.line import Line
from hadar_slurm.journal.tables import JOBS, NONE, PHASE, STEPS, Table, WrittenTables, onward

TABLES = ("nodes", "occupied", "jobs", "ended", "plan", "waiting", "forked", "credits")
# Of a change of a cell: the column, and the values before and after as text.
_Key = tuple[str | None, str, str]
# Names, and pairs [first, last] of names in the table's order.
_Rows = list[Any]

# A stretch of fewer rows is not shorter than their names.
_LEAST_STRETCH = 3
# A rule, which looks at all rows, is for at least this many of them.
_LEAST_RULE = 40
# A shorter value is written for each row.
_LEAST_ALIKE = 8
# A new job is written like another of the same kind if at most this many fields differ.
_MOST_OWN = 6
_KIND = ("user", "workload", "gpus", PHASE)


def difference(state: WrittenTables, line: Line) -> Line:
    """Return what `follow` needs to return a line after `state`."""
    tree = {name: value for name, value in line.items() if name not in TABLES}
    tree["actions"], renewed = _split(state.renewals, line["actions"])
    if renewed:
        tree["renewed"] = renewed
    changes = {}
    for name in TABLES:
        table = line.get(name, NONE)
        if isinstance(table, dict):
            training = state.training if name == JOBS else None
            if change := _change(state.tables.get(name, {}), table, training):
                changes[name] = change
            elif name not in state.tables:
                changes[name] = {}
        elif table is not NONE:
            tree[name] = table
    if without := [name for name in state.tables if name not in line]:
        tree["without"] = without
    return {**tree, "changes": changes} if changes else tree


def _change(old: Table, new: Table, training: Mapping[str, None] | None) -> Line:
    """Return the change from one table to another, empty if they are equal.

    `training` is of the table of jobs, None for other tables.
    """
    is_jobs, order = training is not None, _Order(old)
    steps = [_step(old[name], new[name]) for name in training or () if name in new]
    alike, values = _changed_cells(old, new, training)
    rules = _rules(alike, values, [row for name, row in old.items() if name in new])
    each: Line = {}
    sets = []
    for (column, was_text, now_text), names in alike.items():
        was, now = values[was_text], values[now_text]
        if len(names) == 1 and now is not NONE:
            (each.setdefault(column, {}) if column else each)[names[0]] = now
            continue
        group: Line = {"field": column} if column else {}
        is_rule = (column, was_text, now_text) in rules
        group |= {"from": was} if is_rule else {"of": order.rows(names)}
        sets.append(group if now is NONE else group | {"to": now})
    fresh = {name: row for name, row in new.items() if name not in old}
    parts = {
        "gone": order.rows([name for name in old if name not in new]),
        "set": sets,
        "each": each,
        "steps": steps if any(steps) else [],
        **(_new_jobs(fresh, new) if is_jobs else _new_rows(fresh)),
    }
    return {name: part for name, part in parts.items() if part}


def _changed_cells(
    old: Table, new: Table, training: Mapping[str, None] | None
) -> tuple[dict[_Key, list[str]], dict[str, Any]]:
    """Return the rows that share a change of a cell, and the values by their text."""
    alike: dict[_Key, list[str]] = {}
    values: dict[str, Any] = {}
    for name, before in old.items():
        after = new.get(name, NONE)
        if after is NONE or after == before:
            continue
        is_jobs = training is not None
        cells: Iterable[str | None] = before.keys() | after.keys() if is_jobs else (None,)
        for column in cells:
            was, now = _cell(before, column), _cell(after, column)
            if was == now or (
                column == STEPS and name in (training or ()) and _is_told(before, after)
            ):
                continue
            was_text, now_text = _text(was), _text(now)
            alike.setdefault((column, was_text, now_text), []).append(name)
            values[was_text], values[now_text] = was, now
    return alike, values


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
                own = {key: value for key, value in row.items() if like.get(key, NONE) != value}
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


def _cell(row: Any, column: str | None) -> Any:
    return row if column is None else row.get(column, NONE)


def _text(value: Any) -> str:
    return "" if value is NONE else json.dumps(value, sort_keys=True)


def _step(before: Line, after: Line) -> float:
    """Return the steps between two rows of a job, 0 if they are not numbers."""
    was, now = before.get(STEPS), after.get(STEPS)
    if not isinstance(was, int | float) or not isinstance(now, int | float):
        return 0
    # Neither infinite nor beyond what three decimals are kept of.
    if not -1e12 < was < 1e12 or not -1e12 < now < 1e12:
        return 0
    step = round(now - was, 3)
    return int(step) if step == int(step) else step


def _is_told(before: Line, after: Line) -> bool:
    """Return whether a job's entry in `steps` gives its steps exactly."""
    told = onward(before.get(STEPS, NONE), _step(before, after))
    return bool(told == after.get(STEPS, NONE))


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
