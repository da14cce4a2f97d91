"""Starting a job does not undo what its owner or an operator changed meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm, parse_gpus
from fakes.fake_tools import UNREACHABLE, FakeRunner

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Start, Status
from hadar_slurm.engine.loan import Loan
from hadar_slurm.engine.modes import Mode, Modes
from hadar_slurm.engine.rate_limit import AT_ONCE
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.state import SlurmState
from hadar_slurm.slurm.enforce.claim import Claim, State
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.jobs.observation import Observation
from hadar_slurm.slurm.settings import BackendSettings
from hadar_slurm.slurm.strategies.starts import Starts
from hadar_slurm.slurm.strategies.stops import Stops

ON_N2 = Gang.of({("n2", "v100"): 2})


def updating(key: str, value: str) -> Callable[[FakeSlurm, FakeJob], None]:
    """Return an edit of an owner."""
    return lambda fake, job: fake.update(job, [(key, value)])


def by_operator(fake: FakeSlurm, job: FakeJob) -> None:
    """Replace a hold of hadard."""
    fake.hold(job, "admin")
    job.reason = "JobHeldAdmin"


EDITS: dict[str, Callable[[FakeSlurm, FakeJob], None]] = {
    "other nodes": updating("ReqNodeList", "n1"),
    "the nodes of the plan": updating("ReqNodeList", "n2"),
    "excluded nodes": updating("ExcNodeList", "n2,n4"),
    "no excluded nodes": updating("ExcNodeList", ""),
    "features": updating("Features", "v100"),
    "number of nodes": updating("NumNodes", "1-1"),
    "begin time": updating("StartTime", "now+3600"),
    "time limit": updating("TimeLimit", "77"),
    "GPUs": updating("TresPerJob", "gres:gpu:1"),
    "description": updating("Comment", "mine now"),
    "release": lambda fake, job: fake.release(job),
    "hold of an operator": by_operator,
}


class Mover(Stops, Starts):
    """Carries out both."""


class Bench:
    """A cluster with a job that hadard holds, and a mover."""

    def __init__(self, directory: Path) -> None:
        self.fake = FakeSlurm(",".join(["v100:4"] * 2 * AT_ONCE))
        self.runner = FakeRunner(slurm=self.fake)
        self.ledger = Ledger(directory / FILE_NAME)
        described = Description(steps=5, gpus=2, throughputs={"v100": 1.0}, is_held=True)
        asked = Asked(per_job=parse_gpus("gpu:2"))
        self.others, self.job = (
            [
                self.fake.submit(asked, hold="user", comment=encode(described), limit_min=90)
                for _ in range(AT_ONCE)
            ],
            self.fake.submit(asked, hold="user", comment=encode(described), limit_min=90),
        )
        claims = {JobId(job.key): Claim(state=State.HOLDING) for job in self.fake.jobs}
        self.ledger.note(claims)
        self.slurm = CommandLine(self.runner)
        self.mover = Mover(
            slurm=self.slurm,
            ledger=self.ledger,
            settings=BackendSettings(spool=directory, grace_s=1.0),
            pause=self.fake.advance,
            now_s=lambda: self.fake.now_s,
            seen=Observation(),
            state=SlurmState({}, (), {}),
        )

    def start(self, *others: FakeJob) -> Status:
        """Start the job on n2, after `others` on further nodes, and return the status."""
        action = Start(JobId(self.job.key), 0, ON_N2)
        before = [
            Start(JobId(job.key), 0, Gang.of({(f"n{number}", "v100"): 2}))
            for number, job in enumerate(others, start=3)
        ]
        return self.mover.start([*before, action])[action].status

    def edit(self, name: str) -> None:
        """Have the job's owner change it."""
        EDITS[name](self.fake, self.job)

    @property
    def shown(self) -> list[object]:
        """What an owner may change of a job that waits."""
        job, asked = self.job, self.job.asked
        numbers = asked.min_nodes, asked.max_nodes, asked.per_job, asked.per_node
        places = asked.nodes, job.excluded, job.features, job.partition, job.qos
        return [*numbers, *places, job.limit_min, job.begins_s, job.hold, job.comment]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    """Return a cluster of which nodes and jobs are more than hadard changes at once."""
    return Bench(tmp_path)


