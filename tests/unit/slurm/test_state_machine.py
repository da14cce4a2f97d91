"""Every state with every event: no hold of an owner is released, and none of hadard's is lost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
from builders import a_queue_row

from hadar_slurm.core.cluster import NodeName
from hadar_slurm.engine.loan import Loan
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.request import Request, described_request
from hadar_slurm.slurm.client import updates
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.enforce.claim import HOLDS, Claim, State
from hadar_slurm.slurm.enforce.readings import SAVED_AFTER_S, first_sight, read_kind
from hadar_slurm.slurm.enforce.state_machine import (
    TABLE,
    Event,
    Kind,
    RefusedTransition,
    changes,
    transition,
)

N1, N2 = (NodeName("n1"),), (NodeName("n2"),)
OWN = Request(per_job="gres/gpu:2")
PINNED = Request(num_nodes="1-1", per_node="gres/gpu:2", nodes=N1)
NO_TEXTS = {"sized": "", "preferred": ""}
HELD = {"priority": 0, "reason": "JobHeldUser"}
RELEASED_S, BOOTED_S = 1000.0, 900.0
FOUND = {Kind.FOUND_HELD, Kind.FOUND_CHANGED, Kind.FOUND, Kind.FOUND_EXCLUDED}
ANSWERS = {Kind.DONE, Kind.REFUSED}
WISHES = {
    Kind.HOLD,
    Kind.PIN,
    Kind.RELEASE,
    Kind.SAVE,
    Kind.REQUEUE,
    Kind.REQUEUE_HELD,
    Kind.RESTORE,
    Kind.STEER,
    Kind.PREFER,
}
READINGS = set(Kind) - FOUND - ANSWERS - WISHES


def a_claim(state: State) -> Claim:
    """Return a claim of a job that was pinned to n1 and released at 1000 s."""
    return Claim(state=state, own=OWN, pinned=N1, since_s=RELEASED_S, booted_s=BOOTED_S)


def seen(
    claim: Claim, row: QueueRow, *, now_s: float = RELEASED_S + 1, booted_s: float = BOOTED_S
) -> Claim:
    """Return the claim after a reading by a hadard that has run since 0 s."""
    kind = read_kind(claim, row, now_s=now_s, booted_s=booted_s, opened_s=0.0)
    after, _ = transition(claim, Event(kind=kind, row=row, now_s=now_s, booted_s=booted_s))
    assert after == claim or changes(claim, kind)
    return after


@pytest.mark.parametrize(("state", "kind"), list(product(State, Kind)), ids=str)
def test_every_event_has_a_row_in_every_state_or_is_refused(state: State, kind: Kind) -> None:
    """No event but a long wait loses the own request; refused events are named."""
    row = a_queue_row()
    steering = updates.Steer(row.key, N2)
    claim, event = a_claim(state), Event(kind=kind, row=row, request=PINNED, steering=steering)
    event = replace(event, features="v100")
    if state not in TABLE[kind]:
        with pytest.raises(RefusedTransition, match=f"{kind} while {state}"):
            transition(claim, event)
        return
    after, sent = transition(claim, event)
    assert after.state is TABLE[kind][state]
    assert after.own == {Kind.SAVED_FREE: None, Kind.RESTORE: PINNED}.get(kind, OWN)
    assert bool(sent) == (kind is Kind.RACED or kind in WISHES)
    kinds = {type(update) for update in sent}
    if kinds & {updates.Hold, updates.Requeue}:
        # A hold is set only once the claim says that it is hadard's, or was there before.
        assert after.holds or kind is Kind.REQUEUE_HELD
    if updates.Release in kinds:
        assert after.state is not State.FOREIGN_HOLD


@pytest.mark.parametrize("state", sorted(HOLDS))
def test_our_hold_ends_only_where_it_is_seen_to_be_gone(state: State) -> None:
    """No command and no answer ends it: otherwise it would count as the owner's."""
    ends = {kind for kind in Kind if TABLE[kind].get(state, state) not in HOLDS}
    assert ends == {Kind.FREE, Kind.OPERATOR_HOLD}


