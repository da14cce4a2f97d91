"""What a copy trains: a model, its optimiser, learning rates and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.optim import Optimizer

from hadar_slurm.older_python import zip_equal
from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.averaging.ahead import Ahead
from hadar_slurm.runtime.averaging.costs import Costs
from hadar_slurm.runtime.averaging.exchange import Exchange
from hadar_slurm.runtime.averaging.rates import factor as factor_by_copies
from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.files.tensors import TensorFile
from hadar_slurm.runtime.intervals.scaling import Scaling
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.samples import mixed


@dataclass(eq=False)
class Learner:
    """The state of one copy's training; `lr` is a factor of every rate at a step of the job.

    `by_copies` says how rates follow the number of copies that average.
    """

    model: nn.Module
    optimiser: Optimizer
    extra: tuple[state.Stateful, ...]
    lr: Callable[[int], float] | None
    seed: int
    where: Surroundings
    costs: Costs
    by_copies: bool | float = True
    exchange: Exchange = field(init=False)  # with the files of the job, once these are known
    parent_step: int = 0  # steps of the whole job before the current one
    ahead: Ahead | None = None  # what was trained since the last contribution
    known: TensorFile | None = None  # the file that was loaded last
    stopped: str = ""  # why the training has ended although steps were left
    base_lrs: list[float] = field(default_factory=list)
    end: SlotEnd | None = None  # that was loaded last
    # Of what is trained ahead: new memory for each interval would take longer to get.
    _memory: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._scaling = Scaling.of(self.optimiser)
        self.base_lrs = [float(group["lr"]) for group in self.optimiser.param_groups]

    def named(self) -> state.Named:
        """Return all that a checkpoint keeps, as tensors by name and plain facts."""
        return state.tensors_of(self.model, self.optimiser, self.extra)

    def load(self, end: SlotEnd, file: TensorFile, ahead: Ahead | None = None) -> None:
        """Take over the parameters at the end of a slot, and add what was trained ahead.

        Raises TensorFileError and OSError; then the model is no longer whole.
        """
        with self.costs.measure(self.costs.now.take_s if ahead else self.costs.now.load_s):
            own = self.model, self.optimiser, self.extra
            self.exchange.take_over(*own, end, file, ahead)
        self.known, self.stopped, self.end = file, end.stopped, end
        torch.manual_seed(mixed(self.seed, end.slot + 1, self.where.copy, self.where.rank))
        self.costs.take_over(end.slot, end.made_s)
        self.costs.is_with_state = end.with_state

    def take_over(self, named: state.Named) -> None:
        """Load a state that another copy has sent."""
        state.load(self.model, self.optimiser, *named, self.extra)
        self.exchange.has_state = True

    def go_ahead(self, slot: int) -> Ahead:
        """Keep what this copy contributes to an interval; seed differently from `load`."""
        torch.manual_seed(mixed(self.seed, slot, self.where.copy, self.where.rank, 1))
        self.ahead = Ahead(self.model, slot, self._memory)
        return self.ahead

    def fetch(self, end: SlotEnd, file: TensorFile, ahead: Ahead) -> None:
        """Read the end of an interval for what was trained ahead, beside training.

        Raises TensorFileError and OSError; what was trained ahead is lost then.
        """
        with self.costs.measure(self.costs.now.load_s):
            ahead.fetch(end, file)

    def set_rates(self, parent_step: int) -> None:
        """Give every group its learning rate at a step of the whole job."""
        self.parent_step = parent_step
        if self.end:
            self._scaling.factor = factor_by_copies(self.end, parent_step, self.by_copies)
        if self.lr is not None:
            factor = self.lr(parent_step)
            for group, rate in zip_equal(self.optimiser.param_groups, self.base_lrs):
                group["lr"] = rate * factor
