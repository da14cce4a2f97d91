"""Mode `steer`: Slurm keeps the queue, and hadard limits the nodes and orders a user's own jobs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders import a_cluster, a_gang, a_job, a_queue_row, some_rates
from fakes.fake_slurm import Asked, FakeJob, FakeNode, FakeSlurm, Rejected
from fakes.fake_tools import FakeRunner

from hadar_slurm.core.cluster import JobId, NodeName, Slot
from hadar_slurm.core.gang import Gang
from hadar_slurm.core.gpu_types import Needs
from hadar_slurm.core.job import Job, Phase
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Action, Start, Status, Stop
from hadar_slurm.engine.gaps import gapped
from hadar_slurm.engine.modes import Mode, Modes
from hadar_slurm.engine.rate_limit import AT_ONCE
from hadar_slurm.errors import SlurmError, SlurmUnavailable
from hadar_slurm.handoff import ProgressReport, user_reports, write_report
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description, decode_or_none, digest
from hadar_slurm.jobspec.mark import split
from hadar_slurm.placement.limits import Limit, limits
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.parse import QueueRow, detail_of
from hadar_slurm.slurm.client.scontrol import command
from hadar_slurm.slurm.client.updates import Steer, Update
from hadar_slurm.slurm.enforce.claim import State
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.enforce.release_all import release_all
from hadar_slurm.slurm.settings import BackendSettings
from hadar_slurm.slurm.strategies.places import nice_values

BOTH = some_rates(v100=10.0, k80=1.0)
N1, N2 = NodeName("n1"), NodeName("n2")


def limit_of(job: Job, cluster: str, *, closed: Sequence[str] = ()) -> Limit:
    """Return the limit of a job that has no nodes named for it."""
    return limits([job], {}, (), a_cluster(cluster, closed=closed))[job.job_id]


def test_a_job_is_kept_to_the_nodes_of_its_gang_or_else_to_its_fastest_type() -> None:
    """The first waits for those nodes only; the second may start on any node of the type."""
    jobs = [a_job("1", throughputs=BOTH), a_job("2", throughputs=BOTH)]
    named = {JobId("1"): a_gang("n2:k80:1")}
    found = limits(jobs, named, (), a_cluster("2xv100,2xk80"))
    assert found == {JobId("1"): Limit((N1,), aimed=(N2,)), JobId("2"): Limit(excluded=(N2,))}


@pytest.mark.parametrize(
    ("cluster", "gpus", "closed", "excluded"),
    [
        # A fastest type without open nodes, or with too few for the gang, is none.
        ("2xv100,2xk80", 1, ("n1",), (N1,)),
        ("1xv100,2xk80", 2, (), (N1,)),
        # Slurm would choose the type on n2.
        ("2xv100,2xv100+2xk80", 1, (), (N2,)),
        # All nodes would be excluded: none is.
        ("2xv100+2xk80", 1, (), ()),
        ("2xp100", 1, (), ()),
    ],
)
def test_what_is_excluded(
    cluster: str, gpus: int, closed: Sequence[str], excluded: Sequence[NodeName]
) -> None:
    """A job is never left without a node."""
    job = a_job("1", gpus, throughputs=BOTH)
    assert limit_of(job, cluster, closed=closed) == Limit(excluded=tuple(excluded))


@pytest.mark.parametrize(("allowed", "excluded"), [({N1, N2}, (N2, "n3")), ({N1}, ())])
def test_a_narrowed_job_gets_no_slice_of_a_gpu_the_sooner(
    allowed: set[NodeName], excluded: Sequence[str]
) -> None:
    """A node of several types, which is not planned for it, stays open only if all nodes do."""
    job = replace(a_job("1", throughputs=BOTH), allowed_nodes=frozenset(allowed))
    found = limit_of(job, "1xv100,1xk80,1xv100+1xa100_1g.5gb")
    assert found == Limit(excluded=tuple(map(NodeName, excluded)))


def test_a_job_that_slurm_does_not_start_on_free_gpus_may_use_all_nodes_where_it_runs() -> None:
    """Nodes of types on which it does not run stay excluded."""
    job = a_job("1", throughputs=some_rates(v100=10.0, p100=1.0))
    named, cluster = {job.job_id: a_gang("n1:v100:1")}, a_cluster("2xv100,2xp100,2xk80")
    found = limits([job], named, {job.job_id}, cluster)
    assert found[job.job_id] == Limit(excluded=(NodeName("n3"),))


def row(key: str, priority: int, **given: object) -> QueueRow:
    """Return a pending job with a priority."""
    return a_queue_row(key=JobId(key), priority=priority, **given)


def priorities_after(
    rows: Sequence[QueueRow],
    first: Sequence[str],
    shown: Mapping[str, int],
    own: Mapping[str, int],
    urgent: Sequence[str] = (),
) -> dict[str, int]:
    """Return the priorities that one group of jobs has afterwards."""
    seen = {JobId(job): nice for job, nice in shown.items()}
    ids = [JobId(job) for job in first]
    found = nice_values(
        [rows], ids, seen, lambda job, _: own[job], {JobId(job) for job in urgent}, 1000
    )
    return {r.key: r.priority + seen[r.key] - found.get(r.key, seen[r.key]) for r in rows}


def test_a_users_jobs_exchange_their_own_places() -> None:
    """The places are those that the jobs would have without hadard, the owner's nice included."""
    rows = [row("1", 300), row("2", 200), row("3", 100)]
    shown = own = {"1": 0, "2": 0, "3": 50}
    assert priorities_after(rows, ["3", "1"], shown, own) == {"3": 300, "1": 200, "2": 100}


def test_an_order_that_holds_is_left_as_it_is() -> None:
    """Natural places drift: no update is sent for that."""
    rows = [row("1", 205), row("2", 200)]
    shown, own = {"1": -100, "2": 100}, {"1": 0, "2": 0}
    assert priorities_after(rows, ["1"], shown, own) == {"1": 205, "2": 200}


def test_a_successor_is_first_in_line_until_it_is_none() -> None:
    """It has a place above all others, and then its own again."""
    rows, own = [row("1", 300), row("2", 200)], {"1": 0, "2": 0}
    assert priorities_after(rows, ["2"], own, own, urgent=["2"]) == {"1": 300, "2": 51_000}
    rows, shown = [row("1", 300), row("2", 51_000)], {"1": 0, "2": -50_800}
    assert priorities_after(rows, [], shown, own) == {"1": 300, "2": 200}


def test_a_successor_that_has_no_age_yet_is_first_in_line_too() -> None:
    """Slurm gives a new job the priority 1; the user's other jobs exchange their own places."""
    rows = [row("1", 200), row("2", 1), row("3", 300)]
    own = {"1": 0, "2": 5, "3": 0}
    assert priorities_after(rows, ["2", "1"], own, own, urgent=["2"]) == {
        "1": 300,
        "2": 51_000,
        "3": 200,
    }


