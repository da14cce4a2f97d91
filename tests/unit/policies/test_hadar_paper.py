"""Policy hadar-paper on examples worked out by hand, and its ILP against exhaustive search."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import product

import pytest
from builders import (
    GOLDEN,
    ROUND,
    a_cluster,
    a_job,
    a_snapshot,
    golden,
    placed_by,
    reasons_of,
    some_rates,
)
from hypothesis import event, given
from strategies import snapshots

from hadar_slurm.core.cluster import GpuType, JobId, Slot
from hadar_slurm.core.job import Job, Shape
from hadar_slurm.core.plan import Plan, WaitReason
from hadar_slurm.core.snapshot import GangRules, Snapshot
from hadar_slurm.core.throughput import GangThroughput, Throughputs, ThroughputTable
from hadar_slurm.engine.loop import run_rounds
from hadar_slurm.journal import Line, as_line
from hadar_slurm.lab.traces.load import parse_gavel_trace
from hadar_slurm.placement.eligibility import Eligibility
from hadar_slurm.policies.hadar_paper.candidates import Candidate, CandidateSource
from hadar_slurm.policies.hadar_paper.policy import HadarPaper, _select_by_ilp, _select_greedily
from hadar_slurm.policies.hadar_paper.prices import ExponentialPrice, exponential_prices
from hadar_slurm.policies.hadar_paper.utility import UTILITIES, Appraisal
from hadar_slurm.policies.policy import SolverLimits
from hadar_slurm.sim.backend import SimBackend

NO_TIME = SolverLimits(time_limit_s=0.0)
STEPS = 16  # price steps per GPU type, as in the policy

both_forms = pytest.mark.parametrize(
    "policy", [HadarPaper(), HadarPaper(limits=NO_TIME)], ids=["ilp", "greedy"]
)


def plan_of(snapshot: Snapshot, policy: HadarPaper | None = None) -> Plan:
    return (policy or HadarPaper()).plan(snapshot, ROUND)


# Two jobs of 1000 steps on one GPU, both at 10 steps/s on a V100; job 2 loses less on a K80.
A = a_job("1", throughputs=some_rates(V100=10.0, K80=1.0))
B = a_job("2", throughputs=some_rates(V100=10.0, K80=5.0))
TOY = a_snapshot("1xV100,1xK80", A, B)


def test_the_fast_gpu_goes_to_who_gains_more_by_it() -> None:
    """The fast GPU goes to the job that is slowest elsewhere, not to the first in the queue."""
    # Worth = 100 s on a V100 over the time it takes: job 1 has 1 and 0.1, job 2 has 1 and 0.5.
    # 1 on V100 and 2 on K80: 1 + 0.5. The other way round: 0.1 + 1.
    plan = plan_of(TOY)
    assert placed_by(plan) == {"1": "n1:V100:1", "2": "n2:K80:1"}
    assert dict(plan.figures)["value"] == pytest.approx(1.5)


def test_the_prices_of_the_toy() -> None:
    """U_min, U_max and the prices follow the formulas of the paper."""
    appraisal = Appraisal.of(TOY, UTILITIES["throughput"])
    prices = exponential_prices(TOY.jobs, appraisal, {GpuType("V100"): 1, GpuType("K80"): 1})
    # V100: both take 100 s; horizon max(200 / 2, 100) = 100; 1/eta = 100 / (100 * 2) = 1/2.
    # U_max = 1, U_min = (1/4)(1/2) U(100) = 1/8.
    fast = prices[GpuType("V100")]
    assert (fast.u_min, fast.u_max, fast.capacity) == (pytest.approx(0.125), pytest.approx(1), 1)
    # K80: 1000 s and 200 s; horizon max(1200 / 2, 1000) = 1000; 1/eta = 200 / (1000 * 2) = 1/10.
    # U_max = 0.5, U_min = (1/4)(1/10) U(1000) = 0.1 / 40.
    slow = prices[GpuType("K80")]
    assert (slow.u_min, slow.u_max) == (pytest.approx(0.0025), pytest.approx(0.5))
    # Both types end up full, so each costs its U_max.
    figures = dict(plan_of(TOY).figures)
    assert figures["price.V100"] == pytest.approx(1.0)
    assert figures["price.K80"] == pytest.approx(0.5)


def test_the_shortest_job_comes_first_for_mean_completion_time() -> None:
    """Utility jct gives the fast GPU to the job that ends first on it."""
    throughputs = some_rates(V100=10.0, K80=5.0)
    snapshot = a_snapshot(
        "1xV100,1xK80",
        a_job("1", steps=1000, throughputs=throughputs),
        a_job("2", steps=100, throughputs=throughputs),
    )
    # Shortest of all is 10 s. Job 1: 0.1 and 0.05; job 2: 1 and 0.5. Together 1.05 against 0.6.
    plan = plan_of(snapshot, HadarPaper(utility="jct"))
    assert placed_by(plan) == {"1": "n2:K80:1", "2": "n1:V100:1"}


@pytest.mark.parametrize("left", [0, 1, 1000])
@pytest.mark.parametrize("steps", [10**6, 10**8])
def test_a_job_that_is_almost_done_does_not_blur_the_others(left: int, steps: int) -> None:
    """Values millions of times smaller than another's still decide the allocation."""
    # Of the two jobs that take days, job 3 is ten times as slow on a K80, job 2 twice.
    jobs = (
        a_job("1", on="n1:V100:1", done=1000 - left, throughputs=some_rates(V100=10.0)),
        a_job("2", steps=steps, throughputs=some_rates(V100=10.0, K80=5.0)),
        a_job("3", steps=steps, throughputs=some_rates(V100=10.0, K80=1.0)),
    )
    plan = plan_of(a_snapshot("2xV100,1xK80", *jobs), HadarPaper(utility="jct"))
    assert placed_by(plan) == {"1": "n1:V100:1", "2": "n2:K80:1", "3": "n1:V100:1"}


