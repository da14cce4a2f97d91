"""Where the files that travel with the package lie."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_file(name: str) -> Path:
    """Return a file of `hadar_slurm/data`."""
    return _PACKAGE / "data" / name


def job_template(name: str) -> Path:
    """Return a job template: beside the package in a checkout, inside it when installed."""
    installed = _PACKAGE / "job_templates" / name
    return installed if installed.exists() else _PACKAGE.parent / "job_templates" / name