def test_no_nice_value_is_beyond_those_of_slurm() -> None:
    """Without the multifactor plug-in priorities begin near 2^32, and nice values end at 2^31."""
    jobs, own, most = [row("1", 1)], {JobId("1"): 0}, (1 << 31) - 3
    found = nice_values([jobs], [], own, lambda job, _: own[job], own.keys(), 4_294_901_760)
    assert found == {JobId("1"): -most}


def test_a_job_at_the_bottom_or_with_a_nice_value_in_doubt_keeps_it() -> None:
    """A priority of 1 hides a job's place; a job's name may imitate Slurm's output."""
    rows, first = [row("1", 300), row("2", 1), row("3", 100)], [JobId("2"), JobId("3")]
    shown = {JobId("1"): 0, JobId("2"): 0}
    assert nice_values([rows], first, shown, lambda job, nice: nice) == {}


@pytest.mark.parametrize(
    ("detail", "nodes", "nice"),
    [
        ("JobId=1 Nice=0 ExcNodeList=(null) NodeList=", (), 0),
        ("JobId=1 Nice=-7 ExcNodeList=n[1-2] NodeList=", (N1, N2), -7),
        ("JobId=1 JobName=x Nice=-5 Nice=0 ExcNodeList=(null) Comment= ExcNodeList=n1", (), None),
    ],
)
def test_texts_of_a_user_decide_nothing(
    detail: str, nodes: Sequence[NodeName], nice: int | None
) -> None:
    """Where a job's line shows two values, neither counts."""
    shown = detail_of(detail)
    assert (shown.excluded, shown.nice) == (tuple(nodes), nice)


def test_the_command_sets_and_empties() -> None:
    """It excludes nodes, or none, in any case: so Slurm refuses it once the job has started."""
    assert command(Steer(JobId("7"), (), "2-2", nice=-3))[3:] == [
        "ExcNodeList=",
        "NumNodes=2-2",
        "Nice=-3",
    ]
    assert command(Steer(JobId("7"), (N1, N2), clears_nodes=True))[3:] == [
        "ExcNodeList=n[1-2]",
        "ReqNodeList=",
    ]


STOP_1, STOP_2 = Stop(JobId("1"), 0, a_gang("n1:v100:1")), Stop(JobId("2"), 0, a_gang("n2:k80:1"))
TO_N1 = Start(JobId("9"), 0, a_gang("n1:v100:1"))
MOVE_1 = Start(JobId("1"), 0, a_gang("n2:k80:1"))
FREE_K80 = {Slot(N2, a_gang("n2:k80:1").slots[0][0].gpu_type): 1}


@pytest.mark.parametrize(
    ("actions", "free", "left_out"),
    [
        # 9 waits in the queue for the GPUs of 1.
        ([STOP_1, TO_N1], {}, []),
        # 1 would go to the GPUs of 2, which would be free until 1 has left its own.
        ([STOP_1, STOP_2, MOVE_1, TO_N1], {}, [STOP_2, MOVE_1]),
        ([STOP_1, MOVE_1, TO_N1], FREE_K80, []),
        # No job waits for them.
        ([STOP_1, STOP_2], {}, [STOP_1, STOP_2]),
        # The GPUs are free already: nothing has to be stopped.
        ([STOP_1, TO_N1], {Slot(N1, TO_N1.gang.slots[0][0].gpu_type): 1}, [STOP_1]),
    ],
)
def test_gpus_are_freed_only_for_jobs_that_wait_in_the_queue(
    actions: Sequence[Action], free: Mapping[Slot, int], left_out: Sequence[Action]
) -> None:
    """Others would be lost to plain jobs that wait."""
    assert gapped(actions, {JobId("9")}, free) == left_out


OLD, NEW = (22, 5, 8), (26, 5, 5)