def test_the_younger_of_equal_jobs_has_more_to_win_under_ftf() -> None:
    """The utility falls with a job's age, so that of two equal jobs the older one waits."""
    # Both take 100 s, with a 1/2 share 200 s. Old: 200 / (1000 + 100), young: 200 / 100.
    old, young = a_job("1", submitted_s=0.0), a_job("2", submitted_s=1000.0)
    plan = plan_of(a_snapshot("1xV100", old, young, now_s=1000.0), HadarPaper(utility="ftf"))
    assert placed_by(plan) == {"2": "n1:V100:1"}


@both_forms
def test_a_mixed_gang_is_taken_when_it_is_the_only_way(policy: HadarPaper) -> None:
    """A gang of two runs on two types, at the speed of the slower one."""
    snapshot = a_snapshot("1xV100,1xK80", a_job("1", 2))
    assert placed_by(plan_of(snapshot, policy)) == {"1": "n1:V100:1 n2:K80:1"}


@both_forms
def test_a_mixed_gang_is_not_taken_when_one_type_will_do(policy: HadarPaper) -> None:
    """A gang takes one type if it has enough GPUs, because a slow GPU slows the whole gang."""
    snapshot = a_snapshot("1xV100,1xV100,1xK80", a_job("1", 2))
    assert placed_by(plan_of(snapshot, policy)) == {"1": "n1:V100:1 n2:V100:1"}


@both_forms
def test_a_gang_stays_together_when_it_can(policy: HadarPaper) -> None:
    """A gang is placed on one node, where it is faster, if possible."""
    snapshot = a_snapshot("1xV100,2xV100,1xV100", a_job("1", 2))
    assert placed_by(plan_of(snapshot, policy)) == {"1": "n2:V100:2"}


def test_the_tightest_node_is_filled_first() -> None:
    """A single GPU is taken from a partly used node before an empty one."""
    snapshot = a_snapshot("4xV100,2xV100,4xV100", a_job("1"), occupied="n3:V100:3")
    assert placed_by(plan_of(snapshot)) == {"1": "n3:V100:1"}


def moving(*, left: int, now_s: float) -> Snapshot:
    """Return a job of 1000 steps at 1 step/s on a K80; a V100 at 10 is free, a move costs 30 s.

    One GPU of each type and one job: 1/eta is 1/2, and a type costs sqrt(1/8) = 0.354 of its U_max.
    """
    throughputs = some_rates(V100=10.0, K80=1.0)
    job = a_job("1", on="n2:K80:1", done=1000 - left, throughputs=throughputs, restart_cost_s=30.0)
    return a_snapshot("1xV100,1xK80", job, now_s=now_s)


