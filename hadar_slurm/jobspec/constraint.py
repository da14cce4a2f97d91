"""The nodes that a job may have: features, as in `--constraint`, and lists of names. Pure.

What Slurm may read in two ways, or not for each node alone, is not decided here: such a job is left
to Slurm. Slurm 22.05 reads a range only at the end of a name: it refuses `compute-[0-1]-0`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from functools import lru_cache
from itertools import groupby, product
from math import prod

from hadar_slurm.core.cluster import NodeName, naturally_sorted
from hadar_slurm.errors import JobSpecError, SlurmOutputError

Allows = Callable[[Collection[str]], bool]

_TOKEN = re.compile(r"\s*([&|,()\[\]*]|[^&|,()\[\]*\s]+)")
# Parentheses within parentheses take stack.
_MOST_TOKENS = 200
# Slurm keeps numbers of nodes in 64 bits; longer ones are no numbers to `fold`, nor their ends.
_NUMBERED = re.compile(r"(.*\D)([0-9]{1,9})", re.DOTALL)
_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_LIST = re.compile(rf"{_PART.pattern}(?:,{_PART.pattern})*")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"([0-9]{1,20})(?:-([0-9]{1,20}))?")
# A list of more nodes is none of Slurm's (MAX_SLURM_NODES).
_MOST_NODES = 1 << 16


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


@lru_cache(maxsize=4096)
def fold(nodes: tuple[NodeName, ...]) -> str:
    """Return a host list of these nodes that Slurm reads as exactly these."""
    numbers: defaultdict[str, set[str]] = defaultdict(set)
    for prefix, number in map(_parts, nodes):
        numbers[prefix].add(number)
    return ",".join(_named(prefix, found) for prefix, found in sorted(numbers.items()))


@lru_cache(maxsize=1 << 16)
def _parts(name: NodeName) -> tuple[str, str]:
    """Return the prefix of a name and the number after it; empty if it stands for itself."""
    match = _NUMBERED.fullmatch(name)
    return (match[1], match[2]) if match else (name, "")


def _named(prefix: str, numbers: set[str]) -> str:
    """Return the list of the names with this prefix; all numbers of a range have as many digits."""
    if len(numbers) == 1 or "" in numbers:
        return ",".join(prefix + number for number in sorted(numbers))
    # Of numbers in a row the difference to their places is the same.
    places = enumerate(naturally_sorted(numbers))
    runs = groupby(places, lambda pair: (len(pair[1]), int(pair[1]) - pair[0]))
    found = ([number for _, number in run] for _, run in runs)
    ranges = (run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in found)
    return f"{prefix}[{','.join(ranges)}]"


@lru_cache(maxsize=4096)
def fold_out(text: str, most: int = _MOST_NODES) -> tuple[NodeName, ...]:
    """Return the node names in a host list, each once; raises SlurmOutputError beyond `most`."""
    if text and not _LIST.fullmatch(text):
        raise SlurmOutputError("host list: unreadable", text)
    names: dict[NodeName, None] = {}
    for part in _PART.findall(text):
        pieces = [
            [match[2]] if match[1] is None else list(_numbers(match[1], text))
            for match in _PIECE.finditer(part)
        ]
        if len(names) + prod(map(len, pieces)) > most:
            raise SlurmOutputError("host list: too many nodes", text)
        names.update((NodeName("".join(words)), None) for words in product(*pieces))
    return tuple(names)


def _numbers(text: str, whole: str) -> Iterator[str]:
    """Yield the numbers in brackets, such as `08-11,13`, with their zeros."""
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not 0 <= int(last) - int(first) < _MOST_NODES:
            raise SlurmOutputError("host list: unreadable", whole)
        yield from (f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1))
