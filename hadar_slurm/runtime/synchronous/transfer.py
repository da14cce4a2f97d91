"""How a copy takes over the state of another one, through their links."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import torch

from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.files.ranges import Ranges
from hadar_slurm.runtime.files.tensors import content_of
from hadar_slurm.runtime.synchronous.links import Links


@dataclass(frozen=True)
class Sent:
    """A state, and the steps since the slot end that it includes."""

    named: state.Named
    applied: Ranges


def send_bytes(links: Links, contents: bytes, source: int) -> bytes:
    """Return the bytes that the copy with rank `source` sends; raises LinkError."""
    length = torch.tensor([len(contents)])
    links.broadcast(length, source)
    sent = torch.zeros(int(length), dtype=torch.uint8)
    if links.rank == source and contents:
        sent[:] = torch.frombuffer(bytearray(contents), dtype=torch.uint8)
    if len(sent):
        links.broadcast(sent, source)
    return bytes(content_of(sent))


def send_state(links: Links, mine: Sent, source: int) -> Sent:
    """Return the state of the copy with rank `source`, which is `mine` there; raises LinkError.

    The receiver's own state is unchanged until it has all of the other one, and all copies are
    still there: one that has gone on without this copy has sent what it trained since.
    """
    tensors, facts = mine.named
    names = sorted(tensors)
    described = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    told = {"facts": facts, "tensors": described, "applied": mine.applied.pairs}
    heard: Any = json.loads(send_bytes(links, json.dumps(told).encode(), source))
    received: dict[str, torch.Tensor] = {}
    for name, kind, shape in heard["tensors"]:
        if links.rank == source:
            part = tensors[name].detach().to("cpu").contiguous()
        else:
            part = torch.empty(shape, dtype=getattr(torch, kind.removeprefix("torch.")))
        # As bytes: gloo does not know every type.
        if part.numel():
            flat = part.reshape(-1).view(torch.uint8)
            links.broadcast(flat, source)
        received[name] = part
    links.sum(torch.zeros(1))
    return Sent((received, heard["facts"]), Ranges.of(heard["applied"]))
