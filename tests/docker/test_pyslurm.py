"""The pyslurm adapter reads and changes a real Slurm as the command-line adapter does.

The adapter runs in the controller's container, since pyslurm is built for the Slurm there.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from docker.world import USERS, DockerCluster, wait_until

pytestmark = pytest.mark.docker

# docker/capture waits for the states of its jobs, one after the other.
FILL_S = 240.0
# Array tasks in a list longer than what Slurm's library shows by default.
SQUARES = [number * number for number in range(60)]

# Jobs that docker/capture leaves out: other programs that read its output would fail on them.
MORE = r"""
import subprocess

def submit(*options, comment=b""):
    argv = ["sbatch", "--parsable", "--hold", "--time=60", "--output=/dev/null", *options]
    script = b"#!/bin/sh\n#SBATCH --comment='%b'\nsleep 9\n" % comment
    job = subprocess.run(argv, input=script, check=True, stdout=subprocess.PIPE).stdout.decode()
    print(job, end="")
    return job.strip()

for comment in (b"a\xff\xfeb", b"None", b"N/A", b"(null)", b"NONE"):
    submit(comment=comment)
one = submit("--gpus=4", "--gpus-per-node=2", "--nodes=2")
two = submit("--gpus=4", "--nodes=1-4")
submit("--ntasks=4", "--gpus-per-task=1", "--gpus=4")
submit("--ntasks=40")
submit("--time=UNLIMITED")
submit("--prefer=v100|k80")
submit("--array=0,5,7-90%3")
submit("--array=" + ",".join(str(i * i) for i in range(60)))
submit(f"--dependency=afterany:{one}:{two},after:{one}+5,singleton")
submit(f"--dependency=afterany:{one}?afterok:{two}")
"""
# Compares a reading by pyslurm with two by the command line, right before and after it, which must
# be equal. The given jobs are cancelled first; the last one must then be COMPLETING.
COMPARE = """
import json, sys, time
from dataclasses import fields
from hadar_slurm.daemon.adapter import make_adapter
from hadar_slurm.slurm.client.runner import Runner

ways = [make_adapter(name, Runner()) for name in ("command-line", "pyslurm")]
deadline_s = time.monotonic() + 40
if sys.argv[1:]:
    Runner().run(["scancel", *sys.argv[1:]])
    while ways[0].queue()[sys.argv[-1]].state != "COMPLETING":
        assert time.monotonic() < deadline_s
while True:
    before, seen, after = (way.read() for way in (*ways, ways[0]))
    if before == after or time.monotonic() > deadline_s:
        break
keys = after.queue.keys() | seen.queue.keys()
pairs = {key: (after.queue.get(key), seen.queue.get(key)) for key in keys}
parts = {
    field.name: [getattr(reading, field.name) for reading in (after, seen)]
    for field in fields(after)
    if field.name not in ("queue", "throttles")  # by pyslurm the latter is learned, not read
}
# A text of a job that imitates one of these leaves the commands in doubt.
for name in ("nice", "excluded", "limits_s"):
    known = getattr(after, name).keys()
    parts[name] = [{key: value for key, value in x.items() if key in known} for x in parts[name]]
sure = seen.set_apart_by_detail
parts["set_apart_by_detail"] = [x & sure for x in parts["set_apart_by_detail"]]
facts = {
    name: [getattr(way, name) for way in ways] for name in ("version", "abilities")
} | {
    name: [getattr(way, name)() for way in ways] for name in ("site", "partitions")
}
print(json.dumps({
    "is_steady": before == after,
    "states": sorted({row.state for row in seen.queue.values()}),
    "num_jobs": len(seen.queue),
    "num_gangs": len(seen.gangs),
    "set_apart": len(sure) + sum(map(bool, seen.excluded.values())),
    "different": {k: [repr(row) for row in pair] for k, pair in pairs.items() if pair[0] != pair[1]}
    | {k: [repr(x) for x in pair] for k, pair in (parts | facts).items() if pair[0] != pair[1]},
}))
"""
COMMENTS = """
import json
from hadar_slurm.daemon.adapter import make_adapter
from hadar_slurm.slurm.client.runner import Runner
queue = make_adapter("pyslurm", Runner()).queue()
print(json.dumps({key: row.comment for key, row in queue.items()}))
"""
# Makes changes given as (kind, job, arguments); prints a fault or null for each.
CHANGE = """
import json, sys
from hadar_slurm.slurm.client import updates
from hadar_slurm.daemon.adapter import make_adapter
from hadar_slurm.jobspec.request import Request
from hadar_slurm.slurm.client.updates import SetRequest
from hadar_slurm.slurm.client.runner import Runner

