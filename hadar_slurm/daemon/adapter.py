"""Chooses the adapter: pyslurm where it fits the running Slurm, else the commands."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from hadar_slurm.errors import ConfigError, SlurmError
from hadar_slurm.slurm.client.command_line import CommandLine
from hadar_slurm.slurm.client.protocol import SlurmAdapter, Version
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.scontrol import parse_version

if TYPE_CHECKING:
    from hadar_slurm.slurm.client.pyslurm import Installed, PySlurm

log = logging.getLogger(__name__)


def make_adapter(
    name: str, runner: Runner, find: Callable[[], Installed | None] | None = None
) -> SlurmAdapter:
    """Return the adapter called `name`: `pyslurm`, `command-line`, or `auto` for what fits.

    With `auto` the log has one line with the reason why an installed pyslurm is not used. Raises
    ConfigError where `pyslurm` is required and does not fit.
    """
    commands = CommandLine(runner)
    if name == "command-line":
        return commands
    from hadar_slurm.slurm.client.pyslurm import find_pyslurm

    installed = (find or find_pyslurm)()
    try:
        adapter = _with_pyslurm(commands, installed)
    except ConfigError as error:
        if name == "pyslurm":
            raise ConfigError(
                f"adapter: pyslurm: {error}; install the pyslurm of your Slurm's version "
                "(docs/adapters.md) or set auto or command-line"
            ) from error
        # Without an installed pyslurm this is the normal case.
        level = logging.DEBUG if installed is None else logging.INFO
        log.log(level, "%s: using the command line", error)
        return commands
    log.info("using pyslurm, built for Slurm %s", _text(adapter.version))
    return adapter


def _with_pyslurm(commands: CommandLine, installed: Installed | None) -> PySlurm:
    """Return the adapter; raises ConfigError with the reason where pyslurm does not fit."""
    if installed is None:
        raise ConfigError("pyslurm is not installed for the Python that runs hadard")
    try:
        version = commands.version
    except SlurmError as error:
        raise ConfigError(f"pyslurm needs Slurm's commands beside it: {error}") from error
    if not any(version):
        raise ConfigError("scontrol --version does not show Slurm's version")
    from hadar_slurm.slurm.client.pyslurm import PySlurm

    built_for = parse_version(f"slurm {installed.version}")
    if built_for != version:
        versions = f"is built for Slurm {_text(built_for)}, this is {_text(version)}"
        raise ConfigError(f"pyslurm {installed.version} {versions}")
    adapter = PySlurm(commands.runner, installed.load(commands.runner))
    vars(adapter)["version"] = version  # known: scontrol is not run again
    return adapter


def _text(version: Version) -> str:
    major, minor = version
    return f"{major}.{minor:02}"
