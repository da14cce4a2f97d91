"""When mode `hold` leaves the queue to Slurm: while jobs that hadard does not hold wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from builders import a_queue_row
from fakes.fake_slurm import FakeSlurm
from fakes.fake_tools import FakeRunner

from hadar_slurm.engine.loan import Loan
from hadar_slurm.engine.modes import Mode, Modes
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.enforce.claim import Claim, State
from hadar_slurm.slurm.enforce.disposition import (
    is_outside,
    jobs_beside_held,
    must_steer,
    waits_for_gpus,
)

OF_HADARD = Description(steps=5, gpus=2, throughputs={"v100": 1.0}, is_held=True)
AT_WORK = Description(steps=5, gpus=2, throughputs={"v100": 1.0})
LEFT = Description(steps=5, gpus=2, throughputs={"v100": 1.0}, is_held=True, leaves=True)
HELD = {"priority": 0, "reason": "JobHeldUser"}
OURS = Claim(state=State.HELD)
GPUS = {"gpus_otherwise": (("gpu", 2),)}
Job = tuple[QueueRow, Description | None, Claim]


def a_job(
    description: Description | None = None, claim: Claim | None = None, **changes: object
) -> Job:
    """Return a job that asks for GPUs, by default a plain one that waits."""
    return a_queue_row(**{**GPUS, **changes}), description, claim or Claim()


def shared(*jobs: Job) -> bool:
    """Return whether Slurm has to keep the queue of these jobs."""
    known = {id(row): (description, claim) for row, description, claim in jobs}
    return must_steer([row for row, _, _ in jobs], lambda row: is_outside(*known[id(row)]))


@pytest.mark.parametrize(
    ("job", "is_shared"),
    [
        (a_job(), True),
        (a_job(gpus_otherwise=()), False),
        (a_job(**HELD), False),
        (a_job(state="RUNNING"), False),
        (a_job(reason="Dependency"), False),
        (a_job(OF_HADARD, OURS, **HELD), False),
        # hadard has released it to start on its nodes; its owner has released it.
        (a_job(OF_HADARD, Claim(state=State.RELEASED, pinned=("n1",))), False),
        (a_job(OF_HADARD, Claim(state=State.RELEASED)), False),
        # Submitted while no hadard was at work; set aside by its owner.
        (a_job(AT_WORK), True),
        (a_job(LEFT), True),
        # Steered before: until it starts.
        (a_job(OF_HADARD, Claim(state=State.RELEASED, pinned=("n1",), steered=1)), True),
        (a_job(OF_HADARD, Claim(state=State.RELEASED, excluded=Loan(("n2",), (), ()))), True),
    ],
)
def test_jobs_that_wait_in_slurms_queue_count(job: Job, is_shared: bool) -> None:
    assert shared(a_job(OF_HADARD, OURS, **HELD), job) is is_shared


def test_jobs_of_several_qos_are_ordered_by_slurm() -> None:
    """A held job of a higher QOS could neither go first nor preempt."""
    running = a_job(qos="normal", state="RUNNING")
    for qos, is_shared in (("normal", False), ("high", True)):
        assert shared(running, a_job(OF_HADARD, OURS, qos=qos, **HELD)) is is_shared
    assert not shared(running, a_job(qos="high", gpus_otherwise=()))


def test_a_job_waits_for_gpus_unless_something_else_keeps_it() -> None:
    assert waits_for_gpus(a_queue_row(**GPUS))
    assert waits_for_gpus(a_queue_row(**GPUS, reason="Priority"))
    assert not waits_for_gpus(a_queue_row(**GPUS, reason="BeginTime"))


def test_only_jobs_on_nodes_of_a_partition_of_mode_hold_count() -> None:
    """A job elsewhere, or one that has ended, leaves these nodes alone."""
    slurm = FakeSlurm("v100:4,v100:4,p100:4")
    for node, partitions in zip(slurm.nodes.values(), (("a",), ("a", "b"), ("c",)), strict=True):
        node.partitions = partitions
    state = CommandLine(FakeRunner(slurm=slurm)).read()
    rows = [
        a_queue_row(key=name, partition=name[0], state="PENDING" if len(name) == 1 else "COMPLETED")
        for name in ("a", "b", "c", "a ended")
    ]
    state = replace(state, queue={row.key: row for row in rows})
    seen = jobs_beside_held(state, Modes(Mode.STEER, {"a": Mode.HOLD}))
    assert [row.key for row in seen] == ["a", "b"]
