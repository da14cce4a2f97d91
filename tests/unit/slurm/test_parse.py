"""Parsing of Slurm's output. The quoted texts are output of Slurm 22.05.8."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from builders import a_gang, a_queue_row
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.cluster import JobId, Node, NodeName
from hadar_slurm.core.job import Shape
from hadar_slurm.errors import SlurmOutputError
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.constraint import fold_out
from hadar_slurm.jobspec.description import Description
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.client import parse
from hadar_slurm.slurm.client.doubts import job_details
from hadar_slurm.slurm.client.parse import (
    asked_nodes,
    detail_of,
    held_gang,
    node_row,
    parse_nodes,
    parse_queue,
    split_job_details,
    takes_work,
)
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.state import SlurmState, read_all, waits_for_nodes

MARK = "#0123"
QUEUE = (
    "1|1|CANCELLED|None|0|root|main|4294901759|(null)||n1|1|gres:gpu:1|N/A|N/A|N/A|0|"
    "1795259392|1795259393|1795259473|(null)|N/A|1|10|(null)|1795259392|1|"
    "(null)#0123(null)#0123(null)#0123(null)#0123\n"
    "6|6|COMPLETED|None|0|root|main|4294901756|(null)|n1|n1|1|gres:gpu:1|N/A|N/A|N/A|0|"
    "1795259474|1795259474|1795259474|(null)|N/A|1|0|(null)|1795259474|1|"
    "(null)#0123(null)#0123(null)#0123(null)#0123\n"
    "3_1|3|PENDING|JobHeldUser|0|root|main|0|(null)|||1|N/A|gres:gpu:k80:2|N/A|N/A|0|"
    "1795259474|N/A|N/A|(null)|N/A|1|0|high|N/A|1|"
    "a|b#0123lic:1#0123v100|k80#0123one|two\nthree #0 #0123\n"
    "4|4|RUNNING|None|0|root|main|4294901757|(null)||n1|1|gres:gpu:v100:1|N/A|N/A|N/A|0|"
    "1795259474|1795259474|1826795474|(null)|N/A|1|0|(null)|1795259474|1|"
    "(null)#0123(null)#0123(null)#0123(null)#0123\n"
)
NODES = (
    "NodeName=n1 Arch=x86_64 CoresPerSocket=16  CPUAlloc=2 CPUEfctv=16 CPUTot=16 CPULoad=0.52 "
    "AvailableFeatures=v100 ActiveFeatures=v100 Gres=gpu:v100:2 NodeAddr=127.0.0.1 "
    "NodeHostName=localhost Port=13026 Version=22.05.8 OS=Linux 6.18.44 #1 SMP @0  "
    "RealMemory=8000 AllocMem=200 FreeMem=23638 Sockets=1 Boards=1 State=MIXED ThreadsPerCore=1 "
    "TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=main,long  BootTime=1795251518 \n"
    "NodeName=n2 Arch=x86_64 CoresPerSocket=16  CPUAlloc=0 CPUEfctv=16 CPUTot=16 CPULoad=0.52 "
    "AvailableFeatures=k80 ActiveFeatures=k80 Gres=gpu:k80:2(S:0),gpu:v100:1(S:0) "
    "NodeAddr=127.0.0.1 NodeHostName=localhost Port=10794 Version=22.05.8 OS=Linux 6.18.44 "
    "RealMemory=8000 Sockets=1 Boards=1 State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 "
    "Owner=N/A MCS_label=N/A BootTime=1795251517 Reason=disk State=IDLE [root@1795251600]\n"
    "NodeName=n3 Arch=x86_64 Gres=(null) State=IDLE Partitions=main\n"
)


def a_detail(number: str, nodes: str = "n1", gpus: str = "gpu:v100:1", name: str = "x") -> str:
    """Return a shortened line of a job, as printed by `scontrol show job -d -o`."""
    return (
        f"JobId={number} JobName={name} UserId=root(0) JobState=RUNNING NodeList={nodes} "
        f"NumNodes=1 JOB_GRES={gpus}   Nodes={nodes} CPU_IDs=0 Mem=100 GRES={gpus}(IDX:0) "
        "MinCPUsNode=1 Command=(null) Power= TresPerNode=gres:gpu:1 \n"
    )


# The queue


def test_the_queue_is_read() -> None:
    """Each field of a record is read, and a comment with line breaks and separators."""
    cancelled, completed, held, running = parse_queue(QUEUE, MARK)
    assert (cancelled.key, cancelled.state, cancelled.ended_s) == ("1", "CANCELLED", 1795259473.0)
    assert completed.requested_nodes == completed.nodes == (NodeName("n1"),)
    assert (held.key, held.raw_id, held.restarts) == ("3_1", "3", 0)
    assert held.comment == "one|two\nthree #0 "
    assert held.gpus_otherwise == (("k80", 2),)
    assert held.named_types == frozenset({"k80"})
    assert (held.started_s, held.ended_s, held.dependency) == (0.0, 0.0, "")
    assert held.is_held_by_user
    assert not running.is_held_by_user
    assert (running.user, running.user_id, running.partition) == ("root", 0, "main")
    assert running.gpus_per_node == (("v100", 1),)
    assert (held.qos, held.account, held.licenses) == ("high", "a|b", "lic:1")
    assert (running.qos, running.account, running.licenses) == ("", "", "")
    assert (held.features, running.features) == ("v100|k80", "")
    assert (completed.exit_status, cancelled.exit_status) == (0, 10)
    assert (held.eligible_s, running.eligible_s) == (0.0, 1795259474.0)
    assert (running.submitted_s, running.request.num_nodes, running.comment) == (
        1795259474.0,
        "1",
        "",
    )


def test_an_empty_queue_is_read() -> None:
    """An empty output has no rows."""
    assert parse_queue("", MARK) == []


def test_a_begin_time_beyond_all_times_is_read() -> None:
    """As of `--begin=uts4294967295`: one user's job makes no reading fail."""
    text = QUEUE.replace(
        "1795259474|N/A|N/A|(null)|N/A|1|0|high|N/A|", "9|Unknown|N/A|(null)|N/A|1|0|high|Unknown|"
    )
    held = parse_queue(text, MARK)[2]
    assert (held.started_s, held.eligible_s) == (0.0, math.inf)


