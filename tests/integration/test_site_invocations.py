"""What sites document for GPU jobs, on a real Slurm: each job starts where its words allow."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
from integration.invocations import Invocation
from integration.site import HADAR_SBATCH, LIMIT_S, Site, eventually, gpus_in
from integration.submissions import Answer, submit
from site_invocations import (
    FEATURES,
    GPUS,
    PARTITIONS,
    RESERVATIONS,
    SITE_INVOCATIONS,
    SLICES,
    SiteInvocation,
)

from hadar_slurm.devcluster.cluster import LocalCluster

pytestmark = pytest.mark.slurm

PLAIN = "hadar-sbatch: plain Slurm places this job: "
LIMITS = ("DefaultTime=60", "MaxTime=7-0")


@pytest.fixture(scope="module")
def test_bed(local_cluster: Callable[..., LocalCluster]) -> Iterator[LocalCluster]:
    """The nodes, features, partitions and reservations of the invocations."""
    nodes = ("+".join(f"{name}:{count}" for name, count in gpus.items()) for gpus in GPUS.values())
    with local_cluster(",".join(nodes)) as cluster:
        run = cluster.runner().run
        for name, features in FEATURES.items():
            update = ["scontrol", "update", f"NodeName={name}"]
            # The active ones have to be among the available ones after each command.
            run([*update, f"AvailableFeatures={','.join((*GPUS[name], features))}"])
            run([*update, f"ActiveFeatures={features}"])
        for name, members in PARTITIONS.items():
            verb = "update" if name == "main" else "create"
            run(["scontrol", verb, f"PartitionName={name}", f"Nodes={members}", *LIMITS])
        for name, node in RESERVATIONS.items():
            what = [f"Nodes={node}", "StartTime=now", "Duration=1-0", "Users=root"]
            run(["scontrol", "create", "reservation", f"ReservationName={name}", *what])
        yield cluster


@pytest.fixture
def site(test_bed: LocalCluster, tmp_path: Path) -> Iterator[Site]:
    """The test-bed without jobs, and a hadard that a test may start."""
    site = Site(test_bed, tmp_path)
    yield site
    site.close()
    test_bed.cancel_jobs()


def submit_all(site: Site, command: tuple[str, ...]) -> dict[str, SiteInvocation]:
    """Submit every invocation, check its line, and return the accepted ones by job id.

    Each job writes what Slurm has allocated to it into a file told-JOB.
    """
    # Of the first task of an array, scontrol shows them all.
    wrap = f"--wrap={shutil.which('scontrol')} show job -d -o $SLURM_JOB_ID | "
    wrap += 'grep "^JobId=$SLURM_JOB_ID " > told-$SLURM_JOB_ID'
    calls = [Invocation((*c.words, wrap), c.environment) for c in SITE_INVOCATIONS]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(submit, [site] * len(calls), [command] * len(calls), calls))
    if command == HADAR_SBATCH:
        lines = map(wrong_line, SITE_INVOCATIONS, answers)
        assert [line for line in lines if line] == []
    pairs = zip(SITE_INVOCATIONS, answers, strict=True)
    assert [(c.line, a.stderr) for c, a in pairs if not (a.job or c.left)] == []
    return {a.job: c for c, a in zip(SITE_INVOCATIONS, answers, strict=True) if a.job}


def wrong_line(call: SiteInvocation, answer: Answer) -> str:
    """Return what is wrong with the line that hadar-sbatch has printed; "" if nothing is."""
    lines = [line for line in answer.stderr.splitlines() if line.startswith("hadar-sbatch: ")]
    expected = "hadar-sbatch: hadard places this job" if call.is_managed else PLAIN
    is_right = len(lines) == 1 and lines[0].startswith(expected) and call.left in lines[0]
    return "" if is_right else f"{call.line}: {answer.stderr}"


def wrong_start(call: SiteInvocation, detail: str, *, is_managed: bool) -> str:
    """Return what is wrong with a job's allocation, in the words of scontrol; "" if nothing is."""
    if "--exclusive" in call.words and not is_managed:
        return ""  # plain Slurm may give it larger nodes
    gpus = gpus_in(detail)
    places = {(gpu.node, gpu.gpu_type) for gpu in gpus}
    nodes = int(re.findall(r" NumNodes=(\d+)", detail)[0])
    # Only hadard keeps a request without a type from slices of GPUs.
    slices = () if is_managed or not call.any_type else product(GPUS, SLICES)
    if strays := sorted(places - call.allowed - set(slices)):
        return f"{call.line}: on {strays}"
    if len(gpus) != call.gpus:
        return f"{call.line}: {len(gpus)} GPUs, {call.gpus} expected: {sorted(places)}"
    if call.nodes and nodes != call.nodes:
        return f"{call.line}: on {nodes} nodes, {call.nodes} expected"
    return ""


def waiting(site: Site, jobs: Mapping[str, SiteInvocation]) -> list[str]:
    """Return the jobs that have not ended, with their states, reasons and command lines."""
    rows = site.run(["squeue", "-h", "-o", "%A %T %r"]).stdout.splitlines()
    lines = {job: call.line for job, call in jobs.items()}
    # A heterogeneous job has more ids than the one that sbatch prints.
    return [f"{row}: {lines.get(row.split()[0], '')}" for row in rows]


def started(site: Site, jobs: Mapping[str, SiteInvocation]) -> Iterator[tuple[SiteInvocation, str]]:
    """Yield the invocation and the details of each job and array task that has started."""
    for path in site.directory.glob("told-*"):
        detail = path.read_text()
        ids = dict(re.findall(r"\b(JobId|ArrayJobId)=(\d+)", detail))
        if (job := ids.get("ArrayJobId", ids["JobId"])) in jobs:
            yield jobs[job], detail


MODES = ["plain", "steer", pytest.param("hold", marks=pytest.mark.slow)]


@pytest.mark.parametrize("mode", MODES)
def test_each_job_starts_where_its_words_allow(site: Site, mode: str) -> None:
    """With the GPUs that they ask for; every other job is left to Slurm with the reason.

    With plain sbatch as well, which checks what the invocations are declared to mean.
    """
    if mode != "plain":
        site.start(mode=mode, policy="hadar", round_seconds=1)
    # While all GPUs are taken, hadard has some rounds in which to choose nodes for those that wait.
    taken = {node: f"gpu:{sum(gpus.values())}" for node, gpus in GPUS.items() if node != "n13"}
    blocking = site.occupy(**taken)
    jobs = submit_all(site, ("sbatch",) if mode == "plain" else HADAR_SBATCH)
    if mode != "plain":
        site.until_rounds(3)
    site.free(*blocking.values())
    # Slurm starts a heterogeneous job again after 121 s if not all of its parts could be started.
    limit_s = LIMIT_S + 180.0
    eventually(lambda: not waiting(site, jobs), lambda: "\n".join(waiting(site, jobs)), limit_s)
    starts = list(started(site, jobs))
    assert {call.line for call, _ in starts} >= {c.line for c in jobs.values() if not c.left}
    wrong = [
        wrong_start(call, detail, is_managed=mode != "plain" and call.is_managed)
        for call, detail in starts
        if not call.left
    ]
    assert "\n".join(filter(None, wrong)) == ""
