"""The simulator and the loop: what is conserved, what never happens, and the effects of faults."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path

import pytest
from builders import (
    FirstFit,
    a_cluster,
    a_gang,
    a_plan,
    a_spec,
    gangs_that_fit,
)
from contenders import NAMED, RIGID_ONLY
from hypothesis import event, given, settings
from hypothesis import strategies as st
from strategies import KINDS, failures_of, traces, valid_plans

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.job import Job, JobSpec, Phase
from hadar_slurm.core.plan import Plan, WaitReason
from hadar_slurm.core.snapshot import GangRules, Round, Snapshot
from hadar_slurm.engine.actions import Action, Outcome, Renew, Start, Status
from hadar_slurm.engine.backend import Wake
from hadar_slurm.engine.loop import RoundRecord, run_rounds
from hadar_slurm.errors import HadarError, SlurmUnavailable
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.journal import Line, as_line
from hadar_slurm.lab.study.bounds import bounds
from hadar_slurm.lab.study.experiment import RULES, ExperimentSettings, run_experiment
from hadar_slurm.lab.study.figures import Result
from hadar_slurm.lab.traces.cluster import parse_cluster
from hadar_slurm.lab.traces.limits import have_limits
from hadar_slurm.lab.traces.load import parse_gavel_trace
from hadar_slurm.metrics import segments, summarize
from hadar_slurm.policies.hadar_paper.policy import HadarPaper
from hadar_slurm.policies.policy import Policy
from hadar_slurm.resources import data_file
from hadar_slurm.sim.backend import GAVEL_RULES, SimBackend

Trace = tuple[Cluster, tuple[JobSpec, ...]]

SHARED_TRACE = Path(__file__).parents[3] / "shared" / "data" / "hadar480_static.trace"
POLICIES: Mapping[str, Callable[[], Policy]] = {"first-fit": FirstFit, **NAMED}
every_policy = pytest.mark.parametrize("name", POLICIES)
rounds_s = st.sampled_from((200.0, 360.0, 1000.0))


@dataclass
class Restless:
    """A policy that draws any valid plan in every round."""

    data: st.DataObject
    name: str = "restless"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return a random valid plan."""
        return self.data.draw(valid_plans(snapshot))


def run(
    world: SimBackend, policy: Policy, *, length_s: float = 360.0, max_rounds: int = 2000
) -> list[RoundRecord]:
    """Run the loop to its end and return every round; an error in a round fails the test."""
    records: list[RoundRecord] = []

    def record(line: RoundRecord) -> None:
        assert not line.errors
        records.append(line)

    count = run_rounds(
        world,
        policy,
        record,
        length_s=length_s,
        now_s=lambda: world.now_s,
        clock=lambda: 0.0,
        max_rounds=max_rounds,
    )
    assert count == len(records)
    return records


def lines_of(records: Sequence[RoundRecord]) -> list[Line]:
    return [as_line(record) for record in records]


def check_conserved(
    cluster: Cluster, jobs: Sequence[JobSpec], lines: Sequence[Line], *, is_exact: bool = True
) -> None:
    """Assert what holds for the journal of any run, finished or not.

    The steps done are those that the time on GPUs gives, less restarts. Where rounds train whole
    steps or copies are averaged, they may be fewer.
    """
    capacity = {node.name: dict(node.gpus) for node in cluster.nodes}
    specs = {spec.job_id: spec for spec in jobs}
    done: dict[str, float] = defaultdict(float)
    for line in lines:
        held: Counter[tuple[str, str]] = Counter()
        for job_id, job in line["jobs"].items():
            assert job["steps_done"] >= done[job_id] - 1e-3, "progress went back"
            assert job["steps_done"] <= job["steps"] + 1e-3, "more was trained than there is"
            done[job_id] = job["steps_done"]
            for gang in job["holds"].values():
                held.update(
                    {(n, gpu_type): c for n, gpus in gang.items() for gpu_type, c in gpus.items()}
                )
        assert all(count <= capacity[n][gpu_type] for (n, gpu_type), count in held.items())
    trained: Counter[str] = Counter()
    starts: Counter[str] = Counter()
    for segment in segments(lines):
        spec = specs[segment.job_id]
        lost_s = spec.restart_cost_s if starts[segment.job_id] and spec.max_copies == 1 else 0.0
        starts[segment.job_id] += 1
        useful_s = max(0.0, segment.end_s - segment.start_s - lost_s)
        throughput = segment.gang.throughput(spec.throughputs, counts_spread=is_exact)
        trained[segment.job_id] += throughput * useful_s
    ended = {job_id for line in lines for job_id in line["ended"]}
    for job_id in starts:
        steps = float(specs[job_id].total_steps) if job_id in ended else done[job_id]
        if is_exact and specs[job_id].max_copies == 1:
            assert trained[job_id] == pytest.approx(steps, rel=1e-6, abs=0.01)
        assert trained[job_id] >= steps * (1 - 1e-6) - 0.01
    for share in summarize(lines).utilization.values():
        assert share <= 1 + 1e-9