class Site:
    """A modelled Slurm with a V100 and a K80 node, and hadard in mode `steer`."""

    def __init__(self, directory: Path, nodes: str = "v100:1,k80:1") -> None:
        self.directory = directory
        self.slurm = FakeSlurm(nodes, version=NEW, spool=directory / "elsewhere")
        self.soon: dict[JobId, Gang] = {}
        self.runner = FakeRunner(slurm=self.slurm)
        self.adapter = CommandLine(self.runner)
        self.backend = self.new_backend()

    @classmethod
    def filled(cls, directory: Path, nodes: str, version: tuple[int, int, int] = NEW) -> Site:
        """Return one with nodes of one GPU, of which each runs a job."""
        site = cls(directory, nodes)
        site.slurm.version = version
        for _ in site.slurm.nodes:
            site.submit()
        site.slurm.advance(1.0)
        return site

    def new_backend(self) -> SlurmBackend:
        """Return the backend of a hadard that has just started."""
        spool, modes = self.directory / "spool", Modes(Mode.STEER)
        return SlurmBackend(
            self.adapter,
            ThroughputTable("none", {}),
            BackendSettings(spool=spool, grace_s=60.0, modes=modes, pin_timeout_s=60.0),
            Ledger(self.directory / FILE_NAME, lambda: self.slurm.now_s),
            Mode.STEER,
            foresee=lambda snapshot: self.soon,
            now_s=lambda: self.slurm.now_s,
            sleep=self.slurm.advance,
        )

    def submit(self, **given: object) -> FakeJob:
        """Submit a job of one GPU that hadard manages."""
        described = Description(steps=100, throughputs={"v100": 10, "k80": 1}, checkpoint=True)
        return self.slurm.submit(Asked(per_job=(("", 1),)), comment=encode(described), **given)

    def release_all(self) -> list[str]:
        """Run `hadar release`, and return the faults."""
        ledger = Ledger(self.directory / FILE_NAME, lambda: self.slurm.now_s)
        answers = release_all(
            self.adapter, ledger, limit_s=10.0, now_s=lambda: self.slurm.now_s,
            sleep=self.slurm.advance,
        )  # fmt: skip
        return [answer.fault for answer in answers]

    def says_it_listens(self, job: FakeJob) -> None:
        """Write a report of the job's current run."""
        report = ProgressReport(restart=job.restarts, state="running", steps_done=7)
        reports = user_reports(self.directory / "spool", os.geteuid())
        write_report(reports, str(job.number), report)

    def apply(self, *actions: Action) -> list[Status]:
        """Observe and apply once."""
        self.backend.observe()
        return [outcome.status for outcome in self.backend.apply(actions)]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Return a site without jobs."""
    return Site(tmp_path)


def start(job: FakeJob, gang: str) -> Start:
    """Return the start of a job on a gang."""
    return Start(JobId(job.key), 0, a_gang(gang))


def test_a_job_that_waits_is_not_held(site: Site) -> None:
    """It is kept to its nodes, or off those of slower types, and Slurm starts it."""
    full = [site.submit(work_s=100.0), site.submit(work_s=50.0)]
    site.slurm.advance(1.0)
    first, second = site.submit(work_s=10.0), site.submit(work_s=10.0)
    site.soon = {JobId(first.key): a_gang("n2:k80:1")}
    site.apply()
    assert (first.asked.nodes, first.excluded, first.hold) == ((), ("n1",), "")
    assert (second.asked.nodes, second.excluded, second.hold) == ((), ("n2",), "")
    site.slurm.advance(60.0)
    assert (first.state, second.state) == ("COMPLETED", "PENDING")
    site.slurm.advance(60.0)
    assert [job.state for job in (*full, second)] == ["COMPLETED"] * 3


def test_a_job_that_is_only_kept_off_nodes_keeps_its_number_of_nodes(site: Site) -> None:
    """With a range that is set, such as 1-10000, Slurm starts it on as many nodes as are free."""
    for _ in range(2):
        site.submit(work_s=100.0)
    site.slurm.advance(1.0)
    job = site.submit()
    site.apply()
    assert (job.excluded, job.asked.max_nodes) == (("n2",), Asked().max_nodes)


def test_nothing_is_changed_where_slurm_has_it_so(site: Site) -> None:
    """A second look sends no command."""
    for _ in range(3):
        site.submit()
    site.slurm.advance(1.0)
    site.apply()
    written_ns = (site.directory / FILE_NAME).stat().st_mtime_ns
    site.apply()
    assert (site.directory / FILE_NAME).stat().st_mtime_ns == written_ns


def test_a_start_leaves_its_nodes_open_and_is_done_by_slurm(site: Site) -> None:
    """The job keeps its own request for GPUs, and runs as STARTING to the policy."""
    site.slurm.reserved = {"n1", "n2"}
    job = site.submit(work_s=10.0)
    assert site.apply(start(job, "n2:k80:1")) == [Status.DONE]
    assert (job.asked.nodes, job.excluded, job.asked.per_job) == ((), ("n1",), (("", 1),))
    assert (job.asked.min_nodes, job.asked.max_nodes) == (1, None)
    site.slurm.reserved = set()
    site.slurm.advance(1.0)
    assert (job.state, list(job.held)) == ("RUNNING", ["n2"])
    assert site.backend.observe().by_id[JobId(job.key)].allocation.gangs == (a_gang("n2:k80:1"),)


def test_a_job_that_would_get_fewer_gpus_than_planned_gets_a_new_request(tmp_path: Path) -> None:
    """It asks for one GPU on each of two nodes: of the only node that it names it would get one."""
    site = Site(tmp_path, "v100:2,v100:1")
    described = Description(steps=100, gpus=2, throughputs={"v100": 10.0})
    asked = Asked(per_node=(("", 1),), min_nodes=2, max_nodes=2)
    job = site.slurm.submit(asked, comment=encode(described))
    site.soon = {JobId(job.key): a_gang("n1:v100:2")}
    site.apply()
    assert (job.asked.nodes, job.hold) == ((), "")
    assert site.apply(start(job, "n1:v100:2")) == [Status.DONE]
    site.slurm.advance(1.0)
    assert (job.state, job.num_gpus, list(job.held)) == ("RUNNING", 2, ["n1"])


def test_a_successor_gets_the_gpus_of_the_job_that_makes_way(site: Site) -> None:
    """A plain job that has waited longer does not get them."""
    victim, other = site.submit(), site.submit()
    site.slurm.advance(1.0)
    for job in (victim, other):
        site.says_it_listens(job)
    plain = site.slurm.submit(Asked(per_job=(("", 1),)))
    successor = site.submit(work_s=10.0)
    gang = site.backend.observe().by_id[JobId(victim.key)].allocation.gangs[0]
    stop, begin = Stop(JobId(victim.key), 0, gang), Start(JobId(successor.key), 0, gang)
    needless = Stop(JobId(other.key), 0, a_gang("n2:k80:1"))
    assert site.apply(stop, needless, begin) == [Status.DONE, Status.DEFERRED, Status.DONE]
    site.slurm.advance(1.0)
    assert (successor.state, plain.state, other.state) == ("RUNNING", "PENDING", "RUNNING")
    # The victim waits in Slurm's queue again, not held.
    assert (victim.state, victim.hold) == ("PENDING", "")


def test_a_job_that_does_not_start_on_its_free_gpus_is_left_to_slurm(site: Site) -> None:
    """Something that hadard does not know keeps it from there: a reservation, cores, memory."""
    site.slurm.reserved = {"n1"}
    blocker = site.slurm.submit(Asked(per_job=(("", 1),), nodes=("n2",)), work_s=30.0)
    site.slurm.advance(1.0)
    job = site.submit()
    site.apply(start(job, "n1:v100:1"))
    site.slurm.advance(40.0)
    assert (blocker.state, job.state) == ("COMPLETED", "PENDING")
    site.apply(start(job, "n1:v100:1"))
    site.slurm.advance(40.0)
    site.apply(start(job, "n1:v100:1"))
    assert (job.asked.nodes, job.excluded) == ((), ())
    site.slurm.advance(1.0)
    assert (job.state, list(job.held)) == ("RUNNING", ["n2"])


def test_a_job_on_nodes_that_are_reserved_soon_is_left_to_slurm_at_once(site: Site) -> None:
    """Slurm says so at its first look; the job does not wait for the time limit of a start."""
    site.slurm.reserved = {"n1"}
    site.slurm.submit(Asked(per_job=(("", 1),), nodes=("n2",)), work_s=5.0)
    site.slurm.advance(1.0)
    job = site.submit()
    site.apply(start(job, "n1:v100:1"))
    site.slurm.advance(1.0)
    assert job.reason.startswith("ReqNodeNotAvail")
    site.apply(start(job, "n1:v100:1"))
    assert (job.asked.nodes, job.excluded) == ((), ())
    site.slurm.advance(10.0)
    assert (job.state, list(job.held)) == ("RUNNING", ["n2"])


def test_a_mark_that_its_user_wrote_gives_no_job_more(site: Site) -> None:
    """No longer limit than the job's, and no more nodes where each has GPUs."""
    mark = "[hadar:Nice=0;TimeLimit=99999;NumNodes=1-9]"
    one = site.slurm.submit(Asked(per_node=(("", 1),)), comment=f"mine{mark}", limit_min=10, nice=5)
    other = site.slurm.submit(Asked(per_job=(("", 2),)), comment=f"mine{mark}", limit_min=10)
    assert site.release_all() == ["", ""]
    for job in (one, other):
        assert (job.limit_min, job.nice, job.comment) == (10, 0, "mine")
    assert (one.asked.min_nodes, one.asked.max_nodes) == (1, None)
    site.slurm.submit(Asked(per_job=(("", 2),)), comment=f"mine{mark}", limit_min=10)
    site.apply()
    assert [job.limit_min for job in site.slurm.jobs] == [10] * 3


