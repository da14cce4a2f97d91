"""Constraints of jobs on the features of nodes, as in `--constraint`. Pure.

What Slurm may read in two ways, or not for each node alone, is not decided here: such a job is left
to Slurm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import lru_cache

from hadar_slurm.errors import JobSpecError

Allows = Callable[[Collection[str]], bool]

_TOKEN = re.compile(r"\s*([&|,()\[\]*]|[^&|,()\[\]*\s]+)")
# Parentheses within parentheses take stack.
_MOST_TOKENS = 200


@lru_cache(maxsize=4096)
def allows(constraint: str, num_nodes: int = 1) -> Allows:
    """Return whether a node with given features satisfies a constraint such as `(v100|a100)&ib`.

    Raises JobSpecError for counts of nodes (`v100*2`), for `[v100|a100]` on several nodes, which
    must all have the same of these, and for `&` beside `|` without parentheses.
    """
    tokens = _TOKEN.findall(constraint)
    if not tokens:
        return lambda features: True
    if len(tokens) > _MOST_TOKENS:
        raise JobSpecError(f"--constraint has more than {_MOST_TOKENS} parts")
    found, rest = _expression(tokens, constraint, num_nodes)
    if rest:
        raise JobSpecError(f"--constraint={constraint}: {rest[0]!r} is not expected")
    return found


def _expression(tokens: list[str], text: str, num_nodes: int) -> tuple[Allows, list[str]]:
    """Return the condition at the beginning of `tokens`, and the tokens behind it."""
    first, tokens = _operand(tokens, text, num_nodes)
    terms, operators = [first], set()
    while tokens and tokens[0] in ("&", "|", ","):
        operators.add("&" if tokens[0] == "," else tokens[0])
        term, tokens = _operand(tokens[1:], text, num_nodes)
        terms.append(term)
    if len(operators) > 1:
        raise JobSpecError(f"--constraint={text} has & beside | without parentheses")
    join = any if operators == {"|"} else all
    return (lambda features: join(term(features) for term in terms)), tokens


def _operand(tokens: list[str], text: str, num_nodes: int) -> tuple[Allows, list[str]]:
    """Return a feature's condition, or that of a part in parentheses or brackets."""
    head, *rest = tokens or [""]
    if head in ("(", "["):
        if head == "[" and num_nodes > 1:
            raise JobSpecError(f"--constraint={text} asks for one of several features on all nodes")
        found, rest = _expression(rest, text, num_nodes)
        if not rest or rest[0] != {"(": ")", "[": "]"}[head]:
            raise JobSpecError(f"--constraint={text}: {head!r} is not closed")
        rest = rest[1:]
    elif not head or head in "&|,)]*":
        raise JobSpecError(f"--constraint={text}: a feature is missing")
    else:

        def found(features: Collection[str]) -> bool:
            return head in features

    if rest and rest[0] == "*":
        raise JobSpecError(f"--constraint={text} counts nodes")
    return found, rest
