"""The status shows the contents of the last round's lines."""

from __future__ import annotations

from dataclasses import asdict, replace

from builders import a_cluster, a_job, a_plan, a_snapshot

from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.plan import WaitReason
from hadar_slurm.core.snapshot import Round
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.journal import Line, as_line
from hadar_slurm.status.status import TypeUse, json_names, status_of

NODES = a_cluster("2xV100,2xV100+2xK80,1xP100", closed=["n3"])


def a_line(
    *jobs: Job, time_s: float, occupied: str = "", mode: str = "", waits: str = "", index: int = 4
) -> Line:
    """Return a round's line; the jobs in `waits` wait for room."""
    snapshot = a_snapshot(NODES, *jobs, now_s=time_s, occupied=occupied)
    plan = a_plan({}, {name: WaitReason.INSUFFICIENT for name in waits.split()})
    plan = replace(plan, figures=(("price.V100", 0.25), ("value", 3.0)))
    record = RoundRecord(
        Round(index, time_s, 360.0), "round end", "hadar", snapshot, plan, (), {"plan": 0.5}
    )
    return as_line(record) | ({"mode": mode} if mode else {})


def test_nothing_is_known_without_a_line() -> None:
    assert status_of([]) is None


def test_gpus_are_counted_by_who_has_them() -> None:
    """The free GPU of a closed node counts as closed."""
    runs = a_job("1", 2, on="n1:V100:2")
    found = status_of([a_line(runs, time_s=720.0, occupied="n2:K80:1")])
    assert found is not None
    assert found.gpus == {
        "K80": TypeUse(2, 0, 1, 1, 0),
        "P100": TypeUse(1, 0, 0, 0, 1),
        "V100": TypeUse(4, 2, 0, 2, 0),
    }


def test_jobs_are_counted_by_phase_and_reason() -> None:
    jobs = [a_job("1", on="n1:V100:1"), a_job("2"), a_job("3")]
    stops = a_job("4", on="n1:V100:1", phase=Phase.STOPPING)
    found = status_of([a_line(*jobs, stops, time_s=1.0, waits="2 3")])
    assert found is not None
    assert found.jobs == {"queued": 2, "running": 1, "stopping": 1}
    assert found.waiting == {str(WaitReason.INSUFFICIENT): 2}
    assert found.prices == {"V100": 0.25}
    assert (found.took_s, found.policy, found.round) == (0.5, "hadar", 4)


def test_remarks_are_counted() -> None:
    """Remarks are counted, except those on pinned jobs, which are all different."""
    told = "not migrated: it has not said in this run that it listens for USR1"
    jobs = [replace(a_job(name, on="n1:V100:1"), remarks=(told,)) for name in "12"]
    pinned = replace(
        a_job("3", on="n2:V100:1", phase=Phase.STARTING),
        remarks=("pinned to n2, pending in Slurm: Resources",),
        is_pinned=True,
    )
    found = status_of([a_line(*jobs, pinned, time_s=1.0)])
    assert found is not None
    assert found.remarks == {told: 2}
    assert found.jobs == {"pinned": 1, "running": 2}


def test_several_modes_make_one_picture() -> None:
    """GPUs occupied by another mode's job count as managed."""
    first, second = a_job("1", 2, on="n1:V100:2"), a_job("2", 2, on="n2:K80:2")
    lines = [
        a_line(first, time_s=100.0, occupied="n2:K80:2", mode="hold"),
        a_line(second, time_s=101.0, occupied="n1:V100:2", mode="observe", index=0),
    ]
    found = status_of(lines)
    assert found is not None
    assert found.modes == ("hold", "observe")
    assert found.gpus["K80"] == TypeUse(2, 2, 0, 0, 0)
    assert found.gpus["V100"] == TypeUse(4, 2, 0, 2, 0)
    assert found.jobs == {"running": 2}
    assert (found.round, found.time_s) == (4, 101.0)


def test_managed_gpus_keep_their_name_in_json() -> None:
    tree = asdict(TypeUse(4, 2, 0, 2, 0), dict_factory=json_names)
    assert tree == {"total": 4, "ours": 2, "others": 0, "free": 2, "closed": 0}


def test_a_mode_that_is_no_longer_in_use_is_not_told() -> None:
    lines = [
        a_line(a_job("9"), time_s=100.0, mode="observe"),
        a_line(time_s=1000.0, mode="hold"),
        a_line(time_s=1360.0, mode="hold"),
    ]
    found = status_of(lines)
    assert found is not None
    assert found.modes == ("hold",)
    assert found.jobs == {}


def test_a_round_that_saw_nothing_is_told_with_its_fault() -> None:
    record = RoundRecord(Round(0, 5.0, 360.0), "start", "p", errors=("squeue is not installed",))
    found = status_of([as_line(record)])
    assert found is not None
    assert found.errors == ("squeue is not installed",)
    assert found.gpus == {}
