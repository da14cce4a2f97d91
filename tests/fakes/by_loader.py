"""Jobs whose copies train by an ordinary data loader, in processes forked from this one.

Each copy notes in `notes/`: `batches-C` has a line for each batch, with the indices of its samples,
`final-C` its last parameters, `log-C` its warnings.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fakes.together import forked
from torch import nn
from torch.utils.data import DataLoader, Dataset

from hadar_slurm.runtime.copy import Copy
from hadar_slurm.runtime.files.ranges import Ranges
from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.files.slots import Slots
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.settings import Settings

LIMIT_S = 600.0
# A busy machine may keep a copy from showing that it lives for some time.
SETTINGS = Settings(
    slot_s=1.0,
    gather_s=0.5,
    gone_after_s=60.0,
    sign_every_s=0.1,
    poll_s=0.02,
    report_every_s=0.1,
)


class Numbered(Dataset[Any]):
    """Samples that know their index; each takes `sample_s` seconds."""

    def __init__(self, size: int) -> None:
        self.inputs = torch.randn(size, 8, generator=torch.Generator().manual_seed(5))
        self.labels = (self.inputs.sum(dim=1) > 0).long()

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> Any:
        return index, self.inputs[index], self.labels[index]


@dataclass
class Plan:
    """What the copies of a job do; `slow` is what a sample takes on each copy, in seconds."""

    path: Path
    copies: int = 1
    epochs: int = 2
    size: int = 50
    batch_size: int = 8
    mode: str = "averaged"
    parts: int = 1
    options: dict[str, Any] = field(default_factory=dict)  # of the DataLoader
    slow: tuple[float, ...] = (0.0, 0.0)
    settings: Settings = SETTINGS
    norm: bool = False
    lr: float = 0.1
    seed: int = 0
    # Called with the copy, its number and the plan once the copy is made.
    prepare: Callable[[Copy, int, Plan], None] | None = None

    def __post_init__(self) -> None:
        self.directory, self.notes = self.path / "job", self.path / "notes"
        self.notes.mkdir(parents=True, exist_ok=True)

    def loader(self) -> DataLoader[Any]:
        """Return the script's loader."""
        return DataLoader(Numbered(self.size), self.batch_size, **self.options)

    def make(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Return the script's model and optimiser."""
        torch.manual_seed(0)
        middle: nn.Module = nn.BatchNorm1d(16) if self.norm else nn.Tanh()
        model = nn.Sequential(nn.Linear(8, 16), middle, nn.Linear(16, 2))
        return model, torch.optim.SGD(model.parameters(), lr=self.lr, momentum=0.9)

    @property
    def total_steps(self) -> int:
        """Return the steps of all epochs."""
        return self.epochs * len(self.loader()) // self.parts


def ordinary(plan: Plan) -> dict[str, torch.Tensor]:
    """Return the parameters that the script comes to without copies."""
    model, optimiser = plan.make()
    loader, passes = plan.loader(), 0
    for _ in range(plan.epochs):
        for _, inputs, labels in loader:
            _train(plan, model, optimiser, inputs, labels, passes)
            passes += 1
    return model.state_dict()


def train(plan: Plan, number: int) -> None:
    """Train as one copy, and leave a mark where that fails."""
    try:
        _train_copy(plan, number)
    except BaseException:
        (plan.notes / f"failed-{number}").touch()
        raise


def _has_come(plan: Plan, copy: int) -> bool:
    """Return whether a copy is present, or has failed and left since."""
    marks = plan.directory / "copies" / str(copy), plan.notes / f"failed-{copy}"
    return any(mark.exists() for mark in marks)


def _train_copy(plan: Plan, number: int) -> None:
    torch.set_num_threads(1)
    handler = logging.FileHandler(plan.notes / f"log-{number}")
    logging.getLogger().handlers[:] = [handler]
    os.dup2(handler.stream.fileno(), 2)
    model, optimiser = plan.make()
    loader, passes = plan.loader(), 0
    copy = Copy(
        model,
        optimiser,
        total_steps=plan.total_steps,
        mode=plan.mode,
        settings=plan.settings,
        seed=plan.seed,
        surroundings=Surroundings(copy=number, directory=plan.directory),
    )
    if plan.prepare:
        plan.prepare(copy, number, plan)
    with (plan.notes / f"batches-{number}").open("a", buffering=1) as told:
        for _ in range(plan.epochs):
            for indices, inputs, labels in copy.loader(loader, parts=plan.parts):
                if not passes:  # else one copy may train all steps alone
                    for other in range(plan.copies):
                        until(partial(_has_come, plan, other))
                time.sleep(plan.slow[number] * len(indices))
                _train(plan, model, optimiser, inputs, labels, passes)
                passes += 1
                told.write(" ".join(map(str, indices.tolist())) + "\n")
            told.write("epoch\n")
    torch.save(model.state_dict(), plan.notes / f"final-{number}")


def _train(
    plan: Plan,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    inputs: torch.Tensor,
    labels: torch.Tensor,
    passes: int,
) -> None:
    loss = nn.functional.cross_entropy(model(inputs), labels) / plan.parts
    loss.backward()
    if (passes + 1) % plan.parts == 0:
        optimiser.step()
        optimiser.zero_grad()


@dataclass
class Job:
    """The running copies of a job."""

    plan: Plan
    processes: dict[int, Any] = field(default_factory=dict)

    def start(self, *copies: int) -> None:
        """Start copies."""
        self.plan.make()  # loads what an optimiser needs, once for all copies
        for copy in copies:
            # Not daemonic: a copy has workers.
            self.processes[copy] = forked(train, self.plan, copy, is_daemon=False)

    def end(self, copy: int, status: int = 0) -> None:
        """Wait until a copy ends with a status."""
        self.processes[copy].join(LIMIT_S)
        assert self.processes[copy].exitcode == status, (copy, self.log())

    def run(self, *, is_whole: bool = True) -> None:
        """Start all copies and wait until they end."""
        self.start(*range(self.plan.copies))
        for copy in range(self.plan.copies):
            self.end(copy)
        assert not is_whole or self.newest().done == Ranges.of([(0, self.plan.total_steps)]), (
            self.log()
        )

    def stop(self) -> None:
        """Kill what is left."""
        for process in self.processes.values():
            process.kill()
            process.join()

    def newest(self) -> SlotEnd:
        """Return the newest end of an interval."""
        found = Slots(self.plan.directory).newest()
        assert found is not None
        return found[0]

    def batches(self, copy: int) -> list[list[int]]:
        """Return the batches of a copy."""
        lines = (self.plan.notes / f"batches-{copy}").read_text().splitlines()
        return [[int(word) for word in line.split()] for line in lines if line != "epoch"]

    def epochs(self, copy: int) -> int:
        """Return how many epochs a copy's program has ended."""
        return (self.plan.notes / f"batches-{copy}").read_text().split().count("epoch")

    def seen(self) -> Counter[int]:
        """Return how often the copies have seen each sample."""
        copies = range(self.plan.copies)
        return Counter(each for copy in copies for batch in self.batches(copy) for each in batch)

    def final(self, copy: int) -> dict[str, torch.Tensor]:
        """Return the parameters at the end of a copy."""
        found: dict[str, torch.Tensor] = torch.load(self.plan.notes / f"final-{copy}")
        return found

    def log(self) -> str:
        """Return what the copies have logged."""
        paths = [self.plan.directory / "job.log", *sorted(self.plan.notes.glob("log-*"))]
        return "\n".join(path.read_text() for path in paths if path.exists())


def until(condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.02)


def is_close(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return whether parameters are the same up to rounding."""
    return all(torch.allclose(one[name], other[name], atol=1e-5) for name in one)
