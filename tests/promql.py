"""Evaluates the part of PromQL that the shipped alert rules use, on the text of metrics pages.

`increase` is the difference between the last page and the first; `for` and time series are not
modelled.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence

from prometheus_client.parser import text_string_to_metric_families as parse

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Value = Vector | float

_TOKEN = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*|"[^"]*"|[0-9.]+|[<>=!]=|[-+*/<>=(){}\[\],])')
_LEVELS: Sequence[Sequence[str]] = (
    ("or",),
    ("and", "unless"),
    ("==", "!=", ">", "<", ">=", "<="),
    ("+", "-"),
    ("*", "/"),
)
_DO: dict[str, Callable[[float, float], float]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


def alerts_of(expression: str, pages: Sequence[str], now_s: float) -> Vector:
    """Return the series for which an alert with this expression is active at the last page."""
    found = _Evaluation(expression, pages, now_s).value()
    assert not isinstance(found, float), "an alert's expression is a vector"
    return found


class _Evaluation:
    def __init__(self, expression: str, pages: Sequence[str], now_s: float) -> None:
        self.words = _TOKEN.findall(expression)
        assert "".join(self.words) == re.sub(r"\s", "", expression), expression
        self.pages = [
            {
                (sample.name, frozenset(sample.labels.items())): sample.value
                for family in parse(page)
                for sample in family.samples
            }
            for page in pages
        ]
        self.now_s = now_s

    def value(self) -> Value:
        found = self._level(0)
        assert not self.words, self.words
        return found

    def _take(self, *expected: str) -> str:
        word: str = self.words.pop(0)
        assert not expected or word in expected, (word, expected)
        return word

    def _level(self, level: int) -> Value:
        if level == len(_LEVELS):
            return self._atom()
        left = self._level(level + 1)
        while self.words and self.words[0] in _LEVELS[level]:
            word = self._take()
            on = self._names() if self.words[0] == "on" and self._take() else None
            left = _joined(word, left, self._level(level + 1), on)
        return left

    def _names(self) -> list[str]:
        self._take("(")
        names = []
        while (word := self._take()) != ")":
            names += [word] if word != "," else []
        return names

    def _atom(self) -> Value:
        word = self._take()
        if word == "(":
            found = self._level(0)
            self._take(")")
            return found
        if word[0].isdigit():
            return float(word)
        if word == "time":
            self._take("(")
            self._take(")")
            return self.now_s
        if word == "sum":
            self._take("by")
            names = self._names()
            return _summed(self._atom(), names)
        if word == "increase":
            self._take("(")
            name, wanted = self._take(), self._selector()
            for expected in ("[", "1", "h", "]", ")"):
                self._take(expected)
            before, after = self._series(0, name, wanted), self._series(-1, name, wanted)
            return {key: value - before.get(key, 0.0) for key, value in after.items()}
        return self._series(-1, word, self._selector())

    def _selector(self) -> Labels:
        wanted: list[tuple[str, str]] = []
        if self.words and self.words[0] == "{":
            while self._take() != "}":
                name = self._take()
                self._take("=")
                wanted.append((name, self._take().strip('"')))
        return frozenset(wanted)

    def _series(self, page: int, name: str, wanted: Labels) -> Vector:
        return {
            labels: value
            for (metric, labels), value in self.pages[page].items()
            if metric == name and wanted <= labels
        }


def _summed(vector: Value, names: Sequence[str]) -> Vector:
    assert not isinstance(vector, float)
    total: Vector = {}
    for labels, value in vector.items():
        key = frozenset(pair for pair in labels if pair[0] in names)
        total[key] = total.get(key, 0.0) + value
    return total


def _joined(word: str, left: Value, right: Value, on: list[str] | None) -> Value:
    if word in ("and", "unless", "or"):
        assert not isinstance(left, float)
        assert not isinstance(right, float)

        def key(labels: Labels) -> Labels:
            return labels if on is None else frozenset(p for p in labels if p[0] in on)

        there = {key(labels) for labels in right}
        if word == "or":
            here = {key(labels) for labels in left}
            return left | {each: v for each, v in right.items() if key(each) not in here}
        return {each: v for each, v in left.items() if (key(each) in there) == (word == "and")}
    do, filters = _DO[word], word in _LEVELS[2]
    if isinstance(left, float) and isinstance(right, float):
        return float(do(left, right))
    if isinstance(left, float):
        assert not isinstance(right, float)
        found = {each: do(left, value) for each, value in right.items()}
        return {each: right[each] for each, v in found.items() if v} if filters else found
    other = right
    pairs = {
        each: (value, other if isinstance(other, float) else other[each])
        for each, value in left.items()
        if isinstance(other, float) or each in other
    }
    found = {each: do(*pair) for each, pair in pairs.items()}
    return {each: pairs[each][0] for each, v in found.items() if v} if filters else found