def test_squeue_is_asked_for_the_fields_that_are_read() -> None:
    """There is one field for each value of a record; free texts are last and end with the mark."""
    *fixed, account, licenses, features, comment = parse.QUEUE.argument(MARK).split(",")
    assert (account, licenses) == (f"Account:{MARK}", f"Licenses:{MARK}")
    assert (features, comment) == (f"Feature:{MARK}", f"Comment:{MARK}")
    assert all(part.endswith(":|") for part in fixed)
    assert len(fixed) == QUEUE.split(MARK)[0].count("|")


def with_field(index: int, text: str) -> str:
    values = QUEUE.split("#0123\n")[3].split("|")
    values[index] = text
    return "|".join(values) + "#0123\n"


def with_texts(account: str, comment: str) -> str:
    """Return a record with texts chosen by a user."""
    head = QUEUE.split("#0123\n")[3].split(MARK)[0].rpartition("|")[0]
    return f"{head}|{account}{MARK}(null){MARK}(null){MARK}{comment}{MARK}\n"


ANY_TEXT = st.text(st.sampled_from("ab|#\n,:{}\"' \u2028é"), max_size=30)


@given(account=ANY_TEXT, comment=ANY_TEXT)
def test_texts_of_users_can_hold_anything_but_the_mark(account: str, comment: str) -> None:
    """Separators and line breaks in them add neither fields nor records."""
    rows = parse_queue(with_texts(account, comment) * 2, MARK)
    assert [(row.account, row.comment) for row in rows] == [(account, comment)] * 2
    assert {row.key for row in rows} == {"4"}


