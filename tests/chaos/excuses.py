"""Which lost edits count apart: those that Slurm shows as it shows hadard's own changes. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from chaos.invariants import EDITS, Finding
from chaos.workload import HOLD, Edit, Task

from hadar_slurm.slurm.enforce.readings import HELD_WITHIN_S, SAVED_AFTER_S

Span = tuple[float, float]
_RELEASED = re.compile(r"^\[(\S+)\] .*release hold on JobId=([0-9_]+)", re.MULTILINE)
_STARTED = re.compile(r"^\[(\S+)\] slurmctld version \S+ started on", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Record:
    """What was noted of a run; times in seconds since the epoch.

    `changes`, `readings` and `rounds` are the notes of hadard's driver, `replaced_s` the times at
    which slurmctld was replaced. `releases` has the times of all releases by job.
    """

    changes: Sequence[Mapping[str, Any]] = ()
    readings: Sequence[Mapping[str, Any]] = ()
    rounds: Sequence[Mapping[str, Any]] = ()
    replaced_s: Sequence[float] = ()
    releases: Mapping[str, Sequence[float]] = field(default_factory=dict)


def releases_in(log: str) -> dict[str, list[float]]:
    """Return when jobs were released, by job, from slurmctld's log."""
    found: dict[str, list[float]] = {}
    for time, job in _RELEASED.findall(log):
        found.setdefault(job, []).append(_seconds(time))
    return found


def starts_in(log: str) -> list[float]:
    """Return when slurmctld started, from its log: also where its configuration was changed."""
    return [_seconds(time) for time in _STARTED.findall(log)]


def _seconds(time: str) -> float:
    return datetime.fromisoformat(time).timestamp()


def excused_edits(
    findings: Iterable[Finding], tasks: Mapping[str, Task], record: Record
) -> Iterator[Finding]:
    """Yield the findings; apart are edits that looked to hadard as its own.

    Slurm cannot compare and set in one step, so the later of two writers at one moment wins. It
    also shows no difference between an owner's hold and hadard's (docs/fail-open.md).
    """
    spans = _spans(record.changes)
    for finding in findings:
        name, apart = finding.what.split()[0], finding.apart
        task = tasks.get(finding.job)
        edits = task.all_edits if task and finding.invariant == EDITS else ()
        for edit in (edit for field_, edit in edits if field_ == name):
            mine = spans.get(finding.job, [])
            if any(begun <= edit.done_s and edit.begun_s <= done for begun, done in mine):
                apart = "hadard and the owner wrote at the same moment"
            elif name == HOLD and task:
                apart = apart or _unclear_hold(edit, task, mine, record)
        yield replace(finding, apart=apart)


def _unclear_hold(edit: Edit, task: Task, spans: Sequence[Span], record: Record) -> str:
    """Return why hadard took an owner's hold for its own; empty: there is no reason."""
    released = [time_s for time_s in record.releases.get(task.key, ()) if time_s < edit.begun_s]
    changed = [*(begun_s for begun_s, _ in spans), *released]
    recent = [time_s for time_s in changed if edit.begun_s - SAVED_AFTER_S < time_s]
    if any(since_s <= at_s <= edit.done_s for since_s in recent for at_s in record.replaced_s):
        return "slurmctld was replaced between hadard's change and the hold"
    if released and not _is_read(released[-1], edit.begun_s, record):
        return "no hadard had recorded yet that the job was released"
    is_young = edit.begun_s < task.submitted_s + HELD_WITHIN_S
    if released and is_young and not _is_read(task.submitted_s, released[0], record):
        return "no hadard had seen the job yet, and hadar-sbatch could be about to hold it"
    return ""


def _is_read(since_s: float, until_s: float, record: Record) -> bool:
    """Return whether a hadard read the queue between two times, and could still know it then.

    It was still there, or had written its ledger at the end of a round.
    """
    for reading in record.readings:
        pid, read_s = reading["pid"], reading["time_s"]
        if not since_s < read_s < until_s:
            continue
        later = (other["time_s"] for other in record.readings if other["pid"] == pid)
        ended = (round_["time_s"] for round_ in record.rounds if round_["pid"] == pid)
        if max(later) > until_s or any(read_s < ended_s < until_s for ended_s in ended):
            return True
    return False


def _spans(changes: Iterable[Mapping[str, Any]]) -> dict[str, list[Span]]:
    """Return when hadard was changing each job, from the driver's notes before and after."""
    spans: dict[str, list[Span]] = {}
    begun: Mapping[str, Any] = {}
    for note in changes:
        if "wrong" not in note:
            begun = note
            continue
        for job in note["jobs"]:
            begun_s = begun["time_s"] if job in begun.get("jobs", ()) else note["time_s"]
            spans.setdefault(job, []).append((begun_s, note["time_s"]))
    return spans
