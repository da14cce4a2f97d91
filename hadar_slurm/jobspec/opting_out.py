"""The word in a job's comment that keeps it from enrolment, as in job_submit.lua. Imports nothing.

The rest of the comment stays the user's.
"""

from __future__ import annotations

OPT_OUT = "no-hadar"
# Set to `no` at submission it is the same.
OPT_OUT_VARIABLE = "HADAR"


def is_opted_out(comment: str) -> bool:
    """Return whether a job's owner has opted out."""
    return OPT_OUT in comment and OPT_OUT in comment.replace(",", " ").replace(";", " ").split()


def with_opt_out(comment: str) -> str:
    """Return a comment with the word."""
    return comment if is_opted_out(comment) else f"{comment} {OPT_OUT}".strip()