@both_forms
def test_a_job_stays_when_the_move_gains_little(policy: HadarPaper) -> None:
    """A job does not move if the restart takes longer than the remaining run time."""
    # 20 steps left at an age of 980 s; the utility is 100 s over the age at the end.
    # Stay: 980 + 20, utility 0.1 plus the restart it avoids; price 0.354 * 0.1.
    # Move: 980 + 30 + 2, utility 0.0988; price 0.354 * 100 / 982 = 0.036.
    assert placed_by(plan_of(moving(left=20, now_s=980.0), policy)) == {"1": "n2:K80:1"}


@both_forms
def test_a_job_moves_when_the_gain_is_large(policy: HadarPaper) -> None:
    """A job moves if a restart of 30 s saves 900 s."""
    # Stay: 1000 s, utility 0.1 + 0.003, price 0.035. Move: 130 s, utility 0.77, price 0.354.
    assert placed_by(plan_of(moving(left=1000, now_s=0.0), policy)) == {"1": "n1:V100:1"}


def fragmented(*, restart_cost_s: float) -> Snapshot:
    """Two jobs of one GPU run on two nodes of two; job 3 waits for both GPUs of one node."""
    throughputs = some_rates(V100=1.0)
    return a_snapshot(
        "2xV100,2xV100",
        a_job("1", on="n1:V100:1", throughputs=throughputs, restart_cost_s=restart_cost_s),
        a_job("2", on="n2:V100:1", throughputs=throughputs, restart_cost_s=restart_cost_s),
        a_job("3", 2, throughputs=throughputs, shapes=[Shape(nodes=1, gpus_per_node=2)]),
    )


def test_jobs_are_packed_anew_where_that_is_worth_more() -> None:
    """A job is moved by a short restart so that a gang of two can start."""
    # In place: 2 (1 + 0.03) = 2.06, job 3 waits. Repacked: 2 * 1000/1030 + 1 = 2.94.
    plan = plan_of(fragmented(restart_cost_s=30.0))
    assert placed_by(plan) == {"1": "n2:V100:1", "2": "n2:V100:1", "3": "n1:V100:2"}


def test_jobs_stay_where_packing_anew_costs_more() -> None:
    """Jobs are not moved if their restarts cost more than the gang is worth."""
    # In place: 2 (1 + 0.5) = 3. Repacked: 2 * 1000/2000 + 1 = 2.
    plan = plan_of(fragmented(restart_cost_s=1000.0))
    assert placed_by(plan) == {"1": "n1:V100:1", "2": "n2:V100:1"}
    # Job 3 was chosen at a positive payoff, but no node has two GPUs left.
    assert reasons_of(plan) == {"3": WaitReason.INSUFFICIENT}


@both_forms
def test_equal_jobs_do_not_push_each_other_out(policy: HadarPaper) -> None:
    """A running job is not preempted for a waiting job of equal value."""
    for runs, waits in (("1", "2"), ("2", "1")):
        running = a_job(runs, on="n1:V100:1", restart_cost_s=30.0)
        plan = plan_of(a_snapshot("1xV100", running, a_job(waits)), policy)
        assert placed_by(plan) == {runs: "n1:V100:1"}
        assert reasons_of(plan) == {waits: WaitReason.OUTBID}


@pytest.mark.parametrize(
    ("snapshot", "why"),
    [
        (a_snapshot("2xV100", a_job("1", 4)), WaitReason.INFEASIBLE),
        (
            a_snapshot("1xV100,1xK80", a_job("1", 2), rules=GangRules(may_mix_types=False)),
            WaitReason.INFEASIBLE,
        ),
        (a_snapshot("1xV100,1xV100", a_job("1", allowed=[])), WaitReason.INFEASIBLE),
        (a_snapshot("1xV100", a_job("1", bound_type="K80")), WaitReason.INFEASIBLE),
        (
            a_snapshot("1xV100", a_job("1", throughputs=some_rates(A100=5.0))),
            WaitReason.NO_THROUGHPUT,
        ),
        (
            a_snapshot("1xV100", a_job("1", throughputs=some_rates(V100=0.0))),
            WaitReason.NO_THROUGHPUT,
        ),
        (a_snapshot("1xV100", a_job("1"), occupied="n1:V100:1"), WaitReason.INSUFFICIENT),
        (a_snapshot("4xV100", a_job("1", 4), occupied="n1:V100:1"), WaitReason.INSUFFICIENT),
        (a_snapshot(a_cluster("1xV100", closed=["n1"]), a_job("1")), WaitReason.INSUFFICIENT),
        (
            a_snapshot("1xV100", a_job("1"), a_job("2", on="n1:V100:1", can_checkpoint=False)),
            WaitReason.INSUFFICIENT,
        ),
    ],
    ids=[
        "too large",
        "would have to mix",
        "no node allowed",
        "bound to an absent type",
        "type unknown",
        "does not fit",
        "others hold the GPU",
        "others hold a part",
        "node closed",
        "behind a job that stays",
    ],
)
def test_a_job_is_told_why_it_waits(snapshot: Snapshot, why: WaitReason) -> None:
    """Wait reasons distinguish infeasible, unknown throughput, and currently insufficient."""
    assert reasons_of(plan_of(snapshot)) == {"1": why}


