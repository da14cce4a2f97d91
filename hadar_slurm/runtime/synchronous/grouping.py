"""The group in which a copy trains: how it is formed, agrees on one state, and is lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from hadar_slurm.older_python import zip_equal
from hadar_slurm.runtime.files.slots import Slots
from hadar_slurm.runtime.membership.presence import Doing, Presence
from hadar_slurm.runtime.samples import mixed
from hadar_slurm.runtime.synchronous.gradients import Gradients
from hadar_slurm.runtime.synchronous.host import Host
from hadar_slurm.runtime.synchronous.links import LinkError, Links
from hadar_slurm.runtime.synchronous.progress import Ends, ParameterProgress
from hadar_slurm.runtime.synchronous.roster import Group, Roster, Version
from hadar_slurm.runtime.synchronous.shares import Pace
from hadar_slurm.runtime.synchronous.transfer import Sent, send_state

log = logging.getLogger(__name__)

# Groups in a row that were not formed, or were lost before a step, before copies average instead.
_MOST_FAILED = 4


@dataclass
class Grouping:
    """One copy's group, and its links to the others while it is in one."""

    host: Host
    copy: int
    seed: int
    model: nn.Module
    slots: Slots
    presence: Presence
    here: Callable[[], set[int]]
    poll_s: float
    roster: Roster
    gradients: Gradients
    ends: Ends
    group: Group | None = None  # also one that was left
    links: Links | None = None
    pace: Pace = field(default_factory=lambda: Pace({}))
    failed: int = 0  # groups without a step, in a row
    has_applied: bool = False  # the group, a step
    rate: float = 0.0  # samples/s of this copy
    _benched: tuple[int, ...] = ()  # the group that trains faster without this copy

    @property
    def leads(self) -> bool:
        """Whether this copy is the first of its group."""
        return self.links is not None and self.links.rank == 0

    def join(self, progress: ParameterProgress, is_over: Callable[[], bool]) -> bool:
        """Be in a group that trains the running interval; False where that `is_over`."""
        if self.links is not None:
            return True
        while not is_over():
            if self._benched and self._is_benched():
                self.presence.say(Doing.WAITS)
                time.sleep(self.poll_s)
                continue
            self._benched = ()
            self.presence.say(Doing.TRAINS)
            try:
                group = self.roster.form(progress.version, is_over)
            except OSError as error:
                log.warning("no group yet: %s", error)
                time.sleep(self.poll_s)
                continue
            if group is None:
                return False
            self.group = group
            try:
                return self._meet(progress, group)
            except LinkError as error:
                self.leave()
                log.warning("group %d is not formed: %s", group.number, error)
                self._fail(progress, group)
        return False

    def leave(self) -> None:
        """Leave the group, if this copy is in one."""
        links, self.links = self.links, None
        self.gradients.join(None)
        if links is not None:
            links.close()

    def lose(self, progress: ParameterProgress) -> None:
        """Leave a group of which a copy is gone."""
        self.leave()
        if self.group is not None and not self.has_applied:
            self._fail(progress, self.group)

    def bench(self, benched: Collection[int]) -> None:
        """Leave for a group without the copies that delay this one."""
        group = self.group
        assert group is not None
        rest = tuple(copy for copy in group.copies if copy not in benched)
        names = ", ".join(map(str, benched))
        log.info("group %d goes on faster without copies: %s", group.number, names)
        if self.copy in benched:
            self._benched = rest
        self.roster.apart = set(benched)
        self.leave()

    def is_replaced(self, group: Group) -> bool:
        """Return whether there is a newer group than this one."""
        newest = self.roster.newest()
        return newest is not None and newest.number > group.number

    def is_replaced_without_this_copy(self) -> bool:
        """Return whether copies that are present have formed a newer group, and not with this."""
        newest = self.roster.newest()
        if newest is None or self.group is None or newest.number <= self.group.number:
            return False
        return self.copy not in newest.hosts and bool(set(newest.hosts) & self.here())

    def _fail(self, progress: ParameterProgress, group: Group) -> None:
        """Count a group without a step; after some, the first copy has all average instead."""
        self.failed += 1
        if self.failed >= _MOST_FAILED and self.copy == group.copies[0]:
            log.warning("copies cannot train synchronously, and average: see %s", self.roster.room)
            self.ends.write(progress, self.pace.steps_per_s(), group.copies)
            self.failed = 0

    def _is_benched(self) -> bool:
        """Return whether the copies that go on without this one still do."""
        newest, own = self.roster.newest(), self.group
        if newest is None or own is None or not set(self._benched) & self.here():
            return False
        return newest.number == own.number or newest.copies == self._benched

    def _meet(self, progress: ParameterProgress, group: Group) -> bool:
        """Link up with a group and agree on one state; False where the interval has ended."""
        end, copies = progress.end, group.copies
        rank, hosts = copies.index(self.copy), [group.hosts[copy] for copy in copies]
        self.links = links = Links(
            self.roster.keys(group), rank, hosts, lambda: self._is_intact(group)
        )
        table = torch.zeros(links.size, 4, dtype=torch.float64)
        is_stale = self.slots.newest_slot() != end.slot
        known = progress.version
        table[rank] = torch.tensor(
            [known.steps, known.group, float(is_stale), self.rate], dtype=torch.float64
        )
        links.sum(table)
        if bool(table[:, 2].any()):
            self.leave()
            return False
        versions = [(int(steps), int(number)) for steps, number, _, _ in table.tolist()]
        source = max(range(links.size), key=lambda each: (*versions[each], -each))
        if versions[source][0] < 0:  # all are to read the file again
            self.leave()
            return False
        if set(versions) != {versions[source]}:
            sent = send_state(links, Sent(self.host.named(), progress.applied), source)
            if rank != source:
                self.host.take_over(sent.named)
                progress.applied = sent.applied
            log.info("all have the state of copy %d", copies[source])
        steps = versions[source][0]
        progress.version = Version(end.id, group.number if steps else 0, steps)
        rates = dict(zip_equal(copies, table[:, 3].tolist()))
        has_norm = any(isinstance(each, _BatchNorm) for each in self.model.modules())
        self.pace = Pace(rates, least=2 if has_norm else 1)
        self.gradients.join(links)
        torch.manual_seed(mixed(self.seed, end.slot + 1, self.copy, group.number))
        self.has_applied = False
        log.info("group %d: copies %s", group.number, ", ".join(map(str, copies)))
        return True

    def _is_intact(self, group: Group) -> bool:
        """Return whether a group's copies give signs of life, and have not formed another one."""
        now_s = time.monotonic()
        self.presence.look(now_s)
        there = {*self.presence.present(now_s), self.copy}
        return set(group.hosts) <= there and not self.is_replaced(group)