@every_policy
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data(), length_s=rounds_s, rules=st.sampled_from(RULES))
def test_a_run_does_all_work_and_keeps_its_books(
    name: str, data: st.DataObject, length_s: float, rules: str
) -> None:
    """Every job ends once, steps and GPUs are conserved, bounds hold, and a second run is the same.

    Nodes may fail, with a loss of unsaved steps: run_experiment checks that the accounts balance
    then, too.
    """
    may_fork = POLICIES[name]().name not in RIGID_ONLY
    gang_rules = GAVEL_RULES if rules == "gavel" else GangRules()
    cluster, jobs = data.draw(traces(gang_rules=gang_rules, may_fork=may_fork))
    failures = data.draw(failures_of(cluster)) if rules == "hadar" else ()
    rules_of_play = ExperimentSettings(length_s, rules, failures)
    result, lines = play(name, cluster, jobs, rules_of_play)
    ended = {job_id: end["end_s"] for line in lines for job_id, end in line["ended"].items()}
    event(f"{result.moves} moves")
    assert result.completed == len(jobs)
    assert sorted(ended) == sorted(spec.job_id for spec in jobs)
    assert {end["phase"] for line in lines for end in line["ended"].values()} <= {"done"}
    if not failures:
        check_conserved(cluster, jobs, lines, is_exact=rules == "hadar")
    check_bounds(cluster, jobs, ended, result, gang_rules)
    assert play(name, cluster, jobs, rules_of_play)[1] == lines


def play(
    name: str, cluster: Cluster, jobs: Sequence[JobSpec], rules: ExperimentSettings
) -> tuple[Result, list[Line]]:
    """Run an experiment and return its figures and its journal without durations."""
    records: list[RoundRecord] = []
    result = run_experiment(jobs, cluster, POLICIES[name](), rules, on_round=records.append)
    return result, lines_of([replace(record, durations={}) for record in records])


def check_bounds(
    cluster: Cluster,
    jobs: Sequence[JobSpec],
    ended: Mapping[str, float],
    result: Result,
    rules: GangRules,
) -> None:
    """Assert that no job ends sooner than it could alone, and that TTD and JCT keep bounds."""
    if not jobs:
        return
    empty = Snapshot.of(now_s=0.0, cluster=cluster, jobs=(), rules=rules)
    gpu_s = 0.0
    for spec in jobs:
        gangs = list(gangs_that_fit(empty, Job(spec), cluster.capacity))
        fastest_s = min(
            spec.total_steps / rules.throughput(gang, spec.throughputs) for gang in gangs
        )
        if spec.max_copies == 1:
            assert ended[spec.job_id] - spec.submitted_s >= fastest_s * (1 - 1e-6)
        gpu_s += fastest_s * spec.num_gpus
    assert result.ttd_s * sum(cluster.capacity.values()) >= gpu_s * (1 - 1e-6)
    least = bounds(jobs, cluster)
    assert result.ttd_s >= least.ttd_forking_s * (1 - 1e-6)
    assert result.mean_jct_s >= least.mean_jct_s * (1 - 1e-6)
    if all(spec.max_copies == 1 for spec in jobs):
        assert result.ttd_s >= least.ttd_gang_s * (1 - 1e-6)
        assert result.mean_jct_s >= least.mean_jct_gang_s * (1 - 1e-6)


