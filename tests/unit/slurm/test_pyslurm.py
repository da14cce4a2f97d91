"""Tests the pyslurm adapter with values that the real library returned on Slurm 26.05.5."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hadar_slurm.core.cluster import GpuType, JobId, NodeName, Slot
from hadar_slurm.core.gang import Gang
from hadar_slurm.errors import SlurmOutputError, SlurmRefused, SlurmUnavailable
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.client.parse import parse_nodes, parse_queue
from hadar_slurm.slurm.client.pyslurm import JOB_FIELDS, NODE_FIELDS, PySlurm
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.updates import (
    ClearRequest,
    Hold,
    Prefer,
    Release,
    Requeue,
    SetRequest,
    SignalCheckpoint,
    Update,
)

MARK = "#mark"
IMITATION = "x\nJobId=1 JobName=y UserId=root(0) JobState=RUNNING Nodes=n1 GRES=gpu:v100:4(IDX:0-3)"
# squeue and pyslurm on one queue: jobs on two nodes and on two types, an array of which two tasks
# run, one held by an administrator, a heterogeneous one, a reservation, excluded nodes, a hostile
# comment, an allocation without a script, scrontab's, one that has ended.
SQUEUE = f"""\
436|436|COMPLETED|None|2004|dave|main|6666|(null)||n3|1|N/A|N/A|N/A|N/A|0|1795279906|1795279906|1795279907|(null)|N/A|1|768|normal|1795279906|1|physics{MARK}(null){MARK}(null){MARK}(null){MARK}
486|486|PENDING|Dependency|2004|dave|main|6666|afterok:435(unfulfilled)|||1|N/A|gres/gpu:1|N/A|N/A|0|1795279908|N/A|N/A|(null)|N/A|1|0|normal|N/A|1|physics{MARK}(null){MARK}(null){MARK}{IMITATION}{MARK}
465|465|PENDING|Dependency|2003|carol|main|5000|afterok:435(unfulfilled)|||1|N/A|gres/gpu:v100:1,gres/gpu:k80:1|N/A|N/A|0|1795279908|N/A|N/A|(null)|N/A|1|0|normal|N/A|1|physics{MARK}(null){MARK}(null){MARK}(null){MARK}
461|461|PENDING|Reservation|2003|carol|main|5000|(null)|||1|N/A|gres/gpu:1|N/A|N/A|0|1795279908|N/A|N/A|captured|N/A|1|0|normal|1795279908|1|physics{MARK}(null){MARK}(null){MARK}(null){MARK}
493|493|PENDING|BeginTime|2001|alice|main|3333|(null)|||1|N/A|N/A|N/A|N/A|0|1795279908|1798761600|1798848000|(null)|N/A|1|0|normal|1798761600|1|physics{MARK}(null){MARK}(null){MARK}(null){MARK}
476|476|PENDING|Dependency|2002|bob|main|1666|afterok:435(unfulfilled)|||1|N/A|gres/gpu:1|N/A|N/A|0|1795279908|N/A|N/A|(null)|N/A|1|0|normal|N/A|1|physics{MARK}(null){MARK}(null){MARK}(null){MARK}
442_2|442|PENDING|JobArrayTaskLimit|2002|bob|main|1666|(null)|n4||1|N/A|gres/gpu:1|N/A|N/A|0|1795279907|N/A|N/A|(null)|N/A|1|0|normal|N/A|1|physics{MARK}(null){MARK}(null){MARK}(null){MARK}
442_3|442|PENDING|JobArrayTaskLimit|2002|bob|main|1666|(null)|n4||1|N/A|gres/gpu:1|N/A|N/A|0|1795279907|N/A|N/A|(null)|N/A|1|0|normal|N/A|1|physics{MARK}(null){MARK}(null){MARK}(null){MARK}
442_4|442|PENDING|JobArrayTaskLimit|2002|bob|main|1666|(null)|n4||1|N/A|gres/gpu:1|N/A|N/A|0|1795279907|N/A|N/A|(null)|N/A|1|0|normal|N/A|1|physics{MARK}(null){MARK}(null){MARK}(null){MARK}
457+1|458|PENDING|JobHeldUser|2001|alice|main|0|(null)|||2|gres/gpu:1|N/A|N/A|N/A|0|1795279908|N/A|N/A|(null)|457|1|0|normal|N/A|1|physics{MARK}(null){MARK}(null){MARK}(null){MARK}
457+0|457|PENDING|JobHeldUser|2001|alice|main|0|(null)|||1|N/A|gres/gpu:1|N/A|N/A|0|1795279908|N/A|N/A|(null)|457|1|0|normal|N/A|1|physics{MARK}(null){MARK}(null){MARK}(null){MARK}
452|452|PENDING|JobHeldAdmin|2002|bob|main|0|(null)|||1|N/A|gres/gpu:1|N/A|N/A|0|1795279908|N/A|N/A|(null)|N/A|1|0|normal|N/A|1|physics{MARK}(null){MARK}(null){MARK}(null){MARK}
431|431|RUNNING|None|2003|carol|main|5000|(null)|n6|n6|1|gres/gpu:v100:1,gres/gpu:k80:2|N/A|N/A|N/A|0|1795279906|1795279906|1795283506|(null)|N/A|1|0|normal|1795279906|1|physics{MARK}(null){MARK}(null){MARK}(null){MARK}
492|492|RUNNING|None|2001|alice|main|3333|(null)|n5|n5|1|N/A|gres/gpu:1|N/A|N/A|0|1795279908|1795279908|1795283508|(null)|N/A|0|0|normal|1795279908|1|physics{MARK}(null){MARK}(null){MARK}(null){MARK}
442_0|443|RUNNING|None|2002|bob|main|1666|(null)|n4|n4|1|N/A|gres/gpu:1|N/A|N/A|0|1795279907|1795279907|1795283507|(null)|N/A|1|0|normal|1795279907|1|physics{MARK}(null){MARK}(null){MARK}(null){MARK}
442_1|444|RUNNING|None|2002|bob|main|1666|(null)|n4|n4|1|N/A|gres/gpu:1|N/A|N/A|0|1795279907|1795279907|1795283507|(null)|N/A|1|0|normal|1795279907|1|physics{MARK}(null){MARK}(null){MARK}(null){MARK}
430|430|RUNNING|None|2002|bob|main|1666|(null)|n[1-2]|n[1-2]|2|gres/gpu:v100:2|N/A|N/A|N/A|0|1795279906|1795279906|1795283506|(null)|N/A|1|0|normal|1795279906|1|physics{MARK}(null){MARK}(null){MARK}(null){MARK}
"""
NODES = """\
NodeName=n1 Arch=x86_64 CPUAlloc=8 CPUTot=8 ActiveFeatures=v100 Gres=gpu:v100:4 State=MIXED Partitions=main,other SlurmdStartTime=1795279132
NodeName=n6 Arch=x86_64 CPUAlloc=7 CPUTot=8 ActiveFeatures=v100,k80 Gres=gpu:v100:2,gpu:k80:2 State=IDLE+DRAIN Partitions=main,other SlurmdStartTime=1795279132
NodeName=n7 Arch=x86_64 CPUAlloc=0 CPUTot=8 ActiveFeatures=(null) Gres=(null) State=IDLE Partitions= SlurmdStartTime=None
"""  # noqa: E501


class RpcError(Exception):
    """Stands for pyslurm.RPCError; only its text is read."""


def record(
    number: int,
    state: str = "PENDING",
    *,
    user: tuple[int, str] = (2002, "bob"),
    submitted: int = 1795279908,
    gpus: Any = None,
    **given: Any,
) -> Any:
    """Return a job in pyslurm's form; fields that are not given are None."""
    values: dict[str, Any] = dict.fromkeys(JOB_FIELDS)
    values |= {
        "id": number,
        "state": state,
        "state_reason": "None",
        "user_id": user[0],
        "user_name": user[1],
        "partition": "main",
        "priority": 1666,
        "requeue_count": 0,
        "submit_time": submitted,
        "time_limit": 60,
        "is_batch_job": True,
        "is_cronjob": False,
    }
    layout = {
        name: {"cpu_ids": "0", "gres": held, "memory": 100} for name, held in (gpus or {}).items()
    }
    return SimpleNamespace(**values | given, get_resource_layout_per_node=lambda: layout)


