"""A real Slurm with a slurm.conf that warns, names of nodes with several numbers, hostile texts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from integration.conftest import reset
from integration.site import Site, eventually

from hadar_slurm.core.cluster import JobId, NodeName
from hadar_slurm.core.gang import Gang
from hadar_slurm.devcluster.cluster import LocalCluster
from hadar_slurm.devcluster.config import NodeShape
from hadar_slurm.errors import SlurmRefused
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.constraint import fold, fold_out
from hadar_slurm.jobspec.description import Description
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.scontrol import request_for
from hadar_slurm.slurm.client.updates import (
    ClearRequest,
    Hold,
    Release,
    SetRequest,
    Steer,
    Update,
)

pytestmark = pytest.mark.slurm

NAMES = ("compute-0-0", "compute-0-1", "compute-1-0", "r1n1", "r2n1", "queue-dy-c1-9")
# A number in the middle, none, upper case, the same number twice, more digits than a number has.
ODD = ("gpu01x1", "gpu02x1", "gpu-node", "GPU-A", "c1", "c01", "n00000000000000000012", "a1b2c3")
NUMBERED = [*NAMES, "queue-dy-c1-10", "sh03-12n01", "n08", "n09", "n10", "n8", "n9", "n098", "n099"]
DESCRIPTION = encode(Description(steps=1, gpus=1, throughputs={"v100": 1.0}))
# What makes 22.05's commands warn at each start, in slurm.conf.
WARNS = {
    "ControlMachine": ("", "\nControlMachine=localhost\n"),
    "sockets": (" CPUs=16 ", " CPUs=17 "),
    "MemSpecLimit": ("RealMemory=8000 ", "RealMemory=8000 MemSpecLimit=9000 "),
    "BackupController": ("", "\nBackupController=x\nControlAddr=127.0.0.1\n"),
}
# What makes sbatch alone warn, and print more than the number of the job.
SAYS = "\nGresTypes=gpu,gpu\nPlugStackConfig={0}/plugstack.conf\nCliFilterPlugins=lua\n"
FILTER = """
function slurm_cli_setup_defaults(options, early) return slurm.SUCCESS end
function slurm_cli_pre_submit(options, offset)
    print("Welcome, job 17 of today")
    slurm.log_info("a module is deprecated")
    return slurm.SUCCESS
end
function slurm_cli_post_submit(offset, job, step)
    print("See https://docs.example/jobs/1 for help")
    return slurm.SUCCESS
end
"""

# What wrappers of the commands print, before and after these.
SAYS_MORE = r"""
printf 'Welcome to X 25.11\n\n| queue = gpu | load 3 | ***\n\033[32mOK\033[0m\n2026;x y\n\033[0m'
echo "$(date +%N): session $$ opened for job ID 7, invalid token" >&2
"""
WRAPPER = '#!/bin/sh\n{says}{program} "$@"\nstatus=$?\n{says}exit $status\n'


@pytest.fixture(scope="module")
def numbered_cluster(new_directory: Callable[[], Path]) -> Iterator[LocalCluster]:
    """Start a cluster whose nodes have names with several numbers."""
    shapes = [NodeShape(name, {"v100": 2}) for name in (*NAMES, *ODD)]
    with LocalCluster.up(new_directory(), shapes) as cluster:
        yield cluster


@pytest.fixture
def cluster(numbered_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Give its nodes idle and without jobs, and reset them after the test."""
    yield numbered_cluster
    reset(numbered_cluster)


def sbatch(cluster: LocalCluster, *options: str) -> JobId:
    """Submit a job that sleeps."""
    argv = ["sbatch", "--parsable", "-o", "/dev/null", *options, "--wrap=sleep 600"]
    return JobId(cluster.runner().run(argv).strip())


def noisy_conf(cluster: LocalCluster, name: str) -> Path:
    """Return another slurm.conf than slurmctld reads, with which commands warn."""
    text = cluster.slurm_conf.read_text()
    old, new = WARNS[name]
    changed = text.replace(old, new) if old else text + new
    assert changed != text
    conf = cluster.directory / f"{name}.conf"
    conf.write_text(changed)
    return conf


def noisy(cluster: LocalCluster, name: str) -> CommandLine:
    """Return an adapter whose commands warn."""
    conf = noisy_conf(cluster, name)
    return CommandLine(replace(cluster.runner(), slurm_conf=conf, environment={}))