@given(trace=traces(), data=st.data(), length_s=rounds_s)
def test_no_plan_however_foolish_breaks_the_books(
    trace: Trace, data: st.DataObject, length_s: float
) -> None:
    """Steps and GPUs are conserved under any valid plans."""
    world = SimBackend(*trace)
    records = run(world, Restless(data), length_s=length_s, max_rounds=8)
    lines = lines_of(records)
    event(f"{summarize(lines).moves} moves")
    check_conserved(world.cluster, world.jobs, lines)


limits_s = st.sampled_from((inf, 50.0, 300.0, 1000.0))
types = st.sampled_from(("", *map(str.lower, KINDS)))


def limited(data: st.DataObject, jobs: tuple[JobSpec, ...]) -> tuple[JobSpec, ...]:
    """Return the jobs, each with a limit or none."""
    return tuple(
        replace(spec, limit_s=data.draw(limits_s), limit_type=data.draw(types)) for spec in jobs
    )


@given(data=st.data(), name=st.sampled_from(sorted(NAMED)), adjusts=st.booleans())
def test_no_run_is_longer_than_its_limit_and_every_job_ends_once(
    data: st.DataObject, name: str, adjusts: bool
) -> None:
    """Under every policy, with failures of nodes and copies; run_experiment checks the accounts."""
    policy = NAMED[name]()
    cluster, jobs = data.draw(traces(may_fork=policy.name not in RIGID_ONLY))
    jobs = limited(data, jobs)
    sizes = ("oracle", "limit") if have_limits(jobs) else ("oracle",)
    settings = ExperimentSettings(
        360.0,
        failures=data.draw(failures_of(cluster)),
        adjusts_limits=adjusts,
        sizes=data.draw(st.sampled_from(sizes)),
    )
    records: list[RoundRecord] = []
    result = run_experiment(jobs, cluster, policy, settings, on_round=records.append)
    event(f"killed: {result.killed}")
    ends = Counter(e.job_id for r in records for e in (r.snapshot.ended if r.snapshot else ()))
    assert ends == Counter(spec.job_id for spec in jobs)
    assert result.completed + result.killed == len(jobs)
    held_s: Counter[str] = Counter()
    specs = {spec.job_id: spec for spec in jobs}
    for segment in result.segments:
        lasts_s = segment.end_s - segment.start_s
        held_s[segment.job_id] += lasts_s * segment.gang.num_gpus
        if not adjusts:
            assert lasts_s <= specs[segment.job_id].limit_s * (1 + 1e-9)
    lost = [done.job_id for done in result.jcts if done.is_killed]
    assert result.killed_gpu_s * (1 + 1e-6) + 1e-3 >= sum(held_s[job_id] for job_id in lost)
    assert all(specs[job_id].limit_s < inf for job_id in lost)


@given(data=st.data())
def test_limits_hold_under_any_valid_plans(data: st.DataObject) -> None:
    """Jobs are stopped, moved and started again at random."""
    cluster, jobs = data.draw(traces())
    jobs = limited(data, jobs)
    world = SimBackend(cluster, jobs)
    records = run(world, Restless(data), length_s=360.0, max_rounds=8)
    specs = {spec.job_id: spec for spec in jobs}
    for segment in segments(lines_of(records)):
        lasts_s = segment.end_s - segment.start_s
        assert lasts_s <= specs[segment.job_id].limit_s * (1 + 1e-9)
    phases = [end.phase for r in records for end in (r.snapshot.ended if r.snapshot else ())]
    event(f"killed: {phases.count(Phase.FAILED)}")
    assert set(phases) <= {Phase.DONE, Phase.FAILED}


