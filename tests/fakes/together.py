"""Jobs whose copies train synchronously, in processes that start within milliseconds.

The copies are forked from this process, which has imported PyTorch. Each notes in `notes/` what it
does: `steps-C` has a line for each step that its program has finished, `final-C` its last
parameters.
"""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hadar_slurm.runtime.copy import Copy
from hadar_slurm.runtime.files.ranges import Ranges
from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.files.slots import Slots
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.settings import Settings
from hadar_slurm.runtime.synchronous.links import LinkError, Links

SETTINGS = Settings(
    slot_s=2.0,
    gather_s=1.0,
    gone_after_s=4.0,
    sign_every_s=0.1,
    poll_s=0.02,
    report_every_s=0.1,
    move_s=30.0,
)
LIMIT_S = 120.0
SIZE = 96


def forked(target: Callable[..., None], *words: object, is_daemon: bool = True) -> Any:
    """Start a process that is forked from this one, and return it.

    It must not collect this process's garbage: a process group that an earlier test has left would
    wait for its threads there, which are not forked.
    """
    context: Any = multiprocessing.get_context("fork")
    process = context.Process(target=target, args=words, daemon=is_daemon)
    gc.collect()
    gc.freeze()
    try:
        with warnings.catch_warnings():
            # Python warns of forks beside threads; this process's own are of no use to a copy.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
    finally:
        gc.unfreeze()
    return process


@dataclass(frozen=True)
class Plan:
    """What a copy does; times in seconds."""

    directory: Path
    notes: Path
    total_steps: int
    mode: str = "synchronous"
    batch_size: int = 16
    parts: int = 1
    sample_s: float = 0.0
    norm: bool = False
    clip: float = 0.0
    settings: Settings = SETTINGS
    dies_at: int = -1  # the step in whose exchange it kills itself
    dies_after_s: float = 0.0
    spoils: tuple[int, ...] = ()  # steps whose gradients are NaN, once each
    # Values that a parameter gets before a step, once each, by step.
    changes: Mapping[int, float] = field(default_factory=dict)
    stops_at: int = -1  # the step at which it leaves the loop
    asks_to_stop_at: int = -1  # the step at which it asks all copies to stop
    # Copies that are present before a step is trained, by step: else one may train all alone.
    awaits: Mapping[int, Collection[int]] = field(default_factory=dict)
    is_unlinked: bool = False  # no copy reaches another one
    has_own_samples: bool = False  # the script does not ask the runtime for samples
    restart: int = 0


def make(norm: bool = False) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a model and its optimiser."""
    torch.manual_seed(0)
    middle: nn.Module = nn.BatchNorm1d(32) if norm else nn.Tanh()
    model = nn.Sequential(nn.Linear(8, 32), middle, nn.Linear(32, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and labels."""
    inputs = torch.randn(SIZE, 8, generator=torch.Generator().manual_seed(5))
    return inputs, (inputs.sum(dim=1) > 0).long()


def alone(plan: Plan) -> dict[str, torch.Tensor]:
    """Return the parameters that a plain loop comes to, without copies."""
    model, optimiser = make(plan.norm)
    copy = Copy(model, optimiser, total_steps=plan.total_steps)
    inputs, labels = data()
    for step in range(plan.total_steps):
        rows = copy.samples(step, batch_size=plan.batch_size, size=SIZE)
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        if plan.clip:
            nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
        optimiser.step()
    return model.state_dict()


