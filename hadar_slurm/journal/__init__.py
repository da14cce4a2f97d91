"""The journal: one JSON line per round, which all other tools read.

A line is whole, or has the difference to the line before; readers get whole lines only
(docs/journal.md, ADR 28).
"""

from hadar_slurm.journal.chain import Changed, Decoder
from hadar_slurm.journal.line import (
    VERSION,
    VERSIONS,
    Line,
    as_line,
    changed_rows,
    claim_facts,
    credits_of,
    gang_from_tree,
    gang_tree,
    job_of,
    judged_of,
    snapshot_of,
    throughputs_of,
)
from hadar_slurm.journal.reader import (
    chains_backwards,
    files_of,
    read_journal,
    read_last,
    read_period,
    read_with_older,
    tail_begin,
)
from hadar_slurm.journal.writer import Journal

__all__ = [
    "VERSION",
    "VERSIONS",
    "Changed",
    "Decoder",
    "Journal",
    "Line",
    "as_line",
    "chains_backwards",
    "changed_rows",
    "claim_facts",
    "credits_of",
    "files_of",
    "gang_from_tree",
    "gang_tree",
    "job_of",
    "judged_of",
    "read_journal",
    "read_last",
    "read_period",
    "read_with_older",
    "snapshot_of",
    "tail_begin",
    "throughputs_of",
]