def held(count: int, indexes: str) -> dict[str, Any]:
    """Return what pyslurm shows of GPUs that a job holds."""
    return {"count": count, "indexes": indexes}


ALICE, CAROL, DAVE = (2001, "alice"), (2003, "carol"), (2004, "dave")
RUNNING: dict[str, Any] = {"state": "RUNNING", "state_reason": None}
TASK: dict[str, Any] = {"array_id": 442, "required_nodes": "n4", "submitted": 1795279907}
RECORDS = [
    record(436, "COMPLETED", user=DAVE, priority=6666, allocated_nodes="n3", gpus={"n3": {}},
           submitted=1795279906, start_time=1795279906, end_time=1795279907),
    record(486, user=DAVE, priority=6666, state_reason="Dependency", comment=IMITATION),
    record(465, user=CAROL, priority=5000, state_reason="Dependency"),
    record(461, user=CAROL, priority=5000, state_reason="Reservation", reservation="captured"),
    record(493, user=ALICE, priority=3333, state_reason="BeginTime", is_cronjob=True,
           start_time=1798761600, end_time=1798848000),
    record(476, state_reason="Dependency", excluded_nodes="n[1-2,5]"),
    record(442, **TASK, state_reason="JobArrayTaskLimit", array_tasks_waiting="2-4"),
    record(458, user=ALICE, priority=0, state_reason="JobHeldUser", heterogeneous_id=457,
           ),
    record(457, user=ALICE, priority=0, state_reason="JobHeldUser", heterogeneous_id=457),
    record(452, priority=0, state_reason="JobHeldAdmin"),
    record(431, **RUNNING, user=CAROL, priority=5000, allocated_nodes="n6", required_nodes="n6",
           submitted=1795279906, start_time=1795279906, end_time=1795283506,
           gpus={"n6": {"gpu:v100": held(1, "0"), "gpu:k80": held(2, "2-3")}}),
    record(492, **RUNNING, user=ALICE, priority=3333, allocated_nodes="n5", required_nodes="n5",
           start_time=1795279908, end_time=1795283508, is_batch_job=False,
           gpus={"n5": {"gpu:k80": held(1, "2"), "gpu:v100": 0}}),
    record(443, **RUNNING, **TASK, allocated_nodes="n4", start_time=1795279907,
           end_time=1795283507, gpus={"n4": {"gpu:p100": held(1, "2")}}),
    record(444, **RUNNING, **TASK, allocated_nodes="n4", start_time=1795279907,
           end_time=1795283507, gpus={"n4": {"gpu:p100": held(1, "3")}}),
    record(430, **RUNNING, allocated_nodes="n[1-2]", required_nodes="n[1-2]",
           submitted=1795279906, start_time=1795279906, end_time=1795283506,
           gpus={name: {"gpu:v100": held(2, "0-1")} for name in ("n1", "n2")}),
]  # fmt: skip
NODE_RECORDS = [
    SimpleNamespace(
        name=name,
        state=state,
        configured_gres=gres,
        slurmd_start_time=start,
        partitions=partitions,
        active_features=features,
        total_cpus=8,
        allocated_cpus=cores,
    )
    for name, state, gres, start, partitions, features, cores in [
        ("n1", "MIXED", {"gpu:v100": 4}, 1795279132, ["main", "other"], ["v100"], 8),
        ("n6", "IDLE+DRAIN", {"gpu:v100": 2, "gpu:k80": 2}, 1795279132, ["main", "other"],
         ["v100", "k80"], 7),
        ("n7", "IDLE", {}, None, [], [], None),
    ]
]  # fmt: skip


