"""The claim on a job: what hadard has done to it, and what has to be put back. Pure.

`state_machine` is the only module that changes a claim's state; `ledger` keeps claims on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any

from hadar_slurm.core.cluster import NodeName
from hadar_slurm.engine.loan import Loan, as_set
from hadar_slurm.jobspec.mark import with_mark
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.client.parse import QueueRow


class State(StrEnum):
    """Who holds a job, and how far hadard's last change of it has come."""

    # hadard has changed nothing, or everything is undone: a hold is its owner's.
    UNMANAGED = "unmanaged"
    # Not held: hadard has set a preference, or limited the nodes that Slurm may choose.
    STEERED = "steered"
    # A hold is sent and not yet read back: it may race with the job's start.
    HOLDING = "holding"
    # The hold is hadard's.
    HELD = "held"
    # A hold and a request for chosen nodes are sent: the job may request no GPU in between.
    PINNING = "pinning"
    # The chosen nodes are read back under our hold, and the release is sent.
    PINNED = "pinned"
    # The hold is gone since a short time: a slurmctld that goes away may forget that.
    RELEASED = "released"
    # The hold is gone for good. The job waits or runs on nodes that hadard chose.
    PLACED = "placed"
    # A running job has got USR1 and is expected to save.
    SAVING = "saving"
    # A requeue with a hold is sent: the job may still run.
    REQUEUING = "requeuing"
    # A hold and the job's own request are sent.
    RESTORING = "restoring"
    # Its owner or an operator holds the job, which hadard has changed before.
    FOREIGN_HOLD = "foreign hold"


# A user hold on a pending job in these states is hadard's.
HOLDS = frozenset(
    (
        State.HOLDING,
        State.HELD,
        State.PINNING,
        State.PINNED,
        State.REQUEUING,
        State.RESTORING,
    )
)