def test_a_job_is_parsed_again_once_any_of_its_texts_has_changed() -> None:
    """A row of the reading before is used again for the same texts only, and not kept beyond."""
    known: parse.Known = {}
    before = parse_queue(QUEUE, MARK, known)
    again = parse_queue(QUEUE.replace(MARK, "#4567"), "#4567", known)
    assert all(row is was for row, was in zip(again, before, strict=True))
    for index in range(len(parse.QUEUE.fixed.split())):
        # 0 is a value of every field, but not the one of any.
        changed = with_field(index, "0" if index else "17")
        (row,) = parse_queue(changed, MARK, known)
        assert row == parse_queue(changed, MARK)[0]
        assert len(known) == 1
        parse_queue(QUEUE, MARK, known)
    for account, comment in (("a", ""), ("", "a")):
        (row,) = parse_queue(with_texts(account, comment), MARK, known)
        assert (row.account, row.comment) == (account, comment)


def test_a_forged_record_stays_in_its_comment() -> None:
    """A user cannot add a job to the queue without the mark."""
    forged = QUEUE.split(MARK)[0].replace("1|1|", "99|99|", 1)
    (row,) = parse_queue(with_texts("(null)", f"x#\n{forged}#4567\n"), MARK)
    assert row.key == "4"
    assert forged in row.comment


BANNER = "Welcome to X\n\n| queue = gpu | 17 |\n\x1b[32mOK\x1b[0m\n"


@pytest.mark.parametrize(
    "text", [f"{BANNER}{QUEUE}", f"{QUEUE}{BANNER}", f"{BANNER}{QUEUE}{BANNER}"]
)
def test_what_a_wrapper_of_squeue_says_hides_no_job(text: str) -> None:
    """It comes before or after the records, also where there are none."""
    assert parse_queue(text, MARK) == parse_queue(QUEUE, MARK)
    assert parse_queue(text.replace(QUEUE, ""), MARK) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (QUEUE[:-3], "a record is not whole"),
        (QUEUE + "squeue: something else", "a record is not whole"),
        (QUEUE + "17", "a record is not whole"),
        (QUEUE + "17|", "a record is not whole"),
        ("Hello " + QUEUE, "a record is not whole"),
        ("slurm_load_jobs error: Socket timed out on send/recv operation\n", "not whole"),
        ("bash: line 1: /usr/bin/squeue: cannot execute\n", "not whole"),
        ("1|2|3#0123#0123#0123#0123\n", "a record is not whole"),
        (with_field(4, "root"), "invalid literal"),
        (with_field(7, "high"), "invalid literal"),
        (with_field(17, "yesterday"), "could not convert"),
        (with_field(10, "n[1-"), "host list"),
        (with_field(23, "ten"), "invalid literal"),
    ],
)
def test_output_in_another_form_is_told_with_its_text(text: str, words: str) -> None:
    """An error with the text is raised for output of an unknown form."""
    with pytest.raises(SlurmOutputError, match=words) as caught:
        parse_queue(text, MARK)
    assert caught.value.text


@pytest.mark.parametrize(
    ("field", "request_", "gpus"),
    [
        (12, "gres:gpu:k80:2", {"k80": 2}),
        (12, "gres/gpu:k80:2", {"k80": 2}),
        (12, "gres:gpu:2", {"gpu": 2}),
        (12, "gres:gpu", {"gpu": 1}),
        (12, "gres/gpu:v100", {"v100": 1}),
        (12, "gres:gpu:v100:2,gres:gpu:k80:1", {"v100": 2, "k80": 1}),
        (12, "gres/gpu:a100_3g.20gb:2", {"a100_3g.20gb": 2}),
        (12, "gres:craynetwork:1", {}),
        (12, "N/A", {}),
        (12, "", {}),
    ],
)
def test_requests_for_gpus(field: int, request_: str, gpus: dict[str, int]) -> None:
    """Both forms, before and since 23.02, are read, with and without type and count."""
    (row,) = parse_queue(with_field(field, request_), MARK)
    assert dict(row.gpus_per_node) == gpus


def test_gpus_asked_for_in_other_ways_are_seen() -> None:
    """GPUs requested per job, per task or per socket are read."""
    for field_ in (13, 14, 15):
        (row,) = parse_queue(with_field(field_, "gres:gpu:2"), MARK)
        assert row.gpus_otherwise == (("gpu", 2),)


