"""The exchange of gradients: one step of all copies as if one had trained the whole batch.

When backward ends, before gradients are clipped or unscaled, each copy's gradients, weighted by its
part of the batch, are summed over all copies. So are batch statistics. A sum in which a value is
not finite, or that a copy has not taken part in, is dropped by all: gradients are removed, and the
optimiser's step changes nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from hadar_slurm.older_python import TextEnum, zip_equal
from hadar_slurm.runtime.synchronous.links import LinkError, Links
from hadar_slurm.runtime.synchronous.passes import Passes


class StepOutcome(TextEnum):
    """What became of a step."""

    APPLIED = "applied"
    DROPPED = "dropped"  # by all copies, which are to train it again
    BROKEN = "broken"  # a copy is gone; whether others have applied the step is not known


class Field(IntEnum):
    """What each copy adds to a sum."""

    SAMPLES = 0
    BATCH = 1
    TRAIN_S = 2
    EXCHANGE_S = 3  # of the step before
    NOT_FINITE = 4
    LEAVES = 5  # was asked to save
    CLOSE = 6  # the interval is to end after this step
    REGROUP = 7  # copies have come or gone
    STALE = 8  # another copy has ended the interval
    STOPS = 9  # was asked to end the whole training
    SPOILT = 10  # has parameters that are not finite


@dataclass(frozen=True)
class Exchanged:
    """A step's outcome, and what each copy has added, by rank; empty where it is broken."""

    outcome: StepOutcome
    told: tuple[tuple[float, ...], ...] = ()
    why: str = ""

    def any(self, field: Field) -> bool:
        """Return whether any copy has raised a flag."""
        return any(each[field] for each in self.told)

    def all(self, field: Field) -> bool:
        """Return whether all copies have raised a flag."""
        return all(each[field] for each in self.told)

    def column(self, field: Field) -> list[float]:
        """Return one value of each copy."""
        return [each[field] for each in self.told]