def test_a_job_under_our_hold_starts(bench: Bench) -> None:
    assert bench.start() is Status.DONE
    assert bench.job.hold == ""


def test_a_hold_of_its_owner_stays(bench: Bench) -> None:
    """hadard has released the job before, so the hold is not hadard's."""
    key = JobId(bench.job.key)
    bench.ledger.note({key: Claim(state=State.RELEASED)})
    assert bench.start() is Status.DEFERRED
    assert bench.job.hold == "user"


def test_nodes_that_its_owner_has_named_stay(bench: Bench) -> None:
    bench.job.asked = replace(bench.job.asked, nodes=(NodeName("n1"),))
    assert bench.start() is Status.DEFERRED
    assert bench.job.asked.nodes == ("n1",)


def test_an_operators_hold_between_pin_and_release_stays(bench: Bench) -> None:
    """It replaces hadard's hold after the request has been set."""

    def hold(argv: Sequence[str]) -> None:
        if argv[0] == "squeue" and bench.job.asked.nodes:
            bench.fake.hold(bench.job, "admin")
            bench.job.reason = "JobHeldAdmin"

    bench.runner.before.append(hold)
    assert bench.start() is Status.DEFERRED
    assert bench.job.hold == "admin"


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("when", ["after the plan", "as Slurm is read", "as others are changed"])
def test_a_job_that_its_owner_has_changed_since_the_plan_is_not_started(
    bench: Bench, name: str, when: str
) -> None:
    """Nor is it changed, cleared or held."""
    after: list[list[object]] = []

    def edit(argv: Sequence[str]) -> None:
        is_read = when == "as Slurm is read" and "node" in argv
        is_changed = when == "as others are changed" and bench.others[0].asked.nodes
        if not after and (is_read or is_changed):
            bench.edit(name)
            after.append(bench.shown)

    bench.ledger.note({JobId(bench.job.key): Claim(state=State.HELD, pinned=(NodeName("n2"),))})
    bench.job.excluded = ("n1",)
    bench.mover.state = bench.slurm.read()
    if when == "after the plan":
        bench.edit(name)
        after.append(bench.shown)
    bench.runner.before.append(edit)
    others = bench.others if when == "as others are changed" else []
    assert bench.start(*others) is Status.DEFERRED
    assert [bench.shown] == after
    assert all(job.state == "RUNNING" or job.asked.nodes for job in others)


@pytest.mark.parametrize("was", [(), (NodeName("n1"),)])
def test_nodes_that_its_owner_excludes_as_it_is_started_stay_its_owners(
    bench: Bench, was: tuple[NodeName, ...]
) -> None:
    """hadard had excluded n4 beside the owner's; the next round chooses among the others."""
    key, ours = JobId(bench.job.key), (NodeName("n4"), *was)
    bench.job.excluded = ours
    bench.ledger.note({key: Claim(state=State.HELD, excluded=Loan(ours, ours, was))})
    bench.mover.state = bench.slurm.read()
    bench.edit("excluded nodes")
    assert bench.start() is Status.DEFERRED
    assert bench.job.excluded == ("n2", "n4")
    assert bench.ledger[key].excluded.is_kept
    assert bench.ledger[key].excluded.owners == ("n2", "n4")


def test_what_hadard_has_set_since_the_plan_is_no_edit(bench: Bench) -> None:
    """Such as excluded nodes, in the same round."""
    bench.mover.state = bench.slurm.read()
    bench.job.excluded = ours = (NodeName("n4"),)
    lent = Claim(state=State.HELD, excluded=Loan(ours, (), ()))
    bench.ledger.note({JobId(bench.job.key): lent})
    assert bench.start() is Status.DONE
    assert bench.job.excluded == ()


