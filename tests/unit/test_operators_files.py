"""The files that operators begin with fit the configuration and what reads them."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from hadar_slurm.config import Config
from hadar_slurm.resources import operators_file

UNITS = sorted(operators_file("systemd").iterdir())


def read_unit(name: str) -> configparser.ConfigParser:
    """Return a unit; of a key that is there several times, the last."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(operators_file("systemd") / name)
    return unit


def test_the_services_directories_are_the_configurations() -> None:
    """What systemd makes for hadard is where hadard looks for it."""
    service, config = read_unit("hadard.service")["Service"], Config()
    assert config.run_dir == Path("/run", service["RuntimeDirectory"])
    assert config.state_dir == Path("/var/lib", service["StateDirectory"])
    assert config.journal.parent == Path("/var/log", service["LogsDirectory"])
    assert service["ReadWritePaths"] == f"-{config.spool_dir}"


def test_whatever_ends_hadard_its_jobs_are_given_back() -> None:
    service = read_unit("hadard.service")["Service"]
    assert service["ExecStopPost"].endswith("/hadar release")
    reaper = read_unit("hadar-reaper.service")["Service"]
    assert reaper["ExecStart"].endswith("/hadar release --expired")
    assert service["User"] == reaper["User"] == "hadar"


def test_the_watchdog_waits_longer_than_a_sign_of_life_can_take() -> None:
    """The longest silences are one command of Slurm's and one solve."""
    service, config = read_unit("hadard.service")["Service"], Config()
    silent_s = config.command_timeout_seconds + config.solver.time_limit_s
    assert float(service["WatchdogSec"]) > 2 * silent_s


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """Apart from the programs, which are not at their place here."""
    for unit in UNITS:
        text = unit.read_text().replace("/opt/hadar/bin/hadard", "/bin/true")
        (tmp_path / unit.name).write_text(text.replace("/opt/hadar/bin/hadar", "/bin/true"))
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *paths],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