@dataclass
class FakeLibrary:
    """Stands for the module pyslurm: returns records, records calls, refuses those of some jobs."""

    jobs: Sequence[Any] = ()
    refusals: dict[int, str] = field(default_factory=dict)
    calls: list[tuple[str, int]] = field(default_factory=list)
    RPCError: type[Exception] = RpcError

    @property
    def Jobs(self) -> Any:  # noqa: N802
        """Return an object that loads jobs."""
        return SimpleNamespace(load=lambda: self._answer(0, {job.id: job for job in self.jobs}))

    @property
    def Nodes(self) -> Any:  # noqa: N802
        """Return an object that loads nodes."""
        return SimpleNamespace(load=lambda: self._answer(0, {n.name: n for n in NODE_RECORDS}))

    def Job(self, number: int) -> Any:  # noqa: N802
        """Return an object that changes a job."""

        def call(name: str) -> Callable[..., None]:
            def made(*words: object, **options: object) -> None:
                told = [*map(str, words), *(f"{key}={value}" for key, value in options.items())]
                self.calls.append((" ".join([name, *told]), number))
                self._answer(number, None)

            return made

        return SimpleNamespace(**{name: call(name) for name in ("release", "requeue")})

    def _answer(self, number: int, value: Any) -> Any:
        if number in self.refusals:
            raise RpcError(self.refusals[number])
        return value