@pytest.mark.parametrize("has_ledger", [True, False])
@pytest.mark.parametrize("how", ["release", "restart", "observe"])
def test_what_was_set_is_undone(site: Site, how: str, has_ledger: bool) -> None:
    """`hadar release`, and a hadard that may no longer place the job, give all of it back.

    Where the ledger is lost, by the marks in the comments.
    """
    site.slurm.reserved = {"n1", "n2"}
    jobs = [site.submit(nice=5), site.submit(), site.submit()]
    site.apply(start(jobs[2], "n2:k80:1"))
    assert [job.excluded for job in jobs] == [("n2",), ("n2",), ("n1",)]
    assert jobs[2].nice < 0
    assert [split(job.comment)[1] for job in jobs] == [
        "[hadar:ExcNodeList=]",
        "[hadar:ExcNodeList=;Nice=0]",
        "[hadar:ExcNodeList=;Nice=0]",
    ]
    if not has_ledger:
        (site.directory / FILE_NAME).unlink()
    if how == "release":
        assert site.release_all() == ["", "", ""]
    else:
        site.backend = site.new_backend()
        if how == "observe":
            site.backend.settings = BackendSettings(spool=site.directory, modes=Modes(Mode.OBSERVE))
            site.backend.__post_init__()
        else:
            site.backend.is_off = lambda: True
        site.apply()
    assert [(j.asked.nodes, j.excluded, j.nice, j.hold) for j in jobs] == [
        ((), (), 5, ""),
        ((), (), 0, ""),
        ((), (), 0, ""),
    ]
    assert [split(job.comment)[1] for job in jobs] == ["", "", ""]


def test_what_hadar_sbatch_has_excluded_is_undone_too(site: Site) -> None:
    """hadard ends before it has seen the job; a job of the same user excludes nodes itself."""
    site.slurm.reserved = {"n1", "n2"}
    described = Description(steps=100, throughputs={"k80": 1.0})
    asked = Asked(per_job=(("", 1),))
    ours, theirs = (
        site.slurm.submit(asked, excluded=("n1",), comment=encode(description))
        for description in (replace(described, steered=digest(["n1"])), described)
    )
    for _ in range(2):
        site.release_all()
        assert (ours.excluded, theirs.excluded) == ((), ("n1",))
    assert (ours.asked.nodes, ours.hold) == ((), "")


@pytest.mark.parametrize("how", ["release", "start"])
def test_what_an_owner_excludes_before_hadard_sees_the_job_stays(tmp_path: Path, how: str) -> None:
    """In place of the nodes that hadar-sbatch has excluded: as while hadard is away."""
    site = Site(tmp_path, "v100:1,k80:1,v100:1")
    site.apply()
    site.slurm.reserved = {"n1", "n2", "n3"}
    described = Description(steps=100, throughputs={"v100": 10.0}, steered=digest(["n2"]))
    job = site.slurm.submit(Asked(per_job=(("", 1),)), comment=encode(described))
    job.excluded = ("n1",)
    if how == "start":
        site.apply(start(job, "n3:v100:1"))
        assert "n1" in job.excluded
    site.release_all()
    assert job.excluded == ("n1",)


def test_a_release_needs_no_details_of_jobs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only nodes that hadar-sbatch alone has excluded are known by them."""
    site.slurm.reserved = {"n1", "n2"}
    job = site.submit()
    site.apply()
    assert job.excluded == ("n2",)

    def fails(adapter: CommandLine) -> None:
        raise SlurmUnavailable("scontrol did not answer")

    monkeypatch.setattr(CommandLine, "read", fails)
    assert site.release_all() == [""]
    assert job.excluded == ()


def test_nodes_that_an_owner_excludes_or_names_are_theirs(site: Site) -> None:
    """A job gets none of the nodes that it excludes; one that names nodes is left to Slurm."""
    site.apply()
    site.slurm.reserved = {"n1", "n2"}
    excludes, names = site.submit(excluded=("n1",)), site.submit()
    site.apply()
    assert (excludes.excluded, names.excluded) == (("n1",), ("n2",))
    names.asked.nodes = ("n1",)
    site.apply()
    assert (names.asked.nodes, names.excluded) == (("n1",), ())
    [seen] = site.backend.observe().jobs
    assert (seen.job_id, seen.allowed_nodes) == (excludes.key, {"n2"})


def test_exclusions_of_hadard_and_of_the_owner_are_told_apart(tmp_path: Path) -> None:
    """The owner's stay when hadard adds its own and when it takes them back.

    Nodes that the owner sets while hadard's are set are never changed again.
    """
    site = Site(tmp_path, "v100:1,k80:1,v100:1")
    site.apply()
    site.slurm.reserved = {"n1", "n2", "n3"}
    job = site.submit(excluded=("n3",))
    site.apply()
    assert job.excluded == ("n2", "n3")
    assert site.release_all() == [""]
    assert job.excluded == ("n3",)
    site.apply()
    assert job.excluded == ("n2", "n3")
    job.excluded = ("n1",)
    for _ in range(2):
        site.apply()
        assert job.excluded == ("n1",)
    assert site.release_all() == []
    assert (job.excluded, job.hold) == (("n1",), "")


def test_a_number_of_nodes_that_its_owner_sets_is_kept(tmp_path: Path) -> None:
    """The job is left to Slurm from then on, also by a hadard that has just started."""
    site = Site(tmp_path, "v100:1,v100:1,v100:1,k80:1")
    site.slurm.reserved = {"n1", "n2", "n3", "n4"}
    described = Description(steps=100, gpus=2, throughputs={"v100": 10, "k80": 1})
    job = site.slurm.submit(Asked(per_job=(("", 2),)), comment=encode(described), nice=5)
    for _ in range(2):
        assert site.apply(start(job, "n1:v100:1 n2:v100:1")) == [Status.DONE]
        assert (job.asked.min_nodes, job.asked.max_nodes) == (2, 2)
    job.asked.min_nodes = job.asked.max_nodes = 3
    site.backend = site.new_backend()
    for _ in range(2):
        site.apply()
        assert (job.asked.min_nodes, job.asked.max_nodes) == (3, 3)
        assert (job.excluded, job.nice, job.hold, job.comment) == ((), 5, "", encode(described))
    assert site.release_all() == []


def test_a_job_between_two_runs_is_given_back_to_the_queue(site: Site) -> None:
    """hadard was killed between the requeue and the release: the next one releases the job."""
    job = site.submit()
    site.slurm.advance(1.0)
    site.says_it_listens(job)
    seen = site.backend.observe().by_id[JobId(job.key)]
    assert seen.phase is Phase.RUNNING
    site.apply(Stop(seen.job_id, 0, seen.allocation.gangs[0]))
    assert (job.state, job.hold) == ("PENDING", "")
    # Slurm shows the number of nodes of the last run, and may refuse that as a request.
    own = site.backend.ledger[JobId(job.key)].own
    assert own is not None
    assert own.num_nodes == "1-1"


def test_without_the_ledger_excluded_nodes_count_as_hadards(site: Site) -> None:
    """The owner's own exclusions keep a job from hadard at its submission."""
    site.slurm.reserved = {"n1", "n2"}
    job = site.submit()
    site.apply()
    (site.directory / FILE_NAME).unlink()
    site.backend = site.new_backend()
    site.apply()
    assert (job.excluded, site.backend.ledger[JobId(job.key)].excluded.ours) == (("n2",), (N2,))