def test_pieces_that_do_not_fit_together_wait_for_room() -> None:
    """Gangs of 3, 3 and 2 GPUs do not fit on two nodes of four."""
    throughputs = some_rates(V100=1.0)
    jobs = [
        a_job(key, gpus, throughputs=throughputs, shapes=[Shape(nodes=1, gpus_per_node=gpus)])
        for key, gpus in (("1", 3), ("2", 3), ("3", 2))
    ]
    plan = plan_of(a_snapshot("4xV100,4xV100", *jobs))
    assert placed_by(plan) == {"1": "n1:V100:3", "2": "n2:V100:3"}
    assert reasons_of(plan) == {"3": WaitReason.INSUFFICIENT}


def test_a_job_without_a_known_rate_runs_on_while_nobody_gains_by_its_gpus() -> None:
    """A running job with unknown throughput keeps its GPUs unless another job can use them."""
    stranger = a_job("1", on="n1:V100:1", throughputs=some_rates(A100=5.0))
    assert placed_by(plan_of(a_snapshot("1xV100", stranger))) == {"1": "n1:V100:1"}
    plan = plan_of(a_snapshot("1xV100", stranger, a_job("2")))
    assert placed_by(plan) == {"2": "n1:V100:1"}
    assert reasons_of(plan) == {"1": WaitReason.NO_THROUGHPUT}


def test_a_job_is_not_bound_to_a_slow_type() -> None:
    """Where naming a type binds, a preemptible job waits instead of taking a slow type."""
    rules = GangRules(naming_binds=True)
    cluster = "1xV100,1xP100+1xK80"
    busy = a_snapshot(cluster, a_job("1"), occupied="n1:V100:1", rules=rules)
    assert reasons_of(plan_of(busy)) == {"1": WaitReason.INSUFFICIENT}
    # A job that cannot be preempted, or is already bound, does not wait.
    fixed = a_snapshot(cluster, a_job("1", can_checkpoint=False), occupied="n1:V100:1", rules=rules)
    assert placed_by(plan_of(fixed)) == {"1": "n2:P100:1"}
    bound = a_snapshot(cluster, a_job("1", bound_type="K80"), rules=rules)
    assert placed_by(plan_of(bound)) == {"1": "n2:K80:1"}


@pytest.mark.parametrize(
    ("cluster", "gang"),
    [("2xP100+1xV100", "n1:P100:2"), ("1xP100+1xK80,1xP100+1xK80", "n1:P100:1 n2:P100:1")],
    ids=["the faster type is too few", "only across nodes"],
)
def test_a_type_binds_when_there_is_no_faster_one_for_the_gang(cluster: str, gang: str) -> None:
    """A job takes the fastest type that can ever hold it; it does not wait for any other."""
    snapshot = a_snapshot(cluster, a_job("1", 2), rules=GangRules(naming_binds=True))
    assert placed_by(plan_of(snapshot)) == {"1": gang}


def test_the_type_to_be_bound_to_is_the_fastest_in_the_layout_there_is() -> None:
    """Where gangs must spread, types are compared by their speed across nodes."""
    throughputs = Throughputs.of(
        {("V100", 2): GangThroughput(10.0, 1.0), ("P100", 2): GangThroughput(4.0, 3.0)}
    )
    cluster = ",".join(["1xV100+1xK80"] * 2 + ["1xP100+1xK80"] * 2)
    job = a_job("1", 2, throughputs=throughputs)
    plan = plan_of(a_snapshot(cluster, job, rules=GangRules(naming_binds=True)))
    assert placed_by(plan) == {"1": "n3:P100:1 n4:P100:1"}


