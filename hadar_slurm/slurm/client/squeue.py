"""Asks squeue, and splits its output into fields.

Users choose job names, comments and, without slurmdbd, accounts freely, separators and line breaks
included: such a field ends with a mark that no user can foresee, a new one for each call.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

from hadar_slurm.errors import SlurmOutputError
from hadar_slurm.slurm.client.runner import Runner

# Of one job: the fixed fields with the first free one, and each further free one.
Texts = tuple[str, ...]
_CUT = re.compile(r"^\d[^|\s]*(\||\Z)|squeue: |slurm_load", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one query, by name: `fixed` hold no free text, `free` may hold any text."""

    fixed: str
    free: str

    def argument(self, mark: str) -> str:
        """Return squeue's -O argument; `mark` must be a text that no user can foresee."""
        fixed = [f"{name}:|" for name in self.fixed.split()]
        return ",".join([*fixed, *(f"{name}:{mark}" for name in self.free.split())])

    def texts(self, text: str, mark: str) -> list[Texts]:
        """Return the texts of each job in output for `argument(mark)`; raises SlurmOutputError."""
        # A wrapper of squeue may say more before and after the records.
        first = re.search(rf"^\d([^|\n]*\|){{{len(self.fixed.split())}}}", text, re.MULTILINE)
        start = first.start() if first else len(text)
        *parts, rest = text[start:].split(mark)
        each = [iter(parts)] * len(self.free.split())
        is_cut = _CUT.search(rest if first else text) or mark in text[:start]
        if is_cut or len(parts) % len(each):
            raise SlurmOutputError("squeue: a record is not whole", text)
        return list(zip(*each, strict=True))

    def named(self, texts: Texts) -> dict[str, str]:
        """Return the fields of one job by name; raises SlurmOutputError."""
        names = [*self.fixed.split(), *self.free.split()]
        # A record ends with a line break.
        values = [*texts[0].removeprefix("\n").split("|", len(names) - len(texts)), *texts[1:]]
        if len(values) != len(names):
            raise SlurmOutputError(f"squeue: expected {len(names)} fields", texts[0])
        return dict(zip(names, values, strict=True))


def squeue(runner: Runner, fields: Fields, *options: str) -> tuple[str, str]:
    """Return squeue's output for `fields`, and its mark, which no user can foresee."""
    mark = f"#{secrets.token_hex(16)}"
    # -a: jobs in hidden partitions hold GPUs too.
    return runner.run(["squeue", "-a", "-h", *options, "-O", fields.argument(mark)]), mark
