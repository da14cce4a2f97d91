"""docs/templates.md names every template and shows a report that hadard can read."""

import re
import subprocess

from hadar_slurm.handoff import parse_report
from hadar_slurm.resources import beside

FOLDER = beside("job_templates", "unmodified.sbatch").parent
PAGE = FOLDER.parent / "docs" / "templates.md"


def test_every_template_is_on_the_page_and_the_page_names_no_other() -> None:
    """The page names every batch script, and every program has a batch script."""
    there = {path.stem for path in FOLDER.glob("*.sbatch")}
    named = set(re.findall(r"`([a-z]+_[a-z_]+|unmodified)`", PAGE.read_text(encoding="utf-8")))
    assert there <= named
    assert {path.stem for path in FOLDER.glob("*.py")} <= there


def test_the_report_on_the_page_can_be_read() -> None:
    """The example of a report on the page is valid."""
    (example,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    report = parse_report(example.encode(), "the page")
    assert (report.state, report.steps_done, report.steps_per_s) == ("running", 4200, 9.7)


def test_batch_scripts_are_bash_without_errors() -> None:
    """`bash -n` finds no syntax error in the batch scripts."""
    for path in FOLDER.glob("*.sbatch"):
        done = subprocess.run(["bash", "-n", path], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), path
