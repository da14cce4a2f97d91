"""The file of each run of a comparison, by the digest of its inputs."""

from __future__ import annotations

import json
import os
from pathlib import Path

from hadar_slurm.lab.study.compare import VERSION, Cell, Record


def cell_path(folder: Path, cell: Cell) -> Path:
    """Return the file of a cell."""
    return folder / "cells" / f"{cell.key}.json"


def write_record(path: Path, record: Record) -> None:
    """Write a cell's file atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.part")
    partial.write_text(json.dumps(record, separators=(",", ":")) + "\n", encoding="utf-8")
    os.replace(partial, path)


def read_record(path: Path) -> Record | None:
    """Return the record in a cell's file; None if it is missing or invalid."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and record.get("version") == VERSION else None
