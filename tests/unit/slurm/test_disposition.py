"""Users' own choices win, and no unmanaged job stays held or pinned by hadard."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import a_queue_row

from hadar_slurm.core.cluster import NodeName
from hadar_slurm.engine.modes import Mode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.enforce.claim import Claim, State
from hadar_slurm.slurm.enforce.disposition import Disposition, disposition_of

OWN = Request(per_job="gres/gpu:2")
PINNED = Request(num_nodes="1-1", per_node="gres/gpu:2", nodes=(NodeName("n1"),))
HELD = {"priority": 0, "reason": "JobHeldUser"}
NOTHING, OURS = Claim(), Claim(state=State.HELD)
RELEASED = Claim(state=State.RELEASED, own=OWN, pinned=PINNED.nodes)
FOREIGN = replace(RELEASED, state=State.FOREIGN_HOLD)


def seen(
    row: QueueRow,
    claim: Claim = NOTHING,
    *,
    mode: Mode = Mode.HOLD,
    plans_for: Mode = Mode.HOLD,
    is_placeable: bool = True,
    leaves: bool = False,
) -> Disposition:
    """Return the disposition of a described job."""
    return disposition_of(
        row,
        Description(steps=5, gpus=2, throughputs={"v100": 1.0}, leaves=leaves),
        claim,
        mode=mode,
        is_planned_here=mode is plans_for,
        is_placeable=is_placeable,
    )


def test_a_job_held_for_us_is_placed() -> None:
    """A job that hadar-sbatch or hadard has put on hold is managed."""
    assert seen(a_queue_row(**HELD), OURS) is Disposition.MANAGE


def test_a_users_own_hold_is_kept() -> None:
    """A user's hold, set at submission or after hadard's release, leaves the job unmanaged."""
    assert seen(a_queue_row(**HELD)) is Disposition.IGNORE
    assert seen(a_queue_row(**HELD, request=PINNED), FOREIGN) is Disposition.IGNORE


def test_a_pinned_job_that_was_released_is_ours_until_it_starts() -> None:
    """A job on nodes that hadard chose stays managed; one on its owner's nodes is unmanaged."""
    assert seen(a_queue_row(request=PINNED)) is Disposition.IGNORE
    assert seen(a_queue_row(request=PINNED), RELEASED) is Disposition.MANAGE


def test_a_free_job_is_slurms_to_start() -> None:
    """A pending job without a hold is unmanaged; once it runs, it may be migrated."""
    assert seen(a_queue_row()) is Disposition.IGNORE
    assert seen(a_queue_row(state="RUNNING")) is Disposition.MANAGE


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
    choice: dict[str, object],
) -> None:
    """A job that must not be managed is restored if hadard holds or pins it, else unchanged."""
    free, running = a_queue_row(), a_queue_row(state="RUNNING")
    assert seen(free, **choice) is Disposition.IGNORE  # type: ignore[arg-type]
    assert seen(running, **choice) is Disposition.IGNORE  # type: ignore[arg-type]
    assert seen(a_queue_row(**HELD), **choice) is Disposition.IGNORE  # type: ignore[arg-type]
    for row, claim in ((a_queue_row(**HELD), OURS), (a_queue_row(request=PINNED), RELEASED)):
        assert seen(row, claim, **choice) is Disposition.RESTORE  # type: ignore[arg-type]


def test_a_job_set_apart_goes_back() -> None:
    """The job's owner moved it into a reservation after submission."""
    assert seen(a_queue_row(**HELD, is_set_apart=True), OURS) is Disposition.RESTORE


def test_a_job_whose_owner_names_nodes_goes_back() -> None:
    """The owner named the nodes, but hadard set the hold."""
    row = a_queue_row(**HELD, request=replace(OWN, nodes=(NodeName("n3"),)))
    assert seen(row, OURS) is Disposition.RESTORE


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ADVISE])
def test_plans_of_other_modes_are_made_for_their_own_jobs(mode: Mode) -> None:
    """Plans of other modes include only jobs of their own mode that are not held."""
    running = a_queue_row(state="RUNNING")
    assert seen(a_queue_row(), mode=mode, plans_for=mode) is Disposition.MANAGE
    assert seen(running, mode=mode, plans_for=mode) is Disposition.MANAGE
    assert seen(a_queue_row(**HELD), mode=mode, plans_for=mode) is Disposition.IGNORE
    assert seen(a_queue_row(), plans_for=mode) is Disposition.IGNORE
    assert seen(a_queue_row(**HELD), OURS, plans_for=mode) is Disposition.IGNORE


def test_an_operators_hold_is_never_ours() -> None:
    """A job that hadard held before is left to the operator."""
    row = a_queue_row(priority=0, reason="JobHeldAdmin")
    assert seen(row, Claim(state=State.FOREIGN_HOLD)) is Disposition.IGNORE


def test_nodes_that_its_owner_names_after_a_pin_are_the_owners() -> None:
    """A pin counts as hadard's only if its nodes are those that hadard chose."""
    claim = replace(RELEASED, pinned=(NodeName("n2"),))
    assert seen(a_queue_row(request=PINNED, restarts=1), claim) is Disposition.IGNORE


@pytest.mark.parametrize("hold", [HELD, {"priority": 0, "reason": "JobHeldAdmin"}], ids=str)
def test_under_anothers_hold_a_pin_goes_back_where_the_job_is_not_ours_to_place(
    hold: dict[str, object],
) -> None:
    """A job that is still managed keeps its pin: it is placed again after its release."""
    row = a_queue_row(request=PINNED, **hold)
    assert seen(row, FOREIGN) is Disposition.IGNORE
    assert seen(row, FOREIGN, leaves=True) is Disposition.RESTORE
    assert seen(row, FOREIGN, mode=Mode.OBSERVE) is Disposition.RESTORE


def test_a_request_cut_in_two_goes_back_under_anothers_hold() -> None:
    """If it were released, the job would start without its GPUs."""
    assert seen(a_queue_row(**HELD, request=Request()), FOREIGN) is Disposition.RESTORE
    assert seen(a_queue_row(**HELD), FOREIGN) is Disposition.IGNORE


def test_a_job_that_is_held_as_it_runs_is_not_moved() -> None:
    """A requeue would remove the owner's hold."""
    row = a_queue_row(state="RUNNING", priority=0, reason="JobHeldUser")
    assert seen(row) is Disposition.IGNORE