def change(kind, job, **request):
    if kind == "SetRequest":
        return SetRequest(job, Request(**{**request, "nodes": tuple(request["nodes"])}))
    return getattr(updates, kind)(job)

wanted = [change(kind, job, **more) for kind, job, more in json.loads(sys.argv[1])]
faults = make_adapter("pyslurm", Runner()).change(wanted)
print(json.dumps([fault and [type(fault).__name__, str(fault)] for fault in faults]))
"""
# Emulates a hung slurmctld: a server that accepts connections and never answers.
HUNG = """
import json, re, socket, sys, time
from pathlib import Path
from hadar_slurm.errors import SlurmUnavailable
from hadar_slurm.daemon.adapter import make_adapter
from hadar_slurm.slurm.client.updates import Release, Requeue
from hadar_slurm.slurm.client.runner import Runner

server = socket.create_server(("127.0.0.1", 0))
conf = Path("hung.conf")
text = Path("/etc/slurm/slurm.conf").read_text()
text = re.sub("SlurmctldHost=.*", "SlurmctldHost=localhost", text)
text = re.sub("MessageTimeout=.*", "MessageTimeout=3", text)
conf.write_text(f"{text}\\nSlurmctldPort={server.getsockname()[1]}\\n")
way = make_adapter("pyslurm", Runner(conf))

def timed(look):
    began_s = time.monotonic()
    try:
        said = [type(fault).__name__ for fault in look() if fault]
    except SlurmUnavailable as error:
        said = str(error)
    return said, time.monotonic() - began_s

twenty = [Release("1"), Requeue("2")] * 10
print(json.dumps([timed(way.read), timed(way.queue), timed(lambda: way.change(twenty))]))
"""
WRONG = """
import json, sys
from pathlib import Path
from hadar_slurm.errors import ConfigError
from hadar_slurm.daemon.adapter import make_adapter
from hadar_slurm.slurm.client.runner import Runner

conf = Path("wrong.conf")
conf.write_text("Foo=bar\\n")
runner = Runner(conf, timeout_s=10)
answers = [make_adapter("auto", runner).name]
try:
    make_adapter("pyslurm", runner)
except ConfigError as error:
    answers.append(str(error))
# The right one can still be loaded, and then no other.
answers.append(make_adapter("auto", Runner()).name)
answers.append(make_adapter("auto", Runner(Path("/etc/slurm/./slurm.conf"))).name)
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def pyslurm(cluster: DockerCluster) -> DockerCluster:
    """Return the cluster if its image has pyslurm."""
    version = cluster.run("scontrol", "--version").split()[1]
    if not version.startswith("26."):
        pytest.skip(f"pyslurm is built for Slurm 26.05, and this is {version}")
    return cluster


