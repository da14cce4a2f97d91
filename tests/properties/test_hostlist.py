"""Names of nodes go into a host list and come out of it, whatever numbers are in them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.cluster import NodeName
from hadar_slurm.errors import SlurmOutputError
from hadar_slurm.jobspec.constraint import fold, fold_out

# Like n7, n007, compute-0-12, r1n1, sh03-12n01, queue-dy-c1-1, gpu and 7a.
PARTS = st.one_of(
    st.sampled_from(["n", "gpu", "-", "compute-", "dy-c", "_", ".", "r1", "x"]),
    st.integers(min_value=0, max_value=120).map(str),
    st.integers(min_value=0, max_value=120).map("{:03}".format),
    st.from_regex("[0-9]{1,22}", fullmatch=True),
)
NAMES = st.lists(PARTS, min_size=1, max_size=5).map("".join).map(NodeName)


@given(st.sets(NAMES, max_size=30))
def test_a_folded_list_has_the_same_names(names: set[NodeName]) -> None:
    """Ranges are at the end of a name only, where each version of Slurm reads them."""
    text = fold(tuple(names))
    assert sorted(fold_out(text)) == sorted(names)
    assert not re.search(r"\][^,]", text)
    assert not re.search(r"[0-9]\[", text)


@given(st.text(alphabet="n01[]-,", max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    """A text of any form has names or raises SlurmOutputError."""
    try:
        names = fold_out(text)
    except SlurmOutputError:
        return
    assert all(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ""),
        ("compute-0-[0-1],compute-1-0", "compute-0-0 compute-0-1 compute-1-0"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("a-b[1-2]-x", "a-b1-x a-b2-x"),
        ("n[1-2,08-11,099-100]", "n1 n2 n08 n09 n10 n11 n099 n100"),
        ("n1,n[1-2]", "n1 n2"),
    ],
)
def test_what_slurm_prints(text: str, names: str) -> None:
    """Lists with ranges anywhere, and with numbers of several widths, are read."""
    assert " ".join(fold_out(text)) == names


def test_a_list_is_not_made_longer_than_a_cluster() -> None:
    """A short text that stands for millions of nodes takes no memory."""
    for text in ("n[0-99999999]", "n[0-9999][0-9999]", ",".join(f"n{k}[0-9999]" for k in range(9))):
        with pytest.raises(SlurmOutputError):
            fold_out(text)
    with pytest.raises(SlurmOutputError):
        fold_out("n[1-3]", 2)
