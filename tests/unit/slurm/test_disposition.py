"""Whose a job is: users' own choices win, and none of ours keeps a job that is not ours waiting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.updates import Request
from hadar_slurm.slurm.control.disposition import (
    Disposition,
    disposition_of,
    is_held_by_us,
    is_held_while_starting,
    is_pinned_by_us,
)
from hadar_slurm.slurm.control.ledger import FILE_NAME, Claim, Ledger
from hadar_slurm.slurm.control.modes import Mode

JOB = JobId("7")
OWN = Request(per_job="gres/gpu:2")
PINNED = Request(num_nodes="1-1", per_node="gres/gpu:2", nodes=(NodeName("n1"),))
HELD_FOR_US = Description(steps=5, gpus=2, throughputs={"v100": 1.0}, is_held=True)
HELD = {"priority": 0, "reason": "JobHeldUser"}


def a_row(**given: object) -> QueueRow:
    """Return a pending job that is neither held nor pinned."""
    row = QueueRow(
        key=JOB,
        raw_id="7",
        state="PENDING",
        reason="None",
        user_id=1000,
        user="alice",
        partition="main",
        priority=100,
        dependency="",
        nodes=(),
        request=OWN,
        gpus_per_node=(),
        gpus_otherwise=(("gpu", 2),),
        restarts=0,
        submitted_s=1.0,
        started_s=0.0,
        ended_s=0.0,
        is_set_apart=False,
        comment="",
    )
    return replace(row, **given)  # type: ignore[arg-type]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Give a ledger that is whole and has no entries."""
    ledger = Ledger(tmp_path / FILE_NAME)
    ledger.adopt({})
    return ledger


def seen(
    row: QueueRow,
    ledger: Ledger,
    *,
    mode: Mode = Mode.ENFORCE,
    plans_for: Mode = Mode.ENFORCE,
    fits: bool = True,
    **description: bool,
) -> Disposition:
    """Return the disposition of a described job."""
    return disposition_of(
        row,
        Description(steps=5, gpus=2, throughputs={"v100": 1.0}, **description),  # type: ignore[arg-type]
        ledger,
        mode=mode,
        plans_for=plans_for,
        fits=fits,
    )


def test_a_job_held_for_us_is_placed(ledger: Ledger) -> None:
    """By hadar-sbatch at submission, or by hadard."""
    assert seen(a_row(**HELD), ledger, is_held=True) is Disposition.MANAGE
    ledger.note({JOB: Claim(is_held=True)})
    assert seen(a_row(**HELD), ledger) is Disposition.MANAGE


def test_a_users_own_hold_is_kept(ledger: Ledger) -> None:
    """At submission, or later on a job that we had released, whatever we did to it before."""
    assert seen(a_row(**HELD), ledger) is Disposition.IGNORE
    ledger.note({JOB: Claim(before=OWN, pinned=PINNED.nodes)})
    assert seen(a_row(**HELD, request=PINNED), ledger, is_held=True) is Disposition.IGNORE


def test_what_slurm_holds_since_it_cannot_start_on_our_pin_is_ours(ledger: Ledger) -> None:
    """Nobody else would release it."""
    ledger.note({JOB: Claim(before=OWN, pinned=PINNED.nodes)})
    row = a_row(priority=0, reason="BadConstraints", request=PINNED)
    assert seen(row, ledger) is Disposition.MANAGE


def test_a_pinned_job_that_was_released_is_ours_until_it_starts(ledger: Ledger) -> None:
    """And one that asks for nodes of its owner's choice never is."""
    assert seen(a_row(request=PINNED), ledger) is Disposition.IGNORE
    ledger.note({JOB: Claim(before=OWN, pinned=PINNED.nodes)})
    assert seen(a_row(request=PINNED), ledger) is Disposition.MANAGE


def test_a_free_job_is_slurms_to_start(ledger: Ledger) -> None:
    """It was released by its user, or submitted when no hadard was; once it runs it may move."""
    assert seen(a_row(), ledger) is Disposition.IGNORE
    assert seen(a_row(state="RUNNING"), ledger) is Disposition.MANAGE


@pytest.mark.parametrize(
    "choice",
    [
        {"leaves": True},
        {"fits": False},
        {"mode": Mode.OBSERVE},
        {"mode": Mode.ADVISE},
    ],
    ids=str,
)
def test_what_is_not_ours_to_place_goes_back_if_we_hold_or_pin_it(
    ledger: Ledger, choice: dict[str, object]
) -> None:
    """And is left as it is otherwise: free, running, or held by its owner."""
    free, running = a_row(), a_row(state="RUNNING")
    assert seen(free, ledger, **choice) is Disposition.IGNORE  # type: ignore[arg-type]
    assert seen(running, ledger, **choice) is Disposition.IGNORE  # type: ignore[arg-type]
    assert seen(a_row(**HELD), ledger, **choice) is Disposition.IGNORE  # type: ignore[arg-type]
    ledger.note({JOB: Claim(is_held=True, before=OWN, pinned=PINNED.nodes)})
    for row in (a_row(**HELD), a_row(request=PINNED)):
        assert seen(row, ledger, **choice) is Disposition.RESTORE  # type: ignore[arg-type]


