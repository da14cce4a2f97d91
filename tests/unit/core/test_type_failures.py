"""Which GPU types a workload must not have after failures."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.throughput_model import Workload
from hadar_slurm.core.type_failures import (
    KEPT_S,
    TypeRecord,
    TypeRecords,
    Work,
    barred,
    standing,
)

MEMORY = {"k80": 12.0, "v100": 16.0, "p100": 16.0, "a100": 40.0, "h100": 80.0}
COULD = (*MEMORY, "odd", "other")
WORK = Work(Workload("ada", "job:train.sh"), 1)


def memory_of(name: str) -> float | None:
    return MEMORY.get(name)


def records(story: str) -> dict[str, TypeRecord]:
    """Return the records after runs in order: `v100-` failed early, `v100+` did not."""
    found = TypeRecords()
    for at_s, run in enumerate(story.split(), start=1000):
        if run.endswith("+"):
            found.ran(WORK, run[:-1], float(at_s))
        else:
            found.failed(WORK, run[:-1], float(at_s), 12.0)
    return found.of_work.get(WORK, {})


def allowed(story: str, could: Collection[str] = COULD) -> set[str]:
    return set(could) - barred(records(story), could, memory_of).keys()


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        ("", set(COULD)),
        ("v100+ a100+", set(COULD)),
        # It has run nowhere: the most memory.
        ("v100-", {"h100"}),
        ("v100- h100-", {"a100"}),
        # As much as where it has run, which a type of unknown memory need not have.
        ("v100- a100+", {"a100", "h100"}),
        ("a100+ v100-", {"a100", "h100"}),
        ("v100- h100+ a100+", {"a100", "h100"}),
        ("v100- h100+ odd+", {"h100", "odd"}),
        ("v100- odd+", {"odd"}),
        # Not for its memory.
        ("h100- v100+", set(COULD) - {"h100"}),
        # A later run on the type, or an earlier one.
        ("v100- a100+ v100+", set(COULD)),
        ("v100+ v100-", set(COULD)),
        ("v100+ v100- v100-", set(COULD)),
        # The work has changed.
        ("v100+ v100- a100+ v100-", {"a100", "h100"}),
        # The cause was removed: what fits on a V100 now fits on larger types, not on smaller ones.
        ("k80- h100- v100- v100+", {"v100", "p100", "a100", "h100"}),
        ("h100- v100- v100+", set(COULD)),
        # The fault of the program.
        (" ".join(f"{name}-" for name in COULD), set(COULD)),
    ],
)
def test_what_runs_have_shown_decides(story: str, expected: set[str]) -> None:
    """After each history exactly the types that the rule names are allowed."""
    assert allowed(story) == expected


def test_only_types_that_the_job_could_have_matter() -> None:
    """The job is never left without a type, and failures elsewhere count."""
    assert allowed("v100- a100+", ("v100", "p100")) == {"p100"}
    assert allowed("v100- p100- a100+", ("v100", "p100")) == {"v100", "p100"}
    assert allowed("v100- a100+", ("k80", "h100")) == {"h100"}
    assert allowed("v100-", ("v100",)) == {"v100"}
    assert allowed("v100-", ("odd", "other", "v100")) == {"odd", "other"}


def test_the_reason_names_failure_and_success() -> None:
    found = barred(records("v100- a100+"), COULD, memory_of)
    assert found["v100"].words("then") == (
        "its workload failed there after 12 s on then and has run on a100"
    )
    assert found["odd"].words("then") == (
        "its workload failed on v100 after 12 s on then and has run on a100; "
        "this type is not known to have enough memory"
    )


def test_failures_expire_and_nobody_shares_them() -> None:
    """A failure counts for a month, and only for the same user's same workload and gang."""
    found = TypeRecords()
    found.failed(WORK, "v100", 1000.0, 12.0)
    for other in (
        Work(Workload("ben", "job:train.sh"), 1),
        Work(Workload("ada", "job:other.sh"), 1),
        Work(WORK.workload, 2),
    ):
        assert not found.barred(other, COULD, memory_of)
    found.news.clear()
    found.expire(1000.0 + KEPT_S)
    assert found.is_failing(WORK)
    found.expire(1001.0 + KEPT_S)
    assert not found.is_failing(WORK)
    assert found.news == {(WORK, "v100")}


runs = st.lists(st.tuples(st.sampled_from(COULD), st.booleans(), st.integers(1, 30)), max_size=12)
types = st.sets(st.sampled_from(COULD), min_size=1)


def after(history: list[tuple[str, bool, int]]) -> TypeRecords:
    found = TypeRecords()
    for name, is_success, at_s in history:
        if is_success:
            found.ran(WORK, name, float(at_s))
        else:
            found.failed(WORK, name, float(at_s), 1.0)
    return found


@given(history=runs, could=types)
def test_a_job_always_has_a_type(history: list[tuple[str, bool, int]], could: set[str]) -> None:
    """Whatever has failed, not all types are barred; and none is if all have failed."""
    known = after(history).of_work.get(WORK, {})
    found = barred(known, could, memory_of)
    assert found.keys() < could
    if could <= standing(known, memory_of):
        assert not found


@given(history=runs, could=types)
def test_a_type_that_failed_is_not_given_while_there_is_another(
    history: list[tuple[str, bool, int]], could: set[str]
) -> None:
    """And of untried types, only as large ones as where it has run, if it has run on any."""
    known = after(history).of_work.get(WORK, {})
    failed, found = standing(known, memory_of), barred(known, could, memory_of)
    if not failed or could <= failed:
        return
    assert could & failed <= found.keys()
    ran = {name for name, record in known.items() if record.ran_s} - failed
    assert not found.keys() & ran & could
    sizes = [MEMORY[name] for name in ran if name in MEMORY]
    if ran & could and sizes and any(MEMORY.get(name, 0.0) < min(sizes) for name in failed):
        assert all(MEMORY.get(k, 0.0) >= min(sizes) for k in could - found.keys() - ran)


@given(history=runs)
def test_the_same_run_counts_once(history: list[tuple[str, bool, int]]) -> None:
    """Recording all runs again, as a restarted hadard does, changes nothing."""
    ordered = sorted(history, key=lambda run: run[2])
    once = after(ordered)
    again = after(ordered)
    again.news.clear()
    for run in ordered:
        name, is_success, at_s = run
        if is_success:
            again.ran(WORK, name, float(at_s))
        else:
            again.failed(WORK, name, float(at_s), 1.0)
    assert again.of_work == once.of_work
    assert not again.news
