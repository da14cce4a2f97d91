"""What sites have and users do on a real Slurm, seen through commands alone.

With HADAR_TEST_PYTHON these tests run another version (CONTRIBUTING.md).
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import datetime

import pytest
from integration.site import HADAR, Site, eventually

from hadar_slurm.core.cluster import JobId
from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description

pytestmark = pytest.mark.slurm

EQUAL = {"v100": 20.0, "p100": 20.0, "k80": 20.0}
V100_ONLY = {"v100": 20.0}
ALL_V100 = {"n1": "gpu:4", "n2": "gpu:4", "n6": "gpu:v100:2"}
DESCRIPTION = encode(Description(steps=1, gpus=1, throughputs=EQUAL))
LONG = 10**6  # steps of a job that outlasts its test
# scontrol: before the first command that changes jobs, or after the first that reads them, it
# carries out what a test has written.
SCONTROL = """#!/bin/sh
once() {{ [ ! -e {script} ] || {{ mv {script} {script}.done; sh {script}.done >&2; }} }}
if [ $# = 0 ]; then
    batch=$(cat)
    case "{when} $batch" in "before "*"update "*) once;; esac
    printf '%s\\n' "$batch" | {real}
else
    {real} "$@"; status=$?
    case "{when} $*" in "after "*"show job"*) once;; esac
    exit $status