def test_a_job_that_slurm_could_start_on_a_wrong_type_stays_held(tmp_path: Path) -> None:
    """Every node has such a type: hadard pins the job to GPUs of the right one."""
    site = Site(tmp_path)
    site.slurm = FakeSlurm("v100:1+k80:1", version=(26, 5, 5), spool=tmp_path / "elsewhere")
    site.adapter = CommandLine(FakeRunner(slurm=site.slurm))
    site.backend = site.new_backend()
    described = encode(Description(steps=100, throughputs={"v100": 10}, is_held=True))
    job = site.slurm.submit(Asked(per_job=(("", 1),)), comment=described, hold="user")
    site.apply()
    assert job.hold == "user"
    assert site.apply(start(job, "n1:v100:1")) == [Status.DONE]
    site.slurm.advance(1.0)
    assert (job.state, job.gpus) == ("RUNNING", {("n1", "v100"): 1})


def test_a_wait_in_slurms_queue_is_explained(site: Site) -> None:
    """The remark names the nodes and Slurm's own reason."""
    site.slurm.reserved = {"n1", "n2"}
    named, kept_off = site.submit(), site.submit()
    site.apply(start(named, "n2:k80:1"))
    site.slurm.advance(1.0)
    seen = site.backend.observe().by_id
    assert "may start on n2" in seen[JobId(named.key)].remarks[0]
    assert "may not start on n2" in seen[JobId(kept_off.key)].remarks[0]


def test_gpus_that_others_took_are_not_waited_for(site: Site) -> None:
    """The time on the named nodes counts only while their GPUs are free."""
    site.slurm.reserved = {"n1", "n2"}
    job = site.submit()
    site.apply(start(job, "n1:v100:1"))
    assert site.backend._pins.next_timeout_s() < float("inf")
    site.slurm.reserved = {"n2"}
    site.slurm.submit(Asked(per_job=(("", 1),), nodes=("n1",)), work_s=500.0, rank=0)
    job.begins_s = site.slurm.now_s + 30.0
    site.slurm.advance(1.0)
    site.backend.observe()
    assert site.backend._pins.next_timeout_s() == float("inf")


def with_limit(tmp_path: Path) -> tuple[Site, FakeJob]:
    """Return a waiting job with a time limit of ten minutes, given for V100s."""
    site = Site(tmp_path)
    site.apply()
    site.slurm.reserved = {"n1", "n2"}
    described = Description(
        limit_s=600.0, throughputs={"v100": 10, "k80": 1}, checkpoint=True, time_on="v100"
    )
    job = site.slurm.submit(Asked(per_job=(("", 1),)), comment=encode(described), limit_min=10)
    return site, job


def test_a_time_limit_is_that_of_the_type_and_given_back(tmp_path: Path) -> None:
    """Given for V100s, it is ten times as long on a K80; an owner's later limit is theirs."""
    site, job = with_limit(tmp_path)
    [seen] = site.backend.observe().jobs
    assert seen.spec.throughputs.gpu_types == ("k80", "v100")
    for node, gpu_type, minutes in (("n2", "k80", 100), ("n1", "v100", 10), ("n2", "k80", 100)):
        start = Start(JobId(job.key), 0, a_gang(f"{node}:{gpu_type}:1"))
        site.backend.observe()
        [outcome] = site.backend.apply([start])
        assert (outcome.status, {"n1", "n2"} - {*job.excluded}) == (Status.DONE, {node})
        assert job.limit_min == minutes
    assert site.release_all() == [""]
    assert job.limit_min == 10
    job.limit_min = 20
    site.backend.observe()
    site.backend.apply([start])
    assert job.limit_min == 200
    assert site.release_all() == [""]
    assert job.limit_min == 20


def test_an_owner_may_remove_a_time_limit_that_is_lent(tmp_path: Path) -> None:
    """It is then no limit of hadard's any more, in later rounds nor at the release."""
    site, job = with_limit(tmp_path)
    start = Start(JobId(job.key), 0, a_gang("n2:k80:1"))
    for limit_min in (100, 0, 0):
        site.backend.observe()
        site.backend.apply([start])
        assert job.limit_min == limit_min
        job.limit_min = 0
    assert site.release_all() == [""]
    assert (job.limit_min, job.excluded) == (0, ())


def test_a_job_is_kept_off_types_on_which_it_would_not_end_in_time(tmp_path: Path) -> None:
    """Its steps take longer there than its time limit, and the remark says so."""
    site = Site(tmp_path)
    site.apply()
    site.slurm.reserved = {"n1", "n2"}
    described = Description(steps=1000, limit_s=600.0, throughputs={"v100": 10, "k80": 1})
    site.slurm.submit(Asked(per_job=(("", 1),)), comment=encode(described), limit_min=10)
    [seen] = site.backend.observe().jobs
    assert seen.spec.throughputs.gpu_types == ("v100",)
    assert seen.remarks == ("what is left takes 0:16:40 on k80, where its time limit is 0:10:00",)
    # The partition allows no more than 15 minutes.
    site.slurm.most_time = "15:00"
    site.slurm.submit(
        Asked(per_job=(("", 1),)),
        comment=encode(replace(described, time_on="v100")),
        limit_min=10,
    )
    *_, last = site.backend.observe().jobs
    assert last.spec.throughputs.gpu_types == ("v100",)
    assert last.remarks == ("what is left takes 0:16:40 on k80, where its time limit is 0:15:00",)


def test_a_job_keeps_late_types_where_no_other_can_hold_it(tmp_path: Path) -> None:
    """It would end in time on V100s only, and there is one: it would never start."""
    site = Site(tmp_path, "v100:1,k80:2")
    site.apply()
    site.slurm.reserved = {"n1", "n2"}
    described = Description(gpus=2, steps=1000, limit_s=600.0, throughputs={"v100": 10, "k80": 1})
    site.slurm.submit(Asked(per_job=(("", 2),)), comment=encode(described), limit_min=10)
    [seen] = site.backend.observe().jobs
    assert seen.spec.throughputs.gpu_types == ("k80", "v100")
    assert seen.remarks == ()