_NO_NODES: Loan[tuple[NodeName, ...]] = Loan((), (), ())
_ZERO, _ZERO_S = Loan(0, 0, 0), Loan(0.0, 0.0, 0.0)
# Ledgers of 0.2 have a text only while it is lent.
NO_TEXT = Loan("", "", "")
_LOANS = ("excluded", "nice", "limit_s", "sized", "preferred")
_loans_of = attrgetter(*_LOANS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What hadard has done, or is about to do, to one job; times in seconds since the epoch."""

    state: State = State.UNMANAGED
    # The owner's values, which are to be put back; None: hadard has not changed them.
    own: Request | None = None
    # The nodes that hadard chose.
    pinned: tuple[NodeName, ...] = ()
    # The nodes that the job requested when our last hold was sent: a job that runs on these under a
    # hold started while that hold was on its way. For a job that is not held, the nodes that hadard
    # chose before the last `Steer`. Empty once the change is read back.
    replaced: tuple[NodeName, ...] = ()
    # The GPU types that the job's request named before our last change of it: Slurm before 24.11
    # keeps them, and does not show them while the request is cleared.
    named: tuple[str, ...] = ()
    # Borrowed: the nodes that it excludes, its nice value, its time limit in seconds (0: none),
    # its number of nodes, such as `2-2`, and the features that it prefers.
    excluded: Loan[tuple[NodeName, ...]] = _NO_NODES
    nice: Loan[int] = _ZERO
    limit_s: Loan[float] = _ZERO_S
    sized: Loan[str] = NO_TEXT
    preferred: Loan[str] = NO_TEXT
    # 1 if `pinned` was set without a hold, by a hadard up to 0.2; 0 if under one.
    steered: int = 0
    # The nodes that hadard wants the job to start on: it excludes all others with GPUs.
    aimed: tuple[NodeName, ...] = ()
    # When our hold was last sent or observed to be gone; 0: unknown, or slurmctld has saved it
    # since.
    since_s: float = 0.0
    # The start of the slurmctld that then ran; 0: not known.
    booted_s: float = 0.0
    # 1 if Slurm gave no answer to our last hold, which may still come.
    may_come: int = 0
    # The job's number of restarts once our last requeue is done.
    requeued: int = 0
    # The run that we last sent USR1, counted from 1 (0: none), and the end of its grace period.
    # These, `ended_run` and `retried_run` are kept while Slurm knows the job.
    signalled_run: int = 0
    signalled_until_s: float = 0.0
    # The run that our USR1 ended.
    ended_run: int = 0
    # The part of the job, 0 to 1, that runs which we requeued without a signal have kept; as those
    # above.
    kept_part: float = 0.0
    # The run that failed early, after which hadard requeued the job: once in its life.
    retried_run: int = 0

    @property
    def holds(self) -> bool:
        """Whether a user hold on the pending job is hadard's."""
        return self.state in HOLDS

    def pins(self, nodes: Iterable[NodeName]) -> bool:
        """Return whether hadard chose these nodes; other nodes are the owner's later choice."""
        chosen = (self.pinned,) if self.holds else (self.pinned, self.replaced)
        return any(set(nodes) == set(those) for those in chosen if those)

    @property
    def steers(self) -> bool:
        """Whether hadard has borrowed something."""
        return any(loan.is_lent for loan in _loans_of(self))

    @property
    def loans(self) -> dict[str, Any]:
        """What is borrowed, by field."""
        return dict(zip(_LOANS, _loans_of(self), strict=True))

    @property
    def lent(self) -> dict[str, Any]:
        """The owner's values, by field, where hadard has set others or is about to."""
        return {name: loan.owners for name, loan in self.loans.items() if loan.is_set}

    def refused(self, before: Claim) -> Claim:
        """Return the claim once Slurm has refused this one, and may have made a part of it."""
        doubted = {k: loan.refused for k, loan in self.loans.items() if loan != before.loans[k]}
        return replace(before, own=self.own if doubted else before.own, **doubted)

    def seen(self, shown: Mapping[str, Any]) -> Claim:
        """Return the claim after a reading of what hadard borrows (`SlurmState.shown`)."""
        limit_s, own = shown["limit_s"], self.own
        # Slurm keeps limits in minutes.
        is_same = limit_s is None or 0 <= limit_s - self.limit_s.ours < 60
        shown = {**shown, "limit_s": None if is_same else round(limit_s)}
        after = {name: loan.seen(shown[name]) for name, loan in self.loans.items()}
        if after == self.loans:
            return self
        if own is not None and after["sized"] != self.sized:
            own = replace(own, num_nodes=after["sized"].owners)
            after["sized"] = replace(NO_TEXT, is_kept=True)
        return replace(self, own=own, **after)

    def excluded_by_owner(
        self, shown: Iterable[NodeName] | None, submitted: tuple[NodeName, ...] | None = None
    ) -> tuple[NodeName, ...]:
        """Return the owner's part where Slurm shows that a job excludes the nodes `shown`.

        None: that is in doubt; the owner's part is then as before.
        `submitted`: what the owner has excluded at submission, if the rest may be hadar-sbatch's or
        that of a hadard that has lost its ledger. Nodes that hadard has not set are the owner's.
        """
        now, loan = as_set(tuple(shown or ())), self.excluded
        has_ours = loan.is_kept or bool(loan.ours or loan.former)
        if (shown is None or loan.is_ours(tuple(shown))) and (now or has_ours):
            return loan.owners
        if shown is None:
            return submitted or ()
        if submitted is not None and now and not has_ours:
            return submitted
        return tuple(sorted(now))

    def named_types(self, row: QueueRow) -> frozenset[str]:
        """Return the GPU types that the job's request names, or named before it was cleared."""
        return frozenset(self.named) if row.request.is_cleared else row.named_types

    def has_cleared(self, row: QueueRow) -> bool:
        """Return whether the request is cleared, as between the two updates of a change."""
        return row.request.is_cleared and self.own is not None and not self.own.is_cleared

    def asks_own(self, row: QueueRow) -> bool:
        """Return whether a job requests the GPUs that its owner asked for."""
        return self.own is None or row.request.gpus == self.own.gpus

    def has_changed(self, row: QueueRow) -> bool:
        """Return whether hadard holds, has pinned, has cleared or steers a pending job."""
        if row.state != "PENDING":
            return False
        is_ours = row.mark != "" and self.own is not None
        is_changed = self.holds or self.has_cleared(row) or self.pins(row.requested_nodes)
        is_changed = is_changed or self.steers
        return is_changed or (is_ours and with_mark(row.comment, row.mark, {}) is not None)

    def keeps_nice_only(self, row: QueueRow) -> bool:
        """Return whether all that hadard has changed is a nice value that another's hold keeps."""
        has_more = replace(self, nice=_ZERO).has_changed(replace(row, mark=""))
        return row.is_held and self.nice.is_lent and not has_more
