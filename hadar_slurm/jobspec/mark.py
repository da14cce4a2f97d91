"""hadard's mark at the end of a job's comment: the owner's values of what it has borrowed to steer.

So any version, an operator or a script (docs/operators.md) can undo that without hadard's files.
The values are scontrol's words: `text[hadar:ExcNodeList=n3;Nice=0;TimeLimit=60;NumNodes=2-2]`. The
text before it is the owner's. A user can write a mark, which changes that user's own job only;
hadard reads one only where it has lost its ledger, and gives no job more by it
(`readings.from_marks`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from hadar_slurm.jobspec.constraint import fold, fold_out
from hadar_slurm.jobspec.description import MAX_COMMENT, decode_or_none, is_node_list

_BEGIN = "[hadar:"
# By field of a claim: scontrol's word, and how its value is written and, where it is one, read.
_FIELDS: Mapping[str, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    "excluded": ("ExcNodeList", fold, lambda text: tuple(sorted(fold_out(text)))),
    "sized": ("NumNodes", str, str),
    # Below 0 is an operator's to give, and not taken from a text that users may write.
    "nice": ("Nice", lambda nice: str(max(0, nice)), int),
    "limit_s": ("TimeLimit", lambda s: str(math.ceil(s / 60)), lambda text: int(text) * 60.0),
}
_NAMES = {word: name for name, (word, _, _) in _FIELDS.items()}
_NUMBER, _RANGE = re.compile("[0-9]{1,9}"), re.compile("[0-9]{1,9}(-[0-9]{1,9})?")
# A word that scontrol takes from its standard input as it is: without blanks and single quotes, and
# without bytes above 127, which may be commands to its line editor.
_WORD = re.compile(r"[\w.,:;/=+\-\[\]|&*()@!{}\"\\]*", re.ASCII)


def split(comment: str) -> tuple[str, str]:
    """Return the owner's part of a comment, and the mark; empty if there is none."""
    start = comment.rfind(_BEGIN)
    if start < 0 or not owners_values(comment[start:]):
        return comment, ""
    return comment[:start], comment[start:]


@lru_cache(maxsize=1024)
def owners_values(mark: str) -> Mapping[str, Any]:
    """Return the owner's values in a mark, by field of a claim; empty if it is no mark."""
    found: dict[str, Any] = {}
    if not (mark.startswith(_BEGIN) and mark.endswith("]")):
        return found
    for part in mark.removeprefix(_BEGIN)[:-1].split(";"):
        word, _, text = part.partition("=")
        name = _NAMES.get(word, "")
        numbers = _RANGE if name == "sized" else _NUMBER
        is_one = not text or is_node_list(text) if name == "excluded" else numbers.fullmatch(text)
        if name not in _FIELDS or not is_one:
            return {}
        found[name] = _FIELDS[name][2](text)
    return found


def with_mark(text: str, mark: str, values: Mapping[str, Any]) -> str | None:
    """Return the comment that marks `values`, where `text` and `mark` are shown; None: it stays.

    A job is not marked if its comment has no room, letters beyond ASCII, or blanks or single quotes
    outside of a description's strings: scontrol would not put them back.
    """
    marked = ((_FIELDS[name], value) for name, value in values.items() if name in _FIELDS)
    words = ";".join(f"{word}={write(value)}" for (word, write, _), value in marked)
    if (wanted := f"{_BEGIN}{words}]" if words else "") == mark:
        return None
    is_described = text.startswith("{") and decode_or_none(text) is not None
    own = text.replace(" ", "\\u0020").replace("'", "\\u0027") if is_described else text
    if not _WORD.fullmatch(own) or (is_described and decode_or_none(own) != decode_or_none(text)):
        return None
    if len(own) + len(wanted) >= MAX_COMMENT or not owners_values(wanted):
        wanted = ""
    return own + wanted if wanted or mark else None
