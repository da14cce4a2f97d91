"""The detail lines of jobs that another job's texts may imitate.

A job's name, comment, paths and other texts may have line breaks and look like the lines of other
jobs. Who does that may harm an own job only, and the time that it costs is bounded.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from hadar_slurm.core.cluster import JobId
from hadar_slurm.errors import SlurmUnavailable
from hadar_slurm.jobspec.description import decode_or_none
from hadar_slurm.slurm.client.parse import (
    HOLDING_STATES,
    JOB_LINE,
    QueueRow,
    split_job_details,
    suspects,
)
from hadar_slurm.slurm.client.runner import Runner
from hadar_slurm.slurm.client.squeue import Fields, squeue

# Fewer doubts come from jobs that were submitted between two readings.
_FEW_DOUBTS = 8
_TEXTS = Fields("JobID", "Name Comment Command WorkDir Account Container")


def resolved(
    text: str, rows: Iterable[QueueRow], live: Sequence[QueueRow], runner: Runner, *, most: int
) -> tuple[dict[str, str], frozenset[JobId]]:
    """Return the lines of live jobs in scontrol's text, and the pending jobs that lack theirs.

    Jobs in doubt that hold GPUs or wait are asked for one by one, of those that wait described ones
    first, up to `most`: a job that is submitted after the queue was read puts the line before its
    own in doubt, imitations many.
    """
    keys = {row.raw_id: row.key for row in rows}
    details = split_job_details(text, keys)
    if text and sum(row.raw_id not in details for row in live) > _FEW_DOUBTS:
        alone = _imitators(text, keys, runner, most)
        details = split_job_details(_without_lines_of(alone.values(), text), keys) | alone
    doubtful = {row.raw_id: row for row in live if row.raw_id not in details}
    holding = [row.key for row in doubtful.values() if row.state in HOLDING_STATES]
    pending = [row for row in doubtful.values() if row.state == "PENDING"]
    pending.sort(key=lambda row: (decode_or_none(row.comment) is None, -row.priority))
    waiting = [row.key for row in pending]
    asked = holding + waiting[: max(0, most - len(holding))]
    found = job_details(asked, runner)
    # A task that has just begun is a job of its own, unlike the others of its array.
    lines = ((number, found.get(row.key, "")) for number, row in doubtful.items())
    details |= {n: line for n, line in lines if line.startswith(f"JobId={n} ")}
    return details, frozenset(waiting).difference(asked)


def _imitators(text: str, keys: Mapping[str, JobId], runner: Runner, most: int) -> dict[str, str]:
    """Return the detail lines of jobs whose texts may imitate lines of others, asked for alone.

    Those are jobs of which squeue shows such a text, and those whose lines precede lines in doubt.
    """
    texts = map(_TEXTS.named, _TEXTS.texts(*squeue(runner, _TEXTS, "-r", "-t", "all")))
    shown = [field["JobID"] for field in texts if JOB_LINE.search("\n".join(field.values()))]
    lines, is_suspect = suspects(text, keys)
    pairs = zip(lines, pairwise([*is_suspect, False]), strict=True)
    before = [number for (number, _), suspect in pairs if suspect == (False, True)]
    asked = [number for number in dict.fromkeys([*shown, *before]) if number in keys][:most]
    details = job_details([keys[number] for number in asked], runner)
    return {number: details[keys[number]] for number in asked if keys[number] in details}


def _without_lines_of(details: Collection[str], text: str) -> str:
    """Return that text without the lines by which these jobs imitate others.

    A line goes only where the text has it as often as these jobs: nobody can remove the line of
    another job. What follows such a line of the job itself goes with it.
    """
    theirs = Counter(
        line for detail in details for line in detail.split("\n")[1:] if JOB_LINE.match(line)
    )
    lines = text.split("\n")
    times = Counter(lines)
    return "\n".join(line for line in lines if not 0 < theirs[line] == times[line])


def job_details(jobs: Sequence[JobId], runner: Runner) -> dict[JobId, str]:
    """Return the lines of `scontrol show job -d -o` for these jobs, asked for one by one.

    One command asks for all of them, and separates its answers by a mark that cannot be foreseen.
    Jobs that Slurm has forgotten are left out.
    """
    if not jobs:
        return {}
    mark = f"mark{secrets.token_hex(8)}"
    end = re.compile(rf"{mark}x(\d+)x$")
    asks = (f"show job {job}\nshow hostnames {mark}x{n}x\n" for n, job in enumerate(jobs))
    said = runner.replies(["scontrol", "-a", "-d", "-o"], stdin="".join(asks) + "quit\n")
    found: dict[JobId, str] = {}
    shown: list[str] = []
    for line in said.split("\n"):
        if (match := end.search(line)) is None:
            shown.append(line)
        else:
            # scontrol may repeat what it is asked: the first text before a mark counts.
            found.setdefault(jobs[int(match[1])], "\n".join([*shown, ""]))
            shown.clear()
    if len(found) < len(jobs):
        raise SlurmUnavailable("scontrol ended before it had shown all jobs")
    return {job: text[text.index("JobId=") :] for job, text in found.items() if "JobId=" in text}