@pytest.fixture(scope="module")
def zoo(pyslurm: DockerCluster) -> Iterator[DockerCluster]:
    """Return the cluster with a job of every kind in its queue."""
    capture = (pyslurm.repository / "docker" / "capture").read_text(encoding="utf-8")
    try:
        filled = subprocess.run(
            ["docker", "exec", "-i", pyslurm.containers["ctl"],
             "python", "-", "--keep", "/tmp/zoo"],
            input=capture, capture_output=True, text=True, timeout=FILL_S, check=False,
        )  # fmt: skip
        assert filled.returncode == 0, filled.stderr
        more = pyslurm.run("python", "-c", MORE, user="alice").split()
        yield pyslurm
        # Other programs fail on a comment that is not valid text, until Slurm purges the job.
        pyslurm.run("scontrol", "update", f"JobId={','.join(more)}", "Comment=seen")
    finally:
        for user in USERS:
            pyslurm.attempt("scrontab", "-r", user=user)
            pyslurm.attempt("scancel", f"--user={user}")
        wait_until(lambda: not pyslurm.run("squeue", "-h"), "the queue is empty")
        pyslurm.attempt("scontrol", "delete", "ReservationName=captured")


def _ask(cluster: DockerCluster, program: str, *words: str) -> Any:
    """Run a Python program as hadard's user in the controller; return the JSON that it prints."""
    said = cluster.run("python", "-W", "error", "-c", program, *words, user="hadar")
    return json.loads(said.splitlines()[-1])


def _change(cluster: DockerCluster, *wanted: tuple[str, str, dict[str, Any]]) -> list[Any]:
    answer: list[Any] = _ask(cluster, CHANGE, json.dumps(wanted))
    return answer


def test_changes_go_their_ways_in_order(pyslurm: DockerCluster) -> None:
    """A batch makes all its valid changes, in order, and returns a fault for each invalid one."""
    cluster = pyslurm
    script = "trap 'exit 0' USR1\nwhile :; do sleep 0.2; done"
    saved = cluster.submit("--gres=gpu:1", "--nodelist=n1", user="alice", script=script)
    moved = cluster.submit("--gres=gpu:1", "--nodelist=n1", user="alice", script=script)
    held = cluster.submit("--gpus=2", "--hold", user="bob", script=script)
    array = cluster.submit("--array=0-3", "--gpus=1", "--hold", user="bob", script=script)
    for job in (saved, moved):
        cluster.wait_for_state(job, "RUNNING")
    request = {"num_nodes": "2-2", "per_node": "gres/gpu:1", "nodes": ["n5", "n6"]}
    task = {"num_nodes": "1-1", "per_node": "gres/gpu:k80:2", "nodes": ["n6"]}
    faults = _change(
        cluster,
        ("SignalCheckpoint", saved, {}),
        ("Requeue", moved, {}),
        ("Release", "999999", {}),
        ("ClearRequest", held, {}),
        ("SetRequest", held, request),
        ("Hold", "999998", {}),
        ("Requeue", held, {}),
        ("Release", held, {}),
        ("ClearRequest", f"{array}_2", {}),
        ("SetRequest", f"{array}_2", task),
        ("Release", f"{array}_2", {}),
    )
    refused = {index: fault for index, fault in enumerate(faults) if fault}
    assert refused.keys() == {2, 5, 6}
    assert all(kind == "SlurmRefused" for kind, _ in refused.values())
    assert "Invalid job id" in refused[2][1]
    assert "Invalid job id" in refused[5][1]
    assert "pending" in refused[6][1]
    cluster.wait_for_state(saved, "COMPLETED")
    assert cluster.wait_for_state(moved, "PENDING")["Priority"] == "0"
    assert cluster.wait_for_state(held, "RUNNING")["NodeList"] == "n[5-6]"
    assert cluster.wait_for_state(f"{array}_2", "RUNNING")["NodeList"] == "n6"
    assert cluster.run("squeue", "-h", "-r", "-t", "RUNNING", "-j", array, "-o", "%K").split() == [
        "2"
    ]
    # The owner, not only an administrator, may release the requeued job.
    cluster.run("scontrol", "release", moved, user="alice")
    wait_until(lambda: cluster.job(moved)["Priority"] != "0", "alice has released the job")
    cluster.run("scancel", moved, held, array)
    wait_until(lambda: not cluster.run("squeue", "-h", "-u", "alice,bob", "-t", "R,CG"), "all gone")


