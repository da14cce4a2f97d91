"""The documents agree with the code."""

import re
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pytest
import yaml
from fakes import policy_page

from hadar_slurm.config import Config, SolverConfig, load_config
from hadar_slurm.daemon.options import option_parser
from hadar_slurm.engine.loop import RoundRecord, run_rounds
from hadar_slurm.jobspec.throughput_table import parse_table
from hadar_slurm.lab.traces.cluster import parse_cluster
from hadar_slurm.lab.traces.load import parse_gavel_trace
from hadar_slurm.policies.hadar_paper.utility import UTILITIES
from hadar_slurm.policies.policy import Policy, PolicyOptions
from hadar_slurm.policies.registry import POLICY_NAMES
from hadar_slurm.resources import data_file
from hadar_slurm.sim.backend import SimBackend
from hadar_slurm.submit.own_options import FLAGS, KNOWN, PREFIX, USAGE

ROOT = Path(__file__).parents[2]
TRACE = "LM (batch size 80)\t\t\t\t0\t900\t{gang}\t1\t-1\t{arrival}"


def _policy_of_the_page() -> Policy:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(policy_page.source(), "writing-a-policy.md", "exec", dont_inherit=True), names)
    policy: Policy = names["make"](PolicyOptions())
    return policy


def test_the_policy_shown_on_the_page_runs_a_workload_to_its_end() -> None:
    """The complete policy of docs/writing-a-policy.md makes valid plans until all jobs are done."""
    table_file = data_file("throughputs.json")
    table = parse_table(table_file.read_text(encoding="utf-8"), str(table_file))
    lines = [TRACE.format(gang=1 + i % 2, arrival=40 * i) for i in range(12)]
    world = SimBackend(
        parse_cluster("2xV100,4xK80", gpus_per_node=2), parse_gavel_trace(lines, table, "page")
    )
    records: list[RoundRecord] = []
    run_rounds(
        world,
        _policy_of_the_page(),
        records.append,
        length_s=60,
        now_s=lambda: world.now_s,
        clock=lambda: 0.0,
        max_rounds=500,
    )
    assert world.num_unfinished == 0
    assert [record.errors for record in records if record.errors] == []


def test_the_shipped_configuration_shows_every_key_with_its_default() -> None:
    """slurm_conf/hadar.yaml is the default configuration, written out."""
    path = ROOT / "slurm_conf" / "hadar.yaml"
    tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert load_config(path) == Config()
    assert set(tree) == set(Config.model_fields)
    assert set(tree["solver"]) == set(SolverConfig.model_fields)


def test_every_option_of_the_commands_is_documented() -> None:
    """The README names each option of hadar-sbatch and hadard, each policy and each utility."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    daemon = [
        o for action in option_parser()._actions for o in action.option_strings if o[:2] == "--"
    ]
    hidden = {"--help", "--version", "--log-level"}
    wanted = [
        *(PREFIX + name for name in KNOWN),
        *(option for option in daemon if option not in hidden),
        *POLICY_NAMES,
        *UTILITIES,
    ]
    assert [word for word in wanted if word not in readme] == []
    ours = [*(PREFIX + name for name in KNOWN), *(f"--{name}" for name in FLAGS)]
    page = (ROOT / "docs" / "hadar-sbatch.md").read_text(encoding="utf-8")
    assert [option for option in ours if option not in USAGE] == []
    assert [option for option in ours if f"| `{option}" not in page] == []


# The documents that promise something.
PROMISES = ("README.md", "docs/users.md", "docs/results.md")
GAIN = re.compile(
    r"[0-9] %[^.|]*?\b(shorter|longer|sooner|faster|less|more|gains?)\b|\bgains? [^.|]*[0-9] %"
    r"|\b(falls?|fell|drops?|shrinks?|rises?|rose|grows?)\b[^.|]*?\bby [0-9.]+ %"
    r"|\b[0-9.]+ times (the best|plain Slurm)|(?<![0-9])0?\.[0-9]+ of (that|those|plain)"
)
# What has to stand beside a gain, in its paragraph or list item.
BESIDE_A_GAIN = {
    "the opponent": r"plain Slurm|Gavel|`(srsf|las|hlas|slurm|gavel|sia)[a-z_:-]*`|best peer",
    "what was known": r"\b(known|learned|sees?|knows?)\b",
    "what could move": r"\b(movable|migrates?|migrated|moves?)\b",
    "runs or an interval": r"\bruns?\b|\binterval|\bseeds\b",
}


def without(text: str) -> list[tuple[str, str]]:
    """Return the paragraphs with a gain that leave out what has to stand beside it, with what."""
    return [
        (paragraph, name)
        for paragraph in paragraphs(text)
        if GAIN.search(paragraph)
        for name, words in BESIDE_A_GAIN.items()
        if not re.search(words, paragraph)
    ]


def paragraphs(text: str) -> Iterator[str]:
    """Yield paragraphs and list items, each in one line; no tables, headings or code."""
    prose = re.sub(r"(?ms)^```.*?^```$", "", text)
    for block in re.split(r"\n\s*\n|\n(?=\* )", prose):
        if not block.lstrip().startswith(("|", "#")):
            yield " ".join(block.split())


@pytest.mark.parametrize("name", PROMISES)
def test_a_gain_stands_beside_its_opponent_and_its_conditions(name: str) -> None:
    """With what was known, what could move, and the number of runs or an interval."""
    assert without((ROOT / name).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "text",
    [
        "The mean JCT is 12 % shorter.",
        "The mean JCT falls with a history by 12 %.",
        "The TTD rises by 0.5 %.",
        "The longest wait is 2.6 times the best peer's.",
        "Its mean JCT is 1.53 times plain Slurm's.",
        "The mean JCT is .87 of that under plain Slurm.",
    ],
)
def test_a_gain_is_found_in_whatever_form(text: str) -> None:
    """As a change or a ratio; alone it leaves out what has to stand beside it."""
    assert "what could move" in [name for _, name in without(text)]


def test_a_gain_without_its_conditions_is_found() -> None:
    """Whichever of them is left out of the README's paragraph on the first day."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (first_day,) = (part for part in paragraphs(readme) if part.startswith("On the first day"))
    assert GAIN.search(first_day)
    for name, words in BESIDE_A_GAIN.items():
        assert [what for _, what in without(re.sub(words, "", first_day))] == [name]


