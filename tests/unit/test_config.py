"""hadar.yaml: every error names the line, the key or value, and the accepted values."""

from __future__ import annotations

from pathlib import Path

import pytest

from hadar_slurm.config import Config, GpuTypeConfig, SolverConfig, load_config, parse_config
from hadar_slurm.errors import ConfigError
from hadar_slurm.policies.hadar_paper.policy import HadarPaper
from hadar_slurm.policies.registry import DEFAULT_POLICY, POLICY_NAMES, make_policy

SHIPPED = sorted((Path(__file__).parents[2] / "slurm_conf").glob("hadar*.yaml"))


def fault_in(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "hadar.yaml")
    words = str(caught.value)
    assert "\n" not in words
    return words


@pytest.mark.parametrize("text", ["", "# nothing but words\n", "---\n"])
def test_an_empty_file_is_the_default(text: str) -> None:
    """A file without keys gives the default configuration."""
    assert parse_config(text, "hadar.yaml") == Config()


def test_the_former_name_of_mode_hold_is_read() -> None:
    """Files of 0.2.0 say `enforce`."""
    config = parse_config("mode: enforce\npartitions: {gpu: enforce}", "hadar.yaml")
    assert (config.mode, config.partitions) == ("hold", {"gpu": "hold"})


def test_the_former_key_utility_is_read() -> None:
    """For the one policy that it was for; it may be beside any other."""
    assert parse_config("utility: jct\npolicy: hadar-paper", "").policy == "hadar-paper:jct"
    assert parse_config("utility: jct", "").policy == DEFAULT_POLICY
    for utility in ("throughput", "jct", "ftf"):
        assert make_policy(f"hadar-paper:{utility}") == HadarPaper(
            utility=utility, name=f"hadar-paper:{utility}"
        )


def test_values_are_read() -> None:
    """Every kind of value that the file may contain is read."""
    config = parse_config(
        """
        policy: hadar-paper:jct
        typing: list
        round_seconds: 120
        poll_seconds: 2.5
        mode: advise
        partitions: {gpu: hold, gpu-long: observe}
        solver:
          time_limit_s: 1
          gap: 0.01  # of 0.2, and without effect
        moves: {default: signals, partition=long: none, qos=fast: stated}
        throughputs: /etc/hadar/throughputs.json
        gpu_types: {V100: {memory_gb: 32, compute_capability: 7}}
        slurm_conf: null
        journal: /var/log/hadar/rounds.jsonl
        """,
        "hadar.yaml",
    )
    assert (config.policy, config.typing) == ("hadar-paper:jct", "list")
    assert (config.round_seconds, config.poll_seconds) == (120.0, 2.5)
    assert config.mode == "advise"
    assert config.partitions == {"gpu": "hold", "gpu-long": "observe"}
    assert config.solver.time_limit_s == 1.0
    moves = {"default": "signals", "partition=long": "none", "qos=fast": "stated"}
    assert config.moves == moves
    assert config.throughputs == Path("/etc/hadar/throughputs.json")
    assert config.own_gpu_types == {"V100": {"memory_gb": 32.0, "compute_capability": 7.0}}
    assert config.slurm_conf is None
    assert config.journal == Path("/var/log/hadar/rounds.jsonl")
    assert config.restart_cost_seconds == Config().restart_cost_seconds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "sizes: limit\nround_secs: 60\n",
            "hadar.yaml:2: unknown key 'round_secs'; the nearest known one is 'round_seconds'",
        ),
        (
            "\n\n# solver\nsolver:\n  gap: 0\n  time_limit: 3\n",
            "hadar.yaml:6: unknown key 'solver.time_limit'; the nearest known one is "
            "'time_limit_s'",
        ),
        (
            "gpu_types:\n  v100:\n    memory: 32\n",
            "hadar.yaml:3: unknown key 'gpu_types.v100.memory'; the nearest known one is "
            "'memory_gb'",
        ),
        (
            "policies: hadar-paper",
            "hadar.yaml:1: unknown key 'policies'; the nearest known one is 'pol",
        ),
    ],
)
def test_an_unknown_key_is_told_with_its_line_and_the_nearest(text: str, words: str) -> None:
    """An error names the line of an unknown key and the nearest known key."""
    assert words in fault_in(text)


