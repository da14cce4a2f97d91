"""Failures on GPU types, for hadar-sbatch: a job that is not held must avoid the types itself.

One file in hadard's `run_dir`, readable by all. It names neither users nor workloads: an entry is
found by the digest of both, so only by those who know both. Standard library only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from hadar_slurm import untrusted_files
from hadar_slurm.core.type_failures import Records, TypeRecord, Work

VERSION = 1
FILE_NAME = "failures.json"
# Of each: 100 bytes for an entry of one type.
MOST = 10_000
_MAX_BYTES = 1 << 24
_MAX_TIME_S = 1e12


def write_failures(directory: Path, failing: Mapping[Work, Records]) -> None:
    """Replace the file; of more than `MOST`, those with the latest failures. Raises OSError."""
    latest = sorted(
        failing, key=lambda work: -max(record.failed_s for record in failing[work].values())
    )
    tree = {
        _digest(work): {name: asdict(record) for name, record in failing[work].items()}
        for work in latest[:MOST]
    }
    content = json.dumps({"version": VERSION, "failures": tree}) + "\n"
    with untrusted_files.directory(directory) as place:
        untrusted_files.replace(FILE_NAME, content.encode(), mode=0o644, dir_fd=place)


def read_failures(directory: Path, work: Work) -> Records:
    """Return what is known of some work; nothing where it cannot be read."""
    try:
        with untrusted_files.directory(directory) as place:
            text = untrusted_files.read(FILE_NAME, max_bytes=_MAX_BYTES, dir_fd=place)
        tree = json.loads(text)
        entry = tree["failures"].get(_digest(work), {}) if tree["version"] == VERSION else {}
        found = {
            str(name): TypeRecord(**{str(key): float(value) for key, value in values.items()})
            for name, values in entry.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
    numbers = (number for record in found.values() for number in asdict(record).values())
    return found if all(0 <= number <= _MAX_TIME_S for number in numbers) else {}


def _digest(work: Work) -> str:
    text = json.dumps([work.workload.user, work.workload.name, work.num_gpus])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