def test_a_job_set_apart_goes_back(ledger: Ledger) -> None:
    """Its owner made a reservation for it after it was submitted."""
    row = a_row(**HELD, is_set_apart=True)
    assert seen(row, ledger, is_held=True) is Disposition.RESTORE


def test_a_job_whose_owner_names_nodes_goes_back(ledger: Ledger) -> None:
    """The nodes are no pin of ours, and the hold is."""
    row = a_row(**HELD, request=replace(OWN, nodes=(NodeName("n3"),)))
    assert seen(row, ledger, is_held=True) is Disposition.RESTORE


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ADVISE])
def test_plans_of_other_modes_are_made_for_their_own_jobs(ledger: Ledger, mode: Mode) -> None:
    """A free job of their partition; none of another mode's, and none that anybody holds."""
    assert seen(a_row(), ledger, mode=mode, plans_for=mode) is Disposition.MANAGE
    assert seen(a_row(state="RUNNING"), ledger, mode=mode, plans_for=mode) is Disposition.MANAGE
    assert seen(a_row(**HELD), ledger, mode=mode, plans_for=mode) is Disposition.IGNORE
    assert seen(a_row(), ledger, plans_for=mode) is Disposition.IGNORE
    assert seen(a_row(**HELD), ledger, plans_for=mode, is_held=True) is Disposition.IGNORE


def test_without_a_ledger_a_job_that_may_have_been_ours_is(tmp_path: Path) -> None:
    """One that ran before or is pinned; a first hold without our mark is its user's."""
    unknown = Ledger(tmp_path / FILE_NAME)
    assert not is_held_by_us(a_row(**HELD), None, unknown)
    assert is_held_by_us(a_row(**HELD), HELD_FOR_US, unknown)
    assert is_held_by_us(a_row(**HELD, restarts=1), None, unknown)
    assert is_held_by_us(a_row(**HELD, request=PINNED), None, unknown)
    assert is_pinned_by_us(a_row(request=PINNED), unknown)
    assert not is_pinned_by_us(a_row(), unknown)


def test_an_operators_hold_is_never_ours(ledger: Ledger) -> None:
    """Whatever the ledger says."""
    ledger.note({JOB: Claim(is_held=True)})
    row = a_row(priority=0, reason="JobHeldAdmin")
    assert not is_held_by_us(row, HELD_FOR_US, ledger)
    assert seen(row, ledger, is_held=True) is Disposition.IGNORE


def test_nodes_that_its_owner_names_after_a_pin_are_the_owners(ledger: Ledger) -> None:
    """A pin is ours only where the nodes are those that we chose."""
    ledger.note({JOB: Claim(before=OWN, pinned=(NodeName("n2"),))})
    row = a_row(request=PINNED, restarts=1)
    assert seen(row, ledger) is Disposition.IGNORE


@pytest.mark.parametrize("hold", [HELD, {"priority": 0, "reason": "JobHeldAdmin"}], ids=str)
def test_under_anothers_hold_a_pin_goes_back_where_the_job_is_not_ours_to_place(
    ledger: Ledger, hold: dict[str, object]
) -> None:
    """Where it is, it stays: released, the job is placed anew."""
    ledger.note({JOB: Claim(before=OWN, pinned=PINNED.nodes)})
    row = a_row(request=PINNED, **hold)
    assert seen(row, ledger) is Disposition.IGNORE
    assert seen(row, ledger, leaves=True) is Disposition.RESTORE
    assert seen(row, ledger, mode=Mode.OBSERVE) is Disposition.RESTORE


def test_a_request_cut_in_two_goes_back_under_anothers_hold(ledger: Ledger) -> None:
    """Released, the job would start without its GPUs."""
    ledger.note({JOB: Claim(before=OWN)})
    assert seen(a_row(**HELD, request=Request()), ledger) is Disposition.RESTORE
    assert seen(a_row(**HELD), ledger) is Disposition.IGNORE


def test_a_job_that_is_held_as_it_runs_is_not_moved(ledger: Ledger) -> None:
    """Its owner's hold would be gone."""
    assert (
        seen(a_row(state="RUNNING", priority=0, reason="JobHeldUser"), ledger) is Disposition.IGNORE
    )


def test_a_hold_has_landed_if_the_job_started_as_it_was_before(ledger: Ledger) -> None:
    """With other nodes it was released after the hold; without a hold of ours under way, never."""
    row = a_row(state="RUNNING", priority=0, reason="JobHeldUser")
    coming = Claim(is_held=True, asked_when_held=())
    assert is_held_while_starting(row, coming)
    assert is_held_while_starting(
        replace(row, request=PINNED), replace(coming, asked_when_held=PINNED.nodes)
    )
    assert not is_held_while_starting(replace(row, request=PINNED), coming)
    assert not is_held_while_starting(row, replace(coming, asked_when_held=None))
    assert not is_held_while_starting(row, replace(coming, is_held=False))
    assert not is_held_while_starting(replace(row, priority=1), coming)
    assert not is_held_while_starting(replace(row, reason="JobHeldAdmin"), coming)
    assert not is_held_while_starting(replace(row, state="PENDING"), coming)
