"""The command line of hadard, and the configuration that results."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NoReturn

from hadar_slurm.config import DEFAULT_PATH, Config, read_config
from hadar_slurm.errors import UsageError


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class _Version(argparse.Action):
    """Prints the version, with the commit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Exit with status 0."""
        from hadar_slurm.built_from import version

        print(f"hadard {version()}")
        parser.exit()


def option_parser() -> argparse.ArgumentParser:
    """Return the parser of hadard's command line."""
    parser = _Parser(
        prog="hadard", description="Places the jobs of hadar-sbatch on the GPUs of a Slurm cluster."
    )
    add = parser.add_argument
    text = f"configuration, YAML (default {DEFAULT_PATH} where it exists)"
    add("--config", type=Path, metavar="FILE", help=text)
    add("--once", action="store_true", help="run a single round and end")
    text = "print the plan and the main commands of one round; touch nothing"
    add("--dry-run", action="store_true", help=text)
    text = "while it exists, nothing is held, pinned or moved (default: the configuration's)"
    add("--disable-file", type=Path, metavar="FILE", help=text)
    add("--round-seconds", type=float, metavar="S", help="length of a round")
    text = "log what is at least so severe: %(choices)s (default %(default)s)"
    levels = ("debug", "info", "warning", "error")
    add("--log-level", default="info", choices=levels, metavar="LEVEL", help=text)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    return parser


def configuration(options: argparse.Namespace) -> Config:
    """Read the configuration and apply the options; raises ConfigError or UsageError."""
    config = read_config(options.config)
    if options.disable_file is not None:
        config = config.model_copy(update={"disable_file": options.disable_file})
    seconds: float | None = options.round_seconds
    if seconds is None:
        return config
    if not 0 < seconds < float("inf"):
        raise UsageError(f"--round-seconds {seconds:g}: expected a number of seconds above 0")
    poll_s = min(config.poll_seconds, seconds)
    return config.model_copy(update={"round_seconds": seconds, "poll_seconds": poll_s})