@pytest.mark.parametrize(("text", "status"), [("10", 10), ("35328", 138 << 8), ("0:10", 10)])
def test_how_a_job_has_ended(text: str, status: int) -> None:
    """22.05.8 shows the wait status as a number, later versions the exit code and the signal."""
    (row,) = parse_queue(with_field(23, text), MARK)
    assert row.exit_status == status


@pytest.mark.parametrize(
    ("state", "reason", "priority", "is_held"),
    [
        ("PENDING", "JobHeldUser", "0", True),
        ("PENDING", "JobHeldAdmin", "0", False),
        ("PENDING", "Priority", "7", False),
        ("RUNNING", "None", "0", False),
    ],
)
def test_who_is_held_by_its_user(state: str, reason: str, priority: str, *, is_held: bool) -> None:
    """An administrator's hold does not count: hadard must not release it."""
    values = QUEUE.split("#0123\n")[3].split("|")
    values[2], values[3], values[7] = state, reason, priority
    (row,) = parse_queue("|".join(values) + "#0123\n", MARK)
    assert row.is_held_by_user is is_held


# Nodes


def test_nodes_are_read() -> None:
    """GPUs by type, state and partitions are read; CPU nodes have no GPUs."""
    first, second, third = parse_nodes(NODES)
    assert first.node == Node.of("n1", {"v100": 2})
    assert first.partitions == ("main", "long")
    assert second.node == Node.of("n2", {"k80": 2, "v100": 1}, is_schedulable=False)
    assert (second.state, second.partitions) == ("IDLE+DRAIN", ())
    assert third.node.gpus == ()


@pytest.mark.parametrize(
    ("state", "is_open"),
    [
        ("IDLE", True),
        ("MIXED", True),
        ("ALLOCATED", True),
        ("IDLE+CLOUD", True),
        ("MIXED+PLANNED", True),
        ("IDLE+COMPLETING", True),
        ("IDLE+DYNAMIC_NORM", True),
        ("ALLOCATED+COMPLETING+CLOUD", True),
        ("IDLE+DRAIN", False),
        ("MIXED+DRAIN", False),
        ("ALLOCATED+COMPLETING+DRAIN", False),
        ("DOWN", False),
        ("DOWN*", False),
        ("IDLE*", False),
        ("IDLE+NOT_RESPONDING", False),
        ("MIXED+MAINTENANCE", False),
        ("IDLE+MAINTENANCE+RESERVED", False),
        ("IDLE+RESERVED", False),
        ("IDLE+POWERED_DOWN", True),
        ("IDLE+CLOUD+POWERED_DOWN", True),
        ("MIXED+POWERING_UP", True),
        ("IDLE+POWER_DOWN", False),
        ("IDLE+POWERING_DOWN", False),
        ("DOWN+POWERED_DOWN", False),
        ("IDLE+REBOOT_REQUESTED", False),
        ("FUTURE", False),
        ("UNKNOWN", False),
        ("INVAL", False),
        ("ERROR", False),
        ("IDLE+SOMETHING_NEW", False),
        ("", False),
    ],
)
def test_which_nodes_take_work(state: str, *, is_open: bool) -> None:
    """A node gets jobs only if its state certainly allows it."""
    assert takes_work(state) is is_open


def test_a_node_that_is_powered_down_need_not_report() -> None:
    rows = {
        state: node_row("n1", {"V100": 2}, state, (), (), has_reported=False)
        for state in ("IDLE", "IDLE+POWERED_DOWN", "IDLE+POWERING_DOWN")
    }
    assert [row.node.is_schedulable for row in rows.values()] == [False, True, False]
    assert [row.node.is_asleep for row in rows.values()] == [False, True, False]
    assert waits_for_nodes([rows["IDLE"]])
    assert not waits_for_nodes([rows["IDLE+POWERED_DOWN"], rows["IDLE+POWERING_DOWN"]])


@pytest.mark.parametrize(
    "text",
    ["NodeName=n1 Arch=x86_64 State=IDLE\n", "NodeName=n1 Arch=x86_64 Gres=gpu:1\n", "no nodes\n"],
)
def test_nodes_in_another_form_are_an_error(text: str) -> None:
    """GRES or state is missing, or the text has no node."""
    with pytest.raises(SlurmOutputError):
        parse_nodes(text)