def test_a_remark_names_the_types_that_lack_what_a_job_needs(tmp_path: Path) -> None:
    """So `hadar explain` shows it."""
    site = Site(tmp_path)
    site.apply()
    site.slurm.reserved = {"n1", "n2"}
    described = Description(limit_s=60.0, workload="A3C", needs=Needs(memory_gb=14.0))
    site.slurm.submit(Asked(per_job=(("", 1),)), comment=encode(described))
    [seen] = site.backend.observe().jobs
    assert seen.remarks[0] == "not on k80: its memory is 12 GB, 14 GB is needed"


def test_an_earlier_exclusion_is_hadards_after_a_restart_too(tmp_path: Path) -> None:
    """Slurm shows it again where it has ignored a change, or a new slurmctld has lost it."""
    site = Site(tmp_path, "v100:1,k80:1,v100:1")
    job = site.submit()
    site.slurm.reserved = {"n1", "n2", "n3"}
    site.apply(start(job, "n1:v100:1"))
    earlier = job.excluded
    site.apply(start(job, "n3:v100:1"))
    site.apply()
    assert set(job.excluded) != set(earlier)
    job.excluded = earlier
    (seen,) = site.new_backend().observe().jobs
    assert seen.allowed_nodes is None
    assert site.release_all() == [""]
    assert job.excluded == ()


def test_exclusions_of_the_owner_stay_while_slurms_answer_is_in_doubt(tmp_path: Path) -> None:
    """As the line of a job is whose next one has come between two readings."""
    site = Site(tmp_path, "v100:1,k80:1,v100:1")
    site.apply()
    site.slurm.reserved = {"n1", "n2", "n3"}
    described = Description(steps=100, throughputs={"v100": 10, "k80": 1}, excludes="n3")
    asked, comment = Asked(per_job=(("", 1),)), encode(described)
    jobs = [site.slurm.submit(asked, comment=comment, excluded=("n3",)) for _ in range(2)]

    def in_doubt() -> None:
        read = CommandLine.read(site.adapter)
        doubtful = replace(read, excluded={}, nice={})
        site.backend.slurm = replace(site.adapter)
        object.__setattr__(site.backend.slurm, "read", lambda: doubtful)
        site.apply()
        site.backend = site.new_backend()

    in_doubt()
    assert [job.excluded for job in jobs] == [("n2", "n3")] * 2
    site.apply()
    in_doubt()
    assert [job.excluded for job in jobs] == [("n2", "n3")] * 2
    assert site.release_all() == ["", ""]
    assert [job.excluded for job in jobs] == [("n3",)] * 2


def test_a_job_that_names_types_stays_on_them(tmp_path: Path) -> None:
    """Slurm starts a job that waits unheld with its request: the nodes of other types have none."""
    site = Site(tmp_path, "v100:1,k80:1,v100:1+k80:1")
    site.slurm.reserved = {"n1", "n2", "n3"}
    rates = {"v100": 10, "k80": 1}
    comment = encode(Description(steps=100, throughputs=rates, checkpoint=True))
    two = encode(Description(steps=100, gpus=2, throughputs=rates, checkpoint=True))
    slow = site.slurm.submit(Asked(per_job=(("k80", 1),)), comment=comment)
    both = site.slurm.submit(
        Asked(per_node=(("v100", 1), ("k80", 1)), min_nodes=1, max_nodes=1), comment=two
    )
    seen = site.backend.observe()
    assert [(job.job_id, job.bound_type) for job in seen.jobs] == [(slow.key, "k80")]
    site.backend.apply([])
    assert (slow.excluded, both.excluded, both.asked.nodes) == (("n1", "n3"), (), ())


@pytest.mark.parametrize("when", ["lent", "planned"])
@pytest.mark.parametrize(
    ("field", "value"), [("excluded", ("n3",)), ("excluded", ("n1",)), ("nice", 700)]
)
def test_what_an_owner_changes_is_never_written_again(
    tmp_path: Path, field: str, value: object, when: str
) -> None:
    """While hadard's value is set. What changes as a round is planned is given back later."""
    site = Site(tmp_path, "v100:1,k80:1,v100:1")
    site.slurm.reserved = {"n1", "n2", "n3"}
    jobs = [site.submit(), site.submit(), site.submit()]
    begin = start(jobs[2], "n2:k80:1")
    if when == "lent":
        site.apply(begin)
        assert (jobs[2].excluded, jobs[2].nice < 0) == (("n1", "n3"), True)
    site.backend.observe()
    setattr(jobs[2], field, value)
    site.backend.apply([begin])
    if field == "nice" or when == "lent":
        assert getattr(jobs[2], field) == value
    else:
        assert {*value} <= {*jobs[2].excluded}  # type: ignore[misc]
    for _ in range(2 * (when == "lent")):
        site.apply(*[begin] * (field == "nice"))
        assert getattr(jobs[2], field) == value
    assert set(site.release_all()) <= {""}
    assert getattr(jobs[2], field) == value
    assert [job.nice for job in jobs[:2]] == [0, 0]
    assert [job.excluded for job in jobs[:2]] == [(), ()]


def test_a_time_limit_that_an_owner_changes_is_never_written_again(tmp_path: Path) -> None:
    """Nor is an earlier one given back."""
    site, job = with_limit(tmp_path)
    site.apply(start(job, "n2:k80:1"))
    assert job.limit_min == 100
    job.limit_min = 45
    for gang in ("n1:v100:1", "n2:k80:1"):
        site.apply(start(job, gang))
        assert job.limit_min == 45
    assert site.release_all() == [""]
    assert job.limit_min == 45


def test_a_job_whose_owner_takes_back_what_kept_it_off_wrong_types_is_held(site: Site) -> None:
    """hadard excludes no nodes beside those that the owner has set since."""
    site.slurm.reserved = {"n1", "n2"}
    comment = encode(Description(steps=100, throughputs={"v100": 10}))
    job = site.slurm.submit(Asked(per_job=(("", 1),)), comment=comment)
    site.apply()
    assert (job.excluded, job.hold) == (("n2",), "")
    job.excluded = ()
    site.apply()
    assert (job.excluded, job.hold) == ((), "user")
    site.slurm.reserved = set()
    assert site.apply(start(job, "n1:v100:1")) == [Status.DONE]
    site.slurm.advance(1.0)
    assert (job.state, list(job.held), job.excluded) == ("RUNNING", ["n1"], ())


def spread(tmp_path: Path) -> tuple[Site, FakeJob, Start]:
    """Return a job of two GPUs that hadard aims at two nodes, and that start."""
    site = Site(tmp_path, "v100:1,v100:1,k80:2")
    site.slurm.reserved = {"n1", "n2", "n3"}
    described = Description(steps=100, gpus=2, throughputs={"v100": 10, "k80": 1})
    job = site.slurm.submit(Asked(per_job=(("", 2),)), comment=encode(described))
    return site, job, Start(JobId(job.key), 0, a_gang("n1:v100:1 n2:v100:1"))