@pytest.mark.parametrize(
    ("text", "line", "key", "value"),
    [
        ("policy: gavel", 1, "policy", "'gavel'"),
        ("policy: hadar-paper:fast", 1, "policy", "'hadar-paper:fast'"),
        ("policy: hadar:jct", 1, "policy", "'hadar:jct'"),
        ("utility: [jct]\npolicy: hadar-paper", 2, "policy", "hadar-paper:['jct']"),
        ("typing: some", 1, "typing", "'some'"),
        ("\nround_seconds: 0", 2, "round_seconds", "not 0"),
        ("round_seconds: -5", 1, "round_seconds", "not -5"),
        ("round_seconds: soon", 1, "round_seconds", "'soon'"),
        ("round_seconds: .inf", 1, "round_seconds", "not inf"),
        ("poll_seconds: .nan", 1, "poll_seconds", "not nan"),
        ("restart_cost_seconds: -1", 1, "restart_cost_seconds", "not -1"),
        ("round_seconds: [1, 2]", 1, "round_seconds", "[1, 2]"),
        (
            "moves:\n  default: all",
            2,
            "moves.default",
            "expected none, stated, signals, or preemptible:TIME",
        ),
        ("moves:\n  gpu: signals", 2, "moves.gpu", "partition=NAME"),
        ("moves: signals", 1, "moves", "not 'signals'"),
        ("solver:\n  time_limit_s: 0", 2, "solver.time_limit_s", "not 0"),
        ("solver: 3", 1, "solver", "not 3"),
        ("solver:", 1, "solver", "None"),
        ("partitions: gpu", 1, "partitions", "'gpu'"),
        ("partitions:\n  gpu: hold\n  long: on", 3, "partitions.long", "not True"),
        ("mode: force", 1, "mode", "not 'force'"),
        ("journal: [a]", 1, "journal", "['a']"),
        ("enrol:\n  account_jobs:\n    bio: -1", 3, "enrol.account_jobs.bio", "0 or more, not -1"),
        ("enrol: {account_jobs: {bio: many}}", 1, "enrol.account_jobs.bio", "not 'many'"),
        ("1: 2", 1, "1", "not 1"),
    ],
)
def test_a_wrong_value_is_told_with_its_line(text: str, line: int, key: str, value: str) -> None:
    """The error names the line, the key and the value."""
    words = fault_in(text)
    assert words.startswith(f"hadar.yaml:{line}: {key}: ")
    assert value in words


NUMBERS = {
    "round_seconds": (0.1, 86400),
    "poll_seconds": (0.05, 3600),
    "user_shares": (0, 1),
    "restart_cost_seconds": (0, 86400),
    "grace_seconds": (0.1, 86400),
    "pin_timeout_seconds": (1, 86400),
    "command_timeout_seconds": (1, 600),
    "alive_seconds": (1, 3600),
    "journal_megabytes": (0.01, 100_000),
    "journal_files": (1, 1000),
    "solver.time_limit_s": (0.01, 3600),
    "gpu_types.v100.memory_gb": (0.1, 100_000),
    "gpu_types.v100.compute_capability": (0.1, 1000),
    "gpu_types.v100.bandwidth_gb_s": (0.1, 10_000_000),
}


def setting(key: str, value: object) -> str:
    """Return text that sets a key in its second line."""
    section, *names = key.split(".")
    if not names:
        return f"# a key\n{key}: {value}\n"
    return f"{section}:\n  {': {'.join(names)}: {value}{'}' * (len(names) - 1)}\n"


@pytest.mark.parametrize("key", NUMBERS)
def test_numbers_out_of_bounds_are_refused_with_the_bounds(key: str) -> None:
    least, most = NUMBERS[key]
    whole = key == "journal_files"
    below = [-1, 0] if whole else [-1e-9, -1]
    above = [most + 1, 10**18] if whole else [most * 1.001, "1.0e+300"]
    for value in [*below, *above]:
        words = fault_in(setting(key, value))
        assert f"hadar.yaml:2: {key}: expected a number from {least:g} to {most:g}, not " in words
    assert f"hadar.yaml:2: {key}: expected a number" in fault_in(setting(key, "yes"))
    for value in (least, most):
        # With a poll and a round that do not conflict with any value.
        suits = {"poll_seconds": 0.05, "round_seconds": 86400}
        text = "".join(f"{name}: {n}\n" for name, n in suits.items() if name != key)
        text += setting(key, value)
        parse_config(text, "hadar.yaml")


@pytest.mark.parametrize("key", ["poll_seconds: 1.0e-9", "alive_seconds: 1.0e+300"])
def test_nonsense_is_refused(key: str) -> None:
    assert "expected a number from" in fault_in(key)