@pytest.mark.parametrize("state", sorted(HOLDS))
def test_the_end_of_our_hold_is_dated(state: State) -> None:
    """Until slurmctld has saved it, another one may show the hold again."""
    claim = replace(a_claim(state), since_s=0.0, booted_s=0.0)
    for row in (a_queue_row(), a_queue_row(priority=0, reason="JobHeldAdmin")):
        after = seen(claim, row, now_s=1234.0)
        assert (after.since_s, after.booted_s) == (1234.0, BOOTED_S)
        assert seen(after, a_queue_row(**HELD), now_s=1240.0, booted_s=5000.0).holds


def test_a_foreign_hold_becomes_ours_only_if_it_was_never_the_owners() -> None:
    """Slurm set it because of the pin, or shows a hold of hadard again that it had forgotten."""
    ours = {kind for kind in Kind if TABLE[kind].get(State.FOREIGN_HOLD) in HOLDS}
    assert ours == {Kind.BAD_PIN, Kind.RELEASE_LOST}
    assert {k for k in WISHES if State.FOREIGN_HOLD in TABLE[k]} == {
        Kind.RESTORE,
        Kind.REQUEUE_HELD,
        Kind.STEER,
        Kind.PREFER,
    }


def test_what_slurm_refuses_it_may_have_set() -> None:
    """Neither value is then the owner's; what is given back is the owner's, as before."""
    row, before = a_queue_row(), Claim()
    steer = Event(
        kind=Kind.STEER,
        row=row,
        own=OWN,
        steering=updates.Steer(row.key, N1, nice=-692),
        shown={"excluded": N2, "nice": 5, "limit_s": 0.0} | NO_TEXTS,
        own_excluded=N2,
    )
    sent, _ = transition(before, steer)
    after, _ = transition(sent, replace(steer, kind=Kind.REFUSED, claim=sent.refused(before)))
    for shown in ({"excluded": N1, "nice": -692}, {"excluded": N2, "nice": 5}):
        read = after.seen({"limit_s": 0.0} | NO_TEXTS | shown)
        assert read.steers
        assert (read.nice.owners, read.excluded.owners) == (5, N2)
    edited = after.seen({"excluded": N2, "nice": 700, "limit_s": 0.0} | NO_TEXTS)
    assert edited.nice == Loan(700, 700, 700, is_kept=True)


