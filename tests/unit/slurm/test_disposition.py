"""Users' own choices win, and no unmanaged job stays held or pinned by hadard."""

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
    """Return a complete ledger without entries."""
    ledger = Ledger(tmp_path / FILE_NAME)
    ledger.adopt({})
    return ledger


def seen(
    row: QueueRow,
    ledger: Ledger,
    *,
    mode: Mode = Mode.ENFORCE,
    plans_for: Mode = Mode.ENFORCE,
    is_placeable: bool = True,
    **description: bool,
) -> Disposition:
    """Return the disposition of a described job."""
    return disposition_of(
        row,
        Description(steps=5, gpus=2, throughputs={"v100": 1.0}, **description),  # type: ignore[arg-type]
        ledger,
        mode=mode,
        plans_for=plans_for,
        is_placeable=is_placeable,
    )


def test_a_job_held_for_us_is_placed(ledger: Ledger) -> None:
    """A job that hadar-sbatch or hadard has put on hold is managed."""
    assert seen(a_row(**HELD), ledger, is_held=True) is Disposition.MANAGE
    ledger.note({JOB: Claim(is_held=True)})
    assert seen(a_row(**HELD), ledger) is Disposition.MANAGE


def test_a_users_own_hold_is_kept(ledger: Ledger) -> None:
    """A user's hold, set at submission or after hadard's release, leaves the job unmanaged."""
    assert seen(a_row(**HELD), ledger) is Disposition.IGNORE
    ledger.note({JOB: Claim(before=OWN, pinned=PINNED.nodes)})
    assert seen(a_row(**HELD, request=PINNED), ledger, is_held=True) is Disposition.IGNORE


def test_what_slurm_holds_since_it_cannot_start_on_our_pin_is_ours(ledger: Ledger) -> None:
    """Slurm holds a job that cannot start on its pin, and only hadard can release it."""
    ledger.note({JOB: Claim(before=OWN, pinned=PINNED.nodes)})
    row = a_row(priority=0, reason="BadConstraints", request=PINNED)
    assert seen(row, ledger) is Disposition.MANAGE


def test_a_pinned_job_that_was_released_is_ours_until_it_starts(ledger: Ledger) -> None:
    """A job on nodes that hadard chose stays managed; one on its owner's nodes is unmanaged."""
    assert seen(a_row(request=PINNED), ledger) is Disposition.IGNORE
    ledger.note({JOB: Claim(before=OWN, pinned=PINNED.nodes)})
    assert seen(a_row(request=PINNED), ledger) is Disposition.MANAGE


def test_a_free_job_is_slurms_to_start(ledger: Ledger) -> None:
    """A pending job without a hold is unmanaged; once it runs, it may be migrated."""
    assert seen(a_row(), ledger) is Disposition.IGNORE
    assert seen(a_row(state="RUNNING"), ledger) is Disposition.MANAGE


@pytest.mark.parametrize(
    "choice",
    [
        {"leaves": True},
        {"is_placeable": False},
        {"mode": Mode.OBSERVE},
        {"mode": Mode.ADVISE},
    ],
    ids=str,
)
def test_what_is_not_ours_to_place_goes_back_if_we_hold_or_pin_it(
    ledger: Ledger, choice: dict[str, object]
) -> None:
    """A job that must not be managed is restored if hadard holds or pins it, else unchanged."""
    free, running = a_row(), a_row(state="RUNNING")
    assert seen(free, ledger, **choice) is Disposition.IGNORE  # type: ignore[arg-type]
    assert seen(running, ledger, **choice) is Disposition.IGNORE  # type: ignore[arg-type]
    assert seen(a_row(**HELD), ledger, **choice) is Disposition.IGNORE  # type: ignore[arg-type]
    ledger.note({JOB: Claim(is_held=True, before=OWN, pinned=PINNED.nodes)})
    for row in (a_row(**HELD), a_row(request=PINNED)):
        assert seen(row, ledger, **choice) is Disposition.RESTORE  # type: ignore[arg-type]


def test_a_job_set_apart_goes_back(ledger: Ledger) -> None:
    """The job's owner moved it into a reservation after submission."""
    row = a_row(**HELD, is_set_apart=True)
    assert seen(row, ledger, is_held=True) is Disposition.RESTORE


