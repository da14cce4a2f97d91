"""What one copy does with the parameters of all after each averaging: evaluate, log or keep them.

One file for each averaging, made exclusively, decides which copy it is: the first that has the
parameters. `evaluations.jsonl` in the job's directory has what was returned, a line each.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hadar_slurm.runtime.averaging.state import MODEL
from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.files.tensors import TensorFile
from hadar_slurm.runtime.intervals.member import Member

log = logging.getLogger(__name__)

# (model, steps of the whole job that it has) -> a plain value to be kept, or None.
Evaluate = Callable[[nn.Module, int], Any]
# Of how many averagings it stays known that they were taken.
_KEPT = 3


@dataclass(frozen=True)
class Evaluation:
    """What a function has returned on some copy."""

    step: int
    copy: int
    result: Any


@dataclass(eq=False)
class Evaluations:
    """The functions to be called after each averaging, on one copy."""

    member: Member
    functions: list[Evaluate] = field(default_factory=list)

    def run(self, end: SlotEnd, averaged: TensorFile | None = None) -> None:
        """Call the functions on the parameters at `end`, if no other copy does.

        `averaged` has them where the model has trained on already. An exception passes on, with a
        note.
        """
        # Nothing is averaged at the beginning, and where no copy had finite values.
        if not self.functions or end.slot == 0 or end.spoilt or not self._is_ours(end):
            return
        model, step = self.member.learner.model, len(end.done)
        with _kept(model, averaged):
            for each in self.functions:
                name = getattr(each, "__qualname__", repr(each))
                try:
                    result = each(model, step)
                    if result is not None:
                        self._note(Evaluation(step, self.member.where.copy, result))
                except Exception as error:
                    what = f"on_average({name}) after {step} steps, slot {end.slot}"
                    log.error("%s: %r", what, error)
                    if hasattr(error, "add_note"):  # Python 3.11
                        error.add_note(what)
                    raise

    def results(self) -> list[Evaluation]:
        """Return what the functions have returned so far, on any copy."""
        found = []
        with suppress(OSError):
            for line in self._path.read_text(encoding="utf-8").splitlines():
                with suppress(ValueError, KeyError, TypeError):  # of a copy that was killed
                    facts = json.loads(line)
                    found.append(Evaluation(facts["step"], facts["copy"], facts["result"]))
        return found

    @property
    def _path(self) -> Path:
        return self.member.where.directory / "evaluations.jsonl"

    def _note(self, found: Evaluation) -> None:
        try:
            line = json.dumps(vars(found)) + "\n"
        except TypeError as error:
            raise TypeError(f"it is to return a plain value or None: {error}") from error
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(self._path, flags, 0o644), "wb", buffering=0) as file:
                file.write(line.encode())
        except OSError as error:
            log.warning("the result after %d steps is not kept: %s", found.step, error)

    def _is_ours(self, end: SlotEnd) -> bool:
        """Return whether this copy is the first that asks for `end`, the newest one."""
        member = self.member
        if not member.ranks.leads or member.slots.newest_slot() != end.slot:
            return False
        room = member.where.directory / "evaluated"
        path = room / f"slot-{end.slot:08}.{end.id}"
        try:
            room.mkdir(exist_ok=True)
            with path.open("x") as file:
                file.write(f"{member.where.copy}")
        except FileExistsError:
            return False
        except OSError as error:
            log.warning("slot %d is not evaluated: %s", end.slot, error)
            return False
        for old in sorted(room.glob("slot-*"))[:-_KEPT]:
            with suppress(OSError):
                old.unlink()
        return True


@contextmanager
def _kept(model: nn.Module, averaged: TensorFile | None) -> Iterator[None]:
    """Have a model and random numbers after the body as before it; within it, the parameters given.

    Whether modules are in training mode is restored too.
    """
    modes = [(module, module.training) for module in model.modules()]
    own: dict[str, torch.Tensor] = {}
    if averaged is not None:
        own = {name: each.clone() for name, each in model.state_dict().items()}
        model.load_state_dict({name: averaged.tensor(MODEL + name) for name in own})
    device = next((each.device for each in model.parameters()), torch.device("cpu"))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
    if own:
        model.load_state_dict(own)
    for module, is_training in modes:
        module.training = is_training
