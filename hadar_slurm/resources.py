"""Paths of the files that are installed with the package."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_file(name: str) -> Path:
    """Return a file of `hadar_slurm/data`."""
    return _PACKAGE / "data" / name


def beside(folder: str, name: str) -> Path:
    """Return a file of `job_templates` or `slurm_conf`, beside the package in a checkout.

    They are inside it when installed.
    """
    installed = _PACKAGE / folder
    return (installed if installed.exists() else _PACKAGE.parent / folder) / name