def test_a_job_whose_owner_names_nodes_goes_back(ledger: Ledger) -> None:
    """The owner named the nodes, but hadard set the hold."""
    row = a_row(**HELD, request=replace(OWN, nodes=(NodeName("n3"),)))
    assert seen(row, ledger, is_held=True) is Disposition.RESTORE


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ADVISE])
def test_plans_of_other_modes_are_made_for_their_own_jobs(ledger: Ledger, mode: Mode) -> None:
    """Plans of other modes include only jobs of their own mode that are not held."""
    assert seen(a_row(), ledger, mode=mode, plans_for=mode) is Disposition.MANAGE
    assert seen(a_row(state="RUNNING"), ledger, mode=mode, plans_for=mode) is Disposition.MANAGE
    assert seen(a_row(**HELD), ledger, mode=mode, plans_for=mode) is Disposition.IGNORE
    assert seen(a_row(), ledger, plans_for=mode) is Disposition.IGNORE
    assert seen(a_row(**HELD), ledger, plans_for=mode, is_held=True) is Disposition.IGNORE


def test_without_a_ledger_a_job_that_may_have_been_ours_is(tmp_path: Path) -> None:
    """Jobs that ran before or are pinned count as hadard's; another unmarked hold is the user's."""
    unknown = Ledger(tmp_path / FILE_NAME)
    assert not is_held_by_us(a_row(**HELD), None, unknown)
    assert is_held_by_us(a_row(**HELD), HELD_FOR_US, unknown)
    assert is_held_by_us(a_row(**HELD, restarts=1), None, unknown)
    assert is_held_by_us(a_row(**HELD, request=PINNED), None, unknown)
    assert is_pinned_by_us(a_row(request=PINNED), unknown)
    assert not is_pinned_by_us(a_row(), unknown)


def test_an_operators_hold_is_never_ours(ledger: Ledger) -> None:
    """The ledger may say otherwise."""
    ledger.note({JOB: Claim(is_held=True)})
    row = a_row(priority=0, reason="JobHeldAdmin")
    assert not is_held_by_us(row, HELD_FOR_US, ledger)
    assert seen(row, ledger, is_held=True) is Disposition.IGNORE


def test_nodes_that_its_owner_names_after_a_pin_are_the_owners(ledger: Ledger) -> None:
    """A pin counts as hadard's only if its nodes are those that hadard chose."""
    ledger.note({JOB: Claim(before=OWN, pinned=(NodeName("n2"),))})
    row = a_row(request=PINNED, restarts=1)
    assert seen(row, ledger) is Disposition.IGNORE


@pytest.mark.parametrize("hold", [HELD, {"priority": 0, "reason": "JobHeldAdmin"}], ids=str)
def test_under_anothers_hold_a_pin_goes_back_where_the_job_is_not_ours_to_place(
    ledger: Ledger, hold: dict[str, object]
) -> None:
    """A job that is still managed keeps its pin: it is placed again after its release."""
    ledger.note({JOB: Claim(before=OWN, pinned=PINNED.nodes)})
    row = a_row(request=PINNED, **hold)
    assert seen(row, ledger) is Disposition.IGNORE
    assert seen(row, ledger, leaves=True) is Disposition.RESTORE
    assert seen(row, ledger, mode=Mode.OBSERVE) is Disposition.RESTORE


def test_a_request_cut_in_two_goes_back_under_anothers_hold(ledger: Ledger) -> None:
    """If it were released, the job would start without its GPUs."""
    ledger.note({JOB: Claim(before=OWN)})
    assert seen(a_row(**HELD, request=Request()), ledger) is Disposition.RESTORE
    assert seen(a_row(**HELD), ledger) is Disposition.IGNORE


def test_a_job_that_is_held_as_it_runs_is_not_moved(ledger: Ledger) -> None:
    """A requeue would remove the owner's hold."""
    assert (
        seen(a_row(state="RUNNING", priority=0, reason="JobHeldUser"), ledger) is Disposition.IGNORE
    )


def test_a_hold_has_landed_if_the_job_started_as_it_was_before(ledger: Ledger) -> None:
    """Only an unreleased hold of hadard counts, on a job that requests the same nodes as then."""
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
