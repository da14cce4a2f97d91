"""What drives a copy from interval to interval: the steps that it trains, and the averaging."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor

from hadar_slurm.runtime.averaging.ahead import Ahead
from hadar_slurm.runtime.averaging.modes import TrainingMode
from hadar_slurm.runtime.averaging.rates import aim, effective_copies, warm_up_steps
from hadar_slurm.runtime.files.ranges import Ranges
from hadar_slurm.runtime.files.records import Contribution, SlotEnd
from hadar_slurm.runtime.files.tensors import TensorFile, TensorFileError
from hadar_slurm.runtime.intervals.contributing import Contributing
from hadar_slurm.runtime.intervals.evaluations import Evaluations
from hadar_slurm.runtime.intervals.hosting import Hosting
from hadar_slurm.runtime.intervals.member import Member, why_stopped
from hadar_slurm.runtime.intervals.requests import CopySignals
from hadar_slurm.runtime.intervals.waiting import Waiting
from hadar_slurm.runtime.membership.presence import Doing
from hadar_slurm.runtime.membership.ranks import Word
from hadar_slurm.runtime.synchronous.joining import together
from hadar_slurm.runtime.synchronous.training import Steps

log = logging.getLogger(__name__)

# A copy that takes longer than an interval by this factor contributes what it has trained.
_OVERTIME = 1.1
# A change of the learning rate by less than this part is not logged.
_TOLD = 0.05


class Leading:
    """The intervals of one copy, in its first process."""

    def __init__(self, member: Member, requests: CopySignals) -> None:
        self.member, self.learner, self.requests = member, member.learner, requests
        self.contributing = Contributing(member, requests)
        self.evaluations = Evaluations(member)
        self.waiting = Waiting(member, requests, self.contributing)
        self.is_done = False
        self._told_aim = 1.0  # of the learning rate's factor
        self._beside = ThreadPoolExecutor(1, "hadar-slot")

    def leave(self, *, is_error: bool) -> None:
        """End what runs beside training; contribute what was trained, unless this copy failed."""
        self.waiting.is_leaving = True
        self._beside.shutdown()
        if self.member.ranks.leads and not is_error:
            self.contributing.leave_early()

    def steps(self) -> Iterator[int]:
        """Yield the steps of one interval after the other; average between them."""
        member, learner, copy = self.member, self.learner, self.member.where.copy
        # The steps that this end deals were dealt to an earlier run of this copy.
        found_slot = member.slots.newest_slot()
        if member.mode is not TrainingMode.AVERAGED and member.where.ranks == 1:
            member.synchronous = together(Hosting(member, self.requests, self.evaluations))
        # Only then: a copy that is present may be dealt steps, and other copies wait for it.
        member.presence.join(member.settings.sign_every_s)
        restart = member.where.restart
        log.info("joined%s", f", restart {restart}" if restart else "")
        end, file = member.first_newest()
        while True:
            member.check(end)
            mine = end.dealt.get(copy, Ranges())
            ahead = learner.ahead if learner.ahead and learner.ahead.belongs_to(end, mine) else None
            member.ranks.tell(Word.LOAD, end.slot, ahead is not None)
            has_it = member.has_loaded(end, file, ahead)
            if not member.ranks.all_have(has_it):
                self.waiting.pause()
                learner.ahead = None
                end, file = member.newest()
                continue
            learner.ahead = None
            begun_s = time.monotonic()
            self.evaluations.run(end, file if ahead else None)
            late_s = time.monotonic() - begun_s
            if end.is_complete:
                self.is_done = True
                member.slots.say_done()
                member.reports.tell("done", end)
                log.info("done after slot %d%s", end.slot, why_stopped(end))
                return
            member.enrol()
            if end.together:
                end, file = yield from self._train_together(end)
                continue
            is_resumed = end.slot == found_slot
            yield from self._train_share(end, mine, ahead, is_resumed=is_resumed, late_s=late_s)
            end, file = yield from self._settle_beside(end)

    def _train_together(self, end: SlotEnd) -> Steps:
        """Yield the steps of synchronous intervals; return the newest end."""
        member = self.member
        if member.synchronous is None:
            log.info("waits for the end of slot %d, which others train synchronously", end.slot + 1)
            member.presence.say(Doing.WAITS)
            member.reports.tell("running", end)
            return self.waiting.settle(end)
        end, file = yield from member.synchronous.train(end)
        if self.requests.asked:
            self.waiting.await_move(end)
            end, file = member.newest()
        return end, file

    def _train_share(
        self,
        end: SlotEnd,
        mine: Ranges,
        ahead: Ahead | None,
        *,
        is_resumed: bool,
        late_s: float,
    ) -> Iterator[int]:
        """Yield this copy's steps of the interval after `end`, unless it has contributed them."""
        member, copy = self.member, self.member.where.copy
        own_steps = len(ahead.done) if ahead else member.slots.steps_of(end, copy)
        member.reports.tell("running", end, own_steps)
        trains = len(mine) > 0 and copy not in member.slots.contributors(end)
        member.presence.say(Doing.TRAINS if trains else Doing.WAITS)
        if trains and is_resumed and member.peers.have_all_but_this(end):
            log.info("contributes nothing to slot %d: all other copies wait", end.slot + 1)
            mine = Ranges()
        if trains:
            self._tell_rate(end)
            yield from self.train(end, mine, ahead, late_s)

    def _tell_rate(self, end: SlotEnd) -> None:
        """Log that the learning rate changes with the number of copies; the first of them does."""
        aimed = aim(end, self.learner.by_copies)
        if abs(aimed - self._told_aim) < _TOLD * self._told_aim:
            return
        self._told_aim = aimed
        if next(iter(end.dealt)) == self.member.where.copy:
            copies, steps = effective_copies(end.dealt), warm_up_steps(end.total_steps)
            message = "the learning rate becomes %.2f times the script's: copies train as %.1f of "
            message += "the fastest; a factor grows by 1 in %d steps"
            log.info(message, aimed, copies, steps)

    def train(
        self, end: SlotEnd, mine: Ranges, ahead: Ahead | None = None, late_s: float = 0.0
    ) -> Iterator[int]:
        """Yield the steps of `mine`; what was trained of them, ahead too, is to be saved.

        A copy that begins `late_s` after the others ends with them, with fewer steps.
        """
        member, requests, settings = self.member, self.requests, self.member.settings
        slot, dealt = end.slot + 1, sum(map(len, end.dealt.values()))
        begun_s = reported_s = warm_s = time.monotonic()
        done = Ranges()
        if ahead:
            done, begun_s = ahead.done, begun_s - ahead.seconds
            log.info("slot %d begins with %d steps that were trained ahead", slot, len(done))
        todo, trained, warm = mine - done, len(done), max(1, len(done))

        def part() -> Contribution:
            kept, seconds = done | todo.first(trained - len(done)), time.monotonic() - begun_s
            return Contribution(member.where.copy, slot, end.id, kept, seconds, is_checked=True)

        self.contributing.trained = part
        for step in todo:
            self.learner.set_rates(len(end.done) + dealt * trained // len(mine))
            yield from self._watched(step)
            trained += 1
            now_s = time.monotonic()
            # The first step of a run may take a hundred times as long as the others.
            warm_s = now_s if trained == 1 else warm_s
            if trained > warm:
                member.reports.steps_per_s = (trained - warm) / max(now_s - warm_s, 1e-6)
            if now_s - reported_s >= settings.report_every_s:
                member.reports.tell("running", end, trained)
                reported_s = now_s
                if self._is_late(end):
                    return
                left_s = (len(mine) - trained) * (now_s - begun_s) / trained
                if member.peers.is_cut_short(end, late_s + now_s - begun_s, left_s):
                    break
            is_asked = requests.asked or requests.stop_asked
            if is_asked or 0 < end.length_s * _OVERTIME < late_s + now_s - begun_s:
                break
        self._contribute(end, part)
        member.reports.tell("running", end, trained)

    def _contribute(self, end: SlotEnd, part: Callable[[], Contribution]) -> None:
        """Contribute what was trained; begin to train ahead where that is dealt."""
        member, is_asked = self.member, self.requests.asked
        self.contributing.trained = None
        # Before the contribution with which the interval could end: this copy takes no more.
        member.presence.say(Doing.LEAVES if is_asked else Doing.WAITS)
        if member.where.copy in end.ahead and not is_asked:
            with member.costs.measure(member.costs.now.keep_s):
                self.contributing.finish(part(), self._go_ahead(end))
        else:
            self.contributing.finish(part())

    def _watched(self, step: int) -> Iterator[int]:
        """Yield a step; the first one shows whether the script's steps can be shared."""
        synchronous = self.member.synchronous
        if synchronous is None or synchronous.fitness.fault is not None:
            yield step
            return
        synchronous.fitness.begin()
        yield step
        synchronous.fitness.finish()
        self.member.enrol()

    def _is_late(self, end: SlotEnd) -> bool:
        """Return whether the interval after `end` has ended without this copy's contribution."""
        if is_late := self.member.slots.has_ended(end.slot + 1):
            log.warning("slot %d ended without this copy, which is late", end.slot + 1)
            self.contributing.trained = None
        return is_late

    def train_ahead(self, end: SlotEnd) -> Iterator[int]:
        """Yield the steps to train while the interval after `end` is averaged."""
        mine = end.ahead.get(self.member.where.copy, Ranges())
        before, both = (sum(map(len, part.values())) for part in (end.dealt, end.ahead))
        ahead = self._ahead_of(end) or self._go_ahead(end)
        begun_s = time.monotonic()
        for trained, step in enumerate(mine, start=1):
            self.learner.set_rates(len(end.done) + before + both * (trained - 1) // len(mine))
            yield step
            ahead.done, ahead.seconds = mine.first(trained), time.monotonic() - begun_s

    def _go_ahead(self, end: SlotEnd) -> Ahead:
        self.member.ranks.tell(Word.AHEAD, end.slot + 1)
        return self.learner.go_ahead(end.slot + 1)

    def _ahead_of(self, end: SlotEnd) -> Ahead | None:
        """Return what is trained while the interval after `end` is averaged."""
        ahead = self.learner.ahead
        return ahead if ahead is not None and ahead.slot == end.slot + 1 else None

    def _settle_beside(self, end: SlotEnd) -> Generator[int, None, tuple[SlotEnd, TensorFile]]:
        """Settle the interval after `end`, and yield the steps to train ahead meanwhile."""
        presence, requests, ahead = self.member.presence, self.requests, self._ahead_of(end)
        if ahead is None or requests.asked:
            return self.waiting.settle(end)
        presence.say(Doing.TRAINS)
        settled = self._beside.submit(self._settle_and_fetch, end, ahead)
        for step in self.train_ahead(end):
            if settled.done() or requests.asked or requests.stop_asked:
                break
            yield step
        if not requests.asked:
            presence.say(Doing.WAITS)
        return settled.result()

    def _settle_and_fetch(self, end: SlotEnd, ahead: Ahead) -> tuple[SlotEnd, TensorFile]:
        """Settle the interval after `end`, and read the average for what is trained `ahead`."""
        with ahead.beside():
            newest, file = self.waiting.settle(end)
            try:
                if self.contributing.is_usable and newest.slot == ahead.slot:
                    self.learner.fetch(newest, file, ahead)
                    return newest, file
            except (TensorFileError, OSError) as error:
                log.warning("what was trained ahead of slot %d is left out: %s", newest.slot, error)
            self.learner.ahead = None
            return newest, file
