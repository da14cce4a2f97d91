"""A copy of a small training, for faults.py: it notes outside of the job's directory what it does.

    python fault_copy.py --notes DIR --steps N --step-seconds n1=0.02,n2=0.04    # a task of Slurm's

In the directory of notes, which no fault touches, copy C leaves

    pid-C       its process and the one that started it
    steps-C     the steps that it trained by itself, a line each
    parts-C     the contributions that it was about to write
    shares-C    synchronous steps, before the gradients are exchanged: see `Share`
    made-C      synchronous steps that were applied: see `Made`
    ending-C    is there while it ends an interval
    final-C     a checksum of its parameters once the job was done

and does what the program that started it asks for there: `die-ending` and `die-exchange` name the
fault that ends the first copy that writes the end of an interval or exchanges gradients, and the
seconds after which; `spoil-C` names a `Spoil` of copy C's next step.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import zlib
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.averaging.modes import TrainingMode
from hadar_slurm.runtime.copy import Copy
from hadar_slurm.runtime.ending import Ending, Settings
from hadar_slurm.runtime.files import slots as slots_module
from hadar_slurm.runtime.files.records import Contribution
from hadar_slurm.runtime.files.slots import Slots
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.synchronous.gradients import Exchanged, Field, Gradients, StepOutcome
from hadar_slurm.runtime.synchronous.links import Links

BATCH_SIZE = 16
SETTINGS = Settings(
    slot_s=1.0, gather_s=1.0, gone_after_s=2.0, sign_every_s=0.1, poll_s=0.02, report_every_s=0.05
)
# Under Slurm a copy may be on another node after seconds of Python's own start.
SLURM_SETTINGS = Settings(
    slot_s=3.0, gone_after_s=3.0, sign_every_s=0.2, poll_s=0.05, report_every_s=0.2, move_s=10.0
)
_SIZE = 96
# Flipping one bit of the exponent.
_FLIPPED = 2.0**32


class Spoil(StrEnum):
    """What a copy does to itself in a step."""

    GRADIENTS = "gradients"  # are NaN
    PARAMETERS = "parameters"  # one is NaN
    FLIP = "flip"  # a parameter is large
    CUT = "cut"  # its connections break


@dataclass(frozen=True, slots=True)
class Job:
    """A training of `total_steps`, and the seconds that a step of each copy takes at the least."""

    directory: Path
    notes: Path
    total_steps: int
    step_s: tuple[float, ...]
    settings: Settings = SETTINGS
    mode: str = TrainingMode.AVERAGED


@dataclass(frozen=True, slots=True)
class Share:
    """The samples of a step that a copy trained, from `steps` steps after the slot end `end`."""

    end: str
    group: int
    steps: int
    step: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Made:
    """A state of a copy: that of which group, after how many steps since the slot end `end`."""

    pid: int
    end: str
    group: int
    steps: int
    checksum: int


class Model(nn.Module):
    """A model with batch statistics and dropout, and a record of the samples it has trained with.

    `seen` has an element for each sample of the training. The gradient of a batch's loss by those
    of its samples is 1 / samples, which the optimiser adds, times the batch size: an element is
    the weight with which its sample has entered the parameters, 1 if all went well.
    """

    def __init__(self, total_steps: int) -> None:
        super().__init__()
        middle = nn.BatchNorm1d(32), nn.Dropout(0.1)
        self.net = nn.Sequential(nn.Linear(8, 32), *middle, nn.Linear(32, 2))
        self.seen = nn.Parameter(torch.zeros(total_steps * BATCH_SIZE))

    def loss(self, inputs: torch.Tensor, labels: torch.Tensor, positions: range) -> torch.Tensor:
        """Return the mean loss of samples, given their positions in the training."""
        counted = self.seen[positions.start : positions.stop].mean()
        return nn.functional.cross_entropy(self.net(inputs), labels) + counted


class Recorded(AdamW):
    """AdamW, but for the record, the last parameter: what is added to it is its gradient."""

    def step(self, closure: Any = None) -> Any:
        """Train a step."""
        record = self.param_groups[-1]["params"][0]
        if record.grad is not None:
            record.data.add_(record.grad, alpha=BATCH_SIZE)
            record.grad = None
        return super().step(closure)


def make(total_steps: int = 1) -> tuple[Model, Optimizer]:
    """Return the model and its optimiser."""
    torch.manual_seed(0)
    model = Model(total_steps)
    groups = [{"params": list(model.net.parameters())}, {"params": [model.seen]}]
    return model, Recorded(groups, lr=1e-2)


def train(job: Job, number: int) -> None:
    """Train as copy `number` until the job is done."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # as a batch script does, until training begins
    _logged(job, Surroundings(copy=number, directory=job.directory), job.step_s[number])


