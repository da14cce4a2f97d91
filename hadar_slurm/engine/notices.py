"""What hadard says in its log about jobs that it leaves to Slurm."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId

log = logging.getLogger(__name__)
_MOST = 100  # texts: the owner of a job may choose them, and change them at any time


@dataclass
class Notices:
    """Says each thing once of a job or an array while Slurm shows it, and at most `_MOST`."""

    _said: dict[str, set[str]] = field(default_factory=dict)

    def say(self, job: JobId, text: str, level: int = logging.INFO) -> None:
        """Write `text` about a job into the log, unless that was done before."""
        said = self._said.setdefault(_array_of(job), set())
        if text not in said and len(said) < _MOST:
            said.add(text)
            log.log(level, "job %s %s", job, text)

    def keep(self, jobs: Iterable[JobId]) -> None:
        """Forget what was said of all jobs but these."""
        known = set(map(_array_of, jobs)) if self._said else set()
        self._said = {name: said for name, said in self._said.items() if name in known}


def _array_of(job: JobId) -> str:
    return job.partition("_")[0]