def gains_of_a_site() -> dict[tuple[str, str], tuple[float, float, float]]:
    """Return gain and interval of site_gains.md, by what is known of sizes and can move."""
    page = (ROOT / "benchmarks" / "results" / "site_gains.md").read_text(encoding="utf-8")
    table = page.partition("## Beside the strongest plain Slurm")[2].partition("\n## ")[0]
    row = r"^\| ([a-z ]+) \| (\d+) % \| (-?\d+) % \| (-?\d+) to (-?\d+) % \|"
    found = re.findall(row, table, re.MULTILINE)
    return {(known, share): (float(a), float(b), float(c)) for known, share, a, b, c in found}


def test_the_gains_of_a_site_are_those_of_their_page() -> None:
    """README.md and docs/results.md have each figure as benchmarks/results/site_gains.md has it."""
    gains = gains_of_a_site()
    assert len(gains) == 9

    def said(known: str) -> tuple[str, str]:
        gain, least, most = gains[known, "0"]
        interval = f"{least:.0f} to {most:.0f} %"
        if least < 0 < most:
            interval = f"{-least:.0f} % longer to {most:.0f} % shorter"
        elif most <= 0:
            interval = f"{-most:.0f} to {-least:.0f} % longer"
        return f"{abs(gain):.0f} % {'shorter' if gain > 0 else 'longer'}", interval

    def moved(share: str) -> str:
        rows = [gains[known, share] for known in ("nothing", "time limits", "history")]
        least, most = (f(row[0] for row in rows) for f in (min, max))
        low, high = min(row[1] for row in rows), max(row[2] for row in rows)
        return f"{least:.0f} to {most:.0f} % shorter ({low:.0f} to {high:.0f} %"

    wanted = {
        "README.md": [moved("30")],
        "docs/results.md": [
            " than under the strongest plain Slurm where nothing is known of sizes (".join(
                said("nothing")
            ),
            " where only time limits are (".join(said("time limits")),
            " with sizes learned (".join(said("history")),
            moved("30"),
            moved("100").replace(" shorter", ""),
        ],
    }  # fmt: skip
    for name, figures in wanted.items():
        text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
        assert [f for f in figures if not re.search(rf"(?<![\d.]){re.escape(f)}", text)] == []


def test_the_gains_of_the_first_day_are_those_of_their_page() -> None:
    """README.md and docs/results.md: means, best and worst of the windows, as full.md has them."""
    page = (ROOT / "benchmarks" / "results" / "full.md").read_text(encoding="utf-8")
    part = page.partition("## On a site's first day\n")[2].partition("\n## ")[0]
    row = (
        r"sizes: ([a-z ]+); movable: 0 %\..* on (\d) of (\d) workloads; geometric mean "
        r"(\d+ % \w+), worst (\d+ %) \w+, best (\d+ %) \w+\."
    )
    found = {known: rest for known, *rest in re.findall(row, part)}
    assert [*found] == ["time limits", "history"]
    for name, begins in (("README.md", "On the first day,"), ("docs/results.md", "**What a site")):
        text = (ROOT / name).read_text(encoding="utf-8").partition(begins)[2].partition("\n\n")[0]
        text = " ".join(text.split())
        for lost, windows, *figures in found.values():
            assert (lost, windows) == ("2", "5")
            missing = [f for f in figures if not re.search(rf"(?<![\d.]){re.escape(f)}", text)]
            assert missing == [], name


