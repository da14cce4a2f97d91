"""A copy as a member of its job: the job's files, its claim on them, and the newest end there."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace

from hadar_slurm.runtime.averaging import merging, state
from hadar_slurm.runtime.averaging.ahead import Ahead
from hadar_slurm.runtime.averaging.consolidation import OptimiserRule, check_alike
from hadar_slurm.runtime.averaging.costs import Costs
from hadar_slurm.runtime.averaging.exchange import Exchange
from hadar_slurm.runtime.averaging.finite import MOST_SPOILT, NotFiniteError
from hadar_slurm.runtime.averaging.modes import IntervalChooser, IntervalKind, TrainingMode
from hadar_slurm.runtime.dealing import Dealer
from hadar_slurm.runtime.ending import Ending
from hadar_slurm.runtime.files.identity import Identity, check_same, next_number
from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.files.slots import Slots
from hadar_slurm.runtime.files.tensors import TensorFile, TensorFileError
from hadar_slurm.runtime.intervals.learner import Learner
from hadar_slurm.runtime.joining import check_run, join
from hadar_slurm.runtime.membership.choosing import numbered
from hadar_slurm.runtime.membership.claim import Membership, RunState
from hadar_slurm.runtime.membership.lost import Begun
from hadar_slurm.runtime.membership.presence import Presence
from hadar_slurm.runtime.membership.ranks import Ranks, Word
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.peers import Peers
from hadar_slurm.runtime.reports import CopyReports
from hadar_slurm.runtime.settings import Settings
from hadar_slurm.runtime.synchronous.training import Synchronous

log = logging.getLogger(__name__)


class Member:
    """One copy in its job's directory."""

    def __init__(
        self,
        where: Surroundings,
        learner: Learner,
        total_steps: int,
        mode: TrainingMode,
        settings: Settings,
    ) -> None:
        self.learner, self.settings = learner, settings
        # What a script asks of averaging is no choice of "auto".
        is_local = settings.optimiser is OptimiserRule.LOCAL
        is_averaged = mode is TrainingMode.AUTO and bool(
            settings.delay or settings.outer or is_local
        )
        if mode is TrainingMode.SYNCHRONOUS and is_local:
            raise ValueError('optimiser="local": copies in mode "synchronous" have one state')
        self.mode = TrainingMode.AVERAGED if is_averaged else mode
        self.choice = IntervalChooser(self.mode)
        self.costs: Costs = learner.costs
        self.ranks = Ranks(where.rank, where.ranks)
        self.reports = CopyReports(where, self.costs)
        self.identity = Identity(total_steps, learner.seed)
        self.synchronous: Synchronous | None = None  # where this copy can train so
        self.claim: Membership | None = (
            None  # the lock by which this is the only process of this copy
        )
        self._be_in(where)

    def _be_in(self, where: Surroundings, *, is_first: bool = True) -> None:
        """Use a directory for the files of the job; `is_first`: not one numbered after it."""
        self.where, settings = where, self.settings
        self.slots = Slots(where.directory, settings.keep_every, settings.most_kept)
        self.learner.exchange = Exchange(where.copy, self.slots, settings.optimiser)
        dealer = Dealer(settings, where.assignment, self._kind, self._needs_state)
        self.ending = Ending(self.slots, settings, dealer, self.costs)
        self.presence = Presence(where.directory, where.copy, settings.gone_after_s)
        begun = Begun(self.slots, where, is_first)
        self.peers = Peers(
            self.slots,
            ending=self.ending,
            presence=self.presence,
            settings=settings,
            costs=self.costs,
            begun=begun,
        )

    def _kind(self, end: SlotEnd, here: Collection[int]) -> IntervalKind:
        """Return how the copies `here` train the interval after `end`."""
        self.enrol()
        if self.synchronous is None:
            return IntervalKind.AVERAGED
        return self.choice.kind(here, self.synchronous.roster.able(), end.costly)

    def _needs_state(self, end: SlotEnd) -> bool:
        """Return whether the interval after the next may be synchronous."""
        return self.synchronous is not None and not end.costly

    def enrol(self) -> None:
        """Let other copies know that this one can train synchronously, or average for good."""
        if self.synchronous is not None and not self.synchronous.enrol():
            log.info("averages: %s", self.synchronous.fitness.fault)
            self.synchronous.leave(is_error=False)
            self.synchronous = None

    def join(self) -> None:
        """Agree on the directory; the leader claims the copy.

        Raises SystemExit in the other processes where the leader cannot.
        """
        self.ranks.join()
        total_steps, seed = self.identity.total_steps, self.identity.seed
        number = next_number(self.where.directory) if self.where.is_from_environment else 1
        self.identity = Identity(total_steps, seed, number, self.where.command)
        if self.ranks.leads:
            try:
                self.claim, number = join(self.where, self.identity, self.settings)
            except BaseException:
                self.ranks.tell(Word.LEAVE, 1)
                raise
            self.ranks.tell(Word.DIRECTORY, number)
        else:
            word, number, _ = self.ranks.hear()
            if word is Word.LEAVE:
                raise SystemExit(number)
        if number > 1:
            directory = numbered(self.where.directory, number)
            self._be_in(replace(self.where, directory=directory), is_first=False)

    def leave(self, *, is_done: bool, is_error: bool) -> None:
        """Show the other copies that this one has left, and give back the claim."""
        if self.ranks.leads:
            if self.synchronous is not None:
                self.synchronous.leave(is_error=is_error)
            self.presence.leave()
        if self.claim is not None:
            has_begun = self.learner.known is not None
            has_stopped = not is_error and has_begun and not is_done
            state = RunState.OVER if has_stopped and not self.where.is_named else RunState.LEFT
            self.claim.leave(state if has_begun else self.claim.before)
            self.claim = None

    def named(self) -> state.Named:
        """Return all that a checkpoint keeps, as tensors by name and plain facts."""
        return self.learner.named()

    def newest(self) -> tuple[SlotEnd, TensorFile]:
        """Return the end of the newest slot; raises LostTrainingError where it is lost."""
        return self.peers.newest(self.identity, self.named)

    def has_loaded(self, end: SlotEnd, file: TensorFile, ahead: Ahead | None) -> bool:
        """Load the end of a slot; put it aside where its tensors are broken."""
        try:
            self.learner.load(end, file, ahead)
        except TensorFileError as error:
            self.slots.put_aside(end.slot, error)
            return False
        except OSError as error:
            log.warning("tried again: %s", error)
            return False
        return True

    def first_newest(self) -> tuple[SlotEnd, TensorFile]:
        """Return the newest end, and log how far the job is; raises OtherTrainingError."""
        had_begun = self.slots.newest_slot() >= 0
        end, file = self.newest()
        self._check_identity(end, file)
        self.learner.known = file
        where, done, total = self.where.directory, len(end.done), end.total_steps
        was_here = self.claim is not None and self.claim.before is not None
        if end.is_complete:
            message = "nothing to train: %d of %d steps are done (%s)%s"
            log.warning(message, done, total, where, why_stopped(end))
        elif had_begun and (self.peers.here() == {self.where.copy} or was_here):
            log.warning("resumed, %d of %d steps done (%s)", done, total, where)
        elif had_begun:
            log.info("%d of %d steps are done", done, total)
        return end, file

    def _check_identity(self, end: SlotEnd, file: TensorFile) -> None:
        """Raise OtherTrainingError where the end is of another training or command line."""
        own = self.named()[0].items()
        model = {name: each.shape for name, each in own if name.startswith(state.MODEL)}
        found = end.identity or replace(self.identity, total_steps=end.total_steps, command=())
        difference = check_alike(model, merging.shapes(file))
        check_same(self.where.directory, self.identity, found, difference)
        if self.claim is not None:
            check_run(self.claim)

    def check_claim(self) -> None:
        """Raise HeldError where a later run has taken over."""
        if self.claim is not None:
            self.claim.check()

    def check(self, end: SlotEnd) -> None:
        """Raise HeldError where a later run has taken over, NotFiniteError after MOST_SPOILT."""
        self.check_claim()
        if len(end.spoilt) >= MOST_SPOILT and not end.is_complete:
            kept = ", ".join(map(str, self.slots.kept()))
            slots = self.slots.end_path(end.slot)
            raise NotFiniteError(
                f"{self.where.directory.resolve()}: in {MOST_SPOILT} slots in a row nothing finite "
                f"was trained: {' | '.join(end.spoilt)}. {slots.name} has the parameters of before "
                f"these. To go on from an older slot, remove the newer ones from {slots.parent}: "
                f"the ends of slots {kept} are kept"
            )


def why_stopped(end: SlotEnd) -> str:
    """Return why a training was stopped, for a message; nothing if all steps are done."""
    steps = f"{len(end.done)} of {end.total_steps} steps"
    return f", stopped with {steps}: {end.stopped}" if end.stopped else ""
