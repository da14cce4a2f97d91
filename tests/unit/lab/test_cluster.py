"""Cluster descriptions on the command line and in files."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hadar_slurm.errors import ConfigError
from hadar_slurm.lab.traces.cluster import (
    MAX_GPUS,
    is_cluster_file,
    parse_cluster,
    parse_cluster_file,
)

DATA = Path(__file__).resolve().parents[2] / "data" / "traces"


def test_words_make_nodes_of_one_type() -> None:
    """Each node has `gpus_per_node` GPUs; the last node of a type has the remainder."""
    cluster = parse_cluster("5xV100, 4xK80", gpus_per_node=4)
    assert [(node.name, dict(node.gpus)) for node in cluster.nodes] == [
        ("n1", {"V100": 4}),
        ("n2", {"V100": 1}),
        ("n3", {"K80": 4}),
    ]


def test_upper_and_lower_case_are_one_type() -> None:
    """The first spelling of a type is used throughout, in descriptions and in files."""
    assert parse_cluster("4xV100,4xv100", gpus_per_node=4).gpus_by_type == {"V100": 8}
    text = "nodes:\n- {name: a, gpus: {v100: 1}}\n- {name: b, gpus: {V100: 2}}\n"
    assert parse_cluster_file(text, "c").gpus_by_type == {"v100": 3}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cluster '': expected COUNTxTYPE, such as 20xV100"),
        ("v100", "cluster 'v100': expected COUNTxTYPE"),
        ("4x", "cluster '4x': expected COUNTxTYPE"),
        ("-4xV100", "cluster '-4xV100': expected COUNTxTYPE"),
        ("4xV100,,", "cluster '': expected COUNTxTYPE"),
        ("4xV 100", "cluster '4xV 100': expected COUNTxTYPE"),
        ("0xV100", f"cluster '0xV100': expected COUNTxTYPE with 1 to {MAX_GPUS} GPUs"),
        ("99999999999999999999xV100", f"with 1 to {MAX_GPUS} GPUs"),
    ],
)
def test_wrong_words_are_named(text: str, words: str) -> None:
    """The error quotes the wrong part and says what is accepted."""
    with pytest.raises(ConfigError, match=words):
        parse_cluster(text, gpus_per_node=4)
    with pytest.raises(ConfigError, match="0 GPUs per node: expected 1 or more"):
        parse_cluster("4xV100", gpus_per_node=0)


def test_a_file_names_nodes_by_pattern() -> None:
    """Node patterns, lists of names, and nodes with several types are expanded."""
    cluster = parse_cluster_file((DATA / "cluster.yaml").read_text(encoding="utf-8"), "c.yaml")
    assert [str(node.name) for node in cluster.nodes] == [
        "old1", "old2", "gpu01", "gpu02", "gpu03", "gpu04", "gpu05"
    ]  # fmt: skip
    assert cluster.gpus_by_type == {"K80": 16, "V100": 24}
    assert cluster.by_name[cluster.nodes[0].name].by_type == {"K80": 8, "V100": 2}


def test_names_stay_the_text_they_are() -> None:
    """Values that YAML would read as a number, a truth value or a date stay names."""
    text = "nodes:\n- {name: 2024-01-01, gpus: {1e5: 1}}\n- {name: on, gpus: {1g.5gb: 7}}\n"
    cluster = parse_cluster_file(text, "c")
    assert {str(node.name): dict(node.gpus) for node in cluster.nodes} == {
        "on": {"1g.5gb": 7},
        "2024-01-01": {"1e5": 1},
    }


def nodes(*entries: str) -> str:
    return "nodes:\n" + "".join(f"- {{{entry}}}\n" for entry in entries)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "c.yaml: expected `nodes:` and a list"),
        ("[]", "c.yaml: expected `nodes:` and a list"),
        ("a: b: c", "c.yaml: not YAML: mapping values are not allowed here"),
        ("\x00", "c.yaml: not YAML"),
        ("[" * 600, "c.yaml: nested too deeply"),
        ("nodes: &a [*a]", "c.yaml: nested too deeply"),
        ("nodes: []", "c.yaml:1: nodes: List should have at least 1 item"),
        ("nodes: {a: b}", "c.yaml:1: nodes: Input should be a valid list, not {'a': 'b'}"),
        ("nodes:\n- 3", "c.yaml:2: nodes.1: Input should be a valid dictionary .* not '3'"),
        ("node: 1", "c.yaml:1: key 'nodes' is missing; c.yaml:1: unknown key 'node'; the nearest"),
        ("? [a]\n: b", "c.yaml:1: expected a name as key"),
        (
            nodes("name: a, gpus: {V: 1}", "name: b, gpu: {V: 1}"),
            "c.yaml:3: key 'nodes.2.gpus' is missing; c.yaml:3: unknown key 'nodes.2.gpu'; the "
            "nearest known one is 'gpus'",
        ),
        (nodes("name: a, name: b"), "c.yaml:2: 'name' is given twice; keep one"),
        (nodes("name: a, gpus: {V: 1, V: 2}"), "c.yaml:2: 'V' is given twice; keep one"),
        (nodes("name: a, gpus: {V: 1, v: 2}"), "c.yaml:2: V twice; upper and lower case are one"),
        (nodes("name: a, gpus: {}"), "c.yaml:2: nodes.1.gpus: Dictionary should have at least 1"),
        (nodes("name: a, gpus: {V: four}"), "c.yaml:2: nodes.1.gpus.V: .* integer.* not 'four'"),
        (nodes("name: a, gpus: {V: 1.5}"), "c.yaml:2: nodes.1.gpus.V: .* integer.* not '1.5'"),
        (nodes("name: a, gpus: {V: -1}"), "c.yaml:2: V: -1: expected 1 or more GPUs on each node"),
        (nodes("name: a, gpus: {V: 0}"), "c.yaml:2: V: 0: expected 1 or more GPUs"),
        (nodes("name: a, gpus: {V 1: 1}"), "c.yaml:2: GPU type 'V 1': expected a name such as"),
        (nodes("name: '', gpus: {V: 1}"), "c.yaml:2: nodes.1.name: String should have at least 1"),
        (nodes("name: '@all', gpus: {V: 1}"), "c.yaml:2: node name '@all': expected a name or a"),
        (nodes("name: 'a[1-', gpus: {V: 1}"), "c.yaml:2: node name 'a.1-': expected a name or a"),
        (nodes("name: 'a[3-1]', gpus: {V: 1}"), "c.yaml:2: node name 'a.3-1.': expected a name"),
        (
            nodes("name: 'a[1-999][1-999999999]', gpus: {V: 1}"),
            "c.yaml:2: node name .* ranges of at most 100000 names",
        ),
        (
            nodes("name: 'a[1-9]', gpus: {V: 1}", "name: a7, gpus: {V: 1}"),
            "c.yaml:3: node a7 is already listed in c.yaml:2; list it once, with all its GPUs",
        ),
        (
            nodes("name: 'a[1-99]', gpus: {V: 100000}"),
            f"c.yaml:2: expected at most 100000 nodes and {MAX_GPUS} GPUs in all",
        ),
    ],
)
def test_a_wrong_file_names_line_and_key(text: str, words: str) -> None:
    """The error has the file, the line, the fault, and what is accepted."""
    with pytest.raises(ConfigError, match=words):
        parse_cluster_file(text, "c.yaml")


_PIECES = st.sampled_from(
    ["nodes:", "\n", "- ", "name: ", "gpus: ", "{V100: 4}", "n[1-5]", "n[1-", "a,b", "&x ", "*x",
     "{", "}", "[", "]", ": ", "!!int ", "!!bool ", "<<: ", "? ", "---", "'", "#", "  ", "\t", "x"]
)  # fmt: skip


@given(text=st.lists(_PIECES, max_size=25).map("".join) | st.text(max_size=60))
@example(text="nodes:\n- {name: !!bool x, gpus: {V: !!timestamp y}}")
def test_nothing_but_a_config_error_comes_of_any_file(text: str) -> None:
    """Any text gives a cluster or a ConfigError."""
    with contextlib.suppress(ConfigError):
        assert parse_cluster_file(text, "c").nodes


@given(pattern=st.text("an[]-,/0129._", min_size=1, max_size=14))
def test_nothing_but_a_config_error_comes_of_any_node_name(pattern: str) -> None:
    """Any node pattern gives a cluster or a ConfigError, quickly."""
    with contextlib.suppress(ConfigError):
        parse_cluster_file(nodes(f"name: '{pattern}', gpus: {{V: 1}}"), "c")


@given(text=st.text("0123456789x,Vk ", max_size=12), per_node=st.integers(-1, 8))
def test_nothing_but_a_config_error_comes_of_any_words(text: str, per_node: int) -> None:
    """Any description gives a cluster or a ConfigError."""
    with contextlib.suppress(ConfigError):
        assert parse_cluster(text, gpus_per_node=per_node).nodes


def test_files_are_told_from_words() -> None:
    """An argument that ends in .yaml or .yml is a file."""
    assert is_cluster_file("site/Cluster.YAML")
    assert is_cluster_file("c.yml")
    assert not is_cluster_file("20xV100")
