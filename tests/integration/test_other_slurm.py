"""hadard with a Slurm that preempts, has allocations without a script, and fails over.

These tests need their own slurm.conf, and so their own cluster; docs/fail-open.md has the expected
outcomes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from integration.conftest import reset
from integration.site import HADAR, LIMIT_S, Gpu, Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.processes import find_binaries, start_daemon
from hadar_slurm.errors import SlurmError
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.client.state import read_nodes, waits_for_nodes
from hadar_slurm.slurm.enforce.ledger import Ledger
from hadar_slurm.state.heartbeat_reader import read_heartbeat

pytestmark = pytest.mark.slurm

# One node of each type, so that one job of four GPUs takes all V100s.
NODES = "v100:4,p100:4,k80:4"
EQUAL = {"v100": 20.0, "p100": 20.0, "k80": 20.0}
V100_ONLY = {"v100": 20.0}
LONG = 10**6  # steps of a job that outlasts its test
MAIN_ONLY = {"mode": "observe", "partitions": "{main: hold}", "round_seconds": 1}
# The description of a job that hadard would place if sbatch had submitted it.
DESCRIPTION = encode(Description(steps=LONG, gpus=2, throughputs=V100_ONLY, checkpoint=True))

ONE_HOST = "SlurmctldHost=localhost(127.0.0.1)\n"
TWO_HOSTS = """\
SlurmctldHost=ctl1(127.0.0.1)
SlurmctldHost=ctl2(127.0.0.2)
CommunicationParameters=NoCtldInAddrAny
SlurmctldTimeout=5
"""
OTHER_SETTINGS = """\
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ScronParameters=enable
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""

# Does what scrontab does with one entry: Debian 12 ships no scrontab, but its library. The numbers
# are the offsets of fields in job_desc_msg_t of 22.05's slurm.h, on 64-bit machines.
SCRONTAB_OF_2205 = """
import ctypes, glob, os, sys
from ctypes import c_char_p, c_uint32, c_uint64, c_void_p

class Entry(ctypes.Structure):
    _fields_ = [
        ("wild", c_uint32),
        *((name, c_void_p) for name in "minute hour day month weekday spec command".split()),
        ("first_line", c_uint32),
        ("last_line", c_uint32),
    ]

class Answer(ctypes.Structure):
    _fields_ = [
        ("fault", c_char_p),
        ("failed_lines", c_char_p),
        ("jobs", ctypes.POINTER(c_uint32)),
        ("num_jobs", c_uint32),
        ("status", c_uint32),
    ]

[library] = glob.glob("/usr/lib/*/slurm-wlm/libslurmfull.so")
slurm = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
for name in "slurm_xstrdup slurm_list_create new_cron_entry slurm_update_crontab".split():
    getattr(slurm, name).restype = c_void_p
slurm.slurm_list_append.argtypes = [c_void_p, c_void_p]
slurm.slurm_update_crontab.argtypes = [c_uint32, c_uint32, c_char_p, c_void_p]
slurm.slurm_init(None)

def text(value):
    return slurm.slurm_xstrdup(value.encode())

def submit(comment, gres, command):
    entry = Entry.from_address(slurm.new_cron_entry())
    entry.wild = 0b111110  # every minute of every hour of every day
    entry.spec, entry.command = text("* * * * *"), text(command)
    arguments = (c_void_p * 2)(text(command))
    environment = (c_void_p * 2)(text("SLURM_GET_USER_ENV=1"))
    job = ctypes.create_string_buffer(880)
    slurm.slurm_init_job_desc_msg(job)
    c_uint64.from_buffer(job, 88).value |= 1 << 22  # bitflags: of scrontab
    for kind, place, value in (
        (c_uint32, 40, 1),  # argc
        (c_void_p, 48, ctypes.addressof(arguments)),
        (c_void_p, 120, text(comment)),
        (c_void_p, 184, ctypes.addressof(entry)),
        (c_void_p, 224, ctypes.addressof(environment)),
        (c_uint32, 268, 1),  # env_size
        (c_uint32, 312, os.getgid()),
        (c_void_p, 400, text("scrontab")),  # name
        (c_void_p, 536, text("#!/bin/sh\\n" + command + "\\n")),
        (c_void_p, 656, text(gres)),  # tres_per_node
        (c_uint32, 680, os.getuid()),
        (c_void_p, 696, text(os.getcwd())),
    ):
        kind.from_buffer(job, place).value = value
    jobs = slurm.slurm_list_create(None)
    slurm.slurm_list_append(jobs, ctypes.addressof(job))
    table = f"* * * * * {command}\\n".encode()
    answer = slurm.slurm_update_crontab(os.getuid(), os.getgid(), table, jobs)
    answer = Answer.from_address(answer)
    print(answer.fault.decode() if answer.status else answer.jobs[0])
    return answer.status

if len(sys.argv) > 1:
    status = submit(*sys.argv[1:])
else:
    status = slurm.slurm_remove_crontab(os.getuid(), os.getgid())
sys.stdout.flush()
os._exit(status != 0)  # what slurm_init has begun need not be ended
"""


