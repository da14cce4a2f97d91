"""Jobs of the same work have the same workload, whatever names their tools give them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from hashlib import sha256

import pytest

from hadar_slurm.core.throughput_model import Workload
from hadar_slurm.jobspec.identity import Shown, normalised, workload_of_shown


def family(shown: Shown) -> str:
    return Workload("ann", workload_of_shown(shown)).family


# By the tools' sources: parsl 2026.10 (status_handling.py, providers/slurm/slurm.py),
# snakemake-executor-plugin-slurm 2.8, ReFrame 4.10 (core/pipeline.py), Nextflow
# (AbstractGridExecutor.groovy), dask-jobqueue 0.9 (jobqueue.yaml), submitit 1.5.
def parsl(work: str, run: int) -> Shown:
    return Shown(f"parsl.{work}.block-{run}.{1.7e9 + 86_400.123 * run}", directory="/home/ann/p")


def snakemake(work: str, run: int) -> Shown:
    name, rule = str(uuid.UUID(int=run + 2**90, version=4)), f"rule_{work}_wildcards_s{run}"
    return Shown(name, "python -m snakemake --cores 1", "/home/ann/p", comment=rule)


def snakemake_without_comment(work: str, run: int) -> Shown:
    name = f"mine_{uuid.UUID(int=run + 2**91, version=4)}"
    return Shown(name, f"python3 -m snakemake --target-jobs '{work}:sample=s{run}' --cores 1")


def reframe(work: str, run: int) -> Shown:
    digest = sha256(work.encode()).hexdigest()[:8]
    return Shown(f"rfm_Check_{digest}", "rfm_job.sh", f"/stage/run{run}/Check_{digest}")


def nextflow(work: str, run: int) -> Shown:
    digest = sha256(f"{work}{run}".encode()).hexdigest()
    directory = f"/home/ann/work/{digest[:2]}/{digest[2:32]}"
    return Shown(f"nf-RNASEQ_{work.upper()}_(sample_{run})", ".command.run", directory)


def dask(work: str, run: int) -> Shown:
    return Shown("dask-worker", f"/tmp/tmp{run:08x}.sh", f"/home/ann/{work}")


def submitit(work: str, run: int) -> Shown:
    name = sha256(f"{work}{run}".encode()).hexdigest()[:32]
    return Shown("submitit", f"/home/ann/log/submission_file_{name}.sh", f"/home/ann/{work}")


def by_hand(work: str, run: int) -> Shown:
    day = time.strftime("%Y%m%d_%H%M%S", time.gmtime(1.7e9 + 90_000 * run))
    return Shown(f"{work}_{day}", "train.sh", "/home/ann/p")


def counted(work: str, run: int) -> Shown:
    return Shown(f"{work}-exp{run}_seed-{run}", "train.sh", "/home/ann/p")


def script(work: str, run: int) -> Shown:
    return Shown("run.sh", f"/home/ann/{work}/run.sh --seed {run}", f"/home/ann/{work}")


def wrapped(work: str, run: int) -> Shown:
    return Shown("wrap", f"python -u {work}.py --lr 0.{run}", "/home/ann")


NAMING = (
    parsl,
    snakemake,
    snakemake_without_comment,
    reframe,
    nextflow,
    dask,
    submitit,
    by_hand,
    counted,
    script,
    wrapped,
)


@pytest.mark.parametrize("naming", NAMING, ids=lambda naming: naming.__name__)
def test_runs_of_one_work_are_one_workload(naming: Callable[[str, int], Shown]) -> None:
    """Every run has another name or path, and two works of one user stay apart."""
    found = {
        work: {workload_of_shown(naming(work, run)) for run in range(40)}
        for work in ("align", "train")
    }
    assert {len(names) for names in found.values()} == {1}, found
    assert found["align"].isdisjoint(found["train"])


def test_a_plain_name_is_the_workload() -> None:
    """Names with words and models keep them; the family leaves out numbers that stand alone."""
    for name in ("train", "resnet50", "bert-base", "llama7b", "x1"):
        assert workload_of_shown(Shown(name)) == f"job:{name}"
    assert workload_of_shown(Shown("resnet-50")) == "job:resnet (resnet-50)"
    assert family(Shown("resnet-50")) == family(Shown("resnet-18")) == "job:resnet"
    assert workload_of_shown(Shown("")) == workload_of_shown(Shown("12345")) == "job:job"


def test_what_says_nothing_is_completed() -> None:
    """Configuration file, directory and container tell apart what is named alike."""
    one = Shown("run.sh", "/home/ann/p/run.sh conf/large.yaml", "/home/ann/p")
    others = (
        Shown("run.sh", "/home/ann/p/run.sh conf/small.yaml", "/home/ann/p"),
        Shown("run.sh", "/home/ann/q/run.sh conf/large.yaml", "/home/ann/q"),
        Shown("run.sh", "/home/ann/p/run.sh conf/large.yaml", "/home/ann/p", "/images/torch.sif"),
    )
    names = {workload_of_shown(shown) for shown in (one, *others)}
    assert len(names) == 4
    assert {family(shown) for shown in (one, *others)} == {"job:run.sh"}


def test_a_directory_need_not_be_utf_8() -> None:
    """A name in Latin-1 is one in Python as well."""
    assert workload_of_shown(Shown("run.sh", "run.sh", "/home/d\udce9p")).startswith(
        "job:run.sh (in"
    )


def test_directories_of_runs_are_left_out() -> None:
    places = ("/home/ann/p/2024-03-01_12-00-00", "/home/ann/p/2024-03-02_09-30-11")
    assert len({workload_of_shown(Shown("run.sh", "run.sh", place)) for place in places}) == 1


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("bert_20240301_120000", "bert"),
        ("bert 2024-03-01T12:00:00", "bert"),
        ("fit-3f2a9c1d", "fit"),
        ("fold3", "fold"),
        ("a-0012", "a"),
        ("seq-2048", "seq-2048"),
        ("job_uwSwW68EW43XNdvq85NxJ7", "job"),
        ("123456789", ""),
        ("décès", "décès"),
    ],
)
def test_what_differs_from_run_to_run_is_left_out(text: str, kept: str) -> None:
    assert normalised(text) == kept


def test_a_workload_has_room_in_a_comment() -> None:
    """Any text, however long, makes a workload of at most 100 characters, and the same again."""
    for name in ("a" * 500, "(" * 50, "x-1 " * 200, "\n", "'", "é" * 300):
        found = workload_of_shown(Shown(name, name, name, name, name))
        assert found == workload_of_shown(Shown(name, name, name, name, name))
        assert len(found) <= 100
        assert found.startswith("job:")
    assert workload_of_shown(Shown("a" * 500 + "b")) != workload_of_shown(Shown("a" * 500 + "c"))