@dataclass
class Gradients:
    """The gradients of a model in a group; `is_scaled`: a GradScaler skips steps with infinities.

    The exchange begins by itself at the end of backward, or of the last of several per step.
    """

    model: nn.Module
    optimiser: Optimizer
    is_scaled: bool = False
    links: Links | None = None
    has_stepped: bool = False  # the optimiser, since the exchange
    own: dict[Field, float] = field(default_factory=dict)  # flags, and this copy's samples
    last: Exchanged | None = None
    _watched: Passes = field(init=False)
    _passes: int = 1
    _is_armed: bool = False
    _begun_s: float = 0.0
    _exchange_s: float = 0.0
    _before: list[torch.Tensor] = field(default_factory=list)
    _flat: torch.Tensor | None = None
    _summed: list[bool] | None = None  # which of all buffers are averaged

    def __post_init__(self) -> None:
        self._watched = Passes(
            self.model,
            optimiser=self.optimiser,
            begun=self._begun,
            ended=self._passed,
            stepped=self._stepped,
        )

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return self._watched.parameters

    def open(self) -> None:
        """Watch backward."""
        self._watched.open()

    def close(self) -> None:
        """Leave the model as it was."""
        self._watched.close()
        self._is_armed = False

    def join(self, links: Links | None) -> None:
        """Be in another group, whose copies have the same parameters and buffers."""
        self.links, self._summed = links, None

    def begin(self, flags: Mapping[Field, float]) -> None:
        """Begin a step; `flags` are for the other copies."""
        self.own, self.last, self.has_stepped = dict(flags), None, False
        self._passes, self._is_armed = 1, True
        self._watched.reset()
        self._before = [each.detach().clone() for each in self._all_buffers()]
        if self._summed is None:
            self._summed = [
                each.is_floating_point() and bool(torch.isfinite(each).all())
                for each in self._before
            ]
        self._begun_s = time.monotonic()

    def expect(self, samples: int, batch: int, passes: int) -> None:
        """Note this copy's samples of the step's batch, trained in `passes` backward passes."""
        if self._is_armed and Field.BATCH not in self.own:
            self.own |= {Field.SAMPLES: samples, Field.BATCH: batch}
            self._passes = passes

    def finish(self) -> Exchanged:
        """Return the outcome of the step; a step without backward is dropped."""
        if self.last is None:
            self.own |= {Field.SAMPLES: 0}
            self._exchange("a copy has trained the step without backward()")
        self._is_armed = False
        assert self.last is not None
        return self.last

    def _begun(self, parameter: nn.Parameter) -> None:
        if self._is_armed and self.links is not None and self.last is not None:
            raise RuntimeError(
                "backward() was called again after the gradients of the step were exchanged: in "
                "synchronous mode call it once a step, or copy.samples(..., part=i, parts=n) for "
                "each of n parts, or use mode='averaged'"
            )

    def _stepped(self) -> None:
        self.has_stepped = True

    def _passed(self) -> None:
        """Count a backward pass; after the last of the step, exchange."""
        if not self._is_armed or self.links is None:
            return
        self._passes -= 1
        if self._passes <= 0:
            self._exchange()

    def _exchange(self, why: str = "") -> None:
        """Sum gradients and batch statistics over all copies, or remove them."""
        assert self.links is not None
        trained_s = time.monotonic() - self._begun_s
        samples, batch = self.own.get(Field.SAMPLES, 0), self.own.get(Field.BATCH, 0)
        flat, body = self._filled(samples / batch if batch else 0.0)
        is_finite, is_spoilt = bool(torch.isfinite(body).all()), False
        if not is_finite:
            is_spoilt = not all(bool(each.isfinite().all()) for each in self.model.parameters())
            is_finite = self.is_scaled and not is_spoilt and self._has_finite_buffers(body)
        if not is_finite:
            body.zero_()
        self.own |= {
            Field.SAMPLES: samples if is_finite else 0,
            Field.TRAIN_S: trained_s,
            Field.EXCHANGE_S: self._exchange_s,
            Field.NOT_FINITE: float(not is_finite),
            Field.SPOILT: float(is_spoilt),
        }
        told = flat[len(flat) - self.links.size * len(Field) :].view(self.links.size, len(Field))
        told.zero_()
        told[self.links.rank] = torch.tensor([self.own.get(each, 0.0) for each in Field])
        begun_s = time.monotonic()
        try:
            self.links.sum(flat)
        except LinkError as error:
            self._discard()
            # gloo may still write to it, once a copy continues that stands still.
            self._flat = None
            self.last = Exchanged(StepOutcome.BROKEN, (), str(error))
            return
        self._exchange_s = time.monotonic() - begun_s
        self.last = _judged(tuple(map(tuple, told.tolist())), why)
        if self.last.outcome is StepOutcome.APPLIED:
            self._take_over(flat)
        else:
            self._discard()

    def _filled(self, weight: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what is to be summed, in main memory, and the part of it that is weighted."""
        assert self.links is not None
        tensors = [*self._parameters, *self._buffers()]
        wide = torch.float64 if any(each.dtype == torch.float64 for each in tensors) else None
        total = sum(each.numel() for each in tensors)
        size = total + len(self._parameters) + self.links.size * len(Field)
        if self._flat is None or len(self._flat) != size:
            self._flat = torch.zeros(size, dtype=wide or torch.float32)
        flat, first = self._flat, 0
        for each in tensors:
            part = flat[first : first + each.numel()]
            value = each.grad if isinstance(each, nn.Parameter) else each
            if value is None or not weight:
                part.zero_()
            else:
                part.copy_(value.detach().reshape(-1))
            first += each.numel()
        body = flat[:total]
        if weight:
            body.mul_(weight)
        has = [float(each.grad is not None) for each in self._parameters]
        flat[total : total + len(has)] = torch.tensor(has)
        return flat, body

    def _take_over(self, flat: torch.Tensor) -> None:
        first, has = 0, flat[sum(each.numel() for each in (*self._parameters, *self._buffers())) :]
        for parameter, is_there in zip(self._parameters, has.tolist()):
            part = flat[first : first + parameter.numel()].view(parameter.shape)
            first += parameter.numel()
            if not is_there:
                continue
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.detach().copy_(part)
        for buffer in self._buffers():
            buffer.copy_(flat[first : first + buffer.numel()].view(buffer.shape))
            first += buffer.numel()

    def _discard(self) -> None:
        """Remove what the step has computed; a GradScaler skips the step by infinities."""
        for parameter in self._parameters:
            if self.is_scaled:
                parameter.grad = torch.full_like(parameter, math.inf)
            else:
                parameter.grad = None
        for buffer, before in zip_equal(self._all_buffers(), self._before):
            buffer.copy_(before)

    def _has_finite_buffers(self, body: torch.Tensor) -> bool:
        first = sum(each.numel() for each in self._parameters)
        return bool(torch.isfinite(body[first:]).all())

    def _buffers(self) -> list[torch.Tensor]:
        """Return what is averaged beside gradients: running statistics.

        Not what was not finite when the group began, on all of its copies: masks.
        """
        assert self._summed is not None
        both = zip_equal(self._all_buffers(), self._summed)
        return [each for each, is_summed in both if is_summed]

    def _all_buffers(self) -> Iterator[torch.Tensor]:
        return (each.detach() for each in self.model.buffers())


def _judged(told: tuple[tuple[float, ...], ...], why: str) -> Exchanged:
    """Return what becomes of a step by what all copies have added: the same on each."""
    faulty = [rank for rank, each in enumerate(told) if each[Field.NOT_FINITE]]
    if faulty:
        why = f"gradients of rank {', '.join(map(str, faulty))} have NaN or infinite values"
        return Exchanged(StepOutcome.DROPPED, told, why)
    sizes = {each[Field.BATCH] for each in told}
    if len(sizes) > 1 or sum(each[Field.SAMPLES] for each in told) not in sizes:
        why = why or "copies differ in the batch size, or one has not trained its part"
        return Exchanged(StepOutcome.DROPPED, told, why)
    if sizes == {0.0}:
        why = why or "no copy has called copy.samples() or copy.positions()"
        return Exchanged(StepOutcome.DROPPED, told, why)
    return Exchanged(StepOutcome.APPLIED, told)


def is_scaled(extra: Iterable[Any]) -> bool:
    """Return whether a GradScaler is in use."""
    return any(hasattr(each, "unscale_") and each.is_enabled() for each in extra)