def train(plan: Plan, number: int) -> None:
    """Train as one copy."""
    torch.set_num_threads(1)
    _note_errors(plan.notes / f"log-{number}")
    model, optimiser = make(plan.norm)
    inputs, labels = data()
    where = Surroundings(copy=number, directory=plan.directory, restart=plan.restart)
    spoils, changes = set(plan.spoils), dict(plan.changes)
    if plan.is_unlinked:
        Links.__init__ = _refuse  # type: ignore[method-assign, assignment]
    with (
        Copy(
            model,
            optimiser,
            total_steps=plan.total_steps,
            mode=plan.mode,
            settings=plan.settings,
            surroundings=where,
        ) as copy,
        (plan.notes / f"steps-{number}").open("a", buffering=1) as told,
    ):
        for step in copy.steps():
            if step == plan.stops_at:
                break
            room = plan.directory / "copies"
            for other in plan.awaits.get(step, ()):
                until((room / str(other)).exists)
            if step == plan.dies_at:
                _die_in_exchange(plan.dies_after_s)
            if step in changes:
                with torch.no_grad():
                    next(model.parameters())[0, 0] = changes.pop(step)
            optimiser.zero_grad()
            for part in range(plan.parts):
                rows = (
                    list(range(plan.batch_size))
                    if plan.has_own_samples
                    else copy.samples(
                        step, batch_size=plan.batch_size, size=SIZE, part=part, parts=plan.parts
                    )
                )
                time.sleep(plan.sample_s * len(rows))
                loss = nn.functional.cross_entropy(model(inputs[rows]), labels[rows]) / plan.parts
                if step in spoils:
                    spoils.remove(step)
                    loss = loss * float("nan")
                loss.backward()
            if plan.clip:
                nn.utils.clip_grad_norm_(model.parameters(), plan.clip)
            optimiser.step()
            if step == plan.asks_to_stop_at:
                copy.stop("the loss rises")
            told.write(f"{step} {len(rows)}\n")
    torch.save(copy.model.state_dict(), plan.notes / f"final-{number}")


def _note_errors(path: Path) -> None:
    handler = logging.FileHandler(path)
    logging.getLogger().handlers[:] = [handler]
    os.dup2(handler.stream.fileno(), 2)


def _refuse(*_: object) -> None:
    raise LinkError("no route to host")


def _die_in_exchange(after_s: float) -> None:
    """Have this process killed at a time after the begin of its next exchange."""
    real = Links.sum

    def dying(links: Links, tensor: torch.Tensor) -> None:
        if after_s <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        real(links, tensor)

    Links.sum = dying  # type: ignore[method-assign]


@dataclass
class Job:
    """A job in a directory, and the processes of its copies."""

    path: Path
    total_steps: int
    options: dict[str, Any] = field(default_factory=dict)
    processes: dict[int, Any] = field(default_factory=dict)
    starts: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.directory, self.notes = self.path / "job", self.path / "notes"
        self.notes.mkdir(parents=True)
        make()  # loads what an optimiser needs, once for all copies

    def start(self, *copies: int, **options: Any) -> None:
        """Start copies; step 0 is trained when all of them are present."""
        for copy in copies:
            self.starts[copy] = self.starts.get(copy, -1) + 1
            plan = Plan(self.directory, self.notes, self.total_steps, restart=self.starts[copy])
            plan = replace(plan, **{"awaits": {0: copies}, **self.options, **options})
            self.processes[copy] = forked(train, plan, copy)

    def kill(self, copy: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a copy a signal."""
        os.kill(self.processes[copy].pid, number)

    def end(self, copy: int, status: int = 0) -> None:
        """Wait until a copy ends with a status."""
        process = self.processes.pop(copy)
        process.join(LIMIT_S)
        assert process.exitcode == status, (copy, process.exitcode, self.log())

    def stop(self) -> None:
        """Kill what is left."""
        for process in self.processes.values():
            process.kill()
            process.join()
        self.processes.clear()

    def steps(self, copy: int) -> list[int]:
        """Return the steps that a copy's program has finished."""
        path = self.notes / f"steps-{copy}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(line.split()[0]) for line in lines]

    def log(self) -> str:
        """Return the job's log."""
        paths = [self.directory / "job.log", *sorted(self.notes.glob("log-*"))]
        return "\n".join(path.read_text() for path in paths if path.exists())

    def final(self, copy: int) -> dict[str, torch.Tensor]:
        """Return the parameters at the end of a copy."""
        found: dict[str, torch.Tensor] = torch.load(self.notes / f"final-{copy}")
        return found

    def newest(self) -> SlotEnd:
        """Return the newest end of an interval."""
        found = Slots(self.directory).newest()
        assert found is not None
        return found[0]

    def check(self, *copies: int) -> None:
        """Check that the job is done, and that these copies have the same parameters."""
        assert self.newest().done == Ranges.of([(0, self.total_steps)])
        self.check_same(*copies)

    def check_same(self, *copies: int) -> None:
        """Check that these copies have the same parameters."""
        one, *others = (self.final(copy) for copy in copies)
        for other in others:
            assert all(torch.equal(one[name], other[name]) for name in one)


def until(condition: Any, job: Job | None = None) -> None:
    """Wait until `condition` holds."""
    deadline_s = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline_s, job.log() if job else "not in time"
        time.sleep(0.02)