def test_the_plan_says_when_the_solver_gave_nothing() -> None:
    """The figures say whether the plan was solved or made greedily."""
    assert dict(plan_of(TOY).figures)["solver_fallback"] == 0.0
    assert dict(plan_of(TOY, HadarPaper(limits=NO_TIME)).figures)["solver_fallback"] == 1.0
    assert dict(plan_of(TOY).figures)["solver_optimal"] == 1.0


def test_nothing_to_decide_is_decided_without_a_solver() -> None:
    """An empty queue gives an empty plan without a solve."""
    plan = plan_of(a_snapshot("1xV100"))
    assert plan.allocations == plan.waiting == ()
    assert dict(plan.figures) == {"candidates": 0.0, "value": 0.0}


def test_a_type_that_pays_only_across_nodes_has_no_price_and_is_used() -> None:
    """A rate of 0 within a node and above 0 across nodes is no error."""
    odd = Throughputs.of(
        {
            ("V100", 1): GangThroughput(1.0),
            ("V100", 2): GangThroughput(0.0, 1.0),
            ("K80", 1): GangThroughput(0.1),
        }
    )
    snapshot = a_snapshot("2xV100,2xV100", a_job("1", 2, throughputs=odd), a_job("2"))
    for policy in (HadarPaper(), HadarPaper(limits=NO_TIME)):
        assert "2" in placed_by(plan_of(snapshot, policy))


TOY_TABLE = ThroughputTable(
    "toy",
    {
        "Steep": some_rates(V100=10.0, P100=5.0, K80=1.0),
        "Flat": some_rates(V100=10.0, P100=8.0, K80=5.0),
    },
)


def rounded(tree: object) -> object:
    """Return a JSON tree with its numbers rounded to six digits, equal on every machine."""
    if isinstance(tree, dict):
        return {key: rounded(value) for key, value in tree.items()}
    if isinstance(tree, list):
        return [rounded(value) for value in tree]
    return float(f"{tree:.6g}") if isinstance(tree, float) else tree


def test_the_journal_of_the_toy_is_the_one_worked_out() -> None:
    """Three jobs on a V100, a P100 and a K80, round by round.

    0 s: job 0 loses more than job 1 off the V100: 1 + 0.8 on V100 and P100 against 0.5 + 1.
    360 s: job 0 has ended. Job 1 has 720 of 3600 steps left, 90 s here; on the V100 72 s and a
    restart of 30 s. It stays.
    400 s: job 2 arrives and requests two GPUs. Only the V100 and the K80 are free, with
    0.8 * 2 steps/s; 80 s of work become 1000 s. That is not worth the price, but no other job
    needs the GPUs.
    450 s: job 1 ends. Within a round job 2 is not moved.
    720 s: job 2 has done 512 of 1600 steps; it needs 680 s more here, or 136 s and a restart on
    V100 and P100 at 0.8 * 10 steps/s. It moves, and ends at 886 s.
    """
    trace = (GOLDEN / "toy.trace").read_text(encoding="utf-8")
    jobs = parse_gavel_trace(trace.splitlines(), TOY_TABLE, "toy.trace")
    world = SimBackend(a_cluster("1xV100,1xP100,1xK80"), jobs)
    lines: list[Line] = []
    run_rounds(
        world,
        HadarPaper(),
        lambda record: lines.append(as_line(record)),
        length_s=360.0,
        now_s=lambda: world.now_s,
        clock=lambda: 0.0,
    )
    assert [(line["time_s"], line["may_move"]) for line in lines] == [
        (0.0, True),
        (360.0, True),
        (400.0, False),
        (450.0, False),
        (720.0, True),
        (pytest.approx(886.0), False),
    ]
    text = "".join(json.dumps(rounded(line), separators=(",", ":")) + "\n" for line in lines)
    expected = golden("toy.journal.jsonl", text).splitlines()
    assert [json.loads(line) for line in expected] == [rounded(line) for line in lines]


Listed = Mapping[JobId, list[Candidate]]


