"""One copy of a forked job: trains its share of each averaging interval, and averages.

    model, optimiser = ...
    with Copy(model, optimiser, total_steps=10_000) as copy:
        for step in copy.steps():
            loss_of(model, dataset[copy.samples(step, batch_size=64, size=len(dataset))]).backward()
            optimiser.step()
            optimiser.zero_grad()

The same lines train alone, outside of Slurm, and as one of many copies.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from hadar_slurm.older_python import zip_equal
from hadar_slurm.runtime import samples
from hadar_slurm.runtime.averaging import state
from hadar_slurm.runtime.averaging.ahead import Ahead
from hadar_slurm.runtime.averaging.consolidation import check_alike
from hadar_slurm.runtime.averaging.costs import Costs
from hadar_slurm.runtime.averaging.finite import MOST_SPOILT, NotFiniteError, fault_in
from hadar_slurm.runtime.averaging.identity import Identity, check_same, next_number
from hadar_slurm.runtime.averaging.modes import Mode, is_synchronous
from hadar_slurm.runtime.averaging.ranges import Ranges
from hadar_slurm.runtime.averaging.slots import Contribution, SlotEnd, Slots
from hadar_slurm.runtime.averaging.tensors import TensorFile, TensorFileError
from hadar_slurm.runtime.dealing import Dealer
from hadar_slurm.runtime.ending import Ending, shapes_in
from hadar_slurm.runtime.joining import check_run, join
from hadar_slurm.runtime.membership.choosing import numbered
from hadar_slurm.runtime.membership.claim import Claim, State
from hadar_slurm.runtime.membership.joblog import job_log
from hadar_slurm.runtime.membership.lost import Begun
from hadar_slurm.runtime.membership.presence import Doing, Presence
from hadar_slurm.runtime.membership.ranks import Ranks, Word
from hadar_slurm.runtime.membership.surroundings import Surroundings
from hadar_slurm.runtime.peers import Peers
from hadar_slurm.runtime.reports import Reports
from hadar_slurm.runtime.samples import Shuffled, mixed
from hadar_slurm.runtime.settings import Settings
from hadar_slurm.runtime.synchronous.joining import together
from hadar_slurm.runtime.synchronous.training import Steps, Synchronous

log = logging.getLogger(__name__)

# A copy that takes longer than an interval by this factor contributes what it has trained.
_OVERTIME = 1.1
# How often a failed contribution is tried again, in seconds.
_SAVE_EVERY_S = 1.0


class Copy(AbstractContextManager["Copy"]):
    """This process's copy of the job.

    A step is one optimiser step, of any number of batches. `model` may be wrapped in
    DistributedDataParallel. `extra` are objects whose state is plain numbers, such as a GradScaler:
    after each averaging interval they have the state of the copy with most steps. `lr` is the
    factor of every learning rate at a step of the whole job, None: unchanged. `seed` decides, with
    the interval and the copy, what is random in training, and the order of samples. `mode` is
    "averaged", "synchronous" or "auto" (docs/runtime.md).

    Raises ValueError for no steps, and TypeError for an `extra` whose state is not plain values.
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
        mode: str = Mode.AVERAGED,
        settings: Settings | None = None,
        surroundings: Surroundings | None = None,
    ) -> None:
        self.mode = Mode(mode)
        if total_steps < 1:
            raise ValueError(f"total_steps must be 1 or more, not {total_steps}")
        self.model = model.module if isinstance(model, DistributedDataParallel) else model
        self.optimiser, self.extra = optimiser, tuple(extra)
        for each in self.extra:
            state.plain_state(each)  # raises before training rather than after the first interval
        self.total_steps, self.lr, self.seed = total_steps, lr, seed
        self.settings = settings or Settings()
        self.where = surroundings or Surroundings.of()
        self.ranks = Ranks(self.where.rank, self.where.ranks)
        self.costs = Costs()
        self.reports = Reports(self.where, self.costs)
        self._be_in(self.where)
        self.base_lrs = [float(group["lr"]) for group in optimiser.param_groups]
        self.asked: set[int] = set()
        self.stop_asked = ""  # why this copy wants the whole training to end
        self.stopped = ""  # why it has ended although steps were left
        self._has_said_stop = False
        self.parent_step = 0
        self.ahead: Ahead | None = None
        self.identity = Identity(total_steps, seed)
        self.synchronous: Synchronous | None = None  # where this copy can train so
        self.claim: Claim | None = None  # the lock by which this is the only process of this copy
        self._known: TensorFile | None = None  # the file that was loaded last
        # Returns what is trained of the running interval, None between intervals.
        self._trained: Callable[[], Contribution] | None = None
        self._is_done = self._is_leaving = False
        self._beside = ThreadPoolExecutor(1, "hadar-slot")
        self._unsaved: tuple[Contribution, state.Named] | None = None
        self._save_again_s = self._told_s = 0.0
        self._shuffled = Shuffled(seed)
        self._handlers: dict[int, Any] = {}
        self._open = ExitStack()

    def _be_in(self, where: Surroundings, *, is_first: bool = True) -> None:
        """Use a directory for the files of the job; `is_first`: not one numbered after it."""
        self.where, settings = where, self.settings
        self.slots = Slots(where.directory, settings.keep_every, settings.most_kept)
        dealer = Dealer(settings, where.assignment, self._are_together)
        self.ending = Ending(self.slots, settings, dealer, self.costs)
        self.presence = Presence(where.directory, where.copy, settings.gone_after_s)
        begun = Begun(self.slots, where, is_first)
        self.peers = Peers(self.slots, self.ending, self.presence, settings, self.costs, begun)

    def _are_together(self, end: SlotEnd, here: Collection[int]) -> bool:
        """Return whether the copies `here` train the interval after `end` synchronously."""
        if self.synchronous is None:
            return False
        able = self.synchronous.roster.able()
        return is_synchronous(self.mode, here, able, end.costly)

    def __enter__(self) -> Copy:
        self.ranks.join()
        number = next_number(self.where.directory) if self.where.is_from_environment else 1
        self.identity = Identity(self.total_steps, self.seed, number, self.where.command)
        self._join()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGUSR1, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._ask)
        return self

    def _join(self) -> None:
        """Agree on the directory; the leader claims the copy."""
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
        if self.ranks.leads:
            self._open.enter_context(job_log(self.where.directory, self.where.copy))

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._is_leaving = True
        self._beside.shutdown()
        if self.ranks.leads:
            if error is None and self._trained is not None:
                self._leave_early(self._trained())
            if self.synchronous is not None:
                self.synchronous.leave(is_error=error is not None)
            self.presence.leave()
        if self.claim is not None:
            has_stopped = error is None and self._known is not None and not self._is_done
            state = State.OVER if has_stopped and not self.where.is_named else State.LEFT
            self.claim.leave(state if self._known else self.claim.before)
            self.claim = None
        log.info("left: %r", error) if error else log.info("left")
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._open.close()
        self.ranks.leave()

    def steps(self) -> Iterator[int]:
        """Yield the number of each step that this copy is to train, until the job is done.

        A step counts as trained when the next is asked for. Raises SystemExit when Slurm ends the
        copy (SIGTERM); what it has trained of the slot is then in its contribution.
        """
        if not self.ranks.leads:
            yield from self._follow()
            return
        try:
            for step in self._lead():
                self.ranks.tell(Word.STEP, step, self.parent_step)
                yield step
        except SystemExit as end:
            self.ranks.tell(Word.LEAVE, int(end.code or 0))
            raise
        self.ranks.tell(Word.DONE)

    def stop(self, reason: str) -> None:
        """End the training of all copies early, for example because the loss no longer improves.

        To be called within a step. The copies end their interval and average; then `steps` ends on
        each of them, with the same parameters, the job counts as done, and `stopped` is the reason.
        The first reason counts.
        """
        self.stop_asked = self.stop_asked or reason or "no reason was given"
        log.info("asks all copies to stop: %s", self.stop_asked)
        self._say_stop()

    def _say_stop(self) -> None:
        """Ask the other copies and processes to stop; a failed write is repeated in `save`."""
        if not self.stop_asked or self._has_said_stop:
            return
        try:
            self.slots.ask_to_stop(self.stop_asked)
            self._has_said_stop = True
        except OSError as error:
            log.warning("the other copies do not know yet: %s", error)

    def samples(
        self, step: int, *, batch_size: int, size: int, part: int = 0, parts: int = 1
    ) -> list[int]:
        """Return the indices of a step's batch in a data set of `size` samples.

        Each epoch has its own order, the same for all copies: over the whole job every sample is
        seen once an epoch. Each of several processes gets its share; a batch that is too large for
        one pass is trained in `parts` parts. Raises ValueError where `part` is not one of them.
        """
        found = self.positions(step, batch_size=batch_size, part=part, parts=parts)
        return self._shuffled.indices(found, size)

    def positions(self, step: int, *, batch_size: int, part: int = 0, parts: int = 1) -> range:
        """Return where in the stream of all samples, from 0, a step's batch is; like `samples`."""
        if self.synchronous is not None and self.synchronous.is_training:
            mine = self.synchronous.part(batch_size, parts)
            return samples.part_of(samples.positions(step, batch_size)[mine], part, parts)
        here, count = self.where.rank, self.where.ranks
        return samples.positions(step, batch_size, part * count + here, parts * count)

    def _lead(self) -> Iterator[int]:
        """Yield the steps of one interval after the other; average between them."""
        # The steps that this end deals were dealt to an earlier run of this copy.
        found_slot = self.slots.newest_slot()
        if self.mode is not Mode.AVERAGED and self.where.ranks == 1:
            self.synchronous = together(self)
        # Only then: a copy that is present may be dealt steps, and other copies wait for it.
        self.presence.join(self.settings.sign_every_s)
        log.info("joined%s", f", restart {self.where.restart}" if self.where.restart else "")
        end, file = self._first_newest()
        while True:
            self._check(end)
            mine = end.dealt.get(self.where.copy, Ranges())
            ahead = self.ahead if self.ahead and self.ahead.belongs_to(end, mine) else None
            self.ranks.tell(Word.LOAD, end.slot, ahead is not None)
            self.load(end, file, ahead)
            if not self.ranks.all_have(True):
                self._pause()
                end, file = self.newest()
                continue
            self.ahead = None
            if end.is_complete:
                self._is_done = True
                self.slots.say_done()
                self.reports.tell("done", end)
                log.info("done after slot %d%s", end.slot, _why(end))
                return
            if end.together:
                end, file = yield from self._train_together(end)
                continue
            yield from self._train_share(end, mine, ahead, is_resumed=end.slot == found_slot)
            end, file = yield from self._settle_beside(end)

    def _train_together(self, end: SlotEnd) -> Steps:
        """Yield the steps of synchronous intervals; return the newest end."""
        if self.synchronous is None:
            log.info("waits for the end of slot %d, which others train synchronously", end.slot + 1)
            self.presence.say(Doing.WAITS)
            self.reports.tell("running", end)
            return self._settle(end)
        end, file = yield from self.synchronous.train(end)
        if self.asked:
            self._await_move(end)
            end, file = self.newest()
        return end, file

    def _train_share(
        self, end: SlotEnd, mine: Ranges, ahead: Ahead | None, *, is_resumed: bool
    ) -> Iterator[int]:
        """Yield this copy's steps of the interval after `end`, unless it has contributed them."""
        own_steps = len(ahead.done) if ahead else self.slots.steps_of(end, self.where.copy)
        self.reports.tell("running", end, own_steps)
        trains = len(mine) > 0 and self.where.copy not in self.slots.contributors(end)
        self.presence.say(Doing.TRAINS if trains else Doing.WAITS)
        if trains and is_resumed and self.peers.have_all_but_this(end):
            log.info("contributes nothing to slot %d: all other copies wait", end.slot + 1)
            mine = Ranges()
        if trains:
            yield from self.train(end, mine, ahead)

    def _follow(self) -> Iterator[int]:
        """Yield the steps that the leader broadcasts; load what it loads."""
        while True:
            word, number, other = self.ranks.hear()
            if word is Word.STEP:
                self._say_stop()
                self.set_rates(other)
                yield number
            elif word is Word.LOAD:
                if self.ranks.all_have(self._try_load(number, self.ahead if other else None)):
                    self.ahead = None
            elif word is Word.AHEAD:
                self._go_ahead(number)
            elif word is Word.LEAVE:
                raise SystemExit(number)
            else:
                return

    def _try_load(self, slot: int, ahead: Ahead | None) -> bool:
        try:
            self.load(*self.slots.read(slot), ahead)
        except (TensorFileError, OSError) as error:
            log.warning("rank %d: tries again: %s", self.where.rank, error)
            return False
        return True

    def newest(self) -> tuple[SlotEnd, TensorFile]:
        """Return the end of the newest slot; raises LostTrainingError where it is lost."""
        return self.peers.newest(self.identity, self.named)

    def _first_newest(self) -> tuple[SlotEnd, TensorFile]:
        """Return the newest end, and log how far the job is; raises OtherTrainingError."""
        had_begun = self.slots.newest_slot() >= 0
        end, file = self.newest()
        self._check_identity(end, file)
        self._known = file
        where, done, total = self.where.directory, len(end.done), end.total_steps
        was_here = self.claim is not None and self.claim.before is not None
        if end.is_complete:
            message = "nothing to train: %d of %d steps are done (%s)%s"
            log.warning(message, done, total, where, _why(end))
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
        difference = check_alike(model, shapes_in(file, state.MODEL))
        check_same(self.where.directory, self.identity, found, difference)
        if self.claim is not None:
            check_run(self.claim)

    def _check(self, end: SlotEnd) -> None:
        """Raise HeldError where a later run has taken over, NotFiniteError after MOST_SPOILT."""
        if self.claim is not None:
            self.claim.check()
        if len(end.spoilt) >= MOST_SPOILT and not end.is_complete:
            kept = ", ".join(map(str, self.slots.kept()))
            slots = self.slots.end_path(end.slot)
            raise NotFiniteError(
                f"{self.where.directory.resolve()}: in {MOST_SPOILT} slots in a row nothing finite "
                f"was trained: {' | '.join(end.spoilt)}. {slots.name} has the parameters of before "
                f"these. To go on from an older slot, remove the newer ones from {slots.parent}: "
                f"the ends of slots {kept} are kept"
            )

    def named(self) -> state.Named:
        """Return all that a checkpoint keeps, as tensors by name and plain facts."""
        return state.tensors_of(self.model, self.optimiser, self.extra)

    def load(self, end: SlotEnd, file: TensorFile, ahead: Ahead | None = None) -> None:
        """Take over the parameters at the end of a slot, and add what was trained ahead."""
        self._known, self.stopped = file, end.stopped
        with self.costs.measure(self.costs.load_s):
            if ahead:
                ahead.take_over(self.model, file)
            else:
                # Cloned: the optimiser would train on the file's pages otherwise.
                tensors = {name: file.tensor(name).clone() for name in file.names}
                state.load(self.model, self.optimiser, tensors, file.facts["facts"], self.extra)
        torch.manual_seed(mixed(self.seed, end.slot + 1, self.where.copy, self.where.rank))
        self.costs.take_over(end.slot, end.made_s)

    def train(self, end: SlotEnd, mine: Ranges, ahead: Ahead | None = None) -> Iterator[int]:
        """Yield the steps of `mine`; what was trained of them, ahead too, is to be saved."""
        slot, dealt = end.slot + 1, sum(map(len, end.dealt.values()))
        begun_s = reported_s = warm_s = time.monotonic()
        done = Ranges()
        if ahead:
            done, begun_s = ahead.done, begun_s - ahead.seconds
            log.info("slot %d begins with %d steps that were trained ahead", slot, len(done))
        todo, trained, warm = mine - done, len(done), max(1, len(done))

        def part() -> Contribution:
            kept, seconds = done | todo.first(trained - len(done)), time.monotonic() - begun_s
            return Contribution(self.where.copy, slot, end.id, kept, seconds, is_checked=True)

        self._trained = part
        for step in todo:
            self.set_rates(len(end.done) + dealt * trained // len(mine))
            yield step
            trained += 1
            now_s = time.monotonic()
            # The first step of a run may take a hundred times as long as the others.
            warm_s = now_s if trained == 1 else warm_s
            if trained > warm:
                self.reports.steps_per_s = (trained - warm) / max(now_s - warm_s, 1e-6)
            if now_s - reported_s >= self.settings.report_every_s:
                self.reports.tell("running", end, trained)
                reported_s = now_s
                if self._is_late(end):
                    return
                left_s = (len(mine) - trained) * (now_s - begun_s) / trained
                if self.peers.is_cut_short(end, now_s - begun_s, left_s):
                    break
            if self.asked or self.stop_asked or 0 < end.length_s * _OVERTIME < now_s - begun_s:
                break
        self._trained = None
        # Before the contribution with which the interval could end: this copy takes no more.
        self.presence.say(Doing.LEAVES if self.asked else Doing.WAITS)
        self._unsaved = self._checked(part())
        self.reports.tell("running", end, trained)

    def _is_late(self, end: SlotEnd) -> bool:
        """Return whether the interval after `end` has ended without this copy's contribution."""
        if is_late := self.slots.has_ended(end.slot + 1):
            log.warning("slot %d ended without this copy, which is late", end.slot + 1)
            self._trained = None
        return is_late

    def _checked(self, part: Contribution) -> tuple[Contribution, state.Named]:
        """Return the contribution: only the reason, where it is not finite."""
        tensors, facts = named = self.named()
        if fault := fault_in(tensors.items(), facts, self._known):
            message = "slot %d of copy %d counts nothing: %s; its steps are dealt out again"
            log.warning(message, part.slot, part.copy, fault)
            return replace(part, done=Ranges(), fault=fault), ({}, facts)
        return part, state.kept(named) if self.settings.delay else named

    def _leave_early(self, part: Contribution) -> None:
        """Contribute what was trained of the interval, as the program ends before the job."""
        if len(part.done) and not self.slots.has_ended(part.slot):
            self._unsaved = self._checked(part)
            self._save_again_s = 0.0
            self.save()
        log.info("ends early, with %d steps of slot %d", len(part.done), part.slot)

    def save(self) -> None:
        """Write the pending contribution; a failed write is tried again."""
        self._say_stop()
        if self._unsaved is None or time.monotonic() < self._save_again_s:
            return
        part, named = self._unsaved
        try:
            with self.costs.measure(self.costs.save_s):
                self.slots.contribute(part, *named)
            self._unsaved = None
        except OSError as error:
            self._save_again_s = time.monotonic() + _SAVE_EVERY_S
            log.warning("nothing of slot %d is contributed yet: %s", part.slot, error)

    def train_ahead(self, end: SlotEnd) -> Iterator[int]:
        """Yield the steps to train while the interval after `end` is averaged."""
        mine = end.ahead.get(self.where.copy, Ranges())
        before, both = (sum(map(len, part.values())) for part in (end.dealt, end.ahead))
        self.ranks.tell(Word.AHEAD, end.slot + 1)
        ahead = self._go_ahead(end.slot + 1)
        begun_s = time.monotonic()
        for trained, step in enumerate(mine, start=1):
            self.set_rates(len(end.done) + before + both * (trained - 1) // len(mine))
            yield step
            ahead.done, ahead.seconds = mine.first(trained), time.monotonic() - begun_s

    def _go_ahead(self, slot: int) -> Ahead:
        """Keep what this copy contributes to an interval; seed differently from `load`."""
        torch.manual_seed(mixed(self.seed, slot, self.where.copy, self.where.rank, 1))
        self.ahead = Ahead(self.model, slot)
        return self.ahead

    def _settle_beside(self, end: SlotEnd) -> Generator[int, None, tuple[SlotEnd, TensorFile]]:
        """Settle the interval after `end`, and yield the steps to train ahead meanwhile."""
        is_spoilt = self._unsaved is not None and bool(self._unsaved[0].fault)
        if self._unsaved is None or is_spoilt or self.asked or self.where.copy not in end.ahead:
            return self._settle(end)
        self.presence.say(Doing.TRAINS)
        settled = self._beside.submit(self._settle, end)
        for step in self.train_ahead(end):
            if settled.done() or self.asked or self.stop_asked:
                break
            yield step
        if not self.asked:
            self.presence.say(Doing.WAITS)
        return settled.result()

    def _settle(self, end: SlotEnd) -> tuple[SlotEnd, TensorFile]:
        """Wait until the interval after `end` is averaged, or average it; return the newest end."""
        begun_s = time.monotonic()
        while self.slots.newest_slot() == end.slot:
            if self.claim is not None:
                self.claim.check()
            self.save()
            if self._is_leaving:
                raise SystemExit
            if self.asked and self._unsaved is None:
                self._await_move(end)
                continue
            if signal.SIGTERM in self.asked:
                raise SystemExit(128 + signal.SIGTERM)
            # The interval does not end without a contribution that is still to be written.
            if self._unsaved is None and not self.peers.end_if_ours(end, begun_s):
                break
            self._pause()
        self._unsaved = None
        return self.newest()

    def _await_move(self, end: SlotEnd) -> None:
        """Report state `saved`, and wait to be requeued; take part in no interval meanwhile.

        Without a requeue the signal was not hadard's: this copy trains from the next interval on.
        """
        self.presence.say(Doing.LEAVES)
        own_steps = self.slots.steps_of(end, self.where.copy)
        self.reports.tell("saved", end, own_steps)
        log.info("asked to save, and saved %d steps of slot %d", own_steps, end.slot + 1)
        saved_s = time.monotonic()
        while time.monotonic() < saved_s + self.settings.move_s and not end.is_complete:
            if self._is_leaving or signal.SIGTERM in self.asked:
                raise SystemExit(128 + signal.SIGTERM)
            if self.slots.newest_slot() != end.slot:
                end, own_steps = self.newest()[0], 0
                self.reports.tell("saved", end)
            self._pause()
        self.asked.discard(signal.SIGUSR1)
        self.presence.say(Doing.WAITS)
        self.reports.tell("running", end, own_steps)
        log.info("continues: it was not requeued")

    def _pause(self) -> None:
        time.sleep(self.settings.poll_s)

    def take_over(self, named: state.Named) -> None:
        """Load a state that another copy has sent."""
        state.load(self.model, self.optimiser, *named, self.extra)

    def end_together(
        self,
        end: SlotEnd,
        applied: Ranges,
        speeds: Mapping[int, float],
        costly: Collection[int],
        *,
        stops: bool = False,
    ) -> SlotEnd | None:
        """Write the end of a synchronous interval; None where another copy has. Raises OSError.

        It is the last if it `stops`. The file with the reason may not be seen here yet.
        """
        here = {copy: speeds.get(copy, 0.0) for copy in self.peers.here()}
        named, base = self.named(), self._known
        stopped = self.stop_asked or self.slots.stop_reason() or "asked by a copy" if stops else ""
        return self.ending.end_together(end, applied, named, base, here, tuple(costly), stopped)

    def tell_steps(self, end: SlotEnd, own_steps: int, steps_per_s: float) -> None:
        """Report synchronous steps that are not in a file yet, now and then."""
        now_s = time.monotonic()
        if now_s >= self._told_s + self.settings.report_every_s:
            self._told_s, self.reports.steps_per_s = now_s, steps_per_s
            self.reports.tell("running", end, own_steps)

    def check_claim(self) -> None:
        """Raise HeldError where a later run has taken over."""
        if self.claim is not None:
            self.claim.check()

    def set_rates(self, parent_step: int) -> None:
        """Give every group its learning rate at a step of the whole job."""
        self.parent_step = parent_step
        if self.lr is not None:
            factor = self.lr(parent_step)
            for group, rate in zip_equal(self.optimiser.param_groups, self.base_lrs):
                group["lr"] = rate * factor

    def _ask(self, number: int, frame: object) -> None:
        self.asked.add(number)


def _why(end: SlotEnd) -> str:
    """Return why a training was stopped, for a message; nothing if all steps are done."""
    steps = f"{len(end.done)} of {end.total_steps} steps"
    return f", stopped with {steps}: {end.stopped}" if end.stopped else ""