@given(cost_s=st.floats(0, 200), num_moves=st.integers(0, 4))
def test_every_move_lasts_a_restart(cost_s: float, num_moves: int) -> None:
    """A job that is migrated k times ends k restarts later, and its first start costs nothing."""

    @dataclass
    class BackAndForth:
        moves: int
        name: str = "back-and-forth"
        places: list[str] = field(default_factory=lambda: ["n1:V100:1", "n2:V100:1"])

        def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
            if not snapshot.jobs:
                return Plan()
            return a_plan({"1": self.places[min(round_.index, self.moves) % 2]})

    # 25,000 steps at 10 a second take 2500 s, and rounds of 250 s are longer than any restart.
    spec = a_spec("1", steps=25_000, restart_cost_s=cost_s)
    world = SimBackend(a_cluster("1xV100,1xV100"), [spec])
    lines = lines_of(run(world, BackAndForth(num_moves), length_s=250.0))
    assert summarize(lines).ttd_s == pytest.approx(2500.0 + num_moves * cost_s)
    assert summarize(lines).moves == num_moves
    assert max(job["restarts"] for line in lines for job in line["jobs"].values()) == num_moves


def test_a_job_ends_at_its_exact_finish_and_frees_its_gpus_at_once() -> None:
    """The next job starts the moment the first ends, not at the end of the round."""
    world = SimBackend(a_cluster("1xV100"), [a_spec("1"), a_spec("2", steps=500)])
    lines = lines_of(run(world, FirstFit()))
    assert [(s.job_id, s.start_s, s.end_s) for s in segments(lines)] == [
        ("1", 0.0, pytest.approx(100.0)),
        ("2", pytest.approx(100.0), pytest.approx(150.0)),
    ]


def test_an_empty_cluster_waits_for_the_next_job_without_rounds() -> None:
    """A job submitted after a month does not cause thousands of rounds before it."""
    late = a_spec("1", submitted_s=30 * 86400.0)
    records = run(SimBackend(a_cluster("1xV100"), [late]), FirstFit())
    assert len(records) == 3
    assert records[-1].snapshot is not None
    assert records[-1].snapshot.ended[0].end_s == pytest.approx(30 * 86400.0 + 100.0)


def test_observing_changes_nothing() -> None:
    """Two observations are the same, including ended jobs."""
    world = SimBackend(a_cluster("1xV100"), [a_spec("1")])
    world.apply([Start(world.jobs[0].job_id, 0, a_gang("n1:V100:1"))])
    assert world.observe() == world.observe()
    assert world.wait(360.0) is Wake.CHANGE
    assert world.observe() == world.observe()
    assert world.observe().ended


def test_a_start_on_gpus_that_are_taken_is_deferred() -> None:
    """Two jobs never hold the same GPU, whatever the loop requests."""
    one, two = a_spec("1"), a_spec("2")
    world = SimBackend(a_cluster("1xV100"), [one, two])
    gang = a_gang("n1:V100:1")
    outcomes = world.apply([Start(one.job_id, 0, gang), Start(two.job_id, 0, gang)])
    assert [outcome.status for outcome in outcomes] == [Status.DONE, Status.DEFERRED]
    assert "n1:V100:1 is not free yet" in outcomes[1].detail


def test_a_renewal_of_what_is_not_held_is_refused() -> None:
    """A renewal never starts a job."""
    spec = a_spec("1")
    world = SimBackend(a_cluster("1xV100"), [spec])
    (outcome,) = world.apply([Renew(spec.job_id, 0, a_gang("n1:V100:1"))])
    assert outcome.status is Status.REFUSED
    assert not world.observe().jobs[0].allocation


def test_a_simulation_that_goes_nowhere_ends_with_an_error() -> None:
    """A job that can never start does not keep the simulator running without end."""
    world = SimBackend(a_cluster("1xV100"), [a_spec("7", 4)])
    with pytest.raises(HadarError, match="jobs that never start: 7"):
        run(world, FirstFit())