@pytest.mark.parametrize("is_made", [False, True])
@pytest.mark.parametrize("how", ["steer", "release"])
def test_a_number_of_nodes_is_given_back_after_an_update_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, is_made: bool
) -> None:
    """It would leave a job with one open node and a request for two."""
    site, job, begin = spread(tmp_path)
    site.apply(begin)
    assert (job.asked.min_nodes, job.asked.max_nodes) == (2, 2)
    change = CommandLine.change

    def unanswered(adapter: CommandLine, changes: Sequence[Update]) -> list[SlurmError | None]:
        if is_made:
            change(adapter, changes)
        return [SlurmUnavailable("no answer") for _ in changes]

    with monkeypatch.context() as patch:
        patch.setattr(CommandLine, "change", unanswered)
        site.apply(start(job, "n3:k80:2"))
    assert (job.asked.max_nodes == 2) is not is_made
    if how == "steer":
        assert site.apply(start(job, "n3:k80:2")) == [Status.DONE]
        assert job.excluded == ("n1", "n2")
    else:
        assert site.release_all() == [""]
        assert job.excluded == ()
    assert (job.asked.min_nodes, job.asked.max_nodes) == (1, 10_000)


@pytest.mark.parametrize("maximum", [None, 1])
def test_a_number_of_nodes_that_hadard_has_not_set_stays(site: Site, maximum: int | None) -> None:
    """The range of a job that is aimed at one node does, and one that its owner sets later."""
    site.slurm.reserved = {"n1", "n2"}
    job = site.submit()
    site.apply(start(job, "n2:k80:1"))
    job.asked.max_nodes = maximum
    assert site.release_all() == [""]
    assert (job.excluded, job.asked.max_nodes) == ((), maximum)


@pytest.mark.parametrize("how", ["release", "start"])
def test_exclusions_that_an_owner_sets_after_clearing_hadards_stay(
    tmp_path: Path, how: str
) -> None:
    """Nothing of hadard is left among them, though hadar-sbatch had excluded some."""
    site = Site(tmp_path, "v100:1,k80:1,v100:1")
    site.apply()
    site.slurm.reserved = {"n1", "n2", "n3"}
    described = Description(
        steps=100, throughputs={"v100": 10, "k80": 1}, steered=digest(["n2"]), excludes=""
    )
    asked, comment = Asked(per_job=(("", 1),)), encode(described)
    job = site.slurm.submit(asked, comment=comment, excluded=("n2",))
    site.apply()
    assert job.excluded == ("n2",)
    for excluded in ((), ("n3",)):
        job.excluded = excluded
        site.apply()
        assert job.excluded == excluded
    if how == "start":
        site.apply(start(job, "n3:v100:1"))
    else:
        site.release_all()
    assert job.excluded == ("n3",)


def test_a_successor_whose_owner_changes_its_exclusions_stands_where_it_did(site: Site) -> None:
    """hadard steers it no longer: it would be first in line until it starts."""
    victim = site.submit()
    site.slurm.submit(Asked(per_job=(("", 1),)))
    site.slurm.advance(1.0)
    site.says_it_listens(victim)
    successor = site.submit(nice=5)
    gang = site.backend.observe().by_id[JobId(victim.key)].allocation.gangs[0]
    site.slurm.reserved = {"n1", "n2"}
    site.apply(Stop(JobId(victim.key), 0, gang), Start(JobId(successor.key), 0, gang))
    assert successor.nice < -10_000
    successor.excluded = ()
    site.apply()
    assert (successor.nice, successor.excluded, successor.hold) == (5, (), "")


def test_a_held_job_whose_owner_has_set_its_exclusions_is_released_into_the_queue(
    site: Site,
) -> None:
    """hadard adds none to them, and needs none: the job runs on all types."""
    site.slurm.reserved = {"n1", "n2"}
    described = Description(steps=100, throughputs={"v100": 10, "k80": 1}, is_held=True)
    job = site.slurm.submit(Asked(per_job=(("", 1),)), comment=encode(described))
    site.apply()
    assert job.excluded == ("n2",)
    key, job.excluded = JobId(job.key), ()
    site.backend.observe()
    claim = site.backend.ledger[key]
    assert claim.excluded.is_kept
    site.slurm.hold(job, "user")
    site.backend.ledger.note({key: replace(claim, state=State.HELD)})
    site.apply()
    assert (job.hold, job.excluded) == ("", ())


@pytest.mark.parametrize("how", ["steer", "release"])
def test_a_job_that_hadards_exclusions_make_impossible_is_let_go(tmp_path: Path, how: str) -> None:
    """Such as one with more memory than the nodes of its fastest type have."""
    site = Site(tmp_path)
    site.slurm = FakeSlurm("v100:1,k80:1", version=(22, 5, 8), spool=tmp_path / "elsewhere")
    site.adapter = CommandLine(FakeRunner(slurm=site.slurm))
    site.backend = site.new_backend()
    for name in ("n1", "n2"):
        site.slurm.submit(Asked(per_job=(("", 1),), nodes=(name,)), work_s=100.0)
    site.slurm.advance(1.0)
    job = site.submit()
    job.kept_types = {"k80"}
    site.apply()
    site.slurm.advance(1.0)
    assert (job.excluded, job.hold, job.reason) == (("n2",), "user", "BadConstraints")
    for _ in range(3):
        if how == "release":
            assert set(site.release_all()) <= {""}
        else:
            site.apply()
        site.slurm.advance(1.0)
        assert (job.hold, job.reason, job.excluded) == ("", "Resources", ())
    site.slurm.advance(100.0)
    assert (job.state, list(job.held)) == ("RUNNING", ["n2"])


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("Access/permission denied", Status.REFUSED),
        ("Job is no longer pending execution", Status.DEFERRED),
        ("Job can not be altered now, try again later", Status.DEFERRED),
    ],
)
def test_a_refused_start_is_told_from_one_that_came_too_late(
    site: Site, words: str, status: Status
) -> None:
    """A round of which Slurm refuses all starts has failed; a race with Slurm is none."""
    site.slurm.reserved = {"n1", "n2"}
    job = site.submit()
    site.backend.slurm = CommandLine(
        FakeRunner(slurm=site.slurm, before=[lambda argv: words if "update" in argv else None])
    )
    assert site.apply(start(job, "n2:k80:1")) == [status]
    assert job.excluded == ()


