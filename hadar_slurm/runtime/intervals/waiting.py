"""What a copy waits for: the end of an averaging interval, and its requeue."""

from __future__ import annotations

import logging
import signal
import time
from dataclasses import dataclass

from hadar_slurm.runtime.files.records import SlotEnd
from hadar_slurm.runtime.files.tensors import TensorFile
from hadar_slurm.runtime.intervals.contributing import Contributing
from hadar_slurm.runtime.intervals.member import Member
from hadar_slurm.runtime.intervals.requests import CopySignals
from hadar_slurm.runtime.membership.presence import Doing

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Waiting:
    """The waits of one copy; those of a copy that is leaving raise SystemExit."""

    member: Member
    requests: CopySignals
    contributing: Contributing
    is_leaving: bool = False

    def settle(self, end: SlotEnd) -> tuple[SlotEnd, TensorFile]:
        """Wait until the interval after `end` is averaged, or average it; return the newest end."""
        member, contributing, asked = self.member, self.contributing, self.requests.asked
        begun_s = time.monotonic()
        while member.slots.newest_slot() == end.slot:
            member.check_claim()
            contributing.save()
            if self.is_leaving:
                raise SystemExit
            if asked and contributing.is_saved:
                self.await_move(end)
                continue
            if signal.SIGTERM in asked:
                raise SystemExit(128 + signal.SIGTERM)
            # The interval does not end without a contribution that is still to be written.
            if contributing.is_saved and not member.peers.end_if_ours(end, begun_s):
                break
            self.pause()
        contributing.drop()
        return member.newest()

    def await_move(self, end: SlotEnd) -> None:
        """Report state `saved`, and wait to be requeued; take part in no interval meanwhile.

        Without a requeue the signal was not hadard's: this copy trains from the next interval on.
        """
        member, asked = self.member, self.requests.asked
        member.presence.say(Doing.LEAVES)
        own_steps = member.slots.steps_of(end, member.where.copy)
        member.reports.tell("saved", end, own_steps)
        log.info("asked to save, and saved %d steps of slot %d", own_steps, end.slot + 1)
        saved_s = time.monotonic()
        while time.monotonic() < saved_s + member.settings.move_s and not end.is_complete:
            if self.is_leaving or signal.SIGTERM in asked:
                raise SystemExit(128 + signal.SIGTERM)
            if member.slots.newest_slot() != end.slot:
                end, own_steps = member.newest()[0], 0
                member.reports.tell("saved", end)
            self.pause()
        asked.discard(signal.SIGUSR1)
        member.presence.say(Doing.WAITS)
        member.reports.tell("running", end, own_steps)
        log.info("continues: it was not requeued")

    def pause(self) -> None:
        """Wait between two looks at the files."""
        time.sleep(self.member.settings.poll_s)
