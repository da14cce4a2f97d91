"""The result of each Slurm command is reported to a callback, for counting."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hadar_slurm.errors import HadarError
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