@dataclass(frozen=True, slots=True)
class Commands(Runner):
    """Stands for Slurm's commands: squeue shows SQUEUE, scontrol carries out every change."""

    scripts: list[str] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, stdin: str = "") -> str:
        """Return the fields that squeue was called with, and record scancel."""
        if argv[0] == "scancel":
            self.scripts.append(" ".join(argv))
            return ""
        assert argv[0] == "squeue"
        if "Comment" in argv[-1]:
            return SQUEUE.replace(MARK, argv[-1].rpartition("Comment:")[2])
        # In the order of parse.py's fields, those that pyslurm lacks.
        mark = argv[-1].rpartition("Feature:")[2]
        records = (record.lstrip("\n").split(MARK) for record in SQUEUE.split(MARK + "\n"))
        told = ((record[0].split("|"), record[1:3]) for record in records if len(record) > 1)
        return "".join(
            "|".join([r[1], r[0], r[8], r[11], *r[12:16], *r[23:28]])
            + f"{mark}{licenses}{mark}{features}{mark}\n"
            for r, (licenses, features) in told
        )

    def complaints(self, argv: Sequence[str], *, stdin: str) -> str:
        """Record the commands on scontrol's standard input; report only the marks as invalid."""
        words, marks = stdin.splitlines()[1:-1:2], stdin.splitlines()[::2]
        self.scripts.append("\n".join(words))
        return "".join(f"invalid keyword: {mark}\n" for mark in marks)


def adapter(library: FakeLibrary) -> PySlurm:
    """Return the adapter over a fake library and fake commands."""
    return PySlurm(Commands(), library)


def test_jobs_are_the_same_by_both_ways() -> None:
    """Every field of every row equals that of the command line for the same queue."""
    expected = {row.key: row for row in parse_queue(SQUEUE, MARK)}
    assert adapter(FakeLibrary(RECORDS)).queue() == expected
    assert len(expected) == 17


def test_a_reading_has_the_gpus_held_and_who_is_set_apart() -> None:
    """GPUs are by node and type; zero counts and jobs without GPUs are skipped."""
    reading = adapter(FakeLibrary(RECORDS)).read()
    assert reading.queue == {row.key: row for row in parse_queue(SQUEUE, MARK)}
    assert reading.gangs == {
        "430": Gang.of({("n1", "v100"): 2, ("n2", "v100"): 2}),
        "431": Gang.of({("n6", "v100"): 1, ("n6", "k80"): 2}),
        "442_0": Gang.of({("n4", "p100"): 1}),
        "442_1": Gang.of({("n4", "p100"): 1}),
        "492": Gang.of({("n5", "k80"): 1}),
    }
    assert reading.set_apart_by_detail == {"493"}


