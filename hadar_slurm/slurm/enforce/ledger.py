"""The write-ahead log of claims: what hadard does to jobs, recorded before it is done.

A claim is written before the updates that it announces, confirmed or corrected by the next reading
of Slurm, and kept while Slurm knows the job. `hadar release` reads the ledger when hadard does not
run, and so does a restarted hadard, to distinguish its own holds from users'.

What a reading shows changes claims at once and is written with the next one: any process that reads
the same file and the same Slurm concludes the same. What hadard is about to do counts only once
written.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hadar_slurm import untrusted_files
from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.errors import LedgerError, SlurmError, SlurmRefused, SlurmUnavailable
from hadar_slurm.jobspec.constraint import fold_out
from hadar_slurm.jobspec.description import decode_or_none, digest
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.protocol import SlurmAdapter
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.client.updates import ClearRequest, SetRequest, Update
from hadar_slurm.slurm.enforce.claim import Claim
from hadar_slurm.slurm.enforce.ledger_text import DAMAGE, PARSE, VERSION, claim_tree
from hadar_slurm.slurm.enforce.readings import first_sight, from_marks, may_yet_be_held, read_kind
from hadar_slurm.slurm.enforce.state_machine import Event, Kind, changes, transition
from hadar_slurm.state import locks

log = logging.getLogger(__name__)

FILE_NAME = "ledger.json"
# 10,000 jobs take 5 MB, also where each is kept off most of 1,000 nodes.
_MAX_BYTES = 1 << 28
# How long another writer may take, in seconds.
_LOCK_WAIT_S = 10.0
_NO_CLAIM = Claim()
_NO_NODE = "Invalid node name"
_SEND_HOLDS = (Kind.HOLD, Kind.PIN, Kind.RESTORE)


class Ledger:
    """The claims of one cluster, in a file that is replaced atomically."""

    def __init__(self, path: Path, now_s: Callable[[], float] = time.time) -> None:
        self.path = path
        self.now_s = now_s
        self.opened_s = now_s()
        # False: no file could be read, nor has `adopt` replaced it. Suspect holds and pins then
        # count as set by hadard, so that no job waits for a hadard that has lost its record.
        self.was_read = False
        # The last write error, empty after a success.
        self.fault = ""
        # As written, and with what was seen since.
        self._written: dict[JobId, Claim] = {}
        self._claims: dict[JobId, Claim] = {}
        # Most claims stay as they are from round to round, so these are kept while the claim is the
        # same object: its text in the file, and the last answer of `excluded_by_owner`.
        self._texts: dict[JobId, tuple[Claim, str]] = {}
        self._owners: dict[JobId, tuple[tuple[object, ...], tuple[NodeName, ...]]] = {}
        self._mark: object = None
        # The last known start of slurmctld, in seconds since the epoch.
        self._booted_s = 0.0
        # How often Slurm said of a job's nodes that one is none: it excludes one, or has started.
        self.unlistable: Counter[JobId] = Counter()
        self.refresh()

    def refresh(self) -> None:
        """Read the file if another process (`hadar release`) has written it; skip a damaged one."""
        mark = self._mark_of_file()
        if mark in (None, self._mark):
            return
        self._mark = mark
        try:
            with untrusted_files.directory(self.path.parent) as place:
                text = untrusted_files.read(self.path.name, max_bytes=_MAX_BYTES, dir_fd=place)
            tree = json.loads(text)
            if (parse := PARSE.get(tree["version"])) is None:
                return
            claims = {JobId(job): parse(claim) for job, claim in tree["jobs"].items()}
        except (OSError, *DAMAGE) as error:
            log.warning("%s: not a ledger that can be read: %r", self.path, error)
            return
        self._written, self._claims, self.was_read = claims, dict(claims), True

    def _mark_of_file(self) -> object:
        with suppress(OSError):
            facts = self.path.stat()
            return facts.st_ino, facts.st_mtime_ns, facts.st_size
        return None

    def __contains__(self, job: JobId) -> bool:
        return job in self._claims

    def __iter__(self) -> Iterator[JobId]:
        return iter(self._claims)

    def __getitem__(self, job: JobId) -> Claim:
        return self._claims.get(job, _NO_CLAIM)

    def excluded_by_owner(
        self, row: QueueRow, shown: Iterable[NodeName] | None
    ) -> tuple[NodeName, ...]:
        """Return the owner's part of the nodes that Slurm shows a job to exclude; None: unknown."""
        claim, known = self[row.key], self._owners.get(row.key)
        facts = claim, claim.excluded.past, shown, row.comment, self.was_read
        if known is None or known[0] != facts:
            known = self._owners[row.key] = facts, self._owners_part(row, shown)
        return known[1]

    def _owners_part(self, row: QueueRow, shown: Iterable[NodeName] | None) -> tuple[NodeName, ...]:
        description = decode_or_none(row.comment)
        if description is None:
            return self[row.key].excluded_by_owner(shown)
        submitted = tuple(sorted(fold_out(description.excludes)))
        added = (description.steered and digest(set(shown or ()).difference(submitted))) or None
        may_be_ours = shown is None or not self.was_read or description.steered in (True, added)
        return self[row.key].excluded_by_owner(shown, submitted if may_be_ours else None)

    @property
    def num_held(self) -> int:
        """Return the number of jobs under our hold."""
        return sum(claim.holds for claim in self._claims.values())

    def see(self, slurm: SlurmAdapter, rows: Iterable[QueueRow]) -> None:
        """Let a reading of Slurm change the claims of live jobs; raises SlurmUnavailable.

        A job with a description gets its claim when it is first seen under a hold or with a request
        of hadard. A mark of hadar-sbatch says nothing of later holds, once it cannot be about to
        hold the job.
        """
        rows = [row for row in rows if row.is_live]
        if found := self._seen(slurm, rows):
            # Which slurmctld took a release matters only where something has changed.
            if (booted_s := slurm.site().booted_s) != self._booted_s:
                self._booted_s = booted_s
                found = self._seen(slurm, rows)
            self._claims |= found

    def _seen(self, slurm: SlurmAdapter, rows: Iterable[QueueRow]) -> dict[JobId, Claim]:
        found: dict[JobId, Claim] = {}
        for row in rows:
            before = claim = self._claims.get(row.key)
            if claim is None:
                if (description := decode_or_none(row.comment)) is None:
                    continue
                first = first_sight(row, description, was_read=self.was_read, version=slurm.version)
                claim, _ = transition(Claim(), first)
                is_unmarked = not description.is_held
                if claim == Claim() and (is_unmarked or may_yet_be_held(row, self.now_s())):
                    continue
            kind, now_s = self._kind(claim, row), self.now_s()
            if changes(claim, kind):
                event = Event(kind=kind, row=row, now_s=now_s, booted_s=self._booted_s)
                claim, _ = transition(claim, event)
            if claim is not before:
                found[row.key] = claim
        return _differing(found, self._claims)

    def _kind(self, claim: Claim, row: QueueRow) -> Kind:
        now_s, booted_s, opened_s = self.now_s(), self._booted_s, self.opened_s
        return read_kind(claim, row, now_s=now_s, booted_s=booted_s, opened_s=opened_s)

    def read_again(self, slurm: SlurmAdapter, jobs: Collection[JobId]) -> SlurmState:
        """Read jobs that are about to be changed; raises SlurmUnavailable."""
        state = slurm.read_jobs(jobs)
        self.see(slurm, state.queue.values())
        self.heed(state)
        return state

    def heed(self, state: SlurmState) -> None:
        """Leave to the owners of waiting jobs what they have changed since hadard did."""
        # Of a lost ledger, what the jobs' marks say of it.
        found = {} if self.was_read else from_marks(state, self._claims)
        for job, row in state.queue.items():
            if row.state != "PENDING" or not (claim := self[job]).steers:
                continue
            if (after := claim.seen(state.shown(job))) is not claim:
                found[job] = transition(claim, Event(kind=Kind.EDITED, row=row, claim=after))[0]
        self._claims |= found

    def raced(self, rows: Iterable[QueueRow]) -> dict[JobId, Event]:
        """Return the events of our holds that raced with the start of their jobs."""
        known = [row for row in rows if row.is_held_as_it_runs and row.key in self]
        raced = [row for row in known if self._kind(self[row.key], row) is Kind.RACED]
        return {row.key: Event(kind=Kind.RACED, row=row) for row in raced}

    def carry_out(
        self, slurm: SlurmAdapter, events: Mapping[JobId, Event], *, must_be_written: bool = True
    ) -> dict[JobId, SlurmError]:
        """Record events, then send their updates; return the first fault of each job.

        Raises LedgerError, with nothing sent, where they cannot be recorded.
        """
        faults = _send(slurm, self.intend(events, must_be_written=must_be_written))
        self.unlistable.update(job for job, fault in faults.items() if _NO_NODE in str(fault))
        lost = [job for job, fault in faults.items() if isinstance(fault, SlurmUnavailable)]
        holds = [job for job in lost if events[job].kind in _SEND_HOLDS and self[job].holds]
        if holds:
            with suppress(LedgerError):
                self.note({job: replace(self[job], may_come=1) for job in holds})
        return faults

    def attempt(
        self, slurm: SlurmAdapter, events: Mapping[JobId, Event], *, must_be_written: bool = True
    ) -> dict[JobId, SlurmError]:
        """Carry out events and heed the answers: what is refused is in doubt (`Claim.refused`)."""
        before = {job: self[job] for job in events}
        faults = self.carry_out(slurm, events, must_be_written=must_be_written)
        done = {k: replace(event, kind=Kind.DONE) for k, event in events.items() if k not in faults}
        self._claims |= {job: transition(self[job], event)[0] for job, event in done.items()}
        refused = dict[JobId, Event]()
        for job, fault in faults.items():
            if isinstance(fault, SlurmRefused):
                # Slurm makes no part of a change with a node that it does not know (22.05.8).
                claim = before[job] if _NO_NODE in str(fault) else self[job].refused(before[job])
                refused[job] = replace(events[job], kind=Kind.REFUSED, claim=claim)
        self.intend(refused, must_be_written=must_be_written)
        return faults

    def intend(
        self, events: Mapping[JobId, Event], *, must_be_written: bool = True
    ) -> dict[JobId, tuple[Update, ...]]:
        """Record what hadard is about to do, and return the updates that do it.

        Raises LedgerError, with nothing changed, where it cannot be written.
        """
        after = {job: transition(self[job], event) for job, event in events.items()}
        claims = {job: claim for job, (claim, _) in after.items()}
        try:
            if _differing(claims, self._written):
                self._write(claims)
        except LedgerError:
            if must_be_written:
                raise
        self._claims |= claims
        return {job: updates for job, (_, updates) in after.items()}

    def announce(self, events: Mapping[JobId, Event]) -> None:
        """Record what is about to be done in parts, of which each then writes what differs."""
        before = {job: self[job] for job in events}
        self.intend(events)
        self._claims |= before

    def note(self, claims: Mapping[JobId, Claim]) -> None:
        """Record claims, and what was seen; raises LedgerError where it cannot."""
        if self._unwritten(claims):
            self._write(claims)

    def adopt(self) -> None:
        """Record what was seen; the ledger then counts as read."""
        if not self.was_read or self._unwritten({}):
            self._write({})
        self.was_read = True

    def forget_all_but(self, jobs: Collection[JobId]) -> None:
        """Remove the claims of all jobs but these, and record what was seen of these."""
        kept = set(jobs)
        self._owners = {job: part for job, part in self._owners.items() if job in kept}
        if (gone := (self._claims.keys() | self._written.keys()) - kept) or self._unwritten({}):
            self._write({}, gone)

    def _unwritten(self, more: Mapping[JobId, Claim]) -> dict[JobId, Claim]:
        """Return the claims that the file lacks or has differently."""
        return _differing({**self._claims, **more}, self._written)

    def _write(self, more: Mapping[JobId, Claim], gone: Collection[JobId] = ()) -> None:
        """Change single claims: another process may have changed others."""
        changed = self._unwritten(more)
        try:
            with locks.lock(self.path.parent, locks.LEDGER, wait_s=_LOCK_WAIT_S) as is_locked:
                if not is_locked:
                    raise OSError(errno.EWOULDBLOCK, "another program is writing to it")
                self.refresh()
                merged = {**self._written, **changed}
                claims = {job: claim for job, claim in merged.items() if job not in gone}
                self._replace(claims)
                self._mark = self._mark_of_file()
        except OSError as error:
            self.fault = f"{self.path}: cannot be written: {error.strerror}"
            raise LedgerError(self.fault) from error
        self._written, self._claims, self.fault = claims, dict(claims), ""

    def _replace(self, claims: Mapping[JobId, Claim]) -> None:
        with untrusted_files.directory(self.path.parent) as place:

            def finish(descriptor: int) -> None:
                # hadard must be able to read a file that root has written.
                untrusted_files.give_to_owner_of(place, descriptor)
                os.fsync(descriptor)

            self._texts = {job: self._text(job, claim) for job, claim in claims.items()}
            jobs = ", ".join([self._texts[job][1] for job in sorted(self._texts)])
            text = f'{{"version": {VERSION}, "jobs": {{{jobs}}}}}\n'
            untrusted_files.replace(
                self.path.name, text.encode(), mode=0o640, dir_fd=place, hand_over=finish
            )

    def _text(self, job: JobId, claim: Claim) -> tuple[Claim, str]:
        if (last := self._texts.get(job)) and last[0] is claim:
            return last
        return claim, f"{json.dumps(job)}: {json.dumps(claim_tree(claim))}"

    def retry(self) -> None:
        """Write the file again after a failed write; a success empties `fault`."""
        if self.fault:
            with suppress(LedgerError):
                self._write({})


