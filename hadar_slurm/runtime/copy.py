"""One copy of a forked job: trains its share of each averaging interval, and averages.

    model, optimiser = ...
    with Copy(model, optimiser, total_steps=10_000) as copy:
        for step in copy.steps():
            loss_of(model, dataset[copy.samples(step, batch_size=64, size=len(dataset))]).backward()
            optimiser.step()
            optimiser.zero_grad()

or, with an ordinary data loader,

    copy = Copy(model, optimiser, total_steps=EPOCHS * len(loader))
    for epoch in range(EPOCHS):
        for inputs, labels in copy.loader(loader):
            ...

The same lines train alone, outside of Slurm, and as one of many copies.
"""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from hadar_slurm.runtime import samples
from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.averaging.costs import Costs
from hadar_slurm.runtime.averaging.modes import TrainingMode
from hadar_slurm.runtime.intervals.evaluations import Evaluate, Evaluation
from hadar_slurm.runtime.intervals.following import follow
from hadar_slurm.runtime.intervals.leading import Leading
from hadar_slurm.runtime.intervals.learner import Learner
from hadar_slurm.runtime.intervals.member import Member
from hadar_slurm.runtime.intervals.requests import CopySignals
from hadar_slurm.runtime.intervals.sharing import Sharing
from hadar_slurm.runtime.loading.epochs import Epochs
from hadar_slurm.runtime.membership.joblog import job_log
from hadar_slurm.runtime.membership.ranks import Word
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.samples import Shuffled
from hadar_slurm.runtime.settings import Settings

log = logging.getLogger(__name__)


