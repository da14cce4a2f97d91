"""The tasks of a job array as one row of a view. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise

from hadar_slurm.core.cluster import GpuType
from hadar_slurm.core.gang import Gang

_TASK = re.compile(r"([0-9]+)_([0-9]+)\Z")
# A longer list of tasks is cut, as in squeue.
_MOST_LETTERS = 40
_MOST_TEXTS = 2


def array_of(job_id: str) -> str:
    """Return the array that a job is a task of: `116` for `116_3`; "" for any other job."""
    found = _TASK.match(job_id) if "_" in job_id else None
    return found[1] if found else ""


def as_rows(job_ids: Iterable[str], likeness: Callable[[str], Hashable]) -> list[tuple[str, ...]]:
    """Return the jobs of each row, in the order of their first ones.

    Tasks of one array whose `likeness` is equal are one row; any other job has its own.
    """
    rows: dict[Hashable, list[str]] = {}
    for job_id in job_ids:
        array = array_of(job_id)
        rows.setdefault((array, likeness(job_id)) if array else job_id, []).append(job_id)
    return [tuple(row) for row in rows.values()]


def row_name(job_ids: Sequence[str]) -> str:
    """Return a row's jobs as squeue writes them: `116_[0-4,7]`, `82` for one job."""
    if len(job_ids) == 1:
        return job_ids[0]
    numbers = sorted(int(job_id.rpartition("_")[2]) for job_id in job_ids)
    begins = [numbers[0], *(b for a, b in pairwise(numbers) if b > a + 1)]
    ends = [*(a for a, b in pairwise(numbers) if b > a + 1), numbers[-1]]
    parts = [f"{a}-{b}" if b > a else str(a) for a, b in zip(begins, ends, strict=True)]
    text = ",".join(parts)
    if len(text) > _MOST_LETTERS:
        text = text[:_MOST_LETTERS].rpartition(",")[0] + ",..."
    return f"{array_of(job_ids[0])}_[{text}]"


def gpus_by_type(gangs: Iterable[Gang]) -> dict[GpuType, int]:
    """Return the GPUs of all gangs together."""
    return dict(sorted(sum((Counter(gang.gpus_by_type) for gang in gangs), Counter()).items()))


def common_text(texts: Iterable[str]) -> str:
    """Return the most frequent ones of some texts, with their numbers where they differ."""
    found = Counter(filter(None, texts)).most_common()
    if len(found) < 2:
        return found[0][0] if found else ""
    parts = [f"{text} ({count})" for text, count in found[:_MOST_TEXTS]]
    left = len(found) - _MOST_TEXTS
    return "; ".join([*parts, *([f"and {left} more"] if left > 0 else [])])
