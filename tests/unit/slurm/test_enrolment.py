"""Which jobs are enrolled, what they are described as, and which are left to Slurm and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from builders import a_gang, a_queue_row
from fakes.fake_slurm import Asked, FakeJob, FakeSlurm
from fakes.fake_tools import FakeRunner
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.cluster import JobId
from hadar_slurm.core.job import Shape
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.engine.actions import Start, Status, Stop
from hadar_slurm.engine.modes import Mode, Modes
from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.gres import asked_gpus
from hadar_slurm.jobspec.opting_out import is_opted_out, with_opt_out
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.backend import SlurmBackend
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.parse import QueueRow
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.submission import Submission, read_submissions, submission
from hadar_slurm.slurm.enforce.ledger import FILE_NAME, Ledger
from hadar_slurm.slurm.jobs.enrolment import MOST_TASKS, describe, is_listed, may_enrol
from hadar_slurm.slurm.settings import BackendSettings

LISTS = {"partitions": {"main", "long"}, "accounts": {"bio"}}


def a_row(request: Request | None = None, **given: object) -> QueueRow:
    """Return a pending job that requests `request`, by default two GPUs."""
    request = request or Request(per_job="gres:gpu:2")
    others = (request.per_job, request.per_task, request.per_socket)
    gpus = {
        "gpus_per_node": asked_gpus(request.per_node),
        "gpus_otherwise": sum(map(asked_gpus, others), ()),
    }
    return a_queue_row(**{"request": request, "account": "bio", **gpus, **given})


def asked(**given: object) -> Submission:
    """Return what a job with a time limit asked for on one node."""
    usual: dict[str, object] = {"name": "train.sh", "limit_s": 600.0, "least_nodes": 1}
    return Submission(**{**usual, **given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "is_in"),
    [
        ({}, True),
        ({"partition": "main,long"}, True),
        ({"partition": "main,debug"}, False),
        ({"account": ""}, False),
        ({"comment": "my words"}, True),
        ({"comment": "my words,no-hadar"}, False),
        ({"comment": encode(Description(limit_s=60, workload="job:x", gpus=2))}, False),
        ({"comment": '{"hadar": 9}'}, False),
        ({"gpus_otherwise": ()}, False),
    ],
)
def test_a_job_is_enrolled_if_all_lists_have_it(given: dict[str, object], *, is_in: bool) -> None:
    """Unless its owner has opted out, hadar-sbatch has described it, or it has no GPUs."""
    assert may_enrol(a_row(**given), LISTS) is is_in


def test_without_lists_no_job_is_enrolled() -> None:
    """The default configuration enrols nothing."""
    assert not is_listed(a_row(), {})


@given(st.text(st.sampled_from("no-hadr ,;x"), max_size=30))
def test_an_opted_out_comment_keeps_the_users_words(comment: str) -> None:
    """The word is added once, at the end."""
    out = with_opt_out(comment)
    assert is_opted_out(out)
    assert out.startswith(comment.strip())
    assert with_opt_out(out) == out


@pytest.mark.parametrize(
    ("request_", "given", "num_nodes", "gpus", "shape"),
    [
        (Request(per_job="gres:gpu:2"), {}, "1-10000", 2, Shape(1, 2)),
        (Request(per_job="gres:gpu:4"), {"num_tasks": 4}, "1-10000", 4, None),
        (Request(per_job="gres/gpu:4"), {"num_tasks": 4}, "1-4", 4, None),
        (Request(per_job="gres:gpu:4"), {"num_tasks": 4}, "1-1", 4, Shape(1, 4)),
        (Request(per_job="gres:gpu:4"), {"num_tasks": 4, "least_nodes": 2}, "2-2", 4, Shape(2, 2)),
        (
            Request(per_job="gres:gpu:4"),
            {"num_tasks": 4, "tasks_per_node": 4},
            "1-10000",
            4,
            Shape(1, 4),
        ),
        (Request(per_node="gres:gpu:v100:2"), {"least_nodes": 2}, "2-2", 4, Shape(2, 2)),
        (Request(per_node="gres:gpu"), {"num_tasks": 8}, "1-10000", 1, Shape(1, 1)),
        (Request(per_task="gres:gpu:1"), {"num_tasks": 4}, "1-10000", 4, Shape(1, 4)),
        (
            Request(per_task="gres:gpu:1", per_job="gres:gpu:4"),
            {"num_tasks": 4, "least_nodes": 2},
            "2-2",
            4,
            Shape(2, 2),
        ),
    ],
)
def test_the_gang_is_what_the_owner_asked_for(
    request_: Request, given: dict[str, object], num_nodes: str, gpus: int, shape: Shape | None
) -> None:
    """Other layouts are open only where the owner left the nodes open, and never beyond tasks."""
    found = describe(a_row(request_), asked(**given), num_nodes)
    assert (found.gpus, found.shape) == (gpus, shape)
    assert (found.workload, found.limit_s, found.checkpoint) == ("job:train.sh", 600.0, False)
    assert not found.is_held


def test_a_running_job_has_the_nodes_that_it_runs_on() -> None:
    """Whatever it asked for."""
    row = a_row(Request(per_node="gres:gpu:2"), state="RUNNING")
    assert describe(row, asked(least_nodes=1), "3").shape == Shape(3, 2)


def test_a_type_that_the_owner_names_is_kept() -> None:
    """The description allows no other, in lower case as the estimator has it."""
    found = describe(a_row(Request(per_job="gres:gpu:V100:2")), asked(), "1-10000")
    assert found.needs.types == ("v100",)


@pytest.mark.parametrize(
    ("row", "given", "num_nodes", "why"),
    [
        (a_row(), {"limit_s": 0.0}, "1-1", "no time limit"),
        (a_row(), {"is_exclusive": True}, "1-1", "--exclusive"),
        (a_row(is_batch=False), {}, "1-1", "salloc"),
        (a_row(is_set_apart=True), {}, "1-1", "heterogeneous"),
        (a_row(reservation="lab"), {}, "1-1", "reservation"),
        (a_row(restarts=1), {}, "1-1", "run before"),
        (a_row(Request(per_socket="gres:gpu:1")), {}, "1-1", "--gpus-per-socket"),
        (a_row(Request(per_node="gres:gpu:1,gres:nvme:1")), {}, "1-1", "other resources"),
        (a_row(Request(per_job="gres:gpu:a:1,gres:gpu:b:1")), {}, "1-1", "several types"),
        (a_row(Request(per_job="gres:gpu:2", per_node="gres:gpu:2")), {}, "1-1", "twice"),
        (a_row(), {"num_tasks": 4}, "1-2", "number of nodes"),
        # Slurm shows the most, and the least only in the requested resources.
        (a_row(), {"least_nodes": 2}, "3-3", "number of nodes"),
        (a_row(), {"least_nodes": 0}, "1-10000", "number of nodes"),
        (a_row(), {"least_nodes": 0}, "0", "number of nodes"),
        (a_row(), {}, "1K", "number of nodes"),
        (a_row(state="COMPLETING"), {}, "0", "number of nodes"),
        (a_row(Request(per_job="gres:gpu:3")), {"least_nodes": 2}, "2-2", "evenly"),
        (a_row(Request(per_job="gres:gpu:5000")), {}, "1-1", "GPUs must be"),
    ],
)
def test_what_hadard_cannot_steer_is_left_with_a_reason(
    row: QueueRow, given: dict[str, object], num_nodes: str, why: str
) -> None:
    """As hadar-sbatch leaves it."""
    with pytest.raises(JobSpecError, match=why):
        describe(row, asked(**given), num_nodes)


def test_srun_is_described_like_a_batch_job() -> None:
    """It shows its program, which salloc does not."""
    assert describe(a_row(is_batch=False), asked(command="/home/ann/train.sh"), "1-1").gpus == 2


def test_a_submission_is_read() -> None:
    """Fields without a value, and the number that stands for none, are no numbers."""
    field = {
        "TimeLimit": "1-00:00:00",
        "NumTasks": "4",
        "NTPerNode": "65534",
        "OverSubscribe": "NO",
        "tres-alloc": "cpu=1,mem=100M,node=2,billing=1",
        "Name": "a|b\nc",
        "Command": "(null)",
        "WorkDir": "/home/ann",
        "Container": "(null)",
    }
    assert submission(field) == Submission("a|b\nc", 86_400.0, 4, 0, 2, True, directory="/home/ann")
    assert not submission(field).command
    others = {"TimeLimit": "UNLIMITED", "OverSubscribe": "OK", "NumTasks": "N/A", "tres-alloc": ""}
    assert submission({**field, **others, "Command": "x.sh"}) == Submission(
        "a|b\nc", 0.0, 1, 0, 0, False, "x.sh", "/home/ann"
    )


class Cluster:
    """A model of Slurm with a V100 node, a K80 node and one with both, all jobs enrolled."""

    def __init__(
        self,
        directory: Path,
        mode: Mode,
        nodes: str = "v100:4,k80:4,v100:2+k80:2",
        **settings: object,
    ):
        self.slurm = FakeSlurm(nodes, spool=directory / "elsewhere")
        self.runner = FakeRunner(slurm=self.slurm)
        self.backend = SlurmBackend(
            CommandLine(self.runner),
            ThroughputTable("none", {}),
            BackendSettings(
                spool=directory,
                modes=Modes(mode),
                enrol={"partitions": frozenset({"main"})},
                **settings,  # type: ignore[arg-type]
            ),
            Ledger(directory / FILE_NAME),
            mode,
            now_s=lambda: self.slurm.now_s,
            sleep=self.slurm.advance,
        )

    def submit(self, **given: object) -> FakeJob:
        """Submit a plain job of two GPUs."""
        return self.slurm.submit(Asked(per_job=(("", 2),)), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [Mode.STEER, Mode.HOLD])
def test_an_enrolled_job_is_never_held_or_stopped(tmp_path: Path, mode: Mode) -> None:
    """Even if a plan wants it: on a node of two types only a hold could choose the type."""
    cluster = Cluster(tmp_path, mode)
    runs = [cluster.submit() for _ in range(5)]
    cluster.slurm.advance(1.0)
    assert {job.state for job in runs} == {"RUNNING"}
    waits = cluster.submit()
    snapshot = cluster.backend.observe()
    assert not any(job.spec.can_checkpoint for job in snapshot.jobs)
    stop = Stop(runs[0].key, 0, snapshot.by_id[runs[0].key].allocation.gangs[0])
    outcomes = cluster.backend.apply([stop, Start(waits.key, 0, a_gang("n3:v100:2"))])
    assert [outcome.status for outcome in outcomes] == [Status.DEFERRED] * 2
    assert "enrolled" in outcomes[1].detail
    assert {job.state for job in runs} == {"RUNNING"}
    assert (waits.hold, waits.state, runs[0].times_asked_to_save) == ("", "PENDING", 0)


def test_only_nodes_of_one_type_are_planned_for_enrolled_jobs(tmp_path: Path) -> None:
    """A start by named nodes could not choose between types; Slurm may still use such nodes."""
    cluster = Cluster(tmp_path, Mode.STEER)
    waits = cluster.submit(begins_s=cluster.slurm.now_s + 500.0)
    job = cluster.backend.observe().by_id[waits.key]
    assert job.allowed_nodes == {"n1", "n2"}


def test_a_job_with_a_begin_time_leaves_its_gpus_to_others_until_then(tmp_path: Path) -> None:
    """It is steered, but in no plan: 22.05 takes the reason of a job away with each change."""
    cluster = Cluster(tmp_path, Mode.STEER)
    waits = cluster.submit(begins_s=cluster.slurm.now_s + 500.0)
    for reason in ("BeginTime", "None"):
        waits.reason = reason
        assert cluster.backend.observe().by_id[waits.key].left_out
    cluster.slurm.advance(501.0)
    known = cluster.backend.observe().by_id.get(waits.key)
    assert known is None or not known.left_out


def test_of_an_array_only_the_first_tasks_are_steered(tmp_path: Path) -> None:
    """Each change splits a task from its array; the next task follows when one has started."""
    cluster = Cluster(tmp_path, Mode.STEER)
    later_s = cluster.slurm.now_s + 500.0
    first = cluster.submit(tasks=range(MOST_TASKS + 2), begins_s=later_s)
    tasks = [job for job in cluster.slurm.jobs if job.array == first.array]
    known = cluster.backend.observe().by_id
    assert [task.key in known for task in tasks] == [True] * MOST_TASKS + [False] * 2
    tasks[3].state = "CANCELLED"
    assert tasks[MOST_TASKS].key in cluster.backend.observe().by_id


def test_of_an_account_only_so_many_jobs_are_steered(tmp_path: Path) -> None:
    """Those that run first, then the oldest; another account has no limit."""
    cluster = Cluster(tmp_path, Mode.STEER, enrolled_of_account={"bio": 2})
    later_s = cluster.slurm.now_s + 500.0
    oldest, runs, last = [
        cluster.submit(account="bio", begins_s=begins_s) for begins_s in (later_s, 0.0, later_s)
    ]
    other = cluster.submit(account="physics", begins_s=later_s)
    cluster.slurm.advance(1.0)
    assert runs.state == "RUNNING"
    known = cluster.backend.observe().by_id
    assert {runs.key, oldest.key, other.key} == known.keys()
    runs.state = "COMPLETED"
    assert {oldest.key, last.key, other.key} == cluster.backend.observe().by_id.keys()


@dataclass(frozen=True)
class OneJob(Runner):
    """The commands of a Slurm of 25.05 or newer with one job."""

    exclusive: str = "NO"

    def run(self, argv: Sequence[str]) -> str:
        """Return what a command prints."""
        if argv[0] == "scontrol":
            return f"JobId=1 JobName=a OverSubscribe=NO Exclusive={self.exclusive} Contiguous=0\n"
        mark = argv[-1].rpartition(":")[2]
        return f"1|1|1:00:00|1|N/A|NO|node=1|train.sh{mark}x.sh{mark}/{mark}(null){mark}\n"


@pytest.mark.parametrize(
    ("version", "exclusive", "expected"),
    [
        ((24, 11), "NO", True),
        ((25, 5), "NO", False),
        ((25, 5), "NODE", True),
        ((26, 5), "USER", True),
    ],
)
def test_whether_a_job_has_whole_nodes(
    version: tuple[int, int], exclusive: str, *, expected: bool
) -> None:
    """Up to 24.11 squeue shows it; later squeue has the same answer for every job."""
    found = read_submissions(OneJob(exclusive=exclusive), version)
    assert found[JobId("1")].is_exclusive is expected


def test_unreadable_submissions_keep_the_last_ones(tmp_path: Path) -> None:
    """A fault of that one query restores no job and stops no round."""
    cluster = Cluster(tmp_path, Mode.STEER)
    waits = cluster.submit(begins_s=cluster.slurm.now_s + 500.0)
    assert waits.key in cluster.backend.observe().by_id
    cluster.runner.before.append(lambda argv: "no" if "NTPerNode" in argv[-1] else None)
    assert waits.key in cluster.backend.observe().by_id