fi
"""


def round_with(site: Site, script: str, when: str) -> None:
    """Run a round, and a script `before` its first change or `after` its first reading of jobs."""
    places = site.directory / "bin"
    places.mkdir()
    path = places / "script"
    path.write_text(script)
    text = SCONTROL.format(script=path, real=shutil.which("scontrol"), when=when)
    (places / "scontrol").write_text(text)
    (places / "scontrol").chmod(0o755)
    before = site.environment["PATH"]
    site.environment["PATH"] = f"{places}:{before}"
    try:
        site.once()
    finally:
        site.environment["PATH"] = before
    assert not path.exists()


def rest(site: Site, *options: str, gpus: int = 4, steps: int = LONG) -> JobId:
    """Submit a described job that only sleeps, on V100s."""
    script = site.script("rest", "exec sleep 600")
    return site.train(V100_ONLY, *options, steps=steps, gpus=gpus, script=script, held=True)


@pytest.mark.parametrize("words", [(), ("--array=3",)], ids=str)
def test_a_job_that_starts_before_its_change_is_not_resized(
    site: Site, words: tuple[str, ...]
) -> None:
    """Slurm up to 23.11 resizes a running job to the nodes of a change that comes late."""
    # The end of the first job is foreseen, however busy the machine is: within few rounds.
    site.settings |= {"mode": "steer", "policy": "hadar", "round_seconds": 600}
    site.occupy(n6="gpu:v100:2")
    first, second = (rest(site, "--exclude=n[3-6]", steps=20_000 * n) for n in (1, 2))
    for job in (first, second):
        site.run(["scontrol", "release", job])
    site.until_running(first, second)
    job = rest(site, "--exclude=n[3-6]", *words)
    key = JobId(f"{job}_3") if "--array=3" in words else job
    site.run(["scontrol", "release", job])
    runs = f"until squeue -h -t R -j {job} | grep -q .; do sleep 0.1; done"
    round_with(site, f"scancel {first}\n{runs}\n", "before")
    detail = next(line for line in site.details().values() if f"JobId={job} " in line)
    assert " JobState=RUNNING " in detail
    assert "ResizeTime=" not in detail
    assert len(site.gpus(JobId(job))) == 4, key


# What owners change, and what Slurm then shows: %s what hadard has added.
EDITS = {
    "ReqNodeList=n3": " ReqNodeList=n3 ",
    "ExcNodeList=n1,n3": " ExcNodeList=n[1,3",
    "Features=v100|p100": " Features=v100|p100 ",
    "Nice=700": " Nice=700 ",
    "TimeLimit=77": " TimeLimit=01:17:00 ",
    "NumNodes=1-3": " NumNodes=1-3 ",
    "Comment=mine": " Comment=mine",
    "StartTime=2037-01-01T00:00:00": f" EligibleTime={datetime(2037, 1, 1).timestamp():.0f} ",
    "Dependency=singleton": " Dependency=singleton",
    "MinMemoryNode=123": " MinMemoryNode=123M ",
    "Partition=other": " Partition=other ",
    "JobName=my-own": " JobName=my-own ",
    "Requeue=0": " Requeue=0 ",
    "ReservationName=kept": " Reservation=kept ",
    "Prefer=v100": " Prefer=v100 ",
}


@pytest.fixture
def other(site: Site) -> Iterator[Site]:
    """Give a site with all GPUs occupied, a second partition and a reservation."""
    site.occupy(**dict.fromkeys(("n1", "n2", "n3", "n4", "n5"), "gpu:4"))
    site.occupy(n6="gpu:v100:2,gpu:k80:2")
    made = (
        ("PartitionName=other", "Nodes=n[1-6]"),
        ("ReservationName=kept", "Users=root", "Nodes=n5", "Duration=60"),
    )
    for words in made:
        more = ("StartTime=now+5hours", "Flags=IGNORE_JOBS") if len(words) > 2 else ()
        done = site.run(["scontrol", "create", *words, *more])
        assert done.returncode == 0, done.stderr
    yield site
    site.cluster.cancel_jobs()
    site.run(["scancel", "--partition=other"])
    site.run(["scancel", "--reservation=kept"])
    eventually(lambda: not site.run(["squeue", "-h"]).stdout, "no jobs")
    for words in made:
        assert site.run(["scontrol", "delete", words[0]]).returncode == 0


def lost(site: Site, edits: dict[JobId, str]) -> list[str]:
    """Return the edits that Slurm does not show."""
    details = site.details()
    return [details[job] for job, words in edits.items() if EDITS[words] not in details[job]]


def test_an_edit_after_the_reading_is_its_owners(other: Site) -> None:
    """Also when all is given back."""
    site = other
    site.settings |= {"mode": "steer", "policy": "hadar"}
    site.settings["enrol"] = "{partitions: [main]}"
    plain = ("-G2", "--time=10", "--wrap=sleep 600")
    jobs = [site.submit(*plain, command=["sbatch"]) for _ in EDITS]
    edits = dict(zip(jobs, EDITS, strict=True))
    lines = [f"scontrol update JobId={job} '{words}'" for job, words in edits.items()]
    round_with(site, "\n".join(lines), "after")
    assert lost(site, edits) == []
    site.once()
    assert lost(site, edits) == []
    config = str(site.directory / "run_hadard.yaml")
    done = site.run([*HADAR, "release", "--config", config, "--force"])
    assert done.returncode == 0, done.stderr
    assert lost(site, edits) == []


def rpcs(site: Site) -> Counter[str]:
    """Return how many RPCs of each kind slurmctld has had."""
    said = site.run(["sdiag"]).stdout.partition("statistics by user")[0]
    found = re.findall(r"(\w+)\s+\( *\d+\) count:(\d+)", said)
    return Counter({name: int(number) for name, number in found})


def test_a_round_changes_so_many_jobs_with_one_rpc_each(site: Site) -> None:
    """512 waiting tasks of arrays are not changed at once, and no change takes three RPCs."""
    site.settings |= {"mode": "steer", "policy": "hadar", "enrol": "{partitions: [main]}"}
    site.occupy(**dict.fromkeys(("n1", "n2", "n3", "n4", "n5"), "gpu:4"))
    site.occupy(n6="gpu:v100:2,gpu:k80:2")
    for _ in range(8):
        site.submit("-G1", "--time=10", "--array=0-63", "--wrap=sleep 600", command=["sbatch"])
    before = rpcs(site)
    site.once()
    more = rpcs(site) - before
    changes = more["REQUEST_UPDATE_JOB"]
    assert 200 < changes <= 300
    assert more.total() < 1.5 * changes


def test_whoever_imitates_slurm_and_fills_the_queue_keeps_no_job_waiting(site: Site) -> None:
    """33 described jobs that wait for a begin time, and one whose texts look like 100 others."""
    site.occupy(n1="gpu:4", n6="gpu:v100:2,gpu:k80:2")
    words = f"--begin=now+7days -o /dev/null --comment={shlex.quote(DESCRIPTION)}"
    later = f"for n in $(seq 33); do sbatch -Q -G1 {words} --wrap true; done"
    assert site.run(["sh", "-c", later]).returncode == 0
    first = min(int(row.raw_id) for row in site.queue().values() if row.is_live)
    lines = [f"\nJobId={number} " for number in range(first, first + 100)]
    places = ("--comment", "--job-name")
    forged = [f"{place}=x{''.join(lines[n::2])}" for n, place in enumerate(places)]
    site.submit("-G1", "--begin=now+7days", *forged, "--wrap=true", command=["sbatch"])
    site.start(round_seconds=1)
    script = site.script("rest", "exec sleep 600")
    jobs = [site.train(EQUAL, steps=LONG, script=script) for _ in range(4)]
    site.until_running(*jobs)
    assert all(site.queue()[job].requested_nodes for job in jobs)