def _logged(job: Job, where: Surroundings, step_s: float) -> None:
    torch.set_num_threads(1)
    log = job.notes / f"log-{where.copy}"
    logging.basicConfig(level="INFO", filename=log, format="%(created).3f %(message)s")
    try:
        _train(job, where, step_s)
    except Exception:
        logging.exception("this copy failed")
        raise


def _train(job: Job, where: Surroundings, step_s: float) -> None:
    number = where.copy
    model, optimiser = make(job.total_steps)
    notes = Notes(job.notes, number, model, optimiser)
    notes.open()
    inputs = torch.randn(_SIZE, 8, generator=torch.Generator().manual_seed(5))
    labels = (inputs.sum(dim=1) > 0).long()
    with Copy(
        model,
        optimiser,
        total_steps=job.total_steps,
        mode=job.mode,
        settings=job.settings,
        surroundings=where,
    ) as copy:
        for step in copy.steps():
            spoil = _spoil(job.notes / f"spoil-{number}", model)
            positions = copy.positions(step, batch_size=BATCH_SIZE)
            rows = copy.samples(step, batch_size=BATCH_SIZE, size=_SIZE)
            is_together = notes.begin(copy, step, positions)
            time.sleep(step_s * len(rows) / BATCH_SIZE)
            loss = model.loss(inputs[rows], labels[rows], positions)
            if spoil is Spoil.GRADIENTS:
                loss = loss * float("nan")
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            if not is_together:
                notes.write("steps", step)
    # Copies that average may have optimiser states of their own.
    notes.write("final", notes.checksum(state.MODEL))


def _spoil(path: Path, model: Model) -> Spoil | None:
    """Do what is asked for to this copy, and return it; gradients are for the caller to spoil."""
    if not path.exists():
        return None
    kind, after_s = path.read_text().split()
    path.unlink()
    spoil = Spoil(kind)
    with torch.no_grad():
        if spoil is Spoil.PARAMETERS:
            model.net[0].weight[0, 0] = float("nan")
        elif spoil is Spoil.FLIP:
            model.net[0].weight[0, 0] *= _FLIPPED
    if spoil is Spoil.CUT:
        threading.Timer(float(after_s), _cut).start()
    return spoil