def test_every_number_of_the_configuration_has_bounds() -> None:
    """The table NUMBERS has every number of the configuration."""
    numbers = {
        f"{prefix}{name}"
        for prefix, section in (
            ("", Config),
            ("solver.", SolverConfig),
            ("gpu_types.v100.", GpuTypeConfig),
        )
        for name, field in section.model_fields.items()
        if isinstance(field.default, int | float) or section is GpuTypeConfig
    }
    assert numbers == set(NUMBERS)


@pytest.mark.parametrize(
    ("text", "line", "key", "remedy"),
    [
        ("round_seconds: 3\npoll_seconds: 4\n", 2, "poll_seconds", "set poll_seconds to 3 or less"),
        ("\nround_seconds: 3\n", 2, "round_seconds", "set poll_seconds to 3 or less"),
        ("poll_seconds: 40\nalive_seconds: 40\n", 2, "alive_seconds", "set it to 160 or more"),
        ("alive_seconds: 4\n", 1, "alive_seconds", "set it to 20 or more, or leave it out"),
    ],
)
def test_numbers_that_do_not_go_together_are_refused(
    text: str, line: int, key: str, remedy: str
) -> None:
    words = fault_in(text)
    assert words.startswith(f"hadar.yaml:{line}: {key}: ")
    assert remedy in words


def test_the_default_sign_of_life_goes_with_any_poll() -> None:
    """The default of alive_seconds is never refused, however long a poll is."""
    assert parse_config("poll_seconds: 45\n", "hadar.yaml").poll_seconds == 45


PATHS = (
    "run_dir spool_dir assignments_dir state_dir disable_file journal throughputs slurm_conf"
).split()


@pytest.mark.parametrize("key", PATHS)
@pytest.mark.parametrize("path", ["log/here", "''", "~/here", "./here"])
def test_relative_paths_are_refused(key: str, path: str) -> None:
    """A path must be absolute: a relative one would depend on the daemon's directory."""
    words = fault_in(f"mode: observe\n{key}: {path}\n")
    assert words.startswith(f"hadar.yaml:2: {key}: expected an absolute path")


def test_every_fault_is_told() -> None:
    """One error lists all faults of the file."""
    words = fault_in("round_seconds: 0\nsizes: x\nsolvers: 1\n")
    assert all(part in words for part in ("yaml:1: round_seconds", "yaml:2: sizes", "'solvers'"))


@pytest.mark.parametrize(
    "text",
    ["a: [1", "a: b: c", "\tutility: jct", "a: *nothing", "{", "utility: \x07", "[[1]]: 2"],
)
def test_broken_yaml_is_one_line(text: str) -> None:
    """A syntax error of YAML is one line that names the file."""
    assert fault_in(text).startswith("hadar.yaml: not YAML: ")


def test_a_date_that_is_none_is_one_line() -> None:
    """An impossible date, which YAML cannot read, is an error of one line."""
    assert "hadar.yaml: not YAML" in fault_in("journal: 2020-13-45")


@pytest.mark.parametrize("text", ["[1, 2]", "hadar", "3"])
def test_a_file_without_keys_is_refused(text: str) -> None:
    """A list, a word or a number is refused as a configuration."""
    assert fault_in(text) == ("hadar.yaml: expected keys and values, such as `round_seconds: 360`")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """The error names a missing file, a directory, or a file that is not text."""
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing.yaml", tmp_path, binary):
        with pytest.raises(ConfigError, match="cannot be read") as caught:
            load_config(path)
        assert str(caught.value).startswith(f"{path}: ")


def test_a_file_is_read(tmp_path: Path) -> None:
    """A file is read from its path, and its errors name the path."""
    path = tmp_path / "hadar.yaml"
    path.write_text("sizes: limit\n", encoding="utf-8")
    assert load_config(path).sizes == "limit"
    path.write_text("utilities: ftf\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=f"^{path}:1: unknown key 'utilities'"):
        load_config(path)


@pytest.mark.skipif(not SHIPPED, reason="slurm_conf/ holds no example yet")
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_the_shipped_examples_are_right(path: Path) -> None:
    """The shipped examples are valid configurations."""
    load_config(path)


def test_every_policy_can_be_configured() -> None:
    """hadar.yaml accepts every registered policy."""
    for name in POLICY_NAMES:
        assert parse_config(f"policy: {name}", "here").policy == name
    assert Config().policy == DEFAULT_POLICY