def test_pending_jobs_have_their_preferred_features() -> None:
    jobs = [
        record(461, preferred_features=["v100&(fast", "near)"]),
        record(452, preferred_features=[]),
        record(431, **RUNNING, preferred_features=["v100"]),
    ]
    assert adapter(FakeLibrary(jobs)).read().preferred == {"461": "v100&(fast,near)", "452": ""}


def test_pending_jobs_have_their_nice_values() -> None:
    jobs = [record(461, nice=-20), record(452), record(431, **RUNNING, nice=7)]
    assert adapter(FakeLibrary(jobs)).read().nice == {"461": -20, "452": 0}


def test_the_range_of_nodes_is_what_a_job_asked_for() -> None:
    """squeue shows only the minimum; without a maximum, a new request must have none either."""
    jobs = [
        record(457, num_nodes=1, max_nodes=4, heterogeneous_id=457),
        record(458, num_nodes=2, max_nodes=2, heterogeneous_id=457),
        record(452, num_nodes=1),
    ]
    reading = adapter(FakeLibrary(jobs)).read()
    asked = {key: reading.request(row).num_nodes for key, row in reading.queue.items()}
    assert asked == {"457+0": "1-4", "457+1": "2-2", "452": "1-10000"}


def test_nodes_are_the_same_by_both_ways() -> None:
    """A node that is drained or has not reported gets no jobs."""
    rows = adapter(FakeLibrary()).nodes()
    assert list(rows) == parse_nodes(NODES)
    assert [row.node.is_schedulable for row in rows] == [True, False, False]


@pytest.mark.parametrize("share", ["shard", "shard:v100", "mps"])
def test_gpus_of_which_jobs_have_shares_are_occupied(
    monkeypatch: pytest.MonkeyPatch, share: str
) -> None:
    """The library does not show them; scontrol is asked only where a node has shares."""
    gres = "GresUsed=gpu:v100:0(IDX:N/A),shard:v100:3(2/4,1/4,0/4,0/4) State=MIXED"

    class Sharing(Commands):
        def run(self, argv: Sequence[str], *, stdin: str = "") -> str:
            if argv[:4] == ["scontrol", "-a", "show", "node"]:
                return NODES.replace("State=MIXED", gres)
            return super().run(argv, stdin=stdin)

    first = NODE_RECORDS[0].configured_gres
    monkeypatch.setattr(NODE_RECORDS[0], "configured_gres", {**first, share: 16})
    slurm = PySlurm(Sharing(), FakeLibrary(RECORDS))
    assert {row.node.name: row.shared for row in slurm.nodes()} == {
        "n1": (("v100", 2),),
        "n6": (),
        "n7": (),
    }
    assert slurm.read().shared == {Slot(NodeName("n1"), GpuType("v100")): 2}


def test_a_node_that_a_job_has_left_counts_no_more() -> None:
    """A completing job shows its whole layout, but only the nodes that it still holds count."""
    gpus = {"n1": {"gpu": held(1, "0")}, "n2": {"gpu": held(1, "0")}}
    job = record(430, "COMPLETING", allocated_nodes="n2", gpus=gpus)
    assert adapter(FakeLibrary([job])).read().gangs == {"430": Gang.of({("n2", "gpu"): 1})}


def test_jobs_that_squeue_no_longer_knows_are_gone() -> None:
    """Slurm may forget an ended job between the two queries."""
    assert adapter(FakeLibrary([record(17, "COMPLETED")])).queue() == {}


@pytest.mark.parametrize(
    ("text", "tasks"),
    [("0-3", [0, 1, 2, 3]), ("2,5-9:2", [2, 5, 7, 9]), ("1-7:3,20", [1, 4, 7, 20]), ("5", [5])],
)
def test_waiting_tasks_are_told_apart(text: str, tasks: list[int]) -> None:
    """Each pending task has a row, with the job number that they have in common."""
    job = record(442, array_id=442, array_tasks_waiting=text)
    rows = adapter(FakeLibrary([job])).queue()
    assert [row.key for row in rows.values()] == [f"442_{task}" for task in tasks]
    assert {row.raw_id for row in rows.values()} == {"442"}


