"""Lists of workloads: what they say, and errors with file, line, value and remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hadar_slurm.errors import UsageError
from hadar_slurm.lab.inputs import TraceOptions, read_table
from hadar_slurm.lab.study.compare import ClusterWorkload
from hadar_slurm.lab.traces.cluster import parse_cluster
from hadar_slurm.lab.traces.yaml_file import parse_yaml
from hadar_slurm.lab.workload_list import WorkloadEntry, WorkloadList, read_workload_lists

# A3C makes 7.1758 steps/s on a V100 in the shipped table.
JOB = "A3C\t\t\t\t0\t{steps}\t{gang}\t1\t-1\t{arrival}\n"
SHARED = Path(__file__).parents[4] / "shared" / "data" / "generality"
EXAMPLE = Path(__file__).parents[3] / "benchmarks" / "generality.yaml"


def a_folder(path: Path, words: str) -> Path:
    """Write a list and the files that it may name into a directory."""
    path.mkdir(exist_ok=True)
    jobs = [JOB.format(steps=7176 * (1 + n), gang=1, arrival=300 * n) for n in range(3)]
    (path / "a.trace").write_text("".join(jobs), encoding="utf-8")
    (path / "b.trace").write_text("".join(jobs[:2]), encoding="utf-8")
    (path / "wide.trace").write_text(JOB.format(steps=9, gang=64, arrival=0), encoding="utf-8")
    (path / "at_once.trace").write_text(
        JOB.format(steps=9, gang=1, arrival=0) * 2, encoding="utf-8"
    )
    nodes = "nodes:\n- {name: 'n[1-2]', gpus: {V100: 2}}\n"
    (path / "nodes.yaml").write_text(nodes, encoding="utf-8")
    table = {"source": "here", "workloads": {"A3C": {"V100": {"1": [2.0, 2.0]}}}}
    (path / "speeds.json").write_text(json.dumps(table), encoding="utf-8")
    (path / "workloads.yaml").write_text(words, encoding="utf-8")
    return path


def read(*paths: Path, first: int | None = None) -> tuple[ClusterWorkload, ...]:
    other = parse_cluster("1xK80", gpus_per_node=1)
    reading = TraceOptions(read_table(None), other)
    return read_workload_lists([str(path) for path in paths], reading, first=first)


WHOLE = """
- traces: [a.trace, b.trace]
  family: ours
  cluster: nodes.yaml
  throughputs: speeds.json
  restart_seconds: 20,a3c=50
  load: 80
- traces: [a.trace]
  family: plain
  cluster: 5xV100
  gpus_per_node: 2
"""


def test_a_list_says_how_its_traces_are_played(tmp_path: Path) -> None:
    """Cluster, table, restart costs and load are those of the entry; files are beside the list."""
    one, two, plain = read(a_folder(tmp_path / "in", WHOLE))
    names = [(w.workload.family, w.workload.name, w.workload.load) for w in (one, two, plain)]
    assert names == [("ours", "a", 80.0), ("ours", "b", 80.0), ("plain", "a", None)]
    assert one.cluster.gpus_by_type == {"V100": 4}
    assert (one.cluster_name, one.workload.restart) == ("nodes.yaml", "20,a3c=50")
    assert {spec.restart_cost_s for spec in one.workload.specs} == {50.0}
    assert one.workload.specs[0].throughputs.on("V100", 1) == 2.0
    # 1, 2 and 3 times 3,588 s on four GPUs; 3 jobs, two gaps; at 80 %.
    last_s = 6 * 3588 / 4 / 3 / 0.8 * 2
    assert one.workload.specs[-1].submitted_s == pytest.approx(last_s)


def test_what_a_list_leaves_out_has_the_commands_defaults(tmp_path: Path) -> None:
    """The shipped table, 30 s for a restart, four GPUs on a node, and the trace's own arrivals."""
    folder = a_folder(tmp_path, "- {traces: [a.trace], family: f, cluster: 5xV100}")
    (found,) = read(folder)
    assert [len(node.gpus) and sum(n for _, n in node.gpus) for node in found.cluster.nodes] == [
        4,
        1,
    ]
    specs = found.workload.specs
    assert [spec.submitted_s for spec in specs] == [0.0, 300.0, 600.0]
    assert specs[0].restart_cost_s == 30.0
    assert specs[0].throughputs.on("V100", 1) == pytest.approx(7.1758, abs=1e-4)
    assert read(folder, first=2)[0].workload.specs == specs[:2]