def _cut() -> None:
    """Break all TCP connections of this process."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as link:
            link.getpeername()  # raises for one that listens
            link.shutdown(socket.SHUT_RDWR)


@dataclass
class Notes:
    """What copy `number` leaves in a directory, with its process and that which started it."""

    directory: Path
    number: int
    model: Model
    optimiser: Optimizer
    _share: Share | None = None
    _files: dict[str, Any] = field(default_factory=dict)

    def open(self) -> None:
        """Have the runtime's own steps noted in this process."""
        self._path("pid").write_text(f"{os.getpid()} {os.getppid()}")
        contribute, end, together = Slots.contribute, Ending.end, Ending.end_together
        finish, add = Gradients.finish, Links.sum

        def noted_contribute(slots: Slots, part: Contribution, *rest: Any) -> None:
            self.write("parts", [part.slot, part.base, part.done.pairs])
            contribute(slots, part, *rest)

        def noted_end(ending: Ending, *rest: Any) -> Any:
            return self._ending(lambda: end(ending, *rest))

        def noted_together(ending: Ending, *rest: Any) -> Any:
            return self._ending(lambda: together(ending, *rest))

        def noted_sum(links: Links, tensor: torch.Tensor) -> None:
            self._die("die-exchange")
            add(links, tensor)

        def noted_finish(gradients: Gradients) -> Exchanged:
            found = finish(gradients)
            if found.outcome is StepOutcome.APPLIED and (at := self._share):
                made = Made(os.getpid(), at.end, at.group, at.steps + 1, self.checksum())
                self.write("made", astuple(made))
            return found

        slots_module.LARGE = 1  # written over older ones, or in their memory, as of large models
        Slots.contribute = noted_contribute  # type: ignore[method-assign, assignment]
        Ending.end = noted_end  # type: ignore[method-assign, assignment]
        Ending.end_together = noted_together  # type: ignore[method-assign, assignment]
        Gradients.finish = noted_finish  # type: ignore[method-assign]
        Links.sum = noted_sum  # type: ignore[method-assign]

    def begin(self, copy: Copy, step: int, positions: range) -> bool:
        """Note the share of a step that this copy is about to train; return whether it is one."""
        part = copy.member.synchronous
        if part is None or not part.is_training:
            self._share = None
            return False
        progress, group = part.progress, part.grouping.group
        assert progress is not None
        assert group is not None
        version = progress.version
        count = int(part.gradients.own[Field.SAMPLES])
        first = positions.start
        self._share = Share(version.end, group.number, version.steps, step, first, first + count)
        self.write("shares", astuple(self._share))
        return True

    def write(self, name: str, value: Any) -> None:
        """Add a line that outlives this process."""
        if name not in self._files:
            self._files[name] = self._path(name).open("a", buffering=1)
        self._files[name].write(json.dumps(value) + "\n")

    def checksum(self, prefix: str = "") -> int:
        """Return a checksum of the state, or of what has names with a prefix."""
        found = 0
        for name, tensor in sorted(state.tensors_of(self.model, self.optimiser)[0].items()):
            if not name.startswith(prefix):
                continue
            found = zlib.crc32(tensor.detach().reshape(-1).contiguous().numpy().data, found)
        return found

    def _ending(self, end: Any) -> Any:
        self._die("die-ending")
        marker = self._path("ending")
        marker.touch()
        found = end()
        marker.unlink()
        return found

    def _die(self, name: str) -> None:
        """End this process soon, if that is asked for."""
        with suppress(FileNotFoundError):
            # One copy alone gets to rename it.
            death = (self.directory / name).rename(self._path("died"))
            _, after_s = json.loads(death.read_text())
            threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}-{self.number}"


def _do_without_compiler() -> None:
    """Spare each start the seconds that PyTorch's compiler takes to load; nothing is compiled."""
    absent = ModuleType("torch._dynamo")
    absent.disable = lambda function, *rest, **more: function  # type: ignore[attr-defined]
    absent.graph_break = lambda: None  # type: ignore[attr-defined]
    sys.modules[absent.__name__] = torch._dynamo = absent


def main() -> None:
    """Train as the task of Slurm's that this is."""
    words = argparse.ArgumentParser()
    words.add_argument("--notes", type=Path, required=True)
    words.add_argument("--steps", type=int, required=True)
    words.add_argument("--step-seconds", required=True, help="by node, n1=0.02,n2=0.04")
    words.add_argument("--mode", default=TrainingMode.AVERAGED.value)
    words.add_argument("--gone-after", type=float, default=SLURM_SETTINGS.gone_after_s)
    options = words.parse_args()
    _do_without_compiler()
    step_s = dict(pair.split("=") for pair in options.step_seconds.split(","))
    where = Surroundings.of()
    settings = replace(SLURM_SETTINGS, gone_after_s=options.gone_after)
    job = Job(where.directory, options.notes, options.steps, (), settings, options.mode)
    _logged(job, where, float(step_s[os.environ["SLURMD_NODENAME"]]))


if __name__ == "__main__":
    main()