def every_row() -> Iterator[QueueRow]:
    """Return rows with every combination of what a reading may show of the holds of a job."""
    failed = "launch_failed_requeued_held"
    reasons = ("None", "JobHeldUser", "JobHeldAdmin", "BadConstraints", failed)
    states = ("PENDING", "RUNNING", "CONFIGURING", "SIGNALING", "COMPLETING")
    asked = (OWN, PINNED, replace(PINNED, nodes=N2), Request())
    for state, reason, request, number in product(states, reasons, asked, range(4)):
        row = a_queue_row(state=state, reason=reason, request=request)
        yield replace(row, priority=9 * (number % 2), restarts=number // 2)


@pytest.mark.parametrize("state", list(State))
def test_no_reading_is_refused_and_each_is_stable(state: State) -> None:
    """A second look at the same Slurm changes nothing more, nor does a restart of hadard."""
    times = product(every_row(), (0.0, RELEASED_S), (0.0, BOOTED_S, 5000.0), (N2, ()), (0, 1))
    for row, since_s, booted_s, replaced, may_come in times:
        claim = replace(a_claim(state), since_s=since_s, replaced=replaced, requeued=1)
        claim = replace(claim, may_come=may_come)
        once = seen(claim, row, booted_s=booted_s)
        again = seen(once, row, booted_s=booted_s)
        # A job that is freed is released first, and settled by a later reading.
        assert again == once or once.state is State.RELEASED, (row, claim)
        assert seen(again, row, booted_s=booted_s) == again
        if row.is_held_by_operator:
            assert not once.holds


def test_a_job_submitted_held_is_claimed_by_its_first_reading() -> None:
    """Only if it is still held: after that, a hold is the owner's."""
    described = Description(steps=5, gpus=2, throughputs={"v100": 1.0}, is_held=True)
    for row, kind in (
        (a_queue_row(**HELD), Kind.FOUND_HELD),
        (a_queue_row(), Kind.FOUND),
        (a_queue_row(priority=0, reason="JobHeldAdmin"), Kind.FOUND),
        (a_queue_row(state="RUNNING"), Kind.FOUND),
    ):
        assert first_sight(row, described, was_read=True, version=(24, 11)).kind is kind


def lost(row: QueueRow, *, marked: bool = False) -> Claim:
    """Return the claim of a job of 2 GPUs that is first seen when the ledger is lost."""
    described = Description(steps=5, gpus=2, throughputs={"v100": 1.0}, is_held=marked)
    return transition(Claim(), first_sight(row, described, was_read=False, version=(24, 11)))[0]


def test_without_a_ledger_what_may_have_been_ours_is() -> None:
    """Jobs that ran before or are pinned count as hadard's; another unmarked hold is the user's."""
    per_node, described = (("gpu", 2),), Request(num_nodes="1-2", per_job="gres/gpu:2")
    assert lost(a_queue_row(**HELD)).state is State.UNMANAGED
    assert lost(a_queue_row(**HELD), marked=True).state is State.HELD
    assert lost(a_queue_row(**HELD, restarts=1)) == Claim(state=State.HELD)
    pinned = a_queue_row(request=PINNED, gpus_per_node=per_node, gpus_otherwise=())
    assert lost(pinned) == Claim(state=State.RELEASED, own=described, pinned=N1)
    assert lost(replace(pinned, **HELD)).state is State.HELD  # type: ignore[arg-type]
    assert lost(replace(pinned, state="RUNNING")).pinned == N1
    assert lost(a_queue_row()) == Claim()


def test_without_a_ledger_a_request_that_hadard_never_sets_is_the_owners() -> None:
    """GPUs per job, or of two types on a node."""
    two_types = (("k80", 1), ("v100", 1))
    for request, per_node in ((replace(OWN, nodes=N1), ()), (PINNED, two_types)):
        row = a_queue_row(
            request=request,
            gpus_per_node=per_node,
            gpus_otherwise=() if per_node else (("gpu", 2),),
        )
        assert lost(row) == Claim()


def test_without_a_ledger_a_cleared_request_comes_from_the_description() -> None:
    """hadard was killed between the two updates of a change."""
    cleared = {"request": Request(), "gpus_otherwise": ()}
    held = lost(a_queue_row(**HELD, **cleared), marked=True)
    assert held.state is State.HELD
    assert held.own == Request(num_nodes="1-2", per_job="gres/gpu:2")
    assert lost(a_queue_row(**cleared)).has_cleared(a_queue_row(**cleared))


@pytest.mark.parametrize(
    ("asks", "request_"),
    [
        ({}, Request(num_nodes="1-2", per_job="gres/gpu:2")),
        ({"gpus": "v100:2"}, Request(num_nodes="1-2", per_job="gres/gpu:v100:2")),
        ({"gpus": "2", "nodes": "2"}, Request(num_nodes="2-2", per_job="gres/gpu:2")),
        (
            {"gres": "gpu:v100:1,gpu:k80", "nodes": "1-2"},
            Request(num_nodes="1-2", per_node="gres/gpu:v100:1,gres/gpu:k80"),
        ),
        ({"gres": "gpu"}, Request(num_nodes="1-2", per_node="gres/gpu")),
        ({"gpus-per-task": "1"}, Request(num_nodes="1-2", per_task="gres/gpu:1")),
        ({"gpus-per-socket": "1"}, Request(num_nodes="1-2", per_socket="gres/gpu:1")),
    ],
    ids=str,
)
def test_a_description_has_the_owners_own_request(asks: dict[str, str], request_: Request) -> None:
    """In Slurm's form."""
    described = Description(steps=5, gpus=2, throughputs={"v100": 1.0}, asks=asks)
    assert described_request(described, (24, 11)) == request_


def test_types_once_named_are_known_while_the_request_is_cleared() -> None:
    """Slurm before 24.11 then accepts no untyped request, and does not show the types."""
    asked = Request(per_job="gres:gpu:v100:2")
    row = replace(a_queue_row(**HELD, gpus_otherwise=(("v100", 2),)), request=asked)
    claim, _ = transition(Claim(state=State.HELD), Event(kind=Kind.PIN, row=row, request=PINNED))
    assert claim.named_types(replace(row, request=Request(), gpus_otherwise=())) == {"v100"}
    assert claim.named_types(a_queue_row(gpus_otherwise=(("gpu", 2),))) == set()


# Releases that slurmctld may lose.


# A backup controller may have started long before it takes over.
@pytest.mark.parametrize("booted_s", [1001.0, 5000.0, 200.0])
def test_another_slurmctld_may_have_forgotten_a_release(booted_s: float) -> None:
    """After a change of slurmctld, the hold counts as hadard's, so that it can be released."""
    for state in (State.RELEASED, State.SAVING, State.FOREIGN_HOLD):
        assert seen(a_claim(state), a_queue_row(**HELD), booted_s=booted_s).state is State.HELD


@pytest.mark.parametrize("booted_s", [BOOTED_S, 0.0])
def test_a_hold_under_the_same_slurmctld_is_the_owners_for_good(booted_s: float) -> None:
    """It stays so after slurmctld restarts, and also if the start of slurmctld is not known."""
    theirs = seen(a_claim(State.RELEASED), a_queue_row(**HELD), booted_s=booted_s)
    assert theirs.state is State.FOREIGN_HOLD
    assert seen(theirs, a_queue_row(**HELD), booted_s=2000.0) == theirs


def test_a_daemon_that_comes_days_later_takes_no_owners_hold() -> None:
    """A hadard that starts long after the release takes a hold for the owner's."""
    for later_s, is_ours in ((300.0, True), (3 * 86_400.0, False)):
        now_s = RELEASED_S + later_s
        kind = read_kind(
            a_claim(State.RELEASED),
            a_queue_row(**HELD),
            now_s=now_s,
            booted_s=now_s - 100.0,
            opened_s=now_s,
        )
        assert (kind is Kind.RELEASE_LOST) is is_ours


@pytest.mark.parametrize("state", [State.RELEASED, State.PINNED])
def test_what_slurm_holds_after_a_failed_launch_is_not_ours(state: State) -> None:
    """An operator has to check the node."""
    row = a_queue_row(priority=0, reason="launch_failed_requeued_held")
    assert seen(a_claim(state), row, booted_s=5000.0).state is State.FOREIGN_HOLD


def test_what_was_saved_is_not_forgotten() -> None:
    """A minute after its release a job's hold can only be the owner's."""
    claim, free = a_claim(State.RELEASED), a_queue_row(reason="Resources")
    assert seen(claim, free, now_s=RELEASED_S + SAVED_AFTER_S - 1) == claim
    # A claim must not stay uncertain because the clock was set back.
    for now_s in (RELEASED_S + SAVED_AFTER_S, 900.0):
        assert seen(claim, free, now_s=now_s) == Claim()


def test_a_pin_and_a_cleared_request_are_kept() -> None:
    """A pin shows later that hadard chose the nodes; a cleared request has to be put back."""
    for row in (a_queue_row(request=PINNED, state="RUNNING"), a_queue_row(request=Request())):
        settled = seen(a_claim(State.RELEASED), row, now_s=2000.0)
        assert settled == Claim(state=State.PLACED, own=OWN, pinned=N1)


def test_signals_and_the_preference_are_kept() -> None:
    """A job that our signal has ended is never signalled again; its progress counts."""
    facts = Claim(signalled_run=1, signalled_until_s=5.0, ended_run=1, kept_part=0.5)
    facts = replace(facts, preferred=Loan("v100", "", ""))
    claim = replace(facts, state=State.RELEASED, own=OWN, pinned=N1)
    assert seen(claim, a_queue_row(), now_s=2000.0) == replace(facts, own=OWN)


# Holds that race with a start, and requeues without an answer.


def test_a_requeue_on_its_way_is_still_ours() -> None:
    """The requeue may have timed out while the job still runs; its claim stays."""
    running = a_queue_row(state="RUNNING", restarts=2)
    claim, _ = transition(a_claim(State.PLACED), Event(kind=Kind.REQUEUE, row=running))
    assert (claim.state, claim.requeued) == (State.REQUEUING, 3)
    assert seen(claim, running) == claim
    # The requeue is complete, and the job runs again; or it was lost.
    assert not seen(claim, replace(running, restarts=3)).holds
    assert not seen(claim, replace(running, state="PENDING")).holds


def test_a_hold_raced_if_the_job_runs_as_it_was_before() -> None:
    """Only a hold that was not read back counts, on a job that requests the same nodes as then."""
    row = a_queue_row(**HELD, state="RUNNING")
    for state, request, shown, is_raced in (
        (State.HOLDING, OWN, row, True),
        (State.RESTORING, OWN, row, True),
        (State.PINNING, PINNED, replace(row, request=PINNED), True),
        (State.PINNING, OWN, replace(row, request=PINNED), False),
        (State.HELD, OWN, row, False),
        (State.PINNED, OWN, row, False),
        (State.HOLDING, OWN, replace(row, priority=1), False),
        (State.HOLDING, OWN, replace(row, reason="JobHeldAdmin"), False),
    ):
        claim = replace(a_claim(state), replaced=request.nodes)
        kind = read_kind(claim, shown, now_s=1.0, booted_s=0.0, opened_s=0.0)
        after, sent = transition(claim, Event(kind=kind, row=shown))
        assert (sent == (updates.Release(row.key),)) is is_raced
        assert (after == claim) is is_raced


def unanswered(row: QueueRow) -> Claim:
    """Return the claim on a job after a hold without an answer, and a reading of it as in `row`."""
    claim, _ = transition(Claim(), Event(kind=Kind.HOLD, row=row, now_s=RELEASED_S))
    return seen(replace(claim, may_come=1), row)


def test_a_hold_without_an_answer_may_come_late() -> None:
    """Within a minute of a reading without it, and once; it is taken back of a job that runs."""
    claim, running = unanswered(a_queue_row()), a_queue_row(**HELD, state="RUNNING")
    assert not claim.holds
    ours = seen(claim, a_queue_row(**HELD))
    assert (ours.state, ours.may_come) == (State.HELD, 0)
    released, _ = transition(ours, Event(kind=Kind.RELEASE, row=a_queue_row(**HELD)))
    released = seen(released, a_queue_row())
    assert seen(released, a_queue_row(**HELD)).state is State.FOREIGN_HOLD
    assert seen(claim, a_queue_row(), now_s=RELEASED_S + 100) == Claim()
    kind = read_kind(claim, running, now_s=RELEASED_S + 1, booted_s=BOOTED_S, opened_s=0.0)
    assert kind is Kind.RACED
    assert seen(released, running) == released


def test_an_operators_hold_is_never_taken_for_one_that_came_late() -> None:
    """Nor is what is its owner's after it."""
    foreign = seen(unanswered(a_queue_row()), a_queue_row(priority=0, reason="JobHeldAdmin"))
    assert foreign.state is State.FOREIGN_HOLD
    assert seen(foreign, a_queue_row(**HELD)).state is State.FOREIGN_HOLD


def test_a_job_that_kept_its_former_pin_is_known_by_it() -> None:
    """hadard was killed before it cleared the request."""
    former = replace(PINNED, nodes=N2)
    row = a_queue_row(**HELD, request=former)
    claim, _ = transition(
        replace(a_claim(State.RELEASED), pinned=N2), Event(kind=Kind.PIN, row=row, request=PINNED)
    )
    assert (claim.pinned, claim.replaced) == (N1, N2)
    assert seen(claim, row) == replace(claim, state=State.HELD, pinned=N2, replaced=())


# Limits that hadard is killed in the middle of.


def steered(claim: Claim, row: QueueRow, steering: updates.Steer, *, nice: int = 0) -> Claim:
    """Return the claim that is written before a limit is set; Slurm shows `nice`."""
    event = Event(kind=Kind.STEER, row=row, own=OWN, steering=steering, shown={"nice": nice})
    return transition(claim, event)[0]


def limited(row: QueueRow, **limit: object) -> updates.Steer:
    """Return a change of a job's limit."""
    return updates.Steer(row.key, **limit)  # type: ignore[arg-type]


def test_required_nodes_of_an_earlier_version_are_hadards_until_they_are_seen_to_be_gone() -> None:
    """The update that takes them back may not have been made."""
    row = a_queue_row(request=OWN)
    shown = replace(row, request=replace(OWN, nodes=N1))
    claim = Claim(state=State.STEERED, own=OWN, pinned=N1, steered=1)
    doubtful = steered(claim, shown, limited(row, clears_nodes=True))
    assert doubtful.has_changed(shown)
    for kept in (seen(doubtful, shown), seen(doubtful, shown, now_s=RELEASED_S + 1e4)):
        assert (kept.pinned, kept.steered, kept.replaced) == (N1, 1, ())
        assert kept.has_changed(shown)
    assert not seen(doubtful, row).has_changed(row)
    # Nodes that hadard has named long ago may be the owner's choice.
    assert not seen(doubtful, row).has_changed(shown)


def test_a_nice_value_in_doubt_is_not_taken_for_the_owners() -> None:
    """Slurm may show the one before or the new one; any third one is the owner's."""
    row = a_queue_row(request=OWN)
    raised = steered(Claim(), row, limited(row, nice=-90), nice=10)
    done = Event(kind=Kind.DONE, row=row, steering=limited(row, nice=-90))
    raised, _ = transition(raised, done)
    assert [raised.nice.owner_of(nice) for nice in (-90, 10, 7)] == [10, 10, 7]
    doubtful = steered(raised, row, limited(row, nice=10), nice=-90)
    assert [doubtful.nice.owner_of(nice) for nice in (-90, 10, 7)] == [10, 10, 7]
    assert doubtful.steers
    settled, _ = transition(
        doubtful, Event(kind=Kind.DONE, row=row, steering=limited(row, nice=10))
    )
    assert not settled.steers


def test_nodes_excluded_before_are_remembered_until_slurm_has_answered() -> None:
    row = a_queue_row(request=OWN)
    claim, opened = steered(Claim(), row, limited(row, excluded=N1)), limited(row)
    doubtful = steered(claim, row, opened)
    assert doubtful.has_changed(row)
    assert [doubtful.excluded_by_owner(nodes) for nodes in (N1, (), N2)] == [(), (), N2]
    settled, _ = transition(doubtful, Event(kind=Kind.DONE, row=row, steering=opened))
    assert not settled.has_changed(row)


def test_a_requeue_by_hadard_is_remembered_until_another() -> None:
    """Only jobs that hadard has requeued begin at once when they are restored."""
    row = a_queue_row(state="RUNNING", restarts=1)
    claim, _ = transition(a_claim(State.PLACED), Event(kind=Kind.REQUEUE, row=row))
    for shown in (HELD, {}):
        claim = seen(claim, a_queue_row(restarts=2, submitted_s=5000.0, **shown))
    for restarts, begins_in_s in ((2, 1), (3, updates.REQUEUE_DELAY_S - 100)):
        pending = a_queue_row(restarts=restarts, submitted_s=5000.0)
        event = Event(kind=Kind.RESTORE, row=pending, request=OWN, now_s=5100.0)
        *_, asked = transition(claim, event)[1]
        assert isinstance(asked, updates.SetRequest)
        assert asked.begins_in_s == begins_in_s
