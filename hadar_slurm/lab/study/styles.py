"""The colours, dashes and markers of policies in all plots and tables of a report.

Colours have a contrast of at least 3:1 on white and near-black, and policies differ in more than
the colour.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple


class Style(NamedTuple):
    """The line style of a policy."""

    colour: str
    dash: str | tuple[int, tuple[float, ...]]
    marker: str


DASH, _DOT = (0, (5.0, 2.0)), (0, (1.2, 1.6))
_DASH_DOT, _LONG = (0, (6.0, 2.0, 1.5, 2.0)), (0, (9.0, 3.0))
STYLES: Mapping[str, Style] = {
    "hadar": Style("#d62839", "solid", "o"),
    "hadar-paper": Style("#c2569b", DASH, "s"),
    "hadare": Style("#d9601a", _DASH_DOT, "D"),
    "gavel-max-min": Style("#2f74d0", "solid", "^"),
    "gavel-makespan": Style("#1590a3", DASH, "v"),
    "gavel-max-sum": Style("#7a63d8", _DASH_DOT, "<"),
    "gavel-ftf": Style("#5b86a6", _DOT, ">"),
    "gavel-fifo": Style("#4a6cc8", _LONG, "p"),
    "tiresias": Style("#2f9150", "solid", "P"),
    "hare-offline": Style("#3f8fb8", _LONG, "2"),
    "hlas": Style("#0f8f7a", DASH, "8"),
    "e-las": Style("#5f7d3a", _DOT, "H"),
    "a-srpt": Style("#8a6fae", _DASH_DOT, "+"),
    "sampling": Style("#d0487a", _LONG, "1"),
    "yarn-cs": Style("#8f7a14", DASH, "X"),
    "srsf": Style("#9a6a35", "solid", "*"),
    "las": Style("#6b8f1f", _DASH_DOT, "h"),
    "slurm": Style("#7c7f86", "solid", "d"),
}
# Of the rows of one policy, by words, knowledge or adoption: unlike ones, by a digest of the name.
_DASHES, _MARKERS = (DASH, _DOT, _DASH_DOT, _LONG), "osD^v<>pPX*"
_COLOURS = tuple(dict.fromkeys(style.colour for style in STYLES.values()))


def styles(policies: Iterable[str]) -> dict[str, Style]:
    """Return the style of each policy of a comparison, or of its words and its knowledge.

    Colours are unlike while there are enough. A policy has its own, and so has the first kind of
    it; each further one has the free one that is least like those before, and dash and marker by a
    digest of its name.
    """
    names = list(dict.fromkeys(policies))
    found: dict[str, Style] = {}
    taken: set[str] = set()
    own = {name: STYLES.get(name.partition(" ")[0]) for name in names}
    for name in sorted(names, key=lambda name: (name not in STYLES, own[name] is None)):
        look = own[name]
        if look is None or look.colour in taken:
            look = _drawn(name, taken)
        taken.add(look.colour)
        found[name] = look
    return found


def _drawn(name: str, taken: Collection[str]) -> Style:
    digest = zlib.crc32(name.encode())
    free = [colour for colour in _COLOURS if colour not in taken]
    unlike = max(free, key=lambda colour: _least_distance(colour, taken), default="")
    colour = unlike or _COLOURS[digest % len(_COLOURS)]
    dash, marker = _DASHES[digest // 7 % len(_DASHES)], _MARKERS[digest // 49 % len(_MARKERS)]
    return Style(colour, dash, marker)


def _least_distance(colour: str, others: Iterable[str]) -> float:
    """Return how unlike a colour is to the one of `others` that is most like it."""
    return min((math.dist(_rgb(colour), _rgb(other)) for other in others), default=0.0)


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[place : place + 2], 16) for place in (1, 3, 5))