def test_what_a_step_gains_is_that_of_its_table() -> None:
    """docs/users.md: each step beside users who look and who leave the type open, of both sizes."""
    page = (ROOT / "docs" / "users.md").read_text(encoding="utf-8")
    part = page.partition("## What each step gains")[2].partition("\n## ")[0]
    found = re.findall(
        r"^\| ([^|]*) \| ([\d.]+) h \| [\d.]+ h \| ([\d.]+) h \|", part, re.MULTILINE
    )
    rows = [(float(few), float(many)) for _, few, many in found]
    left_open, look, placed, moved = rows

    def change(ours: tuple[float, float], theirs: tuple[float, float]) -> str:
        least, most = sorted(round(100 * abs(1 - a / b)) for a, b in zip(ours, theirs, strict=True))
        span = f"{least} to {most}" if least < most else f"{least}"
        return f"{span} % {'shorter' if ours < theirs else 'longer'} than"

    text = " ".join(part.split())
    wanted = [change(placed, look), change(placed, left_open), change(moved, look)]
    assert [words for words in wanted if words not in text] == []


# By the first words of a family in docs/results.md, how its workloads begin in generality.md.
FAMILIES = {
    "ElasticFlow's": "elasticflow_", "Gavel's": "gavel480 ", "Philly's": "modern-philly: ",
    "modern:": "modern_prod", "Hadar's": "hadar480 ", "sweeps,": "sweeps480 ",
    "bursts,": "bursts480 ", "Sia's artifact (SOSP 2023)": "sia_philly",
    "Sia's artifact, arrivals of Helios": "sia_saturn", "all": "",
}  # fmt: skip


def rows_below(page: str, heading: str) -> dict[str, list[str]]:
    """Return the cells of the first table below a line, by the first of them."""
    table = re.search(r"(?m)(^\|.*\n)+", page.partition(f"{heading}\n")[2])
    assert table, heading
    lines = [line.strip("|").split("|") for line in table[0].splitlines()]
    return {name.strip(): [cell.strip() for cell in cells] for name, *cells in lines}


def beside_plain() -> list[dict[str, float]]:
    """Return of each workload hadar's figure over the best plain Slurm's: mean JCT, TTD, p99."""
    page = (ROOT / "benchmarks" / "results" / "generality.md").read_text(encoding="utf-8")
    found = []
    for figure in ("mean JCT h", "TTD h", "p99 slow-down"):
        ours = rows_below(page, f"## {figure}: beside the best peer")
        plain = rows_below(page, f"Plain Slurm, {figure}:")
        found.append(
            {
                name: number(ours[name][0]) / min(map(number, cells))
                for name, cells in plain.items()
                if cells[0][0].isdigit()
            }
        )
    return found


def number(cell: str) -> float:
    return float(cell.partition(" ")[0].replace(",", ""))


def test_families_beside_plain_slurm_are_those_of_their_page() -> None:
    """docs/results.md: the mean and the worst of each family, as generality.md has them."""
    text = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    shown = rows_below(text, "## Beside plain Slurm")
    for label, begin in FAMILIES.items():
        (cells,) = (cells for name, cells in shown.items() if name.startswith(label))
        of = [[x for n, x in each.items() if n.startswith(begin)] for each in beside_plain()]
        figures = [f"{f(ratios):.2f}" for ratios in of for f in (geometric_mean, max)]
        assert [cell.strip("*") for cell in cells] == [str(len(of[0])), *figures], label


def test_what_moves_gain_is_that_of_its_page() -> None:
    """docs/results.md: hadar480_load90 with all sizes known, as full.md has it."""
    page = (ROOT / "benchmarks" / "results" / "full.md").read_text(encoding="utf-8")
    lines = page.partition("## Beside plain Slurm\n")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    still, moved = (row[-2:] for row in rows if row[-1].endswith("1 run"))
    (wait,) = (row for row in rows if "longest wait" in row)
    least, most = re.findall(r"(\d+) % shorter", moved[1])
    than = "as" if still[0] == "the same" else "than"
    wanted = [
        f"{still[0]} {than} under the strongest plain Slurm ({still[1].removesuffix(', 1 run')})",
        f"longest wait under `hadar` is {wait[-1]} times plain Slurm's, {number(wait[-3]):.0f} "
        f"instead of {number(wait[-2]):.0f} h",
        f"{moved[0]} ({least} to {most} %)",
    ]
    text = " ".join((ROOT / "docs" / "results.md").read_text(encoding="utf-8").split())
    assert [words for words in wanted if words not in text] == []
