"""A model, its optimiser and extra state as named tensors and plain facts, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from hadar_slurm.older_python import zip_equal
from hadar_slurm.runtime.files.tensors import TensorFile
from hadar_slurm.runtime.files.threads import on_one_thread

# Tensors by name, and the rest.
Named = tuple[dict[str, torch.Tensor], Any]

MODEL, OPTIMISER, OUTER = "model/", "optimiser/", "outer/"
# Before the name of a tensor: its difference from the start of the interval.
DIFFERENCE = "difference/"


class Stateful(Protocol):
    """Anything else with state: a GradScaler, a scheduler of learning rates."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any:
        """Load a state."""


def tensors_of(model: nn.Module, optimiser: Optimizer, extra: Sequence[Stateful] = ()) -> Named:
    """Return all tensors by name, and the rest of the state.

    Raises TypeError where a model's state is not all tensors, and an `extra`'s not all plain.
    """
    found: dict[str, torch.Tensor] = {}
    for name, value in model.state_dict().items():
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"the model's state {name!r} is {type(value).__name__}, no tensor")
        found[MODEL + name] = value
    state = optimiser.state_dict()
    plain: dict[str, dict[str, Any]] = {}
    for index, values in state["state"].items():
        for key, value in values.items():
            if isinstance(value, torch.Tensor):
                found[f"{OPTIMISER}{index}/{key}"] = value
            else:
                plain.setdefault(str(index), {})[key] = value
    return found, {
        "state": plain,
        "groups": state["param_groups"],
        "parameters": [MODEL + name for name, _ in model.named_parameters()],
        "extra": [plain_state(each) for each in extra],
    }


def kept(named: Named) -> Named:
    """Return a copy of a state in main memory, which later training does not change."""
    tensors, facts = named
    return {name: each.detach().to("cpu", copy=True) for name, each in tensors.items()}, facts


def plain_state(each: Stateful) -> dict[str, Any]:
    """Return a state as numbers, texts, lists and dictionaries of such; raises TypeError."""
    found: dict[str, Any] = _plain(each.state_dict(), type(each).__name__)
    return found


def _plain(value: Any, name: str) -> Any:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(each, f"{name}[{index}]") for index, each in enumerate(value)]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _plain(each, f"{name}.{key}") for key, each in value.items()}
    raise TypeError(
        f"{name} is {type(value).__name__}, which no checkpoint of plain values can keep"
    )


def load(
    model: nn.Module,
    optimiser: Optimizer,
    tensors: Mapping[str, torch.Tensor],
    facts: Any,
    extra: Sequence[Stateful] = (),
) -> None:
    """Load a state that `tensors_of` returned; raises ValueError for another number of `extra`.

    An optimiser whose state was reset starts without one.
    """
    own = {name: tensor for name, tensor in tensors.items() if name.startswith(MODEL)}
    model.load_state_dict({name.removeprefix(MODEL): value for name, value in own.items()})
    load_rest(optimiser, facts, extra, state_of(tensors, facts))


@on_one_thread
def load_model(model: nn.Module, file: TensorFile) -> None:
    """Load the model's tensors from a file, block by block; raises TensorFileError and OSError."""
    named = (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    )
    own = {MODEL + name: tensor.detach() for name, tensor in named}
    rest: dict[str, torch.Tensor] = {}
    for name in file.names:
        tensor = own.get(name)
        if tensor is not None and tensor.is_contiguous() and tensor.shape == file.shapes[name]:
            file.read_into(name, tensor.reshape(-1))
        elif name.startswith(MODEL):
            rest[name.removeprefix(MODEL)] = file.tensor(name)
    if rest:
        model.load_state_dict(rest, strict=False)


def state_of(tensors: Mapping[str, torch.Tensor], facts: Any) -> dict[int, dict[str, Any]]:
    """Return the optimiser's state of each parameter, from tensors by name and plain values."""
    state = {int(index): dict(values) for index, values in facts["state"].items()}
    for name, value in tensors.items():
        if name.startswith(OPTIMISER):
            index, _, key = name.removeprefix(OPTIMISER).partition("/")
            state.setdefault(int(index), {})[key] = value
    return state


def load_rest(
    optimiser: Optimizer,
    facts: Any,
    extra: Sequence[Stateful] = (),
    state: Mapping[int, Mapping[str, Any]] | None = None,
) -> None:
    """Load all but the model; the optimiser keeps its own state where `state` is None.

    Raises ValueError for another number of `extra`.
    """
    known = optimiser.state_dict()["state"] if state is None else state
    optimiser.load_state_dict({"state": known, "param_groups": facts["groups"]})
    kept = facts.get("extra", [])
    if len(kept) != len(extra):
        raise ValueError(f"the job keeps the state of {len(kept)} extra objects, not {len(extra)}")
    for each, known_state in zip_equal(extra, kept):
        # A disabled GradScaler has no state, and an enabled one cannot load an empty one.
        if known_state:
            each.load_state_dict(known_state)
