"""hadard's mark at the end of a job's comment, and what it leaves of the owner's text."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hadar_slurm.jobspec.comment import encode
from hadar_slurm.jobspec.description import Description, decode
from hadar_slurm.jobspec.mark import owners_values, split, with_mark

VALUES = {"excluded": ("n1", "n3"), "nice": 0, "limit_s": 3600.0, "sized": "2-2"}
MARK = "[hadar:ExcNodeList=n[1,3];Nice=0;TimeLimit=60;NumNodes=2-2]"


def test_a_mark_has_the_owners_values_in_scontrols_words() -> None:
    """And is read back; the text before it is the owner's."""
    marked = with_mark("group:a", "", VALUES)
    assert marked == "group:a" + MARK
    assert split(marked) == ("group:a", MARK)
    assert owners_values(MARK) == VALUES
    assert with_mark("group:a", MARK, VALUES) is None
    assert with_mark("group:a", MARK, {}) == "group:a"
    assert with_mark("group:a", "", {}) is None


def test_a_description_stays_readable() -> None:
    """Blanks and quotes in it are written so that scontrol leaves them."""
    described = Description(steps=5, gpus=2, workload="a b", comment="it's mine")
    marked = with_mark(encode(described), "", {"nice": 0})
    assert marked is not None
    assert not {" ", "'"} & set(marked)
    assert decode(split(marked)[0]) == described


@pytest.mark.parametrize("text", ["two words", "it's", "a\tb", "a\nb", "x" * 1000])
def test_what_scontrol_could_not_put_back_is_not_marked(text: str) -> None:
    """Nor what leaves no room: the comment stays as its owner wrote it."""
    assert with_mark(text, "", VALUES) is None


@pytest.mark.parametrize(
    "text",
    [
        "[hadar:]",
        "[hadar:Nice=-5]",
        "[hadar:Nice=0;]",
        "[hadar:Nice=0] more",
        "[hadar:Priority=9]",
        "[hadar:ExcNodeList=n[1-9999999]]",
        "[hadar:ExcNodeList=n1;Nice=]",
        "[hadar:Nice=0-1]",
        "[hadar:TimeLimit=1 Partition=x]",
        "[hadar:NumNodes=1;hadar]",
    ],
)
def test_other_texts_are_the_owners(text: str) -> None:
    """Unknown words, values beyond what an owner may ask for, and nodes without end."""
    assert split(f"a{text}") == (f"a{text}", "")


@pytest.mark.parametrize(
    ("values", "read"), [({"nice": -7}, {"nice": 0}), ({"excluded": ()}, {"excluded": ()})]
)
def test_every_mark_is_read(values: Mapping[str, object], read: Mapping[str, object]) -> None:
    """A nice value below 0, which an operator gave, comes back as 0."""
    marked = with_mark("", "", values)
    assert marked is not None
    assert owners_values(marked) == read