# Faults. Job 1 runs, and later faults must not affect it.


@dataclass
class Faulty:
    """A policy whose plan is valid in round 0 and is that of `later` afterwards."""

    later: Callable[[Snapshot], Plan]
    name: str = "faulty"

    def plan(self, snapshot: Snapshot, round_: Round) -> Plan:
        """Return a valid plan in the first round only."""
        return FirstFit().plan(snapshot, round_) if round_.index == 0 else self.later(snapshot)


@dataclass
class Patchy:
    """A backend that cannot observe or cannot apply actions in some rounds."""

    world: SimBackend
    blind: frozenset[int] = frozenset()
    numb: frozenset[int] = frozenset()
    looks: int = -1
    applied: list[Action] = field(default_factory=list)

    def observe(self) -> Snapshot:
        """Return the snapshot, unless this round is blind."""
        self.looks += 1
        if self.looks in self.blind:
            raise SlurmUnavailable("squeue gave no answer within 30 s")
        return self.world.observe()

    def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
        """Apply the actions, unless this round is numb."""
        if self.looks in self.numb:
            raise SlurmUnavailable("scontrol gave no answer within 30 s")
        self.applied += [action for action in actions if not isinstance(action, Renew)]
        return self.world.apply(actions)

    def wait(self, until_s: float) -> Wake:
        """Advance the world."""
        return self.world.wait(until_s)


def long_world() -> SimBackend:
    """Two V100s and two jobs of 1000 s; job 2 is submitted after 500 s."""
    jobs = [a_spec("1", steps=10_000), a_spec("2", steps=10_000, submitted_s=500.0)]
    return SimBackend(a_cluster("1xV100,1xV100"), jobs)


def run_patchy(backend: Patchy, policy: Policy, *, rounds: int) -> list[RoundRecord]:
    records: list[RoundRecord] = []
    run_rounds(
        backend,
        policy,
        records.append,
        length_s=100.0,
        now_s=lambda: backend.world.now_s,
        clock=lambda: 0.0,
        max_rounds=rounds,
    )
    return records


def raise_value_error(_snapshot: Snapshot) -> Plan:
    raise ValueError("no such thing")


def stop_all_but_one_without_a_reason(_snapshot: Snapshot) -> Plan:
    return a_plan()


def place_on_an_unknown_node(_snapshot: Snapshot) -> Plan:
    return a_plan({"1": "n9:V100:1"})


