"""What a reading of Slurm shows of a job, as an event of the state machine. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hadar_slurm.core.cluster import JobId
from hadar_slurm.engine.loan import Loan
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.mark import owners_values
from hadar_slurm.jobspec.request import described_request
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.claim import Claim, State
from hadar_slurm.slurm.enforce.state_machine import TABLE, Event, Kind, transition

# slurmctld has saved a release after this long. 22.05.8 lost the last 15 s.
SAVED_AFTER_S = 60.0
# A hadard started after the release assumes a loss for no longer than this after it.
UNSEEN_S = 600.0
# hadar-sbatch holds a job that it has submitted without a hold within this time.
HELD_WITHIN_S = 60.0


def read_kind(
    claim: Claim, row: QueueRow, *, now_s: float, booted_s: float, opened_s: float
) -> Kind:
    """Return what a reading shows of a live job; `opened_s` is the start of this process."""
    kind = _pending_kind(claim, row) if row.state == "PENDING" else _running_kind(claim, row, now_s)
    if kind is Kind.USER_HOLD and _is_release_lost(claim, now_s, booted_s, opened_s):
        return Kind.RELEASE_LOST
    is_free = kind is Kind.FREE and claim.state in (State.RELEASED, State.PLACED)
    if is_free and not (claim.since_s and 0 <= now_s - claim.since_s < SAVED_AFTER_S):
        is_placed = bool(row.requested_nodes) or claim.has_cleared(row)
        return Kind.SAVED_PLACED if is_placed else Kind.SAVED_FREE
    return kind


def _pending_kind(claim: Claim, row: QueueRow) -> Kind:
    if not row.is_held:
        return Kind.FREE
    # After a failed launch Slurm holds the job, so that an operator checks the node.
    if row.is_held_by_operator or row.has_failed_to_launch:
        return Kind.OPERATOR_HOLD
    is_limited = claim.excluded.is_lent or claim.pins(row.requested_nodes)
    may_be_ours = claim.state in TABLE[Kind.BAD_PIN] and is_limited
    return Kind.BAD_PIN if may_be_ours and row.reason == "BadConstraints" else Kind.USER_HOLD


def _running_kind(claim: Claim, row: QueueRow, now_s: float) -> Kind:
    # A job that started with other nodes than it requested before our hold started after our
    # release: the hold that it now shows is its owner's.
    is_as_before = set(row.requested_nodes) == set(claim.replaced)
    may_be_ours = claim.may_come if claim.state is State.RELEASED else is_as_before
    is_held = row.is_held_as_it_runs and row.reason != "JobHeldAdmin"
    if claim.state in TABLE[Kind.RACED] and is_held and may_be_ours:
        return Kind.RACED
    is_coming = claim.state is State.REQUEUING and row.restarts < claim.requeued
    is_saving = claim.state is State.SAVING and claim.signalled_run == row.restarts + 1
    is_saving = is_saving and now_s <= claim.signalled_until_s
    return Kind.UNSETTLED if row.state != "RUNNING" or is_coming or is_saving else Kind.FREE


def _is_release_lost(claim: Claim, now_s: float, booted_s: float, opened_s: float) -> bool:
    """Return whether a job that we released may be held again because slurmctld forgot that.

    Or because our hold, to which Slurm gave no answer, came only after a reading without it.
    slurmctld saves its jobs every few seconds. Its successor, on the same machine or another, then
    shows a released job, which may even have run, under its former hold and perhaps pin. If that
    counted as the owner's hold, the job would stay held. An owner's hold set within that time
    counts as hadard's. Controllers are distinguished by the second of their start.
    """
    if claim.state not in TABLE[Kind.RELEASE_LOST] or not claim.since_s:
        return False
    is_new = claim.since_s >= opened_s or now_s - claim.since_s < UNSEEN_S
    is_other = 0.0 not in (booted_s, claim.booted_s) and booted_s != claim.booted_s
    return bool(claim.may_come) or (is_new and is_other)


def is_edited(before: SlurmState, now: SlurmState, job: JobId, claim: Claim) -> bool:
    """Return whether the owner of a job that waits now has changed it between two readings.

    What hadard has set in between does not count, nor what a requeue changes.
    """

    def owners(state: SlurmState, row: QueueRow) -> tuple[object, ...]:
        excluded = claim.excluded_by_owner(state.excluded.get(job))
        return set(excluded), row.features, row.comment

    def asked(state: SlurmState, row: QueueRow) -> tuple[object, ...]:
        # Slurm gives a job that runs the time limit of its partition.
        limit_s = claim.limit_s.owner_of(state.limits_s.get(job, 0.0))
        return replace(state.request(row), nodes=()), limit_s, row.partition, row.reservation

    was, row = before.queue.get(job), now.queue.get(job)
    if was is None or row is None:
        return False
    named = set(row.requested_nodes)
    if named not in (set(), set(was.requested_nodes)) or owners(before, was) != owners(now, row):
        return True
    if was.state != "PENDING" or was.restarts != row.restarts:
        return False
    # Of a job that is not held, squeue shows when Slurm expects it to start.
    is_moved = (row.is_held and row.started_s > was.started_s) or (was.is_held and not row.is_held)
    return is_moved or asked(before, was) != asked(now, row)


def first_sight(
    row: QueueRow, description: Description, *, was_read: bool, version: tuple[int, int]
) -> Event:
    """Return what the first reading of a job without a claim shows.

    Without a ledger (`was_read` is false) a hold on a job that has run before or names nodes, and
    nodes that hadard could have chosen, count as hadard's: no job may wait for a hadard that has
    lost its record.
    """
    is_suspect = not was_read and (row.restarts > 0 or bool(row.requested_nodes))
    is_held = row.is_held_by_user and not row.has_failed_to_launch
    is_ours = is_held and (description.is_held or is_suspect)
    # hadard requests GPUs per node, of one type or none.
    could_be_pin = len(row.gpus_per_node) == 1 and not row.gpus_otherwise
    is_pinned = not was_read and bool(row.requested_nodes) and could_be_pin
    is_cleared = row.state == "PENDING" and row.request.is_cleared and (is_ours or not was_read)
    own = described_request(description, version) if is_pinned or is_cleared else None
    kind = Kind.FOUND_HELD if is_ours else Kind.FOUND_CHANGED if own else Kind.FOUND
    return Event(kind=kind, row=row, own=own)


def from_marks(state: SlurmState, claims: Mapping[JobId, Claim]) -> dict[JobId, Claim]:
    """Return the claims on waiting jobs of which only marks say what hadard has changed.

    All that Slurm shows counts as hadard's; an owner's value that would give a job more does not.
    """
    found: dict[JobId, Claim] = {}
    for job, row in state.queue.items():
        claim = claims.get(job, Claim())
        if row.mark and row.state == "PENDING" and not claim.steers:
            owners, asked = {**owners_values(row.mark)}, state.request(row)
            # A user may have written the mark: hadard never shortens a limit, so it gives none that
            # is longer, and more nodes only where the number of GPUs stays.
            if not asked.per_job:
                owners.pop("sized", "")
            if owners.get("limit_s", 0.0) > state.limits_s.get(job, 0.0):
                del owners["limit_s"]
            own = claim.own or replace(asked, num_nodes=owners.get("sized", asked.num_nodes))
            shown = state.shown(job) | {"sized": state.num_nodes.get(job)}
            now: dict[str, Any] = {k: shown[k] for k in owners if shown[k] is not None}
            lent: dict[str, Any] = {k: Loan(now[k], now[k], owners[k]) for k in now}
            after = replace(claim, own=own, **lent)
            found[job], _ = transition(claim, Event(kind=Kind.FOUND_EXCLUDED, row=row, claim=after))
    return found


def may_yet_be_held(row: QueueRow, now_s: float) -> bool:
    """Return whether hadar-sbatch may be about to hold this job (submit/trial.py)."""
    is_young = abs(now_s - row.submitted_s) < HELD_WITHIN_S  # clocks differ
    return is_young and row.state == "PENDING" and not row.is_held