def test_gpus_that_jobs_share_are_in_use() -> None:
    """A whole GPU of such a job's cannot be had, whatever no job holds."""
    used = "gpu:v100:1(IDX:2),shard:v100:2(IDX:0-1),mps:0"
    text = f"NodeName=n1 Arch=x86 Gres=gpu:v100:4,shard:v100:8 GresUsed={used} State=MIXED\n"
    state = SlurmState({}, tuple(parse_nodes(text)), {JobId("1"): a_gang("n1:v100:1")})
    assert state.in_use == {("n1", "v100"): 3}
    assert state.occupied([]) == {("n1", "v100"): 3}
    assert state.occupied([JobId("1")]) == {("n1", "v100"): 2}


def test_no_nodes_are_read() -> None:
    """A Slurm without nodes prints nothing."""
    assert parse_nodes("") == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[1-3,7]", ("n1", "n2", "n3", "n7")),
        ("n[08-11]", ("n08", "n09", "n10", "n11")),
        ("gpu7,n[1-2]", ("gpu7", "n1", "n2")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
    ],
)
def test_host_lists_are_folded_out(text: str, names: tuple[str, ...]) -> None:
    """The names in Slurm's folded lists are returned."""
    assert sorted(fold_out(text)) == sorted(names)


# What jobs hold


def test_a_job_holds_what_its_line_tells() -> None:
    """GPUs are read by node and type, and folded host lists are expanded."""
    line = (
        "JobId=31 JobName=x NodeList=n[1-3] JOB_GRES=gpu:v100:4   "
        "Nodes=n[1-2] CPU_IDs=0 Mem=100 GRES=gpu:v100:2(IDX:0-1)   "
        "Nodes=n3 CPU_IDs=0 Mem=100 GRES=gpu:k80:1(IDX:0),gpu:v100:0(IDX:) MinCPUsNode=1 \n"
    )
    nodes = fold_out("n[1-3]")
    assert held_gang(line, nodes) == a_gang("n1:v100:2 n2:v100:2 n3:k80:1")


def test_only_nodes_of_the_queue_are_believed() -> None:
    """A job's name cannot claim GPUs on nodes that the queue does not show for the job."""
    name = "x Nodes=n9 CPU_IDs=0 Mem=1 GRES=gpu:v100:8"
    assert held_gang(a_detail("1", name=name), [NodeName("n1")]) == a_gang("n1:v100:1")


def test_where_a_line_speaks_twice_of_a_node_the_more_counts() -> None:
    """GPUs that a job may hold are not given to another job."""
    name = "x Nodes=n1 CPU_IDs=0 Mem=1 GRES=gpu:v100:2"
    assert held_gang(a_detail("1", name=name), [NodeName("n1")]) == a_gang("n1:v100:2")


@pytest.mark.parametrize(
    "nodes", ["n[1-", "n[0-99999999]", "n[1-2]", "]", f"n[{'9' * 5000}-1]", "n[2-1]"]
)
def test_a_list_that_no_job_can_have_is_no_allocation(nodes: str) -> None:
    """A text of a user neither ends the reading nor keeps it busy."""
    name = f"x Nodes={nodes} CPU_IDs=0 Mem=1 GRES=gpu:v100:4"
    assert held_gang(a_detail("1", name=name), [NodeName("n1")]) == a_gang("n1:v100:1")


def test_a_job_without_gpus_holds_none() -> None:
    """Jobs on CPUs alone have no gang."""
    line = "JobId=2 JobName=x   Nodes=n1 CPU_IDs=0 Mem=100 GRES= MinCPUsNode=1 \n"
    assert held_gang(line, [NodeName("n1")]) == a_gang("")
    assert held_gang("", [NodeName("n1")]) == a_gang("")


def test_every_job_has_its_line() -> None:
    """Lines are returned by job number."""
    text = a_detail("1") + a_detail("2") + a_detail("10")
    found = split_job_details(text, {"1", "2", "10"})
    assert found == {number: a_detail(number) for number in ("1", "2", "10")}
    assert split_job_details("No jobs in the system\n", set()) == {}