@pytest.mark.parametrize(
    ("later", "words"),
    [
        (raise_value_error, "ValueError: no such thing"),
        (stop_all_but_one_without_a_reason, "InvalidPlan: invalid plan: job 1 has neither"),
        (place_on_an_unknown_node, "InvalidPlan: invalid plan: job 1 is placed on unknown node"),
    ],
)
def test_a_faulty_policy_leaves_running_jobs_alone(
    later: Callable[[Snapshot], Plan], words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Every allocation stays, the journal records the error, and the loop continues."""
    backend = Patchy(long_world())
    records = run_patchy(backend, Faulty(later), rounds=4)
    assert [type(action) for action in backend.applied] == [Start]
    assert backend.world.observe().jobs[0].allocation
    for record in records[1:]:
        assert record.plan is None
        assert record.outcomes == ()
        assert record.snapshot is not None
        assert words in record.errors[0]
        assert as_line(record)["plan"] is None
    assert words in caplog.text


def test_a_cluster_that_cannot_be_seen_is_left_alone() -> None:
    """Rounds without an observation change nothing; the next observation resumes planning."""
    backend = Patchy(long_world(), blind=frozenset({1, 2}))
    records = run_patchy(backend, FirstFit(), rounds=4)
    assert [len(record.errors) for record in records] == [0, 1, 1, 0]
    assert records[1].snapshot is None
    assert records[1].errors == ("squeue gave no answer within 30 s",)
    assert as_line(records[1])["errors"] == ["squeue gave no answer within 30 s"]
    assert [type(action) for action in backend.applied] == [Start]
    assert records[3].plan is not None


def test_what_could_not_be_applied_is_tried_again() -> None:
    """Actions that failed as a whole are repeated in the next round."""
    backend = Patchy(long_world(), numb=frozenset({0}))
    records = run_patchy(backend, FirstFit(), rounds=2)
    assert records[0].plan is not None
    assert records[0].errors == ("scontrol gave no answer within 30 s",)
    assert [action.job_id for action in backend.applied] == ["1"]


def test_a_refused_action_is_logged_and_the_others_are_done(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A refused action for one job does not prevent those for others."""

    class Stubborn(Patchy):
        def apply(self, actions: Sequence[Action]) -> Sequence[Outcome]:
            """Refuse job 1 and do the rest."""
            return [
                Outcome(action, Status.REFUSED, "no such account")
                if action.job_id == "1"
                else super(Stubborn, self).apply([action])[0]
                for action in actions
            ]

    backend = Stubborn(SimBackend(a_cluster("1xV100,1xV100"), [a_spec("1"), a_spec("2")]))
    (record,) = run_patchy(backend, FirstFit(), rounds=1)
    assert [outcome.status for outcome in record.outcomes] == [Status.REFUSED, Status.DONE]
    assert [bool(job.allocation) for job in backend.world.observe().jobs] == [False, True]
    assert "no such account" in caplog.text


def test_jobs_are_moved_at_the_beginning_of_a_round_only() -> None:
    """A job that is submitted within a round causes a round with `may_move` unset."""
    records = run_patchy(Patchy(long_world()), FirstFit(), rounds=7)
    seen = [(record.round.start_s, record.round.may_move, record.wake) for record in records]
    assert seen[:3] == [
        (0.0, True, "start"),
        (100.0, True, "round end"),
        (200.0, True, "round end"),
    ]
    world = long_world()
    world.jobs = [world.jobs[0], replace(world.jobs[1], submitted_s=250.0)]
    records = run_patchy(Patchy(SimBackend(world.cluster, world.jobs)), FirstFit(), rounds=5)
    seen = [(record.round.start_s, record.round.may_move, record.wake) for record in records]
    assert seen[2:] == [
        (200.0, True, "round end"),
        (250.0, False, "change"),
        (300.0, True, "round end"),
    ]


def test_the_loop_runs_as_many_rounds_as_asked_for() -> None:
    """One round and no wait, for hadard --once."""
    world = long_world()
    assert len(run_patchy(Patchy(world), FirstFit(), rounds=1)) == 1
    assert world.now_s == 0.0


def test_the_first_jobs_of_a_published_mix_finish_near_their_bound() -> None:
    """Twenty of the 480 jobs on 60 GPUs, more than they need, all finish within the bounds."""
    if not SHARED_TRACE.exists():
        pytest.skip(f"{SHARED_TRACE} is not there")
    table = parse_table(data_file("throughputs.json").read_text(encoding="utf-8"), "table")
    text = SHARED_TRACE.read_text(encoding="utf-8")
    specs = parse_gavel_trace(text.splitlines()[:20], table, "trace")
    cluster = parse_cluster("20xV100,20xP100,20xK80", gpus_per_node=4)
    lines = lines_of(run(SimBackend(cluster, specs), HadarPaper(), length_s=3600.0))
    summary = summarize(lines)
    assert summary.finished == summary.jobs == 20
    gpu_types = [str(gpu_type) for gpu_type in cluster.gpus_by_type]
    alone_s = {s.job_id: s.total_steps / s.throughputs.best(gpu_types, s.num_gpus) for s in specs}
    assert max(alone_s.values()) <= summary.ttd_s * (1 + 1e-9)
    assert summary.mean_jct_s >= sum(alone_s.values()) / len(specs) * (1 - 1e-9)
    assert all(not line["errors"] for line in lines)
    outbid = [why for line in lines for why in line["waiting"].values()]
    assert WaitReason.INFEASIBLE not in outbid
