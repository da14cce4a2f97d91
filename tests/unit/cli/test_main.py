"""hadar: its list of commands, and the modules that it imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hadar_slurm import __version__
from hadar_slurm.built_from import version
from hadar_slurm.cli.main import COMMANDS, commands, load_command

# Modules that take long to import and that the list of commands does not need.
HEAVY = {"numpy", "highspy", "pulp", "matplotlib", "yaml", "ClusterShell", "http.server"}
DECIDING = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import hadar_slurm.daemon.main
from builders import ROUND, a_job, a_snapshot
from hadar_slurm.policies.registry import DEFAULT_POLICY, make_policy
make_policy(DEFAULT_POLICY).plan(a_snapshot("1xV100,1xK80", a_job("1"), a_job("2")), ROUND)
"""
LISTING = "from typer.testing import CliRunner\nfrom hadar_slurm.cli.main import commands\n"


def imported(program: str) -> set[str]:
    """Return the modules that a program has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_listed_by_its_own_first_words(name: str) -> None:
    """The summary in COMMANDS is the first paragraph of the command's help."""
    words = load_command(name).help or ""
    assert COMMANDS[name] == " ".join(words.split("\n\n")[0].split())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    done = CliRunner().invoke(commands, [name, "--help"])
    assert done.exit_code == 0, done.output
    assert f"hadar {name} [OPTIONS]" in done.output


@pytest.mark.parametrize("name", COMMANDS)
def test_help_in_80_columns_cuts_nothing(name: str) -> None:
    """Each option and each default is there as a whole, in lines of 80 columns at most."""
    done = CliRunner().invoke(commands, [name, "--help"], env={"COLUMNS": "80"})
    lines = done.output.splitlines()
    assert [line for line in lines if len(line) > 80 or "\N{HORIZONTAL ELLIPSIS}" in line] == []
    parameters = load_command(name).params
    asked = [text for each in parameters for text in (*each.opts, *each.secondary_opts)]
    options = [text for text in asked if text.startswith("--")]
    assert [option for option in options if option not in done.output] == []
    assert [line for line in lines if line != line.rstrip()] == []


def test_all_commands_are_listed_and_near_ones_are_suggested() -> None:
    listed = CliRunner().invoke(commands, ["--help"]).output
    assert [name for name in (*COMMANDS, "version") if f" {name} " not in listed] == []
    wrong = CliRunner().invoke(commands, ["explainn"])
    assert wrong.exit_code == 2
    assert "'explain'" in wrong.output


@pytest.mark.parametrize("words", [["--help"], ["version"]])
def test_the_list_imports_no_command(words: list[str]) -> None:
    """`hadar --help` and `hadar version` import neither a command nor a large library."""
    seen = imported(f"{LISTING}CliRunner().invoke(commands, {words})")
    assert {name for name in seen if name.startswith("hadar_slurm.cli.")} == {
        "hadar_slurm.cli.main"
    }
    assert seen & HEAVY == set()


def test_how_hadard_is_can_be_asked_without_the_solvers() -> None:
    """`hadar status` imports neither solvers nor matplotlib, because it is called often."""
    seen = imported(f"{LISTING}CliRunner().invoke(commands, ['status', '--journal', '/x'])")
    assert "hadar_slurm.cli.status" in seen
    assert seen & {"numpy", "highspy", "pulp", "matplotlib"} == set()


def test_hadard_decides_without_what_is_for_studies_and_pictures() -> None:
    """hadard and its default policy import neither matplotlib nor the study nor the demo."""
    seen = imported(DECIDING)
    assert "highspy" in seen
    unwanted = (
        "matplotlib",
        "hadar_slurm.lab.study",
        "hadar_slurm.lab.demo",
        "hadar_slurm.lab.site",
    )
    assert [name for name in seen if name.startswith(unwanted)] == []


def test_the_version_is_an_option_and_a_command() -> None:
    asked = CliRunner().invoke(commands, ["--version"])
    assert (asked.exit_code, asked.output) == (0, f"hadar {version()}\n")
    assert CliRunner().invoke(commands, ["version"]).output == f"{__version__}\n"
