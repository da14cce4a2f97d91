"""The shipped systemd units agree with the configuration, and systemd accepts them."""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from hadar_slurm.cli.main import load_command
from hadar_slurm.config import Config
from hadar_slurm.resources import beside
from hadar_slurm.web.connections import ConnectionLimits
from hadar_slurm.web.server import DEFAULT_ADDRESS, parse_address

UNITS = sorted(beside("slurm_conf", "systemd").iterdir())


def read_unit(name: str) -> configparser.ConfigParser:
    """Return a unit; of a repeated key only the last value."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(beside("slurm_conf", "systemd") / name)
    return unit


def test_the_services_directories_are_the_configurations() -> None:
    """The directories in the unit are the default directories of the configuration."""
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
    """WatchdogSec is more than twice the time of one Slurm command and one solve."""
    service, config = read_unit("hadard.service")["Service"], Config()
    silent_s = config.command_timeout_seconds + config.solver.time_limit_s
    assert float(service["WatchdogSec"]) > 2 * silent_s


def test_the_page_is_read_only_and_on_loopback() -> None:
    """The web service has no writable directory, another account than hadard, and loopback only."""
    service = read_unit("hadar-web.service")["Service"]
    hadard = read_unit("hadard.service")["Service"]
    assert service["DynamicUser"] == "yes"
    assert service["SupplementaryGroups"] == hadard["Group"]
    assert int(hadard["LogsDirectoryMode"], 8) & 0o050 == 0o050
    writable = ("ReadWritePaths", "StateDirectory", "LogsDirectory", "RuntimeDirectory")
    assert [key for key in writable if key in service] == []
    assert (service["IPAddressDeny"], service["IPAddressAllow"]) == ("any", "localhost")
    assert parse_address(DEFAULT_ADDRESS).is_loopback


def test_the_page_is_served_by_words_that_hadar_takes() -> None:
    """`hadar web` accepts the options in the unit and those in the unit's comment."""
    text = (beside("slurm_conf", "systemd") / "hadar-web.service").read_text(encoding="utf-8")
    calls = re.findall(r"^#? *ExecStart=/opt/hadar/bin/hadar web *(.*)$", text, re.MULTILINE)
    assert len(calls) == 2
    for words in calls:
        context = load_command("web").make_context("web", shlex.split(words))
        parse_address(context.params["address"])


def test_the_page_may_have_a_socket_for_every_client() -> None:
    """The limit of connections is below half the unit's limit of open files."""
    service = read_unit("hadar-web.service")["Service"]
    assert ConnectionLimits().connections < int(service.get("LimitNOFILE", "1024")) / 2


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
@pytest.mark.parametrize("name", [unit.name for unit in UNITS if unit.suffix == ".service"])
def test_what_the_services_are_exposed_to_is_little(name: str) -> None:
    """The exposure that systemd-analyze computes is at most 2.5 of 10, of the web service 1.5."""
    done = subprocess.run(
        [
            "systemd-analyze",
            "security",
            "--offline=true",
            "--no-pager",
            f"--threshold={15 if name == 'hadar-web.service' else 25}",
            str(beside("slurm_conf", "systemd") / name),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if "unrecognized option '--offline" in done.stderr:
        pytest.skip("systemd-analyze is older than 250 and looks at running units only")
    assert done.returncode == 0, done.stdout.splitlines()[-1:]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """systemd-analyze accepts the units, with /bin/true in place of the programs."""
    for unit in UNITS:
        text = unit.read_text().replace("/opt/hadar/bin/hadard", "/bin/true")
        (tmp_path / unit.name).write_text(text.replace("/opt/hadar/bin/hadar", "/bin/true"))
    paths = [str(path) for path in sorted(tmp_path.iterdir())]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *paths],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
