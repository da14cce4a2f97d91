"""Paths of the files that are installed with the package."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_file(name: str) -> Path:
    """Return a file of `hadar_slurm/data`."""
    return _PACKAGE / "data" / name


def job_template(name: str) -> Path:
    """Return a job template."""
    return _beside("job_templates") / name


def operators_file(name: str) -> Path:
    """Return a file of `slurm_conf`, the templates for operators."""
    return _beside("slurm_conf") / name


def _beside(folder: str) -> Path:
    """Return a directory beside the package in a checkout, inside it when installed."""
    installed = _PACKAGE / folder
    return installed if installed.exists() else _PACKAGE.parent / folder