def test_a_list_of_tasks_that_was_cut_is_not_believed() -> None:
    """An error is better than an observation without some of the jobs."""
    job = record(442, array_id=442, array_tasks_waiting="1,4,9,...")
    with pytest.raises(SlurmOutputError, match="array tasks"):
        adapter(FakeLibrary([job])).queue()


def test_an_answer_of_squeue_in_another_form_is_not_believed() -> None:
    """A field of squeue could contain the separator."""

    class Odd(Commands):
        def run(self, argv: Sequence[str], *, stdin: str = "") -> str:
            return "430|a|b\n"

    with pytest.raises(SlurmOutputError, match="squeue"):
        PySlurm(Odd(), FakeLibrary(RECORDS)).queue()


def test_a_comment_that_is_no_text_keeps_no_job_from_being_seen() -> None:
    """pyslurm raises an error for a comment that is not UTF-8, which any user can set."""

    class Odd(SimpleNamespace):
        @property
        def comment(self) -> str:
            return b"a\xff\xfeb".decode()

    values = vars(record(452)) | vars(RECORDS[9])
    del values["comment"]
    assert adapter(FakeLibrary([Odd(**values)])).queue()[JobId("452")].comment == "a\ufffd\ufffdb"


@pytest.mark.parametrize("text", ["None", "N/A", "(null)", "NONE"])
def test_comments_that_slurm_prints_for_nothing_are_nothing(text: str) -> None:
    """Both adapters agree, although a user may set such a text as the comment."""
    job = record(452, comment=text)
    assert adapter(FakeLibrary([job])).queue()[JobId("452")].comment == ""


def test_a_job_without_a_limit_has_no_end_yet() -> None:
    """squeue shows no end; Slurm assumes a year from the start."""
    times = {"time_limit": None, "start_time": 1795279906, "end_time": 1826815906}
    rows = adapter(FakeLibrary([record(430, "RUNNING", **times)])).queue()
    assert rows[JobId("430")].ended_s == 0.0
    rows = adapter(FakeLibrary([record(430, "COMPLETED", **times)])).queue()
    assert rows[JobId("430")].ended_s == 1826815906.0


def test_users_are_looked_up_once() -> None:
    """Ten thousand look-ups of users would take longer than the rest of an observation."""
    asked: list[int] = []

    class Counting(SimpleNamespace):
        @property
        def user_name(self) -> str:
            asked.append(self.id)
            return "bob"

    jobs = [Counting(**{k: v for k, v in vars(r).items() if k != "user_name"}) for r in RECORDS]
    adapter(FakeLibrary(jobs)).queue()
    assert len(asked) == len({job.user_id for job in RECORDS})


@pytest.mark.parametrize("look", [PySlurm.queue, PySlurm.nodes, PySlurm.read])
def test_what_cannot_be_seen_is_said_so(look: Callable[[PySlurm], object]) -> None:
    """This holds for any error of the library."""
    library = FakeLibrary(RECORDS, refusals={0: "Zero Bytes were transmitted or received"})
    with pytest.raises(SlurmUnavailable, match="pyslurm: Zero Bytes"):
        look(adapter(library))


def test_changes_go_by_the_way_that_can_make_them_and_keep_their_order() -> None:
    """Successive changes that need commands share one scontrol."""
    library, commands = FakeLibrary(), Commands()
    a, b, task = JobId("17"), JobId("18"), JobId("19_2")
    request = Request(num_nodes="1-1", per_node="gres/gpu:2", nodes=(NodeName("n3"),))
    changes: list[Update] = [
        SignalCheckpoint(a),
        Requeue(a),
        Hold(b),
        ClearRequest(b),
        SetRequest(b, request, begins_in_s=1),
        Release(b),
        Release(task),
        Prefer(a, "v100"),
        Release(a),
    ]
    faults = PySlurm(commands, library).change(changes)
    assert faults == [None] * len(changes)
    assert library.calls == [
        ("requeue hold=True", 17),
        ("release", 18),
        ("release", 17),
    ]
    signal, first, second = commands.scripts
    assert signal == "scancel --signal=USR1 --batch 17"
    assert [line.split()[0] for line in first.splitlines()] == ["uhold", "update", "update"]
    assert second.splitlines() == ["release 19_2", "update JobId=17 Prefer=v100"]


