"""Throughputs: the slowest type of a gang counts; the error of a wrong table names the place."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hadar_slurm.core.throughput import SPREAD_FACTOR, GangThroughput, Throughputs
from hadar_slurm.errors import ConfigError
from hadar_slurm.jobspec.identity import workload_name
from hadar_slurm.jobspec.throughput_table import parse_table

RATES = Throughputs.of(
    {
        ("v100", 1): GangThroughput(10.0),
        ("v100", 2): GangThroughput(18.0, 9.0),
        ("v100", 4): GangThroughput(30.0),
        ("K80", 1): GangThroughput(2.0),
        ("p100", 2): GangThroughput(0.0),
    }
)

gpu_types = st.sampled_from(["v100", "p100", "k80", "rtx"])
sizes = st.integers(1, 16)
speeds = st.floats(0, 1e6)
some_rates = st.dictionaries(
    st.tuples(gpu_types, sizes), st.builds(GangThroughput, speeds, st.none() | speeds), max_size=12
)
json_trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["workloads", "v100", "1", "0"]), inner, max_size=3)
    ),
)


@pytest.mark.parametrize(
    ("gpu_type", "num_gpus", "is_spread", "steps_per_s"),
    [
        ("v100", 1, False, 10.0),
        ("V100", 2, False, 18.0),
        ("k80", 1, False, 2.0),
        ("v100", 2, True, 9.0),  # measured across nodes
        ("v100", 4, True, 30.0 * SPREAD_FACTOR),  # not measured across nodes
        ("v100", 3, False, 27.0),  # the row for 2, in proportion
        ("v100", 8, False, 60.0),  # the row for 4, in proportion
        ("k80", 4, False, 8.0),
        ("k80", 4, True, 8.0 * SPREAD_FACTOR),
        ("v100", 1, True, 10.0),  # one GPU spans nothing
        ("p100", 1, False, 0.0),  # only a larger gang is known
        ("p100", 4, False, 0.0),  # does not fit
        ("rtx", 1, False, 0.0),  # unknown
        ("v100", 0, False, 0.0),
    ],
)
def test_the_rate_on_one_type(
    gpu_type: str, num_gpus: int, *, is_spread: bool, steps_per_s: float
) -> None:
    """A measured row is used unchanged; without one the documented rules apply."""
    assert RATES.on(gpu_type, num_gpus, is_spread=is_spread) == pytest.approx(steps_per_s)


@given(
    rows=some_rates, gang=st.lists(gpu_types, min_size=1), num_gpus=sizes, is_spread=st.booleans()
)
def test_the_slowest_type_sets_the_pace(
    rows: dict[tuple[str, int], GangThroughput], gang: list[str], num_gpus: int, *, is_spread: bool
) -> None:
    """A gang's throughput is the smallest of its types' throughputs, in any order and number."""
    throughputs = Throughputs.of(rows)
    pace = throughputs.of_gang(gang, num_gpus, is_spread=is_spread)
    assert pace == min(throughputs.on(gpu_type, num_gpus, is_spread=is_spread) for gpu_type in gang)
    assert pace == throughputs.of_gang([*gang[::-1], *gang], num_gpus, is_spread=is_spread)
    assert pace <= throughputs.best(gang, num_gpus) or is_spread


def test_a_gang_of_nothing_makes_no_steps() -> None:
    """An empty gang has throughput 0, without an error."""
    assert RATES.of_gang([], 2, is_spread=False) == 0.0
    assert RATES.best([], 2) == 0.0


def test_the_best_type_counts_within_a_node() -> None:
    """The best throughput is that of the fastest given type within a node."""
    assert RATES.best(["k80", "v100"], 2) == 18.0
    assert RATES.best(["k80", "rtx"], 2) == 4.0


@given(rows=some_rates)
def test_rates_are_canonical(rows: dict[tuple[str, int], GangThroughput]) -> None:
    """Equal rows give equal throughputs with equal hashes, whatever the order and case."""
    shuffled = {(gpu_type.upper(), size): rows[gpu_type, size] for gpu_type, size in reversed(rows)}
    assert Throughputs.of(rows) == Throughputs.of(shuffled)
    assert hash(Throughputs.of(rows)) == hash(Throughputs.of(shuffled))
    assert set(Throughputs.of(rows).gpu_types) == {gpu_type for gpu_type, _ in rows}


@given(rows=some_rates)
def test_a_table_is_read_as_written(rows: dict[tuple[str, int], GangThroughput]) -> None:
    """The throughputs in a table are read as they were written."""
    tree: dict[str, dict[str, list[float | None]]] = {}
    for (gpu_type, size), throughput in rows.items():
        tree.setdefault(gpu_type, {})[str(size)] = [throughput.together, throughput.spread]
    table = parse_table(json.dumps({"source": "us", "workloads": {"LM": tree}}), "there")
    assert table.source == "us"
    assert table.throughputs("lm") == Throughputs.of(rows)
    assert table.throughputs("CycleGAN") is None


def test_a_table_without_a_source_names_its_file() -> None:
    """The source of a table that names none is the path of its file."""
    assert parse_table('{"workloads": {}}', "there").source == "there"


GAVELS = Path(__file__).resolve().parents[2] / "data" / "traces" / "gavel_throughputs.json"
SHARED = Path(__file__).resolve().parents[4] / "shared" / "data"


def test_gavels_table_is_read_unmodified() -> None:
    """Throughputs within a node and across nodes are read; pairs of jobs are left out.

    Zero means that the workload does not fit.
    """
    table = parse_table(GAVELS.read_text(encoding="utf-8"), "gavel.json")
    assert table.source == "gavel.json"
    assert table.throughputs("steep") == Throughputs.of(
        {
            ("v100", 1): GangThroughput(8.0),
            ("v100", 2): GangThroughput(15.0, 6.0),
            ("k80", 1): GangThroughput(1.0),
            ("k80", 2): GangThroughput(0.0),
        }
    )
    assert table.throughputs("Flat") == Throughputs.of(
        {("v100", 1): GangThroughput(2.0), ("k80", 1): GangThroughput(1.0)}
    )


def test_gavels_published_table_is_read_whole() -> None:
    """Every workload, type and gang of the published file is read with its exact figures."""
    path = SHARED / "gavel_simulation_throughputs.json"
    if not path.exists():
        pytest.skip(f"../shared/data/{path.name}, which is not part of the project, is not there")
    text = path.read_text(encoding="utf-8")
    table, tree = parse_table(text, path.name), json.loads(text)
    num_rows = 0
    for name, throughputs in table.workloads.items():
        for (gpu_type, size), throughput in throughputs.rows:
            key = f"('{name}', {size})"
            across = (
                tree[f"{gpu_type}_unconsolidated"].get(key, {}).get("null") if size > 1 else None
            )
            assert throughput == GangThroughput(tree[gpu_type][key]["null"], across)
            num_rows += 1
    assert num_rows == sum(len(tree[gpu_type]) for gpu_type in ("k80", "p100", "v100"))


def gavels(key: str = "('LM', 1)", value: str = '{"null": 1}', gpu_type: str = "v100") -> str:
    return (
        f'{{"k80": {{"(\'A\', 1)": {{"null": 1}}}}, "{gpu_type}": {{{json.dumps(key)}: {value}}}}}'
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (gavels("LM"), "there: v100, LM: expected a key like"),
        (gavels("('LM', 0)"), "there: v100, .'LM', 0.: a gang is a whole number"),
        (gavels("('LM', x)"), "there: v100, .'LM', x.: expected a key like"),
        (gavels(value="3"), "there: v100, .'LM', 1.: expected an object, not 3"),
        (gavels(value="{}"), "there: v100, .'LM', 1.: no \"null\", the steps/s of the workload"),
        (gavels(value='{"null": -1}'), "there: v100, .'LM', 1.: a rate is a finite .* not -1"),
        (gavels(value='{"null": NaN}'), "there: v100, .'LM', 1.: a rate is a finite .* not nan"),
        (gavels(value='{"null": [1, 2]}'), "there: v100, .'LM', 1.: a rate is a finite"),
        (gavels("('A', 1)", gpu_type="K80"), "there: K80, .'A', 1.: given twice; upper and lower"),
        (gavels("('a', 1)"), "there: a: given already as A; upper and lower case are one"),
        (
            gavels("('LM', 2)", gpu_type="v100_unconsolidated"),
            "there: v100_unconsolidated: .'LM', 2. has a rate across nodes and none in 'v100'",
        ),
        ('{"workloads": {}, "workloads": {}}', "there: key 'workloads' is given twice"),
        ('{"v100": {"LM": {"null": 1}}}', 'there: expected an object with "workloads"'),
        ('{"v100": 3}', 'there: expected an object with "workloads"'),
    ],
)
def test_a_wrong_table_of_gavels_names_the_place(text: str, words: str) -> None:
    """The error names the file, the type, the key and what is accepted."""
    with pytest.raises(ConfigError, match=words):
        parse_table(text, "there")


def table_with(value: str) -> str:
    return f'{{"workloads": {{"LM": {{"v100": {{"1": {value}}}}}}}}}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there: not JSON"),
        ("[" * 100_000, "there: not JSON"),
        ("[]", 'there: expected an object with "workloads"'),
        ("{}", 'there: expected an object with "workloads"'),
        ('{"workloads": []}', 'there: expected an object with "workloads"'),
        ('{"workloads": {"LM": 3}}', "there: LM: expected an object, not 3"),
        ('{"workloads": {"LM": {"v100": [1]}}}', "there: LM, v100: expected an object"),
        ('{"workloads": {"LM": {"v100": {"0": [1, null]}}}}', "gang 0: a gang is a whole number"),
        ('{"workloads": {"LM": {"v100": {"two": [1, null]}}}}', "gang two: a gang is a whole"),
        ('{"workloads": {"LM": {"v100": {"-1": [1, null]}}}}', "gang -1: a gang is a whole"),
        (
            '{"workloads": {"LM": {"v100": {"1": [1, null]}, "V100": {"1": [1, null]}}}}',
            "LM, V100, gang 1: given twice",
        ),
        (table_with("[1]"), "LM, v100, gang 1: expected .within a node, across nodes or null."),
        (table_with("[1, 2, 3]"), "LM, v100, gang 1: expected .within a node"),
        (table_with("7"), "LM, v100, gang 1: expected .within a node"),
        (table_with('["1", null]'), "LM, v100, gang 1: a rate is a finite number .* not '1'"),
        (table_with("[null, null]"), "gang 1: a rate is a finite number .* not None"),
        (table_with("[true, null]"), "gang 1: a rate is a finite number .* not True"),
        (table_with("[-1, null]"), "gang 1: a rate is a finite number .* not -1"),
        (table_with("[NaN, null]"), "gang 1: a rate is a finite number .* not nan"),
        (table_with("[1, Infinity]"), "gang 1: a rate is a finite number .* not inf"),
        (table_with(f"[1{'0' * 400}, null]"), "gang 1: a rate is a finite number"),
    ],
)
def test_a_wrong_table_names_the_place(text: str, words: str) -> None:
    """The error names the file, the workload, the type, the gang and what is accepted."""
    with pytest.raises(ConfigError, match=words):
        parse_table(text, "there")


@given(tree=json_trees)
def test_nothing_but_a_config_error_comes_of_any_json(tree: object) -> None:
    """Any JSON gives a table or a ConfigError."""
    with contextlib.suppress(ConfigError):
        parse_table(json.dumps(tree), "there")
    with contextlib.suppress(ConfigError):
        parse_table(json.dumps({"workloads": {"LM": tree}}), "there")
    with contextlib.suppress(ConfigError):
        parse_table(json.dumps({"v100": {"('LM', 1)": tree}}), "there")


def test_workload_names_are_gavels() -> None:
    """The batch size, if any, is part of a workload's name."""
    assert workload_name("LM", 80) == "LM (batch size 80)"
    assert workload_name("A3C", None) == "A3C"
