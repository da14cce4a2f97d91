"""The end of an interval, made from the contributions to it while it is written.

Tensor by tensor and block by block, so that it takes no memory of their size, and each file is read
once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Union

import torch

from hadar_slurm.older_python import zip_equal
from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.averaging.consolidation import OptimiserRule, Outer, mean
from hadar_slurm.runtime.averaging.finite import is_finite
from hadar_slurm.runtime.files.tensors import BLOCK, StreamedTensor, TensorFile

# The steps of a copy, and what it has contributed.
Given = tuple[int, TensorFile]
Streams = dict[str, Union[torch.Tensor, StreamedTensor]]


class SpoiltError(ValueError):
    """The mean is not finite; says where."""


def unchanged(base: TensorFile) -> tuple[Streams, Any]:
    """Return what an interval ends with to which nothing was contributed, and its facts.

    The optimiser's state is that of an older end.
    """
    names = [name for name in base.names if not name.startswith(state.OPTIMISER)]
    return {name: base.stream(name) for name in names}, {**base.facts["facts"], "state": {}}


def merged(
    base: TensorFile, given: Sequence[Given], rule: OptimiserRule, outer: Outer | None
) -> tuple[Streams, Any, bool]:
    """Return what an interval ends with, its facts, and whether it has the optimiser's state.

    Writing it raises SpoiltError, TensorFileError and OSError.
    """
    facts = dict(_most(given).facts["facts"])
    parameters = set(facts["parameters"])
    found: Streams = {}
    for name in base.names:
        if not name.startswith(state.MODEL):
            continue
        if outer and name in parameters:
            found[name] = _stepped(base, name, given, outer, 0)
            found[state.OUTER + name] = _stepped(base, name, given, outer, 1)
        else:
            found[name] = _mean(base, name, given)
    with_state = [part for part in given if part[1].facts.get("with_state") is not False]
    facts["state"] = {}
    if with_state and rule is not OptimiserRule.RESET:
        most = _most(with_state)
        facts["state"] = most.facts["facts"]["state"]
        for name in most.names:
            if name.startswith(state.OPTIMISER) and rule is OptimiserRule.AVERAGE:
                alike = [
                    part for part in with_state if part[1].shapes.get(name) == most.shapes[name]
                ]
                found[name] = _mean(base, name, alike)
            elif name.startswith(state.OPTIMISER):
                found[name] = most.stream(name)
    return found, facts, bool(with_state) or rule is OptimiserRule.RESET


def shapes(file: TensorFile) -> dict[str, torch.Size]:
    """Return the shapes of a model's tensors by name, whether as they are or as differences."""
    found = {name.removeprefix(state.DIFFERENCE): shape for name, shape in file.shapes.items()}
    return {name: shape for name, shape in found.items() if name.startswith(state.MODEL)}


def _most(given: Sequence[Given]) -> TensorFile:
    """Return what the copy with most steps has contributed; of equals the first."""
    return max(given, key=lambda part: part[0])[1]


def _mean(base: TensorFile, name: str, given: Sequence[Given]) -> StreamedTensor:
    most = _most(given)
    source = most if name in most.names else base
    return StreamedTensor(
        source.dtype(name), source.shapes[name], lambda: _mean_blocks(base, name, given)
    )


def _mean_blocks(base: TensorFile, name: str, given: Sequence[Given]) -> Iterator[torch.Tensor]:
    """Yield the blocks of a step-weighted mean; raises SpoiltError."""
    differ = state.DIFFERENCE + name
    kinds = [differ in file.names for _, file in given]
    sources = [file.blocks(differ if kind else name) for (_, file), kind in zip_equal(given, kinds)]
    if any(kinds):
        sources.append(base.blocks(name))
    steps, buffer, wide = [count for count, _ in given], torch.empty(BLOCK), torch.empty(BLOCK)
    for number, blocks in enumerate(zip_equal(*sources)):
        values, old = blocks[: len(given)], blocks[-1] if any(kinds) else None
        found, is_known_finite = None, False
        if old is not None or values[0].dtype == torch.float32:
            moves = (
                _move(each, None if kind else old, wide) for kind, each in zip_equal(kinds, values)
            )
            found = _running_mean(steps, moves, buffer)
            if old is not None:
                found.add_(old)
            is_known_finite = is_finite(found)
        if found is None or not is_known_finite:
            wholes = [
                old + value.to(torch.float32) if old is not None and kind else value
                for kind, value in zip_equal(kinds, values)
            ]
            found = mean(list(zip_equal(steps, wholes)))
            _check(found, name, base, number * BLOCK)
        yield found


def _move(value: torch.Tensor, old: torch.Tensor | None, wide: torch.Tensor) -> torch.Tensor:
    """Return `value - old` in float32, in the memory of `wide` where it has to be computed.

    New memory for each block would take more CPU time than the mean.
    """
    here = wide[: len(value)]
    if old is not None:
        return torch.sub(value, old, out=here)
    return value if value.dtype == torch.float32 else here.copy_(value)


def _running_mean(
    steps: Sequence[int], values: Iterator[torch.Tensor], buffer: torch.Tensor
) -> torch.Tensor:
    """Return a step-weighted mean in `buffer`; equal values give that very value.

    Each value may use the memory of the one before.
    """
    first, total = next(values), steps[0]
    found = buffer[: len(first)].copy_(first)
    for count, value in zip_equal(steps[1:], values):
        total += count
        found.lerp_(value, count / total)
    return found


def _check(found: torch.Tensor, name: str, base: TensorFile, first: int) -> None:
    """Raise SpoiltError where a block has values that are not finite, and the base has none."""
    if not (found.is_floating_point() or found.is_complex()) or is_finite(found):
        return
    wrong = ~torch.isfinite(found)
    if name in base.names:
        old = base.tensor(name).reshape(-1)[first : first + len(found)]
        wrong &= torch.isfinite(old)
    if count := int(wrong.sum()):
        raise SpoiltError(f"{name} has {count} values that are NaN or infinite")


def _stepped(
    base: TensorFile, name: str, given: Sequence[Given], outer: Outer, which: int
) -> StreamedTensor:
    """Return a parameter after an outer step (`which` 0), or its velocity (1)."""
    kept = state.OUTER + name

    def blocks() -> Iterator[torch.Tensor]:
        sources = [base.blocks(name), _mean_blocks(base, name, given)]
        if kept in base.names:
            sources.append(base.blocks(kept))
        for old, one, *velocity in zip_equal(*sources):
            yield outer.step(old, one, velocity[0] if velocity else None)[which]

    dtype = base.dtype(name)
    wide = dtype if dtype in (torch.float64, torch.complex64, torch.complex128) else torch.float32
    return StreamedTensor(wide if which else dtype, base.shapes[name], blocks)
