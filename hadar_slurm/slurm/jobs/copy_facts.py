"""What the journal says of forked jobs: their parameter averages and their copies."""

from __future__ import annotations

from hadar_slurm.engine.averages import Averages
from hadar_slurm.slurm.jobs.array_jobs import Forks


def copy_facts(forks: Forks, averages: Averages) -> dict[str, object]:
    """Return the averages, whether copies share every step, and the copies' tasks, by job.

    The fields are those of `forked` in docs/journal.md; copies are numbered as in `holds`, and are
    those that hold GPUs or are starting.
    """
    return {
        parent: {
            "averages": averages.of(parent),
            **({"averaged_s": averages.last_s[parent]} if parent in averages.last_s else {}),
            **({"synchronous": True} if fork.is_synchronous else {}),
            "copies": {
                str(number): {
                    "task": task.seen.row.key,
                    **({"steps_per_s": float(f"{task.speed:.5g}")} if task.speed > 0 else {}),
                    **({"pinned": True} if task.job is not None and task.job.is_pinned else {}),
                }
                for number, task in enumerate(fork.copies)
                if task.gang is not None
            },
        }
        for parent, fork in forks.by_parent.items()
        if fork.job is not None
    }
