"""Policy hlas: attained service normalised by speed, GPU types by comparative advantage."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from builders import ROUND, a_job, a_snapshot, placed_by, some_rates
from hypothesis import given
from hypothesis import strategies as st
from strategies import snapshots

from hadar_slurm.core.cluster import Cluster, GpuType, Node, Slot
from hadar_slurm.core.gang import Allocation, Gang
from hadar_slurm.core.job import Job, Progress
from hadar_slurm.core.snapshot import Snapshot
from hadar_slurm.lab.policies.hlas import Hlas
from hadar_slurm.lab.policies.lengths import normalised_service
from hadar_slurm.lab.policies.tiresias import Tiresias


def test_service_counts_by_how_fast_it_was() -> None:
    """1,000 GPU-s on a V100 at 10 steps/s and 2,000 on a K80 at 1: 1,000 + 2,000 x 0.1 = 1,200."""
    job = a_job("1")
    service = ((GpuType("K80"), 2000.0), (GpuType("V100"), 1000.0))
    job = replace(job, progress=Progress(0.0, 0, service))
    gpu_types = (GpuType("K80"), GpuType("P100"), GpuType("V100"))
    assert normalised_service(job, gpu_types) == 1200.0


def test_service_on_a_slow_type_does_not_cost_a_job_its_queue() -> None:
    """4,000 GPU-s on a K80 count 400: the job stays in the first queue, before one with 3,250."""
    slow = replace(
        a_job("2", submitted_s=9.0), progress=Progress(0.0, 0, ((GpuType("K80"), 4000.0),))
    )
    fast = a_job("1", submitted_s=1.0, service_gpu_s=3250.0)
    plan = Hlas().plan(a_snapshot("1xV100", slow, fast), ROUND)
    assert placed_by(plan) == {"2": "n1:V100:1"}


def test_a_type_goes_to_whom_it_suits_best() -> None:
    """Advantage on a V100: 10/5 = 2 for job 1, 6/5 = 1.2 for job 2, which arrived first.

    Job 1 has speeds (10, 4, 1), mean 5; job 2 (6, 5, 4), mean 5. On the P100 it is 0.8 against 1.
    """
    jobs = [
        a_job("1", submitted_s=2.0),
        a_job("2", submitted_s=1.0, throughputs=some_rates(V100=6.0, P100=5.0, K80=4.0)),
    ]
    plan = Hlas().plan(a_snapshot("1xV100,1xP100,1xK80", *jobs), ROUND)
    assert placed_by(plan) == {"1": "n1:V100:1", "2": "n2:P100:1"}


def test_a_job_that_runs_nowhere_else_has_the_greatest_advantage() -> None:
    """Speeds of 0 count in the mean: the advantage on the V100 is 3, against 2."""
    only = a_job("2", submitted_s=2.0, throughputs=some_rates(V100=1.0))
    plan = Hlas().plan(a_snapshot("1xV100,1xP100,1xK80", a_job("1", submitted_s=1.0), only), ROUND)
    assert placed_by(plan) == {"1": "n2:P100:1", "2": "n1:V100:1"}


def test_a_lower_queue_waits_whatever_its_advantage() -> None:
    """The queue by attained service decides before the advantage."""
    served = a_job("1", submitted_s=1.0, service_gpu_s=3250.0)
    new = a_job("2", submitted_s=2.0, throughputs=some_rates(V100=1.0, P100=1.0, K80=1.0))
    plan = Hlas().plan(a_snapshot("1xV100", served, new), ROUND)
    assert placed_by(plan) == {"2": "n1:V100:1"}


def test_who_runs_moves_to_a_type_that_suits_it_better_and_not_for_a_trifle() -> None:
    """A job moves from a K80 to a P100 four times as fast, but not to one 5 % faster."""
    runs = a_job("1", on="n2:K80:1", service_gpu_s=100.0)
    plan = Hlas().plan(a_snapshot("1xP100,1xK80", runs), ROUND)
    assert placed_by(plan) == {"1": "n1:P100:1"}
    content = a_job("1", on="n2:K80:1", throughputs=some_rates(P100=1.05, K80=1.0))
    plan = Hlas().plan(a_snapshot("1xP100,1xK80", content), ROUND)
    assert placed_by(plan) == {"1": "n2:K80:1"}


@given(snapshot=snapshots(), may_move=st.booleans())
def test_on_identical_gpus_it_is_discretised_las(snapshot: Snapshot, *, may_move: bool) -> None:
    """On one GPU type, every plan equals that of policy tiresias."""
    alike, round_ = all_v100(snapshot), replace(ROUND, may_move=may_move)
    hlas, tiresias = Hlas().plan(alike, round_), Tiresias().plan(alike, round_)
    assert hlas.allocations == tiresias.allocations
    assert hlas.waiting == tiresias.waiting


def all_v100(snapshot: Snapshot) -> Snapshot:
    """Return the same snapshot with V100s in place of all other GPUs."""
    gpu_type = GpuType("V100")

    def job_of(job: Job) -> Job:
        copies = {
            number: Gang.of({(node, gpu_type): count for node, count in gang.gpus_by_node.items()})
            for number, gang in job.allocation.copies
        }
        service = ((gpu_type, job.progress.service_gpu_s),)
        return replace(
            job,
            progress=replace(job.progress, service_by_type=service),
            allocation=Allocation.of(copies),
            bound_type=job.bound_type and gpu_type,
        )

    def node_of(node: Node) -> Node:
        gpus = {gpu_type: sum(node.by_type.values())}
        return Node.of(node.name, gpus, is_schedulable=node.is_schedulable)

    occupied: Counter[Slot] = Counter()
    for slot, count in snapshot.occupied:
        occupied[Slot(slot.node, gpu_type)] += count
    return Snapshot.of(
        now_s=snapshot.now_s,
        cluster=Cluster.of(map(node_of, snapshot.cluster.nodes)),
        jobs=map(job_of, snapshot.jobs),
        occupied=occupied,
        rules=snapshot.rules,
    )
