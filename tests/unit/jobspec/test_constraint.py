"""Constraints on features: which nodes satisfy them, and which are left to Slurm."""

from __future__ import annotations

import pytest

from hadar_slurm.errors import JobSpecError
from hadar_slurm.jobspec.constraint import allows

NODES = {
    "n1": frozenset({"v100", "ib"}),
    "n2": frozenset({"v100"}),
    "n3": frozenset({"a100-80", "ib"}),
    "n4": frozenset[str](),
}


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        ("", "n1 n2 n3 n4"),
        ("v100", "n1 n2"),
        ("v100&ib", "n1"),
        ("v100,ib", "n1"),
        ("v100|a100-80", "n1 n2 n3"),
        (" v100 | a100-80 ", "n1 n2 n3"),
        ("(v100|a100-80)&ib", "n1 n3"),
        ("ib&(v100|a100-80)", "n1 n3"),
        ("((ib))", "n1 n3"),
        ("[v100|a100-80]", "n1 n2 n3"),
        ("[v100|a100-80]&ib", "n1 n3"),
        ("nothing", ""),
        ("V100", ""),
    ],
)
def test_the_nodes_of_a_constraint(constraint: str, expected: str) -> None:
    allowed = allows(constraint)
    assert " ".join(name for name, features in NODES.items() if allowed(features)) == expected


@pytest.mark.parametrize(
    ("constraint", "num_nodes", "words"),
    [
        ("v100*2", 1, "counts nodes"),
        ("[v100*1&a100*1]", 1, "counts nodes"),
        ("(v100|a100)*2", 1, "counts nodes"),
        ("[v100|a100]", 2, "one of several features on all nodes"),
        ("v100&ib|a100", 1, "& beside | without parentheses"),
        ("(v100", 1, "'[(]' is not closed"),
        ("(v100]", 1, "'[(]' is not closed"),
        ("v100)", 1, "'[)]' is not expected"),
        ("v100&", 1, "a feature is missing"),
        ("|v100", 1, "a feature is missing"),
        ("v100 a100", 1, "'a100' is not expected"),
        ("(" * 5000, 1, "more than 200 parts"),
    ],
)
def test_a_constraint_that_slurm_alone_reads(constraint: str, num_nodes: int, words: str) -> None:
    with pytest.raises(JobSpecError, match=words):
        allows(constraint, num_nodes=num_nodes)
