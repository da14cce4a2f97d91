"""The report: one self-contained page that says in text what it shows in plots."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from studies import CLUSTER, a_cell, limited_jobs, some_jobs

from hadar_slurm.lab.study.compare import Record, run_cell, scale_to_load
from hadar_slurm.lab.study.experiment import ExperimentSettings
from hadar_slurm.lab.study.heatmap import colour_of
from hadar_slurm.lab.study.plots import least_bound_h
from hadar_slurm.lab.study.report import Comparison, csv_text, json_text, page, write_all
from hadar_slurm.lab.study.styles import STYLES, styles
from hadar_slurm.lab.study.summary import Matrix, Note, groups, load_series
from hadar_slurm.lab.study.tables import show_notes
from hadar_slurm.policies.registry import POLICY_NAMES

PAPER, NIGHT = "#ffffff", "#15181d"
VOID = {"meta", "br", "link", "img", "path", "use", "rect", "image", "stop"}


@cache
def some_records() -> tuple[Record, ...]:
    """Return two policies at two loads, and a failed run."""
    records = []
    for load in (60.0, 120.0):
        for policy in ("srsf", "las"):
            cell = a_cell(policy, specs=tuple(scale_to_load(some_jobs(), CLUSTER, load)))
            records.append(run_cell(replace(cell, workload=replace(cell.workload, load=load))))
    failed = {name: records[0][name] for name in a_cell().labels}
    failed |= {"policy": "slurm", "status": "failed", "error": "HadarError: 1 < 2 & so on"}
    return (*records, failed)


def a_comparison() -> Comparison:
    found = groups(some_records())
    notes = [Note("A <note>", ("Words & more.",), (("a", "b"), ("1", "2")))]
    return Comparison(
        "Few jobs", "hadar compare 'a b'", some_records(), found, notes, load_series(found)
    )


@cache
def a_page() -> str:
    return page(a_comparison())


class Page(HTMLParser):
    """Parses a page and keeps what the tests check; raises when tags do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.plots: list[dict[str, str | None]] = []
        self.words = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._see(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._see(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data

    def _see(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in ("href", "src", "xlink:href") and value:
                self.links.append(value)
        if tag == "svg":
            self.plots.append(dict(attrs))


def test_the_page_stands_alone() -> None:
    """The page has no scripts and no external resources."""
    text = a_page()
    seen = Page(text)
    assert seen.tags["script"] == seen.tags["link"] == 0
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in seen.links)
    assert not re.search(r"url\((?!#)", text)
    assert "@import" not in text


def test_the_page_is_sound() -> None:
    """Tags nest, ids are unique, and every reference has a target."""
    seen = Page(a_page())
    assert [name for name, count in Counter(seen.ids).items() if count > 1] == []
    wanted = {link[1:] for link in seen.links if link.startswith("#")}
    assert wanted <= set(seen.ids)


def test_every_plot_has_a_title_and_a_description() -> None:
    """Three plots per group, three along the load, and two Gantt charts are all labelled."""
    seen = Page(a_page())
    assert len(seen.plots) == 2 * 3 + 3 + 2
    for plot in seen.plots:
        assert plot["role"] == "img"
        labels = str(plot["aria-labelledby"]).split()
        assert len(labels) == 2
        assert set(labels) <= set(seen.ids)


def test_what_failed_is_said_and_escaped() -> None:
    """A failed run and its error are listed at the top and in its table."""
    text = a_page()
    assert "1 run failed." in text
    assert "1 &lt; 2 &amp; so on" in text
    assert "failed, see above" in text
    assert "A &lt;note&gt;" in text


def test_every_word_of_the_report_is_escaped() -> None:
    """Only plots are inserted as markup; all other text is escaped."""
    evil = "<script>alert(1)</script>"
    records = [record | {"trace": evil, "cluster": evil} for record in some_records()[:2]]
    found = groups(records)
    text = page(Comparison(evil, evil, records, found, [Note(evil, (evil,), ((evil,), (evil,)))]))
    assert "<script" not in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt;") >= 7


def test_colours_follow_the_page() -> None:
    """No colour of the plots is fixed to black or white, so that both themes are readable."""
    text = a_page()
    assert "#010203" not in text
    assert "#000000" not in text.partition("</style>")[2]
    assert "prefers-color-scheme: dark" in text


def test_policies_have_colours_of_their_own_that_stand_out() -> None:
    """Colours have a contrast of 3:1 in both themes; colours and markers are all different."""
    assert set(POLICY_NAMES) <= set(STYLES)
    assert (
        len(set(STYLES.values())) == len({look.colour for look in STYLES.values()}) == len(STYLES)
    )
    assert len({look.marker for look in STYLES.values()}) == len(STYLES)
    for look in STYLES.values():
        assert _contrast(look.colour, PAPER) >= 3.0
        assert _contrast(look.colour, NIGHT) >= 3.0


def _distance(a: str, b: str) -> float:
    return math.dist(*([int(each[i : i + 2], 16) for i in (1, 3, 5)] for each in (a, b)))


def _contrast(a: str, b: str) -> float:
    """Return the contrast ratio of WCAG 2."""
    light, dark = sorted((_luminance(a), _luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_long_table_is_folded_and_cut(capsys: pytest.CaptureFixture[str]) -> None:
    rows = tuple((f"type {n}", "1") for n in range(20))
    note = Note("Speeds", ("Words.",), (("a", "b"), *rows), is_folded=True)
    text = page(replace(a_comparison(), notes=[note]))
    assert "<details><summary>20 rows</summary>" in " ".join(text.split()).replace("> <", "><")
    show_notes([note], Console(width=80))
    printed = capsys.readouterr().out
    assert "type 11" in printed
    assert "type 12" not in printed
    assert "and 8 more rows, which the report has" in printed


def test_rows_of_one_policy_look_unlike() -> None:
    """Shares of users, words and knowledge: each has its own colour, while there are enough."""
    kinds = [f"hadar ({share} % of users)" for share in (0, 10, 30, 50, 100)]
    kinds += ["slurm:list", "slurm:list:open", "slurm:look", "hadar (sizes learned)"]
    kinds += [f"hadar (sizes {size}, {share} % movable)" for size in "ab" for share in (0, 50)]
    looks = styles([*kinds, "srsf", "slurm"])
    assert len({look.colour for look in looks.values()}) == len(looks) == 15
    assert (looks["srsf"], looks["slurm"]) == (STYLES["srsf"], STYLES["slurm"])
    assert looks[kinds[0]] == STYLES["hadar"]
    few = [look.colour for look in styles(["slurm", *kinds[5:8], "hadar (sizes a)"]).values()]
    assert all(_distance(a, b) > 60 for a, b in combinations(few, 2))
    late = styles([*(f"slurm:{n}" for n in range(9)), "hadar (sizes a)"])
    assert late["hadar (sizes a)"] == STYLES["hadar"]
    many = styles(f"slurm:{n}" for n in range(40))
    assert len({look.colour for look in many.values()}) == len(STYLES)
    assert len(set(many.values())) > 35


@given(
    st.lists(
        st.lists(st.tuples(st.floats(1, 1e6), st.floats(1, 50)), min_size=1, max_size=3),
        min_size=1,
        max_size=6,
    )
)
@settings(max_examples=200)
def test_no_point_is_beyond_the_bound_that_is_drawn(
    rows: list[list[tuple[float, float]]],
) -> None:
    """Whatever the rows' own bounds are: adopters, copies and seeds have unlike ones."""
    found = groups(
        [
            {
                "policy": f"p{number}",
                "status": "done",
                "mean_jct_s": bound_s * ratio,
                "mean_jct_over_bound": ratio,
            }
            for number, runs in enumerate(rows)
            for bound_s, ratio in runs
        ]
    )[0]
    least_h = least_bound_h(found, "mean_jct")
    assert least_h > 0
    for runs in rows:
        mean_h = sum(bound_s * ratio for bound_s, ratio in runs) / len(runs) / 3600.0
        assert least_h <= mean_h * (1 + 1e-9)


def test_a_matrix_of_a_note_is_drawn_and_told() -> None:
    """A heat map shows its ratios as text, has a description, and is not in the JSON."""
    matrix = Matrix("Ratios & all", "Words.", ("a", "b"), ("x", "y"), ((1.0, 0.5), (None, 2.25)))
    note = Note("N", (), (("h",), ("r",)), matrix)
    found = groups(some_records()[:1])
    comparison = Comparison("T", "c", some_records()[:1], found, [note], tree={"more": [1]})
    text = page(replace(comparison, num_plotted=0))
    seen = Page(text)
    assert len(seen.plots) == 1 + 1
    assert "a: x 1.00, y 0.50; b: x unknown, y 2.25." in seen.words
    assert "Ratios &amp; all" in text
    assert Counter(re.findall(r">(0\.50|2\.25)<", text)) == {"0.50": 1, "2.25": 1}
    tree = json.loads(json_text(comparison))
    assert tree["notes"] == [{"heading": "N", "paragraphs": [], "table": [["h"], ["r"]]}]
    assert tree["more"] == [1]


def test_the_colour_of_a_ratio_is_fuller_the_further_from_1() -> None:
    """1 has no colour, less is another colour than more, and 2 and 1/2 are equally full."""
    assert colour_of(1.0)[1] == 0.0
    (better, half), (worse, double) = colour_of(0.5), colour_of(2.0)
    assert better != worse
    assert half == double == colour_of(40.0)[1] == colour_of(0.0)[1]
    assert 0.0 < colour_of(1.2)[1] < double


def test_the_csv_has_a_line_a_run() -> None:
    """Each run is a line with times in seconds; a failed run has its error."""
    rows = list(csv.DictReader(io.StringIO(csv_text(some_records()))))
    assert len(rows) == 5
    assert float(rows[0]["ttd_s"]) == pytest.approx(some_records()[0]["ttd_s"])
    assert 0 <= float(rows[0]["utilization_by_type_V100"]) <= 1
    assert (rows[4]["ttd_s"], rows[4]["error"]) == ("", "HadarError: 1 < 2 & so on")
    assert "occupancy" not in rows[0]


def test_the_json_has_what_made_it() -> None:
    """The JSON contains the command, every run and the notes."""
    tree = json.loads(json_text(a_comparison()))
    assert tree["command"] == "hadar compare 'a b'"
    assert [run["policy"] for run in tree["runs"]] == ["srsf", "las", "srsf", "las", "slurm"]
    assert tree["notes"][0]["table"] == [["a", "b"], ["1", "2"]]


def test_all_files_are_written(tmp_path: Path) -> None:
    """The CSV, the JSON and the page are written."""
    paths = write_all(tmp_path, a_comparison())
    assert [path.name for path in paths] == ["compare.csv", "compare.json", "report.html"]
    assert all(path.stat().st_size > 500 for path in paths)


def test_a_page_without_results_still_says_so() -> None:
    """A page without successful runs has no plots and counts the failures."""
    records = some_records()[-1:]
    text = page(Comparison("Nothing", "hadar compare", records, groups(records)))
    assert Page(text).plots == []
    assert "1 run failed." in text


def test_the_page_says_that_limits_ended_jobs_and_what_that_does_to_figures() -> None:
    """Beside the table, below the pictures, and in the meaning of the columns."""
    by_limits = partial(a_cell, specs=limited_jobs(), settings=ExperimentSettings(sizes="limit"))
    records = [run_cell(by_limits(policy)) for policy in ("yarn-cs", "srsf")]
    words = Page(page(Comparison("t", "c", records, groups(records)))).words
    assert "timed out" in words
    assert "Time limits ended jobs before all their steps were trained." in words
    assert words.count("Jobs ended with steps left count as done") == 2
    assert words.count("Jobs ended with steps left are included") == 1
    assert "Share of the GPU time held by jobs that was held by those ended" in words
    assert "limit" not in Page(page(a_comparison())).words
    (run,) = json.loads(json_text(Comparison("t", "c", records[:1], groups(records))))["runs"]
    assert run["killed"] == records[0]["killed"]
    assert "killed_jobs" not in run
