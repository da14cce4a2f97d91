"""Copies with other GPUs, cores and memory on each GPU type, from the options of hadar-sbatch."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from builders import a_cluster

from hadar_slurm.core.cluster import Cluster
from hadar_slurm.core.job import Shape
from hadar_slurm.core.throughput import ThroughputTable
from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.description import Description, decode
from hadar_slurm.jobspec.estimator import Estimator
from hadar_slurm.submit.compose import compose
from hadar_slurm.submit.describing.describe import describe
from hadar_slurm.submit.describing.fitting import check_fits, in_one_copy
from hadar_slurm.submit.describing.preview import choices
from hadar_slurm.submit.describing.summary import summary
from hadar_slurm.submit.request import SbatchRequest, parse_words

TABLE = ThroughputTable("none", {})
ESTIMATOR = Estimator.shipped(TABLE)
CLUSTER = a_cluster("1xv100,1xv100,4xk80,4xk80,2xp100")
BY_TYPE = ["--hadar-copies=auto", "--hadar-gang=v100:1,k80:4", "--hadar-steps=100"]
SPEEDS = "--hadar-throughput=v100=40,k80=5"


def request_of(*words: str) -> SbatchRequest:
    return parse_words([*BY_TYPE, SPEEDS, *words, "job.sh"], {})


def described(*words: str, cluster: Cluster = CLUSTER) -> Description:
    return describe(request_of(*words), ESTIMATOR, cluster)


def fault_of(*words: str) -> str:
    with pytest.raises(JobSpecError) as caught:
        check_fits(described(*words), CLUSTER, ESTIMATOR)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_copy_has_a_gang_of_its_own_on_each_type() -> None:
    """There is a copy for each node that holds its type's gang, and throughputs of that gang."""
    found = described()
    assert (found.copies, found.gpus, found.shape) == (4, 1, Shape(1, 1))
    assert found.gangs == {"v100": 1, "k80": 4}
    check_fits(found, CLUSTER, ESTIMATOR)
    speeds = ESTIMATOR.throughputs(found, "", CLUSTER.gpus_by_type)
    assert [speeds.on("v100", 1), speeds.on("k80", 4), speeds.on("k80", 1)] == [40.0, 5.0, 0.0]
    assert speeds.on("p100", 1) == 0.0
    assert summary(found, request_of(), TABLE).startswith("1 v100 or 4 k80, in up to 4 copies")


def test_without_throughputs_they_are_estimated_for_each_gang() -> None:
    """Of a published ratio, four K80s count four times."""
    words = [*BY_TYPE, "--hadar-model=A3C", "job.sh"]
    found = describe(parse_words(words, {}), ESTIMATOR, CLUSTER)
    one = describe(
        parse_words(["--hadar-gang=1", "--hadar-steps=100", "--hadar-model=A3C", "job.sh"], {}),
        ESTIMATOR,
        CLUSTER,
    )
    speeds, alone = (ESTIMATOR.throughputs(d, "", CLUSTER.gpus_by_type) for d in (found, one))
    assert speeds.on("k80", 4) == pytest.approx(4 * alone.on("k80", 1))
    assert speeds.on("v100", 1) == pytest.approx(alone.on("v100", 1))
    assert speeds.on("p100", 1) == 0.0


def test_cores_and_memory_are_carried_by_type() -> None:
    found = described("--hadar-cores=v100:2,K80:8", "--hadar-mem=v100:16G,k80:65536M")
    assert found.cores == {"v100": 2, "k80": 8}
    assert found.memory_mb == {"v100": 16384, "k80": 65536}


def test_the_array_asks_for_the_smallest_gang() -> None:
    """So that plain Slurm can start each task on any of the nodes."""
    words = ("--hadar-cores=v100:2,k80:8",)
    argv = compose(request_of(*words), described(*words), is_held=True)
    assert {"--array=0-3", "--nodes=1", "--gpus-per-node=1", "--hold"} <= set(argv)
    (comment,) = [word for word in argv if word.startswith("--comment=")]
    assert decode(comment.removeprefix("--comment=")) is not None