@pytest.mark.parametrize("name", WARNS)
def test_what_the_commands_always_say_refuses_no_change(cluster: LocalCluster, name: str) -> None:
    """Each change has its own answer, the first one too, and a refusal names its job."""
    slurm = noisy(cluster, name)
    command = subprocess.run(
        ["scontrol", "ping"], env=slurm.runner.variables(), capture_output=True, check=True
    )
    assert command.stderr
    first, second = (sbatch(cluster, "--gres=gpu:1", "--hold") for _ in range(2))
    changes: list[Update] = [
        ClearRequest(first),
        SetRequest(
            first, request_for(Gang.of({("r1n1", "v100"): 1}), slurm.version, names_type=False)
        ),
        Steer(second, (NodeName("no-such-node"),)),
        Release(first),
        Hold(JobId("999999")),
    ]
    one, two, three, four, five = slurm.change(changes)
    assert (one, two, four) == (None, None, None)
    assert isinstance(three, SlurmRefused)
    assert str(three).endswith(f": Invalid node name specified for job {second}")
    assert isinstance(five, SlurmRefused)
    eventually(lambda: slurm.queue()[first].state == "RUNNING", lambda: str(slurm.queue()[first]))
    assert slurm.read().gangs == {first: Gang.of({("r1n1", "v100"): 1})}
    assert {row.node.name for row in slurm.nodes()} == {*NAMES, *ODD}
    assert slurm.partitions().names == ("main",)


@pytest.mark.parametrize("name", ["", "sockets", "BackupController"])
def test_hadard_starts_jobs_whatever_the_commands_say(
    cluster: LocalCluster, tmp_path: Path, name: str
) -> None:
    """Gangs on nodes of all kinds of names, of which each needs several changes."""
    conf = noisy_conf(cluster, name) if name else cluster.directory / "own.conf"
    if not name:
        conf.write_text(cluster.slurm_conf.read_text())
    cluster_conf = conf.read_text().replace("GresTypes=gpu\n", "") + SAYS.format(cluster.directory)
    conf.write_text(cluster_conf)
    (cluster.directory / "plugstack.conf").write_text("optional /nowhere/none.so\n")
    (cluster.directory / "cli_filter.lua").write_text(FILTER)
    site = Site(cluster, tmp_path)
    site.environment["SLURM_CONF"] = str(conf)
    try:
        site.start(slurm_conf=conf, round_seconds=1)
        words = ("--hadar-throughput=v100=20", "--hadar-steps=1000000", "--hadar-checkpoint=no")
        gangs = ("1x14", "1x4", "1x4", "1")
        done = [
            site.hadar_sbatch(*words, f"--hadar-gang={gang}", "--wrap=sleep 600") for gang in gangs
        ]
        numbers = [re.search(r"^Submitted batch job (\d+)$", each.stdout, re.M) for each in done]
        jobs = [JobId(found[1]) for found in numbers if found]
        assert len(jobs) == len(gangs)
        site.until_running(*jobs)
        assert all(site.tree(job) == site.planned(job) for job in jobs)
    finally:
        site.close()


def wrapped(directory: Path) -> Path:
    """Make wrappers of Slurm's commands that print more than these, and each time another error."""
    directory.mkdir()
    for name in ("squeue", "sinfo", "scontrol", "sbatch", "scancel"):
        program = directory / name
        program.write_text(WRAPPER.format(says=SAYS_MORE, program=shutil.which(name)))
        program.chmod(0o755)
    return directory


def test_what_wrappers_print_keeps_no_job_waiting(cluster: LocalCluster, tmp_path: Path) -> None:
    """Lines on the standard output of the commands, before and after their own, are left out."""
    site = Site(cluster, tmp_path)
    site.environment["PATH"] = f"{wrapped(tmp_path / 'bin')}:{os.environ['PATH']}"
    try:
        site.start(round_seconds=1)
        words = ("--hadar-throughput=v100=20", "--hadar-steps=1000000", "--hadar-checkpoint=no")
        jobs = []
        for gang in ("1x2", "1"):
            options = ("--hadar-json", *words, f"--hadar-gang={gang}", "--wrap=sleep 600")
            done = site.hadar_sbatch(*options)
            assert done.returncode == 0, done.stderr
            told = json.loads(done.stdout)
            assert told["taken"], done.stdout
            jobs.append(JobId(told["job"]))
        site.until_running(*jobs)
        assert all(site.tree(job) == site.planned(job) for job in jobs)
    finally:
        site.close()


