"""The result of each Slurm command is reported to a callback, for counting."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hadar_slurm.errors import HadarError, SlurmUnavailable
from hadar_slurm.slurm.client.runner import Runner

PROGRAMS = {
    "well": "print('a line')",
    "no": "import sys; sys.exit('slurm_update error: Access/permission denied')",
    "away": "import sys; sys.exit('Unable to contact slurm controller (connect failure)')",
    # Slurm 22.05.8 prints this where names cannot be resolved.
    "nameless": "import sys; sys.exit('squeue: error: slurm_set_addr: Unable to resolve \"ctl\"\\n'"
    "'squeue: error: Unable to establish control machine address')",
    "slow": "import time; time.sleep(60)",
}


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("well", "done"),
        ("no", "refused"),
        ("away", "unavailable"),
        ("nameless", "unavailable"),
        ("slow", "unavailable"),
        ("missing", "unavailable"),
    ],
)
def test_an_answer_is_told_however_a_command_ends(tmp_path: Path, name: str, answer: str) -> None:
    """The callback is called once for each command, with the program's name."""
    program = tmp_path / name
    if name in PROGRAMS:
        program.write_text(f"#!{sys.executable}\n{PROGRAMS[name]}\n", encoding="utf-8")
        program.chmod(0o755)
    told: list[tuple[str, str]] = []
    runner = Runner(timeout_s=0.5 if name == "slow" else 30, on_answer=lambda *a: told.append(a))
    if answer == "done":
        assert runner.run([str(program)]) == "a line\n"
    else:
        with pytest.raises(HadarError):
            runner.run([str(program)])
    assert told == [(str(program), answer)]


@pytest.mark.parametrize("lines", ["", "Welcome"])
def test_a_wrapper_that_loses_the_status_does_not_make_slurm_seem_empty(
    tmp_path: Path, lines: str
) -> None:
    """What Slurm says where it cannot be reached counts, whatever the status."""
    said = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    program = tmp_path / "squeue"
    program.write_text(f"#!/bin/sh\necho '{lines}'\necho '{said}' >&2\n", encoding="utf-8")
    program.chmod(0o755)
    with pytest.raises(SlurmUnavailable, match="connect failure"):
        Runner().run([str(program)])


def test_an_operators_own_defaults_are_not_those_of_the_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would hide jobs, partitions or the whole cluster."""
    for name in ("SQUEUE_PARTITION", "SINFO_PARTITION", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "other")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    variables = Runner().variables()
    assert not {"SQUEUE_PARTITION", "SINFO_PARTITION", "SLURM_CLUSTERS"} & variables.keys()
    assert variables["SLURM_TIME_FORMAT"] == "%s"


@pytest.mark.parametrize(
    "colours", [r"\033[0m", r"\033(B\033[m", r"\033[0m\033[39m", r"\033[m\017"]
)
def test_what_sets_back_a_terminals_colours_is_no_part_of_a_line(
    tmp_path: Path, colours: str
) -> None:
    """Else the first node or job would have another name."""
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\nprintf 'Hello\\n{colours}NodeName=n1 \\033[1m\\n'\n")
    program.chmod(0o755)
    assert Runner().run([str(program)]) == "Hello\nNodeName=n1 \x1b[1m\n"