@dataclass(frozen=True)
class Controllers:
    """Two slurmctld on one machine: ctl1 is the primary, ctl2 its backup.

    Each has its own host name, which resolves to its own address, and its own pid file.
    """

    cluster: LocalCluster

    @staticmethod
    def are_possible() -> bool:
        """Return whether namespaces can be created here, which needs root."""
        attempt = ["unshare", "--uts", "--mount", "true"]
        try:
            return subprocess.run(attempt, capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            return False

    def prepare(self) -> None:
        """Write the start script of each."""
        directory = self.cluster.directory
        slurmctld = f"{find_binaries()['slurmctld']} -f {self.cluster.slurm_conf}"
        (directory / "hosts").write_text("127.0.0.1 localhost ctl1\n127.0.0.2 ctl2\n")
        for name in ("ctl1", "ctl2"):
            own = [
                f"hostname {name}",
                f"mount --bind {directory}/hosts /etc/hosts",
                f"mount --bind {directory}/{name} {directory}/pid",
                f"exec {slurmctld}",
            ]
            self.script(name).parent.mkdir()
            self.script(name).write_text(
                f"#!/bin/sh\nexec unshare --uts --mount sh -c '{' && '.join(own)}'\n"
            )
            self.script(name).chmod(0o755)

    def script(self, name: str) -> Path:
        """Return the start script of one; daemons are named after the file that starts them."""
        return self.cluster.directory / name / "slurmctld"

    def start(self, name: str) -> None:
        """Start one of them, which then runs in the background."""
        start_daemon([str(self.script(name))], self.cluster.directory)

    def kill(self, name: str) -> None:
        """Kill one of them and its child as if its machine had lost power."""
        pid = int((self.cluster.directory / name / "slurmctld.pid").read_text())
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for number in (pid, *map(int, children)):
            os.kill(number, signal.SIGKILL)
        eventually(lambda: not Path(f"/proc/{pid}").exists(), f"{name} is gone")

    def saved_queue(self, job_name: str) -> bytes:
        """Return the saved queue, once it contains a job of this name.

        slurmctld saves it every five seconds at most: a power failure loses later changes.
        """
        path = self.cluster.directory / "state" / "job_state"
        eventually(lambda: job_name.encode() in path.read_bytes(), f"{job_name} in {path}")
        return path.read_bytes()

    def save_queue(self, content: bytes) -> None:
        """Restore a queue that was saved before."""
        (self.cluster.directory / "state" / "job_state").write_bytes(content)

    def who_answers(self) -> list[str]:
        """Return which of them are up, according to `scontrol ping`."""
        try:
            said = self.cluster.runner().run(["scontrol", "ping"])
        except SlurmError:
            return []
        return [name for name in ("ctl1", "ctl2") if f" at {name} is UP" in said]

    def log(self) -> str:
        """Return the log of both."""
        return (self.cluster.directory / "log" / "slurmctld" / "log").read_text()

    @contextmanager
    def taking_over(self) -> Iterator[None]:
        """Wait at the end of a block until another one is primary and all nodes have reported."""
        known = len(self.log())
        yield
        eventually(lambda: "Running as primary" in self.log()[known:], "another is in charge")
        eventually(self._have_nodes_reported, "all nodes have reported")

    def _have_nodes_reported(self) -> bool:
        try:
            return not waits_for_nodes(read_nodes(self.cluster.runner()))
        except SlurmError:
            return False


@pytest.fixture(scope="module")
def other_cluster(local_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    """Give a cluster with preemption and, where possible, a backup slurmctld."""
    cluster = local_cluster(NODES, slurmd_timeout_s=10)
    cluster.stop_controller()
    controllers = Controllers(cluster) if Controllers.are_possible() else None
    conf = cluster.slurm_conf.read_text()
    if controllers is not None:
        conf = conf.replace(ONE_HOST, TWO_HOSTS)
        controllers.prepare()
    cluster.slurm_conf.write_text(conf + OTHER_SETTINGS)
    for node in cluster.nodes:
        cluster.kill_node(node.name)
    if controllers is None:
        cluster.start_controller()
    else:
        controllers.start("ctl1")
    for node in cluster.nodes:
        cluster.start_node(node.name, timeout_s=LIMIT_S)
    if controllers is not None:
        # readings.py distinguishes controllers by the second of their start.
        started_s = int(time.time())
        eventually(lambda: int(time.time()) > started_s, "the next second")
        controllers.start("ctl2")
    yield cluster
    cluster.down()


@pytest.fixture
def cluster(other_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Give its nodes idle and without jobs, and reset them after the test."""
    yield other_cluster
    other_cluster.runner().run(["scancel", "--partition=urgent"])
    reset(other_cluster)


@pytest.fixture
def controllers(cluster: LocalCluster) -> Iterator[Controllers]:
    """Give the two slurmctld of the cluster; both run and ctl1 is primary again afterwards."""
    if not Controllers.are_possible():
        pytest.skip("two slurmctld on one machine need namespaces, and those need root")
    controllers = Controllers(cluster)
    eventually(lambda: controllers.who_answers() == ["ctl1", "ctl2"], controllers.who_answers)
    yield controllers
    missing = {"ctl1", "ctl2"}.difference(controllers.who_answers())
    if "ctl1" in missing:
        with controllers.taking_over():
            controllers.start("ctl1")
    if "ctl2" in missing:
        controllers.start("ctl2")


def rest(site: Site, *options: str, gpus: int = 2, is_held: bool = False) -> JobId:
    """Submit a described job that only sleeps, runs on V100s only and is never migrated."""
    script = site.script("rest", "exec sleep 600")
    return site.train(
        V100_ONLY,
        *options,
        steps=LONG,
        gpus=gpus,
        script=script,
        checkpoint="no",
        held=is_held,
    )


def where(site: Site, job: JobId) -> tuple[str, int, frozenset[Gpu]]:
    """Return a job's state, its number of restarts and its GPUs."""
    row = site.queue()[job]
    return row.state, row.restarts, site.gpus(job)


def check_untouched(site: Site, job: JobId) -> None:
    """Fail if hadard ever planned for a job, recorded, held, pinned or migrated it."""
    assert all(job not in line["jobs"] for line in site.lines())
    assert all(job not in (line["plan"] or {}) for line in site.lines())
    assert list(site.actions(job)) == []
    assert job not in Ledger(site.state_dir / "ledger.json")
    row = site.queue()[job]
    assert row.priority > 0
    assert row.requested_nodes == ()


def test_a_preempted_job_gets_other_gpus_at_once(site: Site) -> None:
    """A job that Slurm preempts is placed on other GPUs, without Slurm's delay of two minutes."""
    site.start(**MAIN_ONLY)
    job = site.train(EQUAL, "--hadar-gang=4x1", gpus=4, steps=240)
    site.until_running(job)
    eventually(lambda: site.steps(job) >= 20, lambda: site.told(job))
    [(node, gpus)] = site.tree(job).items()
    [gpu_type] = gpus
    wanted = ["--partition=urgent", "--comment=mine", f"--gres=gpu:{gpu_type}:4"]
    urgent = site.submit(*wanted, "--wrap=sleep 600", command=["sbatch"])
    asked = site.queue()[urgent].request
    site.until_running(urgent)
    site.until_completed(job)
    before, after = site.check_training(job, 240)
    assert set(before["gpus"]) == {node}
    assert len(after["gpus"]) == 1
    assert set(after["gpus"]) != {node}
    assert site.queue()[job].restarts == 1
    assert after["start_s"] - before["end_s"] < 30
    check_untouched(site, urgent)
    row = site.queue()[urgent]
    assert (row.state, row.restarts, row.comment) == ("RUNNING", 0, "mine")
    assert (row.request.per_node, row.gpus_otherwise) == (asked.per_node, ())
    assert site.tree(urgent) == {node: {gpu_type: 4}}


def test_a_preempted_job_waits_for_gpus_under_a_hold(site: Site) -> None:
    """A preempted job is held until GPUs are free.

    The urgent job is described, but its partition is not enforced.
    """
    site.start(**MAIN_ONLY)
    job = rest(site, gpus=4)
    site.until_running(job)
    urgent = rest(site, "--partition=urgent", "--gres=gpu:v100:4", gpus=4)
    site.until_running(urgent)
    comment = site.queue()[urgent].comment
    eventually(lambda: site.queue()[job].is_held_by_user, lambda: site.told(job))
    site.until_rounds(2)
    assert site.queue()[job].is_held_by_user
    assert where(site, urgent)[:2] == ("RUNNING", 0)
    assert site.queue()[urgent].comment == comment
    check_untouched(site, urgent)
    site.free(urgent)
    freed_s = time.time()
    site.until_running(job)
    assert time.time() - freed_s < 30
    assert site.tree(job) == {"n1": {"v100": 4}}


@contextmanager
def allocation(site: Site, *options: str) -> Iterator[JobId]:
    """Request an allocation without a script, and cancel it afterwards."""
    before = set(site.queue())
    with (site.directory / "salloc.log").open("wb") as log:
        process = subprocess.Popen(
            ["salloc", "--no-shell", *options],
            cwd=site.directory,
            env=site.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        eventually(lambda: len(set(site.queue()) - before) == 1, "a job of salloc's")
        [job] = set(site.queue()) - before
        yield job
        site.free(job)
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def test_an_allocation_without_a_script_is_left_alone(site: Site) -> None:
    """A described allocation of salloc is left to Slurm, and no managed job gets its GPUs."""
    [plain] = site.occupy(n1="gpu:4").values()
    site.start(round_seconds=1)
    with allocation(site, "--gres=gpu:v100:2", f"--comment={DESCRIPTION}") as job:
        site.until_rounds(2)
        assert site.state(job) == "PENDING"
        check_untouched(site, job)
        site.free(plain)
        site.until_running(job)
        assert site.tree(job) == {"n1": {"v100": 2}}
        beside = rest(site)
        site.until_running(beside)  # before hadard could start the next one instead
        waits = rest(site)
        site.until_rounds(2)
        assert site.tree(beside) == {"n1": {"v100": 2}}
        assert site.queue()[waits].is_held_by_user
        assert set(site.newest()["plan"]) == {beside}
        assert site.newest()["occupied"] == {"n1": {"v100": 2}}
        site.check_gpus_are_apart()
        check_untouched(site, job)
        assert site.queue()[job].comment == DESCRIPTION
    site.until_running(waits)


@contextmanager
def scrontab(site: Site, comment: str, gres: str, command: str) -> Iterator[JobId]:
    """Add a crontab entry with a command for every minute, and remove it afterwards."""
    version = site.runner.run(["scontrol", "--version"])
    if not version.startswith("slurm-wlm 22.05."):
        pytest.skip(f"knows how scrontab of 22.05 speaks to Slurm, and this is {version.strip()}")
    program = [sys.executable, "-c", SCRONTAB_OF_2205]
    added = site.run([*program, comment, gres, command])
    assert added.returncode == 0, added.stdout + added.stderr
    try:
        yield JobId(added.stdout.strip())
    finally:
        removed = site.run(program)
        assert removed.returncode == 0, removed.stderr


@pytest.mark.slow
def test_jobs_of_scrontab_are_left_alone(site: Site) -> None:
    """Described jobs of scrontab are left to Slurm, while they wait, run and wait again."""
    site.start(round_seconds=1)
    end = site.directory / "end"
    command = f"until [ -e {end} ]; do sleep 0.2; done"
    with scrontab(site, DESCRIPTION, "gres:gpu:v100:2", command) as job:
        assert " CronJob=Yes " in site.details()[job]
        asked = site.queue()[job].request.per_node
        site.until_rounds(2)
        eventually(lambda: site.state(job) == "RUNNING", lambda: site.told(job), 60 + LIMIT_S)
        site.until_rounds(2)
        assert where(site, job)[:2] == ("RUNNING", 0)
        assert site.tree(job) == {"n1": {"v100": 2}}
        assert site.newest()["occupied"] == {"n1": {"v100": 2}}
        end.touch()
        # Slurm counts its next run as a restart, like that of a migrated job.
        eventually(lambda: site.queue()[job].restarts > 0, lambda: site.told(job))
        site.until_rounds(2)
        row = site.queue()[job]
        assert (row.comment, row.request.per_node) == (DESCRIPTION, asked)
        check_untouched(site, job)


def is_vouched_for(site: Site) -> bool:
    """Return whether hadard's heartbeat is fresh."""
    beat = read_heartbeat(site.run_dir)
    return beat is not None and beat.good_until_s > time.time()


def test_hadard_goes_on_when_the_backup_takes_over(site: Site, controllers: Controllers) -> None:
    """During a failover and the way back held jobs stay held and running jobs run.

    For some seconds no slurmctld answers: hadard then does nothing, and its heartbeat stays fresh.
    """
    [plain] = site.occupy(n1="gpu:2").values()
    hadard = site.start(round_seconds=1)
    stays = rest(site)
    trains = site.train({"p100": 20.0}, steps=300)
    site.until_running(stays, trains)
    waits = rest(site, "--job-name=waits-for-backup")
    controllers.saved_queue("waits-for-backup")
    site.until_rounds(2)
    assert site.queue()[waits].is_held_by_user
    before = where(site, stays)
    with controllers.taking_over():
        killed_s = time.time()
        controllers.kill("ctl1")

        def has_backup() -> bool:
            assert is_vouched_for(site)
            assert hadard.process is not None
            assert hadard.process.poll() is None
            return controllers.who_answers() == ["ctl2"]

        eventually(has_backup, controllers.who_answers)
    assert time.time() - killed_s > 3  # otherwise there was no outage to test
    site.until_rounds(2)
    assert site.queue()[waits].is_held_by_user
    assert where(site, stays) == before
    since = [line for line in site.lines() if line["time_s"] > killed_s]
    assert {action["do"] for line in since for action in line["actions"]} == {"renew"}
    site.free(plain)
    site.until_running(waits)
    assert site.tree(waits) == {"n1": {"v100": 2}}
    site.until_completed(trains)
    [only] = site.check_training(trains, 300)
    assert set(only["gpus"]) == {"n2"}

    with controllers.taking_over():
        controllers.start("ctl1")
    later = site.train({"p100": 20.0}, steps=20)
    site.until_completed(later)
    assert where(site, stays) == before
    assert where(site, waits)[:2] == ("RUNNING", 0)
    assert {action["do"] for action in site.actions(waits)} == {"start", "renew"}
    assert [action["do"] for action in site.actions(waits)].count("start") == 1


@pytest.mark.slow
def test_the_reaper_gives_jobs_back_through_the_backup(
    site: Site, controllers: Controllers
) -> None:
    """If hadard and the primary die, the reaper restores the held job once the backup answers."""
    site.occupy(n1="gpu:4")
    site.start(round_seconds=1, alive_seconds=8)
    job = rest(site, "--job-name=waits-for-reaper")
    controllers.saved_queue("waits-for-reaper")
    site.until_rounds(2)
    assert site.queue()[job].is_held_by_user
    config = str(site.hadard.directory / "hadar.yaml")

    def is_released() -> bool:
        # Repeatedly, as by its timer: while no slurmctld answers it can only fail.
        done = site.run([*HADAR, "release", "--config", config, "--json", "--expired"])
        return done.returncode == 0 and json.loads(done.stdout)["released"] == [job]

    with controllers.taking_over():
        site.kill(site.hadard)
        controllers.kill("ctl1")
        eventually(is_released, lambda: site.told(job), 2 * LIMIT_S)
    site.until_running(job)
    row = site.queue()[job]
    assert (row.gpus_otherwise, row.gpus_per_node, row.requested_nodes) == ((("gpu", 2),), (), ())
    assert len(site.gpus(job)) == 2
    assert controllers.who_answers() == ["ctl2"]


@pytest.mark.slow
def test_a_start_that_slurm_forgets_is_made_again(site: Site, controllers: Controllers) -> None:
    """The primary dies before it saves a release: the job is held again, and hadard restarts it."""
    job = rest(site, "--job-name=waits-for-hadard", is_held=True)
    saved = controllers.saved_queue("waits-for-hadard")
    site.start(round_seconds=1)
    site.until_running(job)
    with controllers.taking_over():
        controllers.kill("ctl1")
        controllers.save_queue(saved)  # as if this were its last save
    eventually(lambda: site.state(job) == "RUNNING", lambda: site.told(job), 20)
    assert site.tree(job) == {"n1": {"v100": 2}}