def test_a_list_may_lie_elsewhere(tmp_path: Path) -> None:
    """A YAML file is a list as well, with relative and absolute paths; lists add up."""
    folder = a_folder(tmp_path / "in", "- {traces: [b.trace], family: b, cluster: 1xV100}")
    elsewhere = tmp_path / "mine.yaml"
    words = f"- {{traces: [in/a.trace, {folder}/b.trace], family: f, cluster: in/nodes.yaml}}"
    elsewhere.write_text(words, encoding="utf-8")
    found = read(elsewhere, folder)
    assert [(w.workload.family, w.workload.name) for w in found] == [
        ("f", "a"), ("f", "b"), ("b", "b"),
    ]  # fmt: skip
    assert found[0].cluster.gpus_by_type == {"V100": 4}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "workloads.yaml: expected a list of workloads, such as `- {traces:"),
        ("[]", "expected a list of workloads"),
        ("traces: [a.trace]", "expected a list of workloads"),
        ("- {", "workloads.yaml: not YAML: "),
        ("- a.trace", "workloads.yaml:1: 1: "),
        ("- traces: [a.trace]\n  cluster: 1xV100", "workloads.yaml:1: key '1.family' is missing"),
        (
            "- traces: [a.trace]\n  family: f\n  cluster: 1xV100\n  throughput: x",
            "workloads.yaml:4: unknown key '1.throughput'; the nearest known one is 'throughputs'",
        ),
        (
            "- {traces: [], family: f, cluster: 1xV100}",
            "workloads.yaml:1: 1.traces: List should have at least 1 item",
        ),
        (
            "- {traces: [a.trace], family: f, cluster: 1xV100, gpus_per_node: 0}",
            "1.gpus_per_node: Input should be greater than or equal to 1, not '0'",
        ),
        (
            "- {traces: [a.trace], family: f, cluster: 1xV100, load: much}",
            "1.load: Input should be a valid number, ",
        ),
        (
            "- {traces: [a.trace], family: f, cluster: 1xV100, load: .5}",
            "1.load: Input should be greater than or equal to 1, not '.5'",
        ),
        (
            "- traces: [a.trace]\n  family: f\n  cluster: v100",
            "workloads.yaml:1: cluster 'v100': expected COUNTxTYPE, such as 20xV100",
        ),
        ("- {traces: [a.trace], family: f, cluster: no.yaml}", "no.yaml: cannot be read"),
        (
            "- {traces: [a.trace], family: f, cluster: 1xV100, throughputs: no.json}",
            "no.json: cannot be read",
        ),
        (
            "- {traces: [a.trace], family: f, cluster: 1xV100, restart_seconds: slow}",
            "workloads.yaml:1: restart_seconds: restart cost 'slow': expected a number",
        ),
        (
            "- traces:\n  - a.trace\n  - no.trace\n  family: f\n  cluster: 1xV100",
            "no.trace: cannot be read",
        ),
        (
            "- traces:\n  - a.trace\n  - wide.trace\n  family: f\n  cluster: 1xV100",
            "wide.trace:1: job 0: ",
        ),
        (
            "- {traces: [at_once.trace], family: f, cluster: 1xV100, load: 70}",
            "load 70: all jobs arrive at once",
        ),
        (
            "- {traces: [a.trace], family: f, cluster: 1xV100}\n"
            "- {traces: [a.trace], family: f, cluster: 2xV100}",
            "workloads.yaml:2: trace a of family f is already in ",
        ),
    ],
)
def test_a_wrong_list_is_told_with_line_value_and_remedy(
    words: str, said: str, tmp_path: Path
) -> None:
    """Every error names the list, and the file, key or value that is wrong."""
    with pytest.raises(UsageError) as error:
        read(a_folder(tmp_path, words))
    assert str(error.value).startswith(f"{tmp_path}/workloads.yaml:")
    assert said in str(error.value)


def test_what_is_no_list_is_told(tmp_path: Path) -> None:
    """A directory without a list, a trace, and a missing file have different errors."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"empty: the directory has no workloads.yaml; write one"):
        read(tmp_path / "empty")
    with pytest.raises(
        UsageError, match=r"a.trace': expected a list of workloads: a YAML file, or"
    ):
        read(tmp_path / "a.trace")
    with pytest.raises(UsageError, match=r"no.yaml: cannot be read"):
        read(tmp_path / "no.yaml")


def test_the_list_on_the_page_can_be_read() -> None:
    """The list in docs/compare.md has two valid entries, the first with every key."""
    page = (EXAMPLE.parents[1] / "docs" / "compare.md").read_text(encoding="utf-8")
    text = page.partition("```yaml\n")[2].partition("```")[0]
    file = parse_yaml(text, "page", WorkloadList, WorkloadEntry, what="list", expected="a list")
    assert [entry.family for entry in file.value.root] == ["ours", "history"]
    assert file.value.root[0].model_fields_set == set(WorkloadEntry.model_fields)


@pytest.mark.skipif(
    not SHARED.exists(), reason="needs ../shared/data/generality beside the checkout"
)
def test_the_example_of_the_benchmarks_can_be_played() -> None:
    """benchmarks/generality.yaml reads all traces beside the checkout, on five clusters."""
    found = read(EXAMPLE, first=5)
    traces = [*SHARED.glob("*.trace"), *SHARED.parent.glob("elasticflow_*.csv")]
    assert {w.workload.name for w in found} == {path.stem for path in traces}
    assert {len(w.workload.specs) for w in found} == {5}