def _differing(claims: Mapping[JobId, Claim], others: Mapping[JobId, Claim]) -> dict[JobId, Claim]:
    """Return the claims that `others` lacks or has differently."""
    return {
        job: claim
        for job, claim in claims.items()
        if (other := others.get(job)) is not claim and other != claim
    }


def _send(slurm: SlurmAdapter, wished: Mapping[JobId, Sequence[Update]]) -> dict[JobId, SlurmError]:
    """Send the updates of each job in order; return the first fault of each.

    A request is set only where the clearing before it was not refused, as it is once the job runs:
    Slurm up to 23.11 would take the nodes as a resize, whatever else is in the update (22.05.8).
    """
    faults: dict[JobId, SlurmError] = {}
    left = {job: list(updates) for job, updates in wished.items()}
    while left:
        batch: list[tuple[JobId, Update]] = []
        for job, updates in left.items():
            is_first = True
            while updates and (is_first or not isinstance(updates[0], SetRequest)):
                batch.append((job, updates.pop(0)))
                is_first = False
        answers = slurm.change([update for _, update in batch])
        for (job, update), fault in zip(batch, answers, strict=True):
            if fault is not None:
                faults.setdefault(job, fault)
                if isinstance(update, ClearRequest):
                    left[job].clear()
        left = {job: updates for job, updates in left.items() if updates}
    return faults