class Copy(AbstractContextManager["Copy"]):
    """This process's copy of the job.

    A step is one optimiser step, of any number of batches. `model` may be wrapped in
    DistributedDataParallel. `extra` are objects whose state is plain numbers, such as a GradScaler:
    after each averaging interval they have the state of the copy with most steps. `lr` is the
    factor of every learning rate at a step of the whole job, None: unchanged. `seed` decides, with
    the interval and the copy, what is random in training, and the order of samples. `mode` is
    "auto", "synchronous" or "averaged" (docs/runtime.md); None: $HADAR_COPY_MODE, or "auto".

    Raises ValueError for no steps or an unknown mode, and TypeError for an `extra` whose state is
    not plain values.
    """

    def __init__(
        self,
        model: nn.Module,
        optimiser: Optimizer,
        *,
        total_steps: int,
        extra: Sequence[state.Stateful] = (),
        lr: Callable[[int], float] | None = None,
        seed: int = 0,
        mode: str | None = None,
        settings: Settings | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        if total_steps < 1:
            raise ValueError(f"total_steps must be 1 or more, not {total_steps}")
        for each in extra:
            state.plain_state(each)  # raises before training rather than after the first interval
        self.total_steps = total_steps
        inner = model.module if isinstance(model, DistributedDataParallel) else model
        where = surroundings or Surroundings.of()
        settings = settings or Settings()
        by_copies = settings.rate_by_copies
        self.learner = Learner(
            inner,
            optimiser=optimiser,
            extra=tuple(extra),
            lr=lr,
            seed=seed,
            where=where,
            costs=Costs(),
            by_copies=by_copies,
        )
        known = TrainingMode(mode or where.mode or TrainingMode.AUTO)
        self.member = Member(
            where, learner=self.learner, total_steps=total_steps, mode=known, settings=settings
        )
        self.requests = CopySignals(self.member)
        self.leading = Leading(self.member, self.requests)
        self.sharing, self.shuffled = Sharing(self.member), Shuffled(seed)
        self._epochs: Epochs | None = None
        self._steps: Iterator[int] | None = None  # of a loader
        self._is_within = self._leaves_itself = False
        self._open = ExitStack()

    @property
    def model(self) -> nn.Module:
        """Return the model, without DistributedDataParallel."""
        return self.learner.model

    @property
    def optimiser(self) -> Optimizer:
        """Return the optimiser."""
        return self.learner.optimiser

    @property
    def parent_step(self) -> int:
        """Return how many steps of the whole job come before the current one, about."""
        return self.learner.parent_step

    @property
    def stopped(self) -> str:
        """Return why the training has ended although steps were left, "" if it has not."""
        return self.learner.stopped

    def __enter__(self) -> Copy:
        self.member.join()
        self._is_within = True
        if self.member.ranks.leads:
            where = self.member.where
            self._open.enter_context(job_log(where.directory, where.copy))
        self.requests.listen()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._is_within = False
        self.leading.leave(is_error=error is not None)
        self.member.leave(is_done=self.leading.is_done, is_error=error is not None)
        log.info("left: %r", error) if error else log.info("left")
        self.requests.end()
        self._open.close()
        self.member.ranks.leave()

    def steps(self) -> Iterator[int]:
        """Yield the number of each step that this copy is to train, until the job is done.

        A step counts as trained when the next is asked for. Raises SystemExit when Slurm ends the
        copy (SIGTERM); what it has trained of the slot is then in its contribution.
        """
        ranks = self.member.ranks
        if not ranks.leads:
            yield from follow(self.member, self.requests)
            return
        try:
            for step in self.leading.steps():
                ranks.tell(Word.STEP, step, self.parent_step)
                yield step
        except SystemExit as end:
            ranks.tell(Word.LEAVE, int(end.code or 0))
            raise
        ranks.tell(Word.DONE)

    def stop(self, reason: str) -> None:
        """End the training of all copies early, for example because the loss no longer improves.

        To be called within a step, or by a function of `on_average`. The copies end their interval
        and average; then `steps` ends on each of them, with the same parameters, the job counts as
        done, and `stopped` is the reason. The first reason counts.
        """
        self.requests.stop(reason)

    def on_average(self, evaluate: Evaluate) -> Evaluate:
        """Have `evaluate(model, step)` called after each averaging, on exactly one of the copies.

        `model` has the parameters of all copies after `step` steps of the whole job; it must not
        be changed, but for its modes, which are restored as random numbers are. What is returned, a
        plain value, is kept for `evaluations`; None is not. `evaluate` may call `stop`. An
        exception ends this copy, as one of its steps would. Can be used as a decorator.
        """
        self.leading.evaluations.functions.append(evaluate)
        return evaluate

    def evaluations(self) -> list[Evaluation]:
        """Return what functions of `on_average` have returned so far, on any copy."""
        return self.leading.evaluations.results()

    def samples(
        self, step: int, *, batch_size: int, size: int, part: int = 0, parts: int = 1
    ) -> list[int]:
        """Return the indices of a step's batch in a data set of `size` samples.

        Each epoch has its own order, the same for all copies: over the whole job every sample is
        seen once an epoch. Each of several processes gets its share; a batch that is too large for
        one pass is trained in `parts` parts. Raises ValueError where `part` is not one of them.
        """
        found = self.positions(step, batch_size=batch_size, part=part, parts=parts)
        return self.shuffled.indices(found, size)

    def positions(self, step: int, *, batch_size: int, part: int = 0, parts: int = 1) -> range:
        """Return where in the stream of all samples, from 0, a step's batch is; like `samples`."""
        return samples.positions(step, batch_size)[self.sharing.of(batch_size, part, parts)]

    def loader(self, loader: DataLoader[Any], *, parts: int = 1) -> Epochs:
        """Return the batches of this copy's steps, to be iterated once for each epoch of the job.

        In place of `for step in copy.steps()`. A step has `parts` batches of the given loader, for
        gradient accumulation: `total_steps` is the number of epochs times that of batches, by
        `parts`. Without `with`, the copy joins its job before the first batch, and leaves it when
        all steps are done or the program ends. Raises ValueError, with the remedy, for a loader
        whose order of samples cannot be the same on all copies.
        """
        if self._epochs is None:
            self._epochs = self._epochs_of(loader, parts)
        else:
            self._epochs.use(loader, parts)
        return self._epochs

    def _epochs_of(self, loader: DataLoader[Any], parts: int) -> Epochs:
        return Epochs(self, loader, parts)

    def next_step(self) -> int | None:
        """Count the last step as trained; return the next one, None once the job is done."""
        if self._steps is None:
            if not self._is_within:
                self.__enter__()
                self._leaves_itself = True
                atexit.register(self._leave)
            self._steps = self.steps()
        try:
            step = next(self._steps, None)
        except BaseException as error:
            self._leave(error)
            raise
        if step is None:
            self._leave()
        return step

    def _leave(self, error: BaseException | None = None) -> None:
        """Leave the job, if nothing else will: at its end, for an error, or as the program ends."""
        if self._leaves_itself and self._is_within:
            atexit.unregister(self._leave)
            error = error or getattr(sys, "last_value", None)  # that the program ends with
            self.__exit__(type(error) if error else None, error, None)