@pytest.mark.parametrize(
    ("version", "is_lent", "left"),
    [
        (OLD, False, ("n3",)),
        (OLD, True, ()),
        (NEW, False, ("n3",)),
        # Slurm takes no change of it.
        (NEW, True, ("n2", "n3")),
    ],
)
def test_a_job_that_excludes_a_node_which_has_left_slurm_is_left_to_slurm(
    tmp_path: Path,
    version: tuple[int, int, int],
    is_lent: bool,
    left: tuple[str, ...],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """hadard says so once, gives back what it can, and tries no more until the node is back."""
    site = Site.filled(tmp_path, "v100:1,k80:1,k80:1", version)
    job = site.submit(excluded=("n3",))
    if is_lent:
        site.apply()
        assert job.excluded == ("n2", "n3")
        site.soon = {JobId(job.key): a_gang("n2:k80:1")}
    del site.slurm.nodes["n3"]
    with caplog.at_level(logging.INFO):
        for _ in range(4):
            site.apply()
    assert job.excluded == left
    assert caplog.text.count("is left to Slurm: it excludes a node") == 1
    sent: list[Sequence[str]] = []
    site.runner.before.append(lambda argv: sent.append(argv) if "update" in argv else None)
    site.apply()
    assert sent == []
    site.slurm.nodes["n3"] = FakeNode("n3", {"k80": 1})
    site.soon = {}
    site.apply()
    assert job.excluded == ("n2", "n3")


def test_a_job_that_excludes_a_node_which_has_left_slurm_is_left_alone_as_it_runs(
    tmp_path: Path,
) -> None:
    """Requeued for other GPUs, it could not be given them."""
    site = Site.filled(tmp_path, "v100:1,k80:1,k80:1")
    job = site.submit(excluded=("n3",))
    del site.slurm.nodes["n3"]
    site.apply()
    key = JobId(job.key)
    assert key in site.backend.ledger.unlistable
    site.slurm.end(site.slurm.jobs[0], "COMPLETED")
    site.slurm.advance(1.0)
    assert job.state == "RUNNING"
    site.backend.observe()
    assert key in site.backend.ledger.unlistable
    job.excluded = ()
    site.backend.observe()
    assert key not in site.backend.ledger.unlistable


def test_a_job_that_excludes_a_node_without_gpus_is_steered_once_that_is_back(
    tmp_path: Path,
) -> None:
    site = Site.filled(tmp_path, "v100:1,k80:1,k80:1")
    site.slurm.nodes["n4"] = FakeNode("n4", {})
    job = site.submit(excluded=("n4",))
    del site.slurm.nodes["n4"]
    site.apply()
    site.apply()
    assert job.excluded == ("n4",)
    site.slurm.nodes["n4"] = FakeNode("n4", {})
    site.apply()
    assert job.excluded == ("n2", "n3", "n4")


def test_what_is_lent_is_given_back_but_for_nodes_that_have_left_slurm(tmp_path: Path) -> None:
    """By `hadar release`."""
    site = Site.filled(tmp_path, "v100:1,k80:1,k80:1,k80:1", OLD)
    job = site.submit(excluded=("n3", "n4"))
    site.apply()
    assert job.excluded == ("n2", "n3", "n4")
    del site.slurm.nodes["n3"]
    assert site.release_all() == [""]
    assert job.excluded == ("n4",)


def test_a_round_writes_the_ledger_a_few_times_however_many_jobs_it_changes(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is about to be done is recorded once, though jobs are changed in parts."""
    site.slurm.reserved = {"n1", "n2"}
    jobs = [site.submit() for _ in range(3 * AT_ONCE)]
    site.backend.observe()
    written = []
    replace_file = Ledger._replace
    monkeypatch.setattr(
        Ledger, "_replace", lambda *given: (written.append(len(given[1])), replace_file(*given))
    )
    site.backend.apply([])
    assert all(job.excluded for job in jobs)
    assert len(written) <= 3
    assert written[-1] == len(jobs)


@pytest.mark.parametrize("is_edited", [False, True])
def test_a_hadard_that_dies_before_it_sends_what_it_has_recorded_harms_no_job(
    site: Site, monkeypatch: pytest.MonkeyPatch, is_edited: bool
) -> None:
    """The next one, or `hadar release`, finds the owners' values where nothing was sent."""
    site.slurm.reserved = {"n1", "n2"}
    jobs = [site.submit() for _ in range(2 * AT_ONCE)]
    site.backend.observe()
    attempt = Ledger.attempt

    def dies(ledger: Ledger, *given: Any, **more: Any) -> dict[JobId, SlurmError]:
        if any(job.excluded for job in jobs):
            raise KeyboardInterrupt
        return attempt(ledger, *given, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Ledger, "attempt", dies)
        with pytest.raises(KeyboardInterrupt):
            site.backend.apply([])
    unsent = [job for job in jobs if not job.excluded]
    assert len(unsent) == AT_ONCE
    assert len([*Ledger(site.directory / FILE_NAME)]) == len(jobs)
    if is_edited:
        unsent[0].excluded = ("n1",)
        site.backend = site.new_backend()
        site.apply()
        assert unsent[0].excluded == ("n1",)
        assert all(job.excluded for job in unsent)
    assert set(site.release_all()) <= {""}
    assert [job.excluded for job in jobs if job.excluded] == [("n1",)] * is_edited


def test_a_release_within_a_round_is_no_edit_of_the_owners(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an operator, or by the reaper of a hadard that hung: the rest of the round knows of it."""
    site.slurm.reserved = {"n1", "n2"}
    jobs = [site.submit() for _ in range(4 * AT_ONCE)]
    site.apply()
    for job in jobs[::2]:
        site.soon[JobId(job.key)] = a_gang("n2:k80:1")
    attempt, parts = Ledger.attempt, []

    def releases(ledger: Ledger, *given: Any, **more: Any) -> dict[JobId, SlurmError]:
        faults = attempt(ledger, *given, **more)
        parts.append(len(given[1]))
        if len(parts) == 1:
            with monkeypatch.context() as patched:
                patched.setattr(Ledger, "attempt", attempt)
                assert set(site.release_all()) <= {""}
        return faults

    monkeypatch.setattr(Ledger, "attempt", releases)
    site.apply()
    assert len(parts) > 1
    written = Ledger(site.directory / FILE_NAME)
    assert not any(written[JobId(job.key)].excluded.is_kept for job in jobs)
    assert all(written[JobId(job.key)].steers for job in jobs if job.excluded)


def test_refused_changes_of_jobs_that_are_not_held_fail_no_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait for nothing of hadard's: one user's jobs would end the heartbeat for all."""
    site = Site(tmp_path, "v100:1,k80:1")
    for _ in range(2):
        site.submit(user="alice", work_s=1000.0)
        site.slurm.advance(1.0)
    refused = [site.submit(user="bob") for _ in range(3)]
    site.submit(user="alice")
    site.apply()
    for job in refused:
        described = decode_or_none(split(job.comment)[0])
        assert described is not None
        job.comment = encode(replace(described, leaves=True))
    update = site.slurm.update

    def refusing(job: FakeJob, changes: Iterable[tuple[str, str]]) -> None:
        if job.user == "bob":
            raise Rejected("Requested partition configuration not available now")
        update(job, changes)

    monkeypatch.setattr(site.slurm, "update", refusing)
    assert site.apply() == []
    assert all(job.excluded for job in refused)
