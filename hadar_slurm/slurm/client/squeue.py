"""Asks squeue, and splits its output into fields.

Users choose job names, comments and, without slurmdbd, accounts freely, separators and line breaks
included: such a field ends with a mark that no user can foresee, a new one for each call.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from hadar_slurm.errors import SlurmOutputError
from hadar_slurm.slurm.client.runner import Runner

_SEPARATOR = "|"


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one query, by name: `fixed` hold no free text, `free` may hold any text."""

    fixed: str
    free: str

    def argument(self, mark: str) -> str:
        """Return squeue's -O argument; `mark` must be a text that no user can foresee."""
        fixed = [f"{name}:{_SEPARATOR}" for name in self.fixed.split()]
        return ",".join([*fixed, *(f"{name}:{mark}" for name in self.free.split())])

    def records(self, text: str, mark: str) -> Iterator[dict[str, str]]:
        """Yield the fields of each job in output for `argument(mark)`; raises SlurmOutputError."""
        fixed, free = self.fixed.split(), self.free.split()
        names = [*fixed, *free]
        *parts, rest = text.split(mark)
        if rest.strip() or len(parts) % len(free):
            raise SlurmOutputError("squeue: the last record is not whole", text)
        for start in range(0, len(parts), len(free)):
            head, *texts = parts[start : start + len(free)]
            # A record ends with a line break.
            head = head.removeprefix("\n") if start else head
            values = [*head.split(_SEPARATOR, len(fixed)), *texts]
            if len(values) != len(names):
                raise SlurmOutputError(f"squeue: expected {len(names)} fields", head)
            yield dict(zip(names, values, strict=True))


def squeue(runner: Runner, fields: Fields, *options: str) -> tuple[str, str]:
    """Return squeue's output for `fields`, and its mark, which no user can foresee."""
    mark = f"#{secrets.token_hex(16)}"
    # -a: jobs in hidden partitions hold GPUs too.
    return runner.run(["squeue", "-a", "-h", *options, "-O", fields.argument(mark)]), mark