def test_a_refusal_keeps_no_other_change_from_being_made() -> None:
    """Its fault is at its index, in Slurm's words."""
    library = FakeLibrary(refusals={18: "Invalid job id specified"})
    faults = adapter(library).change([Release(JobId(n)) for n in ("17", "18", "19")])
    assert [str(fault or "") for fault in faults] == [
        "",
        "pyslurm Release 18: Invalid job id specified",
        "",
    ]
    assert isinstance(faults[1], SlurmRefused)
    assert [number for _, number in library.calls] == [17, 18, 19]


def test_nothing_more_is_tried_once_slurm_does_not_answer() -> None:
    """Each further attempt would wait for MessageTimeout."""
    library = FakeLibrary(refusals={18: "Socket timed out on send/recv operation"})
    commands = Commands()
    jobs = [JobId(number) for number in ("17", "18", "19")]
    faults = PySlurm(commands, library).change(
        [*map(Release, jobs), Hold(jobs[0]), Release(jobs[0])]
    )
    assert faults[0] is None
    assert all(isinstance(fault, SlurmUnavailable) for fault in faults[1:])
    assert len(faults) == 5
    assert [number for _, number in library.calls] == [17, 18]
    assert commands.scripts == []


# Stands for pyslurm, and records the environment that it is loaded in.
MODULE = """
import ctypes, os, sys
if "bad" in os.environ.get("SLURM_CONF", ""):
    os._exit(1)
seen = [os.environ.get("SLURM_CONF"), os.environ.get("SLURM_BITSTR_LEN")]
sys.setdlopenflags(sys.getdlopenflags() | os.RTLD_GLOBAL)

def made(name, *parts):
    return type(name, (), dict.fromkeys(parts))

RPCError, Jobs, Nodes = Exception, made("Jobs", "load"), made("Nodes", "load")
Job, Node = made("Job", *JOB), made("Node", *NODE)
"""
JOB_PARTS = [
    *JOB_FIELDS,
    "get_resource_layout_per_node",
    "release",
    "requeue",
]
PROGRAM = """
import json, os, sys
from pathlib import Path
from hadar_slurm.errors import ConfigError
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.pyslurm import load

answers, flags = [], sys.getdlopenflags()
for conf in (Path("/bad"), Path("/a.conf"), Path("/a.conf"), Path("/b.conf"), None):
    try:
        answers.append(load(Runner(conf)).seen)
    except ConfigError as error:
        answers.append(str(error))
answers.append(["SLURM_CONF" in os.environ, sys.getdlopenflags() == flags])
print(json.dumps(answers))
"""


def load_from(directory: Path, *, job: Sequence[str] = JOB_PARTS) -> list[Any]:
    """Write a stand-in for pyslurm, load it in a process, and return the results."""
    parts = f"JOB, NODE = {job!r}, {NODE_FIELDS!r}\n"
    (directory / "pyslurm.py").write_text(parts + MODULE, encoding="utf-8")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**environment, "PYTHONPATH": str(directory)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    answers: list[Any] = json.loads(ran.stdout)
    return answers


def test_pyslurm_is_loaded_for_one_slurm_after_a_trial(tmp_path: Path) -> None:
    """A library that ends its process is tried in a child process; our environment is restored."""
    bad, first, again, other, default, kept = load_from(tmp_path)
    assert bad.startswith("pyslurm cannot be loaded")
    assert first == again == ["/a.conf", "0"]
    assert "until hadard is restarted" in other
    assert "until hadard is restarted" in default
    assert kept == [False, True]


def test_a_pyslurm_of_other_words_is_not_used(tmp_path: Path) -> None:
    """It would fail in the middle of a round."""
    _, first, *_ = load_from(tmp_path, job=[part for part in JOB_PARTS if part != "is_cronjob"])
    assert first == "pyslurm lacks Job.is_cronjob"
