"""Groups of comparable runs, their best values and their means."""

from __future__ import annotations

from studies import a_record

from hadar_slurm.lab.study.compare import Record
from hadar_slurm.lab.study.summary import COLUMNS, ComparableRuns, groups, killed_notes, load_series

TTD = next(column for column in COLUMNS if column.name == "ttd_h")
TRAINED = next(column for column in COLUMNS if column.name == "utilization")


def only(records: list[Record]) -> ComparableRuns:
    (group,) = groups(records)
    return group


def test_runs_are_compared_where_all_but_policy_and_seed_agree() -> None:
    """Runs with another load are another group; runs with another seed are not."""
    found = groups(
        [a_record(), a_record("srsf"), a_record(seed=2), a_record(load=70.0), a_record(restart="0")]
    )
    assert [[entry.policy for entry in group.entries] for group in found] == [
        ["hadar", "srsf"],
        ["hadar"],
        ["hadar"],
    ]
    assert found[0].num_seeds == 2


def test_a_figure_is_the_mean_over_seeds() -> None:
    """The mean is over successful runs; failed runs are counted."""
    group = only(
        [
            a_record(ttd_h=2.0, seed=0),
            a_record(ttd_h=4.0, seed=1),
            a_record(seed=2, status="failed"),
        ]
    )
    (entry,) = group.entries
    assert entry.mean(TTD) == 3.0
    assert entry.status == "1 of 3 failed"


def test_best_is_what_looks_best() -> None:
    """Equal printed values are equally good; if all are equal, or none is better, none is best."""
    group = only([a_record("a", ttd_h=2.01), a_record("b", ttd_h=2.04), a_record("c", ttd_h=3.0)])
    assert group.best(TTD) == {"a", "b"}
    assert group.best(TRAINED) == frozenset()
    held = next(column for column in group.columns if column.name == "held_K80")
    assert group.best(held) == frozenset()


def test_a_failed_policy_keeps_its_row() -> None:
    """A failed policy stays in the group, without figures."""
    group = only([a_record(), a_record("srsf", status="failed")])
    assert [entry.status for entry in group.entries] == ["", "failed"]
    assert [entry.policy for entry in group.done] == ["hadar"]


def test_loads_make_a_series_where_there_are_several() -> None:
    """There is one series for each set of groups that differ in load alone."""
    found = groups([a_record(load=70.0), a_record(load=90.0), a_record(load=70.0, restart="0")])
    (series,) = load_series(found)
    assert [load for load, _ in series.points] == [70.0, 90.0]


def test_columns_of_users_are_shown_where_users_are_known() -> None:
    """A group without users has no columns for users."""
    known = {"mean_user_slowdown": 2.0, "max_user_slowdown": 3.0}
    unknown = dict.fromkeys(known)
    names = [{c.name for c in only([a_record(**r)]).columns} for r in (known, unknown)]
    assert names[0] - names[1] == set(known)
    assert names[1] < names[0]


def test_jobs_ended_by_their_limits_have_columns_and_a_note_where_there_are_any() -> None:
    """Beside each policy the number of jobs, and the share of the GPU time held that is lost."""
    none, some = {"killed": 0, "killed_share": 0.0}, {"killed": 19, "killed_share": 0.346}
    quiet = [a_record(**none), a_record("srsf", **none)]
    loud = [a_record(**some, load=70.0), a_record("srsf", **none, load=70.0)]
    names = [{column.name for column in only(records).columns} for records in (loud, quiet)]
    assert names[0] - names[1] == {"killed", "killed_share"}
    assert killed_notes(groups(quiet)) == []
    (note,) = killed_notes(groups([*quiet, *loud]))
    assert "look shorter" in note.paragraphs[0]
    assert [row[1:] for row in note.table] == [
        ("hadar", "srsf"),
        ("0.0 (0.0 %)", "0.0 (0.0 %)"),
        ("19.0 (34.6 %)", "0.0 (0.0 %)"),
    ]
    assert only(loud).best(next(c for c in only(loud).columns if c.name == "killed")) == {"srsf"}
