"""Whether a waiting job still asks for the GPUs of its description. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from hadar_slurm.core.cluster import NodeName
from hadar_slurm.jobspec.description import decode_or_none
from hadar_slurm.jobspec.gres import asked_gpus
from hadar_slurm.jobspec.request import SIZES, Request, described_request

_Asked = Sequence[tuple[str, int]]


# Thousands of jobs have a few requests.
@lru_cache(maxsize=16384)
def is_as_described(request: Request, comment: str) -> bool:
    """Return whether a request is as its comment describes it, or as hadard pins the job.

    If not, its owner has changed it since, as with `scontrol update JobId=N TresPerJob=...`. What a
    request and its description give in different forms is compared by the number of GPUs.
    """
    if (description := decode_or_none(comment)) is None or request.is_cleared:
        return True
    own = described_request(description, (22, 5))
    asked = [asked_gpus(text) for text in request.gpus]
    both = [(a, b) for a, b in zip(asked, map(asked_gpus, own.gpus), strict=True) if a and b]
    if both and not request.nodes:
        # Without GPUs by node Slurm shows an estimate of the number of nodes.
        counts_nodes = bool(request.per_node and own.per_node)
        is_met = not counts_nodes or _meet(request.num_nodes, own.num_nodes)
        return is_met and all(_is_same(a, b) for a, b in both)
    if not (request.per_node or request.per_job):
        return True  # by task or socket, described otherwise: that cannot be compared
    num_nodes = len(request.nodes) or int(request.num_nodes.partition("-")[0])
    by_node = sum(n for _, n in asked[0]) * num_nodes
    sizes = {description.gpus, *description.gangs.values()}
    return (by_node or sum(n for _, n in asked[1])) in sizes


def with_edits(
    own: Request, now: Request, comment: str, pinned: tuple[NodeName, ...] = ()
) -> Request:
    """Return an owner's former request with the GPUs of the one that Slurm shows `now`, if edited.

    Those are of each of the nodes `pinned`, also where its owner has named others since.
    """
    shown = replace(now, num_nodes=own.num_nodes)
    on_pin = replace(shown, nodes=pinned or now.nodes)
    if is_as_described(shown, comment) or is_as_described(on_pin, comment):
        return own
    number = f"{len(now.nodes)}-{len(now.nodes)}" if now.nodes else own.num_nodes
    sizes: dict[str, Any] = dict(zip(SIZES, own.sizes, strict=True))
    return replace(now, num_nodes=number, nodes=own.nodes, **sizes)


def _is_same(asked: _Asked, own: _Asked) -> bool:
    """Return whether the numbers are equal, and the types where both name any."""
    named, own_named = ({name.lower() for name, _ in each} - {"gpu"} for each in (asked, own))
    is_same_type = not (named and own_named) or bool(named & own_named)
    return is_same_type and sum(n for _, n in asked) == sum(n for _, n in own)


def _meet(*ranges: str) -> bool:
    """Return whether ranges such as `1-4` have a number in common."""
    pairs = [each.partition("-") for each in ranges]
    return max(int(a) for a, _, _ in pairs) <= min(int(b or a) for a, _, b in pairs)
