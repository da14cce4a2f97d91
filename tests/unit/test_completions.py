"""The completions of commands, options and values, tested in real shells."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from builders import a_job, a_snapshot

from hadar_slurm.cli.main import COMMANDS
from hadar_slurm.core.snapshot import Round
from hadar_slurm.engine.loop import RoundRecord
from hadar_slurm.journal import Journal
from hadar_slurm.lab.traces.workload import GENERATORS
from hadar_slurm.policies.registry import POLICY_NAMES
from hadar_slurm.resources import beside
from hadar_slurm.submit.own_options import FLAGS, KNOWN, PREFIX

SCRIPTS = beside("slurm_conf", "completions")
OURS = {*(PREFIX + name for name in KNOWN), *(f"--{name}" for name in FLAGS), "--help"}
GAVELS = {name for name in POLICY_NAMES if name.startswith("gavel-")}
SHELLS = ["bash", "zsh", "fish"]

# bash calls the function of `complete -F` with the command, the word and the one before it.
BASH = """
source {script}
COMP_LINE={line}
COMP_POINT=${{#COMP_LINE}}
COMP_WORDS=({words})
COMP_CWORD={last}
{before}
{function} {command} "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}" 2>/dev/null
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
# Stubs of zsh's completion functions that print their arguments; they need no terminal.
ZSH = """
words=({words})
CURRENT=$#words
PREFIX=$words[CURRENT]
_describe() {{
    for word in ${{(P)@[-1]}}; do
        word=${{word//\\\\:/@}}
        print -r -- ${{${{word%%:*}}//@/:}}
    done
}}
_files() {{ print FILES }}
_message() {{ print MESSAGE }}
_dispatch() {{ print "of $1 $words" }}
compset() {{ : }}
compadd() {{ print -rl -- $@ }}
source {script}
"""


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """Return an environment with this package's `hadar` on PATH and an empty HOME."""
    command = tmp_path / "bin" / "hadar"
    command.parent.mkdir()
    command.write_text(
        f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m hadar_slurm.cli.main "$@"'
    )
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}


def complete(shell: str, line: str, places: dict[str, str], before: str = "") -> set[str]:
    """Return the completions that a shell offers at the end of a line."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command = line.split()[0]
    words = line.split() + ([""] if line.endswith(" ") else [])
    if shell == "bash":
        # COMP_WORDBREAKS of readline contains = and :, so each of them is a word.
        parts = [part for word in words for part in re.split("([=:])", word) if part or not word]
        program = BASH.format(
            script=shlex.quote(str(SCRIPTS / f"{command}.bash")),
            line=shlex.quote(line),
            words=shlex.join(parts),
            last=len(parts) - 1,
            function=f"_{command.replace('-', '_')}",
            command=command,
            before=before,
        )
        call = ["bash", "--norc", "-c", program]
    elif shell == "zsh":
        script = shlex.quote(str(SCRIPTS / f"_{command}"))
        call = ["zsh", "-fc", ZSH.format(words=shlex.join(words), script=script)]
    else:
        script = shlex.quote(str(SCRIPTS / f"{command}.fish"))
        call = ["fish", "--no-config", "-c", f"source {script}; complete -C {shlex.quote(line)}"]
    done = subprocess.run(
        call,
        env=places,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=places["HOME"],
    )
    assert done.stderr == ""
    return {text.partition("\t")[0] for text in done.stdout.splitlines()} - {""}


@pytest.mark.parametrize("shell", SHELLS)
def test_commands_and_options_are_completed(shell: str, places: dict[str, str]) -> None:
    assert complete(shell, "hadar ", places) == {*COMMANDS, "version"}
    assert complete(shell, "hadar re", places) == {"report", "release"}
    assert complete(shell, "hadar config p", places) == {"print-default"}
    assert complete(shell, "hadar top --", places) >= {"--config", "--every", "--once"}


@pytest.mark.parametrize("shell", SHELLS)
def test_values_are_completed(shell: str, places: dict[str, str]) -> None:
    """Policies are completed, also after a comma or an equals sign, and so are generators."""
    assert complete(shell, "hadar demo --policy gav", places) == GAVELS
    whole = {f"--policy={name}" for name in GAVELS} if shell == "fish" else GAVELS
    assert complete(shell, "hadar simulate --policy=gav", places) == whole
    several = complete(shell, "hadar compare --policy srsf,gav", places)
    assert several == {f"srsf,{name}" for name in GAVELS}
    # readline completes only the text after the colon.
    prefix = "" if shell == "bash" else "generate:"
    found = complete(shell, "hadar simulate generate:", places)
    assert found == {f"{prefix}{name}480" for name in GENERATORS}


@pytest.mark.parametrize("shell", SHELLS)
def test_jobs_are_completed_from_the_journal(shell: str, places: dict[str, str]) -> None:
    path = Path(places["HOME"]) / "run.jsonl"
    journal = Journal(path)
    jobs = [
        a_job(name, on=f"n1:V100:{1}") if name == "281" else a_job(name) for name in ("281", "282")
    ]
    snapshot = a_snapshot("2xV100", *jobs, now_s=1e9)
    journal.write(RoundRecord(Round(3, 1e9, 360.0), "round end", "hadar", snapshot), mode="hold")
    journal.close()
    assert complete(shell, f"hadar explain --journal {path} ", places) == {"281", "282"}
    assert complete(shell, f"hadar explain --journal {path} 282", places) == {"282"}


@pytest.mark.parametrize("shell", SHELLS)
def test_jobs_of_ones_own_are_completed_from_the_queue(shell: str, places: dict[str, str]) -> None:
    """Without a readable journal job ids come from squeue; an array is offered once.

    What a wrapper of squeue prints is left out.
    """
    squeue = Path(places["HOME"]) / "bin" / "squeue"
    own = '[ "$*" = "--me -h -o %F|" ] && printf "17|\\n17|\\n201|\\n"'
    squeue.write_text(f"#!/bin/sh\necho 2026 jobs of 11 users\necho 2026\n{own}\necho 1,1\n")
    squeue.chmod(0o755)
    assert complete(shell, "hadar leave ", places) == {"17", "201"}
    assert complete(shell, "hadar leave 17 2", places) == {"201"}
    assert complete(shell, "hadar explain --journal /no/journal 1", places) == {"17"}


def test_where_nothing_fits_bash_offers_files(places: dict[str, str]) -> None:
    """An empty reply makes bash complete file names, because of `complete -o default`."""
    assert complete("bash", "hadar simulate REA", places) == set()
    assert complete("bash", "hadar explain ", {**places, "PATH": "/bin"}) == set()
    for name in ("hadar", "hadar-sbatch"):
        assert f"complete -o default -F _{name.replace('-', '_')} {name}\n" in (
            SCRIPTS / f"{name}.bash"
        ).read_text(encoding="utf-8")


LEVELS = {"yes", "no", "restart:20m"}


@pytest.mark.parametrize("shell", SHELLS)
def test_own_options_of_a_submission_are_completed(shell: str, places: dict[str, str]) -> None:
    found = complete(shell, "hadar-sbatch --", places)
    assert {word for word in found if word in OURS} == OURS
    assert complete(shell, "hadar-sbatch --hadar-checkpoint ", places) == LEVELS
    value = {"--hadar-checkpoint=yes"} if shell == "fish" else {"yes"}
    assert complete(shell, "hadar-sbatch --hadar-checkpoint=y", places) >= value


def test_bash_completes_the_rest_as_for_sbatch(places: dict[str, str]) -> None:
    """sbatch's completion function is called with the line rewritten as a line of sbatch."""
    theirs = (
        '_theirs() { COMPREPLY=("$COMP_LINE" "$COMP_POINT" "${COMP_WORDS[*]}" "$@"); }\n'
        "complete -F _theirs sbatch"
    )
    line = "hadar-sbatch --hadar-steps 5 --part"
    found = complete("bash", line, places, theirs)
    own = line.removeprefix("hadar-")
    assert found == {own, str(len(own)), "sbatch", "--part", "5"}
    without = complete("bash", "hadar-sbatch --hadar-steps 5", places, theirs)
    assert without == set()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_complete_the_rest_as_for_sbatch(
    shell: str, places: dict[str, str]
) -> None:
    if shell == "zsh":
        assert "of sbatch sbatch --part" in complete(shell, "hadar-sbatch --part", places)
    else:
        script = (SCRIPTS / "hadar-sbatch.fish").read_text(encoding="utf-8")
        assert "complete -c hadar-sbatch --wraps sbatch\n" in script


def test_the_wheel_carries_every_script() -> None:
    """The wheel puts each script where its shell looks below the prefix of an installation."""
    root = Path(__file__).parents[2]
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    shared = project["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-data"]
    places = {
        ".bash": "share/bash-completion/completions/{stem}",
        ".fish": "share/fish/vendor_completions.d/{name}",
        "": "share/zsh/site-functions/{name}",
    }
    for path in SCRIPTS.iterdir():
        target = places[path.suffix].format(stem=path.stem, name=path.name)
        assert shared[f"slurm_conf/completions/{path.name}"] == target
    assert len(list(SCRIPTS.iterdir())) == 6