def test_a_number_that_a_wrapper_of_sbatch_prints_is_no_job(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Held late, and printed as JSON, is the job of the submission; a lost status hides nothing."""
    site = Site(cluster, tmp_path)
    (tmp_path / "bin").mkdir()
    wrapper = tmp_path / "bin" / "sbatch"
    program, other = shutil.which("sbatch"), sbatch(cluster, "--gres=gpu:1", "--begin=now+1hour")
    wrapper.write_text(f'#!/bin/sh\n{program} "$@"\nstatus=$?\necho {other}\nexit $status\n')
    wrapper.chmod(0o755)
    site.environment["PATH"] = f"{wrapper.parent}:{os.environ['PATH']}"
    site.vouch()
    names = ",".join(node.name for node in cluster.nodes)
    site.run(["scontrol", "update", f"NodeName={names}", "State=DRAIN", "Reason=test"])
    words = ("--hadar-throughput=v100=20", "--hadar-steps=1000000", "--wrap=sleep 600")
    job, second_line = site.hadar_sbatch("--parsable", *words).stdout.split()
    told = json.loads(site.hadar_sbatch("--hadar-json", *words).stdout)
    assert second_line == other
    are_held = {name: row.is_held_by_user for name, row in site.queue().items() if row.is_live}
    assert are_held == {other: False, job: True, told["job"]: True}
    wrapper.write_text(f'#!/bin/sh\n{program} "$@" 2>&1 | cat\n')
    done = site.hadar_sbatch("-G1", "-t9", "--mem=900G", "--wrap=true")
    assert "Requested node configuration is not available" in done.stdout
    assert {name for name, row in site.queue().items() if row.is_live} == are_held.keys()


def test_an_operators_own_defaults_of_squeue_hide_no_job(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who starts hadard, or calls `hadar release`, may have them in the environment."""
    job = sbatch(cluster, "--gres=gpu:1", "--hold")
    own = {"USERS": "nobody", "PARTITION": "none", "NAMES": "x", "STATES": "R", "SORT": "i"}
    for name, value in own.items():
        monkeypatch.setenv(f"SQUEUE_{name}", value)
    slurm = CommandLine(cluster.runner())
    assert job in slurm.queue()
    assert job in slurm.submissions()


def shown(cluster: LocalCluster, text: str) -> list[str]:
    """Return the names that Slurm itself reads in a host list."""
    return cluster.runner().run(["scontrol", "show", "hostnames", text]).split()


def test_slurm_reads_the_lists_of_nodes_that_are_written(cluster: LocalCluster) -> None:
    """Slurm's own list of the same nodes is read, too."""
    for names in (NUMBERED, NUMBERED[::2], NUMBERED[1::3], NUMBERED[-5:]):
        text = fold(tuple(map(NodeName, names)))
        assert sorted(shown(cluster, text)) == sorted(names)
        argv = ["scontrol", "show", "hostlist", ",".join(names)]
        assert sorted(fold_out(cluster.runner().run(argv).strip())) == sorted(names)


@pytest.mark.parametrize(
    "names", [("compute-0-0", "compute-1-0"), ("r1n1", "r2n1", "queue-dy-c1-9")], ids=str
)
def test_a_gang_on_nodes_with_several_numbers_starts(
    cluster: LocalCluster, names: Sequence[str]
) -> None:
    """It gets these nodes, and other nodes of such names can be excluded."""
    slurm = CommandLine(cluster.runner())
    gang = Gang.of({(name, "v100"): 1 for name in names})
    job = sbatch(cluster, "--gpus=1", "--hold")
    others = tuple(NodeName(name) for name in NAMES if name not in names)
    request = request_for(gang, slurm.version, names_type=False)
    changes = [ClearRequest(job, excluded=others), SetRequest(job, request), Release(job)]
    assert slurm.change(changes) == [None, None, None]
    eventually(lambda: slurm.queue()[job].state == "RUNNING", lambda: str(slurm.queue()[job]))
    reading = slurm.read()
    assert reading.gangs[job] == gang
    assert set(reading.excluded[job]) == set(others)


@pytest.mark.parametrize("place", ["--job-name", "--comment", "--network", "--mail-user"])
def test_a_job_that_imitates_all_others_harms_none(cluster: LocalCluster, place: str) -> None:
    """The others' details are read at once; its own GPUs are not hidden."""
    slurm = CommandLine(cluster.runner())
    own = ["--hold", "--gres=gpu:1", "--exclude=r2n1", "--nice=3", f"--comment={DESCRIPTION}"]
    jobs = [sbatch(cluster, *own) for _ in range(12)]
    forged = "".join(f"\nJobId={job} Nice=9 ExcNodeList=n1" for job in [*jobs, "77777"])
    options = [f"{place}=/tmp/x{forged}", "--mail-type=ALL", "--gres=gpu:1", "-w", "compute-0-1"]
    hostile = sbatch(cluster, *options)
    eventually(lambda: slurm.queue()[hostile].state == "RUNNING", "it runs", 30)
    reading = slurm.read()
    assert {job: reading.nice.get(job) for job in jobs} == dict.fromkeys(jobs, 3)
    assert {reading.excluded.get(job) for job in jobs} == {("r2n1",)}
    assert reading.unseen == set()
    assert reading.gangs == {hostile: Gang.of({("compute-0-1", "v100"): 1})}
    some = slurm.read_jobs([*jobs[:3], hostile])
    assert {some.nice.get(job) for job in jobs[:3]} == {3}
    assert some.gangs == reading.gangs