def test_what_a_requeue_changes_is_no_edit(bench: Bench) -> None:
    """Slurm gives a job that runs the time limit of its partition, and takes it back."""
    key, state = JobId(bench.job.key), bench.slurm.read()
    ran = replace(state.queue[key], state="RUNNING", priority=1, partition="main", started_s=1.0)
    limits_s = {**state.limits_s, key: 31_536_000.0}
    bench.mover.state = replace(state, queue={**state.queue, key: ran}, limits_s=limits_s)
    assert bench.start() is Status.DONE


def test_jobs_that_cannot_be_read_again_are_not_started(bench: Bench) -> None:
    """Slurm goes away as others are changed."""

    def leave(argv: Sequence[str]) -> None:
        bench.fake.is_away |= bool(bench.others[0].asked.nodes)

    bench.mover.state = bench.slurm.read()
    bench.runner.before.append(leave)
    before = bench.shown
    assert bench.start(*bench.others) is Status.DEFERRED
    assert bench.shown == before


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_hold_that_comes_late_is_hadards(bench: Bench, is_answered: bool) -> None:
    """Slurm answers no command for a while, and carries one out after it has been read again."""
    key = JobId(bench.job.key)
    bench.job.hold, bench.job.reason = "", "Resources"
    bench.ledger.note({key: Claim(state=State.RELEASED)})

    def say_nothing(argv: Sequence[str]) -> str:
        return UNREACHABLE if argv[:2] == ["scontrol", "uhold"] else ""

    if not is_answered:
        bench.runner.before.append(say_nothing)
    bench.mover.hold_timed_out([key])
    bench.fake.release(bench.job)
    bench.ledger.see(bench.slurm, bench.slurm.queue().values())
    assert not bench.ledger[key].holds
    bench.ledger.note({})
    bench.fake.hold(bench.job, "user")
    ledger = Ledger(bench.ledger.path)
    ledger.see(bench.slurm, bench.slurm.queue().values())
    assert ledger[key].holds is not is_answered


def test_a_backend_compares_with_the_reading_of_its_plan(bench: Bench, tmp_path: Path) -> None:
    """The features of the job change while the round plans."""
    settings = BackendSettings(spool=tmp_path, modes=Modes(Mode.HOLD))
    table = ThroughputTable("none", {})
    backend = SlurmBackend(
        bench.slurm, table, settings, bench.ledger, now_s=lambda: bench.fake.now_s
    )
    start = Start(JobId(bench.job.key), 0, ON_N2)
    backend.observe()
    bench.edit("features")
    before = bench.shown
    assert [outcome.status for outcome in backend.apply([start])] == [Status.DEFERRED]
    assert bench.shown == before
    backend.observe()
    assert [outcome.status for outcome in backend.apply([start])] == [Status.DONE]


def test_a_job_that_starts_as_it_is_pinned_is_hadards_again_in_the_next_round(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Slurm says of a change of its nodes what it says of a node that is gone (22.05.8)."""
    bench.job.hold, bench.job.reason = "", "Resources"
    bench.ledger.note({JobId(bench.job.key): Claim(state=State.RELEASED)})
    caplog.set_level(logging.INFO)
    held: list[Sequence[str]] = []

    def start(argv: Sequence[str]) -> None:
        if argv[:2] == ["scontrol", "uhold"]:
            held.append(argv)
            bench.fake.advance(1.0)

    settings = BackendSettings(spool=tmp_path, modes=Modes(Mode.HOLD))
    table = ThroughputTable("none", {})
    backend = SlurmBackend(
        bench.slurm, table, settings, bench.ledger, now_s=lambda: bench.fake.now_s
    )
    backend.observe()
    bench.runner.before.append(start)
    (outcome,) = backend.apply([Start(JobId(bench.job.key), 0, ON_N2)])
    assert (bench.job.state, outcome.status, len(held)) == ("RUNNING", Status.REFUSED, 1)
    assert "Invalid node name" in outcome.detail
    backend.observe()
    backend.apply([])
    assert JobId(bench.job.key) in backend.observe().by_id
    assert "a node that is gone" not in caplog.text
