"""Which adapter is chosen, and what the log says about it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from hadar_slurm.daemon.adapter import make_adapter
from hadar_slurm.errors import ConfigError, SlurmUnavailable
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.pyslurm import Installed, PySlurm
from hadar_slurm.slurm.client.runner import Runner


@dataclass(frozen=True, slots=True)
class Versioned(Runner):
    """A runner that only answers with Slurm's version; without one, its commands are missing."""

    says: str = "slurm-wlm 26.05.5"

    def run(self, argv: Sequence[str], *, stdin: str = "") -> str:
        """Return scontrol's text about its version."""
        assert argv == ["scontrol", "--version"]
        if not self.says:
            raise SlurmUnavailable("scontrol is not installed or not on PATH")
        return self.says + "\n"


LIBRARY: Any = object()
FITTING = Installed("26.5.0", lambda runner: LIBRARY)


def wrecked(runner: Runner) -> Any:
    """Stand for a pyslurm that cannot be loaded."""
    raise ConfigError("pyslurm cannot be loaded: libslurmfull.so is missing")


NOT_FITTING = [
    (None, Versioned(), "pyslurm is not installed"),
    (
        Installed("25.11.2", lambda runner: LIBRARY),
        Versioned(says="slurm-wlm 22.05.8"),
        "pyslurm 25.11.2 is built for Slurm 25.11, this is 22.05",
    ),
    (FITTING, Versioned(says=""), "pyslurm needs Slurm's commands beside it: scontrol is not"),
    (Installed("26.5.1", wrecked), Versioned(), "cannot be loaded: libslurmfull.so is missing"),
]


@pytest.mark.parametrize("name", ["auto", "pyslurm"])
def test_pyslurm_is_taken_where_it_fits(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """One line of the log says so."""
    caplog.set_level(logging.INFO)
    adapter = make_adapter(name, Versioned(), lambda: FITTING)
    assert isinstance(adapter, PySlurm)
    assert adapter.library is LIBRARY
    assert adapter.version == (26, 5)
    assert caplog.messages == ["using pyslurm, built for Slurm 26.05"]


@pytest.mark.parametrize(("installed", "runner", "reason"), NOT_FITTING)
def test_where_it_does_not_fit_the_commands_are_taken(
    installed: Installed | None, runner: Runner, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One line of the log has the reason, at level DEBUG where pyslurm is not installed."""
    caplog.set_level(logging.DEBUG)
    assert type(make_adapter("auto", runner, lambda: installed)) is CommandLine
    (line,) = caplog.records
    assert reason in line.getMessage()
    assert line.getMessage().endswith(": using the command line")
    assert line.levelno == (logging.INFO if installed else logging.DEBUG)


@pytest.mark.parametrize(("installed", "runner", "reason"), NOT_FITTING)
def test_who_asks_for_pyslurm_is_told_why_it_cannot_be(
    installed: Installed | None, runner: Runner, reason: str
) -> None:
    """The error has the reason and the remedy."""
    with pytest.raises(ConfigError) as caught:
        make_adapter("pyslurm", runner, lambda: installed)
    message = str(caught.value)
    assert reason in message
    assert "docs/adapters.md" in message
    assert "command-line" in message


def test_who_asks_for_the_commands_gets_them(caplog: pytest.LogCaptureFixture) -> None:
    """pyslurm is not looked for, and nothing is logged."""
    caplog.set_level(logging.DEBUG)

    def find() -> Installed | None:
        raise AssertionError("looked for pyslurm")

    assert type(make_adapter("command-line", Versioned(), find)) is CommandLine
    assert caplog.messages == []


def test_what_is_not_a_version_fits_nothing() -> None:
    """A pyslurm built from a working copy may have any text as its version."""
    odd = Installed("unknown", lambda runner: LIBRARY)
    assert type(make_adapter("auto", Versioned(), lambda: odd)) is CommandLine
    both_odd = make_adapter("auto", Versioned(says="slurm-wlm"), lambda: odd)
    assert type(both_odd) is CommandLine
