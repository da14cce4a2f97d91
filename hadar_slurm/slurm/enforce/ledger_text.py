"""Claims as the text of the ledger, also of earlier versions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any

from hadar_slurm.core.cluster import NodeName
from hadar_slurm.engine.loan import Loan
from hadar_slurm.errors import SlurmOutputError
from hadar_slurm.jobspec.constraint import fold, fold_out
from hadar_slurm.jobspec.request import SIZES, Request
from hadar_slurm.slurm.enforce.claim import Claim, State

_MAX_NUMBER = 1e18
# What hadard borrows, with its value where it is none. The file has three values each, which hadard
# 0.2 reads too, and those set before, which it does not; nodes are host lists, nice has a sign.
_LOANS: Mapping[str, Any] = {name: loan.ours for name, loan in Claim().loans.items()}
_KEYS = ("", "former_", "own_")
_PAST, _KEPT = "past_", "kept_by_owner"
# The other values of a claim apart from its state and the own request.
_DEFAULTS = {f.name: f.default for f in fields(Claim) if f.name not in ("state", "own", *_LOANS)}
_REQUEST = {f.name: f.default for f in fields(Request)}
# What parsing a damaged file may raise.
DAMAGE = (
    *(ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError),
    SlurmOutputError,  # a host list
)


def claim_tree(claim: Claim) -> dict[str, Any]:
    """Return the values of a claim that are not the defaults."""
    given = {k: value for k in ("state", "own", *_DEFAULTS) if (value := getattr(claim, k))}
    for name, loan in claim.loans.items():
        values = (loan.ours, loan.former, loan.owners, [*map(_folded, loan.past)])
        pairs = zip((*_KEYS, _PAST), values, strict=True)
        given |= {f"{key}{name}": _folded(value) for key, value in pairs if value}
    kept = [name for name, loan in claim.loans.items() if loan.is_kept]
    given |= {_KEPT: kept} if kept else {}
    if claim.own is None:
        return given
    own = {name: getattr(claim.own, name) for name in _REQUEST}
    return {**given, "own": {k: value for k, value in own.items() if value or k not in SIZES}}


def _claim(tree: Mapping[str, Any]) -> Claim:
    """Return a claim; raises one of `DAMAGE` for anything that a ledger does not write."""
    given = {key: _like(value, tree[key]) for key, value in _DEFAULTS.items() if key in tree}
    given |= {name: _loan(name, tree) for name in _LOANS}
    own = tree.get("own")
    asks = None if own is None else Request(**{k: _like(_REQUEST[k], v) for k, v in own.items()})
    if asks and (sized := given["sized"]).ours and not sized.owners:  # of 0.2
        given["sized"] = Loan(sized.ours, asks.num_nodes, asks.num_nodes)
    return Claim(state=State(tree["state"]), own=asks, **given)


def _loan(name: str, tree: Mapping[str, Any]) -> Loan[Any]:
    kept = _like((), tree.get(_KEPT, ()))
    default, least = _LOANS[name], -_MAX_NUMBER if name == "nice" else 0
    values = (tree.get(f"{key}{name}", default) for key in _KEYS)
    ours, former, owners, *past = (
        # A host list, or a list of names, as was written before.
        _nodes(value) if default == () and isinstance(value, str) else _like(default, value, least)
        for value in (*values, *tree.get(f"{_PAST}{name}", ()))
    )
    return Loan(ours, former, owners, is_kept=name in kept, past=tuple(past))


def _claim_of_version_1(tree: Mapping[str, Any]) -> Claim:
    """Return a claim of a ledger up to 0.2, which had flags in place of a state."""
    is_asked, is_pinned = tree.get("asked_when_held") is not None, bool(tree.get("before"))
    if tree.get("is_held") is True:
        sent = State.PINNING if is_pinned else State.HOLDING
        state = sent if is_asked else State.REQUEUING if tree.get("requeued") else State.HELD
    elif tree.get("released_s") or is_pinned or tree.get("pinned"):
        state = State.RELEASED
    else:
        state = State.STEERED if tree.get("preferred") else State.UNMANAGED
    names = {"before": "own", "asked_when_held": "replaced", "released_s": "since_s"}
    renamed = {names.get(key, key): value for key, value in tree.items() if value is not None}
    return _claim({**renamed, "state": state})


VERSION = 2
PARSE = {1: _claim_of_version_1, VERSION: _claim}


def _folded(value: Any) -> Any:
    return fold(value) if isinstance(value, tuple) else value


@lru_cache(maxsize=1024)
def _nodes(text: str) -> tuple[NodeName, ...]:
    return tuple(sorted(fold_out(text)))


def _like(default: object, value: Any, least: float = 0) -> Any:
    """Return a value of the type of `default`: a text, texts, or a number."""
    if isinstance(default, tuple) and isinstance(value, list | tuple):
        return tuple(_like("", each) for each in value)
    if isinstance(default, str) and isinstance(value, str):
        return value
    is_number = type(value) in (int, float) and least <= value <= _MAX_NUMBER
    if is_number and isinstance(default, int | float):
        return type(default)(value)
    raise TypeError(f"{value!r} is not like {default!r}")
