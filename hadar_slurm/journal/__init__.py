"""The journal: one JSON line per round, which all other tools read.

A line is whole, or has the difference to the line before; readers get whole lines only
(docs/journal.md, ADR 28). hadard writes it with what is named here; it loads neither `reader`,
which reads its files, nor `values`, which makes a snapshot of a line.
"""

from hadar_slurm.journal.line import VERSION, VERSIONS, Line, as_line, claim_facts, gang_tree
from hadar_slurm.journal.writer import Journal

__all__ = [
    "VERSION",
    "VERSIONS",
    "Journal",
    "Line",
    "as_line",
    "claim_facts",
    "gang_tree",
]
