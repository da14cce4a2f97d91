"""hadar speeds: what was learned is shown, and deleted on demand."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hadar_slurm.cli.main import commands
from hadar_slurm.core.throughput_model import Place, Workload
from hadar_slurm.core.type_failures import Work
from hadar_slurm.state.learned_changes import ProfileError
from hadar_slurm.state.learned_file import FILE_NAME
from hadar_slurm.state.throughput_store import Profile

ADAS = Workload("ada", "job:[red]train.sh")
BENS = Workload("ben", "A3C")


class Site:
    """A configuration, and the profile of its hadard."""

    def __init__(self, directory: Path) -> None:
        self.config = directory / "hadar.yaml"
        lines = f"state_dir: {directory}\ngpu_types:\n  odd: {{memory_gb: 48}}\n"
        self.config.write_text(lines, encoding="utf-8")
        self.profile = Profile(directory / FILE_NAME, lambda: 100.0)

    def fill(self) -> None:
        """Let ada's job fail on a V100 and run on another type, with ben's speeds beside."""
        self.profile.speeds.measure(ADAS, Place("odd", 2, is_spread=True), 12.5)
        self.profile.speeds.measure(BENS, Place("k80", 1), 2.0)
        self.profile.records.failed(Work(ADAS, 2), "v100", 50.0, 12.0)
        self.profile.records.ran(Work(ADAS, 2), "odd", 60.0)
        self.profile.sync()
        assert not self.profile.fault

    def run(self, *words: str) -> Result:
        """Run the command."""
        return CliRunner().invoke(commands, ["speeds", *words, "--config", str(self.config)])


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_speeds_and_barred_types_are_shown(site: Site) -> None:
    """With user, workload, reason and date; memory as the site's configuration gives it."""
    site.fill()
    text = site.run("show").stdout
    assert re.search(r"ada +job:\[red\]train.sh +odd +2 +across nodes +12.5 +1", text)
    assert re.search(r"ben +A3C +k80 +1 +2 +1", text)
    reason = "its workload failed there after 12 s on 1970-01-01 [0-9:]{5} and has run on odd"
    start = re.escape("job:[red]train.sh of ada on 2 GPUs, not on ")
    assert re.search(f"^{start}v100: {reason}$", text, re.MULTILINE)
    assert re.search(f"^{start}k80: its workload failed on v100", text, re.MULTILINE)
    found = json.loads(site.run("show", "ben", "--json").stdout)
    assert found["barred"] == []
    assert [row["workload"] for row in found["speeds"]] == ["A3C"]
    found = json.loads(site.run("show", "ada", "--json").stdout)
    assert {row["gpu_type"] for row in found["barred"]} == {"v100", "k80"}


def test_no_name_of_a_job_is_markup(site: Site) -> None:
    """Not even one that escapes brackets: a tag that closes nothing would end the command."""
    site.profile.speeds.measure(Workload("eve", r"a\[/] \[red]b\\"), Place("k80", 1), 2.0)
    site.profile.sync()
    assert re.search(r"eve +" + re.escape(r"a\[/] \[red]b\\") + " +k80", site.run("show").stdout)


def test_what_is_forgotten_is_gone(site: Site) -> None:
    """Of one workload or all of a user; status 1 if nothing was known."""
    site.fill()
    assert site.run("forget", "ada", "other").exit_code == 1
    done = site.run("forget", "ada", ADAS.name)
    assert (done.exit_code, done.stdout) == (0, "3 records deleted\n")
    assert "ada" not in site.run("show").stdout
    assert json.loads(site.run("forget", "ben", "--json").stdout) == {"deleted": 1}
    assert site.run("show", "ben").stdout == "nothing is known of ben\n"
    site.profile.sync()
    assert not site.profile.speeds.measured


def test_who_is_believed_less_sees_why_and_until_when(site: Site) -> None:
    """The operator shows it, and deletes it with all that is known of the user."""
    now_s = time.time()
    site.profile.credits.learn("eve", 1000.0, 4000.0, now_s, speeds_off=2.0)
    site.profile.credits.learn("ada", 1000.0, 1000.0, now_s)
    site.profile.sync()
    text = site.run("show").stdout
    times = r"eve: steps claimed count 4 times after 1 job, until 20\d\d-\d\d-\d\d unless other"
    assert re.search(times, text)
    assert "eve: throughputs given do not count (off by a factor of 2 after 1 job)" in text
    assert "ada: claims count as they are, by judged jobs: 1" in text
    assert "counts half after 30 days" in text
    assert "30 days" not in site.run("show", "ada").stdout
    [found] = json.loads(site.run("show", "eve", "--json").stdout)["claims"]
    assert (found["throughputs_count"], found["jobs"]) == (False, 1)
    assert 79 < (found["steps_until_s"] - now_s) / 86400.0 < 81
    assert found["throughputs_until_s"] < found["steps_until_s"]
    assert site.run("forget", "eve", "train").exit_code == 1
    assert site.run("forget", "eve").exit_code == 0
    assert site.run("show", "eve").stdout == "nothing is known of eve\n"
    site.profile.sync()
    assert site.profile.credits.in_force() == {}


def test_a_file_that_cannot_be_used_is_an_error(site: Site) -> None:
    """It names the remedy, and leaves the file unchanged."""
    site.profile.path.write_bytes(b"no database at all" * 100)
    for words in (["show"], ["forget", "ada"]):
        error = site.run(*words).exception
        assert isinstance(error, ProfileError)
        assert "as the user that hadard runs as" in str(error)
    assert site.profile.path.read_bytes().startswith(b"no database")