def test_a_hung_slurmctld_costs_one_message_timeout(pyslurm: DockerCluster) -> None:
    """A read fails after one timeout, and a batch waits for its first change only."""
    (read, read_s), (queue, queue_s), (change, change_s) = _ask(pyslurm, HUNG)
    assert "Socket timed out" in read
    assert "Socket timed out" in queue
    assert change == ["SlurmUnavailable"] * 20
    assert max(read_s, queue_s, change_s) < 3 + 2


def test_a_wrong_configuration_does_not_end_the_daemon(pyslurm: DockerCluster) -> None:
    """Slurm's library ends its process on a wrong configuration: another process tries it first."""
    name, fault, right, other = _ask(pyslurm, WRONG)
    assert name == "command line"
    assert fault.startswith("adapter: pyslurm: ")
    assert right == "pyslurm"
    assert other == "command line"


def test_both_ways_see_the_same(zoo: DockerCluster) -> None:
    """Both adapters read equal jobs, nodes, held GPUs, partitions, versions and addresses."""
    seen = _ask(zoo, COMPARE)
    assert seen["is_steady"]
    assert seen["different"] == {}
    # The comparison covered at least:
    assert {"RUNNING", "SUSPENDED", "PENDING", "COMPLETED", "FAILED", "CANCELLED"} <= {
        *seen["states"]
    }
    assert seen["num_jobs"] > 140
    assert seen["num_gangs"] >= 8
    assert seen["set_apart"] >= 2


def test_they_see_the_same_while_jobs_end(zoo: DockerCluster) -> None:
    """Both adapters read a COMPLETING job, and the tasks of a cancelled array, alike."""
    script = "trap '' TERM\nwhile :; do sleep 1; done"
    slow = zoo.submit("--gres=gpu:1", "--nodelist=n5", user="bob", script=script)
    waiting = zoo.submit("--array=0-5", "--hold", user="bob", script="true")
    zoo.wait_for_state(slow, "RUNNING")
    seen = _ask(zoo, COMPARE, waiting, slow)
    assert "COMPLETING" in seen["states"]
    assert seen["different"] == {}


def test_comments_arrive_whole(zoo: DockerCluster) -> None:
    """Line breaks, quotes, other alphabets and imitations of Slurm's output are read unchanged."""
    comments = [
        "first\nsecond\r\nthird\rfourth",
        'it\'s "quoted" `so`; $(touch harm) | \\ a|b|c,d=e',
        "Übergröße ✓ 训练",
        "x\nJobId=1 JobName=y UserId=root(0) JobState=RUNNING Nodes=n1 GRES=gpu:v100:4",
        "c" * 1000,
    ]
    jobs = [
        zoo.submit("--hold", f"--comment={comment}", user="carol", script="true")
        for comment in comments
    ]
    seen = _ask(zoo, COMMENTS)
    assert [seen[job] for job in jobs] == comments
    # The reader of squeue replaces line breaks by one kind: remove comments that would differ.
    zoo.run("scontrol", "update", f"JobId={','.join(jobs)}", "Comment=seen")


def test_every_task_of_an_array_is_seen(zoo: DockerCluster) -> None:
    """No task is missing from a long list, nor from one with steps (`squeue -r` omits task 13)."""
    spans = {"1-13:2": range(1, 14, 2), ",".join(map(str, SQUARES)): SQUARES}
    for span, tasks in spans.items():
        job = zoo.submit("--hold", f"--array={span}", user="carol", script="true")
        seen = {key for key in _ask(zoo, COMMENTS) if key.startswith(f"{job}_")}
        assert seen == {f"{job}_{task}" for task in tasks}
        # Once the tasks have their own records, both adapters read them alike.
        every = ",".join(map(str, tasks))
        zoo.run("scontrol", "update", f"JobId={job}_[{every}]", "Comment=seen")
