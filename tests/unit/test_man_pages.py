"""The manual pages agree with the commands, and programs that show such pages accept them."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from typer.core import TyperGroup

from hadar_slurm.cli.main import COMMANDS, load_command
from hadar_slurm.config import Config, SolverConfig, parse_config
from hadar_slurm.daemon.options import option_parser
from hadar_slurm.submit.own_options import FLAGS, KNOWN, PREFIX
from hadar_slurm.submit.request import parse_words

ROOT = Path(__file__).parents[2]
MAN = ROOT / "docs" / "man"
# The pages of other programs that are referred to, and the other programs in examples.
OTHERS = {
    "sacct(1)", "sacctmgr(1)", "sbatch(1)", "scontrol(1)", "slurmctld(8)", "slurmd(8)",
    "slurmdbd(8)", "squeue(1)", "systemctl(1)", "systemd(1)",
}  # fmt: skip
OTHER_PROGRAMS = {"sacct", "systemctl", "touch"}


PAGES = {
    str(path.relative_to(MAN)): path.read_text(encoding="utf-8") for path in MAN.glob("man?/*")
}
NOTES = tomllib.loads((MAN / "pages.toml").read_text(encoding="utf-8"))
EXAMPLES = [
    (name, line)
    for name, notes in NOTES.items()
    for example in notes.get("examples", [])
    for line in example["run"].splitlines()
    if name != "hadar.yaml"
]


def shown(text: str) -> str:
    """Return a page's text without its roff marks."""
    return re.sub(r"\\f\[[A-Z]*\]", "", text).replace(r"\-", "-").replace("\\ ", " ")


def options_listed(text: str) -> set[str]:
    """Return the options at the beginning of list entries."""
    tags = re.findall(r"^\.TP\n(.*)$", text, re.MULTILINE)
    return {word for tag in tags for word in re.findall(r"--[a-z-]+", shown(tag))}


def test_the_pages_are_written_anew_as_they_lie_there() -> None:
    """The generator writes the pages as they are stored; `make man` updates them."""
    pytest.importorskip("pypandoc", reason="pypandoc-binary is not installed")
    spec = importlib.util.spec_from_file_location("man_generate", MAN / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = module.pages()
    assert written.keys() == PAGES.keys()
    assert [path for path in PAGES if written[path] != PAGES[path]] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_lists_exactly_the_options_of_its_command(name: str) -> None:
    """A page lists exactly the options that Typer makes of the command's function."""
    command = load_command(name)
    parts = command.commands.values() if isinstance(command, TyperGroup) else [command]
    taken = {word for part in parts for p in part.params for word in (*p.opts, *p.secondary_opts)}
    listed = options_listed(PAGES[f"man1/hadar-{name}.1"])
    assert listed == {word for word in taken if word.startswith("--")}


def test_the_pages_of_the_other_commands_list_their_options() -> None:
    daemon = {
        o for action in option_parser()._actions for o in action.option_strings if o[:2] == "--"
    }
    assert options_listed(PAGES["man8/hadard.8"]) == daemon
    ours = {*(PREFIX + name for name in KNOWN), *(f"--{name}" for name in FLAGS), "--help"}
    assert options_listed(PAGES["man1/hadar-sbatch.1"]) == ours
    text = shown(PAGES["man5/hadar.yaml.5"])
    keys = [*Config.model_fields, *(f"solver.{name}" for name in SolverConfig.model_fields)]
    keys.remove("solver")
    assert [key for key in keys if not re.search(rf"^\.TP\n(.*, )?{key}(,.*)?$", text, re.M)] == []


@pytest.mark.parametrize(("name", "line"), EXAMPLES)
def test_an_example_is_taken_by_its_command(name: str, line: str) -> None:
    """Each command of an example is parsed without error; it is not run."""
    words = shlex.split(line.partition(" > ")[0].rpartition(" -- ")[2])
    program, *words = words
    if program == "hadar-sbatch":
        request = parse_words(words, {})
        assert request.script
    elif program == "hadard":
        option_parser().parse_args(words)
    elif program == "hadar":
        command = load_command(words[0])
        if isinstance(command, TyperGroup):
            command, words = command.commands[words[1]], words[1:]
        command.make_context(words[0], words[1:])
    else:
        assert program in OTHER_PROGRAMS


def test_the_example_of_a_configuration_is_one() -> None:
    (example,) = NOTES["hadar.yaml"]["examples"]
    assert parse_config(example["run"], "example").partitions == {"gpu-test": "steer"}


def test_pages_that_are_referred_to_are_there() -> None:
    """Each page referred to is a file here or in OTHERS, and some page refers to each page."""
    ours = {re.sub(r"man./(.*)\.(.)$", r"\1(\2)", path) for path in PAGES}
    referred = set()
    for path, text in PAGES.items():
        here = set(re.findall(r"[a-z][\w.-]*\([158]\)", shown(text)))
        assert here - ours - OTHERS == set(), path
        referred |= here
    assert ours - referred == set()


@pytest.mark.parametrize("path", PAGES)
@pytest.mark.parametrize("program", ["mandoc", "groff", "lexgrog"])
def test_those_who_show_pages_have_nothing_to_say(program: str, path: str) -> None:
    """The programs report nothing but the missing date, which would differ between builds."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    calls = {
        "mandoc": ["mandoc", "-T", "lint"],
        "groff": ["groff", "-K", "utf8", "-man", "-t", "-ww", "-z"],
        "lexgrog": ["lexgrog"],
    }
    done = subprocess.run(
        [*calls[program], str(MAN / path)], capture_output=True, text=True, timeout=300, check=False
    )
    if program == "lexgrog":
        assert done.returncode == 0, done.stdout
    else:
        said = (done.stdout + done.stderr).splitlines()
        assert [line for line in said if 'missing date, using ""' not in line] == []


def test_the_wheel_carries_every_page() -> None:
    """The wheel puts every page into share/man, where man looks if bin is on PATH."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    for path in PAGES:
        folder = Path(path).parent.name
        assert shared[f"docs/man/{folder}"] == f"share/man/{folder}"
