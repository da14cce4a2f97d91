"""No text of a user looks like a line of hadard's log."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import logging
from hadar_slurm.daemon.log_lines import log_to_stderr
log_to_stderr("info")
logging.getLogger("hadard").info("job %s is odd", {text!r})
"""


def logged(text: str) -> str:
    """Return what a process logs about a job with this text."""
    argv = [sys.executable, "-c", CODE.format(text=text)]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stderr


def test_a_line_break_in_a_users_text_begins_no_line() -> None:
    """Nor do control characters reach the terminal of who reads the log."""
    said = logged("7\n2026-11-27 20:00:00 ERROR forged \x1b[2J\u2028\ud83d é")
    assert said.count("\n") == 1
    assert r"7\n2026-11-27 20:00:00 ERROR forged \x1b[2J\u2028" in said
    assert said.endswith("é is odd\n")


def test_a_text_without_end_is_cut() -> None:
    """The beginning is logged."""
    said = logged("x" * 100_000)
    assert len(said) < 5000
    assert " INFO job xxx" in said


def test_a_traceback_begins_no_line_either() -> None:
    """Its message may be a user's text as well."""
    code = (
        "import logging\nfrom hadar_slurm.daemon.log_lines import log_to_stderr\n"
        "log_to_stderr('info')\n"
        "try:\n    raise ValueError('7\\n2026-11-27 20:00:00 ERROR forged \\x1b[2J')\n"
        "except ValueError:\n    logging.exception('the round has failed')\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, *traceback = run.stderr.splitlines()
    assert first.endswith("ERROR the round has failed")
    assert all(line.startswith("  ") for line in traceback)
    assert traceback[-1] == r"  2026-11-27 20:00:00 ERROR forged \x1b[2J"
