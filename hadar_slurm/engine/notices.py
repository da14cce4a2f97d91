"""What hadard says in its log about jobs that it leaves to Slurm."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from hadar_slurm.core.cluster import JobId

log = logging.getLogger(__name__)


@dataclass
class Notices:
    """Says each thing once of a job, and of the tasks of an array, while Slurm shows it."""

    _said: set[tuple[str, str]] = field(default_factory=set)

    def say(self, job: JobId, text: str, level: int = logging.INFO) -> None:
        """Write `text` about a job into the log, unless that was done before."""
        said = _array_of(job), text
        if said not in self._said:
            self._said.add(said)
            log.log(level, "job %s %s", job, text)

    def keep(self, jobs: Iterable[JobId]) -> None:
        """Forget what was said of all jobs but these."""
        if self._said:
            known = set(map(_array_of, jobs))
            self._said = {said for said in self._said if said[0] in known}


def _array_of(job: JobId) -> str:
    return job.partition("_")[0]