@pytest.mark.parametrize(
    ("forged", "sound"),
    [
        # Job 2 imitates an unknown job: its own line ends before its GPUs.
        ("x\nJobId=999 JobName=y", {"1", "3"}),
        # It imitates job 1 or job 3.
        ("x\nJobId=1 JobName=y", {"3"}),
        ("x\nJobId=3 JobName=y", {"1"}),
        # It imitates itself.
        ("x\nJobId=2 JobName=y", {"3"}),
        # A text of any other form is just a name.
        ("x\n JobId=1 JobName=y", {"1", "2", "3"}),
        ("x JobId=1 JobName=y", {"1", "2", "3"}),
    ],
)
def test_a_forged_line_gives_nobody_a_line_that_is_not_whole(forged: str, sound: set[str]) -> None:
    """A line break in a job's name may hide lines, but every line that is returned is complete."""
    lines = [a_detail("1"), a_detail("2", name=forged), a_detail("3")]
    found = split_job_details("".join(lines), {"1", "2", "3"})
    assert sound <= set(found)
    for number, line in found.items():
        assert line == lines[int(number) - 1]


@dataclass(frozen=True, slots=True)
class Told(Runner):
    """Stands for Slurm's commands; job 4 has ended by the time of the query about it."""

    queue: str = ""
    details: dict[str, str] = field(default_factory=dict)
    # How many jobs were asked for with each command.
    asked: list[int] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, stdin: str = "") -> str:
        """Return the output of the command."""
        if argv[0] == "squeue":
            if argv[-1].startswith("JobID:|,Name:"):
                return self._texts(argv[-1].rpartition(":")[2])
            return self.queue.replace(MARK, argv[-1].rpartition(":")[2])
        if argv[:4] == ["scontrol", "-a", "show", "node"]:
            return NODES
        return "".join(self.details.values())

    def replies(self, argv: Sequence[str], *, stdin: str) -> str:
        """Return the output of one scontrol with several commands."""
        assert argv == ["scontrol", "-a", "-d", "-o"]
        words = [line.split()[-1] for line in stdin.splitlines()]
        self.asked.append(len(words) // 2)
        return "".join(
            self.details.get(word, "" if word.isdigit() else f"{word}\n") for word in words
        )

    def _texts(self, mark: str) -> str:
        name = re.compile(r"JobName=(.*) UserId=", re.DOTALL)
        names = {n: match[1] for n, line in self.details.items() if (match := name.search(line))}
        return "".join(f"{n}|{text}{mark}" + f"-{mark}" * 5 + "\n" for n, text in names.items())


def running(number: str) -> str:
    values = QUEUE.split("#0123\n")[3].split("|")
    values[0] = values[1] = number
    return "|".join(values) + "#0123\n"


def test_a_job_cannot_hide_its_gpus_behind_its_name(tmp_path: Path) -> None:
    """A job's line that may be cut short is read separately; an ended job holds no GPUs."""
    details = {
        "1": a_detail("1", name="x\nJobId=999 JobName=y"),
        "2": a_detail("2"),
        "3": a_detail("3", gpus="gpu:v100:0"),
    }
    reading = read_all(Told(queue="".join(map(running, "1234")), details=details))
    assert reading.gangs == {key: a_gang("n1:v100:1") for key in ("1", "2")}
    assert sum(reading.in_use.values()) == 2
    assert [node.name for node in reading.cluster.nodes] == ["n1", "n2"]


OURS = '{"hadar":1,"rates":{"v100":1.0},"steps":1,"gpus":1}'


def managed(number: str) -> str:
    """Return squeue's row of a pending job that hadard places."""
    return (
        f"{number}|{number}|PENDING|JobHeldUser|0|root|main|0|(null)|||1|gres:gpu:1|N/A|N/A|N/A|0|"
        "1795259474|N/A|N/A|(null)|N/A|1|0|high|N/A|1|"
        f"physics#0123(null)#0123(null)#0123{OURS}#0123\n"
    )


def test_a_job_submitted_between_two_commands_hides_no_other_ones_details(tmp_path: Path) -> None:
    """squeue does not know job 6 yet: scontrol's line before its line is asked for again."""
    lines = {n: f"JobId={n} TimeLimit=00:01:00 ExcNodeList=n1 NumNodes=1-2 \n" for n in "56"}
    reading = read_all(Told(queue=managed("5"), details=lines))
    assert (reading.limits_s, reading.excluded) == ({"5": 60.0}, {"5": ("n1",)})
    assert reading.unseen == set()


def test_a_plain_job_in_doubt_is_asked_for_too(tmp_path: Path) -> None:
    """It may be enrolled: of those in doubt, jobs with a description come first."""
    lines = {str(n): f"JobId={n} TimeLimit=00:01:00 ExcNodeList=n1 \n" for n in range(5, 400)}
    told = Told(queue="".join(managed(n).replace(OURS, "(null)") for n in lines), details=lines)
    told = replace(told, details=lines | {"5": lines["5"] + "JobId=999 JobName=x\n"})
    assert read_all(told).excluded == dict.fromkeys(lines, ("n1",))
    assert told.asked == [1]


def pending_detail(number: str, name: str = "x") -> str:
    return (
        f"JobId={number} JobName={name} UserId=root(0) JobState=PENDING TimeLimit=00:01:00 "
        "ExcNodeList=(null) NumNodes=1-2 \n"
    )


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("more", ["", "JobId=9 JobName=own\n", "JobId=12345 JobName=nobody\n"])
@pytest.mark.parametrize("end", ["", "\n"])
def test_one_job_that_imitates_all_others_harms_itself_only(
    more: str, end: str, *, is_first: bool
) -> None:
    """The others are known at once, also if it imitates them, and it does not hide its own GPUs."""
    numbers = [str(number) for number in range(10, 610)]
    lines = {number: pending_detail(number) for number in numbers}
    forged = "".join(f"{line.strip()} Nodes=n1 GRES=gpu:v100:4\n" for line in lines.values())
    own = {"9": a_detail("9", name=f"x\n{more}{forged.strip()}{end}")}
    told = Told(
        queue=running("9") + "".join(map(managed, numbers)),
        details={**own, **lines} if is_first else {**lines, **own},
    )
    reading = read_all(told)
    assert {reading.limits_s.get(number) for number in numbers} == {60.0}
    assert reading.unseen == set()
    assert reading.gangs == {"9": a_gang("n1:v100:1")}
    assert sum(told.asked) < 10


def test_an_imitation_of_a_whole_line_does_not_remove_the_line(tmp_path: Path) -> None:
    """Where a line stands more often than its imitators have it, it is asked for."""
    numbers = [str(number) for number in range(10, 30)]
    lines = {number: pending_detail(number) for number in numbers}
    lines["9"] = a_detail("9", name="x\n" + "".join(lines.values()))
    told = Told(queue=running("9") + "".join(map(managed, numbers)), details=lines)
    reading = read_all(told)
    assert set(numbers) <= reading.limits_s.keys()
    assert reading.gangs == {"9": a_gang("n1:v100:1")}


def test_texts_that_put_many_jobs_in_doubt_do_not_keep_the_round_busy(tmp_path: Path) -> None:
    """Beyond a number of questions, jobs without details are known as such."""
    numbers = [str(number) for number in range(1000, 1700)]
    lines = {n: pending_detail(n, "x\nJobId=7 JobName=y") for n in numbers}
    told = Told(queue="".join(map(managed, numbers)), details=lines)
    reading = read_all(told)
    assert told.asked == [300, 300]
    assert len(reading.limits_s) == 600
    assert reading.unseen == set(numbers) - reading.limits_s.keys()


def test_a_job_that_has_ended_meanwhile_is_left_out() -> None:
    """Slurm has forgotten it; the others are shown."""
    told = Told(details={"1": a_detail("1"), "3": a_detail("3")})
    found = job_details([JobId("1"), JobId("2"), JobId("3")], told)
    assert found == {"1": a_detail("1"), "3": a_detail("3")}
    assert job_details([], told) == {}


# What squeue does not show


@pytest.mark.parametrize(
    ("detail", "is_apart"),
    [
        ("JobId=1 ReqNodeList=(null) ExcNodeList=(null) NodeList= ", False),
        ("JobId=1 ReqNodeList=(null) ExcNodeList=n[1-2] NodeList= ", False),
        ("JobId=1 JobName=x ExcNodeList=n7 ReqNodeList=(null) ExcNodeList=n[1-2] NodeList= ", True),
        ('JobId=1 CronJob=Yes CrontabSpec="* * * * *" ', True),
        ("JobId=1 JobName=x CronJob=No CronJob=Yes Comment= CronJob=No", True),
        ("", False),
    ],
)
def test_scrontab_and_doubtful_exclusions_set_a_job_apart(detail: str, *, is_apart: bool) -> None:
    """Only the detail line of a job shows them."""
    assert detail_of(detail).is_set_apart is is_apart


@pytest.mark.parametrize(
    ("detail", "least", "nodes"),
    [
        ("JobId=1 NumNodes=2-4 NumCPUs=2 ", "2", "2-4"),
        ("JobId=1 NumNodes=2-2 NumCPUs=2 ", "2", "2-2"),
        ("JobId=1 NumNodes=1 NumCPUs=2 ", "1", "1-10000"),
        ("JobId=1 NumCPUs=2 ", "3", "3-10000"),
        ("", "1-4", "1-4"),
        ("JobId=1 JobName=x NumNodes=7-9 y NumNodes=1-2 NumCPUs=2 ", "1", "1-2"),
    ],
)
def test_the_range_of_nodes_can_be_asked_for_again(detail: str, least: str, nodes: str) -> None:
    """A number alone would leave the former maximum unchanged; no name can forge the range."""
    assert asked_nodes(detail, least) == nodes


def test_the_excluded_nodes_of_a_job_are_read(tmp_path: Path) -> None:
    """So are the numbers of nodes of pending jobs."""
    pending = QUEUE.split("#0123\n")[2] + "#0123\n"
    apart = "JobId=3 JobName=x JobState=PENDING ExcNodeList=n1 NodeList= NumNodes=1-2 NumCPUs=1 \n"
    reading = read_all(Told(queue=running("4") + pending, details={"4": a_detail("4"), "3": apart}))
    assert (reading.set_apart_by_detail, reading.excluded["3_1"]) == (set(), ("n1",))
    assert reading.request(reading.queue[JobId("3_1")]).num_nodes == "1-2"
    assert reading.request(reading.queue[JobId("4")]).num_nodes == "1-1"


@pytest.mark.parametrize(
    ("description", "num_nodes"),
    [
        (Description(steps=1, gpus=4, workload="A"), "1-4"),
        (Description(steps=1, gpus=4, workload="A", shape=Shape(2, 2)), "2-2"),
        (Description(steps=1, gpus=4, workload="A", asks={"gpus": "4", "nodes": "2-3"}), "2-3"),
        (None, "2-2"),
    ],
)
def test_a_job_that_has_run_asks_for_the_nodes_of_its_description(
    description: Description | None, num_nodes: str
) -> None:
    """Slurm shows how many nodes it had last, which may be more than it has tasks."""
    row = a_queue_row(
        key=JobId("1"),
        restarts=1,
        request=Request(num_nodes="2", per_job="gres:gpu:4"),
        comment="" if description is None else encode(description),
    )
    assert SlurmState({row.key: row}, (), {}).request(row).num_nodes == num_nodes


def test_an_estimate_of_the_number_of_nodes_is_not_asked_for() -> None:
    """22.05.8 shows 1 or 2 for `-n1 -c8 --mem=1G --gres=gpu:1`: not its owner's."""
    known = Description(steps=1, gpus=1, workload="A", shape=Shape(1, 1), asks={"gres": "gpu:1"})
    one = Request(num_nodes="2", per_node="gres:gpu:1")
    row = a_queue_row(key=JobId("1"), request=one, comment=encode(known))
    assert SlurmState({row.key: row}, (), {}).request(row).num_nodes == "1-1"
    wished = SlurmState({row.key: row}, (), {}, num_nodes={row.key: "2-2"})
    assert wished.request(row).num_nodes == "2-2"