def test_without_hadard_it_is_one_job_with_the_smallest_gang() -> None:
    """Its description then has no throughput of a larger gang."""
    argv = compose(request_of(), in_one_copy(described(), 1), is_held=False)
    (comment,) = [word for word in argv if word.startswith("--comment=")]
    found = decode(comment.removeprefix("--comment="))
    assert found is not None
    assert (found.copies, found.gpus, found.gangs) == (1, 1, {})
    assert found.throughputs == {"v100": 40.0}


def test_where_one_node_suits_it_is_one_job_with_that_gang() -> None:
    found = described(cluster=a_cluster("1xp100,4xk80,2xv100", closed=["n3"]))
    assert found.copies == 2
    only = describe(
        parse_words([*BY_TYPE, "--hadar-throughput=v100=0,k80=5", "job.sh"], {}),
        ESTIMATOR,
        a_cluster("1xv100,4xk80"),
    )
    assert (only.copies, only.gpus, only.throughputs) == (1, 4, {"k80": 5.0})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--hadar-gang=v100:1,k80:0"], "--hadar-gang k80:0: a copy has at least 1 GPU; leave k80"),
        (["--hadar-gang=v100:1,k80:8"], "k80:8: no node has more than 4; give k80:4 or less"),
        (["--hadar-gang=v100:1,a100:1"], "--hadar-throughput k80: a copy has no GPUs there; add"),
        (
            ["--hadar-gang=v100:1,a100:1", "--hadar-throughput=v100=1,a100=1"],
            "--hadar-gang a100:1: the nodes that the job may have are of k80, p100, v100; leave",
        ),
        (["--hadar-gang=v100:1,k80:4,p100:1"], "--hadar-gang p100: no throughput is given there"),
        (["--hadar-gang=v100:1,v100:2"], "v100 is given twice"),
        (["--hadar-gang=v100:1,k80"], "'k80': expected TYPE:NUMBER, as in v100:1,k80:4"),
        (["--hadar-gang=v100:many,k80:4"], "--hadar-gang v100"),
        (["--hadar-cores=v100:0"], "--hadar-cores v100:0: a copy has at least 1; leave v100 out"),
        (["--hadar-cores=p100:2"], "--hadar-cores p100: a copy has no GPUs there; add p100:GPUs"),
        (["--hadar-mem=v100:much"], "--hadar-mem v100 'much': expected a size such as 16G"),
        (["--hadar-gang=2", "--hadar-mem=v100:1G"], "give the GPUs of a copy by type too"),
        (
            ["--cpus-per-gpu=2"],
            "--cpus-per-gpu is given, and a copy's number of GPUs changes: give",
        ),
        (["--hadar-cores=v100:2", "-n2"], "--ntasks=2: --hadar-cores are those of one task"),
        (["--hadar-mem=v100:1G", "--mem-per-gpu=1G"], "--mem-per-gpu and --hadar-mem are given"),
        (["--gres=gpu:v100:1"], "--gres names v100: the copies have several types"),
    ],
)
def test_a_wrong_value_is_named_with_its_remedy(words: Sequence[str], told: str) -> None:
    assert told in fault_of(*words)


def test_only_copies_have_gangs_by_type() -> None:
    with pytest.raises(JobSpecError, match="only copies have other gangs by type; add"):
        describe(parse_words(["--hadar-gang=v100:1,k80:4", "job.sh"], {}), ESTIMATOR, CLUSTER)


def test_the_dry_run_tells_the_throughput_of_each_gang() -> None:
    shown = {c.gpu_type: c for c in choices(described(), CLUSTER, ESTIMATOR)}
    assert (shown["v100"].steps_per_s, shown["k80"].steps_per_s) == (40.0, 5.0)
    assert shown["p100"].why_not == "no gang of a copy is given for it"