def listed_of(
    snapshot: Snapshot,
) -> tuple[Listed, dict[GpuType, ExponentialPrice], dict[Slot, int]]:
    """Return candidates, prices and free GPUs as the policy computes them."""
    appraisal = Appraisal.of(snapshot, UTILITIES["throughput"])
    free = snapshot.plannable_capacity
    jobs: list[Job] = [job for job in snapshot.plannable if not job.is_pinned_in_place]
    source = CandidateSource(Eligibility(snapshot), appraisal, free)
    units: Counter[GpuType] = Counter()
    for slot, count in free.items():
        units[slot.gpu_type] += count
    return (
        {job.job_id: source.of(job) for job in jobs},
        exponential_prices(jobs, appraisal, units),
        free,
    )


def objective(
    chosen: Iterable[Candidate], prices: Mapping[GpuType, ExponentialPrice]
) -> float | None:
    """Return utility minus price, each GPU at its own price step; None with too few GPUs."""
    chosen = list(chosen)
    usage: Counter[GpuType] = Counter()
    for candidate in chosen:
        usage.update(candidate.usage)
    value = sum(candidate.value for candidate in chosen)
    for gpu_type, used in usage.items():
        left = float(used)
        for step in prices[gpu_type].segments(STEPS) if gpu_type in prices else ():
            taken = min(left, step.gpus)
            value -= taken * step.price
            left -= taken
        if gpu_type in prices and left > 1e-9:
            return None
    return value


def fits_in_pieces(chosen: Iterable[Candidate], free: Mapping[Slot, int]) -> bool:
    """Whether the nodes could provide the candidates' pieces of every size."""
    pieces: Counter[tuple[GpuType, int]] = Counter()
    for candidate in chosen:
        pieces.update(candidate.chunks)
    return all(
        sum(n * (size // wanted) for (k, size), n in pieces.items() if k == gpu_type)
        <= sum(n // wanted for slot, n in free.items() if slot.gpu_type == gpu_type)
        for gpu_type, wanted in pieces
    )


@given(snapshot=snapshots(max_jobs=4, max_nodes=3))
def test_the_ilp_is_as_good_as_trying_everything(snapshot: Snapshot) -> None:
    """No selection of at most one candidate per job has a higher payoff at the stepped prices."""
    candidates, prices, free = listed_of(snapshot)
    if not any(candidates.values()):
        return
    event(f"{sum(map(bool, candidates.values()))} jobs")
    best = 0.0
    for selection in product(*([None, *listed] for listed in candidates.values())):
        chosen = [candidate for candidate in selection if candidate is not None]
        value = objective(chosen, prices)
        if value is not None and value > best and fits_in_pieces(chosen, free):
            best = value
    chosen, is_optimal = _select_by_ilp(candidates, prices, free, SolverLimits(gap=0.0))
    assert is_optimal
    assert fits_in_pieces(chosen, free)
    assert objective(chosen, prices) == pytest.approx(best, rel=1e-6, abs=1e-8)


def test_nobody_is_taken_at_a_loss() -> None:
    """Job 2 costs more than its utility; CBC 2.10.3 took it when use and payment were set equal."""
    throughputs = some_rates(V100=0.25)
    snapshot = a_snapshot(
        "1xV100,1xV100,2xV100",
        a_job("1", steps=1, throughputs=throughputs, allowed=[]),
        a_job("2", 4, steps=1, throughputs=throughputs, on="n1:V100:1 n2:V100:1 n3:V100:2"),
        now_s=10_000.0,
    )
    candidates, prices, free = listed_of(snapshot)
    (only,) = candidates[JobId("2")]
    value = objective([only], prices)
    assert value is not None
    assert value < 0
    assert _select_by_ilp(candidates, prices, free, SolverLimits()) == ([], True)


@given(snapshot=snapshots(max_jobs=4, max_nodes=3))
def test_the_greedy_form_takes_nobody_at_a_loss(snapshot: Snapshot) -> None:
    """At most one candidate per job, within the free GPUs, each worth more than its price."""
    candidates, prices, free = listed_of(snapshot)
    chosen = _select_greedily(candidates, prices, free)
    assert len({candidate.job.job_id for candidate in chosen}) == len(chosen)
    units: Counter[GpuType] = Counter()
    for slot, count in free.items():
        units[slot.gpu_type] += count
    taken: Counter[GpuType] = Counter()
    for candidate in chosen:
        paid = sum(n * prices[k].at(taken[k]) for k, n in candidate.usage.items() if k in prices)
        assert candidate.value > paid
        taken.update(candidate.usage)
    assert all(taken[gpu_type] <= units[gpu_type] for gpu_type in taken)
